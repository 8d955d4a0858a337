//! Accepting connections, many half-open ones side by side.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use core::net::SocketAddr;
use overside_verbs::watch::{Watch, failed};
use overside_verbs::{Link, Listener, ProtectionDomain, VerbsError};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::address;
use crate::channel::{SideChannel, socket};
use crate::handshake::{Greeting, Wire, greeted, link};
use crate::messages::{Message, VERSION};
use crate::provider::Shared;

/// Listens at a TCP address.
#[derive(Debug)]
pub(crate) struct IbvListener {
    shared: Arc<Shared>,
    domain: u64,
    socket: OwnedFd,
    watch: Watch,
    half_open: VecDeque<HalfOpen>,
    done: VecDeque<Link>,
    next_token: u64,
}

/// Connected, and silent so far.
#[derive(Debug)]
struct HalfOpen {
    token: u64,
    channel: SideChannel,
    peer: SocketAddr,
    deadline: Instant,
}

impl IbvListener {
    pub(crate) fn bind(shared: Arc<Shared>, domain: &ProtectionDomain, name: &str) -> Result<Self, VerbsError> {
        let bound = address::resolve(name)?;
        let refused = |reason: String| VerbsError::Address { address: format!("rdma:{name}"), reason };
        if !bound.ip().is_loopback() {
            let reason = "without a key, only addresses of this host itself are listened at; use 127.0.0.1 or ::1";
            return Err(refused(reason.to_owned()));
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
                self.hear(at);
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
            let (socket, peer) = match rustix::net::acceptfrom_with(&self.socket, flags) {
                Ok(accepted) => accepted,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(failed("accept", errno)),
            };
            let Some(Ok(peer)) = peer.map(SocketAddr::try_from) else { continue };
            let Ok(channel) = SideChannel::new(socket) else { continue };
            if self.half_open.len() == HALF_OPEN_MAX {
                // The one that kept silent for longest makes room.
                self.take(0);
            }
            let token = self.next_token;
            self.next_token += 1;
            self.watch.add(&channel, token)?;
            let deadline = Instant::now() + GREETING_DEADLINE;
            self.half_open.push_back(HalfOpen { token, channel, peer, deadline });
        }
        Ok(())
    }

    fn hear(&mut self, at: usize) {
        match greeted(self.half_open[at].channel.receive()) {
            Greeting::Nothing => {}
            Greeting::Wrong(_) => {
                // An answer in our version tells a newer or older peer what is the matter.
                self.half_open[at].channel.send(&Message::Hello { version: VERSION });
                self.take(at);
            }
            Greeting::Heard => {
                let Some(HalfOpen { mut channel, peer, .. }) = self.take(at) else { return };
                channel.send(&Message::Hello { version: VERSION });
                self.done.push_back(link(peer, Wire { channel, domain: self.domain, provider: self.shared.id() }));
            }
        }
    }

    fn take(&mut self, at: usize) -> Option<HalfOpen> {
        let gone = self.half_open.remove(at)?;
        self.watch.remove(&gone.channel);
        Some(gone)
    }
}

impl Listener for IbvListener {
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
/// Connections that wait to be accepted.
const BACKLOG: i32 = 512;
/// Connections admitted in one go, before those that have spoken get their turn.
const ADMIT_MAX: usize = 64;
/// Silent connections at a time.
const HALF_OPEN_MAX: usize = 256;
/// How long a connection may be silent.
const GREETING_DEADLINE: Duration = Duration::from_secs(2);
