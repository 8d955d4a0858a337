//! Who may come in (`verbs::acceptor`): processes of this user that speak this protocol.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use overside_verbs::acceptor::{Acceptor, BACKLOG, Door, Heard};
use overside_verbs::watch::failed;
use overside_verbs::{Instance, Link, Listener, Peer, ProtectionDomain, SystemClock, VerbsError};
use rustix::io::Errno;
use rustix::net::SocketAddrAny;

use crate::address;
use crate::closing;
use crate::handshake::{self, Wire, greet, heard};
use crate::socket::{self, Connected};
use crate::watch::vouched_peer;

/// Takes connections to an abstract socket.
#[derive(Debug)]
struct ShmDoor {
    instance: Arc<Instance>,
    domain: u64,
}

/// Connected, of our user, and silent so far.
#[derive(Debug)]
struct Guest {
    socket: Connected,
    pidfd: OwnedFd,
    peer: Peer,
}

/// Listens on an abstract socket.
pub(crate) fn bind(
    instance: &Arc<Instance>,
    domain: &ProtectionDomain,
    name: &str,
) -> Result<Box<dyn Listener>, VerbsError> {
    instance.check()?;
    let bound = address::resolve(name)?;
    let socket = socket::open().map_err(|e| failed("socket", e))?;
    let refused = |errno: Errno| VerbsError::Address {
        address: format!("shm:{name}"),
        reason: match errno {
            Errno::ADDRINUSE => "somebody listens there already; choose another name or stop it".to_owned(),
            other => other.to_string(),
        },
    };
    rustix::net::bind(&socket, &bound).map_err(refused)?;
    rustix::net::listen(&socket, BACKLOG).map_err(refused)?;
    let door = ShmDoor { instance: instance.clone(), domain: domain.id() };
    Ok(Box::new(Acceptor::new(door, socket, SystemClock::handle())?))
}

impl Door for ShmDoor {
    type Guest = Guest;

    fn check(&self) -> Result<(), VerbsError> {
        self.instance.check()
    }

    /// Strangers are dropped before they say a word.
    fn admit(&mut self, socket: OwnedFd, _from: Option<SocketAddrAny>) -> Result<Guest, String> {
        // From here on: whoever it is may have passed what does not close.
        let socket = Connected::new(socket);
        if let Some(why) = closing::overwhelmed() {
            return Err(why);
        }
        let (peer, pidfd) = vouched_peer(&socket).map_err(|error| error.to_string())?;
        Ok(Guest { socket, pidfd, peer })
    }

    fn hear(&mut self, guest: &mut Guest) -> Heard {
        let heard = match heard(&guest.socket) {
            handshake::Heard::Nothing => return Heard::Waits,
            handshake::Heard::Wrong(why) => Heard::Refused(format!("{}: {why}", guest.peer.description)),
            handshake::Heard::Greeting => Heard::Known,
        };
        // An answer in our version also tells a newer or older peer what is the matter.
        match (greet(&guest.socket), heard) {
            (Err(error), Heard::Known) => Heard::Refused(error.to_string()),
            (_, heard) => heard,
        }
    }

    fn link(&mut self, guest: Guest) -> Result<Link, String> {
        let Guest { socket, pidfd, peer } = guest;
        Ok(self.instance.link(self.domain, peer, Wire { socket, made: false, pidfd }))
    }
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
