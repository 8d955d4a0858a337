//! `copy`: the clean, ordered answer, packed into a transmit buffer.

use std::ops::Range;

use overside_bwtree::{OverflowRef, Rest};

use super::header::{BlockHeader, HEADER_BYTES, Mode};
use super::run::{RUN_BYTES, Run, slot_at};
use super::state::{PageState, Piece};
use crate::projection::Projection;
use crate::row::Malformed;

/// Packs rows of page states into one message, a run a page.
///
/// Sections of a page that lie together are copied together, slots rebased on the way; a projection
/// moves its columns side by side.
#[derive(Debug)]
pub struct Copier<'b, 'p> {
    out: &'b mut [u8],
    projection: &'p Projection,
    runs: Vec<Run>,
    at: usize,
    rows: u64,
}

impl<'b, 'p> Copier<'b, 'p> {
    /// A message without rows, to be written into `out`.
    ///
    /// # Panics
    /// `out` is shorter than a header or longer than [`super::MESSAGE_BYTES_MAX`].
    pub fn new(out: &'b mut [u8], projection: &'p Projection) -> Copier<'b, 'p> {
        assert!((HEADER_BYTES..=super::MESSAGE_BYTES_MAX).contains(&out.len()), "a message has 64 bytes to 1 GiB");
        Copier { out, projection, runs: Vec::new(), at: HEADER_BYTES, rows: 0 }
    }

    /// Bytes that these rows of a state add to a message.
    ///
    /// # Errors
    /// A stored row is broken.
    pub fn bytes_of(state: &PageState<'_>, rows: Range<usize>, projection: &Projection) -> Result<usize, Malformed> {
        let count = rows.len().min(state.rows().saturating_sub(rows.start));
        let prefixes = count * projection.packed().prefix_len();
        if !projection.needs_rest() {
            return Ok(prefixes + RUN_BYTES);
        }
        let mut bytes = prefixes + 4 * (count + 1) + RUN_BYTES;
        let leaf = &state.leaf;
        for piece in state.pieces(rows) {
            bytes += match piece {
                Piece::Base { from, to } if projection.keeps_rests() => leaf.heap_at(from..to).len(),
                Piece::Base { from, to } => {
                    let rest = |row| match leaf.rest(row) {
                        Rest::Inline(rest) => projection.packed_rest_len(rest),
                        Rest::Overflow(_) => Err(UNSPLIT),
                    };
                    (from..to).map(rest).sum::<Result<usize, Malformed>>()?
                }
                Piece::Far { extent, .. } => extent.len as usize,
                Piece::Delta { index } => match state.deltas[index].record.rest() {
                    Rest::Inline(rest) => projection.packed_rest_len(rest)?,
                    Rest::Overflow(extent) => extent.len as usize,
                },
            };
        }
        Ok(bytes)
    }

    /// Adds as many of the delivered rows `rows` of a state as there is room for, and answers how
    /// many; none when not even one fits. `extent` finds the bytes of a rest that lies in an
    /// extent.
    ///
    /// # Errors
    /// A stored row is broken.
    pub fn push<'e>(
        &mut self,
        state: &PageState<'_>,
        rows: Range<usize>,
        extent: &dyn Fn(OverflowRef) -> Option<&'e [u8]>,
    ) -> Result<usize, Malformed> {
        let rows = rows.start..rows.end.min(state.rows());
        let taken = self.fitting(state, rows.clone(), self.room())?;
        if taken == 0 {
            return Ok(0);
        }
        let rows = rows.start..rows.start + taken;
        let mut run = Run { count: taken as u32, prefixes_at: self.at as u32, ..Run::default() };
        self.at = self.pack_prefixes(state, rows.clone());
        run.heap_at = self.at as u32;
        if self.projection.needs_rest() {
            run.slots_at = self.at as u32;
            run.heap_at = (self.at + 4 * (taken + 1)) as u32;
            self.at = self.pack_rests(state, rows, extent)?;
            run.heap_len = self.at as u32 - run.heap_at;
        }
        self.runs.push(run);
        self.rows += taken as u64;
        Ok(taken)
    }

    /// Adds all delivered rows of a state; whether there was room for all of them, else nothing is
    /// added.
    ///
    /// # Errors
    /// A stored row is broken.
    pub fn push_whole<'e>(
        &mut self,
        state: &PageState<'_>,
        extent: &dyn Fn(OverflowRef) -> Option<&'e [u8]>,
    ) -> Result<bool, Malformed> {
        let all = 0..state.rows();
        let fits = Copier::bytes_of(state, all.clone(), self.projection)? <= self.room();
        Ok(fits && self.push(state, all, extent)? == state.rows())
    }

    /// Bytes that may still be added.
    pub fn room(&self) -> usize {
        self.out.len() - self.at - self.runs.len() * RUN_BYTES
    }

    /// Rows packed so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Writes table and header; answers the message's bytes, which start at the buffer's start.
    pub fn finish(self, scan: u64, sequence: u64, last: bool) -> usize {
        let table = self.at;
        let bytes = table + self.runs.len() * RUN_BYTES;
        let entries = self.out[table..bytes].as_chunks_mut::<RUN_BYTES>().0;
        for (entry, run) in entries.iter_mut().zip(&self.runs) {
            *entry = run.to_bytes();
        }
        let header = BlockHeader {
            mode: Mode::Copy,
            packed: true,
            without_rests: !self.projection.needs_rest(),
            last,
            scan,
            sequence,
            rows: self.rows as u32,
            stride: self.projection.packed().prefix_len() as u32,
            table_at: table as u32,
            entries: self.runs.len() as u32,
            deltas: 0,
            overflows: 0,
            bytes: bytes as u32,
        };
        self.out[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        bytes
    }

    /// How many of the rows fit, found by halving.
    fn fitting(&self, state: &PageState<'_>, rows: Range<usize>, room: usize) -> Result<usize, Malformed> {
        let fits = |count: usize| -> Result<bool, Malformed> {
            Ok(Copier::bytes_of(state, rows.start..rows.start + count, self.projection)? <= room)
        };
        if fits(rows.len())? {
            return Ok(rows.len());
        }
        let (mut some, mut many) = (0, rows.len());
        while some + 1 < many {
            let middle = some + (many - some) / 2;
            if fits(middle)? { some = middle } else { many = middle }
        }
        Ok(some)
    }

    fn pack_prefixes(&mut self, state: &PageState<'_>, rows: Range<usize>) -> usize {
        let width = self.projection.packed().prefix_len();
        let mut at = self.at;
        for piece in state.pieces(rows) {
            let leaf = &state.leaf;
            let whole = match piece {
                Piece::Base { from, to } => &leaf.bytes()[leaf.prefixes_at(from..to)],
                Piece::Far { row, .. } => leaf.prefix(row),
                Piece::Delta { index } => state.deltas[index].record.prefix(),
            };
            let end = at + piece.rows() * width;
            self.projection.pack_prefixes(whole, &mut self.out[at..end]);
            at = end;
        }
        at
    }

    fn pack_rests<'e>(
        &mut self,
        state: &PageState<'_>,
        rows: Range<usize>,
        extent: &dyn Fn(OverflowRef) -> Option<&'e [u8]>,
    ) -> Result<usize, Malformed> {
        let (slots, heap) = self.out[self.at..].split_at_mut(4 * (rows.len() + 1));
        let mut rests = Rests { slots: slots.as_chunks_mut().0, heap, at: 0, projection: self.projection };
        for piece in state.pieces(rows.clone()) {
            let leaf = &state.leaf;
            let far = |named: OverflowRef| extent(named).ok_or(Malformed("a stored row's extent is gone"));
            match piece {
                Piece::Base { from, to } if self.projection.keeps_rests() => {
                    let range = leaf.heap_at(from..to);
                    let slots = leaf.bytes()[leaf.slots_at(from..to)].as_chunks().0;
                    rests.block(slots, &leaf.bytes()[range.clone()], range.start as u32, to - from);
                }
                Piece::Base { from, to } => {
                    for row in from..to {
                        let Rest::Inline(rest) = leaf.rest(row) else { return Err(UNSPLIT) };
                        rests.one(rest)?;
                    }
                }
                Piece::Far { extent, .. } => rests.one(far(extent)?)?,
                Piece::Delta { index } => match state.deltas[index].record.rest() {
                    Rest::Inline(rest) => rests.one(rest)?,
                    Rest::Overflow(named) => rests.one(far(named)?)?,
                },
            }
        }
        let bytes = rests.finish();
        Ok(self.at + 4 * (rows.len() + 1) + bytes)
    }
}

/// The slots and the heap of a run being packed.
struct Rests<'b, 'p> {
    /// Of the rows still to come, and the end.
    slots: &'b mut [[u8; 4]],
    heap: &'b mut [u8],
    at: usize,
    projection: &'p Projection,
}

impl Rests<'_, '_> {
    /// Rows of a page whose rests lie one after another.
    fn block(&mut self, slots: &[[u8; 4]], heap: &[u8], bias: u32, rows: usize) {
        let (ours, later) = std::mem::take(&mut self.slots).split_at_mut(rows);
        self.slots = later;
        let move_by = (self.at as u32).wrapping_sub(bias);
        for (target, source) in ours.iter_mut().zip(slots) {
            *target = slot_at(source).wrapping_add(move_by).to_le_bytes();
        }
        self.heap[self.at..self.at + heap.len()].copy_from_slice(heap);
        self.at += heap.len();
    }

    fn one(&mut self, rest: &[u8]) -> Result<(), Malformed> {
        let (ours, later) = std::mem::take(&mut self.slots).split_at_mut(1);
        self.slots = later;
        ours[0] = (self.at as u32).to_le_bytes();
        self.at += self.projection.pack_rest(rest, &mut self.heap[self.at..])?;
        Ok(())
    }

    fn finish(self) -> usize {
        self.slots[0] = (self.at as u32).to_le_bytes();
        self.at
    }
}

const UNSPLIT: Malformed = Malformed("a page's rows have rests in extents that its flags deny");
