//! Memory that a peer may write at any moment.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    /// A window of our own. What peers may do with it is decided when it is first [shared](Self::share). `len` is rounded up to
    /// pages.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`] when the memory is not there.
    pub fn new(len: usize) -> Result<Self, MemoryError> {
        let len = sys::rounded(len)?;
        let fd = sys::memfd("overside-window", len)?;
        Ok(Self { mapped: Racing::own(&fd, len, true)?, fd: Some(fd) })
    }

    /// A peer's window, verified and mapped here.
    ///
    /// # Errors
    /// [`MemoryError::Untrusted`] when the descriptor is not what the peer says.
    pub fn map(fd: OwnedFd, len: u64) -> Result<Self, MemoryError> {
        Ok(Self { mapped: Racing::passed(fd, len, true, "the window's size is absurd")?, fd: None })
    }

    /// Whether it was made here; a peer's is its owner's to share.
    pub fn is_ours(&self) -> bool {
        self.fd.is_some()
    }

    /// The descriptor to pass to peers, sealed for good: to `write` or only to read. One memory is of one class, since a
    /// descriptor of either is as good as any other to whoever holds it: what some peer may write cannot be kept from
    /// the rest, and after the seal nobody maps it for writing again.
    ///
    /// # Errors
    /// [`MemoryError::Class`] when it was shared the other way before, [`MemoryError::Untrusted`] for a peer's window.
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

    /// The aligned half word at offset `at`: what the system can put a waiter to sleep on.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when it is misaligned or outside.
    pub fn half(&self, at: u64) -> Result<&AtomicU32, MemoryError> {
        self.mapped.half(at)
    }

    /// The aligned word at offset `at`: for loads, stores and atomics of either side.
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
        ours.half(72).unwrap().store(9, Ordering::Release);
        assert_eq!(theirs.half(72).unwrap().load(Ordering::Acquire), 9);
        assert!(ours.half(2).is_err() && ours.half(4096).is_err());
        assert!(theirs.write(4090, &[0; 7]).is_err());
    }

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
