//! Waiting for several descriptors.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use overside_verbs::watch::timespec;
use rustix::event::{PollFd, PollFlags};

/// Waits until one of them is readable or the time is over; for ever, when none is given.
pub(crate) fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    // Interrupted or refused: the caller looks again.
    let _ = rustix::event::poll(&mut polled, timeout.map(timespec).as_ref());
}
