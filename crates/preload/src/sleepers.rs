//! Threads that sleep in the kernel for one connection, counted, because the kernel looks
//! again when a sleeper runs.
//!
//! A wake byte that lies unread in the socket, or an eventfd that can be read, wakes all
//! who wait for it in `recv`, `poll` or `select`. But each of them only goes on if it is
//! still there when its thread gets a processor. So it must stay until all have run who
//! slept when it came. The rule:
//!
//! - Who goes to sleep has asked to be woken, has looked once more, and is counted, all under the
//!   connection's lock.
//! - Who wakes says what woke it, and then is no longer counted, before it does anything else.
//! - A wake-up that has come is taken away under the lock, by one who is about to sleep, when
//!   nobody is counted.
//!
//! As long as somebody is counted, the one who is about to sleep waits for him instead
//! ([`Sleepers::outwait`]), and is not counted meanwhile. The other has been woken, so he
//! only needs a processor; and since nobody joins, the count falls to zero. Whatever comes
//! after the taking away finds the wake request of one who joined later, and wakes again.
//! `explore` walks all of this.
//!
//! A thread that leaves its sleep by `siglongjmp`, or is cancelled there, stays counted. Then those
//! who wait for it look again every millisecond, and after [`PATIENCE_NS`] a new generation is
//! counted from nothing.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::{Timespec, futex};

use crate::spin;
use crate::word::Word;

/// How many there are, of which generation; and how many wait for them.
#[derive(Debug)]
pub(crate) struct Sleepers {
    word: Word,
    waiting: AtomicU32,
}

/// That a thread is counted, in this generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Counted(u64);

impl Sleepers {
    pub(crate) const fn new() -> Self {
        Self { word: Word::new(0), waiting: AtomicU32::new(0) }
    }

    /// One more. The caller holds the connection's lock.
    pub(crate) fn join(&self) -> Counted {
        Counted(self.word.fetch_add(1, Ordering::SeqCst) / GENERATION)
    }

    /// One less, unless it is of a generation that was given up. With the
    /// last one a generation ends.
    pub(crate) fn leave(&self, counted: Counted) {
        let less = |word: u64| match threads(word) {
            _ if word / GENERATION != counted.0 => None,
            0 => None,
            1 => Some(next_generation(word)),
            _ => Some(word - 1),
        };
        if let Ok(before) = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
            && threads(before) == 1
            && self.waiting.load(Ordering::SeqCst) > 0
        {
            let _ = futex::wake(self.word.half(), futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    #[cfg(test)]
    pub(crate) fn word(&self) -> &Word {
        &self.word
    }

    pub(crate) fn any(&self) -> bool {
        threads(self.word.load(Ordering::SeqCst)) > 0
    }

    /// Until those who were counted then have left, or another has come; a millisecond at most.
    /// False when a signal's handler came in between.
    pub(crate) fn outwait(&self, then: Present) -> bool {
        #[cfg(test)]
        if crate::explore::is_on() {
            return crate::explore::when(|| (self.now() != then).then_some(1)) == 1;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let slept = futex::wait(self.word.half(), futex::Flags::PRIVATE, then.0 as u32, Some(&MILLISECOND));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        slept != Err(Errno::INTR)
    }

    /// Those who are counted now.
    pub(crate) fn now(&self) -> Present {
        Present(self.word.load(Ordering::SeqCst))
    }

    /// None from now on, whatever those who were counted do: the connection is
    /// another, or they will not come.
    pub(crate) fn forget(&self) {
        let _ = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| Some(next_generation(word)));
    }

    /// Who is to be waited for before a wake-up is taken away: nobody, if none is counted, or if
    /// those who are will not come any more. The caller holds the connection's lock.
    pub(crate) fn present(&self, patience: &mut Patience) -> Option<Present> {
        let word = self.word.load(Ordering::SeqCst);
        if threads(word) > 0 {
            let now = spin::now_ns();
            let since = *patience.since_ns.get_or_insert(now);
            if now.saturating_sub(since) < PATIENCE_NS {
                return Some(Present(word));
            }
            self.forget();
        }
        patience.since_ns = None;
        None
    }
}

/// Since when those who are counted have been waited for, if they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Patience {
    since_ns: Option<u64>,
}

fn threads(word: u64) -> u64 {
    word % GENERATION
}

fn next_generation(word: u64) -> u64 {
    (word / GENERATION + 1) % GENERATIONS * GENERATION
}

/// Those who were counted at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Present(u64);

impl Present {
    pub(crate) fn is_anybody(self) -> bool {
        threads(self.0) > 0
    }

    #[cfg(test)]
    pub(crate) fn of(word: u64) -> Self {
        Self(word)
    }
}

/// What the generation is counted in; below it, threads.
const GENERATION: u64 = 1 << 20;
/// All of it lies in the half that a thread can sleep on.
const GENERATIONS: u64 = 1 << 12;
/// A thread that was woken has long had a processor by then.
const PATIENCE_NS: u64 = 1_000_000_000;
const MILLISECOND: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_counted_is_waited_for_and_one_of_before_counts_no_longer() {
        let (sleepers, mut since) = (Sleepers::new(), Patience::default());
        assert!(!sleepers.any() && sleepers.present(&mut since).is_none());
        let first = sleepers.join();
        let present = sleepers.present(&mut since).unwrap();
        assert!(sleepers.any() && since.since_ns.is_some());
        std::thread::scope(|scope| {
            scope.spawn(|| sleepers.leave(first));
            while sleepers.any() {
                sleepers.outwait(present);
            }
        });
        let again = sleepers.join();
        assert!(sleepers.present(&mut since).is_some_and(|now| now != present), "another, who came later");
        sleepers.outwait(present);
        sleepers.leave(again);
        assert!(sleepers.present(&mut since).is_none() && since == Patience::default());
        let lost = sleepers.join();
        since.since_ns = Some(spin::now_ns() - PATIENCE_NS);
        assert!(sleepers.present(&mut since).is_none() && !sleepers.any());
        let next = sleepers.join();
        sleepers.leave(lost);
        assert!(sleepers.any(), "the lost one came after all, and is not this one");
        sleepers.leave(next);
        assert!(!sleepers.any());
    }
}
