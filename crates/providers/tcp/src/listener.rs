//! Accepting connections, many half-open ones side by side, each with a deadline.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::watch::{Watch, failed};
use overside_verbs::{Link, Listener, ProtectionDomain, VerbsError};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

use crate::address;
use crate::handshake::{Exchange, HELLO_BYTES, Hello, NO, PROOF_BYTES, Role, Wire, link, prepare, system};
use crate::provider::Shared;
use crate::registry::random;

/// Listens on a socket.
#[derive(Debug)]
pub(crate) struct TcpGate {
    shared: Arc<Shared>,
    domain: u64,
    socket: TcpListener,
    watch: Watch,
    half_open: VecDeque<HalfOpen>,
    done: VecDeque<Link>,
    next_token: u64,
}

/// Connected, and not known yet.
#[derive(Debug)]
struct HalfOpen {
    token: u64,
    socket: OwnedFd,
    address: String,
    deadline: Instant,
    bytes: [u8; HELLO_BYTES],
    got: usize,
    /// Both greetings were said; what is missing is the connector's proof.
    exchange: Option<Exchange>,
}

/// What came of hearing a half-open connection.
enum Heard {
    Waits,
    Dropped,
    Done,
}

impl TcpGate {
    pub(crate) fn bind(shared: Arc<Shared>, domain: &ProtectionDomain, name: &str) -> Result<Self, VerbsError> {
        let found = address::resolve(name)?;
        let refused = |reason: String| VerbsError::Address { address: format!("tcp:{name}"), reason };
        let open = |address: &SocketAddr| !address.ip().is_loopback();
        if shared.options.key.is_none() && found.iter().any(open) {
            return Err(refused(
                "other hosts can reach it, so it needs a key: give --key-file, or listen on 127.0.0.1".to_owned(),
            ));
        }
        let socket = TcpListener::bind(&found[..]).map_err(|e| {
            refused(match e.kind() {
                std::io::ErrorKind::AddrInUse => "somebody listens there already; choose another port".to_owned(),
                _ => e.to_string(),
            })
        })?;
        socket.set_nonblocking(true).map_err(|e| system("making the socket nonblocking", &e))?;
        let watch = Watch::new()?;
        watch.add(&socket, LISTENING)?;
        Ok(Self {
            shared,
            domain: domain.id(),
            socket,
            watch,
            half_open: VecDeque::new(),
            done: VecDeque::new(),
            next_token: LISTENING + 1,
        })
    }

    /// Takes what is ready, without waiting.
    fn progress(&mut self, ready: &[u64]) -> Result<(), VerbsError> {
        for token in ready {
            if *token == LISTENING {
                self.admit()?;
            } else if let Some(at) = self.half_open.iter().position(|h| h.token == *token) {
                match self.hear(at) {
                    Heard::Waits => {}
                    Heard::Dropped => drop(self.take(at)),
                    Heard::Done => self.finish(at),
                }
            }
        }
        let now = Instant::now();
        while self.half_open.front().is_some_and(|oldest| oldest.deadline <= now) {
            self.take(0);
        }
        Ok(())
    }

    fn admit(&mut self) -> Result<(), VerbsError> {
        for _ in 0..ADMIT_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (socket, from) = match rustix::net::acceptfrom_with(&self.socket, flags) {
                Ok(accepted) => accepted,
                Err(Errno::AGAIN) => return Ok(()),
                // No descriptor left: whoever has waited longest makes room; if nobody, what ends elsewhere does.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    if self.take(0).is_none() {
                        std::thread::sleep(NO_DESCRIPTOR_PAUSE);
                    }
                    return Ok(());
                }
                // Of the one connection that ended before it was taken, not of the socket.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::NETDOWN | Errno::HOSTUNREACH) => continue,
                Err(errno) => return Err(failed("accept", errno)),
            };
            if self.half_open.len() == HALF_OPEN_MAX {
                self.take(0);
            }
            let address = from.and_then(|a| SocketAddr::try_from(a).ok()).map_or_else(String::new, |a| a.to_string());
            let token = self.next_token;
            self.next_token += 1;
            self.watch.add(&socket, token)?;
            self.half_open.push_back(HalfOpen {
                token,
                socket,
                address,
                deadline: Instant::now() + HANDSHAKE_DEADLINE,
                bytes: [0; HELLO_BYTES],
                got: 0,
                exchange: None,
            });
        }
        Ok(())
    }

    fn hear(&mut self, at: usize) -> Heard {
        let full = self.shared.connections() >= self.shared.options.connections_max;
        let half = &mut self.half_open[at];
        let wanted = if half.exchange.is_some() { PROOF_BYTES } else { HELLO_BYTES };
        match rustix::net::recv(&half.socket, &mut half.bytes[half.got..wanted], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Heard::Dropped,
            Ok((_, more)) => half.got += more,
            Err(Errno::AGAIN | Errno::INTR) => return Heard::Waits,
            Err(_) => return Heard::Dropped,
        }
        if half.got < wanted {
            return Heard::Waits;
        }
        half.got = 0;
        if let Some(exchange) = &half.exchange {
            let taken = exchange.holds(Role::Connector, &half.bytes[..PROOF_BYTES])
                && say(&half.socket, &exchange.proof(Role::Welcome));
            return if taken { Heard::Done } else { Heard::Dropped };
        }
        let (Some(theirs), Ok(nonce)) = (Hello::decode(&half.bytes), random()) else { return Heard::Dropped };
        let mut ours = Hello::new(&self.shared.options, nonce);
        let differs = theirs.differs(&ours).is_some();
        ours.flags |= if full { NO } else { 0 };
        let greeting = ours.encode();
        let exchange = Exchange::new(self.shared.options.key.as_ref(), &half.bytes, &greeting);
        // Whoever differs is told how by our greeting, and gets no proof.
        let proof = if differs || full { [0; PROOF_BYTES] } else { exchange.proof(Role::Listener) };
        let mut answer = [0; HELLO_BYTES + PROOF_BYTES];
        answer[..HELLO_BYTES].copy_from_slice(&greeting);
        answer[HELLO_BYTES..].copy_from_slice(&proof);
        if !say(&half.socket, &answer) || differs || full {
            return Heard::Dropped;
        }
        half.exchange = Some(exchange);
        Heard::Waits
    }

    fn finish(&mut self, at: usize) {
        let Some(HalfOpen { socket, address, exchange: Some(exchange), .. }) = self.take(at) else { return };
        if prepare(&socket).is_err() {
            return;
        }
        let keys = self.shared.options.tags().then(|| exchange.keys(true));
        let wire = Wire { socket, keys, domain: self.domain, provider: self.shared.id() };
        self.done.push_back(link(address, wire));
    }

    fn take(&mut self, at: usize) -> Option<HalfOpen> {
        let gone = self.half_open.remove(at)?;
        self.watch.remove(&gone.socket);
        Some(gone)
    }
}

/// A short answer on a fresh socket, which has room for it or is dropped.
fn say(socket: &OwnedFd, bytes: &[u8]) -> bool {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(socket, bytes, flags) == Ok(bytes.len())
}

impl Listener for TcpGate {
    fn accept(&mut self, timeout: Duration) -> Result<Option<Link>, VerbsError> {
        self.shared.check_fork()?;
        let end = Instant::now() + timeout;
        let mut ready = Vec::new();
        loop {
            if let Some(link) = self.done.pop_front() {
                return Ok(Some(link));
            }
            let mut left = end.saturating_duration_since(Instant::now());
            if let Some(oldest) = self.half_open.front() {
                left = left.min(oldest.deadline.saturating_duration_since(Instant::now()));
            }
            ready.clear();
            self.watch.wait(left, |token, _| ready.push(token))?;
            self.progress(&ready)?;
            if self.done.is_empty() && Instant::now() >= end {
                return Ok(None);
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// The listening socket's token; connections count up from there.
const LISTENING: u64 = 0;
/// Connections admitted in one go, before those that have spoken get their turn.
const ADMIT_MAX: usize = 64;
/// Half-open connections at a time; the one that has waited longest makes room.
const HALF_OPEN_MAX: usize = 256;
/// A handshake takes no longer, however slowly its bytes come.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(3);
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(20);
