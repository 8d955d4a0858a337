//! One contiguous range of addresses in which segments appear and go.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::segment::Segment;
use crate::{MemoryError, huge, sys};

/// A reserved range of addresses, cut into equal chunks; a committed chunk is a [`Segment`].
///
/// What lies in it can be named by its offset from [`base`](Self::base), whichever chunk it
/// is in, and no process address needs to be stored.
#[derive(Debug)]
pub struct Reservation {
    range: Arc<Range>,
}

#[derive(Debug)]
struct Range {
    base: NonNull<u8>,
    chunk_bytes: usize,
    taken: Box<[AtomicBool]>,
}

// SAFETY: [reservation] the range itself is only addresses; chunks are handed out once each.
unsafe impl Send for Range {}
// SAFETY: [reservation] as above.
unsafe impl Sync for Range {}

/// A chunk's place in its reservation, taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    range: Arc<Range>,
    chunk: usize,
}

impl Reservation {
    /// Reserves addresses (no memory) for `chunks_max` chunks of `chunk_bytes`.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when the address space is not there or the sizes are absurd.
    ///
    /// # Panics
    /// When `chunk_bytes` is not a power of two of at least a page.
    pub fn new(chunk_bytes: usize, chunks_max: usize) -> Result<Self, MemoryError> {
        assert!(chunk_bytes.is_power_of_two() && chunk_bytes >= sys::PAGE_BYTES);
        let bytes = chunk_bytes
            .checked_mul(chunks_max.max(1))
            .filter(|b| *b <= isize::MAX as usize)
            .ok_or(MemoryError::Exhausted { bytes: usize::MAX, source: rustix::io::Errno::NOMEM })?;
        let base = huge::reserve(bytes)?;
        let taken = (0..chunks_max.max(1)).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { range: Arc::new(Range { base, chunk_bytes, taken }) })
    }

    /// First address of the range.
    pub fn base(&self) -> NonNull<u8> {
        self.range.base
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.range.chunk_bytes
    }

    /// How many chunks there can be.
    pub fn chunks_max(&self) -> usize {
        self.range.taken.len()
    }

    /// Commits chunk `chunk` as a shared segment of zeroed memory. The chunk is free again
    /// once the segment's last owner dropped it.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when the memory is not there, [`MemoryError::Escapes`] for a
    /// chunk that does not exist or is committed already.
    pub fn commit(&self, chunk: usize) -> Result<Segment, MemoryError> {
        let escapes = MemoryError::Escapes { at: chunk as u64, len: 1, of: self.range.taken.len() as u64 };
        let Some(taken) = self.range.taken.get(chunk) else { return Err(escapes) };
        if taken.swap(true, Ordering::Acquire) {
            return Err(escapes);
        }
        Segment::reserved(Reserved { range: self.range.clone(), chunk }, self.range.chunk_bytes)
    }
}

impl Reserved {
    pub(crate) fn base(&self) -> NonNull<u8> {
        // SAFETY: [reservation] the chunk is below chunks_max, so it lies in the range.
        unsafe { self.range.base.add(self.chunk * self.range.chunk_bytes) }
    }
}

impl Drop for Reserved {
    /// Makes the place inaccessible again and free to be taken.
    fn drop(&mut self) {
        // SAFETY: [reservation] the segment that used the place is gone, or was never made.
        if unsafe { sys::map_anonymous(Some(self.base()), self.range.chunk_bytes, false) }.is_ok() {
            self.range.taken[self.chunk].store(false, Ordering::Release);
        }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: [reservation] every segment in it keeps an Arc of the range.
        unsafe { sys::unmap(self.base, self.chunk_bytes * self.taken.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_committed_once_and_free_after_its_segment() {
        let reservation = Reservation::new(1 << 20, 4).unwrap();
        let segment = reservation.commit(2).unwrap();
        assert_eq!(segment.base().as_ptr() as usize, reservation.base().as_ptr() as usize + (2 << 20));
        assert!(reservation.commit(2).is_err());
        assert!(reservation.commit(4).is_err());
        let mut buffers = segment.carve(1 << 20);
        buffers[0].fill(9);
        drop(buffers);
        let again = reservation.commit(2).unwrap().carve(1 << 20);
        assert!(again[0].iter().all(|b| *b == 0), "a new commit is zeroed");
    }
}
