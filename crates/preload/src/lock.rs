//! A lock that knows its owner, so that a signal handler which meets it held by its own
//! thread does not wait for ever.
//!
//! A handler may also jump out of the code that holds it (`siglongjmp`), and that code never comes
//! back. So the owner's word says how deep in its stack the holder is, and whether it has begun to
//! change what the lock guards. The same thread comes again from a place that is not deeper: then
//! the holder is gone. If it had only looked, the lock is taken over. If it was changing something,
//! the lock is *broken* for good, for nobody knows how far that came.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};
use std::time::{Duration, Instant};

use rustix::thread::{Timespec, futex};

use crate::errno;

/// Held for the time of a copy, never while sleeping.
///
/// It is taken and given back in one step that names the owner: a handler that comes, or jumps
/// away, between two would leave a lock that is held by nobody.
#[derive(Debug)]
pub(crate) struct Lock {
    /// The thread, its depth and whether it changes something, as `Holder` packs
    /// them; or nobody, or broken.
    owner: AtomicU64,
    /// How often the thread that holds it has been refused meanwhile.
    refusals: AtomicU32,
    /// Threads that sleep for it, or are about to, and what they sleep on.
    waiters: AtomicU32,
    turn: AtomicU32,
    /// It is held over a fork.
    kept: AtomicBool,
}

/// The lock is held as long as this lives.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    lock: &'a Lock,
    me: Holder,
}

/// A thread at some depth of its stack: 46 bits tell the thread, 17 the depth. The lowest says that
/// it changes what the lock guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder(u64);

impl Holder {
    #[inline]
    fn here() -> Self {
        let place = 0u8;
        Self::of(errno::thread(), (&raw const place).addr())
    }

    #[inline]
    fn of(thread: usize, place: usize) -> Self {
        let depth = (place as u64 >> DEPTH_SHIFT) & (DEPTHS - 1);
        Self((thread as u64) >> 2 << THREAD_SHIFT | depth << 1)
    }

    #[inline]
    fn is_thread_of(self, owner: u64) -> bool {
        (self.0 ^ owner) >> THREAD_SHIFT == 0
    }

    /// Whether a holder of the same thread is left for good, seen from here, where both are
    /// on the thread's own stack. A holder that a handler has interrupted is above by a
    /// signal's frame at least.
    fn has_left(self, owner: u64) -> bool {
        (self.0 >> 1).wrapping_add(SIGNAL_FRAME).wrapping_sub(owner >> 1) % DEPTHS < DEPTHS / 2
    }
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self {
            owner: AtomicU64::new(FREE),
            refusals: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            kept: AtomicBool::new(false),
        }
    }

    /// None when this very thread holds it: a signal handler interrupted the holder.
    #[inline]
    pub(crate) fn lock(&self) -> Option<Guard<'_>> {
        let me = Holder::here();
        match self.take(me) {
            Ok(_) => {}
            Err(owner) if me.is_thread_of(owner) => return None,
            Err(_) => {
                self.contend(me, None);
            }
        }
        Some(Guard { lock: self, me })
    }

    /// The same for who holds others: None, too, if it is not given back soon. A handler may have
    /// interrupted its holder, and wait for one of those others.
    pub(crate) fn lock_soon(&self) -> Option<Guard<'_>> {
        let me = Holder::here();
        match self.take(me) {
            Err(owner) if me.is_thread_of(owner) => None,
            Err(_) if !self.contend(me, Some(Instant::now() + SOON)) => None,
            _ => Some(Guard { lock: self, me }),
        }
    }

    /// As `lock`, of a lock whose holders all come this way and say by [`Guard::changes`] when they
    /// begin to change something. One who had only looked when his thread jumped out of him is no
    /// hindrance. None, too, when it is broken.
    #[inline]
    pub(crate) fn look(&self) -> Option<Guard<'_>> {
        let me = Holder::here();
        match self.take(me) {
            Ok(_) => {}
            Err(owner) if me.is_thread_of(owner) => return self.again(me, owner),
            Err(_) if !self.contend(me, None) => return None,
            Err(_) => {}
        }
        Some(Guard { lock: self, me })
    }

    /// This thread holds it already. It interrupts the holder, or has jumped out of it.
    #[cold]
    fn again(&self, me: Holder, owner: u64) -> Option<Guard<'_>> {
        // Who holds it over a fork has come out of the code that took it.
        if self.is_kept() {
            return None;
        }
        let is_left = me.has_left(owner) && errno::is_on_own_stack();
        if is_left && owner & CHANGES == 0 {
            self.owner.store(me.0, Ordering::SeqCst);
            return Some(Guard { lock: self, me });
        }
        // Who is refused again and again has jumped out of it as well, or would be refused for ever. Should the holder come back all the
        // same, it has what is guarded for itself.
        if is_left || self.refusals.fetch_add(1, Ordering::Relaxed) >= REFUSALS {
            self.owner.store(BROKEN, Ordering::SeqCst);
            self.wake();
        }
        None
    }

    /// Whether nobody will have it any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.owner.load(Ordering::SeqCst) == BROKEN
    }

    #[inline]
    fn take(&self, me: Holder) -> Result<u64, u64> {
        self.owner.compare_exchange(FREE, me.0, Ordering::SeqCst, Ordering::SeqCst)
    }

    /// False when it is too late, or it is broken.
    #[cold]
    fn contend(&self, me: Holder, until: Option<Instant>) -> bool {
        for _ in 0..SPINS {
            if self.take(me).is_ok() {
                return true;
            }
            std::hint::spin_loop();
        }
        let (mut counted, mut turn, mut taken) = (false, 0, false);
        for step in WAITING.iter().cycle() {
            match step {
                Step::Enqueue if counted => {}
                Step::Enqueue => {
                    self.enqueue();
                    counted = true;
                }
                Step::Look => turn = self.turn(),
                Step::Try => taken = self.take(me).is_ok(),
                Step::Sleep => {
                    let _ = futex::wait(&self.turn, futex::Flags::PRIVATE, turn, Some(&AT_MOST));
                }
            }
            let is_over = || self.is_broken() || until.is_some_and(|until| Instant::now() >= until);
            if taken || *step == Step::Try && is_over() {
                break;
            }
        }
        self.dequeue();
        taken
    }

    /// Seen by whoever gives the lock back after the next try has failed.
    #[inline]
    fn enqueue(&self) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
    }

    #[inline]
    fn dequeue(&self) {
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// What to sleep on if the try that follows fails.
    #[inline]
    fn turn(&self) -> u32 {
        self.turn.load(Ordering::SeqCst)
    }

    #[inline]
    fn free(&self) {
        self.owner.swap(FREE, Ordering::SeqCst);
        if self.refusals.load(Ordering::Relaxed) != 0 {
            self.refusals.store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn is_awaited(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) > 0
    }

    /// Whoever is about to sleep tries again.
    #[inline]
    fn next_turn(&self) {
        self.turn.fetch_add(1, Ordering::SeqCst);
    }

    /// In a forked child, whose other threads are gone, whether they held it or waited for it.
    pub(crate) fn renew(&self) {
        self.waiters.store(0, Ordering::Relaxed);
        self.kept.store(false, Ordering::Relaxed);
        self.reset();
    }

    /// Before a fork: held until `let_go`, or in the child `renew`, if it can be had.
    pub(crate) fn keep(&self) {
        if let Some(guard) = self.lock_soon() {
            self.mark_kept();
            std::mem::forget(guard);
        }
    }

    /// The same of one that is held already, and whose guard is forgotten.
    pub(crate) fn mark_kept(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// After it, in the parent.
    pub(crate) fn let_go(&self) {
        if self.kept.swap(false, Ordering::Relaxed) {
            self.reset();
        }
    }

    /// Whether who forked held it: nobody else was in the midst of anything.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    #[inline]
    fn reset(&self) {
        self.free();
        if self.is_awaited() {
            self.wake();
        }
    }

    fn wake(&self) {
        self.next_turn();
        // All of them: a handler may make the first one jump out of its sleep.
        let _ = futex::wake(&self.turn, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    /// As new if it is broken, or this thread's, which has jumped out of a handler while it held it
    /// and will not come again.
    pub(crate) fn abandon(&self) {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner == BROKEN || Holder::here().is_thread_of(owner) {
            self.reset();
        }
    }
}

impl Guard<'_> {
    /// What the lock guards is being changed from now on: whoever jumps out
    /// of this leaves it broken.
    #[inline]
    pub(crate) fn changes(&self) {
        self.lock.owner.store(self.me.0 | CHANGES, Ordering::Relaxed);
        // Before any of it, as a handler of this thread sees it.
        compiler_fence(Ordering::SeqCst);
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.reset();
    }
}

/// What one who waits does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Enqueue,
    Look,
    Try,
    Sleep,
}

/// In this order, and again after each sleep; counted once.
const WAITING: [Step; 4] = [Step::Enqueue, Step::Look, Step::Try, Step::Sleep];
/// No thread's; and no thread's for good.
const FREE: u64 = 0;
const BROKEN: u64 = u64::MAX;
/// What a holder's word is made of. Addresses of programs have 48 bits at most, and errno
/// lies at a multiple of 4.
const CHANGES: u64 = 1;
const THREAD_SHIFT: u32 = 18;
/// Depths are counted in so many bytes by their logarithm, modulo `DEPTHS`: half of that is 8 MiB.
const DEPTH_SHIFT: u32 = 7;
const DEPTHS: u64 = 1 << (THREAD_SHIFT - 1);
/// The frame of a signal is larger than 1 KiB on every machine.
const SIGNAL_FRAME: u64 = 7;
/// A handler that asks so often while it has interrupted the holder does not stop by itself.
const REFUSALS: u32 = 1000;
const SPINS: u32 = 100;
/// A handler may jump away when the lock is free and nobody is woken yet.
const AT_MOST: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Nobody holds a lock for as long, on a machine however busy.
const SOON: Duration = Duration::from_secs(2);

#[cfg(test)]
mod race;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn threads_exclude_one_another_and_the_owner_is_told_so() {
        let (lock, count) = (Lock::new(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let guard = lock.lock().unwrap();
                        assert!(lock.lock().is_none(), "this thread has it already");
                        let seen = count.load(Ordering::Relaxed);
                        std::hint::black_box(seen);
                        count.store(seen + 1, Ordering::Relaxed);
                        drop(guard);
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 8000);
    }

    #[test]
    fn a_lock_that_was_held_over_a_fork_wakes_who_waited_for_it() {
        let lock = Lock::new();
        lock.keep();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(lock.lock().unwrap()));
            while lock.waiters.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            // Time to fall asleep: without it the wake is not needed, and nothing is tested.
            std::thread::sleep(std::time::Duration::from_millis(20));
            lock.let_go();
            waiter.join().unwrap();
            lock.let_go();
        });
    }

    #[test]
    fn who_holds_others_waits_for_one_a_while_and_not_for_ever() {
        let lock = Lock::new();
        let guard = lock.lock().unwrap();
        lock.keep();
        assert!(!lock.is_kept(), "the interrupted code has it");
        std::thread::scope(|scope| scope.spawn(|| assert!(lock.lock_soon().is_none())).join().unwrap());
        assert!(!lock.is_awaited());
        drop(guard);
        lock.keep();
        assert!(lock.is_kept() && lock.lock().is_none());
        lock.let_go();
        drop(lock.lock().unwrap());
    }

    #[test]
    fn a_lock_that_nobody_was_woken_for_is_found_free() {
        let lock = Lock::new();
        std::mem::forget(lock.lock().unwrap());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(lock.lock().unwrap()));
            while !lock.is_awaited() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            lock.free();
            waiter.join().unwrap();
        });
    }

    /// Takes the lock deep in the stack, does this, and goes away as one who jumps does.
    #[inline(never)]
    fn left_behind(lock: &Lock, f: fn(&Guard<'_>)) {
        let room = std::hint::black_box([0u8; 4096]);
        let guard = lock.look().unwrap();
        f(&guard);
        std::mem::forget(guard);
        std::hint::black_box(&room);
    }

    /// As a handler, deeper in the stack than who is interrupted.
    #[inline(never)]
    fn deeper<T>(f: impl FnOnce() -> T) -> T {
        let room = std::hint::black_box([0u8; 4096]);
        let value = f();
        std::hint::black_box(&room);
        value
    }

    #[test]
    fn one_who_only_looked_and_was_jumped_out_of_is_no_hindrance() {
        let lock = Lock::new();
        left_behind(&lock, |_| ());
        // Another cannot know; the thread itself does, and gives it back.
        std::thread::scope(|scope| assert!(scope.spawn(|| lock.lock_soon().is_none()).join().unwrap()));
        drop(lock.look().unwrap());
        std::thread::scope(|scope| scope.spawn(|| drop(lock.lock().unwrap())).join().unwrap());
        left_behind(&lock, |_| ());
        drop(lock.look().unwrap());
    }

    #[test]
    fn one_who_was_changing_something_leaves_it_broken_for_all() {
        let lock = Lock::new();
        left_behind(&lock, |guard| guard.changes());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| lock.look().is_none());
            while !lock.is_awaited() {
                std::thread::yield_now();
            }
            assert!(!lock.is_broken() && lock.look().is_none() && lock.is_broken());
            assert!(waiter.join().unwrap(), "who waits for it is told");
            assert!(lock.look().is_none() && lock.lock_soon().is_none());
            assert!(scope.spawn(|| lock.look().is_none()).join().unwrap());
        });
        lock.abandon();
        drop(lock.lock().unwrap());
    }

    #[test]
    fn a_handler_is_refused_until_it_shows_that_it_does_not_stop() {
        let lock = Lock::new();
        for changes in [false, true] {
            for _ in 0..2 {
                // Whose handlers give up in time are refused no less the next time.
                let guard = lock.look().unwrap();
                if changes {
                    guard.changes();
                }
                deeper(|| (0..REFUSALS).for_each(|_| assert!(lock.look().is_none())));
                assert!(!lock.is_broken());
            }
        }
        let guard = lock.look().unwrap();
        deeper(|| (0..=REFUSALS).for_each(|_| assert!(lock.look().is_none())));
        assert!(lock.is_broken());
        // It comes back, and has had it for itself.
        drop(guard);
        drop(lock.lock().unwrap());
    }

    #[test]
    fn whoever_is_on_a_stack_for_signals_has_interrupted_somebody() {
        extern "C" fn handler(_: libc::c_int) {
            SEEN.store(u32::from(errno::is_on_own_stack()), Ordering::SeqCst);
        }
        static SEEN: AtomicU32 = AtomicU32::new(7);
        let mut stack = vec![0u8; 64 << 10];
        // SAFETY: a stack that outlives its use, a handler that stores a word.
        unsafe {
            let new = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
            let mut before: libc::stack_t = std::mem::zeroed();
            assert_eq!(libc::sigaltstack(&new, &mut before), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler as *const () as usize, libc::SA_ONSTACK);
            assert_eq!(libc::sigaction(libc::SIGWINCH, &action, std::ptr::null_mut()), 0);
            assert_eq!(libc::pthread_kill(libc::pthread_self(), libc::SIGWINCH), 0);
            assert_eq!(libc::sigaltstack(&before, std::ptr::null_mut()), 0);
        }
        assert!(errno::is_on_own_stack());
        assert_eq!(SEEN.load(Ordering::SeqCst), 0);
    }

    proptest::proptest! {
        /// Wherever the stack lies.
        #[test]
        fn depths_are_told_apart(place in 1usize << 23..1 << 46, apart in 0usize..4 << 20) {
            let holder = Holder::of(0x7000_1234_5678, place);
            proptest::prop_assert!(Holder::of(0x7000_1234_5678, place + apart).has_left(holder.0 | CHANGES));
            let interrupts = Holder::of(0x7000_1234_5678, place - apart);
            let margin = (SIGNAL_FRAME as usize) << DEPTH_SHIFT;
            proptest::prop_assert!(interrupts.has_left(holder.0) || apart >= margin);
            proptest::prop_assert!(!interrupts.has_left(holder.0) || apart < margin + (1 << DEPTH_SHIFT));
            proptest::prop_assert!(!Holder::of(0x7000_1234_567c, place).is_thread_of(holder.0));
        }
    }
}
