//! Small pieces of posted memory on their way out: copied together, as many as one call takes.
//!
//! The kernel takes more time for an entry of a call's list than copying so little does. It reads
//! one cold piece after the other, where the next ones can be asked for while the first is copied.
//! The stage is small enough to stay in the processor's cache: its bytes are there when the kernel
//! copies them, and its places when the next ones come.

use crate::outbound::Source;

use overside_memory::kernels::{copy_racing, prefetch};

/// Bytes in order; those before `start` are gone.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    bytes: Vec<u8>,
    start: usize,
}

impl Stage {
    /// What is in it and not gone.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Copies a piece behind the others. False: there is no room before those are gone.
    ///
    /// # Safety
    /// Its bytes are readable, and nobody writes them meanwhile.
    pub(crate) unsafe fn put(&mut self, source: Source) -> bool {
        if self.bytes.len() + source.len > STAGE_BYTES {
            return false;
        }
        self.bytes.reserve(STAGE_BYTES - self.bytes.len());
        // SAFETY: [tcp-posted] the caller's promise, and there is room for them behind what is there.
        unsafe {
            let end = self.bytes.len();
            copy_racing(self.bytes.as_mut_ptr().add(end), source.address, source.len);
            self.bytes.set_len(end + source.len);
        }
        true
    }

    /// So many bytes are gone.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.bytes.len() {
            self.clear();
        }
    }

    /// All are gone.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }
}

/// Asks for the lines of a piece that is soon to be copied.
pub(crate) fn ask_for(source: Source) {
    (0..source.len).step_by(LINE_BYTES).for_each(|at| prefetch(source.address.wrapping_add(at)));
}

/// How many pieces behind one of this length the one lies that is to be asked for when this one is
/// copied.
pub(crate) fn ahead(len: usize) -> usize {
    (AHEAD_BYTES / len.max(1)).clamp(1, AHEAD_MAX)
}

const AHEAD_BYTES: usize = 8 << 10;
const AHEAD_MAX: usize = 32;
/// Half as much leaves calls too short, twice as much is no longer where it is fast: measured,
/// docs/design/004-tcp-credits.md.
pub(crate) const STAGE_BYTES: usize = 64 << 10;
const LINE_BYTES: usize = 64;
