//! How long to poll before sleeping: as long as it pays.
//!
//! On cores of their own two sides answer each other within a microsecond, and a sleep costs the wake-up of another core (tens
//! of microseconds). Where both share a core, or the cores are busy, polling keeps the other side from answering: what is
//! waited for comes soon after this side went to sleep, and not before. So polling in vain is held against what the sleep after
//! it took, and is tried again ever more rarely.

use std::time::Duration;

/// What polling brought of late.
#[derive(Debug)]
pub(crate) struct Spin {
    max: Duration,
    /// Waits to go without polling.
    skip: u32,
    /// Waits without polling after the next failure.
    every: u32,
    /// Waits in a row that polled in vain.
    failures: u32,
}

impl Spin {
    pub(crate) fn new(max: Duration) -> Self {
        Self { max, skip: 0, every: EVERY_MIN, failures: 0 }
    }

    pub(crate) fn set_max(&mut self, max: Duration) {
        *self = Self::new(max);
    }

    /// How long to poll in the wait that begins.
    pub(crate) fn budget(&mut self) -> Duration {
        if self.skip > 0 {
            self.skip -= 1;
            return Duration::ZERO;
        }
        // After waits that slept the other side sleeps too, and must wake up before it can answer.
        if self.every > EVERY_MIN { self.max * TRY } else { self.max }
    }

    /// Whether the length of the sleep that begins matters: of those without polling, now and then.
    pub(crate) fn watches(&self) -> bool {
        self.skip.is_multiple_of(WATCH)
    }

    /// Polling found what was waited for.
    #[inline]
    pub(crate) fn found(&mut self) {
        self.failures = 0;
        self.every = EVERY_MIN;
    }

    /// The wait ended in a sleep, after polling in vain or without.
    pub(crate) fn slept(&mut self, polled: bool, slept: Duration) {
        if slept >= LONG {
            // Nothing was going on, which says nothing about polling; what follows may be lively.
            self.skip = 0;
        } else if polled {
            self.failures += 1;
            if self.failures >= FAILURES {
                self.skip = self.every;
                self.every = (self.every * 2).min(EVERY_MAX);
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(50);
    const SHORT: Duration = Duration::from_micros(3);

    /// Waits that each end in a short sleep; how many of them polled.
    fn starve(spin: &mut Spin, waits: usize) -> usize {
        (0..waits)
            .filter(|_| {
                let polled = spin.budget() > Duration::ZERO;
                spin.slept(polled, SHORT);
                polled
            })
            .count()
    }

    #[test]
    fn polling_in_vain_becomes_rare_and_success_restores_it() {
        let mut spin = Spin::new(MAX);
        assert!(starve(&mut spin, 1000) < 12);
        let tries = starve(&mut spin, 100_000);
        assert!((40..60).contains(&tries), "still tried once in a while: {tries}");
        while spin.budget() == Duration::ZERO {
            spin.slept(false, SHORT);
        }
        spin.found();
        assert!((0..100).all(|_| spin.budget() == MAX), "what works goes on");
        assert_eq!(starve(&mut spin, 3), 3, "a failure or two change nothing");
    }

    #[test]
    fn rare_events_neither_teach_nor_wait_for_the_next_try() {
        let mut spin = Spin::new(MAX);
        for _ in 0..100 {
            assert_eq!(spin.budget(), MAX);
            spin.slept(true, Duration::from_millis(20));
        }
        starve(&mut spin, 500);
        spin.slept(false, Duration::from_millis(20));
        assert_eq!(spin.budget(), MAX * TRY, "the next wait polls again");
    }
}
