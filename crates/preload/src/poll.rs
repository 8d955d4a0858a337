//! poll, and select by way of it, over descriptors of which some are ring connections.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{pollfd, sigset_t, timespec};

use crate::connection::{Connection, State};
use crate::ready::{Look, Watch, look, translate};
use crate::{errno, real, table, wait};

/// Whether any of them is in a ring: only then is there anything to do here.
#[inline]
pub(crate) fn concerns(fds: &[pollfd]) -> bool {
    fds.iter().any(|poll| ring(poll.fd).is_some())
}

#[inline]
fn ring(fd: c_int) -> Option<&'static Connection> {
    table::find(fd).filter(|connection| connection.state() == State::Ring)
}

/// As `ppoll`: waits until something stands, at most for `limit` (none: for ever).
pub(crate) fn poll(fds: &mut [pollfd], limit: Option<Duration>, mask: *const sigset_t) -> c_int {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut asked = [pollfd { fd: -1, events: 0, revents: 0 }; AT_MOST];
    let mut looks = [Look::default(); AT_MOST];
    let Some(asked) = asked.get_mut(..fds.len()) else { return errno::fail(libc::EINVAL) as c_int };
    let mut spun = limit == Some(Duration::ZERO);
    loop {
        let sleep = spun;
        let (mut any, mut brief) = (false, false);
        for ((poll, ask), seen) in fds.iter().zip(asked.iter_mut()).zip(looks.iter_mut()) {
            *seen = match ring(poll.fd) {
                Some(connection) => look(poll.fd, connection, poll.events, sleep),
                None => Look { ask: poll.events, plain: true, ..Look::default() },
            };
            any |= seen.ready != 0;
            brief |= seen.brief;
            *ask = pollfd { fd: poll.fd, events: seen.ask, revents: 0 };
        }
        if !any && !spun {
            spun = true;
            spin(fds, deadline);
            continue;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let sleeping = !any && left != Some(Duration::ZERO);
        let pause = if any {
            Some(Duration::ZERO)
        } else if brief {
            Some(left.map_or(BRIEF, |left| left.min(BRIEF)))
        } else {
            left
        };
        count_sleepers(fds, &looks, sleeping, 1);
        // A single one that is ready is all there is to say.
        let result = if any && fds.len() == 1 { 0 } else { kernel_poll(asked, pause, mask) };
        let error = errno::get();
        count_sleepers(fds, &looks, sleeping, 1u32.wrapping_neg());
        if result < 0 && !any {
            errno::set(error);
            return -1;
        }
        let ready = answer(fds, asked, &looks);
        if ready > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            errno::set(error);
            return ready;
        }
    }
}

/// Writes down what stands; how many have something.
fn answer(fds: &mut [pollfd], asked: &[pollfd], looks: &[Look]) -> c_int {
    let mut ready = 0;
    for ((poll, ask), seen) in fds.iter_mut().zip(asked).zip(looks) {
        poll.revents = match table::find(poll.fd) {
            Some(connection) => translate(poll.fd, connection, poll.events, *seen, ask.revents),
            None => ask.revents,
        };
        ready += c_int::from(poll.revents != 0);
    }
    ready
}

fn kernel_poll(asked: &mut [pollfd], pause: Option<Duration>, mask: *const sigset_t) -> c_int {
    let limit = pause.map(|pause| timespec {
        tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(pause.subsec_nanos()),
    });
    let at = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: [preload-real] an array and a time of ours, the program's mask.
    unsafe { real::ppoll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, at, mask) }
}

/// Bells are left unread for whoever sleeps; see `wait::eat`.
fn count_sleepers(fds: &[pollfd], looks: &[Look], sleeping: bool, by: u32) {
    if sleeping {
        let looked_at = fds.iter().zip(looks).filter(|(_, look)| !look.plain);
        for connection in looked_at.filter_map(|(poll, _)| table::find(poll.fd)) {
            let _ = connection.sleepers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
                Some(if by == 1 { count.saturating_add(1) } else { count.saturating_sub(1) })
            });
        }
    }
}

/// Watches the first few for a while.
fn spin(fds: &[pollfd], deadline: Option<Instant>) {
    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        return;
    }
    let mut watches = [None; WATCHED];
    let rings = fds.iter().filter_map(|poll| ring(poll.fd).map(|connection| (poll, connection)));
    for (place, (poll, connection)) in watches.iter_mut().zip(rings) {
        *place = Watch::begin(poll.fd, connection, poll.events, None);
    }
    wait::spin_over(&watches);
    for watch in watches.into_iter().flatten() {
        watch.end();
    }
}

/// More descriptors at once are given to the kernel.
pub(crate) const AT_MOST: usize = 256;
const WATCHED: usize = 8;
const BRIEF: Duration = Duration::from_millis(2);
