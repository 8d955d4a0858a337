//! What a sleeping port or listener waits for.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use overside_verbs::VerbsError;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// An epoll descriptor.
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: OwnedFd,
}

impl Watch {
    pub(crate) fn new() -> Result<Self, VerbsError> {
        epoll::create(CreateFlags::CLOEXEC).map(|epoll| Self { epoll }).map_err(|e| failed("epoll_create", e))
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: u64) -> Result<(), VerbsError> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN).map_err(|e| failed("epoll_ctl", e))
    }

    /// Also tells when there is room to write, or no longer.
    pub(crate) fn want_room(&self, fd: impl AsFd, token: u64, wanted: bool) {
        let flags = if wanted { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(token), flags);
    }

    /// Must be called before the descriptor is closed: a forked child may hold a copy of it.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Tokens of what is ready, into `out`, waiting at most `timeout`.
    pub(crate) fn wait(&self, out: &mut Vec<u64>, timeout: Duration) -> Result<(), VerbsError> {
        let mut events: [MaybeUninit<Event>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
        let ready = match epoll::wait(&self.epoll, &mut events[..], Some(&timespec(timeout))) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(failed("epoll_wait", errno)),
        };
        out.extend(ready.iter().map(|event| {
            let data = event.data;
            data.u64()
        }));
        Ok(())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

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

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

pub(crate) fn failed(what: &'static str, errno: Errno) -> VerbsError {
    VerbsError::System { what, reason: errno.to_string() }
}

/// Events taken at once.
const BATCH: usize = 64;
