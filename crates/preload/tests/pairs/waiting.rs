//! Programs that wait by poll and select.

use std::os::fd::{AsRawFd, RawFd};

use crate::sock::{Log, Side, close, nap, pattern, recv, recv_exactly, second, send, send_all, until};

/// Waits by poll for reading and for writing.
pub(crate) fn polled(side: Side, log: &mut Log) {
    side.warm_up();
    let ready = |events: i16, timeout: i32| {
        let mut poll = libc::pollfd { fd: side.fd, events, revents: 0 };
        // SAFETY: one pollfd.
        let n = unsafe { libc::poll(&mut poll, 1, timeout) };
        (n, poll.revents)
    };
    if side.server {
        for round in 0..300usize {
            assert_eq!(ready(libc::POLLIN, -1), (1, libc::POLLIN));
            let bytes = recv_exactly(side.fd, 100);
            assert!(bytes == pattern(round, 100));
            assert_eq!(ready(libc::POLLIN | libc::POLLOUT, -1), (1, libc::POLLOUT));
            send_all(side.fd, &bytes);
        }
        log.say(format_args!("{:?}", ready(libc::POLLIN, 30)));
        side.rendezvous(1);
        // SAFETY: a descriptor of ours.
        unsafe { libc::close(side.fd) };
        return;
    }
    for round in 0..300usize {
        send_all(side.fd, &pattern(round, 100));
        assert_eq!(ready(libc::POLLIN, -1), (1, libc::POLLIN));
        assert!(recv_exactly(side.fd, 100) == pattern(round, 100));
    }
    side.rendezvous(1);
    let (n, events) = ready(libc::POLLIN | libc::POLLRDHUP, -1);
    log.say(format_args!("{n} {events}"));
    log.result("the end", recv(side.fd, &mut [0; 9], 0));
}

/// Many ends, each told of by a poll that begins while the peer, which has sent a last byte, is about to close.
pub(crate) fn polled_ends(side: Side, log: &mut Log) {
    for _ in 0..ENDS {
        let other = second(&side);
        other.warm_up();
        other.rendezvous(1);
        if !other.server {
            let stands = || ready(other.fd, libc::POLLIN | libc::POLLRDHUP, -1);
            // The end can be read, and is seen so by the first who asks. The kernel's TCP may say only then, on a busy machine, that it is one.
            let (reported, first) = stands();
            assert!(reported == 1 && first & libc::POLLIN != 0, "{first:x}");
            let hung_up = if side.tcp { 0 } else { libc::POLLHUP };
            until(|| (stands() == (1, libc::POLLIN | libc::POLLRDHUP | hung_up)).then_some(()));
            assert_eq!(recv(other.fd, &mut [0; 9], 0), 0);
        }
        close(other.fd);
    }
    side.rendezvous(2);
    log.say("ended");
}

fn ready(fd: RawFd, events: i16, timeout: i32) -> (i32, i16) {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one pollfd.
    let n = unsafe { libc::poll(&mut poll, 1, timeout) };
    (n, poll.revents)
}

/// Fills the way to the peer, waits for room, and is woken when there is some; reads all the while.
pub(crate) fn polled_full(side: Side, log: &mut Log) {
    side.warm_up();
    let total = 20_000_000;
    if side.server {
        nap(100);
        assert!(recv_exactly(side.fd, total) == pattern(0, total));
        send_all(side.fd, b"all");
        side.rendezvous(1);
        return;
    }
    let bytes = pattern(0, total);
    let (mut at, mut waits) = (0, 0);
    while at < total {
        let n = send(side.fd, &bytes[at..], libc::MSG_DONTWAIT);
        if n > 0 {
            at += n as usize;
            continue;
        }
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
        waits += 1;
        assert_eq!(ready(side.fd, libc::POLLOUT | libc::POLLIN, -1), (1, libc::POLLOUT));
    }
    assert!(waits > 0);
    log.say(format_args!("{:?}", ready(side.fd, libc::POLLIN, -1)));
    assert_eq!(recv_exactly(side.fd, 3), *b"all");
    side.rendezvous(1);
}

/// select with another descriptor that is never ready, with a time that is updated, and at the end.
pub(crate) fn selected(side: Side, log: &mut Log) {
    side.warm_up();
    let mut pipe = [0; 2];
    // SAFETY: two ints.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let select = |writes: bool, ms: i64| {
        // SAFETY: zeroed sets are empty; descriptors of ours below FD_SETSIZE.
        unsafe {
            let (mut r, mut w): (libc::fd_set, libc::fd_set) = (std::mem::zeroed(), std::mem::zeroed());
            libc::FD_SET(side.fd, &mut r);
            libc::FD_SET(pipe[0], &mut r);
            if writes {
                libc::FD_SET(side.fd, &mut w);
            }
            let mut limit = libc::timeval { tv_sec: 0, tv_usec: ms * 1000 };
            let count = side.fd.max(pipe[0]) + 1;
            let n = libc::select(count, &mut r, &mut w, std::ptr::null_mut(), &mut limit);
            let left = limit.tv_usec > 0;
            (n, libc::FD_ISSET(side.fd, &r), libc::FD_ISSET(pipe[0], &r), libc::FD_ISSET(side.fd, &w), left)
        }
    };
    if side.server {
        side.rendezvous(1);
        for round in 0..100usize {
            while !select(false, 900).1 {}
            let bytes = recv_exactly(side.fd, 100);
            assert!(bytes == pattern(round, 100));
            send_all(side.fd, &bytes);
        }
        // SAFETY: a descriptor of ours.
        unsafe { libc::close(side.fd) };
        return;
    }
    log.say(format_args!("{:?}", select(true, 50)));
    log.say(format_args!("{:?}", select(false, 50)));
    side.rendezvous(1);
    for round in 0..100usize {
        send_all(side.fd, &pattern(round, 100));
        while !select(false, 900).1 {}
        assert!(recv_exactly(side.fd, 100) == pattern(round, 100));
    }
    while !select(false, 900).1 {}
    log.result("the end", recv(side.fd, &mut [0; 9], 0));
}

/// The socket is in a set of epoll before it is connected, as some event loops have it; nothing tells the set of the rings.
pub(crate) fn set_before_connect(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        send_all(side.fd, &listener.local_addr().unwrap().port().to_be_bytes());
        let (second, _) = listener.accept().unwrap();
        for _ in 0..50 {
            let bytes = recv_exactly(second.as_raw_fd(), 100);
            nap(1);
            send_all(second.as_raw_fd(), &bytes);
        }
        return;
    }
    let port = u16::from_be_bytes(recv_exactly(side.fd, 2).try_into().unwrap());
    // SAFETY: descriptors of ours, live structures; the address is an IPv4 one of its size.
    unsafe {
        let (socket, set) = (libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0), libc::epoll_create1(0));
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, socket, &mut event), 0);
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_port = port.to_be();
        address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        let len = size_of::<libc::sockaddr_in>() as u32;
        assert_eq!(libc::connect(socket, (&raw const address).cast(), len), 0);
        let mut woken = 0;
        for round in 0..50usize {
            send_all(socket, &pattern(round, 100));
            woken += libc::epoll_wait(set, &mut event, 1, 10_000);
            assert!(recv_exactly(socket, 100) == pattern(round, 100));
        }
        log.say(format_args!("woken {woken} times"));
    }
}

/// The client only ever sends, the server only ever receives. With the first pieces neither is ahead, else one gives the other up.
pub(crate) fn one_way(side: Side, log: &mut Log) {
    // The other way round, for here even the name of where it listens goes one way.
    let other = second(&Side { server: !side.server, ..side });
    let (piece, total) = (8000, 20_000_000);
    if side.server {
        let mut part = vec![0; 10_000];
        let mut at = 0;
        loop {
            assert_eq!(ready(side.fd, libc::POLLIN, -1).0, 1);
            let n = recv(side.fd, &mut part, 0);
            if n <= 0 {
                return log.result(&format!("after {at}"), n);
            }
            assert!(part[..n as usize] == pattern(at, n as usize), "at {at}");
            at += n as usize;
            if at % piece == 0 && at <= TOGETHER * piece {
                other.rendezvous(7);
            }
        }
    }
    for at in (0..total).step_by(piece) {
        send_all(side.fd, &pattern(at, piece));
        if at < TOGETHER * piece {
            other.rendezvous(7);
        }
    }
    log.say("sent");
}

const ENDS: usize = 200;
/// Pieces that are taken before the next is sent.
const TOGETHER: usize = 60;
