//! A server without threads, for counting what it does.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use overside_verbs::{Listener, Provider, VerbsError, WorkCompletion};

use super::house::{Admitted, House};
use super::worker::{Waker, Worker};
use super::{Front, ServerOptions, prepare};

/// A server that does something when it is told to, on the thread that tells it.
pub struct Stepped {
    house: Arc<House>,
    worker: Worker,
    listeners: Vec<Box<dyn Listener>>,
    door: Sender<Admitted>,
    links: Receiver<Admitted>,
    done: Vec<WorkCompletion>,
}

impl Stepped {
    /// Listens at `name`.
    ///
    /// # Errors
    /// As [`Server::start`](super::Server::start).
    pub fn start(provider: Arc<dyn Provider>, name: &str, options: &ServerOptions) -> Result<Stepped, VerbsError> {
        let front = Front { provider, names: vec![name.to_owned()], profile: None };
        let (house, mut grounds) = prepare(vec![front], options)?;
        let (shared, listeners) = grounds.pop().ok_or(VerbsError::Closed)?;
        let worker = Worker::new(shared, Waker::new()?)?;
        let (door, links) = channel();
        Ok(Stepped { house, worker, listeners, door, links, done: Vec::new() })
    }

    /// Lets in who knocks, for as long as `patience`.
    pub fn greet(&mut self, patience: Duration) {
        for listener in &mut self.listeners {
            if let Ok(Some(link)) = listener.accept(patience)
                && let Some(place) = self.house.admit()
            {
                let _ = self.door.send(Admitted { link, place });
            }
        }
    }

    /// One round of its worker, without a wait; false when there was nothing to do.
    pub fn step(&mut self) -> bool {
        self.worker.round(&self.links, &mut self.done, false)
    }
}

impl std::fmt::Debug for Stepped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stepped").finish_non_exhaustive()
    }
}
