//! Calls that end a connection's acceleration, or go around the usual ones.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::os::fd::RawFd;

use crate::sets::{LONG, Set};
use crate::sock::{
    Log, Side, close, nap, pattern, recv, recv_exactly, recv_to_end, second, send, send_all, set_option,
};

unsafe extern "C" {
    fn __read_chk(fd: c_int, to: *mut c_void, len: usize, room: usize) -> isize;
    fn __recv_chk(fd: c_int, to: *mut c_void, len: usize, room: usize, flags: c_int) -> isize;
    fn __recvfrom_chk(
        fd: c_int,
        to: *mut c_void,
        len: usize,
        room: usize,
        flags: c_int,
        address: *mut c_void,
        alen: *mut u32,
    ) -> isize;
    fn __poll_chk(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int, room: usize) -> c_int;
    fn __ppoll_chk(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
        room: usize,
    ) -> c_int;
    fn __fdelt_chk(fd: c_long) -> c_long;
}

/// What a compiler makes of read, recv and poll when it knows the buffer's size; one that is too small ends the program.
pub(crate) fn fortified(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        for round in 0..5usize {
            send_all(side.fd, &pattern(round, 100));
            side.rendezvous(1);
        }
        return;
    }
    for round in 0..5 {
        let mut bytes = [0u8; 100];
        let mut poll = libc::pollfd { fd: side.fd, events: libc::POLLIN, revents: 0 };
        let (at, none, room) = (bytes.as_mut_ptr().cast(), std::ptr::null_mut::<c_void>(), size_of::<libc::pollfd>());
        // SAFETY: live buffers of the lengths that are given.
        let n = unsafe {
            let ready = match round % 2 {
                0 => __poll_chk(&mut poll, 1, LONG, room),
                _ => __ppoll_chk(&mut poll, 1, std::ptr::null(), std::ptr::null(), room),
            };
            log.say(format_args!("{ready} {:x} {}", poll.revents, __fdelt_chk(5)));
            match round {
                0 | 3 => __read_chk(side.fd, at, 100, 100),
                1 | 4 => __recv_chk(side.fd, at, 100, 100, libc::MSG_WAITALL),
                _ => __recvfrom_chk(side.fd, at, 100, 100, 0, none, std::ptr::null_mut()),
            }
        };
        log.result("received", n);
        assert!(bytes[..] == pattern(round, 100));
        side.rendezvous(1);
    }
    for kind in 0..4 {
        // SAFETY: the child ends in the call; none of them writes, for the room that they are told of is too small.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::dup2(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR), 2);
                let mut bytes = [0u8; 100];
                let mut poll = libc::pollfd { fd: side.fd, events: libc::POLLIN, revents: 0 };
                let at = bytes.as_mut_ptr().cast();
                match kind {
                    0 => __read_chk(side.fd, at, 100, 99) as c_int,
                    1 => __recv_chk(side.fd, at, 100, 99, 0) as c_int,
                    2 => __poll_chk(&mut poll, 1, 0, 7),
                    _ => __ppoll_chk(&mut poll, 1, std::ptr::null(), std::ptr::null(), 7),
                };
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            log.say(format_args!("too small: signal {}", libc::WTERMSIG(status)));
        }
    }
}

/// A new program gets the connection by file actions; others are started beside it.
pub(crate) fn spawned(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        send_all(side.fd, b"one line\n");
        let (bytes, end) = recv_to_end(side.fd);
        return log.say(format_args!("{} then {end}", String::from_utf8_lossy(&bytes)));
    }
    // The line is in the ring when the other program asks for it.
    let mut poll = libc::pollfd { fd: side.fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    log.result("poll", unsafe { libc::poll(&mut poll, 1, LONG) } as isize);
    let spawn = |script: &std::ffi::CStr, connected: bool| {
        // SAFETY: initialised before they are used; strings that end with zeroes.
        unsafe {
            let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
            libc::posix_spawn_file_actions_init(&mut actions);
            if connected {
                libc::posix_spawn_file_actions_adddup2(&mut actions, side.fd, 0);
                libc::posix_spawn_file_actions_adddup2(&mut actions, side.fd, 1);
                libc::posix_spawn_file_actions_addclose(&mut actions, side.fd);
            }
            let mut child = 0;
            let arguments =
                [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()].map(<*const c_char>::cast_mut);
            let path = [c"PATH=/usr/bin:/bin".as_ptr(), std::ptr::null()].map(<*const c_char>::cast_mut);
            let (arguments, path) = (arguments.as_ptr(), path.as_ptr());
            let n = libc::posix_spawn(&mut child, c"/bin/sh".as_ptr(), &actions, std::ptr::null(), arguments, path);
            assert_eq!(n, 0);
            let mut status = 1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            libc::posix_spawn_file_actions_destroy(&mut actions);
            status
        }
    };
    log.say(spawn(c"exit 3", false));
    log.say(spawn(c"read line; echo \"got $line\"", true));
    send_all(side.fd, b"and the parent");
    close(side.fd);
}

/// Whole ranges of descriptors are closed, now or by the next program.
pub(crate) fn closed_by_range(side: Side, log: &mut Log) {
    side.warm_up();
    let other = second(&side);
    other.warm_up();
    if !side.server {
        for fd in [side.fd, other.fd] {
            let (bytes, end) = recv_to_end(fd);
            log.say(format_args!("{} then {end}", String::from_utf8_lossy(&bytes)));
        }
        return;
    }
    for (fd, flags) in [(side.fd, 0), (other.fd, CLOSE_RANGE_CLOEXEC)] {
        send_all(fd, b"before ");
        // SAFETY: descriptors of ours, or the child's alone.
        unsafe {
            if flags == 0 {
                log.result("close_range", libc::close_range(fd as u32, fd as u32, 0) as isize);
                log.result("closed", recv(fd, &mut [0; 1], 0));
                continue;
            }
            let child = libc::fork();
            if child == 0 {
                libc::fcntl(fd, libc::F_SETFD, 0);
                libc::close_range(fd as u32, u32::MAX, flags);
                let arguments = [c"true".as_ptr(), std::ptr::null()];
                libc::execvp(c"true".as_ptr(), arguments.as_ptr());
                libc::_exit(1);
            }
            let mut status = 1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            log.say(status);
            send_all(fd, b"after ");
            close(fd);
        }
    }
}

/// One connection takes the other's descriptor; the other ends, and the first is had by both.
pub(crate) fn one_over_the_other(side: Side, log: &mut Log) {
    side.warm_up();
    let other = second(&side);
    other.warm_up();
    if !side.server {
        let (bytes, end) = recv_to_end(other.fd);
        log.say(format_args!("{bytes:?} then {end}"));
        assert!(recv_exactly(side.fd, 2000) == pattern(0, 2000));
        send_all(side.fd, b"back");
        return log.result("the end", recv_to_end(side.fd).1);
    }
    // SAFETY: descriptors of ours.
    let to = unsafe { libc::dup2(side.fd, other.fd) };
    log.say(to == other.fd);
    send_all(other.fd, &pattern(0, 2000));
    close(side.fd);
    assert_eq!(recv_exactly(other.fd, 4), *b"back");
    // SAFETY: a bad descriptor: nothing is closed for it.
    log.result("of a bad one", unsafe { libc::dup2(9999, other.fd) } as isize);
    // SAFETY: the same to itself: nothing happens.
    log.say(unsafe { libc::dup2(other.fd, other.fd) } == other.fd);
    log.result("still there", recv(other.fd, &mut [0; 1], libc::MSG_DONTWAIT));
    close(other.fd);
}

/// A set that asks to wake one alone.
pub(crate) fn set_exclusive(side: Side, log: &mut Log) {
    if !side.server {
        side.warm_up();
        return side.send_rounds(20);
    }
    let (one, two) = (Set::new(), Set::new());
    for (set, data) in [(&one, 1), (&two, 2)] {
        set.add(side.fd, libc::EPOLLIN | libc::EPOLLEXCLUSIVE, data);
    }
    log.result("change", one.ctl(libc::EPOLL_CTL_MOD, side.fd, libc::EPOLLIN | libc::EPOLLEXCLUSIVE, 1) as isize);
    side.warm_up();
    for round in 0..20u8 {
        assert_eq!(one.wait(LONG), [(libc::EPOLLIN as u32, 1)]);
        assert_eq!(two.wait(LONG), [(libc::EPOLLIN as u32, 2)]);
        side.take_round(round);
    }
    log.say("both");
}

/// A close that resets, seen in each way that there is.
pub(crate) fn lingering(side: Side, log: &mut Log) {
    side.warm_up();
    for kind in 0..4 {
        let one = second(&side);
        one.warm_up();
        if side.server {
            side.rendezvous(1);
            nap(50);
            let value = libc::linger { l_onoff: 1, l_linger: 0 };
            set_option(one.fd, libc::SOL_SOCKET, libc::SO_LINGER, &value);
            close(one.fd);
            side.rendezvous(2);
            continue;
        }
        side.rendezvous(1);
        let mut poll = libc::pollfd { fd: one.fd, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        match kind {
            // Asleep when it comes.
            0 => log.result("recv", recv(one.fd, &mut [0; 9], 0)),
            1 => {
                poll.events = libc::POLLIN;
                // SAFETY: one pollfd.
                log.result("poll", unsafe { libc::poll(&mut poll, 1, LONG) } as isize);
                log.say(format_args!("{:x}", poll.revents));
            }
            2 => {
                let set = Set::new();
                set.add(one.fd, libc::EPOLLIN, 7);
                log.say(format_args!("{:x?}", set.wait(LONG)));
                close(set.0);
            }
            _ => nap(200),
        }
        side.rendezvous(2);
        let error =
            |log: &mut Log| log.say(format_args!("SO_ERROR {}", option(one.fd, libc::SOL_SOCKET, libc::SO_ERROR)));
        if kind % 2 == 1 {
            error(log);
        }
        // SAFETY: one pollfd.
        log.result("poll", unsafe { libc::poll(&mut poll, 1, LONG) } as isize);
        log.say(format_args!("{:x}", poll.revents));
        log.result("recv", recv(one.fd, &mut [0; 9], 0));
        log.result("recv", recv(one.fd, &mut [0; 9], 0));
        error(log);
        log.result("send", send(one.fd, b"x", 0));
        error(log);
        close(one.fd);
    }
}

fn option(fd: RawFd, level: c_int, name: c_int) -> c_int {
    let (mut value, mut len) = (0, 4);
    // SAFETY: a live int and its size.
    assert_eq!(unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) }, 0);
    value
}

/// What the kernel tells of a TCP connection: its state, before and after the other end has gone.
pub(crate) fn tcp_info(side: Side, log: &mut Log) {
    side.warm_up();
    let state = || option(side.fd, libc::IPPROTO_TCP, libc::TCP_INFO) & 0xff;
    if !side.tcp {
        return log.say("no TCP");
    }
    log.say(state());
    side.rendezvous(1);
    if side.server {
        return close(side.fd);
    }
    log.result("the end", recv(side.fd, &mut [0; 1], 0));
    log.say(state());
}

/// All or nothing, within a time, and looked at.
pub(crate) fn waitall(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        send_all(side.fd, b"abc");
        side.rendezvous(1);
        send_all(side.fd, b"de");
        side.rendezvous(2);
        send_all(side.fd, b"fgh");
        nap(100);
        send_all(side.fd, b"ijk");
        side.rendezvous(3);
        send_all(side.fd, b"lm");
        return close(side.fd);
    }
    let limit = libc::timeval { tv_sec: 0, tv_usec: 120_000 };
    let mut bytes = [0; 9];
    for (mark, (all, look)) in [(6, false), (6, true)].into_iter().enumerate() {
        // What is there already waits for the rest.
        nap(30);
        set_option(side.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit);
        let flags = libc::MSG_WAITALL | if look { libc::MSG_PEEK } else { 0 };
        log.result("in time", recv(side.fd, &mut bytes[..all], flags));
        let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
        set_option(side.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &none);
        if look {
            assert_eq!(recv_exactly(side.fd, 2), *b"de");
        }
        side.rendezvous(mark as u8 + 1);
    }
    log.result("looked at", recv(side.fd, &mut bytes[..6], libc::MSG_WAITALL | libc::MSG_PEEK));
    log.result("all", recv(side.fd, &mut bytes[..6], libc::MSG_WAITALL));
    log.say(String::from_utf8_lossy(&bytes));
    side.rendezvous(3);
    log.result("up to the end", recv(side.fd, &mut bytes[..6], libc::MSG_WAITALL));
}

const CLOSE_RANGE_CLOEXEC: c_int = 4;

/// One end goes back to the kernel right after an answer. What it is sent then arrives, though its sender does no more for that connection.
pub(crate) fn sent_after_a_switch(side: Side, log: &mut Log) {
    side.warm_up();
    for round in 0..5u8 {
        let one = second(&side);
        one.exchange(30);
        if side.server {
            // A flag that no ring knows.
            log.result("nothing yet", recv(one.fd, &mut [0; 9], libc::MSG_TRUNC | libc::MSG_DONTWAIT));
            side.rendezvous(round);
            assert_eq!(recv_exactly(one.fd, 5), b"after");
        } else {
            side.rendezvous(round);
            send_all(one.fd, b"after");
        }
        side.rendezvous(round);
        close(one.fd);
    }
}
