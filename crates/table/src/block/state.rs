//! One page's state as a scan delivers it: which rows of the base page, which delta records, in key
//! order.

use std::ops::Range;

use overside_bwtree::{DeltaRecord, Leaf, Op, OverflowRef, Rest};
use smallvec::SmallVec;

/// A delta record and where it lies.
#[derive(Clone, Copy, Debug)]
pub struct DeltaAt<'a> {
    /// The record.
    pub record: DeltaRecord<'a>,
    /// Arena offset of the record's first byte.
    pub at: u64,
}

/// A base page, the part of it that a scan delivers, and the deltas on top of it.
#[derive(Clone, Debug)]
pub struct PageState<'a> {
    pub(super) leaf: Leaf<'a>,
    pub(super) at: u64,
    pub(super) base_rows: Range<usize>,
    pub(super) deltas: &'a [DeltaAt<'a>],
    /// One in a page without deltas, so that such a page allocates nothing.
    pieces: SmallVec<[Piece; 1]>,
    rows: usize,
}

/// Rows that are delivered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Rows of the base page.
    Base { from: usize, to: usize },
    /// A row of the base page whose rest lies in an extent.
    Far { row: usize, extent: OverflowRef },
    /// The row that a delta puts.
    Delta { index: usize },
}

impl Piece {
    #[inline]
    pub(super) fn rows(&self) -> usize {
        match self {
            Piece::Base { from, to } => to - from,
            Piece::Far { .. } | Piece::Delta { .. } => 1,
        }
    }
}

impl<'a> PageState<'a> {
    /// Merges a base page, of which `rows` are delivered, with its deltas: newest per key, sorted
    /// by key, clipped to the same bounds (to-copy §5.3, TC-M29). `at` is the arena offset of the
    /// page. O(deltas), and O(rows) in a page of which some rests lie in extents of their own.
    pub fn new(leaf: Leaf<'a>, at: u64, rows: Range<usize>, deltas: &'a [DeltaAt<'a>]) -> PageState<'a> {
        let end = rows.end.min(leaf.count());
        let base_rows = rows.start.min(end)..end;
        let mut state = PageState {
            leaf,
            at,
            base_rows: base_rows.clone(),
            deltas,
            pieces: SmallVec::with_capacity(2 * deltas.len() + 1),
            rows: 0,
        };
        let mut from = base_rows.start;
        for (index, delta) in deltas.iter().enumerate() {
            let to = delta.record.position().clamp(from, end);
            state.push_base(from, to);
            from = if delta.record.replaces() { (to + 1).min(end) } else { to };
            if delta.record.op() == Op::Put {
                state.push(Piece::Delta { index });
            }
        }
        state.push_base(from, end);
        state
    }

    /// Rows that the page delivers.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Pieces that the delivered rows fall into: runs of base rows, and rows of their own.
    pub(crate) fn pieces_len(&self) -> usize {
        self.pieces.len()
    }

    /// Delta records on top of the page, deletes included.
    pub fn deltas(&self) -> usize {
        self.deltas.len()
    }

    /// The base page.
    pub fn leaf(&self) -> Leaf<'a> {
        self.leaf
    }

    /// The pieces of the delivered rows `rows`, counted from this state's first.
    pub(super) fn pieces(&self, rows: Range<usize>) -> impl Iterator<Item = Piece> + '_ {
        let mut first = 0;
        self.pieces.iter().filter_map(move |piece| {
            let start = first;
            first += piece.rows();
            let (from, to) = (rows.start.max(start), rows.end.min(first));
            if from >= to {
                return None;
            }
            Some(match *piece {
                Piece::Base { from: base, .. } => Piece::Base { from: base + (from - start), to: base + (to - start) },
                single => single,
            })
        })
    }

    fn push_base(&mut self, from: usize, to: usize) {
        let mut next = from;
        if self.leaf.has_overflow() {
            for row in from..to {
                if let Rest::Overflow(extent) = self.leaf.rest(row) {
                    self.push(Piece::Base { from: next, to: row });
                    self.push(Piece::Far { row, extent });
                    next = row + 1;
                }
            }
        }
        self.push(Piece::Base { from: next, to });
    }

    fn push(&mut self, piece: Piece) {
        if piece.rows() > 0 {
            self.rows += piece.rows();
            self.pieces.push(piece);
        }
    }
}
