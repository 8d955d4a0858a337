//! poll and select.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use super::give_up;
use crate::connection::Connection;
use crate::{epoll, errno, poll as rings, real, sets, table};

/// The program's own array, when some of it concerns us.
unsafe fn polled<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if fds.is_null() || rings::is_too_many(count) {
        return None;
    }
    // SAFETY: [preload-program] the program's array.
    let list = unsafe { std::slice::from_raw_parts_mut(fds, usize::try_from(count).ok()?) };
    if sets::has_any() {
        list.iter().for_each(|poll| epoll::make_foreign(poll.fd, "poll of a set of epoll"));
    }
    rings::concerns(list).then_some(list)
}

/// The program's time, or none, which is for ever. `Err` for one that the kernel is to refuse.
fn time(limit: *const timespec) -> Result<Option<Duration>, ()> {
    // SAFETY: [preload-program] the program's time, or none.
    let Some(limit) = (unsafe { limit.as_ref() }) else { return Ok(None) };
    match (u64::try_from(limit.tv_sec), u32::try_from(limit.tv_nsec)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Some(Duration::new(seconds, nanos))),
        _ => Err(()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe {
        match polled(fds, count) {
            Some(list) => {
                let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
                rings::poll(list, limit, std::ptr::null())
            }
            None => real::poll(fds, count, timeout),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: [preload-program] the program's arguments.
    unsafe { poll(fds, count, timeout) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        // SAFETY: [preload-real] the program's arguments; the C library ends the program in its own words.
        return unsafe { real::__poll_chk(fds, count, timeout, room) };
    }
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
        match (polled(fds, count), time(timeout)) {
            (Some(list), Ok(limit)) => rings::poll(list, limit, mask),
            _ => real::ppoll(fds, count, timeout, mask),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        // SAFETY: [preload-real] as above.
        return unsafe { real::__ppoll_chk(fds, count, timeout, mask, room) };
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { ppoll(fds, count, timeout, mask) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    errors: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: [preload-program] the program's time, or none.
    let limit = match unsafe { timeout.as_ref() } {
        None => Ok(None),
        Some(limit) => match (u64::try_from(limit.tv_sec), u64::try_from(limit.tv_usec)) {
            (Ok(seconds), Ok(micros)) => Ok(Some(Duration::from_secs(seconds) + Duration::from_micros(micros))),
            // The kernel is to refuse it.
            _ => Err(()),
        },
    };
    let begun = Instant::now();
    if let Ok(limit) = limit
        // SAFETY: [preload-program] the program's sets.
        && let Some(result) = unsafe { selected(count, [reads, writes, errors], limit, std::ptr::null()) }
    {
        if let Some(limit) = limit {
            let left = limit.saturating_sub(begun.elapsed());
            let left = timeval { tv_sec: left.as_secs() as i64, tv_usec: i64::from(left.subsec_micros()) };
            // SAFETY: [preload-program] the program's time, which Linux updates.
            unsafe { timeout.write(left) };
        }
        return result;
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::select(count, reads, writes, errors, timeout) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    errors: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: [preload-program] the program's arguments.
    unsafe { select(count, reads, writes, errors, timeout) }
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
    if let Ok(limit) = time(timeout)
        // SAFETY: [preload-program] the program's sets.
        && let Some(result) = unsafe { selected(count, [reads, writes, errors], limit, mask) }
    {
        return result;
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::pselect(count, reads, writes, errors, timeout, mask) }
}

/// By way of poll, when a ring connection is in one of the sets.
unsafe fn selected(
    count: c_int,
    sets: [*mut fd_set; 3],
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> Option<c_int> {
    if count > libc::FD_SETSIZE as c_int {
        // Sets that are larger than the type says: which of them are asked for is the kernel's to see.
        table::range(0, count as u32 - 1).for_each(|(fd, _)| give_up(fd, "select of more than its type holds"));
        return None;
    }
    let count = count.max(0);
    let has = |fd: c_int, set: *mut fd_set| {
        // SAFETY: [preload-program] the program's sets of `count` descriptors.
        !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
    };
    if sets::has_any() {
        let within = |fd: &c_int| sets.iter().any(|set| has(*fd, *set));
        (0..count).filter(within).for_each(|fd| epoll::make_foreign(fd, "select of a set of epoll"));
    }
    let in_ring = |(fd, connection): &(c_int, &Connection)| {
        rings::may_be_in_ring(connection) && sets.iter().any(|set| has(*fd, *set))
    };
    if count == 0 || !table::range(0, count as u32 - 1).any(|entry| in_ring(&entry)) {
        return None;
    }
    let mut list = [pollfd { fd: -1, events: 0, revents: 0 }; libc::FD_SETSIZE];
    let mut len = 0;
    for fd in 0..count {
        let events = EVENTS.iter().zip(sets).filter(|(_, set)| has(fd, *set)).fold(0, |all, (events, _)| all | events);
        if events != 0 {
            *list.get_mut(len)? = pollfd { fd, events, revents: 0 };
            len += 1;
        }
    }
    let list = list.get_mut(..len)?;
    if rings::poll(list, limit, mask) < 0 {
        return Some(-1);
    }
    if list.iter().any(|poll| poll.revents & libc::POLLNVAL != 0) {
        return Some(errno::fail(libc::EBADF) as c_int);
    }
    let mut ready = 0;
    for poll in list {
        for (stands, set) in STANDS.iter().zip(sets) {
            if has(poll.fd, set) {
                if poll.revents & stands == 0 {
                    // SAFETY: [preload-program] the program's set, which has this descriptor.
                    unsafe { libc::FD_CLR(poll.fd, set) };
                } else {
                    ready += 1;
                }
            }
        }
    }
    Some(ready)
}

/// What select's sets ask of poll, and which answers put a descriptor into them.
const EVENTS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const STANDS: [i16; 3] = [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];
