//! Replies that wait for a log: what each waits for, and how far the log has come.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::sync::{AtomicU64, Mutex, MutexGuard};
use crate::ticket::Mailbox;

/// What a message waits for before it is sent, and all that is sent behind it on its connection.
/// Both marks are the system's; zero waits for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// A position of the system's log.
    pub position: u64,
    /// A mark below which all changes are in the log.
    pub floor: u64,
}

/// How far a system's log has come. The log raises it; workers look at it, and those that hold
/// messages back are woken when it rises.
#[derive(Debug, Default)]
pub struct Watermarks {
    position: AtomicU64,
    floor: AtomicU64,
    workers: Mutex<Vec<Arc<Mailbox>>>,
    carrier: Mutex<Option<Arc<dyn Carrier>>>,
}

/// Carries a log on. A worker that holds messages back does so itself, as far as it need not wait:
/// waiting for another thread that does costs the wake-ups of two.
pub trait Carrier: Send + Sync + fmt::Debug {
    /// Whether it should be gone on with.
    fn is_wanted(&self) -> bool;

    /// Goes on as far as nothing is waited for, and raises the marks; or leaves it to the thread
    /// that is at it. `attends`: the caller attends to it, so it goes on again whenever
    /// [`fd`](Self::fd) is readable. Gives whether it does from now on. One at a time does, and it
    /// must [`leave`](Self::leave) before it ends.
    fn go_on(&self, attends: bool) -> bool;

    /// Readable when what it waits for has come.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Who attended to it does so no more.
    fn leave(&self);
}

impl Hold {
    /// Waits for nothing.
    pub const NONE: Hold = Hold { position: 0, floor: 0 };

    /// What waits for both.
    #[must_use]
    pub fn and(self, other: Hold) -> Hold {
        Hold { position: self.position.max(other.position), floor: self.floor.max(other.floor) }
    }

    pub(crate) fn is_met(self, reached: Hold) -> bool {
        self.position <= reached.position && self.floor <= reached.floor
    }
}

impl Watermarks {
    /// Nothing is reached yet.
    pub fn new() -> Arc<Watermarks> {
        Arc::default()
    }

    /// Both marks as they stand.
    pub fn reached(&self) -> Hold {
        Hold { position: self.position.load(Ordering::SeqCst), floor: self.floor.load(Ordering::SeqCst) }
    }

    /// The log has come so far. Messages that waited for no more are sent.
    pub fn raise(&self, to: Hold) {
        let risen = self.position.fetch_max(to.position, Ordering::SeqCst) < to.position;
        let risen = (self.floor.fetch_max(to.floor, Ordering::SeqCst) < to.floor) | risen;
        if !risen {
            return;
        }
        // A worker says that it holds something and then looks at the marks; here they are raised,
        // and then workers are asked. In the one order of all four, one sees the other.
        for worker in self.workers().iter().filter(|worker| worker.holds()) {
            worker.signal();
        }
    }

    /// From now on workers that start carry the log on by `carrier`; by none, another thread must.
    pub fn carry(&self, carrier: Option<Arc<dyn Carrier>>) {
        *self.carrier.lock().unwrap_or_else(|e| e.into_inner()) = carrier;
    }

    pub(crate) fn carrier(&self) -> Option<Arc<dyn Carrier>> {
        self.carrier.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    pub(crate) fn enlist(&self, worker: &Arc<Mailbox>) {
        self.workers().push(worker.clone());
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Arc<Mailbox>>> {
        self.workers.lock().unwrap_or_else(|e| e.into_inner())
    }
}
