//! A sealed range of memory, registered whole.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::buffer::Buffer;
use crate::names::Name;
use crate::reservation::Reserved;
use crate::{MemoryError, sys};

/// Names a segment within this process; never 0, and no other segment's while this one is alive.
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
}

/// A range of memory with one owner: this process.
///
/// Its address never changes while it lives. A peer may map a shared one read-only at most
/// (`F_SEAL_FUTURE_WRITE` is set once the owner has mapped it), a private one not at all.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    len: usize,
    fd: Option<OwnedFd>,
    place: MappingOwner,
    /// Given back last, after the mapping has ended.
    name: Name,
}

/// Who ends the mapping.
#[derive(Debug)]
enum MappingOwner {
    Own,
    Reserved(#[expect(dead_code, reason = "kept for its end")] Reserved),
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
        let (name, len) = (Name::new()?, sys::rounded(len)?);
        let fd = sys::memfd("overside-segment", len)?;
        // SAFETY: [mapping] a new mapping at an address of the system's choice.
        let base = unsafe { sys::map(&fd, None, len, true) }?;
        Self { name, base, len, fd: Some(fd), place: MappingOwner::Own }.sealed()
    }

    /// A segment that no peer ever maps: receive buffers, scratch. Huge pages are asked for.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when the address space is not there.
    pub fn private(len: usize) -> Result<Self, MemoryError> {
        let (name, len) = (Name::new()?, sys::rounded(len)?);
        // SAFETY: [mapping] a new mapping at an address of the system's choice.
        let base = unsafe { sys::map_anonymous(None, len, true) }?;
        sys::advise_huge(base, len);
        Ok(Self { name, base, len, fd: None, place: MappingOwner::Own })
    }

    /// A shared segment at a place of a reservation.
    pub(crate) fn reserved(place: Reserved, len: usize) -> Result<Self, MemoryError> {
        let (name, fd) = (Name::new()?, sys::memfd("overside-arena", len)?);
        // SAFETY: [reservation] `place` is a committed-once part of the reservation.
        let base = unsafe { sys::map(&fd, Some(place.base()), len, true) }?;
        Self { name, base, len, fd: Some(fd), place: MappingOwner::Reserved(place) }.sealed()
    }

    /// With its size sealed, and for this mapping alone to write.
    fn sealed(self) -> Result<Self, MemoryError> {
        // SAFETY: [mapping] just made; its memory is allocated.
        unsafe { sys::populate(self.base, self.len) };
        self.fd.as_ref().map_or(Ok(()), |fd| sys::seal(fd, true))?;
        Ok(self)
    }

    /// The segment's name in this process.
    pub fn id(&self) -> SegmentId {
        SegmentId(self.name.get())
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

    /// Wakes the peer that sleeps on the aligned half word at offset `at`
    /// ([`Foreign::doze`](crate::Foreign::doze)).
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
    /// so the same bytes are never carved twice. `size` is rounded up to 64 bytes; none fits that
    /// is longer than the segment.
    pub fn carve(self, size: usize) -> Vec<Buffer> {
        let Some(size) = size.max(1).checked_next_multiple_of(64) else { return Vec::new() };
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
            MappingOwner::Own => unsafe { sys::unmap(self.base, self.len) },
            // The end of its place ends the mapping.
            MappingOwner::Reserved(_) => {}
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
    fn after_all_numbers_a_living_segments_one_is_left_out() {
        let first = Segment::private(4096).unwrap();
        crate::names::go_on_with(u32::MAX - 2);
        let later: Vec<Segment> = (0..8).map(|_| Segment::private(4096).unwrap()).collect();
        assert!(later.iter().all(|segment| segment.id() != first.id() && segment.id() != SegmentId::FOREIGN));
        let around = later.iter().filter(|segment| segment.id().get() < u32::MAX - 2).count();
        assert!(around >= 3, "the numbers came round: {later:?}");
    }

    #[test]
    fn carved_buffers_do_not_overlap() {
        let mut buffers = Segment::private(4096).unwrap().carve(100);
        assert_eq!(buffers.len(), 4096 / 128);
        for (i, buffer) in buffers.iter_mut().enumerate() {
            buffer.fill(i as u8);
        }
        assert!(buffers.iter().enumerate().all(|(i, b)| b.iter().all(|x| *x == i as u8)));
        for absurd in [4097, usize::MAX - 63, usize::MAX] {
            assert!(Segment::private(4096).unwrap().carve(absurd).is_empty());
        }
    }
}
