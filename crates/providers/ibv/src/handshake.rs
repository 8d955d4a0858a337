//! Connecting the side channel and shaking hands (`verbs::handshake`).

use std::os::fd::OwnedFd;
use std::time::Duration;

use core::net::SocketAddr;
use overside_verbs::handshake::Handshake;
use overside_verbs::handshake::stream::{Patience, prepare, shake};
use overside_verbs::owner::Owners;
use overside_verbs::watch::failed;
use overside_verbs::{Link, Peer, ProtectionDomain, VerbsError, random};
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::address;
use crate::channel::{SideChannel, socket};
use crate::endpoint::Endpoint;

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

/// Connects and shakes hands.
pub(crate) fn connect(
    ours: &Endpoint,
    domain: &ProtectionDomain,
    name: &str,
    timeout: Duration,
) -> Result<Link, VerbsError> {
    let target = address::resolve(name)?;
    let patience = Patience::new(timeout);
    let socket = reach(&target, name, patience)?;
    prepare(&socket)?;
    let keys = shake(Handshake::connect(&ours.terms, random()?), &socket, patience)?;
    if ours.asks_owner {
        // By now a process has accepted, and answered.
        let checked = Owners::new().and_then(|owners| owners.check_listener(&socket));
        checked.map_err(|error| VerbsError::Handshake(format!("{target}: {error}")))?;
    }
    let channel = SideChannel::new(socket, ours.tags(keys));
    Ok(link(target, Wire { channel, domain: domain.id(), provider: ours.id }))
}

fn reach(target: &SocketAddr, name: &str, patience: Patience) -> Result<OwnedFd, VerbsError> {
    let socket = socket(target)?;
    let unreachable =
        |errno: Errno| VerbsError::Unreachable { address: format!("rdma:{name}"), reason: errno.to_string() };
    match rustix::net::connect(&socket, target) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            patience.ready(&socket, PollFlags::OUT)?;
            rustix::net::sockopt::socket_error(&socket).map_err(|e| failed("SO_ERROR", e))?.map_err(unreachable)?;
        }
        Err(errno) => return Err(unreachable(errno)),
    }
    Ok(socket)
}
