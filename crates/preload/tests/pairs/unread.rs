//! Bytes that lie unread when the receiver leaves the rings, or the sender ends: all of them arrive, and none waits for the sender's
//! next call.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::sock::{Log, Side, close, nap, pattern, recv, recv_to_end, second, send_all, set_option};

/// What a receiver does that rings do not cover.
type Leave = fn(RawFd);

/// This process reads on.
const COVERED: [(&str, Leave); 6] = [
    ("nothing", |_| ()),
    ("fork", |_| forked(|| ())),
    ("system", inherited),
    ("shutdown", shut_down),
    ("lowat", lowat),
    ("oobinline", inline),
];

/// The kernel reads, or is asked.
const UNSEEN: [(&str, Leave); 6] = [
    ("many", polled_among_many),
    ("truncated", truncated),
    ("stream", stream),
    ("standard input", standard_input),
    ("program", |fd| drop(reader(fd, 0))),
    ("splice", spliced),
];

fn lowat(fd: RawFd) {
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1);
}

fn inline(fd: RawFd) {
    set_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &1);
}

fn shut_down(fd: RawFd) {
    // SAFETY: a descriptor of ours.
    assert_eq!(unsafe { libc::shutdown(fd, libc::SHUT_WR) }, 0);
}

fn truncated(fd: RawFd) {
    let mut byte = 0u8;
    // SAFETY: a live byte, of which none is written.
    assert_eq!(unsafe { libc::recv(fd, (&raw mut byte).cast(), 0, libc::MSG_TRUNC) }, 0);
}

fn stream(fd: RawFd) {
    // SAFETY: a descriptor of ours; the stream is never used.
    assert!(!unsafe { libc::fdopen(fd, c"r".as_ptr()) }.is_null());
}

fn standard_input(fd: RawFd) {
    // SAFETY: a descriptor of ours over one that nobody reads.
    assert_eq!(unsafe { libc::dup2(fd, 0) }, 0);
}

fn spliced(fd: RawFd) {
    // SAFETY: no positions are passed, and nothing is moved.
    assert!(unsafe { libc::splice(fd, null(), pipe()[1], null(), 0, libc::SPLICE_F_NONBLOCK) } <= 0);
}

/// A program beside this one has the descriptor as well, and leaves it alone.
fn inherited(fd: RawFd) {
    // SAFETY: a descriptor of ours, and a command.
    unsafe {
        assert_eq!(libc::fcntl(fd, libc::F_SETFD, 0), 0);
        assert_eq!(libc::system(c"true".as_ptr()), 0);
        assert_eq!(libc::fcntl(fd, libc::F_GETFD), 0, "it is inherited again");
    }
}

fn null() -> *mut libc::loff_t {
    std::ptr::null_mut()
}

fn pipe() -> [c_int; 2] {
    let mut pipe = [-1; 2];
    // SAFETY: places for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    pipe
}

fn forked(f: impl FnOnce()) {
    // SAFETY: the child goes on with this thread alone, and ends here.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            f();
            libc::_exit(0);
        }
        let mut status = -1;
        assert_eq!((libc::waitpid(child, &mut status, 0), status), (child, 0));
    }
}

fn polled_among_many(fd: RawFd) {
    let mut polls = vec![libc::pollfd { fd: -1, events: 0, revents: 0 }; 400];
    polls[0] = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: so many pollfds.
    assert_eq!(unsafe { libc::poll(polls.as_mut_ptr(), 400, 0) }, 1);
}

/// Another program reads so many bytes.
fn reader(fd: RawFd, bytes: usize) -> Vec<u8> {
    // SAFETY: a duplicate of ours.
    let input = unsafe { OwnedFd::from_raw_fd(libc::dup(fd)) };
    let mut command = std::process::Command::new("head");
    command.arg("-c").arg(bytes.to_string()).env_remove("LD_PRELOAD").stdin(input);
    command.output().unwrap().stdout
}

/// What the sender does behind its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Close,
    ShutDown,
    Nothing,
}

fn try_all(side: &Side, log: &mut Log, ways: &[(&str, Leave)], then: Then) {
    side.warm_up();
    let unseen = ways.iter().any(|(name, _)| *name == UNSEEN[0].0);
    for (name, leave) in ways {
        for len in [1, 100_000, 130_000, 1_500_000] {
            // A sender that has closed leaves in the kernel what that takes at once; the rest is to be had here alone.
            let most = if !side.tcp || then == Then::Close && unseen { 130_000 } else { 1_500_000 };
            if len > most || *name == "program" && then != Then::Nothing {
                continue;
            }
            // The other direction goes on.
            let answers = then == Then::ShutDown && *name != "shutdown";
            let one = second(side);
            one.warm_up();
            if !side.server {
                send_all(one.fd, &pattern(7, len));
                match then {
                    Then::Close => close(one.fd),
                    Then::ShutDown => shut_down(one.fd),
                    Then::Nothing => {}
                }
                side.rendezvous(1);
                // Not one call to that connection until the other end has all.
                side.rendezvous(2);
                if answers {
                    log.say(crate::sock::recv_exactly(one.fd, 1000) == pattern(3, 1000));
                }
                if then != Then::Close {
                    close(one.fd);
                }
                continue;
            }
            side.rendezvous(1);
            leave(one.fd);
            if answers {
                send_all(one.fd, &pattern(3, 1000));
            }
            if then == Then::Nothing {
                let mut got = Vec::new();
                let mut bytes = vec![0; len];
                while got.len() < len {
                    let n = recv(one.fd, &mut bytes[..len - got.len()], 0);
                    if n <= 0 {
                        break;
                    }
                    got.extend_from_slice(&bytes[..n as usize]);
                }
                log.say(format_args!("{name} {len}: {}", got == pattern(7, len)));
            } else {
                let (got, end) = recv_to_end(one.fd);
                log.say(format_args!("{name} {len}: {} {end}", got == pattern(7, len)));
            }
            side.rendezvous(2);
            close(one.fd);
        }
    }
}

pub(crate) fn unread_of_a_closed(side: Side, log: &mut Log) {
    try_all(&side, log, &COVERED, Then::Close);
}

pub(crate) fn unread_of_a_half_closed(side: Side, log: &mut Log) {
    try_all(&side, log, &COVERED, Then::ShutDown);
}

pub(crate) fn unread_of_an_idle(side: Side, log: &mut Log) {
    try_all(&side, log, &COVERED, Then::Nothing);
}

pub(crate) fn unseen_of_a_closed(side: Side, log: &mut Log) {
    try_all(&side, log, &UNSEEN, Then::Close);
}

pub(crate) fn unseen_of_an_idle(side: Side, log: &mut Log) {
    try_all(&side, log, &UNSEEN, Then::Nothing);
}

/// Who closes over unread bytes resets the connection: whatever call asks first hears of it, and the next ones find an end.
pub(crate) fn reset_for_any_call(side: Side, log: &mut Log) {
    side.warm_up();
    for (name, leave) in [("nothing", COVERED[0].1), ("fork", COVERED[1].1), ("splice", spliced), ("system", inherited)]
    {
        let one = second(&side);
        one.warm_up();
        if side.server {
            send_all(one.fd, b"never read");
        } else {
            // It may be held back until what came before is acknowledged.
            assert_eq!(recv(one.fd, &mut [0], libc::MSG_PEEK), 1);
            close(one.fd);
        }
        side.rendezvous(1);
        if side.server {
            nap(20);
            let to = pipe()[1];
            if name == "splice" {
                // SAFETY: no positions are passed.
                log.result(name, unsafe { libc::splice(one.fd, null(), to, null(), 100, 0) });
            } else {
                leave(one.fd);
            }
            let mut byte = [0; 1];
            for _ in 0..2 {
                log.result(name, recv(one.fd, &mut byte, 0));
            }
            close(one.fd);
        }
        side.rendezvous(2);
    }
}

/// Parent and child take turns at what lay in the ring, and at what comes behind it.
pub(crate) fn unread_by_both(side: Side, log: &mut Log) {
    side.warm_up();
    let one = second(&side);
    one.warm_up();
    if !side.server {
        send_all(one.fd, &pattern(0, 90_000));
        side.rendezvous(1);
        side.rendezvous(2);
        send_all(one.fd, &pattern(90_000, 30_000));
        close(one.fd);
        side.rendezvous(3);
        return;
    }
    side.rendezvous(1);
    let mut at = 0;
    let mut take = |len: usize| {
        let got = crate::sock::recv_exactly(one.fd, len);
        let right = got == pattern(at, len);
        at += len;
        right
    };
    // Grandchildren as well.
    forked(|| {
        assert!(take(10_000));
        forked(|| assert!(take(10_000)));
    });
    at = 20_000;
    let mut take = |len: usize| {
        let got = crate::sock::recv_exactly(one.fd, len);
        let right = got == pattern(at, len);
        at += len;
        right
    };
    log.say(take(10_000));
    forked(|| assert!(take(60_000)));
    side.rendezvous(2);
    at = 90_000;
    let (got, end) = recv_to_end(one.fd);
    log.say(format_args!("{} {end}", got == pattern(at, 30_000)));
    side.rendezvous(3);
}

/// Both ends write before they read: as much as the kernel takes.
pub(crate) fn written_before_read(side: Side, log: &mut Log) {
    side.warm_up();
    for len in [100_000, 140_000, 170_000, 1_000_000, 1_800_000] {
        if !side.tcp && len > 170_000 {
            continue;
        }
        let one = second(&side);
        one.warm_up();
        // In small pieces at first: they are unread when the ring grows.
        for at in (0..5000).step_by(1000) {
            send_all(one.fd, &pattern(3 + at, 1000));
        }
        send_all(one.fd, &pattern(5003, len - 5000));
        log.say(crate::sock::recv_exactly(one.fd, len) == pattern(3, len));
        // And once more, in the ring that has grown.
        nap(5);
        send_all(one.fd, &pattern(len, len));
        log.say(crate::sock::recv_exactly(one.fd, len) == pattern(len, len));
        one.exchange(20);
        close(one.fd);
    }
}

/// The same without waiting: what the kernel would take is taken, by one who tries again and again, or polls.
pub(crate) fn written_without_waiting(side: Side, log: &mut Log) {
    side.warm_up();
    let len = if side.tcp { 1_000_000 } else { 160_000 };
    for polls in [false, true] {
        let one = second(&side);
        one.warm_up();
        if !side.server {
            let bytes = pattern(0, len);
            let (mut sent, mut tries) = (0, 0);
            while sent < len && tries < 2000 {
                let n = crate::sock::send(one.fd, &bytes[sent..], libc::MSG_DONTWAIT);
                if n > 0 {
                    sent += n as usize;
                } else if polls {
                    let mut poll = libc::pollfd { fd: one.fd, events: libc::POLLOUT, revents: 0 };
                    // SAFETY: one pollfd.
                    assert_eq!(unsafe { libc::poll(&mut poll, 1, 30_000) }, 1);
                } else {
                    nap(1);
                }
                tries += 1;
            }
            log.say(sent == len);
            side.rendezvous(1);
            side.rendezvous(2);
        } else {
            side.rendezvous(1);
            log.say(crate::sock::recv_exactly(one.fd, len) == pattern(0, len));
            side.rendezvous(2);
        }
        close(one.fd);
    }
}

/// A stream of the C library reads all of it, whatever has become of the sender and of its ring.
pub(crate) fn unread_by_a_stream(side: Side, log: &mut Log) {
    side.warm_up();
    for then in [Then::Nothing, Then::ShutDown, Then::Close] {
        for (len, forks) in [(1, false), (100_000, false), (130_000, true), (1_500_000, false), (1_500_000, true)] {
            if !side.tcp && len > 130_000 {
                continue;
            }
            let one = second(&side);
            one.warm_up();
            if !side.server {
                send_all(one.fd, &pattern(7, len));
                if forks {
                    forked(|| ());
                }
                match then {
                    Then::Close => close(one.fd),
                    Then::ShutDown => shut_down(one.fd),
                    Then::Nothing => {}
                }
                side.rendezvous(1);
                // Not one call to that connection until the other end has all.
                side.rendezvous(2);
                if then == Then::Nothing {
                    log.say(crate::sock::recv_exactly(one.fd, 6) == b"answer");
                }
                if then != Then::Close {
                    close(one.fd);
                }
                continue;
            }
            side.rendezvous(1);
            // SAFETY: a stream over a descriptor of ours, which is its own from here on; live buffers.
            unsafe {
                let stream = libc::fdopen(one.fd, c"r+".as_ptr());
                assert!(!stream.is_null() && libc::fileno(stream) == one.fd);
                let mut got = vec![0u8; len + 1];
                let most = if then == Then::Nothing { len } else { len + 1 };
                let n = libc::fread(got.as_mut_ptr().cast(), 1, most, stream);
                got.truncate(n);
                let ends = (libc::feof(stream) != 0, libc::ferror(stream) != 0);
                log.say(format_args!("{then:?} {len}: {} of {n} {ends:?}", got == pattern(7, len)));
                side.rendezvous(2);
                if then == Then::Nothing {
                    log.result("seek", libc::fseek(stream, 0, libc::SEEK_CUR) as isize);
                    assert_eq!(libc::fwrite(b"answer".as_ptr().cast(), 1, 6, stream), 6);
                }
                log.result("close", libc::fclose(stream) as isize);
                log.say(libc::fcntl(one.fd, libc::F_GETFD));
            }
        }
    }
}
