//! A lock that knows its owner, so that a signal handler which meets it held by its own thread does not wait for ever.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{Timespec, futex};

use crate::errno;

/// Held for the time of a copy, never while sleeping.
///
/// It is taken and given back in one step that names the owner: a handler that comes, or jumps away, between two would leave a lock that is
/// held by nobody.
#[derive(Debug)]
pub(crate) struct Lock {
    owner: AtomicUsize,
    /// Threads that sleep for it, or are about to, and what they sleep on.
    waiters: AtomicU32,
    turn: AtomicU32,
    /// It is held over a fork.
    kept: AtomicBool,
}

/// The lock is held as long as this lives.
#[derive(Debug)]
pub(crate) struct Guard<'a>(&'a Lock);

impl Lock {
    pub(crate) const fn new() -> Self {
        Self {
            owner: AtomicUsize::new(FREE),
            waiters: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            kept: AtomicBool::new(false),
        }
    }

    /// None when this very thread holds it: a signal handler interrupted the holder.
    #[inline]
    pub(crate) fn lock(&self) -> Option<Guard<'_>> {
        let me = errno::thread();
        match self.take(me) {
            Ok(_) => {}
            Err(owner) if owner == me => return None,
            Err(_) => {
                self.contend(me, None);
            }
        }
        Some(Guard(self))
    }

    /// The same for who holds others: None, too, if it is not given back soon. A handler may have interrupted its holder, and wait for one
    /// of those others.
    pub(crate) fn lock_soon(&self) -> Option<Guard<'_>> {
        let me = errno::thread();
        match self.take(me) {
            Err(owner) if owner == me => None,
            Err(_) if !self.contend(me, Some(Instant::now() + SOON)) => None,
            _ => Some(Guard(self)),
        }
    }

    #[inline]
    fn take(&self, me: usize) -> Result<usize, usize> {
        self.owner.compare_exchange(FREE, me, Ordering::SeqCst, Ordering::SeqCst)
    }

    /// False when it is too late.
    #[cold]
    fn contend(&self, me: usize, until: Option<Instant>) -> bool {
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
            if taken || *step == Step::Try && until.is_some_and(|until| Instant::now() >= until) {
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
            self.next_turn();
            // All of them: a handler may make the first one jump out of its sleep.
            let _ = futex::wake(&self.turn, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Given back if it is this thread's, which has jumped out of a handler while it held it and will not come again.
    pub(crate) fn abandon(&self) {
        if self.owner.load(Ordering::Relaxed) == errno::thread() {
            self.reset();
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.reset();
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
/// No thread's.
const FREE: usize = 0;
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

    #[test]
    fn a_lock_that_its_thread_has_jumped_out_of_is_refused_to_it_until_it_is_abandoned() {
        let lock = Lock::new();
        std::mem::forget(lock.lock().unwrap());
        assert!(lock.lock().is_none());
        std::thread::scope(|scope| drop(scope.spawn(|| lock.abandon())));
        assert!(lock.lock().is_none(), "another's");
        lock.abandon();
        drop(lock.lock().unwrap());
    }
}
