//! What a sleeping port or listener of any provider waits for.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::VerbsError;

/// An epoll descriptor.
#[derive(Debug)]
pub struct Watch {
    epoll: OwnedFd,
}

impl Watch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> Result<Self, VerbsError> {
        epoll::create(CreateFlags::CLOEXEC).map(|epoll| Self { epoll }).map_err(|e| failed("epoll_create", e))
    }

    /// Tells `token` when `fd` is readable.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<(), VerbsError> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN).map_err(|e| failed("epoll_ctl", e))
    }

    /// Also tells when there is room to write, or no longer.
    pub fn want_room(&self, fd: impl AsFd, token: u64, wanted: bool) {
        let flags = if wanted { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(token), flags);
    }

    /// Must be called before the descriptor is closed: a forked child may hold a copy of it, and
    /// then the system would go on reporting it.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Gives `ready` the token of what is ready and whether it can be written, waiting at most
    /// `timeout` (not at all, when zero).
    ///
    /// # Errors
    /// When the system refuses.
    pub fn wait(&self, timeout: Duration, mut ready: impl FnMut(u64, bool)) -> Result<(), VerbsError> {
        let mut events: [MaybeUninit<Event>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
        let found = match epoll::wait(&self.epoll, &mut events[..], Some(&timespec(timeout))) {
            Ok((found, _)) => found,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(failed("epoll_wait", errno)),
        };
        for event in found {
            let (flags, data) = (event.flags, event.data);
            ready(data.u64(), flags.contains(EventFlags::OUT));
        }
        Ok(())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// An eventfd: readable from `notify` to `drain`.
#[derive(Debug)]
pub struct Signal {
    eventfd: OwnedFd,
}

impl Signal {
    /// Not readable yet.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> Result<Self, VerbsError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        rustix::event::eventfd(0, flags).map(|eventfd| Self { eventfd }).map_err(|e| failed("eventfd", e))
    }

    /// Makes it readable.
    pub fn notify(&self) {
        // A full counter is readable already.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.eventfd, &mut [0u8; 8]);
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// Sleeps until `fd` or `other` is readable, or `timeout` has passed.
///
/// # Errors
/// When the system refuses.
pub fn sleep_on(
    fd: BorrowedFd<'_>,
    other: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> Result<(), VerbsError> {
    let timeout = timeout.map(timespec);
    let mut fds = [fd, other.unwrap_or(fd)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let watched = if other.is_some() { &mut fds[..] } else { &mut fds[..1] };
    match rustix::event::poll(watched, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(failed("waiting for a completion", errno)),
    }
}

/// A duration in the system's words; one too long for them is as long as they can say.
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// A system call failed.
pub fn failed(what: &'static str, errno: Errno) -> VerbsError {
    VerbsError::System { what, reason: errno.to_string() }
}

/// Events taken at once.
const BATCH: usize = 64;
