//! Whether to poll before sleeping, how long, and how deep to sleep: the one policy of all who
//! wait.
//!
//! On cores of their own two sides answer each other within a microsecond, and a sleep costs the
//! wake-up of another core (tens of microseconds). Where both share a core, or the cores are busy,
//! polling keeps the other side from answering: what is waited for comes soon after this side went
//! to sleep, and not before. So polling in vain is held against what the sleep after it took, and
//! is tried again ever more rarely.
//!
//! Who waits for many completions at once is woken when half of them are there. That takes long
//! enough to be worth a sleep, and the other side may share this core's execution units. Where a
//! provider wakes earlier nevertheless, the sleep is not worth it, and the next waits poll first.
//!
//! It is plain data: it asks no clock, makes no system call and needs no thread.

use std::time::Duration;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expects {
    /// An answer: it comes soon, or the other side is busy elsewhere.
    Answer,
    /// Many completions, half of which wake.
    Half {
        /// Nothing but one queue pair is waited for.
        alone: bool,
    },
}

/// How a wait is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Poll for so long, then sleep.
    Poll(Duration),
    /// Sleep, since polling brought nothing of late; whether the length of the sleep matters. A
    /// look at the clock costs a tenth of a short sleep.
    Unpolled {
        /// It does.
        watched: bool,
    },
    /// Sleep: it is worth it.
    Sleep,
    /// Sleep for [`DOZE`] at most, so that the queue pair alone need wake. The provider then takes
    /// a cheaper way if it has one (over shared memory, a futex).
    Doze,
}

/// What polling and sleeping brought of late.
#[derive(Debug)]
pub struct Spin {
    max: Duration,
    /// Waits to go without polling.
    skip: u32,
    /// Waits without polling after the next failure.
    every: u32,
    /// Waits in a row that polled in vain.
    failures: u32,
    /// Waits for half of many that begin with polling nevertheless.
    poll_first: u32,
    /// The wait before was a doze, and nothing ended it.
    overslept: bool,
}

impl Spin {
    /// That polls for `max` where polling pays.
    pub const fn new(max: Duration) -> Self {
        Self { max, skip: 0, every: EVERY_MIN, failures: 0, poll_first: 0, overslept: false }
    }

    /// What was learned, as a word: for who keeps it where several threads reach it without a lock.
    /// 0 is as new.
    pub const fn to_word(&self) -> u32 {
        let every = self.every.trailing_zeros() - EVERY_MIN.trailing_zeros();
        let failures = if self.failures > FAILURES { FAILURES } else { self.failures };
        self.skip | every << 12 | failures << 16 | self.poll_first << 18 | (self.overslept as u32) << 25
    }

    /// From such a word, whatever it is.
    pub fn of_word(max: Duration, word: u32) -> Self {
        let bits = |from: u32, count: u32| word >> from & ((1 << count) - 1);
        Self {
            max,
            skip: bits(0, 12),
            every: if bits(12, 4) < 8 { EVERY_MIN << bits(12, 4) } else { EVERY_MAX },
            failures: bits(16, 2),
            poll_first: bits(18, 7),
            overslept: bits(25, 1) != 0,
        }
    }

    /// Whether the next wait for an answer is one without polling.
    #[inline]
    pub const fn is_to_skip(&self) -> bool {
        self.skip > 0
    }

    /// For the wait that begins.
    #[inline]
    pub fn begin(&mut self, expects: Expects) -> Wait {
        if let Expects::Half { alone } = expects {
            if self.poll_first == 0 {
                // A peer that has stopped shall not cost a wake-up every few milliseconds.
                return if alone && !self.overslept { Wait::Doze } else { Wait::Sleep };
            }
            self.poll_first -= 1;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return Wait::Unpolled { watched: self.skip.is_multiple_of(WATCH) };
        }
        // After waits that slept the other side sleeps too, and must wake up before it can answer.
        Wait::Poll(if self.every > EVERY_MIN { self.max * TRY } else { self.max })
    }

    /// Polling found what was waited for.
    #[inline]
    pub fn found(&mut self) {
        self.overslept = false;
        self.failures = 0;
        self.every = EVERY_MIN;
    }

    /// The wait did not end by polling: how long the sleep was, where it was measured, and whether
    /// anything was there after it.
    pub fn slept(&mut self, wait: Wait, slept: Option<Duration>, found: bool) {
        match (wait, slept) {
            // Nothing was going on, which says nothing about polling; what follows may be lively.
            (Wait::Poll(_) | Wait::Unpolled { .. }, Some(slept)) if slept >= LONG => self.skip = 0,
            (Wait::Poll(budget), Some(_)) if budget > Duration::ZERO => {
                self.failures += 1;
                if self.failures >= FAILURES {
                    self.skip = self.every;
                    self.every = (self.every * 2).min(EVERY_MAX);
                }
            }
            (Wait::Sleep | Wait::Doze, Some(slept)) if slept < WORTH_SLEEPING => {
                self.poll_first = POLLS_AFTER_SHORT_SLEEP
            }
            _ => {}
        }
        let deep = matches!(wait, Wait::Sleep | Wait::Doze);
        self.overslept = deep && !found && (self.overslept || wait == Wait::Doze);
    }
}

/// How long a doze is at most: for so long a sleeper may not notice what is not the queue pair's.
pub const DOZE: Duration = Duration::from_millis(5);
/// Failures in a row before polling is given up for a while: one may be chance.
const FAILURES: u32 = 3;
const EVERY_MIN: u32 = 8;
/// A look at the clock costs a tenth of a short sleep.
const WATCH: u32 = 8;
/// A try of 150 µs every so many sleeps, of 2 µs or more each, costs a few per cent at most.
const EVERY_MAX: u32 = 2048;
/// How much longer a try is.
const TRY: u32 = 3;
/// A sleep of this length costs far more than polling before it did.
const LONG: Duration = Duration::from_millis(1);
/// A sleep for half of many that is shorter costs more than polling does.
const WORTH_SLEEPING: Duration = Duration::from_micros(80);
const POLLS_AFTER_SHORT_SLEEP: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(50);
    const SHORT: Duration = Duration::from_micros(3);
    const LATER: Duration = Duration::from_millis(20);

    /// Waits that each end in a short sleep; how many of them polled.
    fn starve(spin: &mut Spin, waits: usize) -> usize {
        (0..waits)
            .filter(|_| {
                let wait = spin.begin(Expects::Answer);
                spin.slept(wait, Some(SHORT), true);
                matches!(wait, Wait::Poll(_))
            })
            .count()
    }

    #[test]
    fn polling_in_vain_becomes_rare_and_success_restores_it() {
        let mut spin = Spin::new(MAX);
        assert!(starve(&mut spin, 1000) < 12);
        let tries = starve(&mut spin, 100_000);
        assert!((40..60).contains(&tries), "still tried once in a while: {tries}");
        while spin.begin(Expects::Answer) != Wait::Poll(MAX * TRY) {}
        spin.found();
        assert!((0..100).all(|_| spin.begin(Expects::Answer) == Wait::Poll(MAX)), "what works goes on");
        assert_eq!(starve(&mut spin, 3), 3, "a failure or two change nothing");
    }

    #[test]
    fn what_was_learned_survives_as_a_word() {
        assert_eq!(Spin::new(MAX).to_word(), 0);
        let mut spin = Spin::new(MAX);
        for at in 0..30_000 {
            let mut again = Spin::of_word(MAX, spin.to_word());
            let wait = spin.begin(Expects::Answer);
            assert_eq!(again.begin(Expects::Answer), wait, "{at}");
            match wait {
                Wait::Poll(_) if at % 1000 == 999 => spin.found(),
                _ => spin.slept(wait, Some(SHORT), true),
            }
        }
        for word in [u32::MAX, 0xFFFF, 0xF000] {
            assert!(Spin::of_word(MAX, word).every <= EVERY_MAX);
        }
    }

    #[test]
    fn rare_events_neither_teach_nor_wait_for_the_next_try() {
        let mut spin = Spin::new(MAX);
        for _ in 0..100 {
            assert_eq!(spin.begin(Expects::Answer), Wait::Poll(MAX));
            spin.slept(Wait::Poll(MAX), Some(LATER), true);
        }
        starve(&mut spin, 500);
        spin.slept(Wait::Unpolled { watched: true }, Some(LATER), true);
        assert_eq!(spin.begin(Expects::Answer), Wait::Poll(MAX * TRY), "the next wait polls again");
    }

    #[test]
    fn a_doze_that_nobody_ends_is_followed_by_sleeps() {
        let mut spin = Spin::new(MAX);
        let mut wait = |alone, expected, found| {
            assert_eq!(spin.begin(Expects::Half { alone }), expected);
            spin.slept(expected, Some(LATER), found);
        };
        wait(true, Wait::Doze, false);
        (0..3).for_each(|_| wait(true, Wait::Sleep, false));
        wait(true, Wait::Sleep, true);
        wait(true, Wait::Doze, true);
        wait(false, Wait::Sleep, true);
    }

    #[test]
    fn after_a_short_sleep_it_polls_for_a_while() {
        let (mut spin, many) = (Spin::new(MAX), Expects::Half { alone: true });
        assert_eq!(spin.begin(many), Wait::Doze);
        spin.slept(Wait::Doze, Some(SHORT), true);
        for _ in 0..POLLS_AFTER_SHORT_SLEEP {
            assert_eq!(spin.begin(many), Wait::Poll(MAX));
            spin.found();
        }
        assert_eq!(spin.begin(many), Wait::Doze);
    }
}
