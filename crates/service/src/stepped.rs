//! A server without threads: it does something when its caller says so.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use overside_verbs::{Listener, VerbsError, WorkCompletion};

use crate::accept::{Door, Listening, accept_one};
use crate::options::ServiceOptions;
use crate::state::State;
use crate::system::System;
use crate::ticket::Mailbox;
use crate::worker::{Arrival, Worker, WorkerConfig};

/// A server that runs on the thread of its caller: to count what it does, or to run it by a clock
/// that is stepped by hand.
pub struct Stepped<S: System> {
    state: Arc<State>,
    worker: Worker<S>,
    listeners: Vec<Box<dyn Listener>>,
    door: Door<S::Session>,
    arrivals: Receiver<Arrival<S::Session>>,
    done: Vec<WorkCompletion>,
}

impl<S: System> Stepped<S> {
    /// Listens, and does nothing yet.
    ///
    /// # Errors
    /// As [`Server::start`](crate::Server::start).
    pub fn start(listening: Listening, system: Arc<S>, options: ServiceOptions) -> Result<Self, VerbsError> {
        let Listening { provider, domain, listeners } = listening;
        let state = Arc::new(State::new(&options, provider.clock()));
        let config = WorkerConfig { system, provider, domain, options: Arc::new(options) };
        let mailbox = Mailbox::new(&state)?;
        config.options.watermarks.iter().for_each(|marks| marks.enlist(&mailbox));
        let worker = Worker::new(&config, mailbox.clone())?;
        let (sender, arrivals) = channel();
        Ok(Stepped { state, worker, listeners, door: Door { sender, mailbox }, arrivals, done: Vec::new() })
    }

    /// Lets clients in for as long as `patience`.
    pub fn greet(&mut self, patience: Duration) {
        for listener in &mut self.listeners {
            if let Ok(Some(arrival)) = accept_one(&self.state, &mut **listener, patience) {
                self.door.pass(arrival);
            }
        }
    }

    /// One round of its worker, without a wait; false when there was nothing to do.
    pub fn step(&mut self) -> bool {
        self.worker.round(&self.arrivals, &mut self.done, false)
    }
}

impl<S: System> std::fmt::Debug for Stepped<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stepped").finish_non_exhaustive()
    }
}
