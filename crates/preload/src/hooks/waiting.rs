//! poll, select and epoll.

use std::ffi::c_int;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use super::give_up;
use crate::{real, table};

unsafe fn give_up_polled(fds: *mut pollfd, count: nfds_t) {
    if fds.is_null() {
        return;
    }
    for index in 0..count as usize {
        // SAFETY: [preload-program] the program's array.
        let fd = unsafe { (*fds.add(index)).fd };
        give_up(fd, "poll");
    }
}

unsafe fn give_up_selected(count: c_int, sets: [*mut fd_set; 3]) {
    for (fd, _) in table::range(0, count.max(0) as u32) {
        // SAFETY: [preload-program] the program's sets of `count` descriptors.
        if sets.iter().any(|set| !set.is_null() && fd < count && unsafe { libc::FD_ISSET(fd, *set) }) {
            give_up(fd, "select");
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe {
        give_up_polled(fds, count);
        real::poll(fds, count, timeout)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, _room: usize) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    unsafe { poll(fds, count, timeout) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe {
        give_up_polled(fds, count);
        real::ppoll(fds, count, timeout, mask)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    errors: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe {
        give_up_selected(count, [reads, writes, errors]);
        real::select(count, reads, writes, errors, timeout)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    errors: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe {
        give_up_selected(count, [reads, writes, errors]);
        real::pselect(count, reads, writes, errors, timeout, mask)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    give_up(fd, "epoll");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::epoll_ctl(set, op, fd, event) }
}
