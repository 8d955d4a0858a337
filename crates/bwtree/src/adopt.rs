//! A tree made of leaves that were written down: a checkpoint's pages become a tree's again.
//!
//! Leaves come in key order, as a [`PinnedPage`](crate::PinnedPage) shows them. That is the base
//! page as it lies, the rows of it that count, the newest delta of each key, and the bytes of what
//! lies in extents. Where they come from is not the tree's, so all of it is checked, row by row,
//! and nothing of it is taken over but rows. Each becomes part of a new page, copied in stretches
//! and once, with the deltas merged in. Inner nodes are built over the pages in the end. No row is
//! searched for a place.
//!
//! A scan skips leaves without rows, and pages of different instants may overlap: what the earlier
//! page had is clipped from the later one by [`PinnedPage::rows`](crate::PinnedPage::rows). So a
//! leaf begins where the leaf before it ended, whatever its own low fence says.

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use crate::alloc::Purpose;
use crate::arena::Arena;
use crate::consolidate::merge;
use crate::core::Core;
use crate::inner::{Inner, separator};
use crate::newest::{Edit, Rank};
use crate::options::{Error, Options};
use crate::page::{
    DeltaRecord, Fences, Fill, Layout, Leaf, NO_PAGE, Op, OverflowRef, POSITION_EXACT, Piece, Rest, cuts, ensure,
    rebase_overflow, row_of, set_link, split_pieces, write_page,
};
use crate::stamps::Stamps;
use crate::stats::Counter;
use crate::store::{Fresh, Store, inner_word};
use crate::tree::Tree;
use crate::waits::Waits;

/// A leaf as it was written down. Its high fence is its base page's.
#[derive(Debug, Clone, Default)]
pub struct AdoptLeaf<'a> {
    /// [`PinnedPage::base`](crate::PinnedPage::base).
    pub base: &'a [u8],
    /// [`PinnedPage::rows`](crate::PinnedPage::rows).
    pub rows: Range<usize>,
    /// The [record](DeltaRecord::record) of each of
    /// [`PinnedPage::deltas`](crate::PinnedPage::deltas).
    pub deltas: &'a [&'a [u8]],
    /// [`PinnedPage::extents`](crate::PinnedPage::extents).
    pub extents: &'a [&'a [u8]],
}

/// Why leaves make no tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AdoptError {
    /// A leaf that no tree with these options wrote.
    #[error("leaf {leaf} of its part is damaged: {fault}; take an older checkpoint")]
    Leaf {
        /// How many leaves of the part came before.
        leaf: usize,
        /// What is wrong.
        fault: &'static str,
    },
    /// Parts that overlap.
    #[error("part {part} begins before the part in front of it ends; give the parts in key order")]
    Order {
        /// How many parts came before.
        part: usize,
    },
    /// No room, or options that cannot be.
    #[error(transparent)]
    Tree(#[from] Error),
}

/// A tree to be. Several threads may take [parts](Self::part) of the key space at once;
/// [`finish`](Self::finish) joins them.
pub struct Adoption {
    core: Arc<Core>,
}

/// Leaves that follow each other.
pub struct LeafRun {
    core: Arc<Core>,
    from: Vec<u8>,
    pages: Vec<Page>,
    /// Where the next leaf begins.
    end: End,
    leaves: usize,
    rows: u64,
}

/// A page that is written and that nobody knows yet.
struct Page {
    low: Vec<u8>,
    rows: usize,
    word: u64,
    fresh: Fresh,
}

/// Where a page ends: at a key, or at the end of the key space.
type End = Option<Vec<u8>>;

impl Tree {
    /// Begins a tree of leaves that were written down, over `arena`, which it has for itself.
    ///
    /// # Errors
    /// [`Error::Options`] as [`Tree::new`].
    pub fn adopt(
        arena: Arc<dyn Arena>,
        options: Options,
        waits: &'static dyn Waits,
        stamps: Option<Arc<Stamps>>,
    ) -> Result<Adoption, Error> {
        options.check(&*arena)?;
        Ok(Adoption { core: Arc::new(Core::bare(Store::new(arena, options.page_bytes), options, waits, stamps)) })
    }
}

impl Adoption {
    /// A part of the key space, without leaves yet. It begins at `from`: at the empty key, or where
    /// the leaf in front of its first one ends.
    pub fn part(&self, from: &[u8]) -> LeafRun {
        let end = Some(from.to_vec());
        LeafRun { core: self.core.clone(), from: from.to_vec(), pages: Vec::new(), end, leaves: 0, rows: 0 }
    }

    /// The tree of all parts, which come in key order. Keys that are in none of them are not there.
    ///
    /// # Errors
    /// [`AdoptError::Order`] for parts that overlap, [`AdoptError::Tree`] where there is no room
    /// left.
    ///
    /// # Panics
    /// When another adoption made a part.
    pub fn finish(self, parts: impl IntoIterator<Item = LeafRun>) -> Result<Tree, AdoptError> {
        let core = self.core;
        let mut pages = Vec::new();
        // The end of what is there so far; what lies behind it until the next part becomes a page without rows.
        let mut end: End = Some(Vec::new());
        for (number, part) in parts.into_iter().enumerate() {
            assert!(Arc::ptr_eq(&core, &part.core), "a part of another adoption");
            if part.pages.is_empty() {
                continue;
            }
            match end {
                Some(end) if end < part.from => pages.push(core.empty(&end, Some(&part.from))?),
                Some(end) if end == part.from => {}
                _ => return Err(AdoptError::Order { part: number }),
            }
            pages.extend(part.pages);
            end = part.end;
        }
        if let Some(end) = end {
            pages.push(core.empty(&end, None)?);
        }
        core.plant(pages);
        Ok(Tree { core })
    }
}

impl LeafRun {
    /// Takes the next leaf in key order.
    ///
    /// # Errors
    /// [`AdoptError::Leaf`] where it is damaged or out of order; the part goes on without it, and
    /// its keys are not there. [`AdoptError::Tree`] where there is no room: the adoption cannot go
    /// on.
    pub fn take(&mut self, leaf: &AdoptLeaf<'_>) -> Result<(), AdoptError> {
        let damaged = |fault| AdoptError::Leaf { leaf: self.leaves, fault };
        let checked = Checked::of(leaf, &self.end, &self.core.options).map_err(damaged)?;
        let pages = self.core.take_over(&checked)?;
        self.rows += pages.iter().map(|page| page.rows as u64).sum::<u64>();
        self.pages.extend(pages);
        self.end = checked.fences.high.map(<[u8]>::to_vec);
        self.leaves += 1;
        Ok(())
    }

    /// Rows in all the leaves that it took, as they were counted when they were written.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

/// A leaf's rows, checked.
struct Checked<'a> {
    fences: Fences<'a>,
    base: Leaf<'a>,
    rows: Range<usize>,
    /// In key order.
    edits: Vec<Edit<'a>>,
    /// References to extents and what lies in them, sorted by what they name.
    extents: Vec<(OverflowRef, &'a [u8])>,
}

impl<'a> Checked<'a> {
    /// Everything that the rest of this module relies on, and that a tree does later.
    fn of(leaf: &AdoptLeaf<'a>, end: &'a End, options: &Options) -> Result<Checked<'a>, &'static str> {
        let base = Leaf::parse(leaf.base).map_err(|_| "it is no page")?;
        base.verify(options.key_max)?;
        let rows = leaf.rows.clone();
        ensure(base.bytes().len() == leaf.base.len(), "something follows the page")?;
        ensure(base.prefix_len() == options.prefix_len, "its values have prefixes of another length")?;
        ensure(rows.start <= rows.end && rows.end <= base.count(), "it has fewer rows")?;
        let low = end.as_deref().ok_or("the leaf in front of it was the last one")?;
        let high = base.high_fence();
        ensure(high.is_none_or(|high| low < high), "it ends before the leaf in front of it does")?;
        let above = rows.is_empty() || base.key_parts(rows.start).compare(low).is_ge();
        ensure(above, "it begins before the leaf in front of it ends")?;
        let rest_max = options.value_max - options.prefix_len.min(options.value_max);
        let short = !base.has_rests() || rows.clone().all(|row| base.rest(row).len() <= rest_max);
        ensure(short, "a value is too long")?;
        let fences = Fences { low, high };
        let edits = edits(leaf.deltas, &base, &rows, fences, options)?;
        let extents = extents(leaf.extents, &base, &rows, &edits)?;
        Ok(Checked { fences, base, rows, edits, extents })
    }

    /// What lies in the extent that a row refers to.
    fn extent(&self, reference: OverflowRef) -> &'a [u8] {
        let at = self.extents.binary_search_by_key(&name(&reference), |(reference, _)| name(reference));
        at.map_or(&[], |at| self.extents[at].1)
    }
}

/// The deltas as changes to the base page's rows, in key order.
fn edits<'a>(
    deltas: &[&'a [u8]],
    base: &Leaf<'a>,
    rows: &Range<usize>,
    fences: Fences<'_>,
    options: &Options,
) -> Result<Vec<Edit<'a>>, &'static str> {
    let mut edits: Vec<Edit<'a>> = Vec::with_capacity(deltas.len());
    for bytes in deltas {
        let record = DeltaRecord::parse(bytes).map_err(|_| "a delta is no record")?;
        record.verify(bytes, options.prefix_len, options.key_max)?;
        let key = record.key();
        ensure(edits.last().is_none_or(|last| last.key < key), "its deltas do not ascend")?;
        ensure(key >= fences.low && fences.high.is_none_or(|high| key < high), "a delta is outside its fences")?;
        ensure(record.prefix().len() + record.rest().len() <= options.value_max, "a delta's value is too long")?;
        let position = match base.search(key) {
            Ok(row) => row as u32 | POSITION_EXACT,
            Err(row) => row as u32,
        };
        ensure(record.raw_position() == position, "a delta belongs to another row")?;
        let place = Rank::of(position);
        let inside = rows.start <= place.row() && place.row() + usize::from(place.replaces()) <= rows.end;
        ensure(inside, "a delta belongs to a row that is not its leaf's")?;
        let value = (record.op() == Op::Put).then(|| (record.prefix(), record.rest()));
        edits.push(Edit { place, at: 0, key, value });
    }
    Ok(edits)
}

/// What the base page's rows and the deltas refer to, in this order, with the bytes.
fn extents<'a>(
    bytes: &[&'a [u8]],
    base: &Leaf<'_>,
    rows: &Range<usize>,
    edits: &[Edit<'_>],
) -> Result<Vec<(OverflowRef, &'a [u8])>, &'static str> {
    let rows = if base.has_overflow() { rows.clone() } else { 0..0 };
    let rests = rows.map(|row| base.rest(row)).chain(edits.iter().filter_map(|edit| Some(edit.value?.1)));
    let references = rests.filter_map(|rest| match rest {
        Rest::Overflow(reference) => Some(reference),
        Rest::Inline(_) => None,
    });
    let mut extents = Vec::with_capacity(bytes.len());
    let mut left = bytes.iter();
    for reference in references {
        let bytes = left.next().ok_or("an extent is missing")?;
        ensure(!bytes.is_empty() && bytes.len() == reference.len as usize, "an extent has another length")?;
        extents.push((reference, *bytes));
    }
    ensure(left.next().is_none(), "there is an extent that no row refers to")?;
    extents.sort_unstable_by_key(|(reference, _)| name(reference));
    let once = extents.windows(2).all(|pair| name(&pair[0].0) != name(&pair[1].0));
    ensure(once, "two rows refer to one extent")?;
    Ok(extents)
}

fn name(reference: &OverflowRef) -> (u64, u32) {
    (reference.offset, reference.extent)
}

impl Core {
    /// Writes pages with the leaf's rows: one, unless that would be too long.
    fn take_over(&self, leaf: &Checked<'_>) -> Result<Vec<Page>, Error> {
        let pieces = merge(&leaf.base, leaf.rows.clone(), leaf.edits.iter().copied(), usize::MAX);
        let layout = Layout::of(&pieces, leaf.fences, self.options.prefix_len);
        if layout.page_len <= self.options.page_bytes || layout.count <= 1 {
            return Ok(vec![self.written(&pieces, &layout, leaf.fences, Some(leaf))?]);
        }
        let cuts = cuts(&pieces, &layout, self.options.page_bytes, Fill::Evenly);
        let between: Vec<Vec<u8>> =
            cuts.iter().map(|&at| separator(&row_of(&pieces, at - 1), &row_of(&pieces, at))).collect();
        let parts = split_pieces(&pieces, &cuts);
        let pages = parts.iter().enumerate().map(|(at, pieces)| {
            let fences = Fences {
                low: if at == 0 { leaf.fences.low } else { &between[at - 1] },
                high: between.get(at).map_or(leaf.fences.high, |high| Some(high)),
            };
            let layout = Layout::of(pieces, fences, self.options.prefix_len);
            self.written(pieces, &layout, fences, Some(leaf))
        });
        pages.collect()
    }

    fn empty(&self, low: &[u8], high: Option<&[u8]>) -> Result<Page, Error> {
        let fences = Fences { low, high };
        self.written(&[], &Layout::of(&[], fences, self.options.prefix_len), fences, None)
    }

    /// A page in the arena, whose extents lie there, too. Its neighbour is not known yet.
    fn written(
        &self,
        pieces: &[Piece<'_>],
        layout: &Layout,
        fences: Fences<'_>,
        leaf: Option<&Checked<'_>>,
    ) -> Result<Page, Error> {
        let room = self.room(pieces, layout);
        let mut fresh = self.store.fresh(layout.page_len, room, self.epochs.now(), Purpose::Growth, 0)?;
        let unit = fresh.unit;
        let page = self.store.fresh_page(&mut fresh, layout.page_len);
        write_page(page, layout, fences, pieces);
        set_link(page, NO_PAGE, unit);
        let mut made = Vec::new();
        if let Some(leaf) = leaf {
            let mut full = None;
            rebase_overflow(page, |reference| match self.store.overflow(leaf.extent(reference)) {
                Ok(extent) => {
                    made.push(extent);
                    extent
                }
                Err(exhausted) => {
                    full = Some(exhausted);
                    OverflowRef { offset: 0, len: 0, extent: 0 }
                }
            });
            if let Some(exhausted) = full {
                made.into_iter().for_each(|extent| self.store.let_go(Rest::Overflow(extent)));
                self.store.discard(fresh);
                return Err(exhausted.into());
            }
        }
        let word = self.store.seal(&fresh);
        made.into_iter().for_each(|extent| self.store.let_go(Rest::Overflow(extent)));
        Ok(Page { low: fences.low.to_vec(), rows: layout.count, word, fresh })
    }

    /// Links the pages, which are all there are, and builds inner nodes over them.
    fn plant(&self, pages: Vec<Page>) {
        // As if its leaves had come from one.
        self.enter().count(Counter::Splits as usize, pages.len().saturating_sub(1) as u64);
        let mut right = NO_PAGE;
        let mut level: Vec<(Vec<u8>, u32)> = Vec::with_capacity(pages.len());
        for mut page in pages.into_iter().rev() {
            let unit = page.fresh.unit;
            set_link(self.store.fresh_page(&mut page.fresh, crate::page::HEADER_BYTES), right, unit);
            right = self.new_page(page.word);
            level.push((page.low, right));
        }
        level.reverse();
        // Rows may come between any two, so nodes are not full.
        let children = (self.options.fan_out * 7 / 8).max(2);
        for number in 1.. {
            let entries: Vec<(&[u8], u32)> = level.iter().map(|(low, pid)| (low.as_slice(), *pid)).collect();
            let now = self.epochs.now();
            if entries.len() <= children {
                self.set_root(inner_word(Inner::new(now, number, &entries, None, NO_PAGE, NO_PAGE)));
                return;
            }
            let nodes = entries.len().div_ceil(children);
            let cut = |node: usize| entries.len() * node / nodes;
            let (mut above, mut high, mut right) = (Vec::with_capacity(nodes), None, NO_PAGE);
            for node in (0..nodes).rev() {
                let entries = entries[cut(node)..cut(node + 1)].to_vec();
                right = self.new_page(inner_word(Inner::new(now, number, &entries, high, right, NO_PAGE)));
                high = Some(entries[0].0);
                above.push((entries[0].0.to_vec(), right));
            }
            above.reverse();
            level = above;
        }
    }
}

impl std::fmt::Debug for Adoption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adoption").field("options", &self.core.options).finish()
    }
}

impl std::fmt::Debug for LeafRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part").field("leaves", &self.leaves).field("rows", &self.rows).finish()
    }
}
