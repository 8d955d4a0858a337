//! A bell that another thread rings, and waiting for several descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use overside_verbs::VerbsError;
use overside_verbs::watch::{failed, timespec};
use rustix::event::{EventfdFlags, PollFd, PollFlags};

/// An eventfd: readable from `ring` to `hush`.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<Self, VerbsError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        rustix::event::eventfd(0, flags).map(Self).map_err(|e| failed("eventfd", e))
    }

    pub(crate) fn ring(&self) {
        // Full means that it is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of them is readable or the time is over; for ever, when none is given.
pub(crate) fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    // Interrupted or refused: the caller looks again.
    let _ = rustix::event::poll(&mut polled, timeout.map(timespec).as_ref());
}
