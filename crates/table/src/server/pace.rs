//! How a worker that has nothing to do waits.

use std::time::{Duration, Instant};

/// Whether to poll before going to sleep, and how deep the sleep is.
///
/// A worker whose clients are sated is woken when half of what they have is taken, which is long enough to be worth sleeping for;
/// and whoever takes it may share this core's units. Where a provider wakes earlier all the same, it is not.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the wait in hand began, if it began with a sleep.
    since: Option<Instant>,
    /// Waits of a sated worker that shall begin with polling.
    poll_first: u32,
    /// The wait before was a doze, and nobody ended it.
    overslept: bool,
}

/// How the wait that begins shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Poll first, then sleep.
    Poll,
    /// Sleep at once.
    Sleep,
    /// Sleep at once and for [`DOZE`] at most, so that nothing but its queue pair need wake the worker: where the provider has a cheaper
    /// way for that (over shared memory a futex), it is taken. A message on a socket tells the scheduler too that its sender
    /// is about to sleep, which a client is not that wakes the worker long before it runs dry.
    Doze,
}

impl Pace {
    /// For the wait that begins now, of a worker whose clients are `sated`; `alone`: it has one connection.
    pub(crate) fn wait(&mut self, sated: bool, alone: bool) -> Wait {
        let at_once = sated && self.poll_first == 0;
        self.poll_first = self.poll_first.saturating_sub(u32::from(sated));
        self.since = at_once.then(Instant::now);
        match at_once {
            false => Wait::Poll,
            // A client that has stopped shall not cost a wake-up every few milliseconds.
            true if alone && !self.overslept => Wait::Doze,
            true => Wait::Sleep,
        }
    }

    /// How it went: whether the worker slept, and whether anything was there after it.
    pub(crate) fn waited(&mut self, wait: Wait, slept: bool, found: bool) {
        self.overslept = wait != Wait::Poll && !found && (self.overslept || wait == Wait::Doze);
        if slept && self.since.take().is_some_and(|since| since.elapsed() < WORTH_SLEEPING) {
            self.poll_first = POLLS_AFTER_SHORT_SLEEP;
        }
    }
}

/// How long a doze is at most: as long, the worker may not notice a new connection, nor that it is to stop.
pub(crate) const DOZE: Duration = Duration::from_millis(5);
/// A sleep that is shorter costs more than polling does.
const WORTH_SLEEPING: Duration = Duration::from_micros(80);
const POLLS_AFTER_SHORT_SLEEP: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doze_that_nobody_ends_is_followed_by_sleeps() {
        let mut pace = Pace::default();
        assert_eq!(pace.wait(false, true), Wait::Poll);
        pace.waited(Wait::Poll, true, false);
        assert_eq!(pace.wait(true, true), Wait::Doze);
        // How long it took does not matter here.
        pace.since = None;
        pace.waited(Wait::Doze, true, false);
        for _ in 0..3 {
            assert_eq!(pace.wait(true, true), Wait::Sleep, "the client has stopped");
            pace.since = None;
            pace.waited(Wait::Sleep, true, false);
        }
        assert_eq!(pace.wait(true, true), Wait::Sleep);
        pace.since = None;
        pace.waited(Wait::Sleep, true, true);
        assert_eq!(pace.wait(true, true), Wait::Doze, "it goes on");
        pace.since = None;
        pace.waited(Wait::Doze, true, true);
        assert_eq!(pace.wait(true, false), Wait::Sleep, "others may come");
    }

    #[test]
    fn after_a_short_sleep_it_polls_for_a_while() {
        let mut pace = Pace::default();
        assert_eq!(pace.wait(true, true), Wait::Doze);
        pace.since = Some(Instant::now() + Duration::from_secs(60));
        pace.waited(Wait::Doze, true, true);
        for _ in 0..POLLS_AFTER_SHORT_SLEEP {
            assert_eq!(pace.wait(true, true), Wait::Poll);
        }
        assert_eq!(pace.wait(true, true), Wait::Doze);
    }
}
