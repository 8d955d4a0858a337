//! The thread that writes the log. It alone owns it; workers append past it and are woken by it.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use overside_disk::Disk;
use overside_log::Log;
use overside_service::{Hold, OnFailure};
use smallvec::SmallVec;

use super::Journal;
use crate::wire::Durability;

/// The log, and those who wait for it.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) journal: Arc<Journal>,
    pub(crate) log: Log<Box<dyn Disk>>,
    /// Told when the log cannot be written any more.
    pub(crate) on_failure: Option<OnFailure>,
    /// The log's time begins here.
    pub(crate) began: Instant,
}

impl Writer {
    /// Writes until the journal is closed, or cannot be written any more.
    pub(crate) fn run(mut self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.write()));
        let why = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(why)) => why,
            Err(panic) => {
                let why = panic.downcast_ref::<&str>().copied();
                let why = why.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                format!(
                    "a bug ended the thread that writes the log ({}); start the server again, and please report it",
                    why.unwrap_or("no message")
                )
            }
        };
        // Nothing is acknowledged any more, for the marks stay as they are.
        self.journal.fail();
        if let Some(on_failure) = &self.on_failure {
            on_failure.tell(&why);
        }
    }

    fn write(&mut self) -> Result<(), String> {
        let mut patience = None;
        loop {
            self.journal.wake.look();
            let closing = self.journal.is_closing();
            if closing {
                self.log.close();
            }
            // Before the step: what is below it was appended by then.
            let floor = self.journal.stamps.floor();
            let now = self.journal.clock.now().duration_since(self.began);
            let released = self.journal.released.swap(0, Ordering::Relaxed);
            if released > 0 {
                self.log
                    .release(released)
                    .map_err(|error| format!("giving up old parts of the log failed: {error}"))?;
            }
            let step = self.log.step(floor, now).map_err(|failed| failed.to_string())?;
            if let Some(appender) = self.journal.appender.get() {
                let (position, floor) = (appender.durable().0, appender.durable_floor());
                self.journal.marks.raise(Hold { position, floor });
            }
            if self.journal.is_due() {
                self.journal.due.signal();
            }
            let mut wake = step.wake;
            if closing {
                if self.log.is_closed() {
                    return Ok(());
                }
                // However long the rest takes, as long as the disk does anything.
                let completed = self.log.completed();
                let patience = patience.get_or_insert_with(|| Patience::new(completed, now));
                if patience.is_over(completed, now) {
                    return Err(self.gave_up());
                }
                wake = Some(wake.map_or(patience.until(), |at| at.min(patience.until())));
            }
            self.wait(wake);
        }
    }

    fn gave_up(&self) -> String {
        let has = match self.journal.options.durability {
            Durability::Group => "has been handed to the system and may not be on the disk",
            _ => "is on the disk",
        };
        format!(
            "the disk that {} lies on has done nothing for {} s: what was acknowledged {has}, look at it before you start again",
            self.journal.options.dir.display(),
            SILENCE_MAX.as_secs()
        )
    }

    /// Waits until something is appended or completes, or a time has come.
    fn wait(&self, wake: Option<Duration>) {
        let mut descriptors: SmallVec<[BorrowedFd<'_>; 2]> = SmallVec::new();
        descriptors.push(self.journal.wake.fd());
        descriptors.extend(self.log.disk().fd());
        let until = wake.map(|at| self.began + at);
        // Where the system refuses to wait, the next step tries again.
        if self.journal.clock.wait(&descriptors, until).is_err() {
            self.journal.clock.sleep(PAUSE);
        }
    }
}

/// Patience with a disk: it ends when nothing was carried out for a long time.
#[derive(Debug)]
struct Patience {
    completed: u64,
    since: Duration,
}

impl Patience {
    fn new(completed: u64, now: Duration) -> Patience {
        Patience { completed, since: now }
    }

    /// Whether it is over, when so many requests have completed by now.
    fn is_over(&mut self, completed: u64, now: Duration) -> bool {
        if completed != self.completed {
            *self = Patience::new(completed, now);
        }
        now >= self.until()
    }

    /// When it is, if nothing completes until then.
    fn until(&self) -> Duration {
        self.since + SILENCE_MAX
    }
}

/// A disk that carries out nothing for so long while the log is closed is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_may_take_its_time_but_not_do_nothing() {
        let at = Duration::from_secs;
        let mut patience = Patience::new(7, at(100));
        for done in 0..50 {
            assert!(!patience.is_over(7 + done, at(100 + 20 * done)), "it carries out a request in 20 s");
        }
        let last = at(100 + 20 * 49);
        assert_eq!(patience.until(), last + SILENCE_MAX);
        assert!(!patience.is_over(56, last + SILENCE_MAX - Duration::from_nanos(1)));
        assert!(patience.is_over(56, last + SILENCE_MAX));
    }
}
