//! Two that take turns on one processor.
//!
//! A worker sleeps while its client has enough, and the client wakes it. A scheduler takes that for a sign that one is done when the other
//! begins, and puts both on one processor, again and again: then they take turns, neither waits for long while another processor
//! stands idle, and so nobody moves them apart (seen for seconds; a scan takes half as long again). A worker can tell, since a client that
//! runs elsewhere goes on taking messages while the worker makes more. Where it takes none, the worker moves to its other processors, and is
//! kept there for a tenth of a second, since the next wake-up would bring it back. If it was no use, that is the client's own pace.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Whether a worker's clients run while it does, and what it does about it. Lives on the worker's thread.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    suspicion: Suspicion,
    away: Option<Away>,
}

/// A worker that stepped aside.
#[derive(Debug)]
struct Away {
    /// Where it may run otherwise.
    everywhere: CpuSet,
    until: Instant,
}

impl Aside {
    /// So many messages were posted.
    pub(crate) fn posted(&mut self, messages: usize) {
        self.suspicion.untaken += messages;
    }

    /// A client took one.
    pub(crate) fn taken(&mut self) {
        self.suspicion.untaken = 0;
    }

    /// The worker is about to sleep with a whole window of messages under way.
    pub(crate) fn sated(&mut self, window: usize) {
        if self.suspicion.due(window) {
            self.step();
        } else if self.away.as_ref().is_some_and(|away| away.until <= Instant::now()) {
            self.end();
        }
    }

    /// Leaves the processor it is on; nothing happens where there is no other or the system does not say.
    fn step(&mut self) {
        let before = self.away.take().map(|away| away.everywhere);
        let Some(everywhere) = before.or_else(|| sched_getaffinity(None).ok()) else { return };
        let here = sched_getcpu();
        let mut others = everywhere;
        if here < CpuSet::MAX_CPU {
            others.unset(here);
        }
        let moved = others != everywhere && others.count() > 0 && sched_setaffinity(None, &others).is_ok();
        if moved || before.is_some() {
            self.away = Some(Away { everywhere, until: Instant::now() + KEPT });
        }
    }

    /// May run everywhere again.
    fn end(&mut self) {
        if let Some(away) = self.away.take() {
            let _ = sched_setaffinity(None, &away.everywhere);
        }
    }
}

/// Whether a client runs, by what it takes.
#[derive(Debug, Default)]
struct Suspicion {
    /// Messages posted since a client last took one.
    untaken: usize,
    /// Suspicions that are still to be passed over.
    skip: u32,
    /// How many were, after the last move.
    every: u32,
}

impl Suspicion {
    /// Whether to move, before a sleep.
    fn due(&mut self, window: usize) -> bool {
        if std::mem::take(&mut self.untaken) * SHARE < window {
            (self.skip, self.every) = (0, 0);
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.every = (self.every * 2).clamp(1, EVERY_MAX);
        self.skip = self.every;
        true
    }
}

/// Of a window, what a client that runs does not leave untaken while more is made: it tells of four at once, and is not many times
/// slower than the worker.
const SHARE: usize = 4;
/// A move costs some tens of microseconds, a sleep between two as much.
const EVERY_MAX: u32 = 1024;
/// How long a worker stays away: long against what finding out again takes (half a millisecond), and short for whoever else wants the
/// processors that it is kept to.
const KEPT: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_takes_while_more_is_made_is_never_suspected() {
        let mut aside = Aside::default();
        for _ in 0..100 {
            for _ in 0..16 {
                aside.posted(4);
                aside.taken();
            }
            aside.posted(7);
            assert!(!aside.suspicion.due(128));
        }
    }

    #[test]
    fn one_that_takes_nothing_is_left_alone_ever_longer() {
        let mut suspicion = Suspicion::default();
        let mut moves = |sleeps: usize| {
            let due = |_: &usize| {
                suspicion.untaken = 64;
                suspicion.due(128)
            };
            (0..sleeps).filter(due).collect::<Vec<_>>()
        };
        assert_eq!(moves(20), [0, 2, 5, 10, 19]);
        assert!(moves(100_000).len() < 110, "as long as that lasts, one in a thousand");
        assert!(!suspicion.due(128), "it runs elsewhere now");
        suspicion.untaken = 64;
        assert!(suspicion.due(128), "so the next suspicion counts again");
    }

    #[test]
    fn who_steps_aside_comes_to_another_processor_and_may_go_back_later() {
        let before = sched_getaffinity(None).unwrap();
        let mut aside = Aside::default();
        aside.posted(64);
        aside.sated(128);
        let Some(away) = &mut aside.away else {
            assert_eq!(before.count(), 1, "there was another processor");
            return;
        };
        away.until = Instant::now();
        let kept_to = sched_getaffinity(None).unwrap();
        assert_eq!(kept_to.count() + 1, before.count(), "all but the one it was on");
        assert!(kept_to.is_set(sched_getcpu()));
        aside.sated(128);
        assert!(aside.away.is_none() && sched_getaffinity(None).unwrap() == before);
    }
}
