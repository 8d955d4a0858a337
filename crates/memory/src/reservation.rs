//! One contiguous range of addresses in which segments appear and go.

use std::ops::Range as Part;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::segment::Segment;
use crate::{MemoryError, huge, sys};

/// A reserved range of addresses, cut into equal chunks; a committed chunk is a [`Segment`], or
/// several that follow each other.
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
    /// Of each chunk a bit for each [grain](Range::grain) that is some segment's.
    taken: Box<[AtomicU64]>,
}

// SAFETY: [reservation] the range itself is only addresses; parts of chunks are handed out once each.
unsafe impl Send for Range {}
// SAFETY: [reservation] as above.
unsafe impl Sync for Range {}

/// A place in a chunk of a reservation, taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    range: Arc<Range>,
    chunk: usize,
    part: Part<usize>,
}

impl Range {
    /// Parts of chunks are multiples of this.
    fn grain(&self) -> usize {
        (self.chunk_bytes / 64).max(sys::PAGE_BYTES)
    }

    /// The bits of a part of a chunk; none for what is no part.
    fn bits(&self, part: &Part<usize>) -> u64 {
        let grain = self.grain();
        let whole = part.start.is_multiple_of(grain) && part.end.is_multiple_of(grain);
        if !whole || part.start >= part.end || part.end > self.chunk_bytes {
            return 0;
        }
        u64::MAX >> (64 - (part.end - part.start) / grain) << (part.start / grain)
    }
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
        let taken = (0..chunks_max.max(1)).map(|_| AtomicU64::new(0)).collect();
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
        self.commit_part(chunk, 0..self.range.chunk_bytes)
    }

    /// The same of a part of a chunk: whole 64ths of it, and whole pages.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when the memory is not there, [`MemoryError::Escapes`] for what
    /// is no part of a chunk, or is committed already.
    pub fn commit_part(&self, chunk: usize, part: Part<usize>) -> Result<Segment, MemoryError> {
        let escapes = MemoryError::Escapes { at: chunk as u64, len: 1, of: self.range.taken.len() as u64 };
        let bits = self.range.bits(&part);
        let (Some(taken), 1..) = (self.range.taken.get(chunk), bits) else { return Err(escapes) };
        let free = |taken: u64| (taken & bits == 0).then_some(taken | bits);
        if taken.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).is_err() {
            return Err(escapes);
        }
        let len = part.len();
        Segment::reserved(Reserved { range: self.range.clone(), chunk, part }, len)
    }
}

impl Reserved {
    pub(crate) fn base(&self) -> NonNull<u8> {
        // SAFETY: [reservation] the chunk is below chunks_max and the part within it, so it lies in the range.
        unsafe { self.range.base.add(self.chunk * self.range.chunk_bytes + self.part.start) }
    }
}

impl Drop for Reserved {
    /// Makes the place inaccessible again and free to be taken.
    fn drop(&mut self) {
        // SAFETY: [reservation] the segment that used the place is gone, or was never made.
        if unsafe { sys::map_anonymous(Some(self.base()), self.part.len(), false) }.is_ok() {
            self.range.taken[self.chunk].fetch_and(!self.range.bits(&self.part), Ordering::Release);
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

    #[test]
    fn parts_of_a_chunk_are_committed_once_each() {
        let reservation = Reservation::new(1 << 20, 2).unwrap();
        let grain = 1 << 14;
        let first = reservation.commit_part(1, 0..grain).unwrap();
        let second = reservation.commit_part(1, grain..3 * grain).unwrap();
        assert_eq!((first.len(), second.len()), (grain, 2 * grain));
        assert_eq!(second.base().as_ptr() as usize, first.base().as_ptr() as usize + grain);
        assert_eq!(first.base().as_ptr() as usize, reservation.base().as_ptr() as usize + (1 << 20));
        for part in [0..1 << 20, 0..grain, 2 * grain..4 * grain] {
            assert!(reservation.commit_part(1, part.clone()).is_err(), "{part:?} is somebody's");
        }
        let none = [grain..grain, 4 * grain..4 * grain + 4096, 63 * grain..65 * grain, 65 * grain..66 * grain];
        for part in none {
            assert!(reservation.commit_part(1, part.clone()).is_err(), "{part:?} is no part");
        }
        drop(first);
        assert!(reservation.commit(1).is_err());
        let again = reservation.commit_part(1, 0..grain).unwrap();
        drop((again, second));
        assert!(reservation.commit(1).is_ok());
    }
}
