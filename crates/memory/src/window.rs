//! Memory that a peer may write at any moment.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::racing::Racing;
use crate::{MemoryError, kernels, sys};

/// The target of one-sided writes and atomics: ours for a peer to write, or a peer's for us.
///
/// It gives copies and atomic words, never `&[u8]`; whoever reads validates after the copy.
#[derive(Debug)]
pub struct Window {
    mapped: Racing,
    fd: Option<OwnedFd>,
}

impl Window {
    /// A window of our own. What peers may do with it is decided when it is first
    /// [shared](Self::share). `len` is rounded up to pages.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when the memory is not there.
    pub fn new(len: usize) -> Result<Self, MemoryError> {
        let len = sys::rounded(len)?;
        let fd = sys::memfd("overside-window", len)?;
        Ok(Self { mapped: Racing::own(&fd, len)?, fd: Some(fd) })
    }

    /// A peer's window, verified and mapped here.
    ///
    /// # Errors
    /// [`MemoryError::Untrusted`] when the descriptor is not what the peer says.
    pub fn map(fd: OwnedFd, len: u64) -> Result<Self, MemoryError> {
        Ok(Self { mapped: Racing::passed(fd, len, true, "the window's size is absurd", None)?, fd: None })
    }

    /// Whether it was made here; a peer's is its owner's to share.
    pub fn is_ours(&self) -> bool {
        self.fd.is_some()
    }

    /// The descriptor to pass to peers, sealed for good: to `write` or only to read. One memory is
    /// of one class, since a descriptor of either is as good as any other to its holder. What some
    /// peer may write cannot be kept from the rest, and after the seal no process maps it for
    /// writing again.
    ///
    /// # Errors
    /// [`MemoryError::Class`] when it was shared the other way before, [`MemoryError::Untrusted`]
    /// for a peer's window.
    pub fn share(&self, write: bool) -> Result<BorrowedFd<'_>, MemoryError> {
        let fd = self.fd.as_ref().ok_or(MemoryError::Untrusted("a peer's window is its owner's to share"))?;
        // Whoever comes first decides, and whoever comes later is refused by the seal of seals.
        let sealed = sys::seal(fd, !write);
        if sealed.is_ok() || sys::frozen(fd)? == Some(!write) {
            return Ok(fd.as_fd());
        }
        Err(MemoryError::Class(if write { "read" } else { "write" }))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.mapped.len()
    }

    /// Never: a window has at least a page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `out.len()` bytes from offset `at`.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`]; nothing is copied then.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.mapped.read(at, out)
    }

    /// Copies `bytes` to offset `at`; its last aligned word becomes visible last (release).
    ///
    /// # Errors
    /// [`MemoryError::Escapes`]; nothing is copied then.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let target = self.mapped.checked(at, bytes.len())?;
        let end = at + bytes.len() as u64;
        let word = (end & !7).saturating_sub(8);
        if bytes.len() < 8 || word < at {
            // SAFETY: [window] in bounds; `bytes` is ours.
            unsafe { kernels::copy_racing(target, bytes.as_ptr(), bytes.len()) };
            return Ok(());
        }
        let head = (word - at) as usize;
        let tail = head + 8;
        // SAFETY: [window] in bounds: head, tail and the word lie within at..end.
        unsafe {
            kernels::copy_racing(target, bytes.as_ptr(), head);
            kernels::copy_racing(target.add(tail), bytes.as_ptr().add(tail), bytes.len() - tail);
        }
        let mut last = [0; 8];
        last.copy_from_slice(&bytes[head..tail]);
        self.word(word)?.store(u64::from_ne_bytes(last), Ordering::Release);
        Ok(())
    }

    /// Sleeps while the aligned half word at offset `at` is `value`, until somebody
    /// [wakes](Self::wake) who waits on it, at most `timeout`. Whether it ended before that; wakes
    /// for nothing happen. Which half of its [word](Self::word) it is the bytes' order in memory
    /// says.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when it is misaligned or outside.
    pub fn doze(&self, at: u64, value: u32, timeout: Duration) -> Result<bool, MemoryError> {
        self.mapped.doze(at, value, timeout)
    }

    /// Wakes one that sleeps on the aligned half word at offset `at`, here or in the peer.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when it is misaligned or outside.
    pub fn wake(&self, at: u64) -> Result<(), MemoryError> {
        self.mapped.wake(at)
    }

    /// The aligned word at offset `at`: for loads, stores and atomics of either side. There is one
    /// size of them, since atomics of two sizes on the same bytes may not race.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when it is misaligned or outside.
    pub fn word(&self, at: u64) -> Result<&AtomicU64, MemoryError> {
        self.mapped.word(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_each_others_words() {
        let ours = Window::new(4096).unwrap();
        let theirs = Window::map(ours.share(true).unwrap().try_clone_to_owned().unwrap(), 4096).unwrap();
        for (at, len) in [(0u64, 3usize), (1, 8), (5, 40), (4093, 3), (4088, 8), (7, 100)] {
            let bytes: Vec<u8> = (0..len as u8).map(|b| b ^ 0x55).collect();
            theirs.write(at, &bytes).unwrap();
            let mut out = vec![0; len];
            ours.read(at, &mut out).unwrap();
            assert_eq!(out, bytes, "at {at} len {len}");
        }
        theirs.word(64).unwrap().store(1, Ordering::Relaxed);
        assert_eq!(ours.word(64).unwrap().fetch_add(2, Ordering::AcqRel), 1);
        assert_eq!(theirs.word(64).unwrap().load(Ordering::Acquire), 3);
        assert!(ours.word(4).is_err() && ours.word(4096).is_err());
        assert!(theirs.write(4090, &[0; 7]).is_err());
    }

    /// The system sleeps on four bytes, of which either half of a word may be meant.
    #[test]
    fn a_sleeper_is_woken_by_the_other_side() {
        let ours = Window::new(4096).unwrap();
        let theirs = Window::map(ours.share(true).unwrap().try_clone_to_owned().unwrap(), 4096).unwrap();
        for at in [64, 68] {
            let word = |half: u32| {
                let mut bytes = [0; 8];
                bytes[at as usize - 64..][..4].copy_from_slice(&half.to_ne_bytes());
                u64::from_ne_bytes(bytes)
            };
            theirs.word(64).unwrap().store(word(3), Ordering::SeqCst);
            assert!(ours.doze(at, 9, Duration::from_secs(60)).unwrap(), "it is something else already");
            assert!(!ours.doze(at, 3, Duration::from_millis(1)).unwrap(), "nobody woke it");
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| {
                    while ours.word(64).unwrap().load(Ordering::SeqCst) != word(4) {
                        ours.doze(at, 3, Duration::from_secs(60)).unwrap();
                    }
                });
                theirs.word(64).unwrap().store(word(4), Ordering::SeqCst);
                theirs.wake(at).unwrap();
                sleeper.join().unwrap();
            });
        }
        assert!(
            ours.doze(2, 0, Duration::ZERO).is_err() && ours.wake(4096).is_err() && ours.wake(u64::MAX - 3).is_err()
        );
    }

    /// Whoever may write a memory file may punch holes into it. Of hugetlbfs a hole is filled from
    /// a pool, and where that is empty the reader dies of SIGBUS; so no memory of ours is of it.
    #[test]
    fn a_peer_that_may_write_punches_holes_and_does_no_harm() {
        use rustix::fs::{FallocateFlags, fallocate, fstatfs, ftruncate};
        let (page, huge) = (4096, 4 << 20);
        let punch =
            |fd: BorrowedFd<'_>, len| fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len);
        for len in [page, huge] {
            let ours = Window::new(len).unwrap();
            ours.write(0, &vec![7; len]).unwrap();
            let fd = ours.share(true).unwrap();
            assert_eq!(fstatfs(fd).unwrap().f_type, TMPFS, "a hole of it is filled like any other page");
            let theirs = Window::map(fd.try_clone_to_owned().unwrap(), len as u64).unwrap();
            punch(fd, len as u64).unwrap();
            let mut out = vec![1; len];
            ours.read(0, &mut out).unwrap();
            assert!(out.iter().all(|byte| *byte == 0));
            theirs.write(8, b"again").unwrap();
            assert_eq!(ours.word(8).unwrap().load(Ordering::Relaxed).to_ne_bytes(), *b"again\0\0\0");
            assert!(ftruncate(fd, 0).is_err() && ftruncate(fd, 2 * len as u64).is_err(), "its size is sealed");
            // What peers may only read has no holes.
            let (readable, segment) = (Window::new(len).unwrap(), crate::Segment::shared(len).unwrap());
            for fd in [readable.share(false).unwrap(), segment.fd().unwrap()] {
                assert_eq!(fstatfs(fd).unwrap().f_type, TMPFS);
                assert!(punch(fd, len as u64).is_err());
            }
        }
    }

    const TMPFS: rustix::fs::FsWord = 0x0102_1994;

    #[test]
    fn the_first_sharing_decides_what_peers_may_do() {
        let ours = Window::new(4096).unwrap();
        ours.write(0, b"for reading").unwrap();
        let passed = ours.share(false).unwrap().try_clone_to_owned().unwrap();
        assert!(Window::map(passed.try_clone().unwrap(), 4096).is_err(), "no mapping of it can be written");
        let theirs = crate::Foreign::map(passed, 4096).unwrap();
        ours.write(4, b"us all!").unwrap();
        let mut out = [0; 11];
        theirs.read(0, &mut out).unwrap();
        assert_eq!(&out, b"for us all!", "the owner's mapping is older than the seal");
        assert!(matches!(ours.share(true), Err(MemoryError::Class("read"))));
        assert!(ours.share(false).is_ok(), "again as before");
        let other = Window::new(4096).unwrap();
        other.share(true).unwrap();
        assert!(matches!(other.share(false), Err(MemoryError::Class("write"))));
        let mapped = Window::map(other.share(true).unwrap().try_clone_to_owned().unwrap(), 4096).unwrap();
        assert!(mapped.share(true).is_err() && !mapped.is_ours());
    }
}
