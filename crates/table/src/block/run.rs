//! Runs: rows that lie together, and where they lie in the message.
//!
//! An entry of the run table is 24 bytes, six words: `count | prefixes_at | slots_at | heap_at | heap_len | bias`.
//! `slots_at` 0 means that there are no slots: then a run of one row has the whole heap as its rest, and rows of a longer
//! run have none.

use std::ops::Range;

use super::header::u32_at;
use crate::row::Malformed;

/// Rows whose prefixes, rest slots and rests each lie one after another; offsets count from the message's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) count: u32,
    pub(crate) prefixes_at: u32,
    pub(crate) slots_at: u32,
    pub(crate) heap_at: u32,
    pub(crate) heap_len: u32,
    /// What a slot that points to the heap's first byte says.
    pub(crate) bias: u32,
}

impl Run {
    pub(super) fn to_bytes(self) -> [u8; RUN_BYTES] {
        let words = [self.count, self.prefixes_at, self.slots_at, self.heap_at, self.heap_len, self.bias];
        let mut bytes = [0; RUN_BYTES];
        for (at, word) in words.into_iter().enumerate() {
            bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn read(bytes: &[u8; RUN_BYTES]) -> Run {
        Run {
            count: u32_at(bytes, 0),
            prefixes_at: u32_at(bytes, 4),
            slots_at: u32_at(bytes, 8),
            heap_at: u32_at(bytes, 12),
            heap_len: u32_at(bytes, 16),
            bias: u32_at(bytes, 20),
        }
    }

    /// Checks that everything the run names lies in the message and that its slots ascend within its heap. What passes
    /// is read without an error afterwards.
    pub(super) fn check(&self, message: &[u8], stride: usize) -> Result<(), Malformed> {
        if self.count == 0 {
            return Err(Malformed("a run of a scan answer has no row"));
        }
        if self.prefixes(message, stride).is_none() || self.heap(message).is_none() {
            return Err(Malformed("a run of a scan answer points outside the message"));
        }
        if self.slots_at == 0 {
            if self.count > 1 && (self.heap_len > 0 || stride == 0) {
                return Err(Malformed("a run of a scan answer has rests but no slots"));
            }
            return Ok(());
        }
        let slots = self.slots(message).ok_or(Malformed("a run of a scan answer has slots outside the message"))?;
        if !ascends(slots, self.bias, self.bias as u64 + self.heap_len as u64) {
            return Err(Malformed("slots of a scan answer do not ascend within their heap"));
        }
        Ok(())
    }

    /// All prefixes of the run.
    #[inline]
    pub(crate) fn prefixes<'a>(&self, message: &'a [u8], stride: usize) -> Option<&'a [u8]> {
        let bytes = (self.count as usize).checked_mul(stride)?;
        message.get(self.prefixes_at as usize..(self.prefixes_at as usize).checked_add(bytes)?)
    }

    /// The run's slots, one more than rows; none when it has none or they lie outside.
    #[inline]
    pub(crate) fn slots<'a>(&self, message: &'a [u8]) -> Option<&'a [[u8; 4]]> {
        if self.slots_at == 0 {
            return None;
        }
        let at = self.slots_at as usize;
        message.get(at..at + 4 * (self.count as usize + 1)).map(|slots| slots.as_chunks().0)
    }

    /// The run's rests.
    #[inline]
    pub(crate) fn heap<'a>(&self, message: &'a [u8]) -> Option<&'a [u8]> {
        message.get(self.heap_range())
    }

    #[inline]
    pub(crate) fn heap_range(&self) -> Range<usize> {
        self.heap_at as usize..self.heap_at as usize + self.heap_len as usize
    }

    /// The rest of row `row` of the run.
    #[inline]
    pub(crate) fn rest<'a>(&self, message: &'a [u8], row: usize) -> &'a [u8] {
        let heap = self.heap(message).unwrap_or_default();
        match self.slots(message) {
            None => heap,
            Some(slots) => {
                let at = |slot| slot_at(slot).wrapping_sub(self.bias) as usize;
                heap.get(at(&slots[row])..at(&slots[row + 1])).unwrap_or_default()
            }
        }
    }
}

/// What a slot says without its flag. The slot that ends a run may be the next row's, whose rest lies elsewhere.
#[inline(always)]
pub(crate) fn slot_at(slot: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*slot) & !SLOT_OVERFLOW
}

/// Whether the slots never decrease, lie in `low..=high`, and none but the last is flagged. Without a branch in the loop,
/// so that it is vectorised: this is the one step of parsing that is not O(runs).
fn ascends(slots: &[[u8; 4]], low: u32, high: u64) -> bool {
    let (first, last) = (slot_at(&slots[0]), slot_at(&slots[slots.len() - 1]));
    if first < low || u64::from(last) > high {
        return false;
    }
    let mut bad = 0;
    for (slot, next) in slots.iter().zip(&slots[1..]) {
        // A flagged slot is above every slot without its flag.
        bad |= u32::from(u32::from_le_bytes(*slot) > slot_at(next));
    }
    bad == 0
}

/// The flag of a slot whose row has its rest in an extent of its own.
const SLOT_OVERFLOW: u32 = 1 << 31;
/// Bytes of an entry of the run table.
pub(super) const RUN_BYTES: usize = 24;
