//! A server without threads, for counting what it does; and what a server runs in, for simulations.

use std::sync::Arc;
use std::time::Duration;

use overside_bwtree::Waits;
use overside_service::{SystemThreads, Threads};
use overside_verbs::{Provider, VerbsError};

use super::session::Tables;
use super::{ListenerConfig, ServerOptions, prepare};

/// What a server runs in, apart from its providers' clock: the operating system, or a simulation.
#[derive(Clone, Debug)]
pub struct World {
    /// Starts the server's threads.
    pub threads: Arc<dyn Threads>,
    /// How its trees wait; the system's way where it is none.
    pub waits: Option<&'static dyn Waits>,
    /// Bytes of a tree's page; a tree's own default where it is none.
    pub page_bytes: Option<usize>,
}

impl Default for World {
    fn default() -> Self {
        Self { threads: Arc::new(SystemThreads), waits: None, page_bytes: None }
    }
}

/// A server that does something when it is told to, on the thread that tells it.
#[derive(Debug)]
pub struct Stepped(overside_service::Stepped<Tables>);

impl Stepped {
    /// Listens at `name`.
    ///
    /// # Errors
    /// As [`Server::start`](super::Server::start).
    pub fn start(provider: Arc<dyn Provider>, name: &str, options: &ServerOptions) -> Result<Stepped, VerbsError> {
        let listener = ListenerConfig { provider, names: vec![name.to_owned()], profile: None };
        let (_, mut served) = prepare(vec![listener], options)?;
        let (listening, tables) = served.pop().ok_or(VerbsError::Closed)?;
        Ok(Stepped(overside_service::Stepped::start(listening, tables, options.service())?))
    }

    /// Lets clients in for as long as `patience`.
    pub fn greet(&mut self, patience: Duration) {
        self.0.greet(patience);
    }

    /// One round of its worker, without a wait; false when there was nothing to do.
    pub fn step(&mut self) -> bool {
        self.0.step()
    }
}
