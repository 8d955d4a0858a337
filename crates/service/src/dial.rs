//! Connections that this side opens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use overside_verbs::VerbsError;

use crate::accept::Door;
use crate::system::System;
use crate::worker::{Arrival, Origin, WorkerConfig};

/// Opens connections that a server's workers serve as they serve those that they accept. They count
/// against no limit of admission.
pub struct Dialer<S: System> {
    config: Arc<WorkerConfig<S>>,
    doors: Vec<Door<S::Session>>,
    turn: Arc<AtomicUsize>,
}

impl<S: System> Clone for Dialer<S> {
    fn clone(&self) -> Self {
        Self { config: self.config.clone(), doors: self.doors.clone(), turn: self.turn.clone() }
    }
}

impl<S: System> std::fmt::Debug for Dialer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer").field("provider", &self.config.provider).finish_non_exhaustive()
    }
}

impl<S: System> Dialer<S> {
    pub(crate) fn new(config: Arc<WorkerConfig<S>>, doors: Vec<Door<S::Session>>) -> Self {
        Self { config, doors, turn: Arc::default() }
    }

    /// Connects, on the caller's thread, and hands the connection to a worker. There the session's
    /// [`opened`](crate::Session::opened) sends its first request; what comes back reaches
    /// [`reply`](crate::Session::reply) and [`data`](crate::Session::data). `buffer_bytes` is the
    /// length of the peer's receive buffers; this side's have
    /// [`request_bytes_max`](crate::ServiceOptions::request_bytes_max).
    ///
    /// # Errors
    /// When nobody listens there, or not in time; or the worker has ended.
    pub fn dial(
        &self,
        name: &str,
        timeout: Duration,
        buffer_bytes: usize,
        session: S::Session,
    ) -> Result<(), VerbsError> {
        let link = self.config.provider.connect(&self.config.domain, name, timeout)?;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let arrival = Arrival { link, origin: Origin::Us(session, buffer_bytes) };
        self.doors[turn % self.doors.len()].pass(arrival).then_some(()).ok_or(VerbsError::Closed)
    }

    /// Wakes all workers.
    pub(crate) fn signal(&self) {
        self.doors.iter().for_each(|door| door.mailbox.signal());
    }
}
