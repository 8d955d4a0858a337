//! The way of a peer through an [open](crate::Tree::open) tree: words and leaves read one-sidedly,
//! and nothing asked of the tree (to-copy §6, TC-M41).
//!
//! Inner nodes are private, so a walk goes from the leftmost leaf along the side links. Of each
//! leaf it loads the version, the word, the page with its deltas, and the version again. The leaf
//! counts where the version is odd and the same (`open` says why); else it is loaded again. A leaf
//! that is being merged counts only while its left neighbour still links to it, as for readers
//! inside the tree.
//!
//! The memory may be a hostile peer's. Each byte is copied out once and checked in the copy:
//! sections, fences, the order of keys, each record of the chain and its place. A walk ends, gives
//! an error, or comes to a key that it has not given yet.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use crate::arena::CHUNK_BYTES_MIN;
use crate::inner::Target;
use crate::open::Opening;
use crate::page::{
    DELTA_HEADER, DeltaRecord, HEADER_BYTES, Leaf, NO_PAGE, Op, OverflowRef, Rest, page_len, record_len,
};
use crate::pinned::{clip_rows, within};
use crate::store::{FROZEN, base_of, is_leaf, newest_of};
use crate::sync::{Ordering, fence};

/// Reads the arena of an open tree.
pub trait Reads {
    /// Why it could not.
    type Error;

    /// Fills `out` with the bytes from `at` on, as far as they lie in one segment; how many.
    /// Aligned words of eight bytes are each as they were at one instant. Bytes of a later call are
    /// loaded after those of an earlier one.
    ///
    /// # Errors
    /// Nothing can be read there.
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize, Self::Error>;

    /// Somebody changed what was read, for the `nth` time since there were rows: waits a little, or
    /// not. Whether to read it once more.
    fn again(&mut self, nth: u64) -> bool;
}

/// Why a walk does not go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WalkError<E> {
    /// Memory could not be read.
    #[error(transparent)]
    Read(E),
    /// The part of the mapping table that has this page is not known: open again.
    #[error("page {0} lies outside of the mapping table as far as it can be read; scan without --one-sided")]
    Unopened(u32),
    /// What lies there is no leaf of a tree.
    #[error("the arena does not hold what its mapping table says: {0}; is the server of the same version?")]
    Malformed(&'static str),
    /// Writers were always faster.
    #[error("a page changed each time before it was read; scan without --one-sided, or when there is less to do")]
    Busy,
}

/// One peer's way through a range of keys.
#[derive(Debug)]
pub struct Walk {
    opening: Opening,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    /// Leaves on the way, the next one last.
    path: Vec<u32>,
    /// Where the next leaf begins, if it is still the one that the leaf before it links to.
    begins: Option<Vec<u8>>,
    done: bool,
    page: Vec<u8>,
    left: Vec<u8>,
    found: Found,
    again: u64,
}

/// What was found in the page that was loaded.
#[derive(Debug, Default)]
struct Found {
    rows: Range<usize>,
    /// Where the newest record of each key lies, by key.
    deltas: Vec<usize>,
    /// By offset and length: memory that was tampered with may say two lengths for one place.
    extents: BTreeMap<(u64, u32), Vec<u8>>,
}

/// A leaf's state at one instant, in the walk's own memory.
#[derive(Debug)]
pub struct Walked<'w> {
    page: &'w [u8],
    found: &'w Found,
}

/// A leaf as it was loaded.
#[derive(Clone, Copy)]
struct Loaded {
    word: u64,
    version: u64,
    version_at: u64,
}

enum Step {
    Page,
    /// To the next leaf; nothing of this one lies in the range.
    On,
    /// Somebody changed it meanwhile.
    Again,
}

impl Walk {
    /// Begins a walk over the keys between two bounds.
    pub fn new(opening: Opening, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Walk {
        let path = vec![opening.first];
        let (from, to) = (from.map(<[u8]>::to_vec), to.map(<[u8]>::to_vec));
        Walk {
            opening,
            from,
            to,
            path,
            begins: None,
            done: false,
            page: Vec::new(),
            left: Vec::new(),
            found: Found::default(),
            again: 0,
        }
    }

    /// Goes on with what is known of the mapping table by now.
    pub fn reopen(&mut self, opening: Opening) {
        self.opening = opening;
    }

    /// Leaves that were loaded again because they had changed.
    pub fn again(&self) -> u64 {
        self.again
    }

    /// The rows that [`advance`](Self::advance) came to.
    pub fn page(&self) -> Walked<'_> {
        Walked { page: &self.page, found: &self.found }
    }

    /// Goes on to the range's next rows, as many as lie in the next leaf (of long values fewer);
    /// false at its end.
    ///
    /// # Errors
    /// The memory cannot be read, is no tree's, or changes too fast. After [`WalkError::Unopened`]
    /// it can be [opened again](Self::reopen).
    pub fn advance<R: Reads>(&mut self, memory: &mut R) -> Result<bool, WalkError<R::Error>> {
        let mut again = 0;
        while !self.done {
            match self.step(memory)? {
                Step::Page => return Ok(true),
                // Each leaf ends behind where it begins, so there is an end of them.
                Step::On => {}
                Step::Again => {
                    (again, self.again) = (again + 1, self.again + 1);
                    if !memory.again(again) {
                        return Err(WalkError::Busy);
                    }
                }
            }
        }
        self.found = Found::default();
        Ok(false)
    }

    fn step<R: Reads>(&mut self, memory: &mut R) -> Result<Step, WalkError<R::Error>> {
        let pid = *self.path.last().unwrap_or(&self.opening.first);
        let mut page = std::mem::take(&mut self.page);
        let loaded = load_leaf(&self.opening, memory, pid, &mut page);
        self.page = page;
        let Some(loaded) = loaded? else { return Ok(self.back()) };
        let leaf = parsed(&self.page, &self.opening).map_err(WalkError::Malformed)?;
        let (low, right) = (leaf.low_fence(), leaf.right());
        let next: &[u8] = match &self.from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        if low > next || self.begins.as_ref().is_some_and(|begins| begins != low) {
            // The number is another leaf's by now.
            return Ok(self.back());
        }
        if leaf.beyond(Target::At(next)) {
            self.begins = leaf.high_fence().map(<[u8]>::to_vec);
            self.path.push(right);
            return Ok(Step::On);
        }
        if loaded.word & FROZEN != 0 && !self.linked(memory, pid)? {
            return Ok(self.back());
        }
        let leaf = parsed(&self.page, &self.opening).map_err(WalkError::Malformed)?;
        let high = leaf.high_fence().map(<[u8]>::to_vec);
        let cut = self.find(loaded.word).map_err(WalkError::Malformed)?;
        if !self.load_extents(memory)? {
            return Err(WalkError::Malformed("a value lies outside of it"));
        }
        if !self.found.extents.is_empty() && load_word(memory, loaded.version_at)? != loaded.version {
            return Ok(self.back());
        }
        match (cut, high) {
            (Some(cut), _) => (self.from, self.begins) = (Bound::Included(cut), None),
            (None, Some(high)) if reaches(&self.to, &high) => {
                self.begins = Some(high.clone());
                self.from = Bound::Included(high);
                self.path.push(right);
            }
            _ => self.done = true,
        }
        Ok(if self.found.rows.is_empty() && self.found.deltas.is_empty() { Step::On } else { Step::Page })
    }

    /// To the leaf before, which may have the rows by now.
    fn back(&mut self) -> Step {
        self.begins = None;
        if self.path.len() > 1 {
            self.path.pop();
        }
        Step::Again
    }

    /// Whether the left neighbour of leaf `pid`, which is being merged into it, does not have its
    /// rows yet.
    fn linked<R: Reads>(&mut self, memory: &mut R, pid: u32) -> Result<bool, WalkError<R::Error>> {
        let Some(left) = self.path.len().checked_sub(2).map(|at| self.path[at]) else { return Ok(false) };
        let mut page = std::mem::take(&mut self.left);
        let loaded = load_leaf(&self.opening, memory, left, &mut page);
        self.left = page;
        let Some(loaded) = loaded? else { return Ok(false) };
        let left = parsed(&self.left, &self.opening).map_err(WalkError::Malformed)?;
        let low = parsed(&self.page, &self.opening).map_err(WalkError::Malformed)?.low_fence();
        Ok(loaded.word & FROZEN == 0 && left.right() == pid && left.high_fence() == Some(low))
    }

    /// Finds rows and records of the page within the range; where the range is cut for the sake of
    /// its long values, the first key behind.
    fn find(&mut self, word: u64) -> Result<Option<Vec<u8>>, &'static str> {
        let (page, opening) = (&self.page[..], &self.opening);
        let leaf = parsed(page, opening)?;
        let records = chain(page, &leaf, newest_of(word), opening)?;
        let (from, to) = (as_slice(&self.from), as_slice(&self.to));
        let mut found = clipped(&leaf, &records, (from, to));
        let cut = cut_of(page, &leaf, &found, opening.value_max)?;
        if let Some(cut) = &cut {
            found = clipped(&leaf, &records, (from, Bound::Excluded(cut)));
        }
        self.found = found;
        Ok(cut)
    }

    /// Loads the long values of what was found; false where one lies outside.
    fn load_extents<R: Reads>(&mut self, memory: &mut R) -> Result<bool, WalkError<R::Error>> {
        let Ok(leaf) = parsed(&self.page, &self.opening) else { return Ok(false) };
        for (_, reference) in long_values(&self.page, &leaf, &self.found) {
            let mut bytes = vec![0; reference.len as usize];
            if load(memory, reference.offset, &mut bytes)? < bytes.len() {
                return Ok(false);
            }
            self.found.extents.insert((reference.offset, reference.len), bytes);
        }
        Ok(true)
    }
}

impl<'w> Walked<'w> {
    /// The base page, of which [`rows`](Self::rows) lie in the range.
    pub fn leaf(&self) -> Leaf<'w> {
        Leaf::open(self.page.get(..page_len(self.page)).unwrap_or_default())
    }

    /// Those rows; deltas may replace or delete some.
    pub fn rows(&self) -> Range<usize> {
        self.found.rows.clone()
    }

    /// The newest delta of each key, sorted by key.
    pub fn deltas(&self) -> impl ExactSizeIterator<Item = DeltaRecord<'w>> + use<'w> {
        let page = self.page;
        self.found.deltas.iter().map(move |at| record_at(page, *at))
    }

    /// The bytes of a value's rest that lies in an extent; none where none of these rows names it.
    pub fn extent(&self, reference: OverflowRef) -> Option<&'w [u8]> {
        self.found.extents.get(&(reference.offset, reference.len)).map(Vec::as_slice)
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Whether a range that ends at `to` has keys from `high` on.
fn reaches(to: &Bound<Vec<u8>>, high: &[u8]) -> bool {
    match to {
        Bound::Unbounded => true,
        Bound::Included(to) => high <= to.as_slice(),
        Bound::Excluded(to) => high < to.as_slice(),
    }
}

fn load<R: Reads>(memory: &mut R, at: u64, out: &mut [u8]) -> Result<usize, WalkError<R::Error>> {
    let read = memory.read(at, out).map_err(WalkError::Read)?;
    fence(Ordering::Acquire);
    Ok(read)
}

fn load_word<R: Reads>(memory: &mut R, at: u64) -> Result<u64, WalkError<R::Error>> {
    let mut word = [0; 8];
    match load(memory, at, &mut word)? {
        8 => Ok(u64::from_le_bytes(word)),
        _ => Err(WalkError::Malformed("its mapping table lies outside of it")),
    }
}

/// Loads leaf `pid` with its chain; none where no leaf of that number was in the tree all the
/// while.
fn load_leaf<R: Reads>(
    opening: &Opening,
    memory: &mut R,
    pid: u32,
    page: &mut Vec<u8>,
) -> Result<Option<Loaded>, WalkError<R::Error>> {
    let (word_at, version_at) = opening.place(pid).ok_or(WalkError::Unopened(pid))?;
    let version = load_word(memory, version_at)?;
    if version.is_multiple_of(2) {
        return Ok(None);
    }
    let word = load_word(memory, word_at)?;
    if !is_leaf(word) {
        return Ok(None);
    }
    let whole = load_unit(opening, memory, word, page)?;
    // Only if it was the leaf's all the while, what it says means anything.
    if load_word(memory, version_at)? != version {
        return Ok(None);
    }
    whole.map_err(WalkError::Malformed)?;
    Ok(Some(Loaded { word, version, version_at }))
}

/// Loads what a word names: the base page, and what lies behind it up to the end of the newest
/// record.
fn load_unit<R: Reads>(
    opening: &Opening,
    memory: &mut R,
    word: u64,
    page: &mut Vec<u8>,
) -> Result<Result<(), &'static str>, WalkError<R::Error>> {
    let (base, newest) = (base_of(word), newest_of(word));
    // A page of the usual length and its room for deltas, at once.
    let usual = HEADER_BYTES + opening.page_bytes.min(CHUNK_BYTES_MIN / 2) * 5 / 4;
    page.clear();
    for want in [usual, 0, 0] {
        let want = want.max(wanted(page, newest));
        if want > CHUNK_BYTES_MIN {
            return Ok(Err("a page is too long"));
        }
        let have = page.len();
        if want <= have {
            break;
        }
        page.resize(want, 0);
        let read = load(memory, base + have as u64, &mut page[have..])?;
        page.truncate(have + read);
    }
    Ok(if page.len() < wanted(page, newest) { Err("a page reaches beyond it") } else { Ok(()) })
}

/// Bytes of a unit that are needed, as far as those that are there say.
fn wanted(page: &[u8], newest: usize) -> usize {
    let base = page.get(..HEADER_BYTES).map_or(HEADER_BYTES, page_len);
    let chain = match page.get(newest..newest + DELTA_HEADER) {
        _ if newest == 0 => 0,
        Some(header) => newest.saturating_add(record_len(header)),
        None => newest + DELTA_HEADER,
    };
    base.max(chain)
}

/// The base page that begins `unit`, if it is one of this tree.
fn parsed<'u>(unit: &'u [u8], opening: &Opening) -> Result<Leaf<'u>, &'static str> {
    let leaf = Leaf::parse(unit).map_err(|_| "a page is none")?;
    if leaf.prefix_len() != opening.prefix_len {
        return Err("a page is of another table");
    }
    if leaf.high_fence().is_some() == (leaf.right() == NO_PAGE) {
        return Err("a page's link is none");
    }
    leaf.verify(opening.key_max)?;
    Ok(leaf)
}

/// A record that was checked.
fn record_at(unit: &[u8], at: usize) -> DeltaRecord<'_> {
    let record = unit.get(at..).unwrap_or_default();
    DeltaRecord::open(record.get(..record_len(record)).unwrap_or_default())
}

/// The newest record of each key of a chain, by key, with their places.
fn chain<'u>(
    unit: &'u [u8],
    leaf: &Leaf<'_>,
    newest: usize,
    opening: &Opening,
) -> Result<Vec<(usize, DeltaRecord<'u>)>, &'static str> {
    let mut records: Vec<(usize, DeltaRecord<'u>)> = Vec::new();
    let mut at = newest;
    while at != 0 {
        if at < leaf.bytes().len() {
            return Err("a record lies in its page");
        }
        let bytes = unit.get(at..at + record_len(unit.get(at..).unwrap_or_default()));
        let record = bytes.and_then(|bytes| DeltaRecord::parse(bytes).ok()).ok_or("a record is none")?;
        record.verify(record.record(), opening.prefix_len, opening.key_max)?;
        let place = match leaf.search(record.key()) {
            Ok(row) => (row, true),
            Err(row) => (row, false),
        };
        let inside = leaf.low_fence() <= record.key() && leaf.high_fence().is_none_or(|high| record.key() < high);
        if !inside || place != (record.position(), record.replaces()) {
            return Err("a record belongs elsewhere");
        }
        records.push((at, record));
        if record.next() >= at {
            return Err("a chain turns back");
        }
        at = record.next();
    }
    // Newest first, and a stable sort.
    records.sort_by(|a, b| a.1.key().cmp(b.1.key()));
    records.dedup_by(|later, first| later.1.key() == first.1.key());
    Ok(records)
}

fn clipped(leaf: &Leaf<'_>, records: &[(usize, DeltaRecord<'_>)], bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Found {
    let counts = |record: &DeltaRecord<'_>| record.op() == Op::Put || record.replaces();
    let inside = records.iter().filter(|(_, record)| within(record.key(), bounds) && counts(record));
    let deltas = inside.map(|(at, _)| *at).collect();
    Found { rows: clip_rows(leaf, bounds), deltas, extents: BTreeMap::new() }
}

/// The values among what was found whose rests lie in extents, by key.
fn long_values(unit: &[u8], leaf: &Leaf<'_>, found: &Found) -> Vec<(Vec<u8>, OverflowRef)> {
    let records = || found.deltas.iter().map(|at| record_at(unit, *at));
    let replaced: Vec<usize> = records().filter(DeltaRecord::replaces).map(|record| record.position()).collect();
    let rows = if leaf.has_overflow() { found.rows.clone() } else { 0..0 };
    let mut values: Vec<(Vec<u8>, OverflowRef)> = rows
        .filter(|row| replaced.binary_search(row).is_err())
        .filter_map(|row| match leaf.rest(row) {
            Rest::Overflow(reference) => Some((leaf.key_parts(row).to_vec(), reference)),
            Rest::Inline(_) => None,
        })
        .collect();
    values.extend(records().filter_map(|record| match record.rest() {
        Rest::Overflow(reference) => Some((record.key().to_vec(), reference)),
        Rest::Inline(_) => None,
    }));
    values.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    values
}

/// The key of the first value that is too much to be loaded along with those before it.
fn cut_of(unit: &[u8], leaf: &Leaf<'_>, found: &Found, value_max: usize) -> Result<Option<Vec<u8>>, &'static str> {
    let mut bytes = 0;
    for (key, reference) in long_values(unit, leaf, found) {
        let len = reference.len as usize;
        if len > value_max {
            return Err("a value is too long");
        }
        if bytes > 0 && bytes + len > EXTENT_BYTES_MAX {
            return Ok(Some(key));
        }
        bytes += len;
    }
    Ok(None)
}

/// Bytes of extents that are loaded at a time, unless one alone has more.
const EXTENT_BYTES_MAX: usize = 4 << 20;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use super::*;
    use crate::core::Core;
    use crate::store::Node;
    use crate::{HeapArena, Options, SystemWaits, Tree};

    /// Reads the tree's own memory, and does something before it reads a page.
    struct Staged<'t, F> {
        tree: &'t Tree,
        before_page: F,
    }

    impl<F: FnMut()> Reads for Staged<'_, F> {
        type Error = Infallible;

        fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize, Infallible> {
            if out.len() > 8 {
                (self.before_page)();
            }
            let reference = OverflowRef { offset: at, len: out.len() as u32, extent: 0 };
            out.copy_from_slice(self.tree.core.store.overflow_bytes(reference, self.tree));
            Ok(out.len())
        }

        fn again(&mut self, nth: u64) -> bool {
            nth < 100
        }
    }

    fn tree(rows: u64) -> Tree {
        let arena = Arc::new(HeapArena::new(16 << 20).unwrap());
        let options = Options { page_bytes: 512, prefix_len: 8, ..Options::default() };
        let tree = Tree::open(arena, options, &SystemWaits).unwrap();
        (0..rows).for_each(|n| tree.insert(&n.to_be_bytes(), &[1; 8]).unwrap());
        tree
    }

    fn walk(tree: &Tree) -> Walk {
        Walk::new(tree.opening().unwrap(), Bound::Unbounded, Bound::Unbounded)
    }

    fn values(walk: &Walk) -> Vec<u8> {
        let page = walk.page();
        let base = page.rows().filter(|row| page.deltas().all(|delta| delta.position() != *row));
        base.map(|row| page.leaf().prefix(row)[0]).chain(page.deltas().map(|delta| delta.prefix()[0])).collect()
    }

    /// Between the word and what it names, the page is replaced and its memory freed.
    #[test]
    fn a_page_that_went_meanwhile_is_read_again() {
        let tree = tree(20);
        let mut rounds = 2..5u8;
        let mut memory = Staged {
            tree: &tree,
            before_page: || {
                for round in rounds.by_ref().take(1) {
                    (0..200u64).for_each(|n| _ = tree.update(&(n % 20).to_be_bytes(), &[round; 8]).unwrap());
                    tree.reclaim();
                }
            },
        };
        let mut walk = walk(&tree);
        assert_eq!(walk.advance(&mut memory), Ok(true));
        assert!(walk.again() >= 3 && values(&walk).iter().all(|value| *value == 4), "{:?}", values(&walk));
    }

    /// The left neighbour has a leaf's rows and a newer one among them, and the leaf's word does
    /// not say so yet.
    #[test]
    fn a_leaf_whose_rows_are_elsewhere_is_not_believed() {
        let tree = tree(30);
        let core: &Core = &tree.core;
        let mut memory = Staged { tree: &tree, before_page: || {} };
        let (mut stale, mut fresh) = (walk(&tree), walk(&tree));
        assert_eq!((stale.advance(&mut memory), fresh.advance(&mut memory)), (Ok(true), Ok(true)));
        let pid = *stale.path.last().unwrap();
        let guard = core.enter();
        let Node::Leaf(going) = core.read(&guard, pid).node(&core.store) else { panic!("a leaf") };
        let low = going.leaf.low_fence().to_vec();
        let frozen = going.word | FROZEN;
        assert!(core.install(pid, going.word, frozen));
        // As long as the left one links to it, a leaf that is being merged is what it was.
        assert_eq!(fresh.advance(&mut memory), Ok(true));
        assert_eq!(fresh.page().leaf().low_fence(), low);
        assert!(core.install(pid, frozen, going.word));
        for n in (0..28u64).filter(|n| n % 9 > 0) {
            tree.delete(&n.to_be_bytes()).unwrap();
        }
        assert!(tree.stats().merges > 0 && core.read(&guard, pid).frozen());
        (0..30u64).for_each(|n| _ = tree.update(&n.to_be_bytes(), &[2; 8]).unwrap());
        // The instant before its word was cleared.
        core.store.map.entry(pid).word.store(frozen, Ordering::SeqCst);
        core.store.came_or_went(pid);
        assert_eq!(stale.advance(&mut memory), Ok(true));
        assert!(values(&stale).iter().all(|value| *value == 2), "{:?}", values(&stale));
    }
}
