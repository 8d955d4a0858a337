//! The hostile end, and the scene in which it plays.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ends::{self, End, fresh_name};
use overside_memory::{Segment, View};
use overside_shape::{Run, Shape};
use overside_verbs::*;
use rustix::net::*;

/// The layout of `docs/reference/wire.md`, written down a second time.
pub const RUNG: usize = 0;
pub const CONSUMED: usize = 128;
pub const ARMED: usize = 256;
pub const RETURNS: usize = 264;
pub const CLOSED: usize = 384;
pub const DESCRIPTORS: usize = 512;
pub const DEPTH: usize = 32;
pub const CELLS: usize = 256;
pub const CELLS_AT: usize = DESCRIPTORS + DEPTH * 64;
/// Where in the data a region is described.
pub const DESCRIPTION_AT: usize = 4096;
/// Of the first lap.
pub const STAMP: u64 = 1 << 63;
pub const RETURNS_AT: usize = CELLS_AT + CELLS * 16;
/// Loans that a peer may have out here.
pub const PLACES: usize = 4 * DEPTH;
pub const CONTROL_BYTES: usize = (RETURNS_AT + PLACES * 8).next_multiple_of(4096);

pub const HELLO: &[u8] = b"\x01overside\x06\0\0\0";

/// The hostile end: a socket, and a control memory it writes as it likes.
pub struct Raw {
    pub socket: OwnedFd,
    pub control: Segment,
    pub data: Segment,
}

pub fn address(name: &str) -> SocketAddrUnix {
    let uid = rustix::process::getuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("overside/{uid}/{name}").as_bytes()).unwrap()
}

pub fn dial(name: &str) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &address(name)).unwrap();
    socket
}

pub fn say(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    }
    // The victim may have hung up already.
    let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
}

pub fn hear(socket: impl AsFd) -> usize {
    let (mut bytes, mut space) = ([0; 128], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).map_or(0, |m| m.bytes)
}

pub fn attach_message() -> Vec<u8> {
    [&[2][..], &(DEPTH as u32).to_le_bytes(), &(CELLS as u32).to_le_bytes()].concat()
}

pub fn segment_message(id: u32, len: u64) -> Vec<u8> {
    [&[3][..], &id.to_le_bytes(), &len.to_le_bytes()].concat()
}

pub fn grant_message(rkey: u128, access: u8, window: u8, len: u64) -> Vec<u8> {
    [&[4][..], &rkey.to_le_bytes(), &[access, window], &len.to_le_bytes()].concat()
}

impl Raw {
    pub fn greet(name: &str) -> Self {
        let socket = dial(name);
        say(&socket, HELLO, &[]);
        let control = Segment::shared(CONTROL_BYTES).unwrap();
        let data = Segment::shared(8192).unwrap();
        Self { socket, control, data }
    }

    pub fn attach(&self) {
        say(&self.socket, &attach_message(), &[self.control.fd().unwrap()]);
    }

    pub fn store(&self, at: usize, value: u64) {
        assert!(at.is_multiple_of(8) && at < CONTROL_BYTES);
        // SAFETY: [test] aligned and inside of our own mapping.
        unsafe { AtomicU64::from_ptr(self.control.base().as_ptr().add(at).cast()) }.store(value, Ordering::SeqCst);
    }

    /// Publishes the first descriptors, as they are.
    pub fn stamp(&self, count: usize) {
        (0..count).for_each(|i| {
            let at = DESCRIPTORS + i * 64 + 8;
            self.store(at, self.load(at) & 0xffff_ffff | STAMP);
        });
    }

    /// Publishes descriptor number `index`: so many bytes of the data, which the victim may keep as a loan.
    pub fn lend(&self, index: usize, at: u64, len: u64) {
        let place = DESCRIPTORS + index % DEPTH * 64;
        self.store(place, 5 | 1 << 16);
        self.store(place + 16, at);
        self.store(place + 24, 7 | len << 32);
        self.store(place + 8, len | ((index / DEPTH) as u64 + (1 << 31)) << 32);
    }

    /// Writes return number `index`: the loan of that number has ended.
    pub fn give_back(&self, index: usize, number: u64) {
        self.store(RETURNS_AT + index % PLACES * 8, number | ((index / PLACES) as u64 + (1 << 31)) << 32);
    }

    pub fn load(&self, at: usize) -> u64 {
        // SAFETY: [test] aligned and inside of our own mapping.
        unsafe { AtomicU64::from_ptr(self.control.base().as_ptr().add(at).cast()) }.load(Ordering::SeqCst)
    }

    pub fn pass_data(&self) {
        say(&self.socket, &segment_message(7, 8192), &[self.data.fd().unwrap()]);
    }

    /// A valid ring: an inline message, one of two fragments, one of four, whose list is in the
    /// cells, and a region of 16 values whose description is in the data.
    pub fn fill(&self) {
        let sge = |at: usize, offset: u64, len: u64| {
            self.store(at, offset);
            self.store(at + 8, 7 | len << 32);
        };
        self.store(DESCRIPTORS, 2);
        self.store(DESCRIPTORS + 8, 5);
        self.store(DESCRIPTORS + 16, u64::from_ne_bytes(*b"hello\0\0\0"));
        self.store(DESCRIPTORS + 64, 1 | 2 << 16);
        self.store(DESCRIPTORS + 72, 24);
        sge(DESCRIPTORS + 80, 0, 8);
        sge(DESCRIPTORS + 96, 100, 16);
        self.store(DESCRIPTORS + 128, 1 | 4 << 16);
        self.store(DESCRIPTORS + 136, 40);
        (0..4).for_each(|i| sge(CELLS_AT + i * 16, i as u64 * 1000, 10));
        let mut description = Vec::new();
        Shape::strided(64, 32, 16, &[Run::new(0, 4)]).unwrap().describe(&mut description);
        (0..description.len()).for_each(|at| self.write(DESCRIPTION_AT + at, description[at]));
        self.store(DESCRIPTORS + 192, 4);
        self.store(DESCRIPTORS + 200, description.len() as u64);
        sge(DESCRIPTORS + 208, DESCRIPTION_AT as u64, description.len() as u64);
        self.store(DESCRIPTORS + 224, 0);
        self.store(DESCRIPTORS + 232, 4096);
        self.store(DESCRIPTORS + 240, 7 | 4096 << 32);
    }

    /// A byte of the data.
    pub fn write(&self, at: usize, value: u8) {
        assert!(at < 8192);
        // SAFETY: [test] inside of our own mapping.
        unsafe { self.data.base().as_ptr().add(at).write_volatile(value) };
    }
}

/// The victim with a listener, a connection to a well-behaved peer beside it, and one to the
/// hostile one.
pub struct Scene {
    pub victim: End,
    pub listener: Box<dyn Listener>,
    pub name: String,
    pub friend: End,
    pub to_victim: QueuePair,
    pub to_friend: QueuePair,
}

impl Scene {
    pub fn new() -> Self {
        let mut victim = End::new();
        let mut friend = End::new();
        let name = fresh_name("hostile");
        let mut listener = victim.listen(&name);
        let accepting = std::thread::spawn(move || {
            let link = listener.accept(Duration::from_secs(5)).unwrap().unwrap();
            (listener, link)
        });
        let to_victim = friend.connect(&name);
        let (listener, link) = accepting.join().unwrap();
        let to_friend = victim.queue.attach(link).unwrap();
        Self { victim, listener, name, friend, to_victim, to_friend }
    }

    /// A hostile connection, with four receives and two sends of the victim's on it.
    pub fn hostile(&mut self) -> (Raw, QueuePair) {
        self.hostile_with(false)
    }

    /// The same, with receives that take loans.
    pub fn hostile_lender(&mut self) -> (Raw, QueuePair) {
        self.hostile_with(true)
    }

    fn hostile_with(&mut self, loans: bool) -> (Raw, QueuePair) {
        let raw = Raw::greet(&self.name);
        let qp = self.victim.accept(&mut *self.listener);
        assert_eq!(hear(&raw.socket), HELLO.len());
        if loans {
            self.victim.post_receives_or_loans(Some(qp), 4, 4096);
        } else {
            self.victim.post_receives(Some(qp), 4, 4096);
        }
        let sends = (0..2).map(|i| WorkRequest::send_inline(100 + i, b"to the enemy")).collect();
        self.victim.post(qp, sends);
        (raw, qp)
    }

    /// Polls a while; whether the hostile connection was closed, and how what was pending on it
    /// ended.
    pub fn settle(&mut self, qp: QueuePair, until_closed: bool) -> (Option<Status>, Vec<WorkCompletion>) {
        let mut done = std::mem::take(&mut self.victim.early);
        let end = Instant::now() + Duration::from_secs(5);
        let mut closed = None;
        for round in 0.. {
            self.victim.queue.poll(&mut done);
            while let Some(PortEvent::Disconnected { queue_pair, status, .. }) = self.victim.queue.next_event() {
                assert_eq!(queue_pair, qp, "only the hostile connection suffers");
                closed = Some(status);
            }
            if closed.is_some() || (!until_closed && round > 300) {
                break;
            }
            assert!(Instant::now() < end, "not closed; have {done:?}");
        }
        (closed, done)
    }

    /// Everything that was posted comes back, and the friend's connection works.
    pub fn check(&mut self, qp: QueuePair, mut done: Vec<WorkCompletion>) {
        self.victim.queue.close(qp);
        for _ in 0..10 {
            self.victim.queue.poll(&mut done);
        }
        let mut sends: Vec<u64> = done.iter().filter(|c| c.id >= 100).map(|c| c.id).collect();
        let mut receives: Vec<u64> = done.iter().filter(|c| c.buffer.is_some()).map(|c| c.id).collect();
        sends.sort_unstable();
        receives.sort_unstable();
        assert_eq!((sends, receives), (vec![100, 101], vec![0, 1, 2, 3]), "each once: {done:?}");
        self.victim.post_receives(Some(self.to_friend), 1, 64);
        self.friend.post_receives(Some(self.to_victim), 1, 64);
        self.friend.post(self.to_victim, vec![WorkRequest::send(0, View::foreign(Arc::new(*b"ping")))]);
        self.victim.post(self.to_friend, vec![WorkRequest::send_inline(0, b"pong")]);
        let (a, b) = ends::both(&mut self.victim, 2, &mut self.friend, 2);
        assert!(a.iter().chain(&b).all(|c| c.status == Status::Success), "{a:?} {b:?}");
    }
}
