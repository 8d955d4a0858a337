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
        let mut closing_since = None;
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
            if closing {
                // All that was acknowledged is on the disk. A full one has no room for the statement of that.
                let since = *closing_since.get_or_insert(now);
                if self.log.is_closed() || now.saturating_sub(since) > CLOSE_MAX {
                    return Ok(());
                }
            }
            self.wait(step.wake);
        }
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

/// How long the end of a log may take.
const CLOSE_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);
