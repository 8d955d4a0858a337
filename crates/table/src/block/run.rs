//! Runs: rows that lie together, and where they lie in the message.
//!
//! An entry of the run table is 24 bytes, six words: `count | prefixes_at | slots_at | heap_at |
//! heap_len | bias`. `slots_at` 0 means that there are no slots: then a run of one row has the
//! whole heap as its rest, and rows of a longer run have none.

use super::header::u32_at;
use super::source::Source;
use crate::row::{Bytes, Malformed};

/// Rows whose prefixes, rest slots and rests each lie one after another; offsets count from the
/// message's start.
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

    /// Checks that everything the run names lies in the message and that its slots ascend within
    /// its heap. What passes is read without an error afterwards. What must be kept of the slots is
    /// appended to `copies`.
    pub(super) fn check<'a>(
        &self,
        message: impl Source<'a>,
        stride: usize,
        copies: &mut Vec<[u8; 4]>,
    ) -> Result<(), Malformed> {
        if self.count == 0 {
            return Err(Malformed("a run of a scan answer has no row"));
        }
        let prefixes = (self.count as usize).checked_mul(stride);
        let prefixes = prefixes.and_then(|bytes| message.piece(self.prefixes_at as usize, bytes));
        if prefixes.is_none() || message.piece(self.heap_at as usize, self.heap_len as usize).is_none() {
            return Err(Malformed("a run of a scan answer points outside the message"));
        }
        if self.slots_at == 0 {
            if self.count > 1 && (self.heap_len > 0 || stride == 0) {
                return Err(Malformed("a run of a scan answer has rests but no slots"));
            }
            return Ok(());
        }
        let slots = message.slots(self.slots_at as usize, self.count as usize + 1, copies);
        let slots = slots.ok_or(Malformed("a run of a scan answer has slots outside the message"))?;
        if !ascends(slots, self.bias, self.bias as u64 + self.heap_len as u64) {
            return Err(Malformed("slots of a scan answer do not ascend within their heap"));
        }
        Ok(())
    }
}

/// Runs that were checked, one after another, each with its bytes.
#[derive(Clone, Debug)]
pub(crate) struct OpenRuns<'a, S> {
    message: S,
    runs: std::slice::Iter<'a, Run>,
    /// Kept of the slots of the runs to come.
    copies: &'a [[u8; 4]],
    stride: usize,
}

/// A run that was checked, and its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenRun<'a, P> {
    pub(crate) rows: usize,
    pub(crate) prefixes: P,
    /// One more than rows; none when the run has none.
    pub(crate) slots: Option<&'a [[u8; 4]]>,
    /// What a slot that points to the heap's first byte says.
    pub(crate) bias: u32,
    pub(crate) heap: P,
    /// The heap, and what lies together with it behind.
    pub(crate) behind: P,
}

impl<'a, S: Source<'a>> OpenRuns<'a, S> {
    pub(super) fn new(message: S, runs: &'a [Run], copies: &'a [[u8; 4]], stride: usize) -> Self {
        Self { message, runs: runs.iter(), copies, stride }
    }

    pub(crate) fn message(&self) -> S {
        self.message
    }
}

impl<'a, S: Source<'a>> Iterator for OpenRuns<'a, S> {
    type Item = OpenRun<'a, S::Piece>;

    #[inline]
    fn next(&mut self) -> Option<OpenRun<'a, S::Piece>> {
        let Run { count, prefixes_at, slots_at, heap_at, heap_len, bias } = *self.runs.next()?;
        let rows = count as usize;
        let slots = match slots_at {
            0 => None,
            at => self.message.checked_slots(at as usize, rows + 1, &mut self.copies),
        };
        let behind = self.message.behind(heap_at as usize).unwrap_or_default();
        Some(OpenRun {
            rows,
            prefixes: self.message.piece(prefixes_at as usize, rows * self.stride).unwrap_or_default(),
            slots,
            bias,
            heap: behind.part(0, heap_len as usize).unwrap_or_default(),
            behind,
        })
    }
}

impl<P: Bytes> OpenRun<'_, P> {
    /// The rest of row `row` of the run.
    #[inline]
    pub(crate) fn rest(&self, row: usize) -> P {
        let Some(slots) = self.slots else { return self.heap };
        let [from, to] = [row, row + 1].map(|row| slot_at(&slots[row]).wrapping_sub(self.bias) as usize);
        to.checked_sub(from).and_then(|len| self.heap.part(from, len)).unwrap_or_default()
    }

    /// Bytes of all its rests.
    pub(crate) fn rests_len(&self) -> u64 {
        match self.slots {
            None => self.heap.len() as u64,
            Some(slots) => u64::from(slot_at(&slots[slots.len() - 1]) - slot_at(&slots[0])),
        }
    }
}

/// What a slot says without its flag. The slot that ends a run may be the next row's, whose rest
/// lies elsewhere.
#[inline(always)]
pub(crate) fn slot_at(slot: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*slot) & !SLOT_OVERFLOW
}

/// Whether the slots never decrease, lie in `low..=high`, and none but the last is flagged. Without
/// a branch in the loop, so that it is vectorised: this is the one step of parsing that is not
/// O(runs).
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
