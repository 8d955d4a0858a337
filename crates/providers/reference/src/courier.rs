//! Who brings what is under way to its end, when its time has come.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Weak};

use overside_verbs::watch::Signal;
use overside_verbs::{Clock, VerbsError};

use crate::fabric::Fabric;
use crate::lock;

/// Carries out requests that take time to arrive. Nobody else wakes the port that sleeps until
/// then.
#[derive(Debug)]
pub struct Courier {
    fabric: Weak<Mutex<Fabric>>,
    clock: Arc<dyn Clock>,
    wake: Arc<Signal>,
}

impl Courier {
    pub(crate) fn new(fabric: &Arc<Mutex<Fabric>>, clock: Arc<dyn Clock>) -> Result<Courier, VerbsError> {
        let wake = Arc::new(Signal::new()?);
        lock(fabric).under_way = Some(wake.clone());
        Ok(Courier { fabric: Arc::downgrade(fabric), clock, wake })
    }

    /// Carries until the world and its providers are gone, or the system refuses to wait.
    pub fn run(&self) {
        loop {
            self.wake.drain();
            let Some(fabric) = self.fabric.upgrade() else { return };
            let next = lock(&fabric).carry();
            drop(fabric);
            if self.clock.wait(&[self.wake.as_fd()], next).is_err() {
                return;
            }
        }
    }
}
