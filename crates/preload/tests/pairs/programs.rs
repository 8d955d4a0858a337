//! The programs.

use std::os::fd::RawFd;
use std::time::Instant;

use crate::sock::{Log, Side, close, nap, pattern, recv, recv_exactly, recv_to_end, second, send, send_all};

pub(crate) fn echo(side: Side, log: &mut Log) {
    side.warm_up();
    for round in 0..2000usize {
        let bytes = pattern(round, 64);
        if side.server {
            assert_eq!(recv_exactly(side.fd, 64), bytes);
            send_all(side.fd, &bytes);
        } else {
            send_all(side.fd, &bytes);
            assert_eq!(recv_exactly(side.fd, 64), bytes);
        }
    }
    if !side.server {
        close(side.fd);
        return log.say("closed");
    }
    log.result("the end", recv(side.fd, &mut [0; 9], 0));
    log.result("and again", recv(side.fd, &mut [0; 9], 0));
}

/// One message of each size there and back, past the small ring and past the large one.
pub(crate) fn sizes(side: Side, log: &mut Log) {
    side.warm_up();
    for size in [1, 7, 8, 63, 64, 65, 1535, 1536, 1537, 4096, 5000, 65536, 131_072, 131_073, 1_000_000] {
        let bytes = pattern(size, size);
        if side.server {
            assert!(recv_exactly(side.fd, size) == bytes, "size {size}");
            send_all(side.fd, &bytes);
        } else {
            send_all(side.fd, &bytes);
            assert!(recv_exactly(side.fd, size) == bytes, "size {size}");
        }
    }
    log.say("all sizes");
}

/// Much in one direction, in uneven pieces, then the end.
pub(crate) fn stream(side: Side, log: &mut Log) {
    side.warm_up();
    let (mut at, total) = (0, 20_000_000);
    if side.server {
        while at < total {
            let len = (at % 70_001 + 1).min(total - at);
            send_all(side.fd, &pattern(at, len));
            at += len;
        }
        close(side.fd);
        return log.say("sent");
    }
    let mut part = vec![0; 50_000];
    loop {
        let n = recv(side.fd, &mut part, 0);
        if n <= 0 {
            return log.result(&format!("after {at}"), n);
        }
        assert!(part[..n as usize] == pattern(at, n as usize), "at {at}");
        at += n as usize;
    }
}

pub(crate) fn flags(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        send_all(side.fd, b"hello world");
        side.rendezvous(1);
        nap(50);
        send_all(side.fd, b"abc");
        nap(50);
        send_all(side.fd, b"def");
        side.rendezvous(2);
        return;
    }
    let mut bytes = [0; 32];
    nap(20);
    log.result("peek", recv(side.fd, &mut bytes[..5], libc::MSG_PEEK));
    log.result("peek again", recv(side.fd, &mut bytes, libc::MSG_PEEK));
    log.result("part", recv(side.fd, &mut bytes[..6], 0));
    log.result("rest", recv(side.fd, &mut bytes[6..], 0));
    log.say(String::from_utf8_lossy(&bytes));
    log.result("nothing", recv(side.fd, &mut bytes, libc::MSG_DONTWAIT));
    log.result("nothing to peek", recv(side.fd, &mut bytes, libc::MSG_DONTWAIT | libc::MSG_PEEK));
    side.rendezvous(1);
    log.result("all", recv(side.fd, &mut bytes[..6], libc::MSG_WAITALL));
    log.say(String::from_utf8_lossy(&bytes[..6]));
    log.result("no bytes", send(side.fd, &[], 0));
    log.result("into nothing", recv(side.fd, &mut [], libc::MSG_DONTWAIT));
    side.rendezvous(2);
}

pub(crate) fn vectors(side: Side, log: &mut Log) {
    side.warm_up();
    let mut parts = [vec![1u8; 3], vec![], vec![2u8; 2000], vec![3u8; 70_000]];
    let iov: Vec<libc::iovec> =
        parts.iter_mut().map(|p| libc::iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() }).collect();
    if side.server {
        // SAFETY: live buffers.
        log.result("writev", unsafe { libc::writev(side.fd, iov.as_ptr(), 4) });
        // SAFETY: a zeroed header is an empty one; the buffers live.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (iov.as_ptr().cast_mut(), 4);
        // SAFETY: as above.
        log.result("sendmsg", unsafe { libc::sendmsg(side.fd, &message, 0) });
        side.rendezvous(1);
        return;
    }
    let total: usize = parts.iter().map(Vec::len).sum();
    let sent = [vec![1u8; 3], vec![2u8; 2000], vec![3u8; 70_000]].concat();
    assert!(recv_exactly(side.fd, total) == sent);
    let (mut at, mut calls) = (0, 0);
    while at < total {
        let mut out = [vec![0u8; 5], vec![0u8; 20_000]];
        let iov: Vec<libc::iovec> =
            out.iter_mut().map(|p| libc::iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() }).collect();
        // SAFETY: a zeroed header is an empty one; the buffers live.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (iov.as_ptr().cast_mut(), 2);
        // SAFETY: as above.
        let n = unsafe {
            if calls % 2 == 0 { libc::recvmsg(side.fd, &mut message, 0) } else { libc::readv(side.fd, iov.as_ptr(), 2) }
        };
        assert!(n > 0 && message.msg_flags == 0);
        calls += 1;
        assert!(out.concat()[..n as usize] == sent[at..at + n as usize]);
        at += n as usize;
    }
    log.say("vectors");
    side.rendezvous(1);
}

/// The client says it is done and still gets the whole answer.
pub(crate) fn half_close(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        let (bytes, end) = recv_to_end(side.fd);
        log.say(format_args!("{} bytes, then {end}", bytes.len()));
        assert!(bytes == pattern(0, 100_000));
        send_all(side.fd, &pattern(7, 300_000));
        // SAFETY: a descriptor of ours.
        log.result("shutdown", unsafe { libc::shutdown(side.fd, libc::SHUT_WR) } as isize);
        log.result("the end", recv(side.fd, &mut [0; 9], 0));
        return;
    }
    send_all(side.fd, &pattern(0, 100_000));
    // SAFETY: a descriptor of ours.
    log.result("shutdown", unsafe { libc::shutdown(side.fd, libc::SHUT_WR) } as isize);
    log.result("send", send(side.fd, b"x", 0));
    let (bytes, end) = recv_to_end(side.fd);
    log.say(format_args!("{} bytes, then {end}", bytes.len()));
    assert!(bytes == pattern(7, 300_000));
}

pub(crate) fn close_with_unread(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        send_all(side.fd, &pattern(0, 1000));
        nap(50);
        close(side.fd);
        return log.say("closed");
    }
    send_all(side.fd, b"never read");
    nap(200);
    let mut bytes = vec![0; 1000];
    // What was sent before the reset is lost or not, as the kernel likes; what comes after is not.
    let first = recv(side.fd, &mut bytes, 0);
    if first > 0 {
        log.result("then", recv(side.fd, &mut bytes, 0));
    } else {
        log.result("then", first);
    }
    log.result("at last", recv(side.fd, &mut bytes, 0));
}

pub(crate) fn broken_pipe(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        close(side.fd);
        return log.say("closed");
    }
    nap(100);
    let mut sends = 0;
    while send(side.fd, &[0; 100], 0) > 0 {
        sends += 1;
        nap(20);
        assert!(sends < 5, "somebody must have noticed");
    }
    // Over TCP one send still goes; which error follows is the kernel's to choose.
    let error = std::io::Error::last_os_error().raw_os_error();
    assert!(error == Some(libc::EPIPE) || error == Some(libc::ECONNRESET), "{error:?}");
    // SAFETY: the default action ends this process.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    log.result("write", {
        // SAFETY: a live slice.
        unsafe { libc::write(side.fd, b"x".as_ptr().cast(), 1) }
    });
}

/// The server is killed in the middle; what it sent before is there to be read.
pub(crate) fn killed_peer(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        send_all(side.fd, &pattern(0, 100_000));
        log.say("killed\ndone");
        // SAFETY: ends this very process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    nap(200);
    let (bytes, end) = recv_to_end(side.fd);
    assert!(bytes == pattern(0, 100_000), "{} bytes", bytes.len());
    log.result("the end", end);
}

pub(crate) fn timeouts(side: Side, log: &mut Log) {
    side.warm_up();
    let other = second(&side);
    if side.server {
        other.rendezvous(1);
        other.rendezvous(2);
        let (bytes, end) = recv_to_end(side.fd);
        assert!(bytes.iter().all(|byte| *byte == 5) && end == 0);
        return;
    }
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let limit = libc::timeval { tv_sec: 0, tv_usec: 120_000 };
        let (at, len) = ((&raw const limit).cast(), size_of::<libc::timeval>() as u32);
        // SAFETY: a live value and its size.
        assert_eq!(unsafe { libc::setsockopt(side.fd, libc::SOL_SOCKET, name, at, len) }, 0);
    }
    let begun = Instant::now();
    log.result("recv", recv(side.fd, &mut [0; 9], 0));
    assert!(begun.elapsed().as_millis() >= 110, "too early: {:?}", begun.elapsed());
    other.rendezvous(1);
    // The other does not read until it is told to: a send stops in the middle.
    let much = vec![5; 20_000_000];
    let begun = Instant::now();
    let sent = send(side.fd, &much, 0);
    assert!(sent > 0 && sent < much.len() as isize, "{sent}");
    assert!(begun.elapsed().as_millis() >= 110, "too early: {:?}", begun.elapsed());
    other.rendezvous(2);
}

pub(crate) fn nonblocking(side: Side, log: &mut Log) {
    side.warm_up();
    // SAFETY: a descriptor of ours.
    unsafe {
        let flags = libc::fcntl(side.fd, libc::F_GETFL);
        assert_eq!(libc::fcntl(side.fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
    }
    let total = 3_000_000;
    let (mut sent, mut got, mut refused) = (0, 0, 0u64);
    let mut part = vec![0; 30_000];
    // Both send all and read all at once, and never wait.
    while sent < total || got < total {
        if sent < total {
            let bytes = pattern(sent, (total - sent).min(40_000));
            match send(side.fd, &bytes, 0) {
                n if n > 0 => sent += n as usize,
                _ => refused += 1,
            }
            assert!(sent > 0 || refused > 0);
        }
        match recv(side.fd, &mut part, 0) {
            0 => panic!("the end after {got}"),
            n if n > 0 => {
                assert!(part[..n as usize] == pattern(got, n as usize), "at {got}");
                got += n as usize;
            }
            _ => {
                let error = std::io::Error::last_os_error().raw_os_error();
                assert_eq!(error, Some(libc::EAGAIN));
                std::thread::yield_now();
            }
        }
    }
    log.say("both ways");
    if side.server {
        nap(50);
        close(side.fd);
        return;
    }
    loop {
        let n = recv(side.fd, &mut part, 0);
        if n != -1 {
            return log.result("the end", n);
        }
        nap(1);
    }
}

pub(crate) fn queues(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        send_all(side.fd, &[7; 500]);
        side.rendezvous(1);
        nap(150);
        recv_exactly(side.fd, 5000);
        return side.rendezvous(2);
    }
    let waiting = |fd: RawFd| {
        let mut bytes = 0;
        // SAFETY: a live int.
        assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &mut bytes) }, 0);
        bytes
    };
    while waiting(side.fd) < 500 {
        nap(1);
    }
    log.say(waiting(side.fd));
    recv_exactly(side.fd, 100);
    log.say(waiting(side.fd));
    recv_exactly(side.fd, 400);
    log.say(waiting(side.fd));
    side.rendezvous(1);
    send_all(side.fd, &[1; 5000]);
    let begun = Instant::now();
    let unsent = || {
        let mut unsent = 0;
        // SAFETY: a live int.
        assert_eq!(unsafe { libc::ioctl(side.fd, libc::TIOCOUTQ, &mut unsent) }, 0);
        unsent
    };
    // Over TCP what the other host has not got, which is soon nothing; over a Unix socket what nobody has read.
    while side.tcp && unsent() > 0 && begun.elapsed().as_secs() < 20 {
        nap(5);
    }
    log.say(format_args!("SIOCOUTQ: {}", unsent() > 0));
    side.rendezvous(2);
}

/// Any descriptor of the connection serves; the last one that is closed ends it.
pub(crate) fn duplicates(side: Side, log: &mut Log) {
    side.warm_up();
    // SAFETY: descriptors of ours.
    let fds = unsafe {
        let plain = libc::dup(side.fd);
        let high = libc::fcntl(side.fd, libc::F_DUPFD_CLOEXEC, 100);
        let higher = libc::fcntl(side.fd, libc::F_DUPFD, 200);
        log.say(format_args!(
            "{high} {higher} {} {}",
            libc::fcntl(high, libc::F_GETFD),
            libc::fcntl(higher, libc::F_GETFD)
        ));
        let file = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        assert_eq!(libc::dup2(side.fd, file), file);
        [side.fd, plain, high, higher, file]
    };
    for round in 0..40usize {
        let fd = fds[round % 5];
        let other = fds[(round + 1) % 5];
        if side.server {
            assert_eq!(recv_exactly(fd, 100), pattern(round, 100));
            send_all(other, &pattern(round, 100));
        } else {
            send_all(fd, &pattern(round, 100));
            assert_eq!(recv_exactly(other, 100), pattern(round, 100));
        }
    }
    if !side.server {
        for fd in &fds[..4] {
            close(*fd);
        }
        send_all(fds[4], b"still here");
        // Something else takes the connection's place: it ends.
        // SAFETY: descriptors of ours.
        log.result("dup2 over it", unsafe { libc::dup2(2, fds[4]) } as isize - fds[4] as isize);
        return;
    }
    let (bytes, end) = recv_to_end(fds[1]);
    log.say(format_args!("{} then {end}", String::from_utf8_lossy(&bytes)));
}

/// Two threads read and two write on each side, a byte at a time; sums tell that each byte came once.
pub(crate) fn threads(side: Side, log: &mut Log) {
    side.warm_up();
    let fd = side.fd;
    let sum = std::thread::scope(|scope| {
        for part in 0..2u64 {
            scope.spawn(move || {
                for i in 0..3000u64 {
                    send_all(fd, &[((i * 2 + part) % 251) as u8; 3]);
                }
            });
        }
        let readers = [(); 2].map(|()| {
            scope.spawn(move || {
                let (mut sum, mut bytes) = (0u64, [0; 6]);
                for _ in 0..1500 {
                    let n = recv(fd, &mut bytes, libc::MSG_WAITALL);
                    assert_eq!(n, 6, "{}", std::io::Error::last_os_error());
                    sum += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                }
                sum
            })
        });
        readers.map(|reader| reader.join().unwrap()).iter().sum::<u64>()
    });
    // A receive that waits for all may be interleaved with another; the bytes are the same.
    let mut rest = [0; 6 * 3000];
    let n = recv(fd, &mut rest, libc::MSG_DONTWAIT);
    let sum = sum + rest[..n.max(0) as usize].iter().map(|byte| u64::from(*byte)).sum::<u64>();
    log.say(sum);
}

/// As a server does that has a process for each connection.
pub(crate) fn fork_after_accept(side: Side, log: &mut Log) {
    if side.server {
        // SAFETY: the child only makes system calls and exits.
        let child = unsafe { libc::fork() };
        if child > 0 {
            close(side.fd);
            let mut status = 0;
            // SAFETY: a child of ours.
            unsafe { libc::waitpid(child, &mut status, 0) };
            return log.say(format_args!("child: {status}"));
        }
    }
    side.warm_up();
    for round in 0..200usize {
        if side.server {
            send_all(side.fd, &recv_exactly(side.fd, 3000));
        } else {
            send_all(side.fd, &pattern(round, 3000));
            assert!(recv_exactly(side.fd, 3000) == pattern(round, 3000));
        }
    }
    if side.server {
        // SAFETY: the end of the child; `exit` would run what belongs to the parent.
        unsafe { libc::exit(0) };
    }
    log.say("served by a child");
}

/// Both processes go on with a connection that was in the rings, with bytes unread on either side.
pub(crate) fn fork_in_the_middle(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        send_all(side.fd, &pattern(0, 1000));
        assert_eq!(recv_exactly(side.fd, 10), *b"from child");
        send_all(side.fd, b"to parent");
        assert_eq!(recv_exactly(side.fd, 11), *b"from parent");
        return log.say("both");
    }
    assert!(recv_exactly(side.fd, 500) == pattern(0, 500));
    // SAFETY: the child only makes system calls and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        assert!(recv_exactly(side.fd, 500) == pattern(500, 500));
        send_all(side.fd, b"from child");
        // SAFETY: the end of the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: a child of ours.
    unsafe { libc::waitpid(child, &mut status, 0) };
    log.say(format_args!("child: {status}"));
    assert_eq!(recv_exactly(side.fd, 9), *b"to parent");
    send_all(side.fd, b"from parent");
}

/// The connection goes on as the standard input and output of a program that has not the library.
pub(crate) fn exec_without_the_library(side: Side, log: &mut Log) {
    side.warm_up();
    if side.server {
        assert!(recv_exactly(side.fd, 100) == pattern(0, 100));
        // SAFETY: duplicates of ours.
        let [input, output] = [side.fd, side.fd].map(|fd| unsafe {
            std::process::Stdio::from(<std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(libc::dup(fd)))
        });
        let status =
            std::process::Command::new("cat").env_remove("LD_PRELOAD").stdin(input).stdout(output).status().unwrap();
        return log.say(status.code().unwrap());
    }
    send_all(side.fd, &pattern(0, 1000));
    assert!(recv_exactly(side.fd, 900) == pattern(100, 900));
    send_all(side.fd, b"more");
    assert_eq!(recv_exactly(side.fd, 4), *b"more");
    // SAFETY: a descriptor of ours.
    unsafe { libc::shutdown(side.fd, libc::SHUT_WR) };
    log.result("the end", recv_to_end(side.fd).1);
}

/// The client has long sent when the server first looks.
pub(crate) fn late_accept(side: Side, log: &mut Log) {
    if side.server {
        nap(200);
        assert!(recv_exactly(side.fd, 5000) == pattern(0, 5000));
    } else {
        for at in (0..5000).step_by(500) {
            send_all(side.fd, &pattern(at, 500));
        }
    }
    side.warm_up();
    side.rendezvous(1);
    log.say("met");
}

/// Urgent data travels through the kernel, in its place.
pub(crate) fn urgent(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.tcp {
        return log.say("Unix sockets have it since lately");
    }
    if side.server {
        send_all(side.fd, b"before");
        log.result("urgent", send(side.fd, b"!", libc::MSG_OOB));
        send_all(side.fd, b"after");
        side.rendezvous(1);
        return;
    }
    nap(50);
    let mut byte = [0];
    assert_eq!(recv_exactly(side.fd, 6), *b"before");
    log.result("urgent", recv(side.fd, &mut byte, libc::MSG_OOB));
    log.say(byte[0]);
    assert_eq!(recv_exactly(side.fd, 5), *b"after");
    side.rendezvous(1);
}

/// To connect what is connected is an error and changes nothing.
pub(crate) fn connect_again(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        // SAFETY: zeroed storage is large enough for any address.
        let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_storage>() as u32;
        let at = (&raw mut address).cast::<libc::sockaddr>();
        // SAFETY: a live address and its length.
        log.result("connect", unsafe {
            libc::getpeername(side.fd, at, &mut len);
            libc::connect(side.fd, at, len)
        } as isize);
    }
    side.warm_up();
    side.rendezvous(1);
    log.say("still there");
}

/// The server overwrites all shared memory that it can find with noise, under its own feet and the client's; the client sees
/// an end or an error of its connection, and lives. Without the library there is nothing to overwrite.
pub(crate) fn noise(side: Side, log: &mut Log) {
    side.warm_up();
    side.rendezvous(1);
    nap(100);
    if side.server {
        for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
            if !line.contains("memfd:overside-socket") {
                continue;
            }
            let (range, _) = line.split_once(' ').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let [from, to] = [from, to].map(|hex| usize::from_str_radix(hex, 16).unwrap());
            for (index, at) in (from..to.min(from + 4096)).step_by(8).enumerate() {
                // SAFETY: mapped for writing, as the maps say; nobody but this thread is at it here.
                unsafe { (at as *mut u64).write_volatile((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) };
            }
        }
        log.say("overwritten\ndone");
        // SAFETY: ends this very process, which need not make sense of its own noise.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    nap(200);
    for _ in 0..20 {
        send(side.fd, &[1; 3000], libc::MSG_DONTWAIT);
        recv(side.fd, &mut [0; 5000], libc::MSG_DONTWAIT);
    }
    // SAFETY: a descriptor of ours.
    log.result("close", unsafe { libc::close(side.fd) } as isize);
}
