//! Before the first word, and with it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::ends::{End, fresh_name, pair};
use overside_verbs::*;
use rustix::net::*;

use crate::raw::*;

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
        // SAFETY: [test] changes this thread's user alone: the bare system call, not libc's
        // wrapper.
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
