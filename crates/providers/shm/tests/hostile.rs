//! A peer that shakes hands properly and then does what no peer does. In every case the victim lives, its
//! other connections work, and what it posted comes back.

mod ends;

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ends::{End, fresh_name, pair};
use overside_memory::{Segment, View, Window};
use overside_shape::{Run, Shape};
use overside_verbs::*;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::*;

/// The layout of `docs/wire.md`, written down a second time.
const RUNG: usize = 0;
const CONSUMED: usize = 128;
const ARMED: usize = 256;
const CLOSED: usize = 384;
const DESCRIPTORS: usize = 512;
const DEPTH: usize = 32;
const CELLS: usize = 256;
const CELLS_AT: usize = DESCRIPTORS + DEPTH * 64;
/// Where in the data a region is described.
const DESCRIPTION_AT: usize = 4096;
/// Of the first lap.
const STAMP: u64 = 1 << 63;
const CONTROL_BYTES: usize = (CELLS_AT + CELLS * 16).next_multiple_of(4096);

const HELLO: &[u8] = b"\x01overside\x04\0\0\0";

/// The hostile end: a socket, and a control memory it writes as it likes.
struct Raw {
    socket: OwnedFd,
    control: Segment,
    data: Segment,
}

fn address(name: &str) -> SocketAddrUnix {
    let uid = rustix::process::getuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("overside/{uid}/{name}").as_bytes()).unwrap()
}

fn dial(name: &str) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &address(name)).unwrap();
    socket
}

fn say(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    }
    // The victim may have hung up already.
    let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
}

fn hear(socket: impl AsFd) -> usize {
    let (mut bytes, mut space) = ([0; 128], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).map_or(0, |m| m.bytes)
}

fn attach_message() -> Vec<u8> {
    [&[2][..], &(DEPTH as u32).to_le_bytes(), &(CELLS as u32).to_le_bytes()].concat()
}

fn segment_message(id: u32, len: u64) -> Vec<u8> {
    [&[3][..], &id.to_le_bytes(), &len.to_le_bytes()].concat()
}

fn grant_message(rkey: u128, access: u8, window: u8, len: u64) -> Vec<u8> {
    [&[4][..], &rkey.to_le_bytes(), &[access, window], &len.to_le_bytes()].concat()
}

impl Raw {
    fn greet(name: &str) -> Self {
        let socket = dial(name);
        say(&socket, HELLO, &[]);
        let control = Segment::shared(CONTROL_BYTES).unwrap();
        let data = Segment::shared(8192).unwrap();
        Self { socket, control, data }
    }

    fn attach(&self) {
        say(&self.socket, &attach_message(), &[self.control.fd().unwrap()]);
    }

    fn store(&self, at: usize, value: u64) {
        assert!(at.is_multiple_of(8) && at < CONTROL_BYTES);
        // SAFETY: [test] aligned and inside of our own mapping.
        unsafe { AtomicU64::from_ptr(self.control.base().as_ptr().add(at).cast()) }.store(value, Ordering::SeqCst);
    }

    /// Publishes the first descriptors, as they are.
    fn stamp(&self, count: usize) {
        (0..count).for_each(|i| {
            let at = DESCRIPTORS + i * 64 + 8;
            self.store(at, self.load(at) & 0xffff_ffff | STAMP);
        });
    }

    fn load(&self, at: usize) -> u64 {
        // SAFETY: [test] aligned and inside of our own mapping.
        unsafe { AtomicU64::from_ptr(self.control.base().as_ptr().add(at).cast()) }.load(Ordering::SeqCst)
    }

    fn pass_data(&self) {
        say(&self.socket, &segment_message(7, 8192), &[self.data.fd().unwrap()]);
    }

    /// A valid ring: an inline message, one of two fragments, one of four, whose list is in the cells, and a region of 16 values
    /// whose description is in the data.
    fn fill(&self) {
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
    fn write(&self, at: usize, value: u8) {
        assert!(at < 8192);
        // SAFETY: [test] inside of our own mapping.
        unsafe { self.data.base().as_ptr().add(at).write_volatile(value) };
    }
}

/// The victim with a listener, a connection to a well-behaved peer beside it, and one to the hostile one.
struct Scene {
    victim: End,
    listener: Box<dyn Listener>,
    name: String,
    friend: End,
    to_victim: QueuePair,
    to_friend: QueuePair,
}

impl Scene {
    fn new() -> Self {
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
    fn hostile(&mut self) -> (Raw, QueuePair) {
        let raw = Raw::greet(&self.name);
        let qp = self.victim.accept(&mut *self.listener);
        assert_eq!(hear(&raw.socket), HELLO.len());
        self.victim.post_receives(Some(qp), 4, 4096);
        let sends = (0..2).map(|i| WorkRequest::send_inline(100 + i, b"to the enemy")).collect();
        self.victim.post(qp, sends);
        (raw, qp)
    }

    /// Polls a while; whether the hostile connection was closed, and how what was pending on it ended.
    fn settle(&mut self, qp: QueuePair, until_closed: bool) -> (Option<Status>, Vec<WorkCompletion>) {
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
    fn check(&mut self, qp: QueuePair, mut done: Vec<WorkCompletion>) {
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

#[test]
fn the_raw_peer_is_understood_as_long_as_it_behaves() {
    let mut scene = Scene::new();
    let (raw, qp) = scene.hostile();
    raw.attach();
    raw.pass_data();
    raw.fill();
    raw.stamp(4);
    raw.store(CONSUMED, 2);
    let mut done = Vec::new();
    let end = Instant::now() + Duration::from_secs(5);
    while done.len() < 6 {
        scene.victim.queue.poll(&mut done);
        assert!(Instant::now() < end, "{done:?}");
    }
    assert!(done.iter().all(|c| c.status == Status::Success));
    let lengths: Vec<u64> = done.iter().filter(|c| c.buffer.is_some()).map(|c| c.bytes).collect();
    assert_eq!(lengths, [5, 24, 40, 64]);
    scene.check(qp, done);
}

#[test]
fn garbage_in_each_word_in_turn_harms_nobody_else() {
    let mut scene = Scene::new();
    let header = (0..512).step_by(8);
    let ring = (DESCRIPTORS..DESCRIPTORS + 4 * 64).step_by(8);
    let cells = (CELLS_AT..CELLS_AT + 5 * 16).step_by(8);
    let mut closed_by = std::collections::BTreeSet::new();
    for at in header.chain(ring).chain(cells) {
        for pattern in [u64::MAX, 1 << 63, 0x0101_0101_0101_0101, 4, 33, 0xffff_0000_0000_0001, STAMP | 600] {
            let (raw, qp) = scene.hostile();
            raw.attach();
            raw.pass_data();
            raw.fill();
            raw.store(CONSUMED, 1);
            raw.store(at, pattern);
            // A second word garbled after that stays so: it is published by whatever stamp it has.
            for i in 0..4 {
                let word = DESCRIPTORS + i * 64 + 8;
                if word != at || pattern < 1 << 32 {
                    raw.store(word, raw.load(word) & 0xffff_ffff | STAMP);
                }
            }
            // Out-of-range indexes must close it; other garbage may mean something harmless.
            let must = at == CLOSED || (at == CONSUMED && pattern > 32);
            let (closed, done) = scene.settle(qp, must);
            if closed.is_some() {
                closed_by.insert(at);
            }
            if must && at != CLOSED {
                assert_eq!(closed, Some(Status::Malformed), "word {at} pattern {pattern:x}");
            }
            scene.check(qp, done);
        }
    }
    let region = (DESCRIPTORS + 192..DESCRIPTORS + 256).step_by(8);
    for at in [CONSUMED, CLOSED, DESCRIPTORS, DESCRIPTORS + 8, DESCRIPTORS + 80, DESCRIPTORS + 88, CELLS_AT]
        .into_iter()
        .chain(region)
    {
        assert!(closed_by.contains(&at), "garbage in word {at} was never noticed");
    }
    assert!(!closed_by.contains(&ARMED) && !closed_by.contains(&RUNG), "these words only wake");
}

#[test]
fn words_that_move_while_they_are_read_harm_nobody_else() {
    let mut scene = Scene::new();
    for seed in 0..20u64 {
        let (raw, qp) = scene.hostile();
        raw.attach();
        raw.pass_data();
        raw.fill();
        let scribbler = std::thread::spawn(move || {
            let mut state = seed * 2 + 1;
            for _ in 0..20_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % (CONTROL_BYTES / 8) * 8;
                let value = if state >> 62 == 0 { state >> 59 } else { state };
                // The closed word last: it would end the fun.
                if at != CLOSED {
                    raw.store(at, value);
                    if state >> 60 == 3 {
                        raw.stamp(4);
                    }
                }
            }
            raw
        });
        let (_, mut done) = scene.settle(qp, false);
        let raw = scribbler.join().unwrap();
        let (_, more) = scene.settle(qp, false);
        done.extend(more);
        drop(raw);
        scene.check(qp, done);
    }
}

#[test]
fn descriptors_that_lie_close_their_connection() {
    let lies: &[(&str, &[(usize, u64)])] = &[
        ("an unknown segment", &[(DESCRIPTORS, 1 | 1 << 16), (DESCRIPTORS + 8, 8), (DESCRIPTORS + 24, 99 | 8 << 32)]),
        (
            "past the segment",
            &[
                (DESCRIPTORS, 1 | 1 << 16),
                (DESCRIPTORS + 8, 8),
                (DESCRIPTORS + 16, 8185),
                (DESCRIPTORS + 24, 7 | 8 << 32),
            ],
        ),
        (
            "offset overflow",
            &[
                (DESCRIPTORS, 1 | 1 << 16),
                (DESCRIPTORS + 8, 8),
                (DESCRIPTORS + 16, u64::MAX - 3),
                (DESCRIPTORS + 24, 7 | 8 << 32),
            ],
        ),
        (
            "fragments longer than the message",
            &[(DESCRIPTORS, 1 | 1 << 16), (DESCRIPTORS + 8, 8), (DESCRIPTORS + 24, 7 | 9 << 32)],
        ),
        (
            "fragments longer than the buffer",
            &[(DESCRIPTORS, 1 | 1 << 16), (DESCRIPTORS + 8, 4096), (DESCRIPTORS + 24, 7 | 4097 << 32)],
        ),
        ("fragments shorter", &[(DESCRIPTORS, 1 | 1 << 16), (DESCRIPTORS + 8, 8), (DESCRIPTORS + 24, 7 | 7 << 32)]),
        ("a count past the limit", &[(DESCRIPTORS, 1 | 257 << 16), (DESCRIPTORS + 8, 8)]),
        ("inline past the limit", &[(DESCRIPTORS, 2), (DESCRIPTORS + 8, 513)]),
        ("an unknown operation", &[(DESCRIPTORS, 9)]),
        ("unknown flags", &[(DESCRIPTORS, 2 | 4 << 8)]),
        ("a huge message", &[(DESCRIPTORS, 1), (DESCRIPTORS + 8, (1 << 30) + 1)]),
    ];
    let mut scene = Scene::new();
    for (what, words) in lies {
        let (raw, qp) = scene.hostile();
        raw.attach();
        raw.pass_data();
        words.iter().for_each(|(at, value)| raw.store(*at, *value));
        raw.stamp(1);
        let (closed, done) = scene.settle(qp, true);
        assert_eq!(closed, Some(Status::Malformed), "{what}");
        scene.check(qp, done);
    }
}

#[test]
fn descriptors_of_the_wrong_kind_are_refused() {
    let memfd = |len: u64, seals: SealFlags, hollow: bool| {
        let fd = rustix::fs::memfd_create("odd", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, len).unwrap();
        if !hollow {
            rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
        }
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let zero = rustix::fs::open("/dev/zero", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let length = CONTROL_BYTES as u64;
    let odd: Vec<(&str, OwnedFd)> = vec![
        ("a pipe", pipe),
        ("a device", zero),
        ("unsealed", memfd(length, SealFlags::empty(), false)),
        ("may shrink", memfd(length, SealFlags::GROW | SealFlags::SEAL, false)),
        ("too short", memfd(length - 4096, all, false)),
        ("too long", memfd(length + 4096, all, false)),
        ("hollow", memfd(length, all, true)),
    ];
    let mut scene = Scene::new();
    for (what, fd) in &odd {
        let messages = [
            attach_message(),
            segment_message(3, length),
            grant_message(5, 15, 0, length),
            grant_message(5, 15, 1, length),
        ];
        for message in messages {
            let (raw, qp) = scene.hostile();
            if message[0] != 2 {
                raw.attach();
            }
            say(&raw.socket, &message, &[fd.as_fd()]);
            let (closed, done) = scene.settle(qp, true);
            assert_eq!(closed, Some(Status::Malformed), "{what} in {message:?}");
            scene.check(qp, done);
        }
    }
}

#[test]
fn messages_that_are_cut_replayed_or_out_of_place_close_their_connection() {
    let memory = Segment::shared(CONTROL_BYTES).unwrap();
    let fd = memory.fd().unwrap();
    let length = CONTROL_BYTES as u64;
    let mut cases: Vec<(Vec<u8>, usize)> = vec![
        (HELLO.to_vec(), 0),
        (attach_message(), 1),
        (attach_message(), 0),
        (segment_message(0, length), 1),
        (segment_message(3, length), 0),
        (segment_message(3, length), 2),
        (segment_message(3, 1 << 63), 1),
        (grant_message(1, 15, 2, length), 1),
        (vec![7], 1),
        (vec![8, 0], 0),
        (vec![0], 0),
        (vec![99; 64], 0),
        (vec![6; 65], 0),
        (vec![6, 1, 2], 0),
        ([attach_message(), vec![0]].concat(), 1),
    ];
    for whole in
        [attach_message(), segment_message(3, length), grant_message(1, 2, 0, length), [vec![5], vec![0; 16]].concat()]
    {
        cases.extend((1..whole.len()).map(|cut| (whole[..cut].to_vec(), usize::from(whole[0] != 5))));
    }
    let mut scene = Scene::new();
    for (message, fds) in cases {
        let (raw, qp) = scene.hostile();
        raw.attach();
        say(&raw.socket, &message, &vec![fd; fds]);
        let (closed, done) = scene.settle(qp, true);
        assert_eq!(closed, Some(Status::Malformed), "{message:?} with {fds} descriptors");
        scene.check(qp, done);
    }
    // One key, granted twice.
    let window = Window::new(4096).unwrap();
    let (raw, qp) = scene.hostile();
    raw.attach();
    (0..2).for_each(|_| say(&raw.socket, &grant_message(1, 15, 1, 4096), &[window.share(true).unwrap()]));
    let (closed, done) = scene.settle(qp, true);
    assert_eq!(closed, Some(Status::Malformed));
    scene.check(qp, done);
}

#[test]
fn a_flood_of_doorbells_and_more_memory_than_allowed_disturb_nobody() {
    let mut scene = Scene::new();
    let (raw, qp) = scene.hostile();
    raw.attach();
    (0..100).for_each(|_| say(&raw.socket, &[7], &[]));
    let (closed, done) = scene.settle(qp, false);
    assert_eq!(closed, None);
    scene.check(qp, done);

    let provider = overside_shm::ShmProvider::with_options(overside_shm::Options {
        peer_segments_max: 2,
        peer_bytes_max: 1 << 20,
    })
    .unwrap();
    let domain = provider.allocate_domain().unwrap();
    let queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
    scene.victim = End { provider, domain, queue, early: Vec::new() };
    let name = fresh_name("bounded");
    scene.listener = scene.victim.listen(&name);
    for (count, id, len) in [(3, 1, 4096u64), (1, 1, 2 << 20)] {
        let raw = Raw::greet(&name);
        let qp = scene.victim.accept(&mut *scene.listener);
        raw.attach();
        let memory = Segment::shared(len as usize).unwrap();
        (0..count).for_each(|i| say(&raw.socket, &segment_message(id + i, len), &[memory.fd().unwrap()]));
        let (closed, _) = scene.settle(qp, true);
        assert_eq!(closed, Some(Status::Malformed));
        scene.victim.queue.close(qp);
    }
}

#[test]
fn silent_and_babbling_connections_hold_up_nobody() {
    let mut end = End::new();
    let name = fresh_name("silent");
    let mut listener = end.listen(&name);
    let silent: Vec<OwnedFd> = (0..300).map(|_| dial(&name)).collect();
    let babbling: Vec<OwnedFd> = (0..HELLO.len())
        .map(|cut| {
            let socket = dial(&name);
            say(&socket, &HELLO[..cut.max(1)], &[]);
            socket
        })
        .collect();
    let wrong_version = dial(&name);
    say(&wrong_version, b"\x01overside\x01\0\0\0", &[]);
    let accepting = std::thread::spawn(move || {
        let qp = end.accept(&mut *listener);
        (end, qp)
    });
    let mut client = End::new();
    let start = Instant::now();
    client.connect(&name);
    assert!(start.elapsed() < Duration::from_secs(5), "held up for {:?}", start.elapsed());
    accepting.join().unwrap();
    drop((silent, babbling, wrong_version));
}

/// Runs `f` on a thread of another user. None where this process may not become one.
fn as_stranger<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    std::thread::spawn(move || {
        let nobody = 65534;
        // SAFETY: [test] changes this thread's user alone: the bare system call, not libc's wrapper.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) };
        (changed == 0).then(f)
    })
    .join()
    .unwrap()
}

#[test]
fn strangers_neither_squat_a_name_nor_connect() {
    let name = fresh_name("squat");
    let squatted = address(&name);
    let Some(squatter) = as_stranger(move || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &squatted).unwrap();
        listen(&socket, 8).unwrap();
        socket
    }) else {
        eprintln!("skipped: this user cannot become another");
        return;
    };
    let mut end = End::new();
    let refused = end.provider.connect(&end.domain, &name, Duration::from_secs(1));
    assert!(matches!(&refused, Err(VerbsError::Handshake(reason)) if reason.contains("user")), "{refused:?}");
    drop(squatter);
    let mut listener = end.listen(&name);
    let target = address(&name);
    let stranger = as_stranger(move || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &target).unwrap();
        say(&socket, HELLO, &[]);
        socket
    })
    .unwrap();
    assert!(listener.accept(Duration::from_millis(100)).unwrap().is_none());
    assert_eq!(hear(&stranger), 0, "dropped without a word");
    let accepting = std::thread::spawn(move || end.accept(&mut *listener));
    End::new().connect(&name);
    accepting.join().unwrap();
}

#[test]
fn nobody_there_a_taken_name_and_a_deaf_listener_are_told_apart() {
    let end = End::new();
    let name = fresh_name("none");
    let connect = |name: &str, ms| end.provider.connect(&end.domain, name, Duration::from_millis(ms));
    assert!(matches!(connect(&name, 100), Err(VerbsError::Unreachable { .. })));
    assert!(matches!(connect("no/slash", 100), Err(VerbsError::Address { .. })));
    let _listener = end.listen(&name);
    assert!(matches!(end.provider.listen(&end.domain, &name), Err(VerbsError::Address { .. })));
    assert!(matches!(connect(&name, 50), Err(VerbsError::TimedOut(_))));
    let (mut a, to_b, _b, _) = pair();
    let mut batch = VecDeque::from([WorkRequest::send_inline(0, b"x")]);
    assert_eq!(a.queue.post(to_b, &mut batch).unwrap(), 1);
}
