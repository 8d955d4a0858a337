//! Greeting: who is there, and does it speak this protocol.
//!
//! The connector greets, the listener answers; both have checked the other's user before a byte is
//! read. Control memories are passed later, when each side attaches the link to its port and knows
//! the sizes.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use overside_verbs::handshake::stream::Patience;
use overside_verbs::watch::failed;
use overside_verbs::{Instance, Link, ProtectionDomain, VerbsError};
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::address;
use crate::messages::{BYTES_MAX, Message, VERSION, greeting_version};
use crate::socket::{self, Arrival, Connected};
use crate::watch::vouched_peer;

/// A connection that has shaken hands, as it rests in a [`Link`].
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) socket: Connected,
    /// Whether this side connected.
    pub(crate) made: bool,
    /// Readable when the peer's process is gone.
    pub(crate) pidfd: OwnedFd,
}

/// Connects and greets.
pub(crate) fn connect(
    instance: &Instance,
    domain: &ProtectionDomain,
    name: &str,
    timeout: Duration,
) -> Result<Link, VerbsError> {
    instance.check()?;
    let target = address::resolve(name)?;
    let patience = Patience::new(timeout);
    let socket = Connected::new(socket::open().map_err(|e| failed("socket", e))?);
    loop {
        match rustix::net::connect(&socket, &target) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            // The listener's backlog is full; it will have room again.
            Err(Errno::AGAIN) => patience.pause(BACKLOG_PAUSE)?,
            Err(errno) => {
                let reason = format!("{errno} as far as this user's servers go");
                return Err(VerbsError::Unreachable { address: format!("shm:{name}"), reason });
            }
        }
    }
    let (peer, pidfd) = vouched_peer(&socket)?;
    greet(&socket)?;
    loop {
        patience.ready(&socket, PollFlags::IN)?;
        match heard(&socket) {
            Heard::Greeting => return Ok(instance.link(domain.id(), peer, Wire { socket, made: true, pidfd })),
            Heard::Nothing => {}
            Heard::Wrong(reason) => return Err(VerbsError::Handshake(reason)),
        }
    }
}

/// What a new connection said.
#[derive(Debug)]
pub(crate) enum Heard {
    Greeting,
    Nothing,
    Wrong(String),
}

/// Looks for a greeting, without waiting.
pub(crate) fn heard(socket: impl AsFd) -> Heard {
    let mut bytes = [0; BYTES_MAX + 1];
    match socket::receive(socket, &mut bytes) {
        Arrival::Nothing => Heard::Nothing,
        Arrival::End => Heard::Wrong("it hung up".to_owned()),
        Arrival::Malformed => Heard::Wrong("it does not speak this protocol".to_owned()),
        Arrival::NoDescriptor => Heard::Wrong(
            "this process has no descriptor left for what it passed; raise the limit (ulimit -n)".to_owned(),
        ),
        Arrival::Message(len, fd) => match (Message::decode(&bytes[..len]), greeting_version(&bytes[..len])) {
            (Some(Message::Hello), _) if fd.is_none() => Heard::Greeting,
            (_, Some(version)) if version != VERSION => Heard::Wrong(format!(
                "it speaks version {version} of the shared-memory protocol, this process version {VERSION}; \
                 use the same release on both sides"
            )),
            _ => Heard::Wrong("it does not speak this protocol".to_owned()),
        },
    }
}

/// Says who we are.
pub(crate) fn greet(socket: impl AsFd) -> Result<(), VerbsError> {
    let mut bytes = [0; BYTES_MAX];
    let len = Message::Hello.encode(&mut bytes);
    socket::send(socket, &bytes[..len], None)
        .map_err(|errno| VerbsError::Handshake(format!("it hung up before the greeting ({errno})")))
}

/// Between two tries of a listener that has no room for another connection.
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);
