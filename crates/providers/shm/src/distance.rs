//! How far the peer's processor is: how long a line takes to come that it wrote last.
//!
//! Processors that share a cache exchange a line in some tens of nanoseconds, others in some
//! hundreds, and threads, and the processors of a virtual machine, are moved from the one to the
//! other. What sending costs depends on it (`Profile::elsewhere` in `overside_planner`), so whoever
//! plans asks now and then. Only then is anything measured: the clock is read around the looks at a
//! word of the peer's, and those looks count that find it changed, for they had to fetch the line.

use std::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct Distance {
    /// Looks that found something new, of the measurement under way.
    seen: [f64; LOOKS],
    /// How many of them are to come.
    wanted: usize,
    known: Option<f64>,
}

impl Distance {
    /// What was measured last, in nanoseconds; the next measurement begins.
    pub(crate) fn ask(&mut self) -> Option<f64> {
        if self.wanted == 0 {
            self.wanted = LOOKS;
        }
        self.known
    }

    /// Whether a measurement is under way: then nobody else may look at the word first.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted > 0
    }

    /// The word, which was `before` when it was last looked at.
    #[inline]
    pub(crate) fn load(&mut self, before: u64, load: impl Fn() -> u64) -> u64 {
        if self.wanted == 0 { load() } else { self.timed(before, load) }
    }

    #[cold]
    fn timed(&mut self, before: u64, load: impl Fn() -> u64) -> u64 {
        let begun = Instant::now();
        let word = load();
        let took = begun.elapsed();
        if word != before {
            self.wanted -= 1;
            self.seen[self.wanted] = took.as_nanos() as f64;
            if self.wanted == 0 {
                self.seen.sort_by(f64::total_cmp);
                self.known = Some(self.seen[LOOKS / 2]);
            }
        }
        word
    }
}

/// Looks of one measurement: the middle one is neither an interrupt nor a line that came by itself.
const LOOKS: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::time::Duration;

    #[test]
    fn only_looks_that_find_something_new_count_and_only_when_asked_for() {
        let (word, slow) = (Cell::new(0u64), Cell::new(false));
        let load = || {
            if slow.get() {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_micros(20) {}
            }
            word.get()
        };
        let mut distance = Distance::default();
        for at in 1..40 {
            word.set(at);
            assert_eq!(distance.load(at - 1, load), at);
        }
        assert_eq!((distance.is_wanted(), distance.ask()), (false, None), "nobody had asked");
        let mut before = 39;
        for at in 40..49 {
            // What is not new was in the cache.
            slow.set(false);
            assert_eq!(distance.load(before, load), before);
            assert!(distance.is_wanted());
            (before, _) = (at, word.set(at));
            slow.set(true);
            assert_eq!(distance.load(at - 1, load), at);
        }
        assert!(!distance.is_wanted());
        assert!(distance.ask().is_some_and(|ns| ns >= 20_000.0));
    }
}
