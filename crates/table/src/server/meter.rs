//! Prices held against what pages really took.
//!
//! A profile knows the device: requests, fragments, bytes. It does not know what this store does
//! for a page in any case (finding it, pinning it, merging its deltas), nor how this table's rows
//! pack. So the time that making every seventeenth message takes is taken, and what its pages took
//! beyond the price of that is added to the price of its way from then on. Posting it is no part of
//! either: where the sender's processor moves the bytes, it does so there, or later. A way that has
//! not been taken yet, or not for long, is priced with what the others have in common. What it took
//! once, perhaps in a bad minute, would else keep `auto` from it for good.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use overside_verbs::Clock;

use super::answer;
use crate::wire::{MODES, Mode};

/// What each way took beyond its profile price, in ns a page: a running mean. [`UNKNOWN`] before
/// the first.
#[derive(Debug)]
pub(crate) struct Meter {
    beyond: [AtomicI64; MODES.len()],
    /// Samples of all ways so far, and at which of them each way had its last.
    samples: AtomicU64,
    last: [AtomicU64; MODES.len()],
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            beyond: [const { AtomicI64::new(UNKNOWN) }; MODES.len()],
            samples: AtomicU64::new(0),
            last: [const { AtomicU64::new(0) }; MODES.len()],
        }
    }
}

/// Runs on every seventeenth message.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Option<Instant>);

impl Stopwatch {
    pub(crate) fn for_turn(sequence: u64, clock: &dyn Clock) -> Self {
        Self(sequence.is_multiple_of(SAMPLE_EVERY).then(|| clock.now()))
    }
}

impl Meter {
    /// Takes note of a message of `pages` pages, making which takes `prepared_ns` by the profile
    /// alone.
    pub(crate) fn note(&self, way: Mode, prepared_ns: f64, pages: u32, stopwatch: Stopwatch, clock: &dyn Clock) {
        let (Some(start), Some(_)) = (stopwatch.0, pages.checked_sub(1)) else { return };
        let took = clock.now().duration_since(start).as_nanos() as i64;
        if took > INTERRUPTED_NS {
            return;
        }
        let beyond = took / i64::from(pages) - (prepared_ns / f64::from(pages)) as i64;
        let index = answer::index(way);
        let mean = match self.known(index) {
            None => beyond,
            Some(known) => known + (beyond - known) / MEAN_OF,
        };
        // Two workers may overwrite each other: one sample less.
        self.beyond[index].store(mean, Ordering::Relaxed);
        self.last[index].store(self.samples.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// What a way took beyond its price, if it was taken lately.
    fn known(&self, index: usize) -> Option<i64> {
        let since = self.samples.load(Ordering::Relaxed).saturating_sub(self.last[index].load(Ordering::Relaxed));
        let beyond = self.beyond[index].load(Ordering::Relaxed);
        (beyond != UNKNOWN && since < FORGOTTEN_AFTER).then_some(beyond)
    }

    /// What a way took beyond its price of late, where that was measured.
    pub(crate) fn measured(&self, way: Mode) -> Option<i64> {
        self.known(answer::index(way))
    }

    /// Nanoseconds that making a message of a page is known to take beyond its profile price.
    pub(crate) fn beyond(&self, way: Mode) -> f64 {
        let own = self.known(answer::index(way));
        own.or_else(|| (0..MODES.len()).filter_map(|index| self.known(index)).min()).unwrap_or(0) as f64
    }
}

const UNKNOWN: i64 = i64::MIN;
/// A prime: pages are taken from the tree some together, so every second, fourth or eighth message
/// pays for its neighbours, and samples must fall on all of them alike.
const SAMPLE_EVERY: u64 = 17;
/// Samples that the running mean remembers.
const MEAN_OF: i64 = 16;
/// Samples of other ways after which a way is tried again. One that is dearer is then taken for one
/// sample in so many.
const FORGOTTEN_AFTER: u64 = 64;
/// No message takes so long by itself.
const INTERRUPTED_NS: i64 = 50_000;

#[cfg(test)]
mod tests {
    use super::*;
    use overside_reference::SteppedClock;
    use overside_verbs::SystemClock;

    fn price(meter: &Meter, way: Mode) -> f64 {
        meter.beyond(way)
    }

    #[test]
    fn samples_fall_on_messages_that_take_pages_and_on_such_that_do_not() {
        for messages_a_taking in 2..=16 {
            let sampled = |place| {
                (0..1000).any(|i| i % messages_a_taking == place && Stopwatch::for_turn(i, &SystemClock).0.is_some())
            };
            assert!((0..messages_a_taking).all(sampled), "pages for {messages_a_taking} messages taken together");
        }
    }

    #[test]
    fn a_way_that_was_not_taken_for_long_is_tried_again() {
        let (meter, clock) = (Meter::default(), SteppedClock::new(0));
        let took = |way, beyond_ns: f64, times| {
            (0..times).for_each(|_| meter.note(way, -beyond_ns, 1, Stopwatch(Some(clock.now())), &*clock));
        };
        took(Mode::Gather, 40_000.0, 8);
        assert!(price(&meter, Mode::Gather) >= 40_000.0, "a bad minute");
        took(Mode::Delta, 500.0, 4 * FORGOTTEN_AFTER);
        assert_eq!(price(&meter, Mode::Gather), price(&meter, Mode::Delta), "what is known of the others");
        took(Mode::Gather, 700.0, 8);
        assert!(price(&meter, Mode::Gather) < 20_000.0, "what it took long ago no longer counts");
    }

    #[test]
    fn what_was_measured_moves_the_price_towards_it() {
        let (meter, clock) = (Meter::default(), SteppedClock::new(0));
        assert_eq!(price(&meter, Mode::Copy), 0.0);
        let running = || Stopwatch(Some(clock.now() - std::time::Duration::from_nanos(5_000)));
        meter.note(Mode::Copy, 2000.0, 2, running(), &*clock);
        let first = price(&meter, Mode::Copy);
        assert!((1_500.0..10_000.0).contains(&first), "half of 5 µs, less half of 2 µs: {first}");
        assert_eq!(price(&meter, Mode::Gather), first, "what is common to all, as far as known");
        meter.note(Mode::Gather, 4_000.0, 1, running(), &*clock);
        assert!(price(&meter, Mode::Gather) < first);
        let late = Stopwatch(Some(clock.now() - std::time::Duration::from_millis(5)));
        meter.note(Mode::Copy, 1000.0, 1, late, &*clock);
        assert_eq!(price(&meter, Mode::Copy), first, "an interrupted page says nothing");
        meter.note(Mode::Copy, 1000.0, 1, Stopwatch(None), &*clock);
        assert_eq!(price(&meter, Mode::Copy), first);
    }
}
