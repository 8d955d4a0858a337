//! What all threads of a server have: the tables, who is connected, and whether it is to end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use overside_verbs::Link;

use super::notices::{Notices, OnFailure};
use super::store::Store;

/// What all fronts of a server have.
#[derive(Debug)]
pub(crate) struct House {
    pub(crate) store: Store,
    pub(crate) stop: AtomicBool,
    pub(crate) connections: AtomicU64,
    pub(crate) connections_max: u64,
    turned_away: AtomicU64,
    /// Connections whose delete waits for memory.
    pub(crate) waiting: AtomicU64,
    pub(crate) closed_for_cause: AtomicU64,
    pub(crate) empty_poll_ns: AtomicU64,
    pub(crate) notices: Option<Notices>,
    pub(crate) on_failure: Option<OnFailure>,
}

/// A connection on its way to a worker, and its place among those there may be.
pub(crate) struct Admitted {
    pub(crate) link: Link,
    pub(crate) place: Place,
}

/// Counts a connection as long as it is there.
#[derive(Debug)]
pub(crate) struct Place {
    house: Arc<House>,
    turned_away: bool,
}

/// Counts a connection whose delete waits for memory.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<House>);

impl House {
    pub(crate) fn new(
        store: Store,
        connections_max: usize,
        notices: Option<Notices>,
        on_failure: Option<OnFailure>,
    ) -> House {
        House {
            store,
            stop: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            connections_max: connections_max as u64,
            turned_away: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            closed_for_cause: AtomicU64::new(0),
            empty_poll_ns: AtomicU64::new(0),
            notices,
            on_failure,
        }
    }

    /// A place for another connection. Some for whom there is none may come in to be told so; beyond them, nobody.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Place> {
        let enter = |count: &AtomicU64, max| {
            count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| (open < max).then_some(open + 1)).is_ok()
        };
        let turned_away = !enter(&self.connections, self.connections_max);
        (!turned_away || enter(&self.turned_away, TURNED_AWAY_MAX)).then(|| Place { house: self.clone(), turned_away })
    }

    /// Counts a delete as waiting until it is dropped.
    pub(crate) fn waiting(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(self.clone())
    }

    pub(crate) fn say(&self, line: &str) {
        if let Some(notices) = &self.notices {
            notices.say(line);
        }
    }

    /// Calls `what`; false when it panicked, which the operator is told with what it `meant` for others.
    pub(crate) fn survives(&self, thread: &str, meant: &str, what: impl FnOnce()) -> bool {
        // What it shares with others are tables, whose changes are single steps, and counters. What it has alone it loses.
        let Err(panic) = catch_unwind(AssertUnwindSafe(what)) else { return true };
        let why = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        self.say(&format!(
            "a bug ended the thread {thread} ({}): {meant}; please report it",
            why.unwrap_or("no message")
        ));
        false
    }

    /// The server cannot go on.
    pub(crate) fn fail(&self, why: &str) {
        self.say(why);
        if let Some(on_failure) = &self.on_failure {
            on_failure.tell(why);
        }
    }
}

impl Place {
    /// Whether it is one too many.
    pub(crate) fn is_turned_away(&self) -> bool {
        self.turned_away
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let count = if self.turned_away { &self.house.turned_away } else { &self.house.connections };
        count.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Connections beyond the limit that are told so at once.
const TURNED_AWAY_MAX: u64 = 64;
