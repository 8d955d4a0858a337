//! Programs that reach a connection by other names of the C library's functions, by number, or by
//! a stream, and those that ask for no bytes.

use std::ffi::{c_int, c_long, c_void};
use std::os::fd::RawFd;

use crate::sock::{Log, Side, close, nap, pattern, recv, recv_exactly, second, send_all};

unsafe extern "C" {
    fn __read(fd: c_int, to: *mut c_void, len: usize) -> isize;
    fn __write(fd: c_int, from: *const c_void, len: usize) -> isize;
    fn __send(fd: c_int, from: *const c_void, len: usize, flags: c_int) -> isize;
    fn __close(fd: c_int) -> c_int;
    fn __dup2(fd: c_int, to: c_int) -> c_int;
    fn __fcntl(fd: c_int, command: c_int, ...) -> c_int;
    fn __poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    fn __select(
        count: c_int,
        reads: *mut libc::fd_set,
        writes: *mut libc::fd_set,
        errors: *mut libc::fd_set,
        timeout: *mut libc::timeval,
    ) -> c_int;
}

const ROUNDS: usize = 40;

/// The second names that the C library has for some of its functions.
pub(crate) fn second_names(side: Side, log: &mut Log) {
    let other = second(&side);
    other.warm_up();
    if other.server {
        other.exchange(ROUNDS);
        side.rendezvous(1);
        // The other end is open under its second number alone.
        other.exchange(ROUNDS);
        log.result("the end", recv(other.fd, &mut [0; 9], 0));
        return close(other.fd);
    }
    let mut bytes = [0u8; 100];
    // SAFETY: live buffers; descriptors of ours.
    unsafe {
        for round in 0..ROUNDS {
            let ours = pattern(round, 100);
            assert_eq!(__write(other.fd, ours.as_ptr().cast(), 50), 50);
            assert_eq!(__send(other.fd, ours.as_ptr().add(50).cast(), 50, 0), 50);
            let mut poll = libc::pollfd { fd: other.fd, events: libc::POLLIN, revents: 0 };
            assert_eq!(__poll(&mut poll, 1, 10_000), 1);
            let mut reads = std::mem::zeroed();
            libc::FD_SET(other.fd, &mut reads);
            let none = std::ptr::null_mut();
            assert_eq!(__select(other.fd + 1, &mut reads, none, none, std::ptr::null_mut()), 1);
            assert_eq!(libc::recv(other.fd, bytes.as_mut_ptr().cast(), 50, libc::MSG_WAITALL), 50);
            let mut at = 50;
            while at < 100 {
                let n = __read(other.fd, bytes.as_mut_ptr().add(at).cast(), 100 - at);
                assert!(n > 0);
                at += n as usize;
            }
            assert!(bytes[..] == ours);
        }
        side.rendezvous(1);
        let double = __dup2(other.fd, other.fd + 20);
        assert_eq!((double, __close(other.fd)), (other.fd + 20, 0));
        Side { fd: double, ..other }.exchange(ROUNDS);
        assert_eq!(__fcntl(double, libc::F_SETFL, libc::O_NONBLOCK), 0);
        log.result("nothing", recv(double, &mut [0; 9], 0));
        assert_eq!(__close(double), 0);
    }
}

/// System calls by number, each of another connection.
pub(crate) fn raw_calls(side: Side, log: &mut Log) {
    type Call = fn(RawFd) -> c_long;
    let calls: [(&str, Call); 5] = [
        // SAFETY: descriptors of ours, in these three.
        ("dup3", |fd| unsafe { libc::syscall(libc::SYS_dup3, fd, fd + 20, 0) }),
        // SAFETY: as above.
        ("fcntl", |fd| unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, libc::O_NONBLOCK) }),
        // SAFETY: as above.
        ("close_range", |fd| unsafe { libc::syscall(libc::SYS_close_range, fd, fd, 0) }),
        ("ppoll", |fd| {
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let none = std::ptr::null::<c_void>();
            // SAFETY: a pollfd and no time.
            unsafe { libc::syscall(libc::SYS_ppoll, &mut poll, 1, none, none, 0) }
        }),
        ("epoll_pwait", |fd| {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
            // SAFETY: a new set and one event.
            unsafe {
                let set = libc::epoll_create1(0);
                assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event), 0);
                let none = std::ptr::null::<c_void>();
                let got = libc::syscall(libc::SYS_epoll_pwait, set, &mut event, 1, -1, none, 0);
                close(set);
                got
            }
        }),
    ];
    for (name, call) in calls {
        let other = second(&side);
        other.warm_up();
        if other.server {
            assert_eq!(recv_exactly(side.fd, 1), [3]);
            if name == "close_range" {
                log.result("closed", recv(other.fd, &mut [0; 9], 0));
            } else {
                send_all(other.fd, &[9; 50]);
                assert_eq!(recv_exactly(side.fd, 1), [4]);
                other.exchange(ROUNDS);
            }
            close(other.fd);
            continue;
        }
        let waits = name.contains("poll");
        let sender = waits.then(|| {
            // It comes while the call waits.
            let fd = side.fd;
            std::thread::spawn(move || {
                nap(300);
                send_all(fd, &[3]);
            })
        });
        log.say(format_args!("{name}: {}", (call(other.fd) >= 0)));
        if name == "close_range" {
            // SAFETY: a number.
            assert_eq!(unsafe { libc::fcntl(other.fd, libc::F_GETFD) }, -1);
            send_all(side.fd, &[3]);
            continue;
        }
        if name == "fcntl" {
            log.result("nothing", recv(other.fd, &mut [0; 9], 0));
            // SAFETY: a descriptor of ours.
            assert_eq!(unsafe { libc::fcntl(other.fd, libc::F_SETFL, 0) }, 0);
        }
        match sender {
            Some(sender) => sender.join().unwrap(),
            None => send_all(side.fd, &[3]),
        }
        assert_eq!(recv_exactly(other.fd, 50), [9; 50]);
        send_all(side.fd, &[4]);
        other.exchange(ROUNDS);
        close(other.fd);
        if name == "dup3" {
            close(other.fd + 20);
        }
    }
}

/// A socket that has a stream of the C library's before it is connected: what that reads, nobody counts.
pub(crate) fn stream_before_connect(side: Side, log: &mut Log) {
    if side.server {
        let other = second(&side);
        for round in 0..ROUNDS {
            let mut line = recv_exactly(other.fd, 10);
            line[0] = b'a' + (round % 20) as u8;
            send_all(other.fd, &line);
        }
        side.rendezvous(1);
        return close(other.fd);
    }
    let name = String::from_utf8(recv_exactly(side.fd, 40)).unwrap();
    // SAFETY: descriptors and streams of ours, and live structures.
    unsafe {
        let family = if side.tcp { libc::AF_INET } else { libc::AF_UNIX };
        let fd = libc::socket(family, libc::SOCK_STREAM, 0);
        let stream = libc::fdopen(fd, c"r".as_ptr());
        assert!(!stream.is_null());
        if side.tcp {
            let port = name.trim().rsplit(':').next().unwrap().parse::<u16>().unwrap();
            let mut address: libc::sockaddr_in = std::mem::zeroed();
            address.sin_family = libc::AF_INET as u16;
            address.sin_port = port.to_be();
            address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
            assert_eq!(libc::connect(fd, (&raw const address).cast(), size_of::<libc::sockaddr_in>() as u32), 0);
        } else {
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as u16;
            for (place, byte) in address.sun_path[1..].iter_mut().zip(name.trim().bytes()) {
                *place = byte as libc::c_char;
            }
            let len = size_of::<libc::sa_family_t>() + 1 + name.trim().len();
            assert_eq!(libc::connect(fd, (&raw const address).cast(), len as u32), 0);
        }
        let mut line = [0u8; 11];
        for round in 0..ROUNDS {
            assert_eq!(libc::send(fd, b"-a line--\n".as_ptr().cast(), 10, 0), 10);
            assert!(!libc::fgets(line.as_mut_ptr().cast(), 11, stream).is_null());
            assert_eq!((line[0], &line[1..10]), (b'a' + (round % 20) as u8, &b"a line--\n"[..]));
        }
        side.rendezvous(1);
        assert_eq!(libc::fclose(stream), 0);
        // The number is free for a connection that may come into the rings.
        assert_eq!(libc::fcntl(fd, libc::F_GETFD), -1);
    }
    log.say("read");
}

/// A receive of no bytes waits for some, or for the end, and takes none; a read of none does not wait.
pub(crate) fn no_bytes(side: Side, log: &mut Log) {
    let other = second(&side);
    other.warm_up();
    if other.server {
        assert_eq!(recv_exactly(side.fd, 1), [1]);
        send_all(other.fd, &[7; 30]);
        assert_eq!(recv_exactly(side.fd, 1), [2]);
        return close(other.fd);
    }
    let fd = other.fd;
    let ready = |events: i16| {
        let mut poll = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&mut poll, 1, 60_000) }
    };
    let mut all = |what: &str| {
        let mut byte = 0u8;
        let at = (&raw mut byte).cast::<c_void>();
        // SAFETY: a live buffer and headers, of no bytes.
        unsafe {
            log.result(&format!("read, {what}"), libc::read(fd, at, 0));
            let mut parts = [libc::iovec { iov_base: at, iov_len: 0 }; 2];
            log.result(&format!("readv, {what}"), libc::readv(fd, parts.as_ptr(), 2));
            for flags in [0, libc::MSG_PEEK, libc::MSG_WAITALL] {
                let flags = flags | libc::MSG_DONTWAIT;
                log.result(&format!("recv {flags}, {what}"), libc::recv(fd, at, 0, flags));
            }
            let mut message: libc::msghdr = std::mem::zeroed();
            log.result(&format!("recvmsg, {what}"), libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT));
            (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), 2);
            log.result(&format!("recvmsg of two, {what}"), libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT));
        }
    };
    all("nothing there");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| recv(fd, &mut [], 0));
        send_all(side.fd, &[1]);
        assert_eq!((waiter.join().unwrap(), ready(libc::POLLIN)), (0, 1));
    });
    all("bytes there");
    assert_eq!(recv_exactly(fd, 30), [7; 30]);
    send_all(side.fd, &[2]);
    assert_eq!(ready(libc::POLLIN), 1);
    all("the end");
    close(fd);
}
