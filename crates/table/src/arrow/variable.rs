//! Text and bytes of a batch being collected.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, StringArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};

use super::ArrowError;
use crate::block::{Run, slot_at};
use crate::row::Malformed;

/// Values one after another, and where each ends.
#[derive(Debug)]
pub(super) struct Variable {
    offsets: Vec<i32>,
    bytes: Vec<u8>,
    /// A run's values, before they join the others: written in blocks that are longer than the values.
    scratch: Vec<u8>,
}

impl Default for Variable {
    fn default() -> Variable {
        Variable { offsets: vec![0], bytes: Vec::new(), scratch: Vec::new() }
    }
}

impl Variable {
    /// Adds variable column `index` of `columns` of every row of a checked run.
    pub(super) fn push(&mut self, message: &[u8], run: &Run, columns: usize, index: usize) -> Result<(), ArrowError> {
        let before = self.bytes.len();
        if before + run.heap_len as usize > i32::MAX as usize {
            return Err(ArrowError::BatchTooLarge);
        }
        let room = run.heap_len as usize + MEDIUM;
        if self.scratch.len() < room {
            self.scratch.resize(room.next_power_of_two(), 0);
        }
        let first = self.offsets.len();
        self.offsets.resize(first + run.count as usize, 0);
        let column = Column { message, head: columns * 4, index };
        let ends = &mut self.offsets[first..];
        let copied = match run.slots(message) {
            Some(slots) => {
                let base = (run.heap_at as usize).wrapping_sub(run.bias as usize);
                column.copy_all(slots, base, &mut self.scratch, before, ends)
            }
            None if run.count == 1 => {
                // A run of one row is its heap.
                let slots = [0u32.to_le_bytes(), run.heap_len.to_le_bytes()];
                column.copy_all(&slots, run.heap_at as usize, &mut self.scratch, before, ends)
            }
            None => None,
        };
        let copied = copied.ok_or(Malformed("a row's offsets point outside it"))?;
        self.bytes.extend_from_slice(&self.scratch[..copied]);
        Ok(())
    }

    pub(super) fn finish(&mut self, nulls: Option<NullBuffer>, text: bool) -> Result<ArrayRef, ArrowError> {
        let offsets = Vec::with_capacity(self.offsets.len());
        let offsets = std::mem::replace(&mut self.offsets, offsets);
        self.offsets.push(0);
        let bytes = Vec::with_capacity(self.bytes.len());
        let bytes = Buffer::from_vec(std::mem::replace(&mut self.bytes, bytes));
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        Ok(match text {
            true => Arc::new(StringArray::try_new(offsets, bytes, nulls)?),
            false => Arc::new(BinaryArray::try_new(offsets, bytes, nulls)?),
        })
    }
}

/// One variable column of rows whose rests lie in one message.
struct Column<'a> {
    message: &'a [u8],
    /// Bytes of end offsets at a rest's start.
    head: usize,
    index: usize,
}

impl Column<'_> {
    /// Copies the values of the rows whose rests lie between neighbouring slots, counted from `base` of the message, one
    /// after another into `out`, and notes in `ends` where each ends, counted from `before`. Answers the bytes; none
    /// when a row's offsets are broken.
    #[inline(never)]
    fn copy_all(
        &self,
        slots: &[[u8; 4]],
        base: usize,
        out: &mut [u8],
        before: usize,
        ends: &mut [i32],
    ) -> Option<usize> {
        let (message, head) = (self.message, self.head);
        let mut at = 0;
        let mut start = base.wrapping_add(slot_at(slots.first()?) as usize);
        for (slot, end) in slots[1..].iter().zip(ends) {
            let next = base.wrapping_add(slot_at(slot) as usize);
            let rest = message.get(start..next)?;
            let (from, to) = self.bounds(rest)?;
            if from > to || head + to > rest.len() {
                return None;
            }
            let (len, from) = (to - from, start + head + from);
            copy(message, from, out, at, len)?;
            at += len;
            *end = (before + at) as i32;
            start = next;
        }
        Some(at)
    }

    /// Where the column's bytes lie behind the end offsets of a rest.
    #[inline(always)]
    fn bounds(&self, rest: &[u8]) -> Option<(usize, usize)> {
        if self.index == 0 {
            return Some((0, u32::from_le_bytes(*rest.first_chunk()?) as usize));
        }
        // Its own end offset and the one before, at once.
        let both = u64::from_le_bytes(*rest.get(self.index * 4 - 4..)?.first_chunk()?);
        Some((both as u32 as usize, (both >> 32) as usize))
    }
}

/// Copies `len` bytes, and where there is room a few more: a block of fixed size costs a few moves, where a copy of unknown
/// length is a call, and most values are short. The next value overwrites what was too much.
#[inline(always)]
fn copy(source: &[u8], from: usize, target: &mut [u8], at: usize, len: usize) -> Option<()> {
    if len <= SHORT && source.len() - from >= SHORT {
        target.get_mut(at..at + SHORT)?.copy_from_slice(source.get(from..from + SHORT)?);
    } else if len <= MEDIUM && source.len() - from >= MEDIUM {
        target.get_mut(at..at + MEDIUM)?.copy_from_slice(source.get(from..from + MEDIUM)?);
    } else {
        target.get_mut(at..at + len)?.copy_from_slice(source.get(from..from + len)?);
    }
    Some(())
}

const SHORT: usize = 16;
const MEDIUM: usize = 64;
