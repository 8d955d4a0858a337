//! What happened, in order: a running hash of all of it, and the last of it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use crate::chance::mix;

/// One step of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Virtual time.
    pub at: Duration,
    /// The thread, by its number in the order of their starts.
    pub thread: usize,
    /// What it did.
    pub what: &'static str,
    /// With what: a length, a place, the thread that goes on.
    pub number: u64,
}

/// The events of a world: their hash, their count, and the last of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    hash: u64,
    count: u64,
    /// How often each thing was done.
    counts: BTreeMap<&'static str, u64>,
    last: VecDeque<Event>,
}

impl Trace {
    /// Equal for two runs that took the same steps.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Events so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How often a thing was done: what a world is there for must happen in some.
    pub fn count_of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// The last events, oldest first.
    pub fn last(&self) -> impl Iterator<Item = &Event> {
        self.last.iter()
    }

    pub(crate) fn note(&mut self, event: Event) {
        let Event { at, thread, what, number } = event;
        let words = [at.as_nanos() as u64, thread as u64, number];
        self.hash = words.iter().fold(self.hash, |hash, word| mix(hash ^ word));
        self.hash = what.bytes().fold(self.hash, |hash, byte| mix(hash ^ u64::from(byte)));
        self.count += 1;
        *self.counts.entry(what).or_default() += 1;
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(event);
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { at, thread, what, number } = self;
        write!(f, "{:>14.6} s  thread {thread}  {what} {number}", at.as_secs_f64())
    }
}

/// Events that are kept to be shown.
const LAST: usize = 64;
