//! How long a call may wait.

use std::time::{Duration, Instant};

use overside_verbs::{Clock, VerbsError};

/// The time that a call may wait in all, whatever it waits for.
///
/// It begins with the first wait: reading a clock costs as much as a poll, and most calls find at
/// once what they need.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    within: Duration,
    end: Option<Instant>,
}

impl Deadline {
    /// So long from the first wait on.
    pub fn within(within: Duration) -> Self {
        Self { within, end: None }
    }

    /// What is left of it.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`] when nothing is.
    pub fn left(&mut self, clock: &dyn Clock) -> Result<Duration, VerbsError> {
        let now = clock.now();
        // A time beyond what the clock can name is never reached.
        let end = *self.end.get_or_insert_with(|| now.checked_add(self.within).unwrap_or(now + AGES));
        match end.saturating_duration_since(now) {
            Duration::ZERO => Err(VerbsError::TimedOut(self.within)),
            left => Ok(left),
        }
    }
}

/// Longer than any program waits.
const AGES: Duration = Duration::from_secs(1 << 32);

#[cfg(test)]
mod tests {
    use super::*;
    use overside_verbs::SystemClock;

    #[test]
    fn a_deadline_begins_with_the_first_wait_and_ends_for_good() {
        let clock = SystemClock::handle();
        let mut deadline = Deadline::within(Duration::from_millis(30));
        clock.sleep(Duration::from_millis(40));
        assert!(deadline.left(&*clock).is_ok(), "nobody has waited yet");
        clock.sleep(Duration::from_millis(40));
        for _ in 0..2 {
            let error = deadline.left(&*clock).unwrap_err();
            assert!(matches!(error, VerbsError::TimedOut(within) if within == Duration::from_millis(30)));
        }
        assert!(Deadline::within(Duration::ZERO).left(&*clock).is_err());
        assert!(Deadline::within(Duration::MAX).left(&*clock).is_ok());
    }
}
