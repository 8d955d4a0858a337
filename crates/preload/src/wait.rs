//! Waiting: watch the ring for as long as it pays (`spin`), then sleep in the kernel.
//!
//! Whoever sleeps for bytes does so on the connection's own kernel socket, in a `recv` that only
//! looks: signals, SA_RESTART, SO_RCVTIMEO, cancellation and the peer's death are then the kernel's
//! business. Who waits for room sleeps on a word of the shared memory, some milliseconds at a time:
//! what ends that wait, another thread's fork or shutdown among it, puts nothing into the socket.
//! No lock is held, nothing must be destroyed, so a `siglongjmp` out of it leaves no more than a
//! count that is too high (see `sleepers`).

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use overside_memory::kernels;
use rustix::io::Errno;

use crate::connection::{Connection, Inner, LockHeld};
use crate::fault::{self, Fault};
use crate::layout::{SWITCHED, SharedMemory};
use crate::ready::Watch;
use crate::ring::Receiver;
use crate::sleepers::{Counted, Present};
use crate::spin::{self, SpinBudget};
use crate::state::Source;
use crate::wake;
use crate::{drain, errno, eventfd, fallback, futex, kernel, real, table};

/// What is watched without the lock.
#[derive(Clone, Copy)]
struct Snapshot<'a> {
    shared: SharedMemory,
    end: usize,
    /// Our positions: bytes that we have taken, bytes of ours that the peer has.
    tail: u64,
    taken: u64,
    /// Where the next byte will lie.
    next: *const u8,
    spin: &'a SpinBudget,
}

impl Snapshot<'_> {
    /// Whether there may be what is waited for.
    #[inline]
    fn stirs(&self, request: u64) -> bool {
        if request == wake::DATA {
            return Receiver::is_stirring(&self.shared, self.end ^ 1, self.tail);
        }
        self.shared.tail(self.end).load(Ordering::Acquire) != self.taken || self.shared.is_new()
    }
}

/// Waits until a receive is worth another look. `Err` is an errno for the program.
pub(crate) fn for_data(fd: c_int, connection: &'static Connection) -> Result<(), c_int> {
    let Some(snapshot) = enter(fd, connection) else { return Ok(()) };
    let watched = |snapshot: &Snapshot<'_>| {
        // The bytes come over together with the word that tells of them, not only once that is here.
        kernels::prefetch(snapshot.next);
        snapshot.stirs(wake::DATA)
    };
    if spin(&snapshot, true, watched) {
        leave(connection);
        return Ok(());
    }
    match nap(fd, connection, wake::DATA, None) {
        Nap::Woken => {
            leave(connection);
            return Ok(());
        }
        Nap::Interrupted => {
            leave(connection);
            return Err(libc::EINTR);
        }
        Nap::Kernel => {}
    }
    let Some(counted) = doze(fd, connection, wake::DATA) else {
        leave(connection);
        return Ok(());
    };
    let slept = sleep(fd);
    awake(connection, counted);
    leave(connection);
    let reset = slept == Err(libc::ECONNRESET);
    after_sleep(fd, connection, reset);
    if reset { Ok(()) } else { slept }
}

/// How long one call may wait in all: the kernel counts one SO_SNDTIMEO from wait to wait, and
/// not what lies between them.
#[derive(Debug, Default)]
pub(crate) struct Limit {
    /// All waits before.
    waited_ns: u64,
    /// When this one began.
    since_ns: u64,
    /// What the socket says, asked when it may first matter; `Some(None)` is for ever.
    whole_ns: Option<Option<u64>>,
}

impl Limit {
    /// One wait. Many that watching soon ends may together take too long as well.
    fn wait(&mut self, fd: c_int, wait: impl FnOnce(&mut Self) -> Result<(), c_int>) -> Result<(), c_int> {
        self.since_ns = spin::now_ns();
        if self.waited_ns >= LEAST_NS {
            self.left_ns(fd)?;
        }
        let result = wait(self);
        self.waited_ns += spin::now_ns().saturating_sub(self.since_ns);
        result
    }

    /// What is left of it, never 0; None is for ever. EAGAIN when it is over.
    fn left_ns(&mut self, fd: c_int) -> Result<Option<u64>, c_int> {
        let Some(whole) = *self.whole_ns.get_or_insert_with(|| send_timeout_ns(fd)) else { return Ok(None) };
        let waited = self.waited_ns + spin::now_ns().saturating_sub(self.since_ns);
        match whole.saturating_sub(waited) {
            0 => Err(libc::EAGAIN),
            left => Ok(Some(left)),
        }
    }

    /// The same for `poll`, in milliseconds, -1 for ever.
    fn left_ms(&mut self, fd: c_int) -> Result<c_int, c_int> {
        let left = self.left_ns(fd)?;
        Ok(left.map_or(-1, |left| c_int::try_from(left.div_ceil(1_000_000)).unwrap_or(c_int::MAX)))
    }
}

/// Waits until there may be room in the ring.
pub(crate) fn for_room(fd: c_int, connection: &'static Connection, limit: &mut Limit) -> Result<(), c_int> {
    limit.wait(fd, |limit| room(fd, connection, limit))
}

fn room(fd: c_int, connection: &'static Connection, limit: &mut Limit) -> Result<(), c_int> {
    let Some(snapshot) = enter(fd, connection) else { return Ok(()) };
    if spin(&snapshot, false, |snapshot| snapshot.stirs(wake::ROOM)) {
        leave(connection);
        return Ok(());
    }
    let result = if snapshot.shared.wakes_by_word() {
        nap_for_room(fd, connection, limit)
    } else if let Some(counted) = doze(fd, connection, wake::ROOM) {
        let result = sleep_for_room(fd, limit);
        awake(connection, counted);
        result
    } else {
        Ok(())
    };
    leave(connection);
    if result == Err(libc::ECONNRESET) {
        after_sleep(fd, connection, true);
        return Ok(());
    }
    result
}

/// One nap, until there may be room, the peer has gone, or the time of a send is over. The caller
/// looks after each: it may have become time for a deeper ring.
fn nap_for_room(fd: c_int, connection: &'static Connection, limit: &mut Limit) -> Result<(), c_int> {
    let left_ns = limit.left_ns(fd)?;
    match nap(fd, connection, wake::ROOM, left_ns) {
        Nap::Woken | Nap::Kernel => Ok(()),
        Nap::Interrupted => Err(libc::EINTR),
    }
}

/// Until there is something to incoming, in a look at it: interrupted and restarted as the
/// program's own call would be.
fn sleep(fd: c_int) -> Result<(), c_int> {
    let mut byte = 0u8;
    // SAFETY: [preload-real] one byte of ours.
    let n = unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    if n < 0 { Err(errno::get()) } else { Ok(()) }
}

/// Waits until the kernel's buffer may take more, for a while: another thread that shuts a Unix
/// socket down for writing ends a send that waits in the kernel, and no poll.
pub(crate) fn for_kernel(fd: c_int, limit: &mut Limit) -> Result<(), c_int> {
    limit.wait(fd, |limit| {
        let left = limit.left_ms(fd)?;
        let is_last = (0..=LOOK_MS).contains(&left);
        match poll(fd, libc::POLLOUT, if is_last { left } else { LOOK_MS }) {
            Err(libc::EAGAIN) if !is_last => Ok(()),
            waited => waited,
        }
    })
}

fn poll(fd: c_int, events: i16, timeout: c_int) -> Result<(), c_int> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: [preload-real] one pollfd of ours.
    match unsafe { real::poll(&mut poll, 1, timeout) } {
        0 => Err(libc::EAGAIN),
        n if n < 0 => Err(errno::get()),
        _ => Ok(()),
    }
}

/// On a socket where something is unread that is no wake byte for us a look
/// returns at once: then naps.
fn sleep_for_room(fd: c_int, limit: &mut Limit) -> Result<(), c_int> {
    let timeout = limit.left_ms(fd)?;
    if kernel::pending(fd) > 0 || kernel::ended(fd).is_some() {
        kernel::nap();
        return Ok(());
    }
    if timeout < 0 {
        // The time of a incoming, if there is one, is not this call's.
        return sleep(fd).or_else(|error| if error == libc::EAGAIN { Ok(()) } else { Err(error) });
    }
    poll(fd, libc::POLLIN, timeout)
}

/// SO_SNDTIMEO, None for none.
fn send_timeout_ns(fd: c_int) -> Option<u64> {
    let timeout = rustix::net::sockopt::socket_timeout(kernel::borrowed(fd), rustix::net::sockopt::Timeout::Send);
    timeout.ok().flatten().map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
}

enum Nap {
    Woken,
    Interrupted,
    /// Nothing came soon, or the kernel is to say what comes.
    Kernel,
}

/// A short sleep on the word that the peer wakes: cheaper than a wake byte for both. Only while
/// nothing but the ring's bytes, or room there, is expected. The kernel reports all else, the
/// peer's death among it, so such a sleep is soon followed by a look there.
fn nap(fd: c_int, connection: &'static Connection, request: u64, limit_ns: Option<u64>) -> Nap {
    let for_room = request == wake::ROOM;
    if !futex::is_possible() || connection.timed.load(Ordering::Relaxed) && !for_room {
        return Nap::Kernel;
    }
    let Some(mut held) = table::hold(fd, connection) else { return Nap::Woken };
    let Some(Snapshot { shared, end, .. }) = snapshot_of(connection, &held) else { return Nap::Woken };
    let before = before_nap(&mut held, fd, request);
    drop(held);
    let armed = match before {
        BeforeNap::Awake => return Nap::Woken,
        BeforeNap::Kernel => return Nap::Kernel,
        BeforeNap::GoneSoon => {
            if for_room {
                kernel::nap();
            }
            return Nap::Kernel;
        }
        BeforeNap::Word(armed) => armed,
    };
    let slept = match limit_ns {
        None => futex::sleep(shared.wake_word(end), armed),
        Some(limit) => futex::sleep_within(shared.wake_word(end), armed, limit),
    };
    cancellation_point();
    match slept {
        futex::Slept::Woken if shared.gone(end ^ 1).load(Ordering::SeqCst) == 0 => Nap::Woken,
        futex::Slept::Interrupted => Nap::Interrupted,
        futex::Slept::Woken | futex::Slept::InVain => Nap::Kernel,
    }
}

/// What one who wants to sleep on the word is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeforeNap {
    /// Look again.
    Awake,
    /// Sleep in the kernel, which is to say what comes.
    Kernel,
    /// The peer has gone, and its end of the stream is on its way.
    GoneSoon,
    /// Sleep as long as the word is this.
    Word(u64),
}

/// By one who has the connection's lock.
pub(crate) fn before_nap(held: &mut LockHeld<'_>, fd: c_int, request: u64) -> BeforeNap {
    let Some(snapshot) = snapshot_of(held.connection, held) else { return BeforeNap::Awake };
    fallback::respond(held, fd);
    if !snapshot.shared.wakes_by_word() {
        return BeforeNap::Kernel;
    }
    let (shared, end) = (snapshot.shared, snapshot.end);
    match request {
        wake::ROOM if held.outgoing.has_left() => return BeforeNap::Awake,
        wake::DATA if held.outgoing.has_left() || held.source(&shared) != Source::Ring => return BeforeNap::Kernel,
        _ => {}
    }
    let armed = wake::arm_futex(shared.wake_word(end), request);
    if snapshot.stirs(request) || shared.tail(end).load(Ordering::SeqCst) & SWITCHED != 0 {
        return BeforeNap::Awake;
    }
    if shared.gone(end ^ 1).load(Ordering::SeqCst) != 0 {
        return BeforeNap::GoneSoon;
    }
    BeforeNap::Word(armed)
}

/// A thread that was cancelled ends here, where nothing is held: before a call that rings may serve
/// without the kernel, and after a sleep.
#[inline]
pub(crate) fn cancellation_point() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: [preload-real] the C library's; it unwinds through frames of this library that have nothing to drop.
    unsafe { pthread_testcancel() };
}

/// Awake again.
pub(crate) fn awake(connection: &Connection, counted: Option<Counted>) {
    if let Some(counted) = counted {
        connection.sleepers.leave(counted);
    }
}

/// What one who wants to sleep in the kernel is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeforeSleep {
    /// Look again.
    Look,
    /// Look again in a moment: what is waited for comes past the kernel.
    Soon,
    /// Wait until these have run.
    Others(Present),
    /// Sleep. Counted, unless what comes is for good and no wake byte.
    Kernel(Option<Counted>),
}

/// None when there is something to look at; else the thread is to sleep in the kernel.
fn doze(fd: c_int, connection: &'static Connection, request: u64) -> Option<Option<Counted>> {
    let mut held = table::hold(fd, connection)?;
    let before = before_sleep(&mut held, fd, request);
    drop(held);
    match before {
        BeforeSleep::Look => {}
        BeforeSleep::Soon => kernel::nap(),
        BeforeSleep::Others(present) => drop(connection.sleepers.outwait(present)),
        BeforeSleep::Kernel(counted) => return Some(counted),
    }
    None
}

/// Everything that must be in order before sleeping: the peer's switch is answered, wake bytes
/// of before are drained, the wake request is there, and still nothing has happened. By one who
/// has the connection's lock.
pub(crate) fn before_sleep(held: &mut LockHeld<'_>, fd: c_int, request: u64) -> BeforeSleep {
    let Some(snapshot) = snapshot_of(held.connection, held) else { return BeforeSleep::Look };
    let shared = snapshot.shared;
    fallback::respond(held, fd);
    // The peer waits for these bytes; do not sleep on them. Nor on what the other host is to say.
    if held.outgoing.has_backlog() || fallback::is_unsettled(held) {
        return BeforeSleep::Soon;
    }
    if held.incoming.has_left() {
        return BeforeSleep::Kernel(None);
    }
    let has_begun = shared.start(held.peer()).load(Ordering::SeqCst) != 0;
    if snapshot.stirs(request) {
        return BeforeSleep::Look;
    }
    // A peer that has not begun cannot wake.
    if !has_begun && request == wake::ROOM {
        return BeforeSleep::Soon;
    }
    if let Some(others) = drain::wake_bytes(held, fd, &shared) {
        return BeforeSleep::Others(others);
    }
    shared.arm(held.end, request);
    let answered = held.outgoing.has_left() || shared.tail(held.end).load(Ordering::SeqCst) & SWITCHED == 0;
    if (snapshot.stirs(request) || !answered) && !fault::is_planted(Fault::NoLookAgain) {
        return BeforeSleep::Look;
    }
    BeforeSleep::Kernel(Some(held.connection.sleepers.join()))
}

/// A look may have found what is no wake byte: the end, or bytes that somebody wrote past the
/// library. The next receive tells.
pub(crate) fn after_sleep(fd: c_int, connection: &'static Connection, reset: bool) {
    let Some(mut held) = table::hold(fd, connection) else { return };
    let Some(shared) = held.ring() else { return };
    // Let the next receive look at the kernel. The wake byte that has woken this thread has done all that it is for.
    held.dry.look_next();
    if !reset && !connection.sleepers.any() {
        // What ended the sleep may have been a signal, or its time. A wake byte that comes later would lie unread; if this process
        // is killed then, the kernel calls its end a reset.
        let wakes_sets = connection.is_tagged() && eventfd::to_wait_for(&held, &shared).is_none();
        if shared.wakes_by_word() && !wakes_sets && !connection.early.any() {
            wake::disarm_bytes(shared.wake_word(held.end));
        }
        drain::wake_bytes(&mut held, fd, &shared);
    }
    if reset && fallback::is_reset(&mut held, &shared) {
        // The look has consumed it; bytes that came before are to be had first.
        held.error = Some(Errno::CONNRESET);
    }
}

/// Begins watching: from here on the memory stays mapped.
fn enter(fd: c_int, connection: &'static Connection) -> Option<Snapshot<'static>> {
    let held = table::hold(fd, connection)?;
    let snapshot = snapshot_of(connection, &held)?;
    connection.watchers.fetch_add(1, Ordering::SeqCst);
    Some(snapshot)
}

fn snapshot_of<'a>(connection: &'a Connection, held: &Inner) -> Option<Snapshot<'a>> {
    let shared = held.ring()?;
    // What was known when there was no room: anything newer is worth a look.
    let taken = held.out.seen();
    let next = held.input.next(&shared, held.peer());
    Some(Snapshot { shared, end: held.end, tail: held.input.tail, taken, next, spin: &connection.spin })
}

fn leave(connection: &'static Connection) {
    connection.watchers.fetch_sub(1, Ordering::SeqCst);
}

/// Watches for a while. `naps`: if that is in vain, the sleep is one from which the scheduler may
/// wake it on another core.
fn spin(snapshot: &Snapshot<'_>, naps: bool, stirring: impl Fn(&Snapshot<'_>) -> bool) -> bool {
    let here = spin::processor() + 1;
    let (mine, theirs) = (snapshot.shared.processor(snapshot.end), snapshot.shared.processor(snapshot.end ^ 1));
    if mine.load(Ordering::Relaxed) != here {
        mine.store(here, Ordering::Relaxed);
    }
    let beside = theirs.load(Ordering::Relaxed) == here;
    if naps && snapshot.spin.is_to_part(beside) {
        return stirring(snapshot);
    }
    spin::watch(snapshot.spin, beside, || stirring(snapshot))
}

/// Watches several connections for a while, as `spin` does one. True when something stirs.
pub(crate) fn spin_over(watches: &[Option<Watch>]) -> bool {
    let Some(first) = watches.iter().flatten().next() else { return false };
    let here = spin::processor() + 1;
    let mut beside = false;
    for watch in watches.iter().flatten() {
        beside |= watch.peer_is_here(here);
    }
    spin::watch(&first.connection.spin, beside, || watches.iter().flatten().any(Watch::is_stirring))
}

/// No SO_SNDTIMEO is shorter: the kernel counts it in ticks.
const LEAST_NS: u64 = 1_000_000;
/// Between two looks at whether a send may still go to the kernel.
const LOOK_MS: c_int = 20;
