//! Short ranges, copied: no pin, no allocation once the buffers have grown, nothing that threads
//! share is written.
//!
//! A pin is right for a page that is sent or read at leisure. A range of some dozen rows is copied
//! in less time than a pin takes. So the rows are put together under the traversal's guard, deltas
//! merged and the limit applied, in the reader's own memory. The guard is gone before the caller
//! sees them.

use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::consolidate::merge;
use crate::copied::{Copied, Plain};
use crate::core::Core;
use crate::cursor::clip;
use crate::inner::Target;
use crate::newest::Newest;
use crate::page::{Fences, Layout, Leaf, OverflowRef, Piece, Rest, rebase_overflow, split_pieces, write_page};
use crate::pinned::{clip_rows, within};
use crate::stats::Counter;
use crate::store::LeafState;

/// One thread's way to read short ranges, from low keys to high ones; made by
/// [`Tree::reader`](crate::Tree::reader), used for as many ranges as one likes.
///
/// No snapshot: the rows of one [`Copied`] are one leaf's state at one instant, as with
/// [`Pages`](crate::Pages). Use that for long ranges, for the other direction, or for bytes that
/// are to be sent.
pub struct Reader {
    core: Arc<Core>,
    from: Edge,
    to: Edge,
    rows_left: usize,
    done: bool,
    newest: u64,
    buffers: Buffers,
}

/// What was copied last: plain rows, or a page.
#[derive(Default)]
struct Buffers {
    plain: Plain,
    page: Vec<u8>,
    /// 0: the rows are plain.
    page_len: usize,
    extents: Vec<u8>,
}

impl Reader {
    pub(crate) fn new(core: Arc<Core>) -> Reader {
        let edge = || Edge { key: Vec::new(), kind: Bound::Unbounded };
        Reader { core, from: edge(), to: edge(), rows_left: 0, done: true, newest: 0, buffers: Buffers::default() }
    }

    /// Begins with another range: at most `rows_max` rows between the bounds, the lowest ones.
    pub fn seek(&mut self, from: Bound<&[u8]>, to: Bound<&[u8]>, rows_max: usize) {
        self.from.set(from);
        self.to.set(to);
        self.rows_left = rows_max;
        self.done = rows_max == 0;
        self.newest = 0;
    }

    /// No change that the rows so far of this range, or their absence, shows has a larger
    /// [stamp](crate::Stamps). 0 in a tree without stamps.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// The range's next rows (at least one); `None` at its end. As many as lie in the next leaf: a
    /// range of a hundred rows is mostly one call.
    #[inline]
    pub fn next_rows(&mut self) -> Option<Copied<'_>> {
        while !self.done {
            if self.step() > 0 {
                return Some(self.buffers.copied());
            }
        }
        None
    }

    /// Copies what the leaf at `from` has; the number of rows.
    fn step(&mut self) -> usize {
        let guard = self.core.enter();
        let from = self.from.get();
        let target = match from {
            Bound::Included(key) | Bound::Excluded(key) => Target::At(key),
            Bound::Unbounded => Target::At(&[]),
        };
        let found = self.core.find_leaf(&guard, target);
        let (state, leaf) = (&found.state, &found.state.leaf);
        self.newest = self.newest.max(self.core.newest(state));
        let bounds = match self.to.get() {
            Bound::Unbounded => (from, Bound::Unbounded),
            to => clip(leaf, from, to),
        };
        let to_the_end = bounds.1 == Bound::Unbounded;
        let (rows, newest) = part_of(state, bounds, self.rows_left);
        guard.count(Counter::Pages as usize, 1);
        self.buffers.page_len = 0;
        let (count, cut) = match self.buffers.plain.copy(leaf, rows.clone(), &newest, self.rows_left) {
            Some(count) => (count, false),
            None => {
                let pieces = merge(leaf, rows, newest.iter().copied(), self.rows_left);
                self.buffers.copy_page(&self.core, state, &pieces)
            }
        };
        self.rows_left -= count;
        match leaf.high_fence() {
            _ if self.rows_left == 0 => self.done = true,
            _ if cut => self.from.set_after(&Leaf::open(&self.buffers.page[..self.buffers.page_len])),
            Some(high) if to_the_end => self.from.set(Bound::Included(high)),
            _ => self.done = true,
        }
        count
    }
}

/// Base rows of a leaf's state within the bounds, and the changes among those of which the first
/// `rows_max` rows may be made.
#[inline]
fn part_of<'a>(
    state: &LeafState<'a>,
    bounds: (Bound<&[u8]>, Bound<&[u8]>),
    rows_max: usize,
) -> (Range<usize>, Newest<'a>) {
    let rows = clip_rows(&state.leaf, bounds);
    // Each delta takes away one row at most, so base rows beyond these and changes to them will not be asked for.
    let last = rows.start.saturating_add(rows_max).saturating_add(state.chain());
    state.leaf.prefetch(rows.start..rows.end.min(last));
    let mut newest = Newest::new();
    newest.add_chain(state, |record| (rows.start..=last).contains(&record.position()) && within(record.key(), bounds));
    (rows, newest)
}

impl Buffers {
    fn copied(&self) -> Copied<'_> {
        match self.page_len {
            0 => Copied::plain(&self.plain),
            len => Copied::page(Leaf::open(&self.page[..len]), &self.extents),
        }
    }

    /// Makes a page without fences of the pieces, with a copy of what lies in overflow extents; the
    /// number of rows, and whether those that follow were left out because of their size.
    fn copy_page(&mut self, core: &Core, state: &LeafState<'_>, pieces: &[Piece<'_>]) -> (usize, bool) {
        let cut = within_budget(pieces);
        let parts = cut.map(|rows| split_pieces(pieces, &[rows]));
        let pieces = parts.as_ref().map_or(pieces, |parts| &parts[0]);
        let fences = Fences { low: &[], high: None };
        let layout = Layout::of(pieces, fences, core.options.prefix_len);
        if self.page.len() < layout.page_len {
            self.page.resize(layout.page_len.next_power_of_two(), 0);
        }
        self.page_len = layout.page_len;
        let page = &mut self.page[..layout.page_len];
        write_page(page, &layout, fences, pieces);
        self.extents.clear();
        rebase_overflow(page, |reference| {
            let offset = self.extents.len() as u64;
            self.extents.extend_from_slice(core.store.overflow_bytes(reference, state));
            OverflowRef { offset, extent: 0, ..reference }
        });
        (layout.count, cut.is_some())
    }
}

/// After how many rows to stop because of what lies in their overflow extents; `None`: take them
/// all.
fn within_budget(pieces: &[Piece<'_>]) -> Option<usize> {
    let has_overflow = |piece: &Piece<'_>| match piece {
        Piece::Run { leaf, .. } => leaf.has_overflow(),
        Piece::Row { rest, .. } => matches!(rest, Rest::Overflow(_)),
    };
    if !pieces.iter().any(has_overflow) {
        return None;
    }
    let rows: usize = pieces.iter().map(Piece::rows).sum();
    let rests = pieces.iter().flat_map(|piece| {
        (0..piece.rows()).map(move |i| match piece {
            Piece::Run { leaf, from, .. } => leaf.rest(from + i),
            Piece::Row { rest, .. } => *rest,
        })
    });
    let mut bytes = 0;
    let fit = rests.take_while(|rest| {
        bytes += if matches!(rest, Rest::Overflow(_)) { rest.len() } else { 0 };
        bytes <= EXTENT_BYTES_MAX
    });
    let fit = fit.count().max(1);
    (fit < rows).then_some(fit)
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("rows_left", &self.rows_left).field("done", &self.done).finish()
    }
}

/// A bound whose key's memory is used again.
struct Edge {
    key: Vec<u8>,
    kind: Bound<()>,
}

impl Edge {
    #[inline]
    fn set(&mut self, bound: Bound<&[u8]>) {
        if let Bound::Included(key) | Bound::Excluded(key) = bound {
            self.key.clear();
            self.key.extend_from_slice(key);
        }
        self.kind = bound.map(|_| ());
    }

    /// Past the last row of `leaf`.
    fn set_after(&mut self, leaf: &Leaf<'_>) {
        self.key.clear();
        leaf.key(leaf.count() - 1, &mut self.key);
        self.kind = Bound::Excluded(());
    }

    #[inline]
    fn get(&self) -> Bound<&[u8]> {
        self.kind.map(|()| self.key.as_slice())
    }
}

/// Bytes of overflow extents copied at a time, unless one row alone has more: a guard is not for
/// megabytes.
const EXTENT_BYTES_MAX: usize = 256 << 10;
