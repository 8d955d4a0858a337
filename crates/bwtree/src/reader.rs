//! Short ranges, copied: no pin, no allocation once the buffers have grown, nothing that threads share is written.
//!
//! A pin is right for a page that is sent or read at leisure. A range of some dozen rows is copied in less time than a pin
//! takes, so the rows are put together under the traversal's guard, deltas merged and the limit applied, as a small leaf page
//! in the reader's own memory, and the guard is gone before the caller sees them.

use std::ops::Bound;
use std::sync::Arc;

use crate::consolidate::pieces_within;
use crate::core::Core;
use crate::cursor::clip;
use crate::inner::Target;
use crate::page::{Fences, Layout, Leaf, OverflowRef, Piece, Rest, rebase_overflow, split_pieces, write_page};
use crate::pinned::Row;
use crate::stats::Counter;

/// One thread's way to read short ranges, from low keys to high ones; made by [`Tree::reader`](crate::Tree::reader), used for
/// as many ranges as one likes.
///
/// No snapshot: the rows of one [`Copied`] are one leaf's state at one instant, as with [`Pages`](crate::Pages), which is the
/// one to use for long ranges, the other direction, or bytes that are to be sent.
pub struct Reader {
    core: Arc<Core>,
    from: Edge,
    to: Edge,
    rows_left: usize,
    done: bool,
    page: Vec<u8>,
    extents: Vec<u8>,
}

/// Rows of one leaf, in key order, in the reader's memory.
#[derive(Debug, Clone, Copy)]
pub struct Copied<'a> {
    leaf: Leaf<'a>,
    extents: &'a [u8],
}

impl Reader {
    pub(crate) fn new(core: Arc<Core>) -> Reader {
        let edge = || Edge { key: Vec::new(), kind: Bound::Unbounded };
        let (page, extents) = (Vec::new(), Vec::new());
        Reader { core, from: edge(), to: edge(), rows_left: 0, done: true, page, extents }
    }

    /// Begins with another range: at most `rows_max` rows between the bounds, the lowest ones.
    pub fn seek(&mut self, from: Bound<&[u8]>, to: Bound<&[u8]>, rows_max: usize) {
        self.from.set(from);
        self.to.set(to);
        self.rows_left = rows_max;
        self.done = rows_max == 0;
    }

    /// The range's next rows (at least one); `None` at its end. As many as lie in the next leaf: a range of a hundred rows is
    /// mostly one call.
    pub fn next_rows(&mut self) -> Option<Copied<'_>> {
        while !self.done {
            let bytes = self.step();
            if bytes > 0 {
                return Some(Copied { leaf: Leaf::open(&self.page[..bytes]), extents: &self.extents });
            }
        }
        None
    }

    /// Copies what the leaf at `from` has; the bytes of the page that was made, 0 without a row.
    fn step(&mut self) -> usize {
        let guard = self.core.enter();
        let (from, to) = (self.from.get(), self.to.get());
        let target = match from {
            Bound::Included(key) | Bound::Excluded(key) => Target::At(key),
            Bound::Unbounded => Target::At(&[]),
        };
        let found = self.core.find_leaf(&guard, target);
        let (state, leaf) = (&found.state, &found.state.leaf);
        let bounds = clip(leaf, from, to);
        let high = leaf.high_fence().filter(|_| bounds.1 == Bound::Unbounded);
        let mut pieces = pieces_within(state, bounds, self.rows_left);
        let cut = within_budget(&pieces);
        if let Some(rows) = cut {
            pieces = split_pieces(&pieces, rows).0;
        }
        let layout = Layout::of(&pieces, NO_FENCES, self.core.options.prefix_len);
        if self.page.len() < layout.page_len {
            self.page.resize(layout.page_len.next_power_of_two(), 0);
        }
        let page = &mut self.page[..layout.page_len];
        write_page(page, &layout, NO_FENCES, &pieces);
        self.extents.clear();
        let (core, extents) = (&self.core, &mut self.extents);
        rebase_overflow(page, |reference| {
            let at = extents.len() as u64;
            extents.extend_from_slice(core.store.overflow_bytes(reference, state));
            OverflowRef { offset: at, extent: 0, ..reference }
        });
        guard.count(Counter::Pages as usize, 1);
        self.rows_left -= layout.count;
        match (cut, high) {
            _ if self.rows_left == 0 => self.done = true,
            (Some(_), _) => self.from.set_after(&Leaf::open(page)),
            (None, Some(high)) => self.from.set(Bound::Included(high)),
            (None, None) => self.done = true,
        }
        if layout.count > 0 { layout.page_len } else { 0 }
    }
}

/// After how many rows to stop because of what lies in their overflow extents; `None`: take them all.
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

impl<'a> Copied<'a> {
    /// The rows as a leaf page of their own: without fences, deltas merged in; keys and prefixes can be had as slices.
    #[inline]
    pub fn leaf(&self) -> Leaf<'a> {
        self.leaf
    }

    /// The rows, one by one.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row<'a>> + DoubleEndedIterator + use<'a> {
        let leaf = self.leaf;
        (0..leaf.count()).map(move |i| Row { key: leaf.key_parts(i), prefix: leaf.prefix(i), rest: leaf.rest(i) })
    }

    /// A rest's bytes, wherever they lie.
    #[inline]
    pub fn rest_bytes(&self, rest: Rest<'a>) -> &'a [u8] {
        match rest {
            Rest::Inline(bytes) => bytes,
            Rest::Overflow(o) => {
                self.extents.get(o.offset as usize..).and_then(|b| b.get(..o.len as usize)).unwrap_or(&[])
            }
        }
    }
}

/// A bound whose key's memory is used again.
struct Edge {
    key: Vec<u8>,
    kind: Bound<()>,
}

impl Edge {
    fn set(&mut self, bound: Bound<&[u8]>) {
        self.key.clear();
        if let Bound::Included(key) | Bound::Excluded(key) = bound {
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

    fn get(&self) -> Bound<&[u8]> {
        self.kind.map(|()| self.key.as_slice())
    }
}

const NO_FENCES: Fences<'static> = Fences { low: &[], high: None };
/// Bytes of overflow extents copied at a time, unless one row alone has more: a guard is not for megabytes.
const EXTENT_BYTES_MAX: usize = 256 << 10;
