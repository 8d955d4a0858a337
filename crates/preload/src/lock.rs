//! A lock that knows its owner, so that a signal handler which meets it held by its own thread does not wait for ever.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::thread::futex;

use crate::errno;

/// Held for the time of a copy, never while sleeping.
#[derive(Debug)]
pub(crate) struct Lock {
    state: AtomicU32,
    owner: AtomicUsize,
}

/// The lock is held as long as this lives.
#[derive(Debug)]
pub(crate) struct Guard<'a>(&'a Lock);

impl Lock {
    pub(crate) const fn new() -> Self {
        Self { state: AtomicU32::new(FREE), owner: AtomicUsize::new(0) }
    }

    /// None when this very thread holds it: a signal handler interrupted the holder.
    #[inline]
    pub(crate) fn lock(&self) -> Option<Guard<'_>> {
        let me = errno::thread();
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            if self.owner.load(Ordering::Relaxed) == me {
                return None;
            }
            self.contend();
        }
        self.owner.store(me, Ordering::Relaxed);
        Some(Guard(self))
    }

    #[cold]
    fn contend(&self) {
        for _ in 0..SPINS {
            if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, CONTENDED, None);
        }
    }

    /// Given back by who holds it over a fork, and has let its guard go; and in the child, whose other threads are gone, for any who held it.
    #[inline]
    pub(crate) fn reset(&self) {
        self.owner.store(0, Ordering::Relaxed);
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.reset();
    }
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;
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
            while lock.state.load(Ordering::Relaxed) != CONTENDED {
                std::thread::yield_now();
            }
            // Time to fall asleep: without it the wake is not needed, and nothing is tested.
            std::thread::sleep(std::time::Duration::from_millis(20));
            lock.reset();
            waiter.join().unwrap();
        });
    }
}
