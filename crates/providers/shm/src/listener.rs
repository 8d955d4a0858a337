//! Accepting connections, many half-open ones side by side.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::watch::{Watch, failed};
use overside_verbs::{Link, Listener, Peer, ProtectionDomain, VerbsError};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::address;
use crate::handshake::{Heard, Wire, greet, heard, link};
use crate::provider::Shared;
use crate::socket;
use crate::watch::{Ready, vouched_peer};

/// Listens on an abstract socket.
#[derive(Debug)]
pub(crate) struct ShmListener {
    shared: Arc<Shared>,
    domain: u64,
    socket: OwnedFd,
    watch: Watch,
    half_open: VecDeque<HalfOpen>,
    done: VecDeque<Link>,
    next_token: u64,
}

/// Connected, of our user, and silent so far.
#[derive(Debug)]
struct HalfOpen {
    token: u64,
    socket: OwnedFd,
    pidfd: OwnedFd,
    peer: Peer,
    deadline: Instant,
}

impl ShmListener {
    pub(crate) fn bind(shared: Arc<Shared>, domain: &ProtectionDomain, name: &str) -> Result<Self, VerbsError> {
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
    fn progress(&mut self, ready: &[Ready]) -> Result<(), VerbsError> {
        for event in ready {
            if event.token == LISTENING {
                self.admit()?;
            } else if let Some(at) = self.half_open.iter().position(|h| h.token == event.token) {
                self.hear(at);
            }
        }
        let now = Instant::now();
        while self.half_open.front().is_some_and(|oldest| oldest.deadline <= now) {
            self.drop_half_open(0);
        }
        Ok(())
    }

    /// New connections: strangers are dropped before they say a word.
    fn admit(&mut self) -> Result<(), VerbsError> {
        for _ in 0..ADMIT_MAX {
            let socket = match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(failed("accept", errno)),
            };
            let Ok((peer, pidfd)) = vouched_peer(&socket) else { continue };
            if self.half_open.len() == HALF_OPEN_MAX {
                // The one that kept silent for longest makes room.
                self.drop_half_open(0);
            }
            let token = self.next_token;
            self.next_token += 1;
            self.watch.add(&socket, token)?;
            let deadline = Instant::now() + GREETING_DEADLINE;
            self.half_open.push_back(HalfOpen { token, socket, pidfd, peer, deadline });
        }
        Ok(())
    }

    fn hear(&mut self, at: usize) {
        match heard(&self.half_open[at].socket) {
            Heard::Nothing => {}
            Heard::Wrong(_) => {
                // An answer in our version tells a newer or older peer what is the matter.
                let _ = greet(&self.half_open[at].socket);
                self.drop_half_open(at);
            }
            Heard::Greeting => {
                let Some(HalfOpen { socket, pidfd, peer, .. }) = self.drop_half_open(at) else { return };
                if greet(&socket).is_ok() {
                    let wire = Wire { socket, pidfd, domain: self.domain, provider: self.shared.id() };
                    self.done.push_back(link(peer, wire));
                }
            }
        }
    }

    fn drop_half_open(&mut self, at: usize) -> Option<HalfOpen> {
        let gone = self.half_open.remove(at)?;
        self.watch.remove(&gone.socket);
        Some(gone)
    }
}

impl Listener for ShmListener {
    fn accept(&mut self, timeout: Duration) -> Result<Option<Link>, VerbsError> {
        self.shared.fork.check()?;
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
            self.watch.wait(left, |token, writable| ready.push(Ready { token, writable }))?;
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
/// Connections that wait to be accepted.
const BACKLOG: i32 = 512;
/// Connections admitted in one go, before those that have spoken get their turn.
const ADMIT_MAX: usize = 64;
/// Silent connections at a time.
const HALF_OPEN_MAX: usize = 256;
/// How long a connection may be silent.
const GREETING_DEADLINE: Duration = Duration::from_secs(2);
