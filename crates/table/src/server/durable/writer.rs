//! Who writes the log. A worker that holds replies goes on with it itself, so that no reply waits
//! for another thread to wake. A thread of its own sees to segments, to times, and to what no
//! client waits for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use overside_disk::{Disk, mutant};
use overside_log::{Log, Step};
use overside_service::{Carrier, Hold, OnFailure};
use smallvec::SmallVec;

use super::super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, fence};
use super::Journal;
use crate::wire::Durability;

/// The log, for one thread at a time.
#[derive(Debug)]
pub(crate) struct Desk {
    journal: Arc<Journal>,
    /// Taken by trying alone: who finds it taken leaves its wish to who has it.
    log: Mutex<Log<Box<dyn Disk>>>,
    /// Readable when the disk has completed something. None where requests complete in a step,
    /// which then waits.
    fd: Option<OwnedFd>,
    /// The log's time begins here.
    began: Instant,
    /// A worker goes on when the disk has completed something.
    attended: AtomicBool,
    /// The disk has something to complete.
    under_way: AtomicBool,
    /// Until when the thread sleeps at most, in ns of the log's time.
    sleeps_until: AtomicU64,
    /// Told when the log cannot be written any more.
    on_failure: Option<OnFailure>,
}

/// The thread that sees to the log.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) desk: Arc<Desk>,
}

impl Desk {
    /// Of a log whose time began at `began`. Where the disk has a queue, workers carry the log on
    /// themselves.
    ///
    /// # Errors
    /// The system has no descriptor for it.
    pub(crate) fn new(
        journal: Arc<Journal>,
        log: Log<Box<dyn Disk>>,
        began: Instant,
        on_failure: Option<OnFailure>,
    ) -> std::io::Result<Arc<Desk>> {
        let fd = log.disk().fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let (attended, under_way) = (AtomicBool::new(false), AtomicBool::new(false));
        let (is_carried, marks) = (fd.is_some(), journal.marks.clone());
        let sleeps_until = AtomicU64::new(0);
        let desk = Desk { journal, log: Mutex::new(log), fd, began, attended, under_way, sleeps_until, on_failure };
        let desk = Arc::new(desk);
        if is_carried && desk.journal.options.durability != Durability::None {
            desk.journal.is_carried.store(true, Ordering::Release);
            marks.carry(Some(desk.clone()));
        }
        Ok(desk)
    }

    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// The log, unless another thread has it, which then sees what is wanted.
    fn try_log(&self) -> Result<MutexGuard<'_, Log<Box<dyn Disk>>>, Taken> {
        // Who has it lets go of it first and looks at the wish then. In the one order of both, one sees the other.
        fence(Ordering::SeqCst);
        self.log.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Taken::ForNow,
            // The thread that panicked has said so, and nothing more is acknowledged.
            TryLockError::Poisoned(_) => Taken::ForGood,
        })
    }

    /// What a step came to is told to all.
    fn tell(&self, log: &Log<Box<dyn Disk>>) {
        self.under_way.store(log.is_under_way(), Ordering::SeqCst);
        if let Some(appender) = self.journal.appender.get() {
            let (position, floor) = (appender.durable().0, appender.durable_floor());
            self.journal.marks.raise(Hold { position, floor });
        }
        if self.journal.is_due() {
            self.journal.due.signal();
        }
    }

    fn now(&self) -> Duration {
        self.journal.clock.now().saturating_duration_since(self.began)
    }

    /// The log cannot be written any more, which is said once. The marks stay as they are, so
    /// nothing is acknowledged.
    fn give_up(&self, why: &str) {
        if !self.journal.fail()
            && let Some(on_failure) = &self.on_failure
        {
            on_failure.tell(why);
        }
    }

    /// A worker's step.
    fn step(&self, mut log: MutexGuard<'_, Log<Box<dyn Disk>>>) {
        let guard = Unwinding(self);
        self.journal.log_wanted.store(false, Ordering::SeqCst);
        // Before the step: what is below it was appended by then.
        let floor = self.journal.stamps.floor();
        let stepped = log.go_on(floor, self.now());
        let wakes_thread = match &stepped {
            Ok(Step { wake, .. }) => {
                let wake = wake.map_or(u64::MAX, |at| at.as_nanos() as u64);
                wake < self.sleeps_until.load(Ordering::SeqCst)
            }
            Err(_) => true,
        };
        if stepped.is_ok() {
            self.tell(&log);
        }
        drop(log);
        std::mem::forget(guard);
        if wakes_thread {
            self.journal.wake.signal();
        }
        if let Err(failed) = stepped {
            self.give_up(&failed.to_string());
        }
    }

    /// Whether the caller is the one who attends from now on.
    fn attend(&self) -> bool {
        !self.attended.swap(true, Ordering::SeqCst)
    }
}

/// Why the log cannot be had.
enum Taken {
    ForNow,
    ForGood,
}

/// A bug in a step ends the server: the log may have what is not counted, or the other way round.
struct Unwinding<'d>(&'d Desk);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        self.0.journal.broken.store(true, Ordering::Release);
    }
}

impl Carrier for Desk {
    fn is_wanted(&self) -> bool {
        self.journal.log_wanted.load(Ordering::Relaxed)
    }

    fn go_on(&self, mut attends: bool) -> bool {
        let mut steps = attends;
        while steps || self.journal.log_wanted.load(Ordering::SeqCst) {
            let Ok(log) = self.try_log() else {
                // Who has the log goes on, and raises the marks. To watch the disk meanwhile would be to wait in a circle.
                if attends {
                    self.leave();
                }
                return false;
            };
            self.step(log);
            fence(Ordering::SeqCst);
            steps = false;
        }
        // Either the one who leaves sees that something is under way, or who has begun it that nobody attends.
        let under_way = self.under_way.load(Ordering::SeqCst);
        if under_way && !attends {
            attends = self.attend();
        } else if !under_way && attends {
            self.leave();
            attends = false;
        }
        attends
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // Without one no worker knows of this.
        self.fd.as_ref().map_or_else(|| self.journal.wake.fd(), |fd| fd.as_fd())
    }

    fn leave(&self) {
        self.attended.store(false, Ordering::SeqCst);
        if self.under_way.load(Ordering::SeqCst) && !mutant("log-left-unattended") {
            self.journal.wake.signal();
        }
    }
}

impl Drop for Writer {
    /// The desk ends with it, and with the desk the disk's queue.
    fn drop(&mut self) {
        self.desk.journal.marks.carry(None);
    }
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
        self.desk.give_up(&why);
    }

    fn write(&mut self) -> Result<(), String> {
        let (desk, mut patience) = (self.desk.clone(), None);
        let journal = &desk.journal;
        loop {
            desk.sleeps_until.store(0, Ordering::SeqCst);
            journal.wake.look();
            let closing = journal.is_closing();
            let mut log = match desk.try_log() {
                Ok(log) => log,
                Err(Taken::ForNow) => {
                    let soon = journal.clock.now() + PAUSE;
                    self.wait_until(Some(soon));
                    continue;
                }
                Err(Taken::ForGood) => return Err(BUG.into()),
            };
            if closing {
                log.close();
            }
            journal.log_wanted.store(false, Ordering::SeqCst);
            // Before the step: what is below it was appended by then.
            let floor = journal.stamps.floor();
            let now = desk.now();
            let released = journal.released.swap(0, Ordering::Relaxed);
            if released > 0 {
                log.release(released).map_err(|error| format!("giving up old parts of the log failed: {error}"))?;
            }
            let step = log.step(floor, now).map_err(|failed| failed.to_string())?;
            desk.tell(&log);
            let mut wake = step.wake;
            if closing {
                if log.is_closed() {
                    return Ok(());
                }
                // However long the rest takes, as long as the disk does anything.
                let completed = log.completed();
                let patience = patience.get_or_insert_with(|| Patience::new(completed, now));
                if patience.is_over(completed, now) {
                    return Err(self.gave_up());
                }
                wake = Some(wake.map_or(patience.until(), |at| at.min(patience.until())));
            }
            // While nobody else can step: who does so later, and has something due earlier, wakes this thread.
            desk.sleeps_until.store(wake.map_or(u64::MAX, |at| at.as_nanos() as u64), Ordering::SeqCst);
            drop(log);
            fence(Ordering::SeqCst);
            if !journal.log_wanted.load(Ordering::SeqCst) || mutant("wish-slept-through") {
                self.wait_until(wake.map(|at| desk.began + at));
            }
        }
    }

    fn gave_up(&self) -> String {
        let has = match self.desk.journal.options.durability {
            Durability::Group => "has been handed to the system and may not be on the disk",
            _ => "is on the disk",
        };
        format!(
            "the disk that {} lies on has done nothing for {} s: what was acknowledged {has}, look at it before you start again",
            self.desk.journal.options.dir.display(),
            SILENCE_MAX.as_secs()
        )
    }

    /// Waits until it is woken, or a time has come; and for the disk, unless a worker attends to
    /// it.
    fn wait_until(&self, until: Option<Instant>) {
        let Desk { journal, fd, under_way, attended, .. } = &*self.desk;
        let mut descriptors: SmallVec<[BorrowedFd<'_>; 2]> = SmallVec::new();
        descriptors.push(journal.wake.fd());
        let for_disk = under_way.load(Ordering::SeqCst) && !attended.load(Ordering::SeqCst);
        descriptors.extend(fd.iter().filter(|_| for_disk).map(|fd| fd.as_fd()));
        // Where the system refuses to wait, the next step tries again.
        if journal.clock.wait(&descriptors, until).is_err() {
            journal.clock.sleep(PAUSE);
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
const BUG: &str = "a bug ended a thread in the middle of writing the log; start the server again, and please report it";

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
