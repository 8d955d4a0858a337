//! What a sleeping port or listener waits for: sockets, and the deaths of processes.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overside_verbs::{Peer, VerbsError};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

/// An epoll descriptor.
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: OwnedFd,
}

/// What became readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) token: u64,
    pub(crate) writable: bool,
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

    /// Must be called before the descriptor is closed: a forked child may hold a copy of it, and then
    /// the system would go on reporting it.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// What is ready, into `out`, waiting at most `timeout` (not at all, when zero).
    pub(crate) fn wait(&self, out: &mut Vec<Ready>, timeout: Timespec) -> Result<(), VerbsError> {
        let mut events: [MaybeUninit<Event>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
        let ready = match epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(failed("epoll_wait", errno)),
        };
        out.extend(ready.iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            Ready { token: data.u64(), writable: flags.contains(EventFlags::OUT) }
        }));
        Ok(())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Whom the system says we are connected to, and the end of that process as a descriptor.
///
/// Refuses anybody but this user. The descriptor is opened by process id; should the process die and
/// its id be used again in between, the socket's end still tells.
pub(crate) fn vouched_peer(socket: impl AsFd) -> Result<(Peer, OwnedFd), VerbsError> {
    let credentials = rustix::net::sockopt::socket_peercred(&socket).map_err(|e| failed("SO_PEERCRED", e))?;
    let ours = rustix::process::getuid();
    if credentials.uid != ours {
        return Err(VerbsError::Handshake(format!(
            "it runs as user {}, this process as user {}; run both as the same user",
            credentials.uid.as_raw(),
            ours.as_raw()
        )));
    }
    let pid: Pid = credentials.pid;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| {
        VerbsError::Handshake(format!("its process {} cannot be watched: {errno}", pid.as_raw_pid()))
    })?;
    let peer = Peer {
        pid: u32::try_from(pid.as_raw_pid()).ok(),
        uid: Some(credentials.uid.as_raw()),
        description: format!("process {}", pid.as_raw_pid()),
    };
    Ok((peer, pidfd))
}

pub(crate) fn failed(what: &'static str, errno: Errno) -> VerbsError {
    VerbsError::System { what, reason: errno.to_string() }
}

/// No waiting.
pub(crate) const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Events taken at once.
const BATCH: usize = 64;
