//! Connecting the side channel, and the greeting.
//!
//! Nobody proves anything here yet, so both ends must be on this host: a listener at another address than a loopback one is
//! refused, and so is a peer that comes from elsewhere.

use std::time::{Duration, Instant};

use core::net::SocketAddr;
use overside_verbs::watch::{failed, timespec};
use overside_verbs::{Link, Peer, ProtectionDomain, VerbsError};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::address;
use crate::channel::{Incoming, SideChannel, socket};
use crate::messages::{Message, VERSION};

/// A connection that has shaken hands, as it rests in a [`Link`].
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) channel: SideChannel,
    pub(crate) domain: u64,
    /// Which provider made it.
    pub(crate) provider: u64,
}

pub(crate) fn link(address: SocketAddr, wire: Wire) -> Link {
    Link::new(Peer { pid: None, uid: None, description: address.to_string() }, wire)
}

/// Connects and greets.
pub(crate) fn connect(
    provider: u64,
    domain: &ProtectionDomain,
    name: &str,
    timeout: Duration,
) -> Result<Link, VerbsError> {
    let target = address::resolve(name)?;
    let deadline = Deadline { end: Instant::now() + timeout, timeout };
    let socket = socket(&target)?;
    let unreachable =
        |errno: Errno| VerbsError::Unreachable { address: format!("rdma:{name}"), reason: errno.to_string() };
    match rustix::net::connect(&socket, &target) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            deadline.ready(&socket, PollFlags::OUT)?;
            rustix::net::sockopt::socket_error(&socket).map_err(|e| failed("SO_ERROR", e))?.map_err(unreachable)?;
        }
        Err(errno) => return Err(unreachable(errno)),
    }
    let mut channel = SideChannel::new(socket)?;
    channel.send(&Message::Hello { version: VERSION });
    loop {
        match greeted(channel.receive()) {
            Greeting::Heard => return Ok(link(target, Wire { channel, domain: domain.id(), provider })),
            Greeting::Nothing => deadline.ready(&channel, PollFlags::IN)?,
            Greeting::Wrong(reason) => return Err(VerbsError::Handshake(reason)),
        }
    }
}

/// What a new connection said first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Heard,
    Nothing,
    Wrong(String),
}

pub(crate) fn greeted(incoming: Incoming) -> Greeting {
    match incoming {
        Incoming::Nothing => Greeting::Nothing,
        Incoming::Message(Message::Hello { version: VERSION }) => Greeting::Heard,
        Incoming::Message(Message::Hello { version }) => Greeting::Wrong(format!(
            "it speaks version {version} of the rdma side channel, this process version {VERSION}; use the same release \
             on both sides"
        )),
        Incoming::End => Greeting::Wrong("it hung up".to_owned()),
        Incoming::Message(_) | Incoming::Malformed => Greeting::Wrong("it does not speak this protocol".to_owned()),
    }
}

struct Deadline {
    end: Instant,
    timeout: Duration,
}

impl Deadline {
    fn ready(&self, fd: impl std::os::fd::AsFd, flags: PollFlags) -> Result<(), VerbsError> {
        loop {
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(VerbsError::TimedOut(self.timeout));
            }
            match rustix::event::poll(&mut [PollFd::new(&fd, flags)], Some(&timespec(left))) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(failed("poll", errno)),
            }
        }
    }
}
