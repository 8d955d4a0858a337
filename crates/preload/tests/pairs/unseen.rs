//! What goes past the library: bytes by system calls that it does not see.

use std::os::fd::RawFd;

use crate::eventfds::set_of;
use crate::sock::{Log, Side, close, nap, recv, second};

/// The C library's function itself: what a program does by system calls of its own.
fn unseen(name: &std::ffi::CStr) -> *mut libc::c_void {
    // SAFETY: the C library is loaded already.
    let at = unsafe { libc::dlsym(libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!at.is_null());
    at
}

/// Bytes written past the library, and then the end: they are the program's, however it waits and however the other end goes.
pub(crate) fn strays(side: Side, log: &mut Log) {
    side.warm_up();
    // SAFETY: the C library's functions by their own names.
    let (write, close_unseen) = unsafe {
        (
            std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(RawFd, *const u8, usize) -> isize>(unseen(
                c"write",
            )),
            std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(RawFd) -> i32>(unseen(c"close")),
        )
    };
    for way in 0..6 {
        let one = second(&side);
        one.exchange(30);
        if !side.server {
            nap(5 * way % 15);
            // SAFETY: bytes of ours; a descriptor that is not used any more.
            unsafe {
                assert_eq!(write(one.fd, b"stray".as_ptr(), 5), 5);
                if way < 3 {
                    close(one.fd);
                } else {
                    close_unseen(one.fd);
                }
                side.rendezvous(way as u8);
                // What the library knows of it is to end before the number is another's.
                libc::close(one.fd);
            }
            continue;
        }
        let (mut got, mut in_vain) = (Vec::new(), 0);
        let set = set_of(one.fd);
        let end = loop {
            let mut poll = libc::pollfd { fd: one.fd, events: libc::POLLIN, revents: 0 };
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: one pollfd, one event.
            let reported = unsafe {
                match way % 3 {
                    0 => 1,
                    1 => libc::poll(&mut poll, 1, -1),
                    _ => libc::epoll_wait(set, &mut event, 1, -1),
                }
            };
            assert_eq!(reported, 1);
            let mut part = [0; 3];
            match recv(one.fd, &mut part, if way % 3 == 0 { 0 } else { libc::MSG_DONTWAIT }) {
                n if n > 0 => got.extend_from_slice(&part[..n as usize]),
                0 => break "the end".to_string(),
                _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN) => in_vain += 1,
                _ => break format!("{}", std::io::Error::last_os_error()),
            }
            assert!(in_vain < 1000, "told again and again of what it does not get");
        };
        // A wake byte that an end has not read when it goes without a word makes the kernel say reset.
        let end = if way < 3 { end } else { "over".to_string() };
        log.say(format_args!("{:?}, {end}", String::from_utf8_lossy(&got)));
        close(set);
        close(one.fd);
        side.rendezvous(way as u8);
    }
}
