//! Waiting: watch the ring for a while if the peer runs on another core, let it run if it shares ours, then sleep in the kernel.
//!
//! Whoever sleeps does so on the connection's own kernel socket, in a `recv` that only looks: signals, SA_RESTART, SO_RCVTIMEO,
//! cancellation and the peer's death are then the kernel's business. No lock is held, nothing must be destroyed, so a
//! `siglongjmp` out of it leaves no more than a count that is too high.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::io::Errno;

use crate::bells;
use crate::connection::{Connection, Held};
use crate::diagnosis::Reason;
use crate::layout::{SWITCHED, Shared};
use crate::ready::Watch;
use crate::ring::Receiver;
use crate::{drain, epoll, errno, kernel, real, receive, table};

/// What is watched without the lock.
#[derive(Clone, Copy)]
struct Scene {
    shared: Shared,
    end: usize,
    /// Our positions: bytes that we have taken, bytes of ours that the peer has.
    tail: u64,
    taken: u64,
    luck: u8,
    crowd: &'static Crowd,
}

/// Waits until a receive is worth another look. `Err` is an errno for the program.
pub(crate) fn for_data(fd: c_int, connection: &'static Connection) -> Result<(), c_int> {
    let Some(scene) = enter(fd, connection) else { return Ok(()) };
    let stirring = |scene: &Scene| Receiver::is_stirring(&scene.shared, scene.end ^ 1, scene.tail);
    if spin(&scene, stirring) {
        leave(connection, true);
        return Ok(());
    }
    match doze(fd, connection, bells::DATA, |scene| stirring(scene)) {
        Doze::Awake => {
            leave(connection, false);
            Ok(())
        }
        Doze::Kernel => {
            let mut byte = 0u8;
            // SAFETY: [preload-real] one byte of ours.
            let n = unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
            let error = errno::get();
            connection.sleepers.fetch_sub(1, Ordering::SeqCst);
            leave(connection, false);
            after_sleep(fd, connection, n, scene.end);
            if n < 0 && error != libc::ECONNRESET { Err(error) } else { Ok(()) }
        }
    }
}

/// Waits until there may be room in the ring.
pub(crate) fn for_room(fd: c_int, connection: &'static Connection) -> Result<(), c_int> {
    let Some(scene) = enter(fd, connection) else { return Ok(()) };
    let stirring = |scene: &Scene| scene.shared.tail(scene.end).load(Ordering::Acquire) != scene.taken;
    if spin(&scene, stirring) {
        leave(connection, true);
        return Ok(());
    }
    let result = match doze(fd, connection, bells::ROOM, |scene| stirring(scene)) {
        Doze::Awake => Ok(()),
        Doze::Kernel => {
            let result = sleep_for_room(fd);
            connection.sleepers.fetch_sub(1, Ordering::SeqCst);
            result
        }
    };
    leave(connection, false);
    result
}

/// Waits until the kernel's buffer takes more.
pub(crate) fn for_kernel(fd: c_int) -> Result<(), c_int> {
    let timeout = send_timeout(fd);
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: [preload-real] one pollfd of ours.
    match unsafe { real::poll(&mut poll, 1, timeout) } {
        0 => Err(libc::EAGAIN),
        n if n < 0 => Err(errno::get()),
        _ => Ok(()),
    }
}

/// On a socket where something is unread that is no bell for us a look returns at once: then naps.
fn sleep_for_room(fd: c_int) -> Result<(), c_int> {
    if kernel::pending(fd) > 0 || kernel::ended(fd).is_some() {
        kernel::nap();
        return Ok(());
    }
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: [preload-real] one pollfd of ours.
    match unsafe { real::poll(&mut poll, 1, send_timeout(fd)) } {
        0 => Err(libc::EAGAIN),
        n if n < 0 => Err(errno::get()),
        _ => Ok(()),
    }
}

/// SO_SNDTIMEO in milliseconds, -1 for none.
fn send_timeout(fd: c_int) -> c_int {
    let timeout = rustix::net::sockopt::socket_timeout(kernel::borrowed(fd), rustix::net::sockopt::Timeout::Send);
    match timeout {
        Ok(Some(limit)) => c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX).max(1),
        _ => -1,
    }
}

enum Doze {
    Awake,
    /// Armed, nothing there: sleep. `sleepers` counts us.
    Kernel,
}

/// Everything that must be in order before sleeping: the peer's switch is answered, bells of before are eaten, the wish is
/// there, and still nothing has happened.
fn doze(fd: c_int, connection: &'static Connection, wish: u64, stirring: impl Fn(&Scene) -> bool) -> Doze {
    let Some(mut held) = table::hold(fd, connection) else { return Doze::Awake };
    let Some(scene) = scene_of(connection, &held) else { return Doze::Awake };
    let shared = scene.shared;
    drain::respond(&mut held, fd);
    if drain::has_backlog(&held) {
        // The peer waits for these bytes; do not sleep on them.
        drop(held);
        kernel::nap();
        return Doze::Awake;
    }
    if held.in_switched {
        connection.sleepers.fetch_add(1, Ordering::SeqCst);
        return Doze::Kernel;
    }
    let started = shared.start(held.peer()).load(Ordering::SeqCst);
    if stirring(&scene) {
        return Doze::Awake;
    }
    // A peer that has not started cannot ring.
    let nap = started == 0 && wish == bells::ROOM;
    if nap || !eat(&mut held, fd, &shared) {
        drop(held);
        kernel::nap();
        return Doze::Awake;
    }
    bells::arm(shared.bell(held.end), wish);
    if stirring(&scene) || shared.tail(held.end).load(Ordering::SeqCst) & SWITCHED != 0 && !held.out_switched {
        return Doze::Awake;
    }
    connection.sleepers.fetch_add(1, Ordering::SeqCst);
    Doze::Kernel
}

/// Takes bells of before out of the kernel's stream, so that the next one wakes. False when others sleep whom the unread
/// bell is just waking: they would go back to sleep without having looked.
pub(crate) fn eat(held: &mut Held<'_>, fd: c_int, shared: &Shared) -> bool {
    let rung = bells::rung(shared.bell(held.end));
    let start = shared.start(held.peer()).load(Ordering::SeqCst);
    if held.eaten >= rung || start == 0 || held.counts().received.load(Ordering::Relaxed) < start - 1 {
        return true;
    }
    if held.connection.sleepers.load(Ordering::SeqCst) > 0 && held.patience < PATIENCE {
        held.patience += 1;
        return false;
    }
    held.patience = 0;
    let before = held.eaten;
    while held.eaten < rung {
        let mut bells = [0; 16];
        let len = (rung - held.eaten).min(bells.len() as u64) as usize;
        match kernel::take(fd, bells.as_mut_ptr(), len, false) {
            Ok(n) if n > 0 => held.eaten += n as u64,
            // On its way, or the stream has ended: the next look tells.
            Ok(_) | Err(Errno::AGAIN) => break,
            Err(_) => break,
        }
    }
    if held.eaten > before {
        epoll::eaten(held, fd, shared);
    }
    true
}

/// A look that found something which is no bell: the end, or bytes that somebody wrote past the library.
fn after_sleep(fd: c_int, connection: &'static Connection, n: isize, end: usize) {
    let Some(mut held) = table::hold(fd, connection) else { return };
    let Some(shared) = held.shared else { return };
    // Let the next receive look at the kernel.
    held.dry |= receive::DRY_MASK;
    let start = shared.start(end ^ 1).load(Ordering::SeqCst);
    let in_ring = start != 0 && held.counts().received.load(Ordering::Relaxed) >= start - 1 && !held.in_switched;
    if n == 0 || held.dry < STRAY_LOOKS || !in_ring {
        return;
    }
    let quiet = !Receiver::is_stirring(&shared, end ^ 1, held.input.tail);
    if n > 0 && quiet && bells::rung(shared.bell(end)) == held.eaten {
        drain::leave(&mut held, fd, Reason::Call("bytes written past the library"));
    }
}

/// Begins watching: from here on the memory stays mapped.
fn enter(fd: c_int, connection: &'static Connection) -> Option<Scene> {
    let held = table::hold(fd, connection)?;
    let scene = scene_of(connection, &held)?;
    connection.watchers.fetch_add(1, Ordering::SeqCst);
    Some(scene)
}

fn scene_of(connection: &'static Connection, held: &Held<'_>) -> Option<Scene> {
    let shared = held.shared?;
    // What was known when there was no room: anything newer is worth a look.
    let taken = held.out.seen();
    let luck = held.connection.luck.load(Ordering::Relaxed);
    let crowd = &connection.crowd;
    Some(Scene { shared, end: held.end, tail: held.input.tail, taken, luck, crowd })
}

fn leave(connection: &'static Connection, lucky: bool) {
    let luck = connection.luck.load(Ordering::Relaxed);
    connection.luck.store(if lucky { (luck + 1).min(LUCK_MAX) } else { luck.saturating_sub(1) }, Ordering::Relaxed);
    connection.watchers.fetch_sub(1, Ordering::SeqCst);
}

/// Watches for a while. Where the peer was last seen waiting on this very core, watching keeps it from running: yields instead.
fn spin(scene: &Scene, stirring: impl Fn(&Scene) -> bool) -> bool {
    let here = rustix::thread::sched_getcpu() as u64 + 1;
    let (mine, theirs) = (scene.shared.processor(scene.end), scene.shared.processor(scene.end ^ 1));
    if mine.load(Ordering::Relaxed) != here {
        mine.store(here, Ordering::Relaxed);
    }
    if theirs.load(Ordering::Relaxed) == here {
        return give_way(scene.crowd, || stirring(scene));
    }
    for _ in 0..SPINS_UNIT << scene.luck.min(LUCK_MAX) {
        if stirring(scene) {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// Lets the peer run on this very core. A third program that computes there would get a whole slice with every yield, where a
/// sleeper that is woken runs at once: after a long one there are none for a while, each time for twice as long.
fn give_way(crowd: &Crowd, stirring: impl Fn() -> bool) -> bool {
    if crowd.is_known() {
        return stirring();
    }
    for _ in 0..YIELDS {
        if stirring() {
            return true;
        }
        let before = now_ns();
        rustix::thread::sched_yield();
        if now_ns().saturating_sub(before) > LONG_YIELD_NS {
            crowd.found();
            return stirring();
        }
    }
    crowd.none();
    stirring()
}

fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: [preload-real] a timespec of ours. The C library's, which asks no kernel and is not hooked.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whether others compute on the core that both ends are on: for so many more waits, and for how many when it was last found.
#[derive(Debug)]
pub(crate) struct Crowd {
    left: AtomicU16,
    last: AtomicU16,
}

impl Crowd {
    pub(crate) const fn new() -> Crowd {
        Crowd { left: AtomicU16::new(0), last: AtomicU16::new(0) }
    }

    /// Counts a wait.
    fn is_known(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    fn found(&self) {
        let waits = self.last.load(Ordering::Relaxed).saturating_mul(2).clamp(CROWD_MIN, CROWD_MAX);
        self.last.store(waits, Ordering::Relaxed);
        self.left.store(waits, Ordering::Relaxed);
    }

    pub(crate) fn none(&self) {
        self.last.store(0, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
    }
}

/// Watches several connections for a while, as `spin` does one. True when something stirs.
pub(crate) fn spin_over(watches: &[Option<Watch>]) -> bool {
    let here = rustix::thread::sched_getcpu() as u64 + 1;
    let stirring = || watches.iter().flatten().any(Watch::is_stirring);
    let mut shared_core = false;
    let mut luck = 0;
    for watch in watches.iter().flatten() {
        shared_core |= watch.peer_is_here(here);
        luck = luck.max(watch.connection.luck.load(Ordering::Relaxed));
    }
    let mut found = false;
    if let Some(watch) = watches.iter().flatten().next().filter(|_| shared_core) {
        found = give_way(&watch.connection.crowd, stirring);
    } else {
        for _ in 0..SPINS_UNIT << luck.min(LUCK_MAX) {
            found = stirring();
            if found {
                break;
            }
            std::hint::spin_loop();
        }
    }
    for watch in watches.iter().flatten() {
        let luck = &watch.connection.luck;
        let now = luck.load(Ordering::Relaxed);
        luck.store(if found { (now + 1).min(LUCK_MAX) } else { now.saturating_sub(1) }, Ordering::Relaxed);
    }
    found
}

/// Longest watch: about 2^8 * 4 pauses, some 40 µs, less than waking a core takes.
const LUCK_MAX: u8 = 8;
const SPINS_UNIT: u32 = 4;
const YIELDS: u32 = 8;
/// Longer than two ends that pass small messages keep each other waiting, shorter than a slice.
const LONG_YIELD_NS: u64 = 300_000;
/// Waits without yields: the most are some tens of milliseconds of small messages.
const CROWD_MIN: u16 = 64;
const CROWD_MAX: u16 = 8192;
/// Naps for the sake of other sleepers before bells are eaten all the same (a count may be too high for ever).
const PATIENCE: u8 = 20;
const STRAY_LOOKS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_believed_in_for_longer_each_time_it_is_found() {
        let crowd = Crowd::new();
        assert!(!crowd.is_known());
        for waits in [64, 128, 256] {
            crowd.found();
            assert_eq!((0..1000).take_while(|_| crowd.is_known()).count(), waits);
        }
        (0..20).for_each(|_| crowd.found());
        assert_eq!((0..10_000).take_while(|_| crowd.is_known()).count(), usize::from(CROWD_MAX));
        crowd.none();
        crowd.found();
        assert_eq!((0..1000).take_while(|_| crowd.is_known()).count(), 64);
    }
}
