//! Sets of epoll that are shared: by threads, by processes, by many connections, with other sets.

use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::time::{Duration, Instant};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT};

use crate::sets::{LONG, Set};
use crate::sock::{Log, Side, nap, pattern, recv, recv_exactly, send_all};

/// One descriptor, and a double of it, in two sets with different wake requests.
pub(crate) fn two_sets(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        return side.send_rounds(100);
    }
    let (one, two) = (Set::new(), Set::new());
    one.add(side.fd, EPOLLIN, 1);
    two.add(side.fd, EPOLLIN | EPOLLET, 2);
    // SAFETY: a descriptor of ours.
    let double = unsafe { libc::dup(side.fd) };
    one.add(double, EPOLLOUT, 3);
    let mut again = 0;
    for round in 0..100u8 {
        if round == 50 {
            log.result("without the double", one.ctl(EPOLL_CTL_DEL, double, 0, 0) as isize);
        }
        let begun = Instant::now();
        while !one.wait(LONG).contains(&(EPOLLIN as u32, 1)) {
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
        let mut events = one.wait(LONG);
        events.sort_unstable_by_key(|event| event.1);
        let expected = [(EPOLLIN as u32, 1), (EPOLLOUT as u32, 3)];
        assert_eq!(events, if round < 50 { &expected[..] } else { &expected[..1] });
        assert_eq!(two.wait(LONG), [(EPOLLIN as u32, 2)]);
        again += two.wait(0).len();
        side.take_round(round);
        // The byte of the rendezvous was an arrival as well, and so is maybe the next message.
        if recv(side.fd, &mut [0; 1], libc::MSG_PEEK | libc::MSG_DONTWAIT) < 0 {
            two.wait(0);
        }
        two.change(side.fd, EPOLLIN | EPOLLET, 2);
    }
    // The kernel may say an edge twice: when the bytes are there, and when their sender has said so.
    assert!(again < 30, "said again in {again} of 100 rounds");
    log.say("both sets");
}

/// A set within a set, and a set that is polled.
pub(crate) fn nested_sets(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        return side.send_rounds(20);
    }
    let (inner, outer) = (Set::new(), Set::new());
    inner.add(side.fd, EPOLLIN, 1);
    for round in 0..20u8 {
        if round == 5 {
            outer.add(inner.0, EPOLLIN, 2);
        }
        if round >= 5 {
            assert_eq!(outer.wait(LONG), [(EPOLLIN as u32, 2)]);
        }
        if round == 10 {
            let mut poll = libc::pollfd { fd: inner.0, events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd.
            assert_eq!((unsafe { libc::poll(&mut poll, 1, LONG) }, poll.revents), (1, libc::POLLIN));
        }
        assert_eq!(inner.wait(LONG), [(EPOLLIN as u32, 1)]);
        side.take_round(round);
    }
    log.say("all nested");
}

/// A fork with a set that both have: the parent goes on, then the child does.
pub(crate) fn fork_with_a_set(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        return side.send_rounds(20);
    }
    let set = Set::new();
    set.add(side.fd, EPOLLIN, 1);
    let rounds = |set: &Set, from: u8, to: u8| {
        for round in from..to {
            assert_eq!(set.wait(LONG), [(EPOLLIN as u32, 1)]);
            side.take_round(round);
        }
    };
    rounds(&set, 0, 5);
    // SAFETY: the child goes on with what this thread has.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            rounds(&set, 5, 10);
            libc::_exit(0);
        }
        let mut status = 1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        log.say(format_args!("the child: {status}"));
    }
    rounds(&set, 10, 20);
}

/// A shot is had, a fork brings the connection back, and it comes into the rings again: the member is still there, silent until it is
/// asked for again, as often as that happens.
pub(crate) fn shot_over_a_fork(side: Side, log: &mut Log) {
    side.warm_up();
    let set = Set::new();
    if side.server {
        set.add(side.fd, EPOLLIN | EPOLLONESHOT, 0);
    }
    for round in 0..4u8 {
        if !side.server {
            send_all(side.fd, &[round; 50]);
        } else {
            log.say(format_args!("{:?}", set.wait(LONG)));
            assert_eq!(recv_exactly(side.fd, 50), [round; 50]);
            // SAFETY: the child ends at once.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(0);
                }
                assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
            }
        }
        side.rendezvous(round);
        side.exchange(20);
        if side.server {
            log.say(format_args!("{:?}", set.wait(0)));
            log.result("a second time", set.ctl(EPOLL_CTL_ADD, side.fd, EPOLLIN, 9) as isize);
            log.result("again", set.ctl(EPOLL_CTL_MOD, side.fd, EPOLLIN | EPOLLONESHOT, round.into()) as isize);
        }
        side.rendezvous(round);
    }
}

/// Several threads in one set; each message is taken by one of them, and none is lost.
pub(crate) fn threads_in_a_set(side: Side, log: &mut Log) {
    side.warm_up();
    let rounds = 400usize;
    if !side.server {
        for round in 0..rounds {
            send_all(side.fd, &[1; 50]);
            if round % 7 == 0 {
                nap(1);
            }
            assert_eq!(recv_exactly(side.fd, 50), [2; 50]);
        }
        return log.result("the end", recv(side.fd, &mut [0; 9], 0));
    }
    let taken = std::sync::atomic::AtomicUsize::new(0);
    for (kind, goal) in [(EPOLLET, rounds / 4), (EPOLLONESHOT, rounds / 2), (0, rounds)] {
        let set = Set::new();
        set.add(side.fd, EPOLLIN | kind, 1);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let begun = Instant::now();
                    while taken.load(std::sync::atomic::Ordering::SeqCst) < goal {
                        assert!(begun.elapsed() < Duration::from_secs(40), "lost: kind {kind}");
                        let events = set.wait(100);
                        for event in events {
                            assert_eq!(event, (EPOLLIN as u32, 1));
                            let mut bytes = [0; 50];
                            // The client goes on only when it has its answer: one message at a time.
                            let n = recv(side.fd, &mut bytes, libc::MSG_DONTWAIT);
                            if n > 0 {
                                assert_eq!(n, 50);
                                taken.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                                send_all(side.fd, &[2; 50]);
                            }
                            if kind == EPOLLONESHOT {
                                set.change(side.fd, EPOLLIN | kind, 1);
                            }
                        }
                    }
                });
            }
        });
        // SAFETY: a descriptor of ours.
        unsafe { libc::close(set.0) };
    }
    log.say(format_args!("taken {}", taken.load(std::sync::atomic::Ordering::SeqCst)));
}

/// A thread sleeps in the set while another one adds to it and asks again.
pub(crate) fn change_under_a_sleeper(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        return side.send_rounds(30);
    }
    let set = Set::new();
    for round in 0..30u8 {
        while recv(side.fd, &mut [0; 50], libc::MSG_PEEK | libc::MSG_DONTWAIT) != 50 {
            nap(1);
        }
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| set.wait(LONG));
            nap(5);
            let events = EPOLLIN | EPOLLONESHOT | if round % 4 < 2 { EPOLLET } else { 0 };
            if round == 0 {
                set.add(side.fd, events, u64::from(round));
            } else {
                set.change(side.fd, events, u64::from(round));
            }
            assert_eq!(sleeper.join().unwrap(), [(EPOLLIN as u32, u64::from(round))]);
        });
        side.take_round(round);
    }
    log.say("all woken");
}

/// A server of many connections in one set that tells one event at a time.
pub(crate) fn set_of_many(side: Side, log: &mut Log) {
    const MANY: usize = 200;
    side.warm_up();
    if !side.server {
        let port = u16::from_be_bytes(recv_exactly(side.fd, 2).try_into().unwrap());
        let connect = || std::net::TcpStream::connect(("127.0.0.1", port)).unwrap().into_raw_fd();
        let all: Vec<RawFd> = (0..MANY).map(|_| connect()).collect();
        for round in 0..30usize {
            for fd in &all {
                send_all(*fd, &pattern(round + *fd as usize, 64));
            }
            for fd in &all {
                assert!(recv_exactly(*fd, 64) == pattern(round + *fd as usize, 64));
            }
        }
        return side.rendezvous(1);
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let set = Set::new();
    set.add(listener.as_raw_fd(), EPOLLIN, u64::MAX);
    send_all(side.fd, &listener.local_addr().unwrap().port().to_be_bytes());
    let (mut open, mut closed, mut served) = (0, 0, 0);
    while closed < MANY {
        let max = if served % 3000 < 1500 { 1 } else { 32 };
        for (_, data) in set.try_wait(max, LONG).unwrap() {
            if data == u64::MAX {
                let fd = listener.accept().unwrap().0.into_raw_fd();
                open += 1;
                set.add(fd, EPOLLIN | if open % 2 == 0 { EPOLLET } else { 0 }, fd as u64);
                continue;
            }
            let fd = data as RawFd;
            loop {
                let mut bytes = [0; 64];
                match recv(fd, &mut bytes, libc::MSG_DONTWAIT) {
                    0 => {
                        closed += 1;
                        // SAFETY: a descriptor of ours.
                        unsafe { libc::close(fd) };
                        break;
                    }
                    n if n < 0 => break,
                    n => {
                        served += 1;
                        send_all(fd, &bytes[..n as usize]);
                        if served == 30 * MANY {
                            side.rendezvous(1);
                        }
                    }
                }
            }
        }
    }
    log.say(format_args!("{open} opened, {served} served"));
}

/// Other descriptors in the same set are told of however busy the rings are.
pub(crate) fn set_with_a_pipe(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        for _ in 0..3000 {
            send_all(side.fd, &[1; 50]);
        }
        return assert_eq!(recv_exactly(side.fd, 1), [9]);
    }
    let set = Set::new();
    let mut pipe = [0; 2];
    // SAFETY: two ints.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    set.add(side.fd, EPOLLIN, 1);
    set.add(pipe[0], EPOLLIN, 2);
    assert_eq!(set.wait(LONG), [(EPOLLIN as u32, 1)]);
    // SAFETY: a live byte.
    assert_eq!(unsafe { libc::write(pipe[1], b"x".as_ptr().cast(), 1) }, 1);
    // Both stand from now on.
    let mut all = set.wait(LONG);
    all.sort_unstable_by_key(|event| event.1);
    log.say(format_args!("{all:?}"));
    let (mut ones, mut twos) = (0, 0);
    for _ in 0..200 {
        match set.try_wait(1, LONG).unwrap()[..] {
            [(_, 1)] => ones += 1,
            [(_, 2)] => twos += 1,
            ref other => panic!("{other:?}"),
        }
    }
    assert!(ones >= 10 && twos >= 10, "{ones} and {twos} of 200");
    assert_eq!(recv_exactly(side.fd, 150_000), [1; 150_000]);
    send_all(side.fd, &[9]);
}

/// Closed while in a set, itself or under another name, and the number used again.
pub(crate) fn close_in_a_set(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        send_all(side.fd, b"there");
        assert_eq!(recv_exactly(side.fd, 1), [1]);
        return log.result("the end", recv(side.fd, &mut [0; 9], 0));
    }
    let set = Set::new();
    set.add(side.fd, EPOLLIN, 1);
    log.say(format_args!("{:?}", set.wait(LONG)));
    // SAFETY: descriptors of ours.
    unsafe {
        let double = libc::dup(side.fd);
        libc::close(side.fd);
        // The kernel goes on with what it knows, for the double keeps the connection open.
        log.say(format_args!("under its old number: {:?}", set.wait(LONG)));
        assert_eq!(recv_exactly(double, 5), b"there");
        log.say(format_args!("{:?}", set.wait(0)));
        let mut pipe = [0; 2];
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        assert_eq!(pipe[0], side.fd, "the number is used again");
        set.add(pipe[0], EPOLLIN, 2);
        libc::write(pipe[1], b"x".as_ptr().cast(), 1);
        log.say(format_args!("{:?}", set.wait(LONG)));
        send_all(double, &[1]);
        libc::close(double);
    }
    log.say(format_args!("{:?}", set.wait(0)));
}
