//! poll, and select by way of it, over descriptors of which some are ring connections.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{pollfd, sigset_t, timespec};

use crate::connection::{Connection, State};
use crate::ready::{Look, WRITES, Watch, look, translate};
use crate::{chime, errno, pace, real, table, wait};

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
    wait::cancellation_point();
    // What is kept of each is cleared first, and most lists are short.
    if fds.len() <= FEW { poll_among::<FEW>(fds, limit, mask) } else { poll_among::<AT_MOST>(fds, limit, mask) }
}

#[inline(never)]
fn poll_among<const N: usize>(fds: &mut [pollfd], limit: Option<Duration>, mask: *const sigset_t) -> c_int {
    // A time that the clock does not reach is for ever.
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut asked = [[NOBODY; N]; 2];
    let mut looks = [Look::default(); N];
    let mut listening = [None; N];
    // Chimes stand behind what the program asks for.
    let Some(asked) = asked.as_flattened_mut().get_mut(..2 * fds.len()) else {
        return errno::fail(libc::EINVAL) as c_int;
    };
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
        if stand.any && is_all_there_is_to_say(fds, &looks) {
            listened(listening.get_mut(..fds.len()).unwrap_or(&mut []));
            return say(fds, &looks);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let sleeping = !stand.any && left != Some(Duration::ZERO);
        let pause = if stand.any {
            Some(Duration::ZERO)
        } else if stand.brief {
            Some(left.map_or(BRIEF, |left| left.min(BRIEF)))
        } else if stand.chimes {
            left
        } else {
            // Nobody tells one who sleeps for a bell alone that another thread has taken the connection back.
            Some(left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN)))
        };
        count_sleepers(fds, &looks, sleeping, 1);
        let many = if sleeping && stand.chimes { asked.len() } else { fds.len() };
        let result = asked.get_mut(..many).map_or(0, |asked| kernel_poll(asked, pause, mask));
        let error = errno::get();
        count_sleepers(fds, &looks, sleeping, 1u32.wrapping_neg());
        listened(listening.get_mut(..fds.len()).unwrap_or(&mut []));
        if result < 0 && !stand.any {
            errno::set(error);
            return -1;
        }
        if many > fds.len() {
            hear(fds, asked);
            hush(fds);
        }
        let ready = answer(fds, asked, &looks);
        if ready > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            errno::set(error);
            return ready;
        }
    }
}

/// Whether the kernel need not be asked beside what stands: a single one that is ready, or rings alone, of which it is asked at every
/// eighth time, since it knows more of them than their rings do.
fn is_all_there_is_to_say(fds: &[pollfd], looks: &[Look]) -> bool {
    if fds.len() == 1 {
        return true;
    }
    let rings_alone = fds.iter().zip(looks).all(|(poll, look)| poll.fd < 0 || !look.plain && look.ask & WRITES == 0);
    let first = fds.iter().find_map(|poll| ring(poll.fd));
    rings_alone && first.is_some_and(|first| first.polls.fetch_add(1, Ordering::Relaxed) % ASK_KERNEL != 0)
}

/// Writes down what the looks found.
fn say(fds: &mut [pollfd], looks: &[Look]) -> c_int {
    let mut ready = 0;
    for (poll, look) in fds.iter_mut().zip(looks) {
        poll.revents = look.ready;
        ready += c_int::from(look.ready != 0);
    }
    ready
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

/// Whoever has been woken by one need not be rung for by the others until he sleeps again.
fn hush(fds: &[pollfd]) {
    for (poll, connection) in fds.iter().filter_map(|poll| Some((poll, ring(poll.fd)?))) {
        if let Some(held) = table::hold(poll.fd, connection) {
            chime::hush(&held);
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
    let in_vain = fds.iter().find_map(|poll| ring(poll.fd)).is_some_and(|first| pace::is_in_vain(&first.pace));
    if in_vain || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
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
const FEW: usize = 16;
const ASK_KERNEL: u8 = 8;
const WATCHED: usize = 8;
const BRIEF: Duration = Duration::from_millis(2);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
