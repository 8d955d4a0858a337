//! What all threads of a server share: who is connected, and whether it should end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use overside_verbs::Clock;

use crate::notices::{Notices, OnFailure};
use crate::options::ServiceOptions;

/// What all threads of a server share.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) stop: AtomicBool,
    connections: AtomicU64,
    connections_max: u64,
    turned_away: AtomicU64,
    /// Tickets that are not used up.
    pub(crate) unfinished: AtomicU64,
    pub(crate) closed_for_cause: AtomicU64,
    pub(crate) empty_poll_ns: AtomicU64,
    pub(crate) clock: Arc<dyn Clock>,
    notices: Option<Notices>,
    on_failure: Option<OnFailure>,
}

/// How a server does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Connections that were accepted and not turned away.
    pub connections: u64,
    /// Connections closed for what their peers said or did not take.
    pub closed_for_cause: u64,
    /// Requests that finish later and have not yet.
    pub unfinished: u64,
    /// Processor time spent polling for nothing, in ns.
    pub empty_poll_ns: u64,
}

/// Admission: counts a connection as long as it is there.
#[derive(Debug)]
pub(crate) struct Permit {
    state: Arc<State>,
    turned_away: bool,
}

impl State {
    pub(crate) fn new(options: &ServiceOptions, clock: Arc<dyn Clock>) -> State {
        State {
            stop: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            connections_max: options.connections_max as u64,
            turned_away: AtomicU64::new(0),
            unfinished: AtomicU64::new(0),
            closed_for_cause: AtomicU64::new(0),
            empty_poll_ns: AtomicU64::new(0),
            clock,
            notices: options.notices.clone(),
            on_failure: options.on_failure.clone(),
        }
    }

    /// Admits another connection. Beyond the limit a few are let in to be told so, and then none.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Permit> {
        let enter = |count: &AtomicU64, max| {
            count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| (open < max).then_some(open + 1)).is_ok()
        };
        let turned_away = !enter(&self.connections, self.connections_max);
        (!turned_away || enter(&self.turned_away, TURNED_AWAY_MAX)).then(|| Permit { state: self.clone(), turned_away })
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Statistics {
            connections: read(&self.connections),
            closed_for_cause: read(&self.closed_for_cause),
            unfinished: read(&self.unfinished),
            empty_poll_ns: read(&self.empty_poll_ns),
        }
    }

    pub(crate) fn say(&self, line: &str) {
        if let Some(notices) = &self.notices {
            notices.say(self.clock.now(), line);
        }
    }

    /// Nothing happened; what was withheld before is reported once its time has come.
    pub(crate) fn look(&self) {
        if let Some(notices) = &self.notices {
            notices.look(self.clock.now());
        }
    }

    /// Calls `what`; false when it panicked. The operator is told, with what it `meant` for others.
    pub(crate) fn survives(&self, thread: &str, meant: &str, what: impl FnOnce()) -> bool {
        // What it shares with others changes in single steps. What it has alone it loses.
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

impl Permit {
    /// Whether it is one too many.
    pub(crate) fn is_turned_away(&self) -> bool {
        self.turned_away
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let count = if self.turned_away { &self.state.turned_away } else { &self.state.connections };
        count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Connections beyond the limit that are told so at once.
const TURNED_AWAY_MAX: u64 = 64;
