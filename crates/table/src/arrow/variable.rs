//! Text and bytes of a batch being collected.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, StringArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};

use super::ArrowError;
use crate::block::Run;
use crate::row::Malformed;

/// Values one after another, and where each ends.
#[derive(Debug)]
pub(super) struct Variable {
    offsets: Vec<i32>,
    /// Longer than its values: a short value is copied as a whole block, whatever its length.
    bytes: Vec<u8>,
    len: usize,
}

impl Default for Variable {
    fn default() -> Variable {
        Variable { offsets: vec![0], bytes: Vec::new(), len: 0 }
    }
}

impl Variable {
    /// Adds variable column `index` of `columns` of every row of a checked run.
    pub(super) fn push(&mut self, message: &[u8], run: &Run, columns: usize, index: usize) -> Result<(), ArrowError> {
        let room = self.len + run.heap_len as usize;
        if room > i32::MAX as usize {
            return Err(ArrowError::BatchTooLarge);
        }
        if self.bytes.len() < room + BLOCK {
            self.bytes.resize((room + BLOCK).next_power_of_two(), 0);
        }
        self.offsets.reserve(run.count as usize);
        let mut column = Column { message, head: columns * 4, index, out: &mut self.bytes, at: self.len };
        let whole = match run.slots(message) {
            None if run.count == 1 => {
                let rest = run.heap_range();
                let whole = column.append(rest.start, rest.end);
                self.offsets.push(column.at as i32);
                whole
            }
            None => false,
            Some(slots) => {
                let mut whole = true;
                let base = (run.heap_at as usize).wrapping_sub(run.bias as usize);
                let at = |slot: &[u8; 4]| base.wrapping_add((u32::from_le_bytes(*slot) & !(1 << 31)) as usize);
                let mut start = at(&slots[0]);
                self.offsets.extend(slots[1..].iter().map(|slot| {
                    let end = at(slot);
                    whole &= column.append(start, end);
                    start = end;
                    column.at as i32
                }));
                whole
            }
        };
        self.len = column.at;
        if whole { Ok(()) } else { Err(Malformed("a row's offsets point outside it").into()) }
    }

    pub(super) fn finish(&mut self, nulls: Option<NullBuffer>, text: bool) -> Result<ArrayRef, ArrowError> {
        let room =
            Variable { offsets: Vec::with_capacity(self.offsets.len()), bytes: vec![0; self.bytes.len()], len: 0 };
        let mut full = std::mem::replace(self, room);
        self.offsets.push(0);
        full.bytes.truncate(full.len);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(full.offsets));
        let bytes = Buffer::from_vec(full.bytes);
        Ok(match text {
            true => Arc::new(StringArray::try_new(offsets, bytes, nulls)?),
            false => Arc::new(BinaryArray::try_new(offsets, bytes, nulls)?),
        })
    }
}

/// One variable column being copied out of rests.
struct Column<'a> {
    message: &'a [u8],
    /// Bytes of end offsets at a rest's start.
    head: usize,
    index: usize,
    out: &'a mut [u8],
    at: usize,
}

impl Column<'_> {
    /// Copies the column's value of the row whose rest is `start..end` of the message; false when its offsets are broken,
    /// and then nothing is copied.
    #[inline(always)]
    fn append(&mut self, start: usize, end: usize) -> bool {
        let Some(rest) = self.message.get(start..end) else { return false };
        let word = |index: usize| {
            let offset = rest.get(index * 4..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*offset) as usize)
        };
        let from = if self.index == 0 { Some(0) } else { word(self.index - 1) };
        let (Some(from), Some(to)) = (from, word(self.index)) else { return false };
        if from > to || self.head + to > rest.len() {
            return false;
        }
        let (from, len) = (start + self.head + from, to - from);
        self.copy(from, len);
        true
    }

    /// Most values are short: a block of fixed size costs two moves, where a copy of unknown length is a call.
    #[inline(always)]
    fn copy(&mut self, from: usize, len: usize) {
        let blocks = (self.message.get(from..from + BLOCK), self.out.get_mut(self.at..self.at + BLOCK));
        match blocks {
            (Some(source), Some(target)) if len <= BLOCK => target.copy_from_slice(source),
            _ => self.out[self.at..self.at + len].copy_from_slice(&self.message[from..from + len]),
        }
        self.at += len;
    }
}

/// Bytes of a block.
const BLOCK: usize = 32;
