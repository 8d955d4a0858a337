//! Who may come in (`verbs::acceptor`): whoever holds the key; without one this user's processes
//! (`verbs::owner`).

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use overside_verbs::acceptor::{Acceptor, BACKLOG, Door, Heard};
use overside_verbs::handshake::stream::{self, prepare};
use overside_verbs::handshake::{Handshake, Keys, NEEDS_KEY, Turn};
use overside_verbs::owner::Owners;
use overside_verbs::{Link, ProtectionDomain, SystemClock, VerbsError, random};
use rustix::net::SocketAddrAny;

use crate::address;
use crate::handshake::{Wire, link, system, terms};
use crate::provider::Shared;

/// Takes TCP connections.
#[derive(Debug)]
pub(crate) struct TcpDoor {
    shared: Arc<Shared>,
    domain: u64,
    /// Without a key, unless anyone may come.
    owners: Option<Owners>,
}

/// Connected, and not known yet.
#[derive(Debug)]
pub(crate) struct Guest {
    socket: OwnedFd,
    address: String,
    handshake: Handshake,
    keys: Option<Keys>,
}

/// Listens on a socket.
pub(crate) fn bind(
    shared: Arc<Shared>,
    domain: &ProtectionDomain,
    name: &str,
) -> Result<Acceptor<TcpDoor>, VerbsError> {
    let found = address::resolve(name)?;
    let refused = |reason: String| VerbsError::Address { address: format!("tcp:{name}"), reason };
    let open = |address: &SocketAddr| !address.ip().is_loopback();
    if shared.options.key.is_none() && found.iter().any(open) {
        return Err(refused(NEEDS_KEY.to_owned()));
    }
    let socket = TcpListener::bind(&found[..]).map_err(|e| {
        refused(match e.kind() {
            std::io::ErrorKind::AddrInUse => "somebody listens there already; choose another port".to_owned(),
            std::io::ErrorKind::AddrNotAvailable => "this host has no such address; choose one of its own".to_owned(),
            _ => e.to_string(),
        })
    })?;
    socket.set_nonblocking(true).map_err(|e| system("making the socket nonblocking", &e))?;
    // More may wait than `std` lets them.
    rustix::net::listen(&socket, BACKLOG).map_err(|e| refused(e.to_string()))?;
    let owners = shared.options.asks_owner().then(|| Owners::of(&socket)).transpose();
    let owners = owners.map_err(|error| refused(error.to_string()))?;
    Acceptor::new(TcpDoor { shared, domain: domain.id(), owners }, socket.into(), SystemClock::handle())
}

impl Door for TcpDoor {
    type Guest = Guest;

    fn check(&self) -> Result<(), VerbsError> {
        self.shared.check_fork()
    }

    /// Strangers are dropped before they say a word.
    fn admit(&mut self, socket: OwnedFd, from: Option<SocketAddrAny>) -> Result<Guest, String> {
        let address = from.and_then(|a| SocketAddr::try_from(a).ok()).map_or_else(String::new, |a| a.to_string());
        if let Some(owners) = &self.owners {
            owners.check_connector(&socket).map_err(|error| format!("{address}: {error}"))?;
        }
        let nonce = random().map_err(|error| error.to_string())?;
        prepare(&socket).map_err(|error| error.to_string())?;
        Ok(Guest { socket, address, handshake: Handshake::listen(&terms(&self.shared.options), nonce), keys: None })
    }

    fn hear(&mut self, guest: &mut Guest) -> Heard {
        if self.shared.connections() >= self.shared.options.connections_max {
            guest.handshake.decline();
        }
        match stream::turn(&mut guest.handshake, &guest.socket) {
            Turn::More if guest.handshake.has_greeted() => Heard::Greeted,
            Turn::More => Heard::Waits,
            Turn::Refused(why) => Heard::Refused(format!("{}: {why}", guest.address)),
            Turn::Known(keys) => {
                guest.keys = Some(keys);
                Heard::Known
            }
        }
    }

    fn link(&mut self, guest: Guest) -> Result<Link, String> {
        let Guest { socket, address, keys, .. } = guest;
        let keys = keys.filter(|_| self.shared.options.tags());
        Ok(link(address, Wire { socket, keys, domain: self.domain, provider: self.shared.id() }))
    }
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
