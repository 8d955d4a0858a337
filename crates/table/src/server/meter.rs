//! Prices held against what pages really took.
//!
//! A profile knows the device: requests, fragments, bytes. It does not know what this store does for a page
//! in any case (finding it, pinning it, merging its deltas), nor how this table's rows pack. So every sixteenth message's
//! time is taken, and what its pages took beyond their price is added to the price of its way from then on. A way
//! that has not been taken yet is priced with what the others have in common.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use overside_planner::Alternative;

use super::answer;
use crate::wire::{MODES, Mode};

/// What each way took beyond its profile price, in ns a page: a running mean. [`UNKNOWN`] before the first.
#[derive(Debug)]
pub(crate) struct Meter {
    beyond: [AtomicI64; MODES.len()],
}

impl Default for Meter {
    fn default() -> Self {
        Self { beyond: [const { AtomicI64::new(UNKNOWN) }; MODES.len()] }
    }
}

/// Runs on every sixteenth message.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Option<Instant>);

impl Stopwatch {
    pub(crate) fn for_turn(sequence: u64) -> Self {
        Self(sequence.is_multiple_of(SAMPLE_EVERY).then(Instant::now))
    }
}

impl Meter {
    /// The alternative with what its way is known to take beyond its profile price.
    pub(crate) fn corrected<'a>(&self, way: Mode, mut alternative: Alternative<'a>) -> Alternative<'a> {
        alternative.sender.other_ns = self.beyond(way) as f64;
        alternative
    }

    /// Takes note of `pages` pages that take the sender `device_ns` by the profile alone.
    pub(crate) fn note(&self, way: Mode, device_ns: f64, pages: u32, stopwatch: Stopwatch) {
        let (Some(start), Some(_)) = (stopwatch.0, pages.checked_sub(1)) else { return };
        let took = start.elapsed().as_nanos() as i64;
        if took > INTERRUPTED_NS {
            return;
        }
        let beyond = took / i64::from(pages) - (device_ns / f64::from(pages)) as i64;
        let place = &self.beyond[answer::index(way)];
        let mean = match place.load(Ordering::Relaxed) {
            UNKNOWN => beyond,
            known => known + (beyond - known) / MEAN_OF,
        };
        // Two workers may overwrite each other: one sample less.
        place.store(mean, Ordering::Relaxed);
    }

    fn beyond(&self, way: Mode) -> i64 {
        let own = self.beyond[answer::index(way)].load(Ordering::Relaxed);
        if own != UNKNOWN {
            return own;
        }
        let known = self.beyond.iter().map(|b| b.load(Ordering::Relaxed)).filter(|b| *b != UNKNOWN);
        known.min().unwrap_or(0)
    }
}

const UNKNOWN: i64 = i64::MIN;
const SAMPLE_EVERY: u64 = 16;
/// Samples that the running mean remembers.
const MEAN_OF: i64 = 16;
/// No message takes so long by itself.
const INTERRUPTED_NS: i64 = 50_000;

#[cfg(test)]
mod tests {
    use super::*;
    use overside_planner::Work;

    fn price(meter: &Meter, way: Mode) -> f64 {
        let nothing = Work::default();
        let alternative = Alternative { name: way.name(), sender: nothing, receiver: nothing, wire_bytes: 0.0 };
        meter.corrected(way, alternative).sender.other_ns
    }

    #[test]
    fn what_was_measured_moves_the_price_towards_it() {
        let meter = Meter::default();
        assert_eq!(price(&meter, Mode::Copy), 0.0);
        let running = || Stopwatch(Some(Instant::now() - std::time::Duration::from_nanos(5_000)));
        meter.note(Mode::Copy, 2000.0, 2, running());
        let first = price(&meter, Mode::Copy);
        assert!((1_500.0..10_000.0).contains(&first), "half of 5 µs, less half of 2 µs: {first}");
        assert_eq!(price(&meter, Mode::Gather), first, "what is common to all, as far as known");
        meter.note(Mode::Gather, 4_000.0, 1, running());
        assert!(price(&meter, Mode::Gather) < first);
        let late = Stopwatch(Some(Instant::now() - std::time::Duration::from_millis(5)));
        meter.note(Mode::Copy, 1000.0, 1, late);
        assert_eq!(price(&meter, Mode::Copy), first, "an interrupted page says nothing");
        meter.note(Mode::Copy, 1000.0, 1, Stopwatch(None));
        assert_eq!(price(&meter, Mode::Copy), first);
    }
}
