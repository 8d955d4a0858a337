//! Urgent data, and how it is waited for.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::sets::{LONG, Set};
use crate::sock::{Log, Side, close, recv, recv_exactly, second, send, send_all, set_option, until};

static REPORTED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn reported(_: c_int) {
    REPORTED.fetch_add(1, Ordering::SeqCst);
}

fn at_mark(fd: RawFd) -> c_int {
    unsafe extern "C" {
        fn sockatmark(fd: c_int) -> c_int;
    }
    // SAFETY: a descriptor of ours.
    unsafe { sockatmark(fd) }
}

/// Told of by poll, select, epoll and a signal; the mark stands where it was set, among bytes that lay in the ring.
pub(crate) fn urgent_polled(side: Side, log: &mut Log) {
    side.warm_up();
    // SAFETY: a handler that counts.
    unsafe { assert_ne!(libc::signal(libc::SIGURG, reported as *const () as usize), libc::SIG_ERR) };
    for way in 0..5u8 {
        let one = second(&side);
        one.warm_up();
        if side.server {
            if way != 1 {
                // Some of it is in the ring, or has been told of, when the urgent byte comes.
                send_all(one.fd, b"before");
            }
            side.rendezvous(way);
            log.result("urgent", send(one.fd, b"!", libc::MSG_OOB));
            send_all(one.fd, b"behind");
            side.rendezvous(way);
            one.exchange(20);
            close(one.fd);
            continue;
        }
        let inline = way == 4;
        if inline {
            set_option::<c_int>(one.fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &1);
        }
        // SAFETY: a descriptor of ours.
        assert_eq!(unsafe { libc::fcntl(one.fd, libc::F_SETOWN, libc::getpid()) }, 0);
        let before = REPORTED.load(Ordering::SeqCst);
        let mut poll = libc::pollfd { fd: one.fd, events: libc::POLLPRI, revents: 0 };
        let set = Set::new();
        set.add(one.fd, libc::EPOLLPRI, 7);
        side.rendezvous(way);
        match way {
            0 | 4 => {
                // SAFETY: one pollfd.
                log.result("poll", unsafe { libc::poll(&mut poll, 1, LONG) } as isize);
                log.say(format_args!("{:x}", poll.revents));
            }
            1 | 2 => {
                // SAFETY: a set of one descriptor.
                unsafe {
                    let mut errors: libc::fd_set = std::mem::zeroed();
                    libc::FD_SET(one.fd, &mut errors);
                    let none = std::ptr::null_mut;
                    let n = libc::select(one.fd + 1, none(), none(), &mut errors, std::ptr::null_mut());
                    log.say(format_args!("select: {n} {}", libc::FD_ISSET(one.fd, &errors)));
                }
            }
            _ => log.say(format_args!("{:x?}", set.wait(LONG))),
        }
        until(|| (REPORTED.load(Ordering::SeqCst) > before).then_some(()));
        side.rendezvous(way);
        let mut bytes = [0; 30];
        if way != 1 {
            log.say(at_mark(one.fd));
            log.result("look", recv(one.fd, &mut bytes, libc::MSG_PEEK));
            assert_eq!(recv_exactly(one.fd, 6), *b"before");
        }
        log.say(format_args!("at the mark: {}", at_mark(one.fd)));
        let mut byte = [0];
        if inline {
            assert_eq!(recv_exactly(one.fd, 1), *b"!");
        } else {
            log.result("urgent", recv(one.fd, &mut byte, libc::MSG_OOB));
            log.say(byte[0]);
            log.result("again", recv(one.fd, &mut byte, libc::MSG_OOB));
        }
        assert_eq!(recv_exactly(one.fd, 6), *b"behind");
        poll.events = libc::POLLPRI | libc::POLLOUT;
        // SAFETY: one pollfd.
        log.result("poll", unsafe { libc::poll(&mut poll, 1, 0) } as isize);
        log.say(format_args!("{:x}", poll.revents));
        one.exchange(20);
        close(set.0);
        close(one.fd);
    }
}
