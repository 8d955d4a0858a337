//! A provider's side of TCP connections whose two ends say first who they are.

use core::net::SocketAddr;
use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketFlags, SocketType, ipproto, sockopt};

use super::stream::{self, Patience, prepare, shake};
use super::{Handshake, Keys, NEEDS_KEY, Terms, Turn};
use crate::acceptor::{Acceptor, BACKLOG, Door, Heard};
use crate::owner::Owners;
use crate::watch::failed;
use crate::{Instance, Link, Listener, Peer, ProtectionDomain, SystemClock, VerbsError, random};

/// What a provider asks of its peers, and how many of them it has.
#[derive(Debug)]
pub struct Party {
    instance: Arc<Instance>,
    terms: Terms,
    /// The kernel is asked whose a peer is.
    asks_owner: bool,
    open: AtomicUsize,
    connections_max: usize,
}

/// Makes a provider's half of a connection, of its socket and the keys of its tags, where it has
/// tags.
pub type Wiring<W> = fn(OwnedFd, Option<Keys>) -> W;

impl Party {
    /// Without a key it takes processes of this user only, unless `anyone` may come.
    pub fn new(instance: Arc<Instance>, terms: Terms, anyone: bool, connections_max: usize) -> Arc<Self> {
        let asks_owner = terms.key.is_none() && !anyone;
        Arc::new(Self { instance, terms, asks_owner, open: AtomicUsize::new(0), connections_max })
    }

    /// Whose side it is.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// A queue pair came.
    pub fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// So many queue pairs are over.
    pub fn ended(&self, count: usize) {
        self.open.fetch_sub(count, Ordering::Relaxed);
    }

    /// Listens at the first of `addresses` where that is possible; `name` is how they were written.
    ///
    /// # Errors
    /// [`VerbsError::Address`] when other hosts could reach it and there is no key, and when the
    /// system refuses.
    pub fn listen<W: Any + Send + fmt::Debug>(
        self: &Arc<Self>,
        domain: &ProtectionDomain,
        (name, addresses): (&str, &[SocketAddr]),
        wiring: Wiring<W>,
    ) -> Result<Box<dyn Listener>, VerbsError> {
        self.instance.check()?;
        let refused = |reason: String| VerbsError::Address { address: self.written(name), reason };
        if self.terms.key.is_none() && addresses.iter().any(|address| !address.ip().is_loopback()) {
            return Err(refused(NEEDS_KEY.to_owned()));
        }
        let mut bound = Err(refused("the host has no address".to_owned()));
        for address in addresses {
            bound = bind(address).map_err(|errno| {
                refused(match errno {
                    Errno::ADDRINUSE => "somebody listens there already; choose another port or stop it".to_owned(),
                    Errno::ADDRNOTAVAIL => "this host has no such address; choose one of its own".to_owned(),
                    other => other.to_string(),
                })
            });
            if bound.is_ok() {
                break;
            }
        }
        let socket = bound?;
        let owners = self.asks_owner.then(|| Owners::of(&socket)).transpose();
        let owners = owners.map_err(|error| refused(error.to_string()))?;
        let door = Entrance { party: self.clone(), domain: domain.id(), owners, wiring };
        Ok(Box::new(Acceptor::new(door, socket, SystemClock::handle())?))
    }

    /// Connects to the first of `addresses` that answers, and shakes hands.
    ///
    /// # Errors
    /// [`VerbsError::Unreachable`], [`VerbsError::Handshake`], [`VerbsError::TimedOut`].
    pub fn connect<W: Any + Send>(
        &self,
        domain: &ProtectionDomain,
        (name, addresses): (&str, &[SocketAddr]),
        timeout: Duration,
        wiring: Wiring<W>,
    ) -> Result<Link, VerbsError> {
        self.instance.check()?;
        let patience = Patience::new(timeout);
        let (socket, address) = self.reach(name, addresses, patience)?;
        prepare(&socket)?;
        let keys = shake(Handshake::connect(&self.terms, random()?), &socket, patience)?;
        if self.asks_owner {
            // By now a process has accepted, and answered.
            let checked = Owners::new().and_then(|owners| owners.check_listener(&socket));
            checked.map_err(|error| VerbsError::Handshake(format!("{address}: {error}")))?;
        }
        Ok(self.link(domain.id(), address.to_string(), wiring(socket, self.tags(keys))))
    }

    fn reach(
        &self,
        name: &str,
        addresses: &[SocketAddr],
        patience: Patience,
    ) -> Result<(OwnedFd, SocketAddr), VerbsError> {
        let mut reason = "the host has no address".to_owned();
        for address in addresses {
            let socket = socket(address).map_err(|errno| failed("socket", errno))?;
            let mut connected = rustix::net::connect(&socket, address);
            if matches!(connected, Err(Errno::INPROGRESS | Errno::INTR)) {
                patience.ready(&socket, PollFlags::OUT)?;
                connected = sockopt::socket_error(&socket).map_err(|errno| failed("SO_ERROR", errno))?;
            }
            match connected {
                Ok(()) => return Ok((socket, *address)),
                Err(Errno::TIMEDOUT) => return Err(patience.over()),
                Err(errno) => reason = errno.to_string(),
            }
        }
        Err(VerbsError::Unreachable { address: self.written(name), reason })
    }

    fn link(&self, domain: u64, description: String, wire: impl Any + Send) -> Link {
        self.instance.link(domain, Peer { pid: None, uid: None, description }, wire)
    }

    fn written(&self, name: &str) -> String {
        format!("{}:{name}", self.terms.protocol)
    }

    fn tags(&self, keys: Keys) -> Option<Keys> {
        self.terms.has_tags().then_some(keys)
    }
}

/// Takes TCP connections.
#[derive(Debug)]
struct Entrance<W> {
    party: Arc<Party>,
    domain: u64,
    /// Without a key, unless anyone may come.
    owners: Option<Owners>,
    wiring: Wiring<W>,
}

/// Connected, and not known yet.
#[derive(Debug)]
struct Guest {
    socket: OwnedFd,
    address: String,
    handshake: Handshake,
    keys: Option<Keys>,
}

impl<W: Any + Send + fmt::Debug> Door for Entrance<W> {
    type Guest = Guest;

    fn check(&self) -> Result<(), VerbsError> {
        self.party.instance.check()
    }

    /// Strangers are dropped before they say a word.
    fn admit(&mut self, socket: OwnedFd, from: Option<SocketAddrAny>) -> Result<Guest, String> {
        let address = from.and_then(|from| SocketAddr::try_from(from).ok()).map_or_else(String::new, |a| a.to_string());
        if let Some(owners) = &self.owners {
            owners.check_connector(&socket).map_err(|error| format!("{address}: {error}"))?;
        }
        let nonce = random().map_err(|error| error.to_string())?;
        prepare(&socket).map_err(|error| error.to_string())?;
        Ok(Guest { socket, address, handshake: Handshake::listen(&self.party.terms, nonce), keys: None })
    }

    fn hear(&mut self, guest: &mut Guest) -> Heard {
        if self.party.open.load(Ordering::Relaxed) >= self.party.connections_max {
            guest.handshake.decline();
        }
        match stream::turn(&mut guest.handshake, &guest.socket) {
            Turn::More if guest.handshake.has_greeted() => Heard::Greeted,
            Turn::More => Heard::Waits,
            Turn::Refused(why) | Turn::OtherKey(why) => Heard::Refused(format!("{}: {why}", guest.address)),
            Turn::Known(keys) => {
                guest.keys = self.party.tags(keys);
                Heard::Known
            }
        }
    }

    fn link(&mut self, guest: Guest) -> Result<Link, String> {
        let wire = (self.wiring)(guest.socket, guest.keys);
        Ok(self.party.link(self.domain, guest.address, wire))
    }
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bind(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = socket(address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Never blocks.
fn socket(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
}

/// Peers that connect and then misbehave.
#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::acceptor::Refused;
    use crate::handshake::Key;

    const DOMAIN: ProtectionDomain = ProtectionDomain::new(0);

    #[derive(Debug)]
    struct Wire {
        _socket: OwnedFd,
        keys: Option<Keys>,
    }

    fn wiring(socket: OwnedFd, keys: Option<Keys>) -> Wire {
        Wire { _socket: socket, keys }
    }

    fn party(key: Option<&[u8]>, connections_max: usize) -> Arc<Party> {
        let key = key.map(|key| Key::from_bytes(key).unwrap());
        let terms = Terms { protocol: "rdma", version: 1, key, tags: true };
        Party::new(Instance::new(None), terms, false, connections_max)
    }

    fn bind(party: &Arc<Party>, name: &str) -> Result<Box<dyn Listener>, VerbsError> {
        party.listen(&DOMAIN, (name, &[name.parse().unwrap()]), wiring)
    }

    fn connect(party: &Arc<Party>, name: &str) -> Result<Link, VerbsError> {
        party.connect(&DOMAIN, (name, &[name.parse().unwrap()]), PATIENCE, wiring)
    }

    /// A listener that a thread serves until this ends, and whom it has let in.
    struct Served {
        name: String,
        over: Arc<AtomicBool>,
        thread: Option<std::thread::JoinHandle<(Vec<Link>, Vec<Refused>)>>,
    }

    fn serve(party: &Arc<Party>) -> Served {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let name = format!("127.0.0.1:{port}");
        let mut acceptor = bind(party, &name).unwrap();
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
        let error = bind(&party(None, 9), "0.0.0.0:0").unwrap_err().to_string();
        assert!(error.contains("--key-file") && error.contains("rdma:0.0.0.0:0"), "{error}");
        bind(&party(KEY, 9), "0.0.0.0:0").unwrap();
        bind(&party(None, 9), "127.0.0.1:0").unwrap();
    }

    #[test]
    fn only_whoever_holds_the_key_comes_in() {
        let served = serve(&party(KEY, 9));
        let with = |key| connect(&party(key, 9), &served.name);
        let ours = with(KEY).unwrap();
        assert_eq!(ours.peer.description, served.name);
        let other = Some(&b"57aad11420a85d014b567557d391c37f26e12da4cad8c06d00ee8ed0f6bc7e01"[..]);
        for (key, said) in [(None, "asks for a key"), (other, "another one")] {
            let refused = with(key);
            assert!(matches!(&refused, Err(VerbsError::Key(why)) if why.contains(said)), "{refused:?}");
        }
        let (links, refused) = served.end();
        assert_eq!(links.len(), 1);
        assert_eq!(refused.iter().map(|refused| refused.connections).sum::<u64>(), 2, "{refused:?}");
    }

    /// It may have been killed in that moment.
    #[test]
    fn who_hangs_up_on_a_proof_has_not_said_that_the_key_is_another_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = listener.local_addr().unwrap().to_string();
        let ends = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut side = Handshake::listen(&party(KEY, 9).terms, [7; 32]);
            let bytes = side.room().len();
            socket.read_exact(side.room()).unwrap();
            assert!(matches!(side.heard(bytes), Turn::More));
            socket.write_all(side.unsent()).unwrap();
            socket.read_exact(&mut [0; 32]).unwrap();
        });
        let refused = connect(&party(KEY, 9), &name);
        assert!(matches!(&refused, Err(VerbsError::Handshake(why)) if why.contains("hung up")), "{refused:?}");
        ends.join().unwrap();
    }

    #[test]
    fn both_ends_tag_what_they_say_later() {
        let served = serve(&party(KEY, 9));
        let ours = connect(&party(KEY, 9), &served.name).unwrap();
        let (mut links, _) = served.end();
        let theirs = links.remove(0);
        let keys = |link: Link| link.inner.downcast::<Wire>().unwrap().keys.unwrap();
        let (ours, theirs) = (keys(ours), keys(theirs));
        assert_eq!((ours.out, ours.into), (theirs.into, theirs.out));
    }

    #[test]
    fn of_several_addresses_the_first_that_answers_serves() {
        let served = serve(&party(KEY, 9));
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let addresses = [nobody, served.name.parse().unwrap()];
        let ours = party(KEY, 9).connect(&DOMAIN, ("both", &addresses), PATIENCE, wiring).unwrap();
        assert_eq!(ours.peer.description, served.name);
        let error = told(party(KEY, 9).connect(&DOMAIN, ("one", &addresses[..1]), PATIENCE, wiring));
        assert!(error.contains("rdma:one"), "{error}");
        assert_eq!(served.end().0.len(), 1);
    }

    #[test]
    fn as_many_as_may_be_and_no_more() {
        let ours = party(KEY, 1);
        ours.opened();
        let served = serve(&ours);
        assert!(told(connect(&party(KEY, 9), &served.name)).contains("try again later"));
        ours.ended(1);
        connect(&party(KEY, 9), &served.name).unwrap();
    }

    /// Thousands that say nothing, one that speaks byte by byte, one that stops in the middle, one
    /// that says garbage.
    #[test]
    fn whoever_misbehaves_disturbs_nobody() {
        let served = serve(&party(KEY, 9));
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
                connect(&party(KEY, 9), &served.name).unwrap();
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
