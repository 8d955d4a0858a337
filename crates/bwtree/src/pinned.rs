//! A leaf at one instant, held in place by a pin.

#![allow(unsafe_code)]

use std::ops::{Bound, Range};
use std::sync::Arc;

use overside_memory::{Hold, SegmentId};

use crate::newest::{Edit, Newest};
use crate::page::{DeltaRecord, KeyParts, Leaf, OverflowRef, Rest};
use crate::pins::Pins;
use crate::rows::{Rows, Runs};
use crate::store::LeafState;

/// One leaf's state at one instant: its base page, and the newest delta of each key changed since,
/// sorted by key, both clipped to the cursor's bounds. Splits and merges are resolved already.
///
/// All bytes given out lie in the arena, unchanged and in place, until the last clone of this page
/// (and every [`Hold`] made of one) is dropped. That may happen on any thread, and takes constant
/// time. Pages that a cursor took [together](crate::Pages::together) stay as long as the last of
/// them.
#[derive(Clone)]
pub struct PinnedPage {
    pins: Arc<Pins>,
    taken: Taken,
}

/// What a page is apart from its pin.
#[derive(Clone)]
pub(crate) struct Taken {
    /// Offset of the base page in the arena.
    at: u64,
    rows: Range<usize>,
    /// Offsets of the deltas' records from the base page.
    deltas: Box<[u32]>,
    /// Its newest stamp.
    pub(crate) newest: u64,
}

impl Taken {
    /// A leaf's state within the cursor's bounds.
    pub(crate) fn new(state: &LeafState<'_>, bounds: (Bound<&[u8]>, Bound<&[u8]>), newest: u64) -> Taken {
        let rows = clip_rows(&state.leaf, bounds);
        Taken { at: state.base_offset(), rows, deltas: newest_deltas(state, bounds), newest }
    }

    /// Whether no row is left inside the bounds.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.deltas.is_empty()
    }
}

/// A delta of a [`PinnedPage`]: what it does is in the [`DeltaRecord`].
pub type DeltaRef<'a> = DeltaRecord<'a>;

impl PinnedPage {
    /// The page of which `pins` has the pin.
    pub(crate) fn new(pins: Arc<Pins>, taken: Taken) -> PinnedPage {
        PinnedPage { pins, taken }
    }

    /// The base page exactly as it lies: what `delta` mode transmits.
    #[inline]
    pub fn base(&self) -> &[u8] {
        self.leaf().bytes()
    }

    /// The base page, parsed.
    #[inline]
    pub fn leaf(&self) -> Leaf<'_> {
        // SAFETY: [bwtree-pin] the pin lives as long as `self`.
        unsafe { self.pins.store().pinned_leaf(self.taken.at) }
    }

    /// Rows of the base page inside this state's fences and the cursor's bounds (deltas may replace
    /// or delete some).
    pub fn rows(&self) -> Range<usize> {
        self.taken.rows.clone()
    }

    /// How many deltas there are.
    pub fn delta_count(&self) -> usize {
        self.taken.deltas.len()
    }

    /// Delta `i`, in key order. Panics if there is none.
    #[inline]
    pub fn delta(&self, i: usize) -> DeltaRef<'_> {
        // SAFETY: [bwtree-pin] as above, and the offsets came from the unit's chain.
        unsafe { self.pins.store().pinned_record(self.taken.at, self.taken.deltas[i] as usize) }
    }

    /// The newest delta of each key, sorted by key.
    pub fn deltas(&self) -> impl ExactSizeIterator<Item = DeltaRef<'_>> + DoubleEndedIterator + Clone {
        (0..self.taken.deltas.len()).map(|i| self.delta(i))
    }

    /// Base rows with the deltas applied, in key order; runs backwards as well.
    pub fn merged(&self) -> Rows<'_> {
        Rows::new(self, self.rows(), 0..self.taken.deltas.len())
    }

    /// The same as stretches of base rows and single deltas, in key order.
    pub fn runs(&self) -> Runs<'_> {
        Runs::new(self.merged())
    }

    /// Whether no row is left inside the bounds.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// No change that this page shows has a larger [stamp](crate::Stamps), nor has one of those
    /// that left nothing of the pages which the scan passed over before it. 0 in a tree without
    /// stamps.
    pub fn newest(&self) -> u64 {
        self.taken.newest
    }

    /// No key of this page is below.
    pub fn low_fence(&self) -> &[u8] {
        self.leaf().low_fence()
    }

    /// Every key of this page is below; `None` at the end of the key space.
    pub fn high_fence(&self) -> Option<&[u8]> {
        self.leaf().high_fence()
    }

    /// The bytes of an overflow extent; none unless a row or delta of this page refers to it. Takes
    /// constant time where extents are asked for in the order of the rows.
    pub fn overflow(&self, reference: OverflowRef) -> Option<&[u8]> {
        self.refers_to(reference).then(|| self.pins.store().overflow_bytes(reference, self))
    }

    /// The bytes of each overflow extent that a row refers to: first those of [`rows`](Self::rows),
    /// in their order (also where a delta replaces the row), then those of
    /// [`deltas`](Self::deltas).
    pub fn extents(&self) -> impl Iterator<Item = &[u8]> {
        let leaf = self.leaf();
        let rows = if leaf.has_overflow() { self.rows() } else { 0..0 };
        let rests = rows.map(move |row| leaf.rest(row)).chain(self.deltas().map(|delta| delta.rest()));
        rests.filter_map(|rest| match rest {
            Rest::Overflow(reference) => Some(self.pins.store().overflow_bytes(reference, self)),
            Rest::Inline(_) => None,
        })
    }

    /// A rest's bytes, wherever they lie; empty where they lie in an extent that this page does not
    /// refer to.
    #[inline]
    pub fn rest_bytes<'a>(&'a self, rest: Rest<'a>) -> &'a [u8] {
        match rest {
            Rest::Inline(bytes) => bytes,
            Rest::Overflow(reference) => self.overflow(reference).unwrap_or_default(),
        }
    }

    /// Anybody can make a reference, and only those of this page's rows are kept by its pin.
    fn refers_to(&self, reference: OverflowRef) -> bool {
        let leaf = self.leaf();
        let rows = if leaf.has_overflow() { leaf.count() } else { 0 };
        let from = (self.pins.sought()).min(rows);
        let row = (from..rows).chain(0..from).find(|row| leaf.rest(*row) == Rest::Overflow(reference));
        if let Some(row) = row {
            self.pins.seek(row + 1);
        }
        row.is_some() || self.deltas().any(|delta| delta.rest() == Rest::Overflow(reference))
    }

    /// Offset in the arena of bytes that this page gave out. Panics if they lie elsewhere.
    pub fn offset_of(&self, bytes: &[u8]) -> u64 {
        self.pins.store().offset_of(bytes).expect("these bytes were not given out by a page of this tree")
    }

    /// Where the byte at an arena offset is, and in which segment.
    pub(crate) fn located(&self, offset: u64) -> (*const u8, SegmentId) {
        self.pins.store().located(offset)
    }

    /// Keeps the page's bytes (deltas and overflow extents included) where they are until the hold
    /// is released.
    pub fn hold(&self) -> Hold {
        Hold::from(self.pins.clone())
    }
}

impl From<PinnedPage> for Hold {
    fn from(page: PinnedPage) -> Hold {
        Hold::from(page.pins)
    }
}

impl std::fmt::Debug for PinnedPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedPage").field("rows", &self.taken.rows).field("deltas", &self.delta_count()).finish()
    }
}

/// A row of a [`PinnedPage`], deltas applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'a> {
    /// Its key.
    pub key: KeyParts<'a>,
    /// The fixed-length part of its value.
    pub prefix: &'a [u8],
    /// The variable part.
    pub rest: Rest<'a>,
}

#[inline]
pub(crate) fn within(key: &[u8], bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    let above = match bounds.0 {
        Bound::Unbounded => true,
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
    };
    above
        && match bounds.1 {
            Bound::Unbounded => true,
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
        }
}

pub(crate) fn clip_rows(leaf: &Leaf<'_>, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Range<usize> {
    let place = |key: &[u8], past: bool| match leaf.search(key) {
        Ok(i) => i + usize::from(past),
        Err(i) => i,
    };
    let from = match bounds.0 {
        Bound::Unbounded => 0,
        Bound::Included(key) => place(key, false),
        Bound::Excluded(key) => place(key, true),
    };
    let to = match bounds.1 {
        Bound::Unbounded => leaf.count(),
        Bound::Included(key) => place(key, true),
        Bound::Excluded(key) => place(key, false),
    };
    from..to.max(from)
}

/// The newest record of each key within the bounds, sorted by key.
fn newest_deltas(state: &LeafState<'_>, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Box<[u32]> {
    if state.chain() == 0 {
        return Box::default();
    }
    let mut newest = Newest::new();
    newest.add_chain(state, |record| within(record.key(), bounds));
    // A key that came and went since the base page was made is nothing.
    let counts = |edit: &&Edit<'_>| edit.value.is_some() || edit.place.replaces();
    newest.iter().filter(counts).map(|edit| edit.at).collect()
}
