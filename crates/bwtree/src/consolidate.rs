//! Consolidation: base page and chain become a new base page, or two when it has grown too large.
//!
//! The change that found the chain full goes in with it, and the whole is one compare-and-swap. A split makes the right
//! page first (nobody knows it yet), then replaces the left one by a page that ends at the separator and links to the right
//! one, then tells the parent; whoever comes between follows the link and tells the parent himself.

use std::ops::{Bound, Range};

use smallvec::SmallVec;

use crate::core::Core;
use crate::descend::Found;
use crate::epoch::Guard;
use crate::inner::separator;
use crate::options::Error;
use crate::page::{
    DeltaRecord, Draft, Fences, HEADER_BYTES, Layout, Leaf, Op, POSITION_EXACT, Piece, Rest, row_of, split_pieces,
    split_point,
};
use crate::pinned::{clip_rows, within};
use crate::stats::Counter;
use crate::store::LeafState;

/// One key's newest change, and where it goes in the base page.
#[derive(Clone, Copy)]
pub(crate) struct Edit<'a> {
    position: u32,
    pub(crate) key: &'a [u8],
    /// The new row's value; `None`: the key is deleted.
    pub(crate) value: Option<(&'a [u8], Rest<'a>)>,
}

pub(crate) type Edits<'a> = SmallVec<[Edit<'a>; EDITS]>;
pub(crate) type Pieces<'a> = SmallVec<[Piece<'a>; 2 * EDITS + 1]>;

impl<'a> Edit<'a> {
    fn of_record(record: DeltaRecord<'a>) -> Edit<'a> {
        let value = (record.op() == Op::Put).then(|| (record.prefix(), record.rest()));
        Edit { position: record.raw_position(), key: record.key(), value }
    }

    /// Base rows before this one come before the edit.
    pub(crate) fn place(&self) -> usize {
        (self.position & !POSITION_EXACT) as usize
    }

    /// Whether it takes the place of the base row there.
    pub(crate) fn replaces(&self) -> bool {
        self.position & POSITION_EXACT != 0
    }

    /// Edits sort by position; inserts before a row come before its replacement.
    fn order(&self, other: &Edit<'_>) -> std::cmp::Ordering {
        let place = |e: &Edit<'_>| e.position.rotate_left(1);
        place(self).cmp(&place(other)).then_with(|| self.key.cmp(other.key))
    }
}

/// The rows of a leaf's state with `last` on top, as pieces.
pub(crate) fn pieces_of<'a>(state: &'a LeafState<'a>, last: Option<(&Draft<'a>, u32)>) -> Pieces<'a> {
    let mut edits = Edits::new();
    if let Some((draft, position)) = last {
        let value = (draft.op == Op::Put).then_some((draft.prefix, draft.rest));
        edits.push(Edit { position, key: draft.key, value });
    }
    newest_edits(state, &mut edits, |_| true);
    merge_edits(&state.leaf, 0..state.leaf.count(), &edits, usize::MAX)
}

/// Base rows of a leaf's state within the bounds; `edits` gets those of which the first `rows_max` rows may be made.
#[inline]
pub(crate) fn part_of<'a>(
    state: &LeafState<'a>,
    bounds: (Bound<&[u8]>, Bound<&[u8]>),
    rows_max: usize,
    edits: &mut Edits<'a>,
) -> Range<usize> {
    let leaf = state.leaf;
    let rows = clip_rows(&leaf, bounds);
    // Each delta takes away one row at most, so base rows beyond these and changes to them will not be asked for.
    let last = rows.start.saturating_add(rows_max).saturating_add(state.chain());
    leaf.prefetch(rows.start..rows.end.min(last));
    if state.chain() > 0 {
        newest_edits(state, edits, |record| {
            (rows.start..=last).contains(&record.position()) && within(record.key(), bounds)
        });
    }
    rows
}

/// Adds the newest record of each key that passes and is not there yet, and sorts.
#[inline]
fn newest_edits<'a>(state: &LeafState<'a>, edits: &mut Edits<'a>, passes: impl Fn(&DeltaRecord<'a>) -> bool) {
    for (_, record) in state.records() {
        if !passes(&record) {
            continue;
        }
        let (position, key) = (record.raw_position(), record.key());
        if edits.iter().all(|newer| newer.position != position || newer.key != key) {
            edits.push(Edit::of_record(record));
        }
    }
    if edits.len() > 1 {
        edits.sort_unstable_by(Edit::order);
    }
}

/// The first `rows_max` of the base page's `rows` and the edits among them.
pub(crate) fn merge_edits<'a>(
    leaf: &'a Leaf<'a>,
    rows: Range<usize>,
    edits: &[Edit<'a>],
    rows_max: usize,
) -> Pieces<'a> {
    let mut pieces = Pieces::new();
    let (mut from, mut left) = (rows.start, rows_max);
    for edit in edits {
        let to = edit.place().min(from.saturating_add(left));
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
        from += usize::from(edit.replaces());
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
        if layout.page_len > self.options.page_bytes && layout.count > 1 {
            return self.split(guard, found, &pieces, fences);
        }
        let shrinking = last.is_none_or(|(draft, _)| draft.op == Op::Delete);
        let (word, fresh) = self.build_leaf(&pieces, &layout, fences, state.leaf.right(), shrinking)?;
        if !self.install(found.pid, state.word, word) {
            self.store.discard(fresh);
            return Ok(false);
        }
        self.retire_leaf(guard, state);
        guard.count(Counter::Consolidations as usize, 1);
        // The header is no content: without it small pages of small trees would never count as empty.
        let small = HEADER_BYTES + (self.options.page_bytes - HEADER_BYTES) / 4;
        if layout.page_len < small && layout.page_len < state.leaf.bytes().len() {
            self.merge(guard, 0, found.pid, fences.low);
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
            self.build_leaf(&right, &layout(&right, right_fences), right_fences, state.leaf.right(), false)?;
        let right_pid = self.new_page(right_word);
        let (left_word, left_fresh) =
            match self.build_leaf(&left, &layout(&left, left_fences), left_fences, right_pid, false) {
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

/// Edits for which no memory is allocated: a default chain, and the change that consolidates it.
const EDITS: usize = 9;
