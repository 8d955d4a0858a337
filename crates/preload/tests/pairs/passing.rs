//! Bytes and descriptors that travel by the kernel's own means.

use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, RawFd};

use crate::sock::{Log, Side, close, nap, pattern, recv, recv_exactly, recv_to_end, send, send_all, set_option};

/// The system copies between a file, a pipe and the connection.
pub(crate) fn spliced(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        send_all(side.fd, &pattern(0, 1000));
        assert!(recv_exactly(side.fd, 50_000) == pattern(7, 50_000));
        send_all(side.fd, &pattern(1000, 3000));
        assert!(recv_exactly(side.fd, 4000) == pattern(0, 4000));
        // SAFETY: a descriptor of ours.
        unsafe { libc::shutdown(side.fd, libc::SHUT_WR) };
        return log.result("the end", recv_to_end(side.fd).1);
    }
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(7, 50_000)).unwrap();
    let (mut at, mut pipe) = (0, [-1; 2]);
    let none = std::ptr::null_mut;
    while at < 50_000 {
        // SAFETY: a live offset.
        let n = unsafe { libc::sendfile(side.fd, file.as_raw_fd(), &mut at, 50_000 - at as usize) };
        assert!(n > 0, "{}", std::io::Error::last_os_error());
    }
    // SAFETY: places for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let (mut got, mut given) = (0, 0);
    while given < 4000 {
        // SAFETY: descriptors of ours.
        let n = unsafe { libc::splice(side.fd, none(), pipe[1], none(), 4000 - got, 0) };
        assert!(n > 0, "{}", std::io::Error::last_os_error());
        got += n as usize;
        while given < got {
            // SAFETY: descriptors of ours.
            let n = unsafe { libc::splice(pipe[0], none(), side.fd, none(), got - given, 0) };
            assert!(n > 0, "{}", std::io::Error::last_os_error());
            given += n as usize;
        }
    }
    // SAFETY: descriptors of ours.
    log.result("at the end", unsafe { libc::splice(side.fd, none(), pipe[1], none(), 10, 0) });
}

/// Streams of the C library on both ends.
pub(crate) fn streams(side: Side, log: &mut Log) {
    unsafe extern "C" {
        fn fprintf(stream: *mut libc::FILE, format: *const c_char, ...) -> c_int;
    }
    side.warm_up();
    if !side.server {
        send_all(side.fd, b"in the ring\n");
        side.rendezvous(1);
    } else {
        let mut byte = [0];
        log.result("there", recv(side.fd, &mut byte, libc::MSG_PEEK));
    }
    // SAFETY: strings that end with zeroes; a buffer and its length.
    unsafe {
        let double = libc::dup(side.fd);
        let (reader, writer) = (libc::fdopen(side.fd, c"r".as_ptr()), libc::fdopen(double, c"w".as_ptr()));
        assert!(!reader.is_null() && !writer.is_null());
        let mut line = [0u8; 100];
        let mut get = |log: &mut Log| {
            let got = !libc::fgets(line.as_mut_ptr().cast(), 100, reader).is_null();
            log.say(format_args!("{got} {}", String::from_utf8_lossy(&line).trim_end_matches('\0')));
            line = [0; 100];
        };
        if side.server {
            get(log);
            libc::fputs(c"\x01".as_ptr(), writer);
            libc::fflush(writer);
            let mut mark = 0u8;
            assert_eq!(libc::fread((&raw mut mark).cast(), 1, 1, reader), 1);
            log.say(mark);
        }
        for round in 0..20 {
            if side.server {
                fprintf(writer, c"line %d of the server\n".as_ptr(), round);
                libc::fflush(writer);
                get(log);
            } else {
                get(log);
                fprintf(writer, c"line %d of the client\n".as_ptr(), round);
                libc::fflush(writer);
            }
        }
        libc::fclose(writer);
        libc::fclose(reader);
    }
}

/// Sends `bytes` with a descriptor beside them, as one message or as the only one of `several`.
pub(crate) fn send_with(fd: RawFd, bytes: &[u8], passed: RawFd, several: bool) -> isize {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut space = [0u64; 8];
    // SAFETY: the buffers live, and the space is large and aligned enough for one descriptor.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
        message.msg_control = space.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(passed);
        if !several {
            return libc::sendmsg(fd, &message, 0);
        }
        let mut messages = [libc::mmsghdr { msg_hdr: message, msg_len: 0 }];
        if libc::sendmmsg(fd, messages.as_mut_ptr(), 1, 0) < 1 { -1 } else { messages[0].msg_len as isize }
    }
}

/// Receives bytes, and the descriptor beside them if there is one.
pub(crate) fn recv_with(fd: RawFd, bytes: &mut [u8], flags: c_int) -> (isize, Option<RawFd>, c_int) {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut space = [0u64; 8];
    // SAFETY: the buffers live; what came beside is read within the length that the call has written.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
        message.msg_control = space.as_mut_ptr().cast::<c_void>();
        message.msg_controllen = size_of_val(&space) as _;
        let n = libc::recvmsg(fd, &mut message, flags);
        let header = libc::CMSG_FIRSTHDR(&message);
        let passed = (n >= 0 && !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS)
            .then(|| libc::CMSG_DATA(header).cast::<c_int>().read_unaligned());
        (n, passed, message.msg_flags)
    }
}

/// Descriptors travel over a Unix socket, also when the way back is full.
pub(crate) fn rights(side: Side, log: &mut Log) {
    side.warm_up();
    if side.tcp {
        return log.say("Unix sockets alone carry descriptors");
    }
    let mut sent = 0;
    if side.server {
        // As much as goes while nobody reads.
        set_option(side.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &4608);
        while sent < 60_000 {
            let n = send(side.fd, &pattern(sent, 1000), libc::MSG_DONTWAIT);
            if n <= 0 {
                break;
            }
            sent += n as usize;
        }
        let mut bytes = [0; 100];
        let (n, passed, flags) = recv_with(side.fd, &mut bytes, libc::MSG_CMSG_CLOEXEC);
        log.say(format_args!("{n} {} {} {flags:x}", String::from_utf8_lossy(&bytes[..5]), passed.is_some()));
        let mut file = passed.map(|fd| {
            // SAFETY: ours since it came.
            unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) }
        });
        let mut text = String::new();
        file.as_mut().unwrap().rewind().unwrap();
        file.as_mut().unwrap().read_to_string(&mut text).unwrap();
        log.say(text);
        return close(side.fd);
    }
    nap(100);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"in the file").unwrap();
    log.result("sent", send_with(side.fd, b"hello", file.as_raw_fd(), false));
    let (bytes, end) = recv_to_end(side.fd);
    // How much went is not for this test to say.
    assert!(bytes == pattern_of(bytes.len()), "{} bytes", bytes.len());
    log.result("the end", end);
}

/// Patterns of thousand bytes each, as they were sent.
fn pattern_of(len: usize) -> Vec<u8> {
    (0..len.div_ceil(1000)).flat_map(|part| pattern(part * 1000, 1000)).take(len).collect()
}

/// A look at all that there is sees it, though some lies in the kernel from before the ring, and the rest in the ring.
pub(crate) fn looks_across(side: Side, log: &mut Log) {
    let bytes = pattern(5, 20 + ROUNDS * 11);
    after_forks(&side);
    if side.server {
        let (head, rest) = bytes.split_at(20);
        send_all(side.fd, head);
        for piece in rest.chunks(11) {
            nap(1);
            send_all(side.fd, piece);
        }
        return log.result("taken", recv_exactly(side.fd, 1).len() as isize);
    }
    let mut seven = [0; 7];
    while recv(side.fd, &mut seven, libc::MSG_PEEK) < 7 {}
    assert!(recv_exactly(side.fd, 7) == bytes[..7]);
    let mut seen = vec![0; 13 + ROUNDS * 11];
    while recv(side.fd, &mut seen, libc::MSG_PEEK) < seen.len() as isize {
        nap(1);
    }
    assert!(seen == bytes[7..]);
    assert!(recv_exactly(side.fd, seen.len()) == seen);
    send_all(side.fd, b"1");
}

/// The same of what lies in a ring that this end has left, and what has come through the kernel since.
pub(crate) fn unread_looked_at(side: Side, log: &mut Log) {
    let bytes = pattern(5, 150);
    side.warm_up();
    if side.server {
        let (in_ring, later) = bytes.split_at(100);
        send_all(side.fd, in_ring);
        // Meanwhile the client leaves.
        nap(300);
        send_all(side.fd, later);
        return log.result("taken", recv_exactly(side.fd, 2).len() as isize);
    }
    nap(100);
    assert_eq!(send(side.fd, b"0", libc::MSG_DONTROUTE), 1);
    let mut seen = vec![0; bytes.len()];
    while recv(side.fd, &mut seen, libc::MSG_PEEK) < bytes.len() as isize {
        nap(1);
    }
    assert!(seen == bytes);
    assert!(recv_exactly(side.fd, bytes.len()) == bytes);
    send_all(side.fd, b"1");
}

/// The server forks now and then; the ends come together again each time.
fn after_forks(side: &Side) {
    for round in 0..5 {
        side.warm_up();
        side.rendezvous(2 * round);
        if side.server {
            // SAFETY: a child that ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: no status is wanted.
            assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        }
        side.rendezvous(2 * round + 1);
    }
}

/// The ends come together again after a fork, while bytes of before lie unread; then a stream of the C library reads on. The wake byte
/// that lies behind those bytes is not among what it reads.
pub(crate) fn stream_behind_a_wake_byte(side: Side, log: &mut Log) {
    let bytes = pattern(3, 7 + ROUNDS * 11);
    after_forks(&side);
    if side.server {
        let (head, rest) = bytes.split_at(7);
        head.chunks(3).chain(rest.chunks(11)).for_each(|piece| send_all(side.fd, piece));
        return log.result("taken", recv_exactly(side.fd, 1).len() as isize);
    }
    let mut seven = [0; 7];
    while recv(side.fd, &mut seven, libc::MSG_PEEK) < 7 {}
    assert_eq!(recv_exactly(side.fd, 7), seven);
    let mut rest = vec![0; ROUNDS * 11];
    // SAFETY: a descriptor of ours, and a place for what is read.
    let read = unsafe {
        let stream = libc::fdopen(side.fd, c"r".as_ptr());
        libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0);
        libc::fread(rest.as_mut_ptr().cast(), 1, rest.len(), stream)
    };
    log.result("read", read as isize);
    let wrong = rest.iter().zip(&bytes[7..]).position(|(got, sent)| got != sent);
    assert_eq!((&seven[..], wrong), (&bytes[..7], None));
    send_all(side.fd, b"1");
}

const ROUNDS: usize = 64;
