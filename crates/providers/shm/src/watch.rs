//! What wakes a port or listener: sockets, and the deaths of processes.

use std::os::fd::{AsFd, OwnedFd};

use overside_verbs::watch::failed;
use overside_verbs::{Peer, VerbsError};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

/// What a watched descriptor is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) token: u64,
    pub(crate) writable: bool,
}

/// Whom the system says we are connected to, and the end of that process as a descriptor.
///
/// Refuses anybody but this user. The descriptor is opened by process id; should the process die
/// and its id be used again in between, the socket's end still tells.
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
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        // Before Linux 5.3, and under valgrind: the socket's end alone tells, and this descriptor never does.
        Err(Errno::NOSYS) => eventfd(0, EventfdFlags::CLOEXEC),
        opened => opened,
    };
    let pidfd = pidfd.map_err(|errno| {
        VerbsError::Handshake(format!("its process {} cannot be watched: {errno}", pid.as_raw_pid()))
    })?;
    let peer = Peer {
        pid: u32::try_from(pid.as_raw_pid()).ok(),
        uid: Some(credentials.uid.as_raw()),
        description: format!("process {}", pid.as_raw_pid()),
    };
    Ok((peer, pidfd))
}
