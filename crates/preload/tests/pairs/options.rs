//! Arguments and settings that the kernel refuses, or reads back.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

use crate::sock::{Log, Side, close, recv, recv_exactly, second, send, send_all, until};

/// Buffers that are no memory of the program's: refused, and nothing is lost.
pub(crate) fn bad_buffers(side: Side, log: &mut Log) {
    side.warm_up();
    for (round, at) in [0, 8, usize::MAX, 1 << 63, 0xffff_8000_0000_0000].into_iter().enumerate() {
        let bad = at as *mut c_void;
        if !side.server {
            send_all(side.fd, b"0123456789");
            // SAFETY: no memory is there: that is what is tested.
            unsafe {
                let good = libc::iovec { iov_base: b"ab".as_ptr().cast_mut().cast(), iov_len: 0 };
                let list = [good, libc::iovec { iov_base: bad, iov_len: 5 }];
                let mut message: libc::msghdr = std::mem::zeroed();
                (message.msg_iov, message.msg_iovlen) = (list.as_ptr().cast_mut(), 2);
                log.result("send", libc::send(side.fd, bad, 10, 0));
                log.result("write", libc::write(side.fd, bad, 10));
                log.result("writev", libc::writev(side.fd, list.as_ptr(), 2));
                log.result("sendmsg", libc::sendmsg(side.fd, &message, 0));
                log.result("sendto", libc::sendto(side.fd, bad, 10, 0, std::ptr::null(), 0));
                log.result("nothing", libc::send(side.fd, bad, 0, 0));
                let none = std::ptr::null::<libc::msghdr>();
                log.result("no message", libc::sendmsg(side.fd, none, 0));
                log.result("no list", libc::writev(side.fd, bad.cast(), 1));
            }
            send_all(side.fd, b"more");
            side.rendezvous(round as u8);
            side.exchange(20);
            continue;
        }
        until(|| (recv(side.fd, &mut [0; 20], libc::MSG_PEEK) >= 14).then_some(()));
        // SAFETY: as above.
        unsafe {
            log.result("recv", libc::recv(side.fd, bad, 10, 0));
            log.result("look", libc::recv(side.fd, bad, 10, libc::MSG_PEEK));
            log.result("read", libc::read(side.fd, bad, 10));
            let list = [libc::iovec { iov_base: bad, iov_len: 5 }];
            log.result("readv", libc::readv(side.fd, list.as_ptr(), 1));
            log.result("nothing", libc::recv(side.fd, bad, 0, libc::MSG_DONTWAIT));
            log.result("no list", libc::readv(side.fd, bad.cast(), 1));
            log.result("no message", libc::recvmsg(side.fd, std::ptr::null_mut(), 0));
        }
        assert_eq!(recv_exactly(side.fd, 14), *b"0123456789more");
        // SAFETY: as above.
        log.result("none there", unsafe { libc::recv(side.fd, bad, 10, libc::MSG_DONTWAIT) });
        side.rendezvous(round as u8);
        side.exchange(20);
    }
}

fn option(log: &mut Log, fd: RawFd, name: c_int) {
    let (mut value, mut len) = ([0u8; 8], 8);
    // SAFETY: a live buffer and its length.
    let n = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, name, value.as_mut_ptr().cast(), &mut len) };
    log.result("read back", n as isize);
    log.say(format_args!("{name}: {value:?} {len}"));
}

/// Whether small messages are to wait for one another reads back as it was set, in the rings as before and after.
pub(crate) fn delays(side: Side, log: &mut Log) {
    if !side.server {
        side.warm_up();
        (0..6).for_each(|_| side.exchange(5));
        assert_eq!(recv_exactly(side.fd, 1), [1]);
        return;
    }
    let both = |log: &mut Log| {
        option(log, side.fd, libc::TCP_NODELAY);
        option(log, side.fd, libc::TCP_CORK);
    };
    both(log);
    side.warm_up();
    for (name, value) in
        [(0, 0), (libc::TCP_NODELAY, 1), (libc::TCP_CORK, 1), (libc::TCP_CORK, 0), (libc::TCP_NODELAY, 0)]
    {
        if name != 0 {
            // SAFETY: a live int and its size.
            let n = unsafe { libc::setsockopt(side.fd, libc::IPPROTO_TCP, name, (&raw const value).cast(), 4) };
            log.result("set", n as isize);
        }
        both(log);
        side.exchange(5);
    }
    // SAFETY: too short for what it sets, and nothing at all.
    unsafe {
        let one: c_int = 1;
        let at = (&raw const one).cast();
        log.result("short", libc::setsockopt(side.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, at, 2) as isize);
        let none = std::ptr::null();
        log.result("none", libc::setsockopt(side.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, none, 4) as isize);
        let mut len = 2;
        let mut value = [7u8; 4];
        let at = value.as_mut_ptr().cast();
        log.result("part", libc::getsockopt(side.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, at, &mut len) as isize);
        log.say(format_args!("{len} {value:?}"));
    }
    side.exchange(5);
    // SAFETY: a descriptor of ours.
    assert_eq!(unsafe { libc::shutdown(side.fd, libc::SHUT_RD) }, 0);
    both(log);
    // The last of it can be read all the same.
    send_all(side.fd, &[1]);
}

unsafe extern "C" {
    fn preadv2(fd: c_int, list: *const libc::iovec, count: c_int, at: libc::off_t, flags: c_int) -> isize;
    fn pwritev2(fd: c_int, list: *const libc::iovec, count: c_int, at: libc::off_t, flags: c_int) -> isize;
}

/// Reads and writes at a position, of which a socket has none, or by a call that may have one; in the background as well.
pub(crate) fn at_positions(side: Side, log: &mut Log) {
    side.warm_up();
    let mut bytes = [0u8; 20];
    let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 10 };
    for round in 0..4u8 {
        if round == 2 {
            side.exchange(20);
        }
        if side.server {
            let text = [b'a' + round; 10];
            let part = libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: 10 };
            // SAFETY: a list of one buffer.
            unsafe {
                log.result("pwritev2", pwritev2(side.fd, &part, 1, -1, 0));
                log.result("pwritev2 at", pwritev2(side.fd, &part, 1, 5, 0));
                log.result("pwrite", libc::pwrite(side.fd, text.as_ptr().cast(), 10, 0));
                log.result("pwritev", libc::pwritev(side.fd, &part, 1, 0));
                if round % 2 == 1 {
                    let number = libc::SYS_pwritev2;
                    log.result(
                        "by number",
                        libc::syscall(number, side.fd, &raw const part, 1, -1i64, -1i64, 0) as isize,
                    );
                } else {
                    send_all(side.fd, &text);
                }
            }
            side.rendezvous(round);
            in_background(log, &side, round);
            continue;
        }
        until(|| (recv(side.fd, &mut [0; 30], libc::MSG_PEEK) == 20).then_some(()));
        // SAFETY: a list of one live buffer.
        unsafe {
            log.result("pread", libc::pread(side.fd, part.iov_base, 10, 0));
            log.result("preadv", libc::preadv(side.fd, &part, 1, 0));
            log.result("preadv2 at", preadv2(side.fd, &part, 1, 3, 0));
            log.result("preadv2", preadv2(side.fd, &part, 1, -1, if round == 3 { libc::RWF_NOWAIT } else { 0 }));
            log.say(String::from_utf8_lossy(&bytes[..10]));
            if round % 2 == 1 {
                let number = libc::SYS_preadv2;
                log.result("by number", libc::syscall(number, side.fd, &raw const part, 1, -1i64, -1i64, 0) as isize);
            } else {
                log.result("read", libc::read(side.fd, part.iov_base, 10));
            }
            log.say(String::from_utf8_lossy(&bytes[..10]));
        }
        side.rendezvous(round);
        in_background(log, &side, round);
    }
    log.result("and send", send(side.fd, b"x", 0));
    assert_eq!(recv_exactly(side.fd, 1), *b"x");
}

/// By a thread of the C library's, over a connection of its own, by itself and in a list.
fn in_background(log: &mut Log, side: &Side, round: u8) {
    let one = second(side);
    one.warm_up();
    let mut bytes = [if side.server { b'x' } else { 0 }; 4];
    // SAFETY: the block and the bytes live until the call is over.
    unsafe {
        let mut block: libc::aiocb = std::mem::zeroed();
        (block.aio_fildes, block.aio_buf, block.aio_nbytes) = (one.fd, bytes.as_mut_ptr().cast(), 4);
        block.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
        block.aio_lio_opcode = if side.server { libc::LIO_WRITE } else { libc::LIO_READ };
        let list = [&raw mut block];
        let begun = match (round % 2, side.server) {
            (0, true) => libc::aio_write(&mut block),
            (0, false) => libc::aio_read(&mut block),
            _ => libc::lio_listio(libc::LIO_NOWAIT, list.as_ptr(), 1, std::ptr::null_mut()),
        };
        log.result("begun", begun as isize);
        while libc::aio_error(&block) == libc::EINPROGRESS {
            libc::aio_suspend(list.as_ptr().cast(), 1, std::ptr::null());
        }
        log.say(format_args!("{} {} {bytes:?}", libc::aio_error(&block), libc::aio_return(&mut block)));
    }
    one.exchange(5);
    close(one.fd);
}
