//! Replies that wait for a log: what each waits for, and how far the log has come.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

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

    pub(crate) fn enlist(&self, worker: &Arc<Mailbox>) {
        self.workers().push(worker.clone());
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Arc<Mailbox>>> {
        self.workers.lock().unwrap_or_else(|e| e.into_inner())
    }
}
