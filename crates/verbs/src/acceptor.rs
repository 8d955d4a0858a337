//! Accepting connections, many half-open ones side by side, each with a deadline: what the
//! listeners of all providers do alike. What they do differently stands behind [`Door`].
//!
//! Half-open connections are of two stages, those that said nothing yet and those that have
//! greeted. Each stage has places of its own, and a source that has too many makes room
//! (`admission`): silent connections never push out one that speaks, nor greetings without a proof
//! one that has just come.

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketAddrAny, SocketFlags};
use rustix::process::{Resource, getrlimit};

use crate::admission::{Admission, Source};
use crate::clock::Clock;
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
    /// It said nothing that counts so far.
    Waits,
    /// It has said properly who it is, and must still prove it.
    Greeted,
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
    /// By token, so in the order of coming.
    half_open: BTreeMap<u64, HalfOpen<D::Guest>>,
    silent: Admission,
    greeted: Admission,
    done: VecDeque<Link>,
    next_token: u64,
    ready: Vec<u64>,
    refused: Refused,
    /// The last attempt to accept one failed for want of a descriptor or memory.
    short: bool,
    patience: Duration,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct HalfOpen<G> {
    guest: G,
    source: Source,
    has_greeted: bool,
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
    /// Of a socket that listens and never blocks; patience with peers is counted by `clock`.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new(door: D, socket: OwnedFd, clock: Arc<dyn Clock>) -> Result<Self, VerbsError> {
        let watch = Watch::new()?;
        watch.add(&socket, LISTENING)?;
        let stage_max = stage_max();
        Ok(Self {
            door,
            socket,
            watch,
            half_open: BTreeMap::new(),
            silent: Admission::new(stage_max),
            greeted: Admission::new(stage_max),
            done: VecDeque::new(),
            next_token: LISTENING + 1,
            ready: Vec::new(),
            refused: Refused::default(),
            short: false,
            patience: HANDSHAKE_DEADLINE,
            clock,
        })
    }

    /// Takes what is ready, without waiting.
    fn progress(&mut self, ready: &[u64]) -> Result<(), VerbsError> {
        for token in ready {
            if *token == LISTENING {
                self.admit()?;
            } else {
                self.hear(*token);
            }
        }
        let now = self.clock.now();
        while let Some((token, oldest)) = self.half_open.first_key_value()
            && oldest.deadline <= now
        {
            self.evict(*token, "it did not say who it is in time");
        }
        Ok(())
    }

    fn admit(&mut self) -> Result<(), VerbsError> {
        let mut came = false;
        for _ in 0..ADMIT_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::acceptfrom_with(&self.socket, flags) {
                Ok((socket, from)) => {
                    (came, self.short) = (true, false);
                    self.enter(socket, from);
                }
                Err(Errno::AGAIN) => return Ok(()),
                // The system looks for a descriptor before it looks whether anybody waits.
                Err(Errno::MFILE | Errno::NFILE) if !self.somebody_waits() => return Ok(()),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    let roomy = self.make_room();
                    // What made room has helped nobody so far, or there was nobody: others must
                    // give something back.
                    if std::mem::replace(&mut self.short, true) || !roomy {
                        self.clock.sleep(ACCEPT_PAUSE);
                    }
                    return Ok(());
                }
                Err(errno) if is_of_one_connection(errno) => {}
                Err(errno) => return Err(failed("accept", errno)),
            }
        }
        // An error that stays must not be met as fast as the processor can.
        if !came {
            self.clock.sleep(ACCEPT_PAUSE);
        }
        Ok(())
    }

    fn somebody_waits(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&timespec(Duration::ZERO))).is_ok_and(|ready| ready > 0)
    }

    fn enter(&mut self, socket: OwnedFd, from: Option<SocketAddrAny>) {
        let source = Source::of(from.clone().and_then(|from| SocketAddr::try_from(from).ok()));
        let guest = match self.door.admit(socket, from) {
            Ok(guest) => guest,
            Err(why) => return self.refused.note(why),
        };
        let token = self.next_token;
        self.next_token += 1;
        if let Err(error) = self.watch.add(&guest, token) {
            return self.refused.note(error.to_string());
        }
        let deadline = self.clock.now() + self.patience;
        self.half_open.insert(token, HalfOpen { guest, source, has_greeted: false, deadline });
        if let Some(evicted) = self.silent.enter(token, source) {
            self.evict(evicted, "too many connections said nothing; its address had most, and it was the oldest");
        }
    }

    fn hear(&mut self, token: u64) {
        let Some(half_open) = self.half_open.get_mut(&token) else { return };
        match self.door.hear(&mut half_open.guest) {
            Heard::Waits => {}
            Heard::Greeted if half_open.has_greeted => {}
            Heard::Greeted => {
                half_open.has_greeted = true;
                let source = half_open.source;
                self.silent.leave(token, source);
                if let Some(evicted) = self.greeted.enter(token, source) {
                    self.evict(
                        evicted,
                        "too many connections proved nothing; its address had most, and it was the oldest",
                    );
                }
            }
            Heard::Refused(why) => self.refuse(token, &why),
            Heard::Known => match self.take(token).map(|guest| self.door.link(guest)) {
                Some(Ok(link)) => self.done.push_back(link),
                Some(Err(why)) => self.refused.note(why),
                None => {}
            },
        }
    }

    /// Hangs up on one of whichever source has most at one stage. False when there is nobody.
    fn make_room(&mut self) -> bool {
        let stage = if self.greeted.most() > self.silent.most() { &mut self.greeted } else { &mut self.silent };
        let Some(evicted) = stage.evict() else { return false };
        self.evict(evicted, "this process has no descriptor or memory left for it; raise the limit (ulimit -n)");
        true
    }

    /// Refuses one, unless it has said by now what brings it on: its words may wait unread while
    /// others are admitted.
    fn evict(&mut self, token: u64, why: &str) {
        let stage = |acceptor: &Self| acceptor.half_open.get(&token).map(|half_open| half_open.has_greeted);
        let before = stage(self);
        self.hear(token);
        if stage(self) == before {
            self.refuse(token, why);
        }
    }

    fn refuse(&mut self, token: u64, why: &str) {
        if self.take(token).is_some() {
            self.refused.note(why.to_owned());
        }
    }

    fn take(&mut self, token: u64) -> Option<D::Guest> {
        let gone = self.half_open.remove(&token)?;
        let stage = if gone.has_greeted { &mut self.greeted } else { &mut self.silent };
        stage.leave(token, gone.source);
        self.watch.remove(&gone.guest);
        Some(gone.guest)
    }
}

impl<D: Door> Listener for Acceptor<D> {
    fn accept(&mut self, timeout: Duration) -> Result<Option<Link>, VerbsError> {
        self.door.check()?;
        let end = self.clock.now() + timeout;
        loop {
            if let Some(link) = self.done.pop_front() {
                return Ok(Some(link));
            }
            let mut left = end.saturating_duration_since(self.clock.now());
            if let Some((_, oldest)) = self.half_open.first_key_value() {
                left = left.min(oldest.deadline.saturating_duration_since(self.clock.now()));
            }
            let mut ready = std::mem::take(&mut self.ready);
            ready.clear();
            let progressed = self.watch.wait(left, |token, _| ready.push(token)).and_then(|()| self.progress(&ready));
            self.ready = ready;
            progressed?;
            if self.done.is_empty() && self.clock.now() >= end {
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

impl<D: Door> Drop for Acceptor<D> {
    /// Closes connections that were not admitted yet by way of the door, which knows what may lie
    /// in an unread socket. The system would close that with the listening socket, and wait for it.
    fn drop(&mut self) {
        if self.door.check().is_err() || rustix::net::shutdown(&self.socket, Shutdown::Read).is_err() {
            return;
        }
        for _ in 0..2 * BACKLOG {
            match rustix::net::acceptfrom_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((socket, from)) => drop(self.door.admit(socket, from)),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
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

/// As many at each stage as a quarter of this process' descriptors allows for both.
fn stage_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(0));
    (descriptors / 8).clamp(1, STAGE_MAX)
}

/// Of the one connection that ended before it was taken, or may not be taken, not of the socket
/// (accept(2)).
fn is_of_one_connection(errno: Errno) -> bool {
    use Errno as E;
    let ended = matches!(errno, E::INTR | E::CONNABORTED | E::PROTO | E::NOPROTOOPT | E::PERM | E::TIMEDOUT);
    ended || matches!(errno, E::NETDOWN | E::NETUNREACH | E::HOSTDOWN | E::HOSTUNREACH | E::NONET)
}

/// The listening socket's token; connections count up from there.
const LISTENING: u64 = 0;
/// Connections admitted in one go, before those that have spoken get their turn.
const ADMIT_MAX: usize = 64;
/// Half-open connections of one stage: what a storm of 7,000 a second brings in half a second, so
/// one that shares the storm's address still has the time of a long way to speak. About 4 MiB for
/// both stages.
const STAGE_MAX: usize = 4096;
/// A handshake takes no longer, however slowly its bytes come.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(3);
/// Connections that the system keeps until they are admitted: those of a storm while this thread
/// does not run. The system caps it (net.core.somaxconn).
pub const BACKLOG: i32 = 4096;
/// Before the next attempt to accept, while accepting fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Instance, Peer, SystemClock};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// Knows whoever says "k" and has greeted whoever says "g"; turns away whoever says anything
    /// else.
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
                Ok(1) if said == *b"g" => Heard::Greeted,
                Ok(1) => Heard::Refused("it said another letter".to_owned()),
                _ => Heard::Refused("it hung up".to_owned()),
            }
        }

        fn link(&mut self, guest: OwnedFd) -> Result<Link, String> {
            Ok(Instance::new(None).link(0, Peer { pid: None, uid: None, description: String::new() }, guest))
        }
    }

    fn acceptor() -> (SocketAddr, Acceptor<Letter>) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        (socket.local_addr().unwrap(), Acceptor::new(Letter, socket.into(), SystemClock::handle()).unwrap())
    }

    fn settle(acceptor: &mut Acceptor<Letter>, until: impl Fn(&Acceptor<Letter>) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !until(acceptor) {
            assert!(acceptor.accept(Duration::from_millis(1)).unwrap().is_none());
            assert!(Instant::now() < end, "{acceptor:?}");
        }
    }

    fn sized(stage_max: usize) -> (SocketAddr, Acceptor<Letter>) {
        let (address, mut acceptor) = acceptor();
        (acceptor.silent, acceptor.greeted) = (Admission::new(stage_max), Admission::new(stage_max));
        acceptor.patience = Duration::from_secs(600);
        (address, acceptor)
    }

    /// Of another address of this host than most connections are.
    fn connect_from(source: &str, to: SocketAddr) -> TcpStream {
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &format!("{source}:0").parse::<SocketAddr>().unwrap()).unwrap();
        rustix::net::connect(&socket, &to).unwrap();
        TcpStream::from(socket)
    }

    #[test]
    fn silent_ones_hold_up_nobody_and_the_longest_silent_makes_room() {
        let (address, mut acceptor) = sized(8);
        let mut silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
        settle(&mut acceptor, |acceptor| acceptor.half_open.len() == 8);
        let mut known = TcpStream::connect(address).unwrap();
        known.write_all(b"k").unwrap();
        acceptor.accept(Duration::from_secs(60)).unwrap().expect("accepted");
        assert_eq!(acceptor.half_open.len(), 7);
        let refused = acceptor.refused().unwrap();
        assert!(refused.connections == 1 && refused.to_string().contains("the oldest"), "{refused}");
        assert_eq!(acceptor.refused(), None);
        assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "the first was dropped");
        silent[1].write_all(b"x").unwrap();
        settle(&mut acceptor, |acceptor| acceptor.half_open.len() == 6);
        assert!(acceptor.refused().unwrap().last.contains("another letter"));
    }

    /// Each stage has its flood, from one address; the few of another address come through both.
    #[test]
    fn floods_of_silence_and_of_greetings_push_out_themselves_alone() {
        let (address, mut acceptor) = sized(8);
        let mut silent = connect_from("127.0.0.2", address);
        let mut greeted = connect_from("127.0.0.2", address);
        greeted.write_all(b"g").unwrap();
        settle(&mut acceptor, |acceptor| acceptor.greeted.most() == 1 && acceptor.silent.most() == 1);
        let mut flood = Vec::new();
        for round in 0..40 {
            let mut stream = TcpStream::connect(address).unwrap();
            if round % 2 == 0 {
                stream.write_all(b"g").unwrap();
            }
            flood.push(stream);
            let before = acceptor.next_token;
            settle(&mut acceptor, |acceptor| acceptor.next_token > before || acceptor.half_open.len() == 16);
        }
        settle(&mut acceptor, |acceptor| acceptor.greeted.most() == 7 && acceptor.silent.most() == 7);
        for stream in [&mut greeted, &mut silent] {
            stream.write_all(b"k").unwrap();
            acceptor.accept(Duration::from_secs(60)).unwrap().expect("accepted");
        }
    }

    /// What lies unread counts, however busy this process was: nobody is turned away for silence
    /// who has spoken.
    #[test]
    fn who_has_spoken_is_heard_before_room_is_made_or_its_time_is_over() {
        let (address, mut acceptor) = sized(1);
        let mut early = TcpStream::connect(address).unwrap();
        settle(&mut acceptor, |acceptor| acceptor.silent.most() == 1);
        // The listening socket is ready first.
        let _late = TcpStream::connect(address).unwrap();
        early.write_all(b"g").unwrap();
        settle(&mut acceptor, |acceptor| acceptor.half_open.len() == 2);
        assert_eq!((acceptor.silent.most(), acceptor.greeted.most(), acceptor.refused()), (1, 1, None));
        early.write_all(b"k").unwrap();
        let half_open = acceptor.half_open.values_mut();
        half_open.for_each(|half_open| half_open.deadline = Instant::now());
        std::thread::sleep(Duration::from_millis(5));
        acceptor.progress(&[]).unwrap();
        assert_eq!((acceptor.done.len(), acceptor.half_open.len()), (1, 0));
        assert!(acceptor.refused().unwrap().last.contains("in time"));
    }

    /// More greet than there are places: what has just come may still speak, and room is made among
    /// those that greeted.
    #[test]
    fn who_has_greeted_has_another_place() {
        let (address, mut acceptor) = sized(4);
        let flood: Vec<TcpStream> = (0..12)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(b"g").unwrap();
                settle(&mut acceptor, |acceptor| acceptor.silent.most() == 0 && acceptor.next_token > 1);
                stream
            })
            .collect();
        settle(&mut acceptor, |acceptor| acceptor.next_token == 13 && acceptor.silent.most() == 0);
        assert_eq!((acceptor.greeted.most(), acceptor.half_open.len()), (4, 4));
        assert!(acceptor.refused().unwrap().last.contains("proved nothing"));
        drop(flood);
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
