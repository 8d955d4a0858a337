//! What a sleeping port or listener waits for.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use overside_verbs::VerbsError;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::objects::failed;

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

    /// Must be called before the descriptor is closed: a forked child may hold a copy of it, and then the system would
    /// go on reporting it.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Tokens of what is ready, into `out`, waiting at most `timeout` (not at all, when zero).
    pub(crate) fn wait(&self, out: &mut Vec<u64>, timeout: Duration) -> Result<(), VerbsError> {
        let mut events: [MaybeUninit<Event>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
        match epoll::wait(&self.epoll, &mut events[..], Some(&timespec(timeout))) {
            Ok((ready, _)) => out.extend(ready.iter().map(|event| {
                let data = event.data;
                data.u64()
            })),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("epoll_wait", errno)),
        }
        Ok(())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Events taken at once.
const BATCH: usize = 64;
