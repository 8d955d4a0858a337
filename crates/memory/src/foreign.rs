//! A peer's memory, mapped read-only here.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use overside_shape::Messages;

use crate::foreign_range::ForeignRange;
use crate::pack::pack_racing;
use crate::racing::Racing;
use crate::{MemoryError, kernels};

/// A peer's segment. The peer may change it at any moment, so it gives copies and single
/// aligned words only; whoever reads validates after the copy.
///
/// A clone is another handle on the same mapping, which ends with its last handle.
#[derive(Clone, Debug)]
pub struct Foreign {
    mapped: Racing,
}

impl Foreign {
    /// Verifies size and seals of what a peer passed, then maps it.
    ///
    /// # Errors
    /// [`MemoryError::Untrusted`] when the descriptor is not an allocated memfd of `len` bytes,
    /// sealed against every change of its size and every later writable mapping.
    pub fn map(fd: OwnedFd, len: u64) -> Result<Self, MemoryError> {
        Ok(Self { mapped: Racing::passed(fd, len, false, ABSURD, None)? })
    }

    /// As [`map`](Self::map), with something that must stay as long as the mapping does: what
    /// counts it, say.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_keeping(fd: OwnedFd, len: u64, kept: impl Any + Send + Sync) -> Result<Self, MemoryError> {
        Ok(Self { mapped: Racing::passed(fd, len, false, ABSURD, Some(Box::new(kept)))? })
    }

    /// `len` bytes from offset `at` on, with a handle of their own.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`].
    pub fn range(&self, at: u64, len: usize) -> Result<ForeignRange, MemoryError> {
        ForeignRange::new(self.mapped.clone(), at, len)
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.mapped.len()
    }

    /// Never: an empty one is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `out.len()` bytes from offset `at`.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`]; nothing is copied then.
    #[inline]
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.mapped.read(at, out)
    }

    /// As [`read`](Self::read), where `then`, [a place](Self::place) of this memory or another, is
    /// read next; null where that is not known.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`]; nothing is copied then.
    #[inline]
    pub fn read_ahead(&self, at: u64, out: &mut [u8], then: *const u8) -> Result<(), MemoryError> {
        self.mapped.read_ahead(at, out, then)
    }

    /// Where `len` bytes from offset `at` on lie, to be asked for ahead; null when they are not all
    /// inside.
    #[inline]
    pub fn place(&self, at: u64, len: usize) -> *const u8 {
        self.mapped.checked(at, len).map_or(std::ptr::null(), |place| place.cast_const())
    }

    /// Packs messages of a shape over the `len` bytes from offset `at` on into the start of `out`;
    /// gives their bytes. What the peer writes meanwhile may be what is packed, and nothing else
    /// happens.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when the bytes leave the memory or the shape leaves them,
    /// [`MemoryError::Short`] when `out` has no room; nothing is written then.
    pub fn pack(&self, at: u64, len: u64, messages: &Messages<'_>, out: &mut [u8]) -> Result<usize, MemoryError> {
        let outside = MemoryError::Escapes { at, len, of: self.len() as u64 };
        let Ok(bytes) = usize::try_from(len) else { return Err(outside) };
        let base = self.mapped.checked(at, bytes)?;
        // SAFETY: [foreign] in bounds of the mapping, and the kernels' loads are opaque; `out` is ours.
        unsafe { pack_racing(base, len, messages, out) }
    }

    /// The aligned word at offset `at`, with acquire ordering.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when it is misaligned or outside.
    #[inline]
    pub fn load(&self, at: u64) -> Result<u64, MemoryError> {
        Ok(self.mapped.word(at)?.load(Ordering::Acquire))
    }

    /// `N` aligned words from offset `at` on, each with acquire ordering; they need not be of one
    /// moment.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when they are misaligned or not all inside.
    #[inline]
    pub fn load_words<const N: usize>(&self, at: u64) -> Result<[u64; N], MemoryError> {
        Ok(self.mapped.words::<N>(at)?.each_ref().map(|word| word.load(Ordering::Acquire)))
    }

    /// The aligned half word at offset `at`, with sequentially consistent ordering: what
    /// [`doze`](Self::doze) waits on.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when it is misaligned or outside.
    #[inline]
    pub fn load_half(&self, at: u64) -> Result<u32, MemoryError> {
        self.mapped.half(at)
    }

    /// Sleeps while the half word at offset `at` is `value`, until its owner wakes who waits on it,
    /// at most `timeout`. Whether it ended before that; wakes for nothing happen.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when it is misaligned or outside.
    pub fn doze(&self, at: u64, value: u32, timeout: Duration) -> Result<bool, MemoryError> {
        self.mapped.doze(at, value, timeout)
    }

    /// Asks the processor to fetch the cache line at `at`; nothing happens for a bad offset.
    #[inline]
    pub fn prefetch(&self, at: u64) {
        if let Ok(source) = self.mapped.checked(at, 1) {
            kernels::prefetch(source);
        }
    }

    /// Asks the processor to fetch the first lines of `len` bytes at `at`, as
    /// [`kernels::prefetch_range`] does; nothing happens where they are not all inside.
    #[inline]
    pub fn prefetch_range(&self, at: u64, len: usize) {
        if let Ok(source) = self.mapped.checked(at, len) {
            kernels::prefetch_range(source, len);
        }
    }
}

const ABSURD: &str = "the segment's size is absurd";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Segment, sys};
    use std::sync::atomic::AtomicU64;

    fn passed(segment: &Segment) -> OwnedFd {
        segment.fd().unwrap().try_clone_to_owned().unwrap()
    }

    #[test]
    fn reads_what_the_owner_writes_within_bounds() {
        let segment = Segment::shared(4096).unwrap();
        let foreign = Foreign::map(passed(&segment), 4096).unwrap();
        let mut buffer = segment.carve(4096).pop().unwrap();
        buffer[8..16].copy_from_slice(&7u64.to_ne_bytes());
        assert_eq!(foreign.load(8).unwrap(), 7);
        let mut out = [0; 9];
        foreign.read(8, &mut out).unwrap();
        assert_eq!(out[0], 7);
        assert!(foreign.read(4090, &mut out).is_err());
        assert!(foreign.read_ahead(4090, &mut out, std::ptr::null()).is_err());
        assert!(foreign.place(4096, 1).is_null() && foreign.place(u64::MAX, 2).is_null());
        let mut whole = [1; 4096];
        foreign.read_ahead(0, &mut whole, foreign.place(0, 4096)).unwrap();
        assert!(whole[8] == 7 && whole.iter().filter(|byte| **byte != 0).count() == 1);
        assert!(foreign.read(u64::MAX, &mut out).is_err());
        assert!(foreign.load(4).is_err());
        assert!(foreign.load(4096).is_err());
        assert_eq!(foreign.load_words::<3>(0).unwrap(), [0, 7, 0]);
        assert!(foreign.load_words::<2>(4088).is_err());
        assert!(foreign.load_words::<2>(4).is_err());
    }

    #[test]
    fn a_mapping_ends_with_its_last_handle() {
        let segment = Segment::shared(4096).unwrap();
        let kept = std::sync::Arc::new(());
        let foreign = Foreign::map_keeping(passed(&segment), 4096, kept.clone()).unwrap();
        let range = foreign.range(8, 8).unwrap();
        drop(segment);
        drop(foreign);
        assert_eq!(std::sync::Arc::strong_count(&kept), 2, "the range keeps the mapping");
        assert_eq!(range.load_u64(0), Some(0), "the peer is gone, its memory is not");
        drop(range);
        assert_eq!(std::sync::Arc::strong_count(&kept), 1);
    }

    #[test]
    fn a_sleep_ends_by_a_wake_by_a_change_before_it_or_by_its_limit() {
        let segment = Segment::shared(4096).unwrap();
        let foreign = Foreign::map(passed(&segment), 4096).unwrap();
        assert!(!foreign.doze(8, 0, Duration::from_millis(1)).unwrap(), "nobody woke it");
        assert!(foreign.doze(8, 1, Duration::from_secs(60)).unwrap(), "it has changed already");
        assert!(foreign.doze(4094, 0, Duration::ZERO).is_err() && foreign.doze(2, 0, Duration::ZERO).is_err());
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                while foreign.load_half(8).unwrap() == 0 {
                    foreign.doze(8, 0, Duration::from_secs(60)).unwrap();
                }
            });
            let word = u64::from_ne_bytes([5, 0, 0, 0, 7, 0, 0, 0].map(u8::to_ne_bytes).map(|[byte]| byte));
            // SAFETY: [test] a word of our own mapping that is reached by atomics alone.
            unsafe { AtomicU64::from_ptr(segment.base().as_ptr().add(8).cast()) }.store(word, Ordering::SeqCst);
            segment.wake(8).unwrap();
            sleeper.join().unwrap();
        });
        assert_eq!(foreign.load_half(8).unwrap(), 5);
        assert!(segment.wake(4096).is_err() && segment.wake(2).is_err());
    }

    #[test]
    fn a_lying_peer_is_refused() {
        let segment = Segment::shared(4096).unwrap();
        assert!(Foreign::map(passed(&segment), 8192).is_err(), "a size that is not so");
        let loose = rustix::fs::memfd_create("loose", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert!(Foreign::map(loose, 4096).is_err(), "it could shrink under us");
        let hollow = rustix::fs::memfd_create("hollow", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&hollow, 1 << 20).unwrap();
        sys::seal(&hollow, true).unwrap();
        assert!(Foreign::map(hollow, 1 << 20).is_err(), "its holes would be ours to fill");
        let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::fallocate(&open, rustix::fs::FallocateFlags::empty(), 0, 4096).unwrap();
        sys::seal(&open, false).unwrap();
        let refused = Foreign::map(open, 4096).unwrap_err();
        assert!(refused.to_string().contains("mapped for writing"), "others could write what we read: {refused}");
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert!(Foreign::map(pipe, 4096).is_err(), "not a memfd");
    }
}
