//! Whether a worker that has nothing to do polls before it sleeps, and how deep it sleeps.

use std::time::{Duration, Instant};

/// A worker's choice between polling and sleeping.
///
/// A worker whose clients' windows are all full is woken when half of a window was taken. That takes
/// long enough to be worth a sleep, and the client may share this core's execution units. Where a
/// provider wakes earlier nevertheless, the sleep is not worth it.
#[derive(Debug, Default)]
pub(crate) struct SpinBudget {
    /// When the wait in hand began, if it began with a sleep.
    since: Option<Instant>,
    /// Waits with full windows that begin with polling nevertheless.
    poll_first: u32,
    /// The wait before was a doze, and nothing ended it.
    overslept: bool,
}

/// How a wait is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Poll first, then sleep.
    Poll,
    /// Sleep at once.
    Sleep,
    /// Sleep at once and for [`DOZE`] at most, so that the queue pair alone need wake the worker. The
    /// provider then takes a cheaper way if it has one (over shared memory, a futex).
    Doze,
}

impl SpinBudget {
    /// For the wait that begins `now`, with all windows full or not; `alone`: nothing but one queue
    /// pair is waited for.
    pub(crate) fn wait(&mut self, full: bool, alone: bool, now: impl FnOnce() -> Instant) -> Wait {
        let at_once = full && self.poll_first == 0;
        self.poll_first = self.poll_first.saturating_sub(u32::from(full));
        self.since = at_once.then(now);
        match at_once {
            false => Wait::Poll,
            // A client that has stopped shall not cost a wake-up every few milliseconds.
            true if alone && !self.overslept => Wait::Doze,
            true => Wait::Sleep,
        }
    }

    /// How it went: whether the worker slept, and whether anything was there after it.
    pub(crate) fn waited(&mut self, wait: Wait, slept: bool, found: bool, now: impl FnOnce() -> Instant) {
        self.overslept = wait != Wait::Poll && !found && (self.overslept || wait == Wait::Doze);
        if slept && self.since.take().is_some_and(|since| now().duration_since(since) < WORTH_SLEEPING) {
            self.poll_first = POLLS_AFTER_SHORT_SLEEP;
        }
    }
}

/// How long a doze is at most. As long, the worker may not notice a new connection, nor that it
/// should stop.
pub(crate) const DOZE: Duration = Duration::from_millis(5);
/// A sleep that is shorter costs more than polling does.
const WORTH_SLEEPING: Duration = Duration::from_micros(80);
const POLLS_AFTER_SHORT_SLEEP: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doze_that_nobody_ends_is_followed_by_sleeps() {
        let mut budget = SpinBudget::default();
        assert_eq!(budget.wait(false, true, Instant::now), Wait::Poll);
        budget.waited(Wait::Poll, true, false, Instant::now);
        assert_eq!(budget.wait(true, true, Instant::now), Wait::Doze);
        // How long it took does not matter here.
        budget.since = None;
        budget.waited(Wait::Doze, true, false, Instant::now);
        for _ in 0..3 {
            assert_eq!(budget.wait(true, true, Instant::now), Wait::Sleep, "the client has stopped");
            budget.since = None;
            budget.waited(Wait::Sleep, true, false, Instant::now);
        }
        assert_eq!(budget.wait(true, true, Instant::now), Wait::Sleep);
        budget.since = None;
        budget.waited(Wait::Sleep, true, true, Instant::now);
        assert_eq!(budget.wait(true, true, Instant::now), Wait::Doze, "it goes on");
        budget.since = None;
        budget.waited(Wait::Doze, true, true, Instant::now);
        assert_eq!(budget.wait(true, false, Instant::now), Wait::Sleep, "others may come");
    }

    #[test]
    fn after_a_short_sleep_it_polls_for_a_while() {
        let mut budget = SpinBudget::default();
        assert_eq!(budget.wait(true, true, Instant::now), Wait::Doze);
        budget.since = Some(Instant::now() + Duration::from_secs(60));
        budget.waited(Wait::Doze, true, true, Instant::now);
        for _ in 0..POLLS_AFTER_SHORT_SLEEP {
            assert_eq!(budget.wait(true, true, Instant::now), Wait::Poll);
        }
        assert_eq!(budget.wait(true, true, Instant::now), Wait::Doze);
    }
}
