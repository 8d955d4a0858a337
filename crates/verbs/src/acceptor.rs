//! Accepting connections, many half-open ones side by side, each with a deadline: what the listeners of all providers do
//! alike. What they do differently stands behind [`Door`].

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags};

use crate::watch::{Watch, failed, timespec};
use crate::{Link, Listener, VerbsError};

/// How one provider learns who is there.
pub trait Door: Send + fmt::Debug {
    /// Connected, and not known yet.
    type Guest: AsFd + Send + fmt::Debug;

    /// Whether this process may accept at all.
    ///
    /// # Errors
    /// [`VerbsError::Forked`] in a child that inherited the listener.
    fn check(&self) -> Result<(), VerbsError>;

    /// A new connection, which never blocks.
    ///
    /// # Errors
    /// Why it is turned away before a word.
    fn admit(&mut self, socket: OwnedFd, from: Option<SocketAddrAny>) -> Result<Self::Guest, String>;

    /// Takes what it says, without waiting.
    fn hear(&mut self, guest: &mut Self::Guest) -> Heard;

    /// Makes a link of one that is known.
    ///
    /// # Errors
    /// Why it is turned away after all.
    fn link(&mut self, guest: Self::Guest) -> Result<Link, String>;
}

/// What came of hearing a half-open connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It has more to say.
    Waits,
    /// It has shaken hands.
    Known,
    /// It is turned away, and why.
    Refused(String),
}

/// A listening socket with its half-open connections.
#[derive(Debug)]
pub struct Acceptor<D: Door> {
    door: D,
    socket: OwnedFd,
    watch: Watch,
    half_open: VecDeque<HalfOpen<D::Guest>>,
    done: VecDeque<Link>,
    next_token: u64,
    ready: Vec<u64>,
    refused: Refused,
    half_open_max: usize,
    patience: Duration,
}

#[derive(Debug)]
struct HalfOpen<G> {
    token: u64,
    guest: G,
    deadline: Instant,
}

/// Connections that were turned away, for a line in a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// How many.
    pub connections: u64,
    /// Why the last one was.
    pub last: String,
}

impl<D: Door> Acceptor<D> {
    /// Of a socket that listens and never blocks.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new(door: D, socket: OwnedFd) -> Result<Self, VerbsError> {
        let watch = Watch::new()?;
        watch.add(&socket, LISTENING)?;
        Ok(Self {
            door,
            socket,
            watch,
            half_open: VecDeque::new(),
            done: VecDeque::new(),
            next_token: LISTENING + 1,
            ready: Vec::new(),
            refused: Refused::default(),
            half_open_max: HALF_OPEN_MAX,
            patience: HANDSHAKE_DEADLINE,
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
            self.refuse(0, "it did not say who it is in time");
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
                    if self.half_open.is_empty() {
                        let _ = rustix::event::poll(&mut [], Some(&timespec(NO_DESCRIPTOR_PAUSE)));
                    } else {
                        self.refuse(0, "this process has no descriptor left");
                    }
                    return Ok(());
                }
                // Of the one connection that ended before it was taken, not of the socket.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::NETDOWN | Errno::HOSTUNREACH) => continue,
                Err(errno) => return Err(failed("accept", errno)),
            };
            let guest = match self.door.admit(socket, from) {
                Ok(guest) => guest,
                Err(why) => {
                    self.refused.note(why);
                    continue;
                }
            };
            if self.half_open.len() >= self.half_open_max {
                self.refuse(0, "too many connections said nothing, and it did for longest");
            }
            let token = self.next_token;
            self.next_token += 1;
            match self.watch.add(&guest, token) {
                Ok(()) => {
                    let deadline = Instant::now() + self.patience;
                    self.half_open.push_back(HalfOpen { token, guest, deadline });
                }
                Err(error) => self.refused.note(error.to_string()),
            }
        }
        Ok(())
    }

    fn hear(&mut self, at: usize) {
        match self.door.hear(&mut self.half_open[at].guest) {
            Heard::Waits => {}
            Heard::Refused(why) => self.refuse(at, &why),
            Heard::Known => match self.take(at).map(|guest| self.door.link(guest)) {
                Some(Ok(link)) => self.done.push_back(link),
                Some(Err(why)) => self.refused.note(why),
                None => {}
            },
        }
    }

    fn refuse(&mut self, at: usize, why: &str) {
        if self.take(at).is_some() {
            self.refused.note(why.to_owned());
        }
    }

    fn take(&mut self, at: usize) -> Option<D::Guest> {
        let gone = self.half_open.remove(at)?;
        self.watch.remove(&gone.guest);
        Some(gone.guest)
    }
}

impl<D: Door> Listener for Acceptor<D> {
    fn accept(&mut self, timeout: Duration) -> Result<Option<Link>, VerbsError> {
        self.door.check()?;
        let end = Instant::now() + timeout;
        loop {
            if let Some(link) = self.done.pop_front() {
                return Ok(Some(link));
            }
            let mut left = end.saturating_duration_since(Instant::now());
            if let Some(oldest) = self.half_open.front() {
                left = left.min(oldest.deadline.saturating_duration_since(Instant::now()));
            }
            let mut ready = std::mem::take(&mut self.ready);
            ready.clear();
            let progressed = self.watch.wait(left, |token, _| ready.push(token)).and_then(|()| self.progress(&ready));
            self.ready = ready;
            progressed?;
            if self.done.is_empty() && Instant::now() >= end {
                return Ok(None);
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    fn refused(&mut self) -> Option<Refused> {
        (self.refused.connections > 0).then(|| std::mem::take(&mut self.refused))
    }
}

impl Refused {
    fn note(&mut self, why: String) {
        self.connections += 1;
        self.last = why;
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.connections {
            1 => write!(f, "a connection was refused: {}", self.last),
            more => write!(f, "{more} connections were refused, the last because {}", self.last),
        }
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
/// Connections that the system keeps until they are admitted.
pub const BACKLOG: i32 = 512;
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Peer;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};

    /// Knows whoever says "k", turns away whoever says anything else.
    #[derive(Debug)]
    struct Letter;

    impl Door for Letter {
        type Guest = OwnedFd;

        fn check(&self) -> Result<(), VerbsError> {
            Ok(())
        }

        fn admit(&mut self, socket: OwnedFd, from: Option<SocketAddrAny>) -> Result<OwnedFd, String> {
            assert!(from.is_some());
            Ok(socket)
        }

        fn hear(&mut self, guest: &mut OwnedFd) -> Heard {
            match rustix::net::recv(&*guest, &mut [0; 1][..], rustix::net::RecvFlags::PEEK) {
                Ok(_) => {}
                Err(Errno::AGAIN) => return Heard::Waits,
                Err(errno) => return Heard::Refused(errno.to_string()),
            }
            let mut said = [0; 1];
            match rustix::io::read(&*guest, &mut said) {
                Ok(1) if said == *b"k" => Heard::Known,
                Ok(1) => Heard::Refused("it said another letter".to_owned()),
                _ => Heard::Refused("it hung up".to_owned()),
            }
        }

        fn link(&mut self, guest: OwnedFd) -> Result<Link, String> {
            Ok(Link::new(Peer { pid: None, uid: None, description: String::new() }, guest))
        }
    }

    fn acceptor() -> (SocketAddr, Acceptor<Letter>) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        (socket.local_addr().unwrap(), Acceptor::new(Letter, socket.into()).unwrap())
    }

    #[test]
    fn silent_ones_hold_up_nobody_and_the_longest_silent_makes_room() {
        let (address, mut acceptor) = acceptor();
        (acceptor.half_open_max, acceptor.patience) = (8, Duration::from_secs(600));
        let mut silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
        while acceptor.half_open.len() < 8 {
            assert!(acceptor.accept(Duration::from_millis(1)).unwrap().is_none());
        }
        let mut known = TcpStream::connect(address).unwrap();
        known.write_all(b"k").unwrap();
        acceptor.accept(Duration::from_secs(60)).unwrap().expect("accepted");
        assert_eq!(acceptor.half_open.len(), 7);
        let refused = acceptor.refused().unwrap();
        assert!(refused.connections == 1 && refused.to_string().contains("for longest"), "{refused}");
        assert_eq!(acceptor.refused(), None);
        assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "the first was dropped");
        silent[1].write_all(b"x").unwrap();
        while acceptor.half_open.len() == 7 {
            assert!(acceptor.accept(Duration::from_millis(1)).unwrap().is_none());
        }
        assert!(acceptor.refused().unwrap().last.contains("another letter"));
    }

    #[test]
    fn whoever_says_nothing_in_time_is_dropped() {
        let (address, mut acceptor) = acceptor();
        acceptor.patience = Duration::from_millis(50);
        let mut silent = TcpStream::connect(address).unwrap();
        let refused = loop {
            assert!(acceptor.accept(Duration::from_millis(60)).unwrap().is_none());
            if let Some(refused) = acceptor.refused() {
                break refused;
            }
        };
        assert!(refused.last.contains("in time"), "{refused}");
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
        assert!(acceptor.half_open.is_empty());
    }
}
