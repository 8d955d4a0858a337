//! Text and bytes of a batch being collected.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, StringArray};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};

use super::ArrowError;
use super::store::Store;
use crate::block::{OpenRun, slot_at};
use crate::row::{Bytes, Malformed};

/// The rests of a run's rows: where each starts, and that the last one ends in the message.
#[derive(Debug, Default)]
pub(super) struct Rests {
    /// One more than rows, from the run's heap on.
    starts: Vec<u32>,
    /// Bytes of end offsets at a rest's start.
    head: usize,
    /// Where the values of the column at hand start, from the first byte behind the first row's end
    /// offsets on.
    values: Vec<u32>,
}

impl Rests {
    /// Those of a checked run, whose slots ascend, of rows with this many variable columns.
    pub(super) fn of_run(&mut self, run: &OpenRun<'_, impl Bytes>, columns: usize) {
        self.head = columns * 4;
        self.starts.clear();
        match run.slots {
            Some(slots) => self.starts.extend(slots.iter().map(|slot| slot_at(slot).wrapping_sub(run.bias))),
            // A run of one row is its heap; rows of a longer one have no rests.
            None if run.rows == 1 => self.starts.extend([0, run.heap.len() as u32]),
            None => {}
        }
    }
}

/// Values one after another, and where each ends.
#[derive(Debug)]
pub(super) struct Variable {
    offsets: Store<i32>,
    bytes: Store<u8>,
}

impl Variable {
    pub(super) fn new() -> Variable {
        Variable { offsets: Store::new(), bytes: Store::new() }
    }

    /// Adds variable column `index` of every row of a checked run, which has these rests.
    pub(super) fn push(
        &mut self,
        run: &OpenRun<'_, impl Bytes>,
        rests: &mut Rests,
        index: usize,
    ) -> Result<(), ArrowError> {
        let (before, rows) = (self.bytes.len(), run.rows);
        if before + run.heap.len() > i32::MAX as usize {
            return Err(ArrowError::BatchTooLarge);
        }
        self.begin();
        // What lies behind a value may be read with it.
        let heap = run.behind;
        let ends = self.offsets.room(rows);
        let found = match index {
            0 => rests.find::<true>(heap, index, before, ends),
            _ => rests.find::<false>(heap, index, before, ends),
        };
        let lengths = found.ok_or(Malformed("a row's offsets point outside it"))?;
        let bytes = ends.last().map_or(before, |&end| end as usize) - before;
        let (places, values) = (&rests.values[..], behind(heap, rests.head).unwrap_or_default());
        self.bytes.room(bytes + BLOCK_MAX);
        let moves = places.iter().copied().zip(ends.iter().map(|&end| end as u32));
        match lengths {
            0..16 => copy::<16>(values, moves, before, self.bytes.all()),
            16..32 => copy::<32>(values, moves, before, self.bytes.all()),
            32..BLOCK_MAX => copy::<BLOCK_MAX>(values, moves, before, self.bytes.all()),
            _ => copy_long(values, moves, before, self.bytes.all()),
        };
        self.bytes.advance(bytes);
        self.offsets.advance(rows);
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.offsets.clear();
        self.bytes.clear();
    }

    pub(super) fn finish(&mut self, nulls: Option<NullBuffer>, text: bool) -> Result<ArrayRef, ArrowError> {
        self.begin();
        let (ends, bytes) = (self.offsets.len(), self.bytes.finish());
        let offsets = OffsetBuffer::new(ScalarBuffer::new(self.offsets.finish(), 0, ends));
        Ok(match text {
            true => Arc::new(StringArray::try_new(offsets, bytes, nulls)?),
            false => Arc::new(BinaryArray::try_new(offsets, bytes, nulls)?),
        })
    }

    /// Offsets start with the first value's start.
    fn begin(&mut self) {
        if self.offsets.len() == 0 {
            self.offsets.push(0);
        }
    }
}

impl Rests {
    /// Notes where each row's value of column `index` starts, and in `ends` where it ends once the
    /// values lie one after another from `before` on. Answers their lengths, `|`ed together; none
    /// when a row's offsets are broken.
    #[inline(never)]
    fn find<const FIRST: bool>(
        &mut self,
        heap: impl Bytes,
        index: usize,
        before: usize,
        ends: &mut [i32],
    ) -> Option<usize> {
        let rows = self.starts.len().checked_sub(1).filter(|rows| *rows == ends.len())?;
        let (head, offsets) = (self.head as i64, behind(heap, index.saturating_sub(1) * 4)?);
        self.values.resize(rows.max(self.values.len()), 0);
        // Negative when a value ends before it starts, or behind its rest.
        let (mut end, mut lengths, mut signs) = (before as u32, 0, 0);
        for ((start, value), place) in self.starts.windows(2).zip(&mut self.values).zip(ends) {
            let (start, next) = (start[0] as usize, i64::from(start[1]));
            let (from, to) = if FIRST {
                (0, u32::from_le_bytes(offsets.load(start)?))
            } else {
                // The end offset of the column before, and its own.
                let both = u64::from_le_bytes(offsets.load(start)?);
                (both as u32, (both >> 32) as u32)
            };
            let length = i64::from(to) - i64::from(from);
            signs |= length | (next - start as i64 - head - i64::from(to));
            lengths |= length;
            *value = (start as u32).wrapping_add(from);
            end = end.wrapping_add(length as u32);
            *place = end as i32;
        }
        (signs >= 0).then_some(lengths as usize)
    }
}

/// Copies the values that start at the first of each of `moves` to where they end by the second,
/// the first of them from `at` on. Each is copied as a block of `BLOCK` bytes: the next overwrites
/// what was too much. A copy of unknown length is a call, and a decision by length one that the
/// processor guesses wrong.
#[inline(never)]
fn copy<const BLOCK: usize>(
    values: impl Bytes,
    moves: impl Iterator<Item = (u32, u32)>,
    mut at: usize,
    out: &mut [u8],
) {
    for (place, end) in moves {
        let place = place as usize;
        match (values.load::<BLOCK>(place), out.get_mut(at..at + BLOCK)) {
            (Some(block), Some(room)) => room.copy_from_slice(&block),
            // The message ends here.
            _ => exact(values, place, &mut out[at..end as usize]),
        }
        at = end as usize;
    }
}

/// The same for values that are longer than blocks.
fn copy_long(values: impl Bytes, moves: impl Iterator<Item = (u32, u32)>, mut at: usize, out: &mut [u8]) {
    for (place, end) in moves {
        exact(values, place as usize, &mut out[at..end as usize]);
        at = end as usize;
    }
}

/// Out of line, for else the compiler makes one copy of this and of the blocks.
#[inline(never)]
fn exact(source: impl Bytes, at: usize, target: &mut [u8]) {
    // Where each value lies was checked before.
    source.part(at, target.len()).unwrap_or_default().copy_to(target);
}

/// All bytes from `at` on.
#[inline]
fn behind<P: Bytes>(bytes: P, at: usize) -> Option<P> {
    bytes.part(at, bytes.len().checked_sub(at)?)
}

/// Bytes of the largest block: longer values cost a call.
const BLOCK_MAX: usize = 64;
