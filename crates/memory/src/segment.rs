//! A sealed range of memory, registered whole.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::buffer::Buffer;
use crate::reservation::Reserved;
use crate::{MemoryError, sys};

/// Names a segment within this process; never 0, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(u32);

impl SegmentId {
    /// Stands for memory that belongs to no segment (a user's heap).
    pub const FOREIGN: SegmentId = SegmentId(0);

    /// The bare number, as it goes into an SGE.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// A segment's name from its bare number; 0 is [`FOREIGN`](Self::FOREIGN).
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A range of memory with one owner: this process.
///
/// Its address never changes while it lives. A peer may map a shared one read-only at most
/// (`F_SEAL_FUTURE_WRITE` is set once the owner has mapped it), a private one not at all.
#[derive(Debug)]
pub struct Segment {
    id: SegmentId,
    base: NonNull<u8>,
    len: usize,
    fd: Option<OwnedFd>,
    place: Place,
}

/// Who ends the mapping.
#[derive(Debug)]
enum Place {
    Own,
    Reserved(Reserved),
}

// SAFETY: [segment] bytes are reached only as Buffer (exclusive), View (frozen) or kernels' copies.
unsafe impl Send for Segment {}
// SAFETY: [segment] as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A segment that peers may read: a memfd with its memory allocated, mapped, then sealed.
    /// `len` is rounded up to whole pages.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when the memory is not there.
    pub fn shared(len: usize) -> Result<Self, MemoryError> {
        let len = sys::rounded(len)?;
        let fd = sys::memfd("overside-segment", len)?;
        // SAFETY: [mapping] a new mapping at an address of the system's choice.
        let base = unsafe { sys::map(&fd, None, len, true) }?;
        sys::seal(&fd, true)?;
        Ok(Self { id: SegmentId::next(), base, len, fd: Some(fd), place: Place::Own })
    }

    /// A segment that no peer ever maps: receive buffers, scratch. Huge pages are asked for.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when the address space is not there.
    pub fn private(len: usize) -> Result<Self, MemoryError> {
        let len = sys::rounded(len)?;
        // SAFETY: [mapping] a new mapping at an address of the system's choice.
        let base = unsafe { sys::map_anonymous(None, len, true) }?;
        sys::advise_huge(base, len);
        Ok(Self { id: SegmentId::next(), base, len, fd: None, place: Place::Own })
    }

    /// A shared segment at a place of a reservation.
    pub(crate) fn reserved(place: Reserved, len: usize) -> Result<Self, MemoryError> {
        let fd = sys::memfd("overside-arena", len)?;
        // SAFETY: [reservation] `place` is a committed-once part of the reservation.
        let base = unsafe { sys::map(&fd, Some(place.base()), len, true) }?;
        sys::seal(&fd, true)?;
        Ok(Self { id: SegmentId::next(), base, len, fd: Some(fd), place: Place::Reserved(place) })
    }

    /// The segment's name in this process.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// Length in bytes, whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a segment has at least a page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte. Reading and writing through it is the business of whoever knows who owns
    /// which bytes: buffers, views, providers.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The descriptor to pass to a peer, which can map it read-only; none for a private segment.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Whether `len` bytes at `address` lie within.
    pub fn contains(&self, address: *const u8, len: usize) -> bool {
        let start = self.base.as_ptr() as usize;
        (address as usize).checked_sub(start).and_then(|at| at.checked_add(len)).is_some_and(|end| end <= self.len)
    }

    /// Wakes the peer that sleeps on the aligned half word at offset `at` ([`Foreign::doze`](crate::Foreign::doze)).
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when it is misaligned or outside.
    pub fn wake(&self, at: usize) -> Result<(), MemoryError> {
        if !at.is_multiple_of(4) || at.checked_add(4).is_none_or(|end| end > self.len) {
            return Err(MemoryError::Escapes { at: at as u64, len: 4, of: self.len as u64 });
        }
        // SAFETY: [segment] aligned, in bounds, alive as long as the borrow; the system takes its address and no byte is touched.
        sys::wake(unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) });
        Ok(())
    }

    /// Cuts the whole segment into exclusive buffers of `size` bytes. Consumes the segment,
    /// so the same bytes are never carved twice. `size` is rounded up to 64 bytes.
    pub fn carve(self, size: usize) -> Vec<Buffer> {
        let size = size.max(1).next_multiple_of(64);
        let segment = Arc::new(self);
        (0..segment.len / size)
            // SAFETY: [buffer] disjoint parts of a segment that was ours alone.
            .map(|i| unsafe { Buffer::new(segment.clone(), i * size, size) })
            .collect()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        match &self.place {
            // SAFETY: [mapping] the last owner ends it; views and buffers keep an Arc or a hold.
            Place::Own => unsafe { sys::unmap(self.base, self.len) },
            Place::Reserved(place) => place.vacate(self.len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_cannot_map_a_shared_segment_for_writing_nor_resize_it() {
        let segment = Segment::shared(5000).unwrap();
        assert_eq!(segment.len(), 8192);
        let fd = segment.fd().unwrap();
        // SAFETY: [mapping] only tried; it must fail.
        let write = unsafe { sys::map(fd, None, 8192, true) };
        assert!(write.is_err(), "FUTURE_WRITE refuses a second writable mapping");
        assert!(rustix::fs::ftruncate(fd, 0).is_err(), "the size is sealed");
        assert!(rustix::io::pwrite(fd, b"x", 0).is_err(), "write(2) is sealed too");
    }

    #[test]
    fn absurd_sizes_are_errors() {
        assert!(matches!(Segment::private(usize::MAX), Err(MemoryError::Exhausted { .. })));
        assert!(matches!(Segment::shared(1 << 60), Err(MemoryError::Exhausted { .. })));
    }

    #[test]
    fn carved_buffers_do_not_overlap() {
        let mut buffers = Segment::private(4096).unwrap().carve(100);
        assert_eq!(buffers.len(), 4096 / 128);
        for (i, buffer) in buffers.iter_mut().enumerate() {
            buffer.fill(i as u8);
        }
        assert!(buffers.iter().enumerate().all(|(i, b)| b.iter().all(|x| *x == i as u8)));
    }
}
