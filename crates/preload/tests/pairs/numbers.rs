//! Descriptors that something else than the library knows by their number: the C library's streams, another process, a signal.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::passing::{recv_with, send_with};
use crate::sock::{Log, Side, close, recv_exactly, recv_to_end, second, send_all, until};

/// The connection takes the place of the standard output, into which the C library prints.
pub(crate) fn standard_output(side: Side, log: &mut Log) {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
    }
    side.warm_up();
    if !side.server {
        return log.say(String::from_utf8_lossy(&recv_to_end(side.fd).0));
    }
    send_all(side.fd, b"before ");
    // SAFETY: descriptors of ours; strings that end with zeroes.
    unsafe {
        let before = libc::dup(1);
        assert_eq!(libc::dup2(side.fd, 1), 1);
        for _ in 0..3 {
            libc::fputs(c"printed ".as_ptr(), stdout);
            libc::fflush(stdout);
            send_all(side.fd, b"sent ");
        }
        assert_eq!(libc::dup2(before, 1), 1);
    }
    close(side.fd);
}

/// The descriptor travels, beside one message and beside one of several; who gets it knows nothing of rings.
pub(crate) fn passed_on(side: Side, log: &mut Log) {
    side.warm_up();
    for several in [false, true] {
        let one = second(&side);
        one.warm_up();
        if !side.server {
            send_all(one.fd, b"for whoever has it");
            side.rendezvous(1);
            assert_eq!(recv_exactly(one.fd, 5), *b"reply");
            close(one.fd);
            continue;
        }
        side.rendezvous(1);
        let other = pass(one.fd, several);
        // Only reads by the number that came.
        let bytes = recv_exactly(other, 18);
        log.say(String::from_utf8_lossy(&bytes));
        send_all(other, b"reply");
        close(other);
        close(one.fd);
    }
}

/// What comes out of a pair of sockets when this goes in.
fn pass(fd: RawFd, several: bool) -> RawFd {
    let mut pair = [-1; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) }, 0);
    assert_eq!(send_with(pair[0], &[7], fd, several), 1);
    let (n, passed, _) = recv_with(pair[1], &mut [0], 0);
    assert_eq!(n, 1);
    pair.into_iter().for_each(close);
    passed.unwrap()
}

static REPORTED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn reported(_: c_int) {
    REPORTED.fetch_add(1, Ordering::SeqCst);
}

/// A signal tells of bytes.
pub(crate) fn asynchronous(side: Side, log: &mut Log) {
    side.warm_up();
    if !side.server {
        assert_eq!(recv_exactly(side.fd, 1), [1]);
        send_all(side.fd, b"told of");
        return side.rendezvous(2);
    }
    // SAFETY: a handler that counts; a descriptor of ours.
    unsafe {
        assert_ne!(libc::signal(libc::SIGIO, reported as *const () as usize), libc::SIG_ERR);
        assert_eq!(libc::fcntl(side.fd, libc::F_SETOWN, libc::getpid()), 0);
        let on: c_int = 1;
        assert_eq!(libc::ioctl(side.fd, libc::FIOASYNC, &on), 0);
    }
    let before = REPORTED.load(Ordering::SeqCst);
    send_all(side.fd, &[1]);
    until(|| (REPORTED.load(Ordering::SeqCst) > before).then_some(()));
    log.say(String::from_utf8_lossy(&recv_exactly(side.fd, 7)));
    side.rendezvous(2);
}
