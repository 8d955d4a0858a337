//! poll, and select by way of it, over descriptors of which some are ring connections.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{pollfd, sigset_t, timespec};

use crate::connection::{Connection, State};
use crate::ready::{Look, Watch, look, translate};
use crate::{chime, errno, real, table, wait};

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
    let mut asked = [NOBODY; 2 * AT_MOST];
    let mut looks = [Look::default(); AT_MOST];
    let mut listening = [None; AT_MOST];
    // Chimes stand behind what the program asks for.
    let Some(asked) = asked.get_mut(..2 * fds.len()) else { return errno::fail(libc::EINVAL) as c_int };
    let at_once = limit == Some(Duration::ZERO);
    let mut spun = at_once;
    loop {
        let sleep = spun && !at_once;
        if sleep {
            listen(fds, &mut listening);
        }
        let stand = look_at_all(fds, asked, &mut looks, sleep);
        if !stand.any && !spun {
            spun = true;
            spin(fds, deadline);
            continue;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let sleeping = !stand.any && left != Some(Duration::ZERO);
        let pause = if stand.any {
            Some(Duration::ZERO)
        } else if stand.brief {
            Some(left.map_or(BRIEF, |left| left.min(BRIEF)))
        } else {
            left
        };
        count_sleepers(fds, &looks, sleeping, 1);
        let many = if sleeping && stand.chimes { asked.len() } else { fds.len() };
        // A single one that is ready is all there is to say.
        let result = match asked.get_mut(..many) {
            Some(asked) if !(stand.any && fds.len() == 1) => kernel_poll(asked, pause, mask),
            _ => 0,
        };
        let error = errno::get();
        count_sleepers(fds, &looks, sleeping, 1u32.wrapping_neg());
        listened(listening.get_mut(..fds.len()).unwrap_or(&mut []));
        if result < 0 && !stand.any {
            errno::set(error);
            return -1;
        }
        if many > fds.len() {
            hear(fds, asked);
        }
        let ready = answer(fds, asked, &looks);
        if ready > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            errno::set(error);
            return ready;
        }
    }
}

/// What a look at all of them came to.
#[derive(Clone, Copy, Default)]
struct Stand {
    any: bool,
    brief: bool,
    chimes: bool,
}

/// Looks at each, and writes down what the kernel is to be asked. With `sleep`, all is put in order for that.
fn look_at_all(fds: &[pollfd], asked: &mut [pollfd], looks: &mut [Look], sleep: bool) -> Stand {
    let mut stand = Stand::default();
    let (asked, chimes) = asked.split_at_mut(fds.len());
    for (((poll, ask), chime), seen) in fds.iter().zip(asked).zip(chimes).zip(looks) {
        *seen = match ring(poll.fd) {
            Some(connection) => look(poll.fd, connection, poll.events, sleep),
            None => Look { ask: poll.events, plain: true, ..Look::default() },
        };
        stand.any |= seen.ready != 0;
        stand.brief |= seen.brief;
        stand.chimes |= seen.chime.is_some();
        *ask = pollfd { fd: poll.fd, events: seen.ask, revents: 0 };
        *chime = seen.chime.map_or(NOBODY, |fd| pollfd { fd, events: libc::POLLIN, revents: 0 });
    }
    stand
}

/// From before a wish is left, whoever makes a chime silent is to know of this thread.
fn listen(fds: &[pollfd], listening: &mut [Option<&'static Connection>]) {
    for (poll, place) in fds.iter().zip(listening) {
        *place = ring(poll.fd).filter(|connection| connection.chime.load(Ordering::Relaxed) != chime::NONE);
        if let Some(connection) = place {
            connection.listeners.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn listened(listening: &mut [Option<&'static Connection>]) {
    for connection in listening.iter_mut().filter_map(Option::take) {
        let one_less = |count: u32| Some(count.saturating_sub(1));
        let _ = connection.listeners.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
    }
}

/// Chimes that were rung are to be silent before the next sleep.
fn hear(fds: &[pollfd], asked: &[pollfd]) {
    for (poll, chime) in fds.iter().zip(asked.get(fds.len()..).unwrap_or(&[])) {
        if chime.revents & libc::POLLIN != 0
            && let Some(connection) = ring(poll.fd)
        {
            errno::kept(|| chime::hear(poll.fd, connection));
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

const NOBODY: pollfd = pollfd { fd: -1, events: 0, revents: 0 };
/// More descriptors at once are given to the kernel.
pub(crate) const AT_MOST: usize = 256;
const WATCHED: usize = 8;
const BRIEF: Duration = Duration::from_millis(2);
