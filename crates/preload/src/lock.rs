//! A lock that knows its owner, so that a signal handler which meets it held by its own thread does not wait for ever.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::thread::futex;

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
}

/// The lock is held as long as this lives.
#[derive(Debug)]
pub(crate) struct Guard<'a>(&'a Lock);

impl Lock {
    pub(crate) const fn new() -> Self {
        Self { owner: AtomicUsize::new(FREE), waiters: AtomicU32::new(0), turn: AtomicU32::new(0) }
    }

    /// None when this very thread holds it: a signal handler interrupted the holder.
    #[inline]
    pub(crate) fn lock(&self) -> Option<Guard<'_>> {
        let me = errno::thread();
        match self.take(me) {
            Ok(_) => {}
            Err(owner) if owner == me => return None,
            Err(_) => self.contend(me),
        }
        Some(Guard(self))
    }

    #[inline]
    fn take(&self, me: usize) -> Result<usize, usize> {
        self.owner.compare_exchange(FREE, me, Ordering::SeqCst, Ordering::SeqCst)
    }

    #[cold]
    fn contend(&self, me: usize) {
        for _ in 0..SPINS {
            if self.take(me).is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        // Seen by whoever gives the lock back after the next try has failed.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        loop {
            let turn = self.turn.load(Ordering::SeqCst);
            if self.take(me).is_ok() {
                break;
            }
            let _ = futex::wait(&self.turn, futex::Flags::PRIVATE, turn, None);
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// In a forked child, whose other threads are gone, whether they held it or waited for it.
    pub(crate) fn renew(&self) {
        self.waiters.store(0, Ordering::Relaxed);
        self.reset();
    }

    /// Given back by who holds it over a fork, and has let its guard go.
    #[inline]
    pub(crate) fn reset(&self) {
        self.owner.swap(FREE, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.turn.fetch_add(1, Ordering::SeqCst);
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

/// No thread's.
const FREE: usize = 0;
const SPINS: u32 = 100;

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
        std::mem::forget(lock.lock().unwrap());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(lock.lock().unwrap()));
            while lock.waiters.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            // Time to fall asleep: without it the wake is not needed, and nothing is tested.
            std::thread::sleep(std::time::Duration::from_millis(20));
            lock.reset();
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
