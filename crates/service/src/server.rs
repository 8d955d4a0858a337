//! A running server: its threads, and their end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};

use overside_verbs::{SystemClock, VerbsError};

use crate::accept::{Door, Listening, accept};
use crate::dial::Dialer;
use crate::options::ServiceOptions;
use crate::state::{State, Statistics};
use crate::system::System;
use crate::threads::Running;
use crate::ticket::Mailbox;
use crate::worker::{Arrival, Worker, WorkerConfig};

/// A running server. Dropping it shuts it down.
pub struct Server<S: System> {
    state: Arc<State>,
    threads: Vec<Running>,
    /// By provider: its workers' doors.
    dialers: Vec<Dialer<S>>,
}

impl<S: System> std::fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("statistics", &self.state.statistics()).finish_non_exhaustive()
    }
}

impl<S: System> Server<S> {
    /// Serves in the background: each provider with workers of its own, and with the system that
    /// its connections see. Time comes from the first provider's clock.
    ///
    /// # Errors
    /// When the system has no room for another thread, or for a worker's memory.
    pub fn start(served: Vec<(Listening, Arc<S>)>, options: ServiceOptions) -> Result<Server<S>, VerbsError> {
        let clock = served.first().map_or_else(SystemClock::handle, |(first, _)| first.provider.clock());
        let state = Arc::new(State::new(&options, clock));
        let options = Arc::new(options);
        let mut server = Server { state, threads: Vec::new(), dialers: Vec::new() };
        for (listening, system) in served {
            server.open(listening, system, &options)?;
        }
        Ok(server)
    }

    /// Starts a provider's threads.
    fn open(&mut self, listening: Listening, system: Arc<S>, options: &Arc<ServiceOptions>) -> Result<(), VerbsError> {
        let Listening { provider, domain, listeners } = listening;
        let config = Arc::new(WorkerConfig { system, provider, domain, options: options.clone() });
        let mut doors = Vec::new();
        for index in 0..options.workers.max(1) {
            let (sender, arrivals) = channel();
            let mailbox = Mailbox::new(&self.state)?;
            options.watermarks.iter().for_each(|marks| marks.enlist(&mailbox));
            let worker = Worker::new(&config, mailbox.clone())?;
            doors.push(Door { sender, mailbox: mailbox.clone() });
            let (config, name) = (config.clone(), format!("worker-{index}"));
            let run = {
                let name = name.clone();
                move || serve(&config, &name, worker, &mailbox, &arrivals)
            };
            self.threads.push(options.threads.start(&name, Box::new(run))?);
        }
        for (index, listener) in listeners.into_iter().enumerate() {
            let (state, doors, name) = (self.state.clone(), doors.clone(), format!("accept-{index}"));
            let run = {
                let name = name.clone();
                move || accept(&state, &name, listener, &doors)
            };
            self.threads.push(options.threads.start(&name, Box::new(run))?);
        }
        self.dialers.push(Dialer::new(config, doors));
        Ok(())
    }

    /// Opens connections that the workers of a provider serve, by its place in
    /// [`start`](Self::start); none where there is no such provider.
    pub fn dialer(&self, provider: usize) -> Option<Dialer<S>> {
        self.dialers.get(provider).cloned()
    }

    /// How it does.
    pub fn statistics(&self) -> Statistics {
        self.state.statistics()
    }

    /// Stops accepting, and closes every connection.
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        self.dialers.iter().for_each(Dialer::signal);
        self.threads.drain(..).for_each(Running::join);
    }
}

impl<S: System> Drop for Server<S> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A worker's thread. A panic costs the worker's clients their connections and no other client
/// anything: the worker begins anew.
fn serve<S: System>(
    config: &WorkerConfig<S>,
    name: &str,
    mut worker: Worker<S>,
    mailbox: &Arc<Mailbox>,
    arrivals: &Receiver<Arrival<S::Session>>,
) {
    let state = &mailbox.state;
    let meant = "its clients are disconnected, and it serves on";
    while !state.survives(name, meant, || worker.run(arrivals)) {
        if !config.system.outlives_a_panic() {
            mailbox.close();
            return state.fail(&format!(
                "a bug ended the thread {name} in the middle of a change; start the server again, and please report it"
            ));
        }
        worker = match Worker::new(config, mailbox.clone()) {
            Ok(again) => again,
            Err(error) => {
                mailbox.close();
                return state.fail(&format!("the thread {name} cannot begin again: {error}; start the server again"));
            }
        };
    }
}
