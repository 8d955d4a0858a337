//! poll, and select by way of it, over descriptors of which some are ring connections.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use libc::{pollfd, sigset_t, timespec};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use crate::connection::{Connection, State};
use crate::ready::{Look, Others, Seat, Watch, look, translate};
use crate::sets::WRITES;
use crate::{errno, eventfd, real, spin, table, wait};

/// Whether any of them is in a ring, or may come into one: only then is there anything to do here.
#[inline]
pub(crate) fn concerns(fds: &[pollfd]) -> bool {
    fds.iter().any(|poll| table::find(poll.fd).is_some_and(may_be_in_ring))
}

/// Whether it is in a ring, or the ends may meet while a thread sleeps for it.
#[inline]
pub(crate) fn may_be_in_ring(connection: &Connection) -> bool {
    matches!(connection.state(), State::Ring | State::Counting)
}

#[inline]
fn ring(fd: c_int) -> Option<&'static Connection> {
    table::find(fd).filter(|connection| connection.state() == State::Ring)
}

/// As `ppoll`: waits until something stands, at most for `limit` (none: for ever).
pub(crate) fn poll(fds: &mut [pollfd], limit: Option<Duration>, mask: *const sigset_t) -> c_int {
    wait::cancellation_point();
    // What is kept of each is cleared first, and most lists are short.
    let many = fds.len();
    if many <= FEW {
        return poll_few::<FEW>(fds, limit, mask);
    }
    if many <= SOME {
        return poll_few::<SOME>(fds, limit, mask);
    }
    let Some(mut room) = Room::for_list(many) else { return errno::fail(libc::ENOMEM) as c_int };
    let result = poll_among(fds, limit, mask, room.notes());
    errno::kept(|| room.give_back());
    result
}

#[inline(never)]
fn poll_few<const N: usize>(fds: &mut [pollfd], limit: Option<Duration>, mask: *const sigset_t) -> c_int {
    let (mut asked, mut looks, mut seats) = ([[NOBODY; N]; 2], [Look::default(); N], [Seat::default(); N]);
    let notes = Notes { asked: asked.as_flattened_mut(), looks: &mut looks, seats: &mut seats };
    poll_among(fds, limit, mask, notes)
}

/// What is kept of each descriptor in a list.
struct Notes<'a> {
    /// What the kernel is asked, and the eventfds behind it.
    asked: &'a mut [pollfd],
    looks: &'a mut [Look],
    seats: &'a mut [Seat],
}

fn poll_among(fds: &mut [pollfd], limit: Option<Duration>, mask: *const sigset_t, notes: Notes<'_>) -> c_int {
    // A time that the clock does not reach is for ever.
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let Notes { asked, looks, seats } = notes;
    let (Some(asked), Some(looks), Some(seats)) =
        (asked.get_mut(..2 * fds.len()), looks.get_mut(..fds.len()), seats.get_mut(..fds.len()))
    else {
        return errno::fail(libc::EINVAL) as c_int;
    };
    let by_wake_bytes = 2 * fds.len() > LEAST_LIMIT && 2 * fds.len() as u64 > descriptors();
    let at_once = limit == Some(Duration::ZERO);
    let mut spun = at_once;
    loop {
        let stand = look_at_all(fds, asked, looks, if spun && !at_once { &mut *seats } else { &mut [] }, by_wake_bytes);
        if !stand.any && !spun {
            spun = true;
            spin(fds, deadline);
            continue;
        }
        if stand.any && is_all_there_is_to_say(fds, looks) {
            rise(seats, &[]);
            return say(fds, looks);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let sleeping = !stand.any && left != Some(Duration::ZERO);
        let others = stand.others.filter(|_| sleeping);
        let pause = if let Some((connection, others)) = others {
            rise(seats, &[]);
            if !others.outwait(connection) {
                return errno::fail(libc::EINTR) as c_int;
            }
            Some(Duration::ZERO)
        } else if stand.any {
            Some(Duration::ZERO)
        } else if stand.brief {
            Some(left.map_or(BRIEF, |left| left.min(BRIEF)))
        } else if stand.eventfds && !stand.wake_bytes || !stand.rings {
            left
        } else {
            // Nobody tells one who sleeps for a wake byte alone that another thread has taken the connection back.
            Some(left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN)))
        };
        let many = if sleeping && stand.eventfds && others.is_none() { asked.len() } else { fds.len() };
        let result = asked.get_mut(..many).map_or(0, |asked| kernel_poll(asked, pause, mask));
        let error = errno::get();
        rise(seats, if many > fds.len() { asked.get(fds.len()..).unwrap_or(&[]) } else { &[] });
        if result < 0 && !stand.any {
            errno::set(error);
            return -1;
        }
        if many > fds.len() {
            errno::kept(|| disarm_eventfd(fds));
        }
        let ready = answer(fds, asked, looks);
        if ready > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            errno::set(error);
            return ready;
        }
    }
}

/// Whether the kernel need not be asked in addition to what stands. That is so of a single ring of
/// which it knows no more, and of rings alone. Of those it is asked at every eighth time, since it
/// knows more of them than their rings do.
fn is_all_there_is_to_say(fds: &[pollfd], looks: &[Look]) -> bool {
    if let ([_], [look]) = (fds, looks.get(..fds.len()).unwrap_or(looks)) {
        return look.ask & !libc::POLLIN == 0;
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
    eventfds: bool,
    /// One of them at least is in a ring; one waits for a wake byte alone.
    rings: bool,
    wake_bytes: bool,
    others: Option<(&'static Connection, Others)>,
}

/// Looks at each, and writes down what the kernel is to be asked. With seats, all is put in order
/// for sleeping, `by_wake_bytes` without eventfds.
fn look_at_all(
    fds: &[pollfd],
    asked: &mut [pollfd],
    looks: &mut [Look],
    seats: &mut [Seat],
    by_wake_bytes: bool,
) -> Stand {
    let mut stand = Stand::default();
    let (asked, eventfds) = asked.split_at_mut(fds.len());
    let mut seats = seats.iter_mut();
    for (((poll, ask), eventfd), seen) in fds.iter().zip(asked).zip(eventfds).zip(looks) {
        let (seat, connection) = (seats.next(), table::find(poll.fd).filter(|found| may_be_in_ring(found)));
        *seen = match connection {
            Some(connection) => look(poll.fd, connection, poll.events, seat, by_wake_bytes),
            None => Look { ask: poll.events, plain: true, ..Look::default() },
        };
        stand.rings |= !seen.plain;
        stand.wake_bytes |= seen.armed && seen.eventfd.is_none();
        stand.others = stand.others.or(connection.zip(seen.others));
        stand.any |= seen.ready != 0;
        stand.brief |= seen.brief;
        stand.eventfds |= seen.eventfd.is_some();
        *ask = pollfd { fd: poll.fd, events: seen.ask, revents: 0 };
        *eventfd = seen.eventfd.map_or(NOBODY, |fd| pollfd { fd, events: libc::POLLIN, revents: 0 });
    }
    stand
}

/// Awake: the thread is not counted any more. `eventfds` are the kernel's
/// answers, if they were asked.
fn rise(seats: &mut [Seat], eventfds: &[pollfd]) {
    for (at, seat) in seats.iter_mut().enumerate() {
        seat.rise(eventfds.get(at).is_some_and(|eventfd| eventfd.revents & libc::POLLIN != 0));
    }
}

/// Whoever has been woken by one need not be woken by the others until he sleeps again.
fn disarm_eventfd(fds: &[pollfd]) {
    for (poll, connection) in fds.iter().filter_map(|poll| Some((poll, ring(poll.fd)?))) {
        if let Some(held) = table::hold(poll.fd, connection) {
            eventfd::disarm_eventfd(&held);
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

/// Whether the kernel is to refuse the list, of which nothing may be there then.
pub(crate) fn is_too_many(count: libc::nfds_t) -> bool {
    count > SOME as libc::nfds_t && count > descriptors()
}

/// How many descriptors the kernel takes in one list.
fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Memory for the notes of a long list, which one call has at a time. A thread that jumps out of
/// its sleep, or is cancelled there, leaves it behind.
struct Room {
    base: NonNull<u8>,
    /// Descriptors that there is room for, counted in its first word as well.
    most: usize,
}

impl Room {
    fn for_list(many: usize) -> Option<Self> {
        if let Some(base) = NonNull::new(SPARE.swap(null_mut(), Ordering::AcqRel)) {
            // SAFETY: [preload-lists] the first word of a mapping that was given back whole.
            let room = Self { base, most: unsafe { base.cast::<usize>().read() } };
            if room.most >= many {
                return Some(room);
            }
            room.unmap();
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: [preload-lists] a new mapping at an address of the system's choice.
        let base = unsafe { rustix::mm::mmap_anonymous(null_mut(), Self::bytes(many)?, prot, flags) };
        let base = base.ok().and_then(|base| NonNull::new(base.cast::<u8>()))?;
        // SAFETY: [preload-lists] its first word, aligned to a page.
        unsafe { base.cast::<usize>().write(many) };
        Some(Self { base, most: many })
    }

    /// The head, and notes of so many.
    fn bytes(many: usize) -> Option<usize> {
        many.checked_mul(2 * size_of::<pollfd>() + size_of::<Look>() + size_of::<Seat>())?.checked_add(HEAD)
    }

    /// All cleared.
    fn notes(&mut self) -> Notes<'_> {
        // The strictest first, so that each begins where it may.
        const { assert!(align_of::<Seat>() >= align_of::<Look>() && align_of::<Look>() >= align_of::<pollfd>()) };
        let seats_at = HEAD;
        let looks_at = seats_at + self.most * size_of::<Seat>();
        let asked_at = looks_at + self.most * size_of::<Look>();
        // SAFETY: [preload-lists] three parts of the mapping, one behind the other, each written whole.
        unsafe {
            let seats = cleared(self.base.add(seats_at).cast(), self.most, Seat::default());
            let looks = cleared(self.base.add(looks_at).cast(), self.most, Look::default());
            let asked = cleared(self.base.add(asked_at).cast(), 2 * self.most, NOBODY);
            Notes { asked, looks, seats }
        }
    }

    /// The next long list has it.
    fn give_back(self) {
        if let Some(base) = NonNull::new(SPARE.swap(self.base.as_ptr(), Ordering::AcqRel)) {
            // SAFETY: [preload-lists] as in `for_list`.
            Self { base, most: unsafe { base.cast::<usize>().read() } }.unmap();
        }
    }

    fn unmap(self) {
        let bytes = Self::bytes(self.most).unwrap_or(0);
        // SAFETY: [preload-lists] nobody else has it, and its notes are gone.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), bytes) };
    }
}

/// # Safety
/// The memory is the caller's alone for that long, aligned, and as large as so many.
unsafe fn cleared<'a, T: Copy>(at: NonNull<T>, many: usize, value: T) -> &'a mut [T] {
    // SAFETY: [preload-lists] the caller's promise.
    unsafe {
        for index in 0..many {
            at.add(index).write(value);
        }
        std::slice::from_raw_parts_mut(at.as_ptr(), many)
    }
}

static SPARE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// The first word, and what keeps the notes behind it aligned.
const HEAD: usize = 64;

/// Watches the first few for a while.
fn spin(fds: &[pollfd], deadline: Option<Instant>) {
    let in_vain = fds.iter().find_map(|poll| ring(poll.fd)).is_some_and(|first| spin::is_in_vain(&first.spin));
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
/// Lists on the stack; longer ones have memory from the system.
const FEW: usize = 16;
const SOME: usize = 256;
/// No program has fewer descriptors, so it is not asked for short lists.
const LEAST_LIMIT: usize = 16;
const ASK_KERNEL: u8 = 8;
const WATCHED: usize = 8;
const BRIEF: Duration = Duration::from_millis(2);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
