//! Consolidation: base page and chain become a new base page, or several when it has grown too
//! large.
//!
//! The change that found the chain full goes in with it, and the whole is one compare-and-swap. A
//! split makes the right pages first, which no thread knows yet. Then it replaces the left one by a
//! page that ends at the first separator and links to the next page. Then it updates the parent. A
//! thread that comes between follows the links and updates the parent itself.

use std::ops::Range;

use smallvec::SmallVec;

use crate::alloc::Purpose;
use crate::core::Core;
use crate::descend::FoundLeaf;
use crate::epoch::Guard;
use crate::inner::separator;
use crate::newest::{Edit, Newest};
use crate::options::Error;
use crate::page::{Draft, Fences, Fill, Layout, Leaf, Op, Piece, cuts, row_of, split_pieces};
#[cfg(all(test, not(shuttle)))]
use crate::stall::Step;
use crate::stats::Counter;
use crate::store::{Fresh, LeafState};

pub(crate) type Pieces<'a> = SmallVec<[Piece<'a>; PIECES]>;

/// The rows of a leaf's state with `last` on top, as pieces.
pub(crate) fn pieces_of<'a>(state: &'a LeafState<'a>, last: Option<(&Draft<'a>, u32)>) -> Pieces<'a> {
    let mut newest = Newest::new();
    if let Some((draft, position)) = last {
        newest.add_draft(draft, position);
    }
    newest.add_chain(state, |_| true);
    merge(&state.leaf, 0..state.leaf.count(), newest.iter().copied(), usize::MAX)
}

/// The first `rows_max` of the base page's `rows` and the changes among them.
pub(crate) fn merge<'a>(
    leaf: &'a Leaf<'a>,
    rows: Range<usize>,
    edits: impl Iterator<Item = Edit<'a>>,
    rows_max: usize,
) -> Pieces<'a> {
    let mut pieces = Pieces::new();
    let (mut from, mut left) = (rows.start, rows_max);
    for edit in edits {
        let to = edit.place.row().min(from.saturating_add(left));
        if from < to {
            pieces.push(Piece::Run { leaf, from, to });
            left -= to - from;
            from = to;
        }
        if left == 0 {
            return pieces;
        }
        if let Some((prefix, rest)) = edit.value {
            pieces.push(Piece::Row { key: edit.key, prefix, rest });
            left -= 1;
        }
        from += usize::from(edit.place.replaces());
    }
    let to = rows.end.min(from.saturating_add(left));
    if from < to {
        pieces.push(Piece::Run { leaf, from, to });
    }
    pieces
}

impl Core {
    /// Replaces the leaf by a clean one that includes `last`, whose stamp is `stamp`; false if
    /// somebody was faster.
    pub(crate) fn consolidate(
        &self,
        guard: &Guard<'_>,
        found: &FoundLeaf<'_>,
        last: (&Draft<'_>, u32),
        stamp: u64,
    ) -> Result<bool, Error> {
        let pieces = pieces_of(&found.state, Some(last));
        let shrinking = last.0.op == Op::Delete;
        if shrinking {
            self.relieve(guard);
        }
        // Rows that come in ascending order leave full pages behind.
        let fill = match pieces.last() {
            Some(Piece::Row { .. }) if found.state.leaf.high_fence().is_none() => Fill::Left,
            _ => Fill::Evenly,
        };
        self.replace(guard, found, &pieces, fill, shrinking, stamp)
    }

    /// Replaces the leaf by a clean one of `pieces`, which include what its chain changed; false if
    /// somebody was faster. `appended`: its new rows lie behind its old ones. They have one
    /// `stamp`.
    pub(crate) fn rewrite(
        &self,
        guard: &Guard<'_>,
        found: &FoundLeaf<'_>,
        pieces: &[Piece<'_>],
        appended: bool,
        stamp: u64,
    ) -> Result<bool, Error> {
        let fill = if appended && found.state.leaf.high_fence().is_none() { Fill::Left } else { Fill::Evenly };
        self.replace(guard, found, pieces, fill, false, stamp)
    }

    /// Replaces the leaf by a page that consists of `pieces`, or by several where one would be too
    /// long. `stamp` was drawn after the leaf's word was read, so it is the newest one of all that
    /// is in them.
    fn replace(
        &self,
        guard: &Guard<'_>,
        found: &FoundLeaf<'_>,
        pieces: &[Piece<'_>],
        fill: Fill,
        shrinking: bool,
        stamp: u64,
    ) -> Result<bool, Error> {
        let state = &found.state;
        let fences = Fences { low: state.leaf.low_fence(), high: state.leaf.high_fence() };
        let layout = Layout::of(pieces, fences, self.options.prefix_len);
        if layout.page_len > self.options.page_bytes && layout.count > 1 {
            let cuts = cuts(pieces, &layout, self.options.page_bytes, fill);
            match self.split(guard, found, pieces, &cuts, fences, stamp) {
                // A page somewhat too large is better than a row that cannot be deleted.
                Err(Error::Exhausted) if shrinking => {}
                done => return done,
            }
        }
        let purpose = match shrinking {
            true => Purpose::Shrinking { from: self.store.piece_bytes(state) },
            false => Purpose::Growth,
        };
        let (word, fresh) = self.build_leaf(pieces, &layout, fences, state.leaf.right(), purpose, stamp)?;
        let reserved = fresh.reserved();
        if !self.install(found.pid, state.word, word) {
            self.store.discard(fresh);
            return Ok(false);
        }
        self.shelter(reserved, fences.low);
        self.retire_leaf(guard, found.pid, state);
        guard.count(Counter::Consolidations as usize, 1);
        if layout.page_len < state.leaf.bytes().len() {
            self.merge_if_small(guard, found.pid, layout.page_len, fences.low);
        }
        Ok(true)
    }

    /// Replaces the leaf by pages that end before the rows `cuts` of `pieces`, and the last one
    /// where the leaf did.
    fn split(
        &self,
        guard: &Guard<'_>,
        found: &FoundLeaf<'_>,
        pieces: &[Piece<'_>],
        cuts: &[usize],
        fences: Fences<'_>,
        stamp: u64,
    ) -> Result<bool, Error> {
        let state = &found.state;
        let between: Vec<Vec<u8>> =
            cuts.iter().map(|&at| separator(&row_of(pieces, at - 1), &row_of(pieces, at))).collect();
        let pages = split_pieces(pieces, cuts);
        // From right to left, since each names the page to its right.
        let mut built: Vec<(u32, Fresh)> = Vec::with_capacity(cuts.len());
        let mut left = None;
        for (at, pieces) in pages.iter().enumerate().rev() {
            let fences = Fences {
                low: if at == 0 { fences.low } else { &between[at - 1] },
                high: between.get(at).map_or(fences.high, |high| Some(high)),
            };
            let layout = Layout::of(pieces, fences, self.options.prefix_len);
            let right = built.last().map_or(state.leaf.right(), |(pid, _)| *pid);
            match self.build_leaf(pieces, &layout, fences, right, Purpose::Growth, stamp) {
                Ok(page) if at == 0 => left = Some(page),
                Ok((word, fresh)) => built.push((self.new_page(word), fresh)),
                Err(error) => {
                    self.unbuild(built);
                    return Err(error);
                }
            }
        }
        let Some((left_word, left_fresh)) = left else { return Ok(false) };
        if !self.install(found.pid, state.word, left_word) {
            self.store.discard(left_fresh);
            self.unbuild(built);
            return Ok(false);
        }
        built.iter().for_each(|(pid, _)| self.store.came_or_went(*pid));
        self.retire_leaf(guard, found.pid, state);
        guard.count(Counter::Splits as usize, cuts.len() as u64);
        #[cfg(all(test, not(shuttle)))]
        crate::stall::reached(Step::Split, 0);
        let children: Vec<(&[u8], u32)> =
            between.iter().zip(built.iter().rev()).map(|(low, (pid, _))| (low.as_slice(), *pid)).collect();
        self.post_all(guard, &children, found.pid);
        Ok(true)
    }

    /// Takes back pages that were never published.
    fn unbuild(&self, built: Vec<(u32, Fresh)>) {
        for (pid, fresh) in built {
            self.store.discard(fresh);
            self.store.map.give(pid);
        }
    }
}

/// Pieces for which no memory is allocated: a default chain, the change that consolidates it, and
/// what lies between.
const PIECES: usize = 35;
