//! Calls that wait, and what ends them from outside: a shutdown by another thread, death, cancellation, a jump.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::calls::jump;
use crate::sets::{LONG, Set};
use crate::sock::{
    Log, Side, close, nap, pattern, recv, recv_exactly, recv_to_end, second, send, send_all, set_option,
};

/// More than any buffer takes.
pub(crate) fn much() -> &'static [u8] {
    static MUCH: OnceLock<Vec<u8>> = OnceLock::new();
    MUCH.get_or_init(|| vec![5; 30_000_000])
}

fn shut(fd: RawFd, how: c_int) {
    // SAFETY: a descriptor of ours.
    assert_eq!(unsafe { libc::shutdown(fd, how) }, 0);
}

fn polled(fd: RawFd, events: i16) -> String {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one pollfd.
    let n = unsafe { libc::poll(&mut poll, 1, LONG) };
    format!("{n} {:x}", poll.revents)
}

fn selected(fd: RawFd, for_room: bool) -> String {
    // SAFETY: a set of one descriptor.
    unsafe {
        let mut set: libc::fd_set = std::mem::zeroed();
        libc::FD_SET(fd, &mut set);
        let (none, at) = (std::ptr::null_mut::<libc::fd_set>(), &raw mut set);
        let (reads, writes) = if for_room { (none, at) } else { (at, none) };
        let n = libc::select(fd + 1, reads, writes, none, std::ptr::null_mut());
        format!("{n} {}", libc::FD_ISSET(fd, &set))
    }
}

fn waited(fd: RawFd, events: c_int) -> String {
    let set = Set::new();
    set.add(fd, events, 7);
    let events = format!("{:x?}", set.wait(LONG));
    close(set.0);
    events
}

/// One thread waits for bytes, another shuts the socket down.
pub(crate) fn shut_down_beside(side: Side, log: &mut Log) {
    side.warm_up();
    for (round, (kind, how)) in WAITS.into_iter().enumerate() {
        let one = second(&side);
        one.warm_up();
        if !side.server {
            side.rendezvous(round as u8);
            log.say(format_args!("{:?}", recv_to_end(one.fd)));
            side.rendezvous(round as u8);
            close(one.fd);
            continue;
        }
        let seen = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| match kind {
                0 => format!("{}", recv(one.fd, &mut [0; 9], 0)),
                1 => polled(one.fd, libc::POLLIN | libc::POLLRDHUP),
                2 => selected(one.fd, false),
                _ => waited(one.fd, libc::EPOLLIN | libc::EPOLLRDHUP),
            });
            nap(40);
            shut(one.fd, how);
            waiter.join().unwrap()
        });
        log.say(format_args!("{kind} {how}: {seen}"));
        log.result("then", recv(one.fd, &mut [0; 9], 0));
        if how == libc::SHUT_RD {
            send_all(one.fd, b"still sends");
        }
        shut(one.fd, libc::SHUT_RDWR);
        side.rendezvous(round as u8);
        side.rendezvous(round as u8);
        close(one.fd);
    }
}

const WAITS: [(u8, c_int); 6] = [
    (0, libc::SHUT_RDWR),
    (0, libc::SHUT_RD),
    (1, libc::SHUT_RDWR),
    (2, libc::SHUT_RDWR),
    (3, libc::SHUT_RDWR),
    (3, libc::SHUT_RD),
];

/// One thread waits for room, or to be told of it, while nobody reads; another shuts the socket down.
pub(crate) fn shut_down_in_a_send(side: Side, log: &mut Log) {
    side.warm_up();
    much();
    for round in 0..4u8 {
        let one = second(&side);
        if round & 1 == 1 {
            set_option(one.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &4608);
        }
        one.warm_up();
        let how = if round < 2 { libc::SHUT_RDWR } else { libc::SHUT_WR };
        if !side.server {
            // The first of them are there.
            assert_eq!(recv(one.fd, &mut [0], libc::MSG_PEEK), 1);
            side.rendezvous(round);
            let mut sent = [0; 8];
            sent.copy_from_slice(&recv_exactly(side.fd, 8));
            let (bytes, end) = recv_to_end(one.fd);
            assert!(bytes.len() as u64 == u64::from_le_bytes(sent), "{} of {sent:?}", bytes.len());
            log.say(end);
            close(one.fd);
            continue;
        }
        let (sent, after) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| (send(one.fd, much(), 0), Instant::now()));
            side.rendezvous(round);
            nap(60);
            let begun = Instant::now();
            shut(one.fd, how);
            let (sent, done) = sender.join().unwrap();
            (sent, done.saturating_duration_since(begun))
        });
        log.say(format_args!("{how}: {}, {}", sent > 0, after < Duration::from_secs(10)));
        log.result("then", send(one.fd, b"x", 0));
        send_all(side.fd, &(sent as u64).to_le_bytes());
        close(one.fd);
    }
}

/// One thread waits for room, or to be told of it; another forks, which takes the connection out of the rings. The wait goes on.
pub(crate) fn fork_beside_a_sender(side: Side, log: &mut Log) {
    side.warm_up();
    much();
    for round in 0..4u8 {
        let one = second(&side);
        one.warm_up();
        if !side.server {
            side.rendezvous(round);
            until_the_mark(one.fd);
            one.exchange(5);
            close(one.fd);
            continue;
        }
        while round > 0 && send(one.fd, &[5; 1000], libc::MSG_DONTWAIT) > 0 {}
        let seen = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| match round {
                0 => send(one.fd, much(), 0).to_string(),
                1 => polled(one.fd, libc::POLLOUT),
                2 => selected(one.fd, true),
                _ => waited(one.fd, libc::EPOLLOUT),
            });
            nap(60);
            // SAFETY: the child ends at once.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(0);
                }
                assert_eq!(libc::waitpid(child, &mut 0, 0), child);
            }
            side.rendezvous(round);
            waiter.join().unwrap()
        });
        log.say(seen);
        send_all(one.fd, &[9]);
        one.exchange(5);
        close(one.fd);
    }
}

/// The connecting program is killed while the accepting one waits in each way that there is, and with bytes left to read.
pub(crate) fn killed_connector(side: Side, log: &mut Log) {
    side.warm_up();
    let all: Vec<Side> = (0..7).map(|_| second(&side)).collect();
    all.iter().for_each(Side::warm_up);
    if !side.server {
        for (index, one) in all.iter().enumerate() {
            send_all(one.fd, &pattern(index, LEFT[index]));
        }
        side.rendezvous(1);
        nap(50);
        log.say("done");
        // SAFETY: ends this very process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    side.rendezvous(1);
    let seen: Vec<String> = std::thread::scope(|scope| {
        let waiters: Vec<_> = all
            .iter()
            .enumerate()
            .map(|(index, one)| {
                scope.spawn(move || {
                    if LEFT[index] > 0 {
                        // Not before it is dead.
                        nap(200);
                    }
                    let reported = match index % 4 {
                        0 => String::new(),
                        // That a Unix socket has hung up is told once its ring is empty.
                        1 if LEFT[index] > 0 => polled(one.fd, libc::POLLIN).starts_with("1 ").to_string(),
                        1 => polled(one.fd, libc::POLLIN),
                        2 => selected(one.fd, false),
                        _ => waited(one.fd, libc::EPOLLIN).len().min(3).to_string(),
                    };
                    let (bytes, end) = recv_to_end(one.fd);
                    assert!(bytes == pattern(index, LEFT[index]), "{} bytes of {}", bytes.len(), LEFT[index]);
                    format!("{index}: {reported} {end} {}", recv(one.fd, &mut [0], 0))
                })
            })
            .collect();
        waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect()
    });
    seen.into_iter().for_each(|line| log.say(line));
    for one in &all {
        while send(one.fd, b"x", 0) > 0 {
            nap(1);
        }
        log.result("send", send(one.fd, b"x", 0));
    }
}

const LEFT: [usize; 7] = [0, 0, 0, 0, 100, 100_000, 1500];

/// Takes what somebody sent who was stopped in the middle, and what he then said.
fn until_the_mark(fd: RawFd) {
    let mut part = vec![0; 100_000];
    loop {
        let n = recv(fd, &mut part, 0);
        assert!(n > 0, "{}", std::io::Error::last_os_error());
        let (last, rest) = part[..n as usize].split_last().unwrap();
        assert!(rest.iter().all(|byte| *byte == 5));
        match last {
            5 => {}
            last => return assert_eq!(*last, 9),
        }
    }
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
}

unsafe extern "C-unwind" {
    #[link_name = "send"]
    fn send_unwinding(fd: c_int, to: *const c_void, len: usize, flags: c_int) -> isize;
    #[link_name = "writev"]
    fn writev_unwinding(fd: c_int, list: *const libc::iovec, count: c_int) -> isize;
}

/// A thread is cancelled in a send that has no room; the connection goes on behind what had gone.
pub(crate) fn cancelled_senders(side: Side, log: &mut Log) {
    extern "C-unwind" fn sends(what: *mut c_void) -> *mut c_void {
        let (fd, vector) = ((what as usize & 0xffff) as c_int, what as usize >> 16 == 1);
        let part = libc::iovec { iov_base: much().as_ptr().cast_mut().cast(), iov_len: much().len() };
        // SAFETY: a static buffer.
        unsafe {
            if vector {
                writev_unwinding(fd, &part, 1)
            } else {
                send_unwinding(fd, part.iov_base, part.iov_len, 0)
            };
        }
        std::ptr::null_mut()
    }
    side.warm_up();
    much();
    for round in 0..4u8 {
        let one = second(&side);
        one.warm_up();
        if !side.server {
            assert_eq!(recv(one.fd, &mut [0], libc::MSG_PEEK), 1);
            side.rendezvous(round);
            assert_eq!(recv_exactly(side.fd, 1), [round]);
            until_the_mark(one.fd);
            one.exchange(5);
            close(one.fd);
            continue;
        }
        // SAFETY: a function of the ABI that threads have, which may be unwound; a number for it.
        unsafe {
            let body = std::mem::transmute::<
                extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                extern "C" fn(*mut c_void) -> *mut c_void,
            >(sends);
            let mut thread: libc::pthread_t = std::mem::zeroed();
            let what = (usize::from(round % 2) << 16 | one.fd as usize) as *mut c_void;
            assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), body, what), 0);
            side.rendezvous(round);
            nap(50);
            assert_eq!(pthread_cancel(thread), 0);
            let mut result = std::ptr::null_mut();
            assert_eq!(libc::pthread_join(thread, &mut result), 0);
            log.say(format_args!("cancelled {}", result as isize));
        }
        send_all(side.fd, &[round]);
        send_all(one.fd, &[9]);
        one.exchange(5);
        close(one.fd);
    }
}

/// A signal handler jumps out of a send that has no room, and again and again out of those that find none: nothing is changed by that.
pub(crate) fn jumps_out_of_a_send(side: Side, log: &mut Log) {
    side.warm_up();
    much();
    for round in 0..3u8 {
        let one = second(&side);
        one.warm_up();
        if !side.server {
            assert_eq!(recv(one.fd, &mut [0], libc::MSG_PEEK), 1);
            assert_eq!(recv_exactly(side.fd, 1), [round]);
            until_the_mark(one.fd);
            one.exchange(5);
            close(one.fd);
            continue;
        }
        log.say(jump::out_of(jump::SEND, one.fd, 0, 100_000));
        for micros in 0..50 {
            assert_eq!(jump::out_of(jump::SENDS, one.fd, 0, 7 * micros), -77);
        }
        send_all(side.fd, &[round]);
        send_all(one.fd, &[9]);
        one.exchange(5);
        close(one.fd);
    }
}

/// A signal handler jumps out of a program that exchanges messages as fast as it can, wherever it is; what was interrupted is closed, and
/// other connections are made.
pub(crate) fn jumps_out_of_anything(side: Side, log: &mut Log) {
    side.warm_up();
    for round in 0..60u64 {
        let one = second(&side);
        one.warm_up();
        if side.server {
            assert_eq!(jump::out_of(jump::EXCHANGE, one.fd, 0, 500 + 37 * round), -77);
        } else {
            let mut part = [0; 100];
            loop {
                let n = recv(one.fd, &mut part, 0);
                if n <= 0 || send(one.fd, &part[..n as usize], 0) <= 0 {
                    break;
                }
            }
        }
        close(one.fd);
    }
    side.rendezvous(1);
    log.say("as ever");
}

/// A signal handler jumps out of calls that find nothing: nothing has happened to the connection.
pub(crate) fn jumps_out_of_looks(side: Side, log: &mut Log) {
    side.warm_up();
    for round in 0..200u64 {
        if side.server {
            let kind = if round % 2 == 0 { jump::RECEIVES } else { jump::POLLS };
            assert_eq!(jump::out_of(kind, side.fd, 0, 29 * round % 700), -77);
            send_all(side.fd, &[round as u8]);
            assert_eq!(recv_exactly(side.fd, 1), [round as u8]);
        } else {
            assert_eq!(recv_exactly(side.fd, 1), [round as u8]);
            send_all(side.fd, &[round as u8]);
        }
    }
    side.rendezvous(1);
    log.say("as ever");
}

/// The same out of a program that exchanges messages as fast as it can, and goes on with the connection: that may be lost, and says so.
pub(crate) fn jumps_and_goes_on(side: Side, log: &mut Log) {
    side.warm_up();
    let end = std::time::Duration::from_secs(20);
    for round in 0..60u64 {
        let one = second(&side);
        one.warm_up();
        if !side.server {
            let mut part = [0; 100];
            loop {
                let n = recv(one.fd, &mut part, 0);
                if n <= 0 || send(one.fd, &part[..n as usize], 0) <= 0 {
                    break;
                }
            }
            close(one.fd);
            continue;
        }
        let mut out = 0;
        // Until there is an error, or for a while.
        let begun = std::time::Instant::now();
        for again in 0..5 {
            assert_eq!(jump::out_of(jump::EXCHANGE, one.fd, 0, 300 + 37 * round + 11 * again), -77);
            let (mut bytes, mut refused) = ([7; 100], 0);
            loop {
                let sends = send(one.fd, &bytes, libc::MSG_DONTWAIT);
                let error = std::io::Error::last_os_error().raw_os_error();
                if sends >= 0 || error != Some(libc::EINTR) {
                    out += usize::from(sends < 0 && error == Some(libc::ECONNRESET));
                    break;
                }
                refused += 1;
                assert!(refused < 100_000 && begun.elapsed() < end, "EINTR for ever");
            }
            if out > 0 {
                assert_eq!(recv(one.fd, &mut bytes, 0), -1);
                assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ECONNRESET));
                break;
            }
        }
        close(one.fd);
    }
    side.rendezvous(1);
    log.say("as ever");
}
