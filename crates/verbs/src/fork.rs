//! Knowing that one is a forked child, without a system call.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::VerbsError;

/// A page that `fork` wipes in the child (`MADV_WIPEONFORK`): one load tells which side we are.
#[derive(Debug)]
pub struct ForkMark {
    page: NonNull<AtomicU64>,
}

// SAFETY: [verbs-fork-mark] only an atomic is reached through the pointer.
unsafe impl Send for ForkMark {}
// SAFETY: [verbs-fork-mark] as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Marks this process as the owner.
    ///
    /// # Errors
    /// When the system has no page left.
    pub fn new() -> Result<Self, VerbsError> {
        let failed = |errno: rustix::io::Errno| VerbsError::System {
            what: "making the page that a fork wipes",
            reason: errno.to_string(),
        };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: [verbs-fork-mark] a new mapping at an address of the system's choice.
        let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, prot, MapFlags::PRIVATE) }
            .map_err(failed)?;
        let page = NonNull::new(page.cast()).ok_or(failed(rustix::io::Errno::NOMEM))?;
        let mark = Self { page };
        // SAFETY: [verbs-fork-mark] advice on our own page.
        unsafe { rustix::mm::madvise(page.as_ptr().cast(), PAGE_BYTES, Advice::LinuxWipeOnFork) }.map_err(failed)?;
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    /// Whether this process is a child that inherited the mark.
    #[inline]
    pub fn inherited(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    /// `Err(Forked)` in a child.
    ///
    /// # Errors
    /// [`VerbsError::Forked`].
    #[inline]
    pub fn check(&self) -> Result<(), VerbsError> {
        if self.inherited() { Err(VerbsError::Forked) } else { Ok(()) }
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: [verbs-fork-mark] mapped from `new` to `drop`.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: [verbs-fork-mark] the last user is gone; an error would only leave the page mapped.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE_BYTES) };
    }
}

const PAGE_BYTES: usize = 4096;
