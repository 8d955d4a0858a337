//! Descriptors that a peer passes: what they are, how many, and what becomes of those that nobody
//! wants.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::ends::{self, End, fresh_name};
use overside_memory::{Segment, View, Window};
use overside_verbs::*;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::raw::*;

/// A TCP socket that takes [`LINGER`] to close, and its other end, which takes nothing.
fn clogged() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    sockopt::set_socket_linger(&stream, Some(LINGER)).unwrap();
    (stream.into(), other)
}

/// Whoever closes such a socket last stands still: neither the acceptor nor a port does.
#[test]
fn a_socket_that_lingers_stops_nobody() {
    let start = Instant::now();
    let mut scene = Scene::new();
    let mut others = Vec::new();
    let mut pass = |socket: &OwnedFd, message: &[u8], copies: usize| {
        let (lingering, other) = clogged();
        others.push(other);
        say(socket, message, &vec![lingering.as_fd(); copies]);
    };
    // Before the greeting, with it, behind it, and before anybody looked.
    for (first, copies) in [(&[7u8][..], 1), (HELLO, 1), (HELLO, 4), (&[], 1)] {
        let socket = dial(&scene.name);
        pass(&socket, first, copies);
        pass(&socket, &[], 1);
        pass(&socket, &[7], 1);
    }
    let (raw, qp) = scene.hostile();
    scene.check(qp, Vec::new());
    drop(raw);
    for (message, copies) in [
        (segment_message(3, 4096), 1),
        (attach_message(), 1),
        (grant_message(5, 15, 1, 4096), 3),
        (vec![7], 4),
        (vec![], 1),
    ] {
        let (raw, qp) = scene.hostile();
        pass(&raw.socket, &message, copies);
        let (closed, done) = scene.settle(qp, true);
        assert_eq!(closed, Some(Status::Malformed), "{message:?}");
        scene.check(qp, done);
    }
    // What nobody reads any more: behind the message that ended it, and of a connection that was
    // closed here.
    let (raw, qp) = scene.hostile();
    say(&raw.socket, &[99], &[]);
    (0..20).for_each(|_| pass(&raw.socket, &[], 1));
    let (closed, done) = scene.settle(qp, true);
    assert_eq!(closed, Some(Status::Malformed));
    scene.check(qp, done);
    let (raw, qp) = scene.hostile();
    (0..20).for_each(|_| pass(&raw.socket, &[7], 1));
    scene.check(qp, Vec::new());
    // And of one that nobody let in before the listener ended.
    let socket = dial(&scene.name);
    pass(&socket, HELLO, 1);
    let Scene { listener, .. } = scene;
    drop(listener);
    let taken = start.elapsed();
    assert!(taken < LINGER / 2, "somebody waited: {taken:?}");
}

fn memfd(len: u64, fill: impl FnOnce(&OwnedFd), seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("odd", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fill(&fd);
    rustix::fs::fcntl_add_seals(&fd, seals | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    fd
}

/// As many pages as the memory is long, and none of them in it: whoever reads it would pay for
/// them.
#[test]
fn memory_whose_pages_lie_elsewhere_is_refused() {
    const LEN: u64 = 1 << 20;
    let behind = |fd: &OwnedFd| rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, LEN, LEN).unwrap();
    let all_but_one = |fd: &OwnedFd| {
        for at in (0..LEN).step_by(4096).filter(|at| *at != LEN / 2) {
            rustix::io::pwrite(fd, &[1], at).unwrap();
        }
        rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, LEN, LEN).unwrap();
    };
    let mut scene = Scene::new();
    for odd in 0..4 {
        let window = odd % 2 == 1;
        let seals = if window { SealFlags::empty() } else { SealFlags::FUTURE_WRITE };
        let fd = if odd < 2 { memfd(LEN, behind, seals) } else { memfd(LEN, all_but_one, seals) };
        let blocks = || rustix::fs::fstat(&fd).unwrap().st_blocks;
        let before = blocks();
        assert!(before as u64 * 512 >= LEN, "there are enough pages");
        let (raw, qp) = scene.hostile();
        raw.attach();
        let message = if window { grant_message(5, 15, 1, LEN) } else { segment_message(3, LEN) };
        say(&raw.socket, &message, &[fd.as_fd()]);
        let (closed, done) = scene.settle(qp, true);
        assert_eq!(closed, Some(Status::Malformed), "number {odd}");
        assert_eq!(blocks(), before, "nothing was allocated for it");
        scene.check(qp, done);
    }
}

/// One page under more names than a connection may have, and one name for two.
#[test]
fn mappings_are_bounded_and_named_once() {
    let mut scene = Scene::new();
    let page = Segment::shared(4096).unwrap();
    for grants in [false, true] {
        let (raw, qp) = scene.hostile();
        raw.attach();
        let (socket, fd) = (raw.socket.try_clone().unwrap(), page.fd().unwrap().try_clone_to_owned().unwrap());
        let flood = std::thread::spawn(move || {
            for id in 1..=3000u32 {
                let message =
                    if grants { grant_message(u128::from(id), 2, 0, 4096) } else { segment_message(id, 4096) };
                say(&socket, &message, &[fd.as_fd()]);
            }
        });
        let (closed, done) = scene.settle(qp, true);
        assert_eq!(closed, Some(Status::Malformed), "grants: {grants}");
        flood.join().unwrap();
        drop(raw);
        scene.check(qp, done);
    }
    let (raw, qp) = scene.hostile();
    raw.attach();
    (0..2).for_each(|_| say(&raw.socket, &segment_message(9, 4096), &[page.fd().unwrap()]));
    let (closed, done) = scene.settle(qp, true);
    assert_eq!(closed, Some(Status::Malformed), "one name for two segments");
    scene.check(qp, done);
}

/// A client hears of the bound before its server does, and goes on with what it has; a server's
/// segments are its own choice.
#[test]
fn an_honest_sender_meets_the_bound_as_an_error_and_a_chosen_server_has_none() {
    let (mut server, to_client, mut client, to_server) = ends::pair();
    let segments = |end: &End, count: usize| -> Vec<(MemoryRegion, std::sync::Arc<overside_memory::Buffer>)> {
        let one = |_| {
            let buffer = Segment::shared(4096).unwrap().carve(4096).pop().unwrap();
            let memory = Memory::Segment(buffer.segment().clone());
            (end.provider.register(&end.domain, &memory, Access::LOCAL).unwrap(), std::sync::Arc::new(buffer))
        };
        (0..count).map(one).collect()
    };
    let whole = overside_shape::Shape::contiguous(0, 4096).unwrap();
    let send = |from: &mut End, qp: QueuePair, to: &mut End, back: QueuePair, buffer| -> Result<(), VerbsError> {
        to.post_receives(Some(back), 1, 4096);
        let mut batch = std::collections::VecDeque::from([WorkRequest::send(0, View::of(buffer, &whole).unwrap())]);
        from.queue.post(qp, &mut batch)?;
        let (a, b) = ends::both(from, 1, to, 1);
        assert!(a.iter().chain(&b).all(|c| c.status == Status::Success), "{a:?} {b:?}");
        Ok(())
    };
    let (regions, ours): (Vec<_>, Vec<_>) = segments(&client, 1100).into_iter().unzip();
    let refused = ours.iter().position(|buffer| send(&mut client, to_server, &mut server, to_client, buffer).is_err());
    let refused = refused.expect("the bound is met");
    assert!((500..1024).contains(&refused), "at segment {refused}");
    let last = ours[refused].clone();
    let error = send(&mut client, to_server, &mut server, to_client, &last).unwrap_err();
    assert!(matches!(error, VerbsError::Limit { what, .. } if what.contains("segments")), "{error}");
    for region in regions.into_iter().take(10) {
        client.provider.deregister(region).unwrap();
    }
    send(&mut client, to_server, &mut server, to_client, &last).unwrap();
    // Regions granted likewise.
    let windows: Vec<_> = (0..1024).map(|_| std::sync::Arc::new(Window::new(4096).unwrap())).collect();
    let grant = |window: &std::sync::Arc<Window>| {
        client.provider.register(&client.domain, &Memory::Window(window.clone()), Access::REMOTE_READ)
    };
    windows.iter().for_each(|window| drop(grant(window).unwrap()));
    let error = grant(&std::sync::Arc::new(Window::new(4096).unwrap())).unwrap_err();
    assert!(matches!(error, VerbsError::Limit { what, .. } if what.contains("granted")), "{error}");
    for (_, buffer) in &segments(&server, 1500) {
        send(&mut server, to_client, &mut client, to_server, buffer).unwrap();
    }
}

/// Where the limits are this process' own, the error names them, at both ends of an attempt.
#[test]
fn a_lack_of_descriptors_is_an_error_with_its_reason() {
    for role in ["passing::no_descriptor_left", "passing::too_many_in_flight"] {
        let output = ends::process(role, &[]).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{role}: {said}");
    }
}

#[test]
#[ignore = "a process of its own of a_lack_of_descriptors_is_an_error_with_its_reason"]
fn no_descriptor_left() {
    let mut scene = Scene::new();
    let (raw, qp) = scene.hostile();
    scene.settle(qp, false);
    let mut all = Vec::new();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    while let Ok(one) = rustix::io::dup(&raw.socket) {
        all.push(one);
    }
    raw.attach();
    let mut done = Vec::new();
    let reason = loop {
        scene.victim.queue.poll(&mut done);
        if let Some(PortEvent::Disconnected { queue_pair, status, reason }) = scene.victim.queue.next_event() {
            assert_eq!((queue_pair, status), (qp, Status::Exhausted));
            break reason;
        }
    };
    assert!(reason.contains("no descriptor left") && reason.contains("ulimit -n"), "{reason}");
    drop(all);
    scene.check(qp, done);
}

#[test]
#[ignore = "a process of its own of a_lack_of_descriptors_is_an_error_with_its_reason"]
fn too_many_in_flight() {
    let (user, group) = (61_234, 61_234);
    // SAFETY: [test] changes this thread's user alone: the bare system calls, not libc's wrappers.
    let changed = unsafe {
        libc::syscall(libc::SYS_setresgid, group, group, group) == 0
            && libc::syscall(libc::SYS_setresuid, user, user, user) == 0
    };
    // Who may exceed the limit does not meet it.
    if rustix::process::getuid().is_root() && !changed {
        return;
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    let (mut server, to_client, mut client, _to_server) = in_turns();
    let (from, _to) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
            .unwrap();
    let zero = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    let in_flight = || {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let many: Vec<BorrowedFd<'_>> = (0..200).map(|_| zero.as_fd()).collect();
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&from, &[std::io::IoSlice::new(b"x")], &mut ancillary, SendFlags::NOSIGNAL)
    };
    while in_flight().is_ok() {}
    assert_eq!(in_flight().unwrap_err(), Errno::TOOMANYREFS);
    // A connection that stands and is to pass something ends, at once, and says why; its peer hears
    // that it was closed.
    let buffer = std::sync::Arc::new(server.buffers(1, 4096).pop().unwrap());
    let view = View::of(&buffer, &overside_shape::Shape::contiguous(0, 4096).unwrap()).unwrap();
    server.queue.post(to_client, &mut [WorkRequest::send(0, view)].into()).unwrap();
    let PortEvent::Disconnected { status, reason, .. } = server.event();
    assert!(
        status == Status::Exhausted && reason.contains("without their being received") && reason.contains("ulimit -n"),
        "{reason}"
    );
    let PortEvent::Disconnected { status, .. } = client.event();
    assert_eq!(status, Status::Flushed);
    // A new one is not set up: each end has its reason, at once.
    let name = fresh_name("flight");
    let listener = server.listen(&name);
    let (connecting, accepted) = dialled(&client, &name, listener);
    let refused = server.queue.attach(accepted).unwrap_err();
    assert!(refused.to_string().contains("without their being received"), "{refused}");
    client.queue.attach(connecting).unwrap();
    let PortEvent::Disconnected { status, reason, .. } = client.event();
    assert!(status == Status::PeerDied && reason.contains("before the connection was set up"), "{status:?}: {reason}");
}

/// Connects two ends of this thread.
fn in_turns() -> (End, QueuePair, End, QueuePair) {
    let (mut server, mut client) = (End::new(), End::new());
    let name = fresh_name("turns");
    let listener = server.listen(&name);
    let (link, accepted) = dialled(&client, &name, listener);
    let to_server = client.queue.attach(link).unwrap();
    let to_client = server.queue.attach(accepted).unwrap();
    for _ in 0..1000 {
        server.queue.poll(&mut server.early);
        client.queue.poll(&mut client.early);
    }
    (server, to_client, client, to_server)
}

fn dialled(client: &End, name: &str, mut listener: Box<dyn Listener>) -> (Link, Link) {
    std::thread::scope(|scope| {
        let accepting = scope.spawn(move || listener.accept(Duration::from_secs(5)).unwrap().unwrap());
        let link = client.provider.connect(&client.domain, name, Duration::from_secs(5)).unwrap();
        (link, accepting.join().unwrap())
    })
}

/// Far longer than the test takes.
const LINGER: Duration = Duration::from_secs(60);
