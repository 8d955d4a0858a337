//! Waking a thread that waits by the server's clock.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use overside_verbs::VerbsError;
use rustix::event::EventfdFlags;

use super::durable::sync::AtomicBool;

/// A descriptor that a thread waits for, and whether it was signalled since that thread last looked.
#[derive(Debug)]
pub(crate) struct Wake {
    signalled: AtomicBool,
    fd: OwnedFd,
}

impl Wake {
    /// # Errors
    /// When the system has no descriptor for it.
    pub(crate) fn new() -> Result<Wake, VerbsError> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| VerbsError::System { what: "eventfd", reason: e.to_string() })?;
        Ok(Wake { signalled: AtomicBool::new(false), fd })
    }

    /// Ends the wait, or the next one. Only the first of several signals costs a system call.
    pub(crate) fn signal(&self) {
        if !self.signalled.swap(true, Ordering::SeqCst) {
            // A full counter is awake enough.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Forgets the signals so far; to be called before looking at what they may be for.
    pub(crate) fn look(&self) {
        self.signalled.swap(false, Ordering::SeqCst);
        // A signal that is under way may make the next wait short, and nothing else.
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8][..]);
    }

    /// Readable once it was signalled.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
