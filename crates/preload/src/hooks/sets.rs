//! Sets of epoll.

use std::ffi::c_int;
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};

use super::give_up;
use crate::epoll::{self, Limit};
use crate::{errno, real, sets, table};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: [preload-real] the program's argument.
    created(unsafe { real::epoll_create(size) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: [preload-real] the program's argument.
    created(unsafe { real::epoll_create1(flags) })
}

fn created(set: c_int) -> c_int {
    if set >= 0 {
        errno::kept(|| sets::create(set));
    }
    set
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if let Some(known) = sets::find(set) {
        return epoll::apply(known, set, op, fd, event);
    }
    // Nobody knows who waits for it.
    give_up(fd, "a set of epoll that others have");
    if op == libc::EPOLL_CTL_ADD {
        table::note_in_set(fd, true);
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::epoll_ctl(set, op, fd, event) }
}

/// The program's places for events, if there are any.
unsafe fn places<'a>(events: *mut epoll_event, count: c_int) -> Option<&'a mut [epoll_event]> {
    let count = usize::try_from(count).ok().filter(|count| *count > 0 && !events.is_null())?;
    // SAFETY: [preload-program] the program's promise to epoll_wait.
    Some(unsafe { std::slice::from_raw_parts_mut(events, count) })
}

fn coarse(timeout: c_int) -> Limit {
    u64::try_from(timeout).map_or(Limit::Forever, |ms| Limit::Coarse(Duration::from_millis(ms)))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe {
        match (sets::find(set), places(events, count)) {
            (Some(known), Some(places)) => epoll::wait(known, set, places, coarse(timeout), std::ptr::null()),
            _ => real::epoll_wait(set, events, count, timeout),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe {
        match (sets::find(set), places(events, count)) {
            (Some(known), Some(places)) => epoll::wait(known, set, places, coarse(timeout), mask),
            _ => real::epoll_pwait(set, events, count, timeout, mask),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe {
        let limit = match timeout.as_ref() {
            None => Some(Limit::Forever),
            Some(time) => match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
                (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Some(Limit::Fine(Duration::new(seconds, nanos))),
                // The kernel is to refuse it.
                _ => None,
            },
        };
        match (sets::find(set), places(events, count), limit) {
            (Some(known), Some(places), Some(limit)) => epoll::wait(known, set, places, limit, mask),
            _ => real::epoll_pwait2(set, events, count, timeout, mask),
        }
    }
}
