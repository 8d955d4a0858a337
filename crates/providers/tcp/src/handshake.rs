//! Connecting and shaking hands (`verbs::handshake`).

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use overside_verbs::handshake::stream::{self, Patience, prepare};
use overside_verbs::handshake::{Handshake, Keys, Terms};
use overside_verbs::owner::Owners;
use overside_verbs::{Link, Peer, ProtectionDomain, VerbsError, random};

use crate::address;
use crate::options::Options;

/// A connection that has shaken hands, as it rests in a [`Link`].
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) socket: OwnedFd,
    pub(crate) keys: Option<Keys>,
    pub(crate) domain: u64,
    /// Which provider made it.
    pub(crate) provider: u64,
}

/// What these options ask of a peer.
pub(crate) fn terms(options: &Options) -> Terms {
    Terms { protocol: "tcp", version: VERSION, key: options.key.clone(), tags: options.mac }
}

/// Connects and shakes hands.
pub(crate) fn connect(
    provider: u64,
    options: &Options,
    domain: &ProtectionDomain,
    name: &str,
    timeout: Duration,
) -> Result<Link, VerbsError> {
    let patience = Patience::new(timeout);
    let stream = reach(name, patience)?;
    let address = stream.peer_addr().map_or_else(|_| name.to_owned(), |address| address.to_string());
    stream.set_nonblocking(true).map_err(|e| system("making the socket nonblocking", &e))?;
    let socket = OwnedFd::from(stream);
    prepare(&socket)?;
    let keys = stream::shake(Handshake::connect(&terms(options), random()?), &socket, patience)?;
    if options.asks_owner() {
        // By now a process has accepted, and answered.
        let checked = Owners::new().and_then(|owners| owners.check_listener(&socket));
        checked.map_err(|error| VerbsError::Handshake(format!("{address}: {error}")))?;
    }
    Ok(link(address, Wire { socket, keys: options.tags().then_some(keys), domain: domain.id(), provider }))
}

/// The first of the host's addresses that answers.
fn reach(name: &str, patience: Patience) -> Result<TcpStream, VerbsError> {
    let mut reason = String::new();
    for address in address::resolve(name)? {
        match TcpStream::connect_timeout(&address, patience.left()?) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Err(patience.over()),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(VerbsError::Unreachable { address: format!("tcp:{name}"), reason })
}

pub(crate) fn link(address: String, wire: Wire) -> Link {
    Link::new(Peer { pid: None, uid: None, description: address }, wire)
}

pub(crate) fn system(what: &'static str, error: &std::io::Error) -> VerbsError {
    VerbsError::System { what, reason: error.to_string() }
}

/// Version of everything that travels on a connection.
const VERSION: u32 = 4;
