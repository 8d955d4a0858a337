//! Memory that the kernel reads and writes without a copy of its own.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// What direct reads and writes are aligned to: place in the file, length, and address.
pub const BLOCK_BYTES: usize = 4096;

/// Zeroed memory of whole blocks, aligned to one.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: [disk-buffer] the memory belongs to this buffer alone, as a boxed slice's does.
unsafe impl Send for AlignedBuffer {}
// SAFETY: [disk-buffer] through a shared reference the memory can only be read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// At least `bytes` bytes, and at least one block.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn zeroed(bytes: usize) -> io::Result<AlignedBuffer> {
        let refused = || io::Error::new(io::ErrorKind::OutOfMemory, format!("no memory for a buffer of {bytes} bytes"));
        let bytes = bytes.max(1).checked_next_multiple_of(BLOCK_BYTES).ok_or_else(refused)?;
        let layout = Layout::from_size_align(bytes, BLOCK_BYTES).map_err(|_| refused())?;
        // SAFETY: [disk-buffer] the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(AlignedBuffer { start, bytes })
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: [disk-buffer] zeroed at construction, and borrowed with the buffer.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: [disk-buffer] as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        let layout = Layout::from_size_align(self.bytes, BLOCK_BYTES).expect("it was one at construction");
        // SAFETY: [disk-buffer] allocated with this layout, and nobody has it any more.
        unsafe { dealloc(self.start.as_ptr(), layout) };
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.bytes)
    }
}
