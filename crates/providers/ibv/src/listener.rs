//! Who may come in (`verbs::acceptor`): whoever holds the key; without one this user's processes
//! (`verbs::owner`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use core::net::SocketAddr;
use overside_verbs::acceptor::{Acceptor, BACKLOG, Door, Heard};
use overside_verbs::handshake::stream::{self, prepare};
use overside_verbs::handshake::{Handshake, Keys, NEEDS_KEY, Turn};
use overside_verbs::owner::Owners;
use overside_verbs::{Link, ProtectionDomain, SystemClock, VerbsError, random};
use rustix::io::Errno;
use rustix::net::SocketAddrAny;

use crate::address;
use crate::channel::{SideChannel, socket};
use crate::endpoint::Endpoint;
use crate::handshake::{Wire, link};

/// Takes side channels.
#[derive(Debug)]
pub(crate) struct IbvDoor {
    ours: Arc<Endpoint>,
    domain: u64,
    /// Without a key, unless anyone may come.
    owners: Option<Owners>,
}

/// Connected, and not known yet.
#[derive(Debug)]
pub(crate) struct Guest {
    socket: OwnedFd,
    address: SocketAddr,
    handshake: Handshake,
    keys: Option<Keys>,
}

/// Listens at a TCP address.
pub(crate) fn bind(
    ours: Arc<Endpoint>,
    domain: &ProtectionDomain,
    name: &str,
) -> Result<Acceptor<IbvDoor>, VerbsError> {
    let bound = address::resolve(name)?;
    let refused = |reason: String| VerbsError::Address { address: format!("rdma:{name}"), reason };
    if ours.terms.key.is_none() && !bound.ip().is_loopback() {
        return Err(refused(NEEDS_KEY.to_owned()));
    }
    let socket = socket(&bound)?;
    let said = |errno: Errno| {
        refused(match errno {
            Errno::ADDRINUSE => "somebody listens there already; choose another port or stop it".to_owned(),
            other => other.to_string(),
        })
    };
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).map_err(said)?;
    rustix::net::bind(&socket, &bound).map_err(said)?;
    rustix::net::listen(&socket, BACKLOG).map_err(said)?;
    let owners = ours.asks_owner.then(|| Owners::of(&socket)).transpose();
    let owners = owners.map_err(|error| refused(error.to_string()))?;
    Acceptor::new(IbvDoor { ours, domain: domain.id(), owners }, socket, SystemClock::handle())
}

impl Door for IbvDoor {
    type Guest = Guest;

    fn check(&self) -> Result<(), VerbsError> {
        self.ours.fork.check()
    }

    /// Strangers are dropped before they say a word.
    fn admit(&mut self, socket: OwnedFd, from: Option<SocketAddrAny>) -> Result<Guest, String> {
        let address = from.and_then(|from| SocketAddr::try_from(from).ok()).ok_or("it has no address")?;
        if let Some(owners) = &self.owners {
            owners.check_connector(&socket).map_err(|error| format!("{address}: {error}"))?;
        }
        let nonce = random().map_err(|error| error.to_string())?;
        prepare(&socket).map_err(|error| error.to_string())?;
        Ok(Guest { socket, address, handshake: Handshake::listen(&self.ours.terms, nonce), keys: None })
    }

    fn hear(&mut self, guest: &mut Guest) -> Heard {
        if self.ours.full() {
            guest.handshake.decline();
        }
        match stream::turn(&mut guest.handshake, &guest.socket) {
            Turn::More if guest.handshake.has_greeted() => Heard::Greeted,
            Turn::More => Heard::Waits,
            Turn::Refused(why) => Heard::Refused(format!("{}: {why}", guest.address)),
            Turn::Known(keys) => {
                guest.keys = self.ours.tags(keys);
                Heard::Known
            }
        }
    }

    fn link(&mut self, guest: Guest) -> Result<Link, String> {
        let Guest { socket, address, keys, .. } = guest;
        let channel = SideChannel::new(socket, keys);
        Ok(link(address, Wire { channel, domain: self.domain, provider: self.ours.id }))
    }
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Peers that connect and then misbehave, as far as that needs no device.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::connect;
    use crate::provider::Options;
    use overside_verbs::Listener;
    use overside_verbs::acceptor::Refused;
    use overside_verbs::handshake::Key;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    const DOMAIN: ProtectionDomain = ProtectionDomain::new(0);

    fn endpoint(key: Option<&[u8]>, connections_max: usize) -> Arc<Endpoint> {
        let key = key.map(|key| Key::from_bytes(key).unwrap());
        Arc::new(Endpoint::new(1, &Options { key, connections_max, ..Options::default() }).unwrap())
    }

    /// A listener that a thread serves until this ends, and whom it has let in.
    struct Served {
        name: String,
        over: Arc<AtomicBool>,
        thread: Option<std::thread::JoinHandle<(Vec<Link>, Vec<Refused>)>>,
    }

    fn serve(ours: Arc<Endpoint>) -> Served {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let name = format!("127.0.0.1:{port}");
        let mut acceptor = bind(ours, &DOMAIN, &name).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let over = over.clone();
            move || {
                let (mut links, mut refused) = (Vec::new(), Vec::new());
                while !over.load(Ordering::Relaxed) {
                    links.extend(acceptor.accept(Duration::from_millis(5)).unwrap());
                    refused.extend(acceptor.refused());
                }
                (links, refused)
            }
        });
        Served { name, over, thread: Some(thread) }
    }

    impl Served {
        /// Who was let in, and who was not.
        fn end(mut self) -> (Vec<Link>, Vec<Refused>) {
            self.over.store(true, Ordering::Relaxed);
            self.thread.take().unwrap().join().unwrap()
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            self.over.store(true, Ordering::Relaxed);
        }
    }

    fn told(result: Result<Link, VerbsError>) -> String {
        result.err().map_or_else(|| "connected".to_owned(), |error| error.to_string())
    }

    const PATIENCE: Duration = Duration::from_secs(60);
    const KEY: Option<&[u8]> = Some(b"119fce30161ed0c74f1cba86b353bb0579c9106270eb5a65c72e2976ca18f87c");

    #[test]
    fn other_hosts_are_listened_for_with_a_key_and_not_without() {
        let error = bind(endpoint(None, 9), &DOMAIN, "0.0.0.0:0").unwrap_err().to_string();
        assert!(error.contains("--key-file") && error.contains("rdma:0.0.0.0:0"), "{error}");
        bind(endpoint(KEY, 9), &DOMAIN, "0.0.0.0:0").unwrap();
        bind(endpoint(None, 9), &DOMAIN, "127.0.0.1:0").unwrap();
    }

    #[test]
    fn only_whoever_holds_the_key_comes_in() {
        let served = serve(endpoint(KEY, 9));
        let with = |key| connect(&endpoint(key, 9), &DOMAIN, &served.name, PATIENCE);
        let ours = with(KEY).unwrap();
        assert_eq!(ours.peer.description, served.name);
        assert!(told(with(None)).contains("asks for a key"));
        assert!(
            told(with(Some(b"57aad11420a85d014b567557d391c37f26e12da4cad8c06d00ee8ed0f6bc7e01")))
                .contains("another one")
        );
        let (links, refused) = served.end();
        assert_eq!(links.len(), 1);
        assert_eq!(refused.iter().map(|refused| refused.connections).sum::<u64>(), 2, "{refused:?}");
    }

    #[test]
    fn both_ends_tag_what_they_say_later() {
        let served = serve(endpoint(KEY, 9));
        let ours = connect(&endpoint(KEY, 9), &DOMAIN, &served.name, PATIENCE).unwrap();
        let (mut links, _) = served.end();
        let mut ours: Wire = ours.into_inner().unwrap();
        let mut theirs: Wire = links.remove(0).into_inner().unwrap();
        for (from, to) in [(0, 1), (1, 0)] {
            let ends = [&mut ours, &mut theirs];
            ends[from].channel.send(&crate::messages::Message::Ready);
            let end = Instant::now() + PATIENCE;
            while ends[to].channel.receive() != crate::channel::Incoming::Message(crate::messages::Message::Ready) {
                assert!(Instant::now() < end, "from {from}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn as_many_as_may_be_and_no_more() {
        let ours = endpoint(KEY, 1);
        ours.opened();
        let served = serve(ours.clone());
        assert!(told(connect(&endpoint(KEY, 9), &DOMAIN, &served.name, PATIENCE)).contains("try again later"));
        ours.ended();
        connect(&endpoint(KEY, 9), &DOMAIN, &served.name, PATIENCE).unwrap();
    }

    /// Thousands that say nothing, one that speaks byte by byte, one that stops in the middle, one that says garbage.
    #[test]
    fn whoever_misbehaves_disturbs_nobody() {
        let served = serve(endpoint(KEY, 9));
        let reach = || TcpStream::connect(&served.name).unwrap();
        let mut garbage = reach();
        garbage.write_all(&[0xff; 4096]).unwrap();
        let mut stops = reach();
        stops.write_all(b"overside").unwrap();
        let mut slow = reach();
        let mut silent = std::collections::VecDeque::new();
        for round in 0..2000 {
            silent.push_back(reach());
            // As many as a process may have, with room for the listener's own.
            if silent.len() > 200 {
                silent.pop_front();
            }
            if round % 400 == 0 {
                let _ = slow.write_all(b"o");
                connect(&endpoint(KEY, 9), &DOMAIN, &served.name, PATIENCE).unwrap();
            }
        }
        // Hung up on, each of them, and no answer but a greeting.
        for mut peer in [garbage, stops, slow] {
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut answer = Vec::new();
            let _ = peer.read_to_end(&mut answer);
            assert!(answer.len() <= 64, "{} bytes", answer.len());
        }
        let (links, refused) = served.end();
        assert_eq!(links.len(), 5);
        assert!(refused.iter().map(|refused| refused.connections).sum::<u64>() > 3, "{refused:?}");
    }
}
