//! The world's time as the clock of shipped code.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use overside_verbs::{Clock, VerbsError};

use crate::chance::Chance;
use crate::scheduler::{Scheduler, Wait};

/// Virtual time; a wait gives the turn to another thread.
pub(crate) struct WorldClock {
    scheduler: Arc<Scheduler>,
    chance: Mutex<Chance>,
}

impl WorldClock {
    pub(crate) fn new(scheduler: Arc<Scheduler>, chance: Chance) -> WorldClock {
        WorldClock { scheduler, chance: Mutex::new(chance) }
    }
}

impl Clock for WorldClock {
    fn now(&self) -> Instant {
        self.scheduler.look()
    }

    fn wait(&self, descriptors: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<(), VerbsError> {
        let owned = descriptors.iter().map(|fd| fd.try_clone_to_owned()).collect::<Result<_, _>>();
        let descriptors = owned.map_err(|e| VerbsError::System { what: "dup", reason: e.to_string() })?;
        let until = until.map(|until| self.scheduler.since_start(until));
        self.scheduler.wait(Wait { why: "waits", descriptors, until, end_of: None });
        Ok(())
    }

    fn fill(&self, bytes: &mut [u8]) -> Result<(), VerbsError> {
        self.chance.lock().unwrap_or_else(|e| e.into_inner()).fill(bytes);
        Ok(())
    }

    fn point(&self, what: &'static str) {
        self.scheduler.point(what, 0);
    }
}

impl fmt::Debug for WorldClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorldClock").field("passed", &self.scheduler.passed()).finish_non_exhaustive()
    }
}
