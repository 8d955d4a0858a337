//! Consolidation: base page and chain become a new base page, or two when it has grown too large.
//!
//! The change that found the chain full goes in with it, and the whole is one compare-and-swap. A split makes the right
//! page first (nobody knows it yet), then replaces the left one by a page that ends at the separator and links to the right
//! one, then tells the parent; whoever comes between follows the link and tells the parent himself.

use std::ops::Range;

use smallvec::SmallVec;

use crate::alloc::Purpose;
use crate::core::Core;
use crate::descend::Found;
use crate::epoch::Guard;
use crate::inner::separator;
use crate::newest::Newest;
use crate::options::Error;
use crate::page::{Draft, Fences, Layout, Leaf, Op, Piece, row_of, split_pieces, split_point};
use crate::stats::Counter;
use crate::store::LeafState;

pub(crate) type Pieces<'a> = SmallVec<[Piece<'a>; PIECES]>;

/// The rows of a leaf's state with `last` on top, as pieces.
pub(crate) fn pieces_of<'a>(state: &'a LeafState<'a>, last: Option<(&Draft<'a>, u32)>) -> Pieces<'a> {
    let mut newest = Newest::new();
    if let Some((draft, position)) = last {
        newest.add_draft(draft, position);
    }
    newest.add_chain(state, |_| true);
    merge(&state.leaf, 0..state.leaf.count(), &newest, usize::MAX)
}

/// The first `rows_max` of the base page's `rows` and the changes among them.
pub(crate) fn merge<'a>(leaf: &'a Leaf<'a>, rows: Range<usize>, newest: &Newest<'a>, rows_max: usize) -> Pieces<'a> {
    let mut pieces = Pieces::new();
    let (mut from, mut left) = (rows.start, rows_max);
    for edit in newest.iter() {
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
    /// Replaces the leaf by a clean one that includes `last`; false if somebody was faster.
    pub(crate) fn consolidate(
        &self,
        guard: &Guard<'_>,
        found: &Found<'_>,
        last: Option<(&Draft<'_>, u32)>,
    ) -> Result<bool, Error> {
        let state = &found.state;
        let pieces = pieces_of(state, last);
        let fences = Fences { low: state.leaf.low_fence(), high: state.leaf.high_fence() };
        let layout = Layout::of(&pieces, fences, self.options.prefix_len);
        let shrinking = last.is_none_or(|(draft, _)| draft.op == Op::Delete);
        if shrinking {
            self.relieve(guard);
        }
        if layout.page_len > self.options.page_bytes && layout.count > 1 {
            match self.split(guard, found, &pieces, fences) {
                // A page somewhat too large is better than a row that cannot be deleted.
                Err(Error::Exhausted) if shrinking => {}
                done => return done,
            }
        }
        let purpose = match shrinking {
            true => Purpose::Shrinking { from: self.store.piece_bytes(state) },
            false => Purpose::Growth,
        };
        let (word, fresh) = self.build_leaf(&pieces, &layout, fences, state.leaf.right(), purpose)?;
        let reserved = fresh.reserved();
        if !self.install(found.pid, state.word, word) {
            self.store.discard(fresh);
            return Ok(false);
        }
        self.shelter(reserved, fences.low);
        self.retire_leaf(guard, state);
        guard.count(Counter::Consolidations as usize, 1);
        if layout.page_len < state.leaf.bytes().len() {
            self.merge_if_small(guard, found.pid, layout.page_len, fences.low);
        }
        Ok(true)
    }

    fn split(
        &self,
        guard: &Guard<'_>,
        found: &Found<'_>,
        pieces: &[Piece<'_>],
        fences: Fences<'_>,
    ) -> Result<bool, Error> {
        let state = &found.state;
        // Rows that come in ascending order leave full pages behind.
        let ascending = fences.high.is_none() && matches!(pieces.last(), Some(Piece::Row { .. }));
        let at = split_point(pieces, if ascending { 240 } else { 128 });
        let between = separator(&row_of(pieces, at - 1), &row_of(pieces, at));
        let (left, right) = split_pieces(pieces, at);
        let right_fences = Fences { low: &between, high: fences.high };
        let left_fences = Fences { low: fences.low, high: Some(&between) };
        let layout = |pieces: &[Piece<'_>], fences| Layout::of(pieces, fences, self.options.prefix_len);
        let (right_word, right_fresh) =
            self.build_leaf(&right, &layout(&right, right_fences), right_fences, state.leaf.right(), Purpose::Growth)?;
        let right_pid = self.new_page(right_word);
        let (left_word, left_fresh) =
            match self.build_leaf(&left, &layout(&left, left_fences), left_fences, right_pid, Purpose::Growth) {
                Ok(built) => built,
                Err(error) => {
                    self.store.discard(right_fresh);
                    self.store.map.give(right_pid);
                    return Err(error);
                }
            };
        if !self.install(found.pid, state.word, left_word) {
            self.store.discard(left_fresh);
            self.store.discard(right_fresh);
            self.store.map.give(right_pid);
            return Ok(false);
        }
        self.retire_leaf(guard, state);
        guard.count(Counter::Splits as usize, 1);
        self.post(guard, 1, &between, right_pid, found.pid);
        Ok(true)
    }
}

/// Pieces for which no memory is allocated: a default chain, the change that consolidates it, and what lies between.
const PIECES: usize = 35;
