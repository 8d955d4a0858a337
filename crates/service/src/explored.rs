//! A worker without connections, for tests that explore how it and a log hand over to each other.

use std::sync::Arc;

use overside_verbs::spin::Spin;
use overside_verbs::{Clock, VerbsError};

use crate::carry::{Carry, Watch};
use crate::hold::{Hold, Watermarks};
use crate::options::ServiceOptions;
use crate::state::State;
use crate::ticket::Mailbox;

/// What of a worker looks at marks, carries a log on, and waits.
#[derive(Debug)]
pub struct Watcher {
    mailbox: Arc<Mailbox>,
    watch: Watch,
    clock: Arc<dyn Clock>,
}

impl Watcher {
    /// As a worker that starts.
    ///
    /// # Errors
    /// When the system has no descriptor for it.
    pub fn new(marks: &Arc<Watermarks>, clock: Arc<dyn Clock>) -> Result<Watcher, VerbsError> {
        let state = State::new(&ServiceOptions::default(), clock.clone());
        let mailbox = Mailbox::new(&Arc::new(state))?;
        marks.enlist(&mailbox);
        let watch = Watch::new(Some(marks.clone()), &mailbox, Spin::new(std::time::Duration::ZERO))?;
        Ok(Watcher { mailbox, watch, clock })
    }

    /// A worker's round up to its wait: the marks, if it `holds` something and they have risen.
    pub fn round(&mut self, holds: bool) -> Option<Hold> {
        self.mailbox.look();
        self.watch.go_on(holds);
        if holds { self.watch.look() } else { None }
    }

    /// It holds nothing any more.
    pub fn holds_nothing(&self) {
        self.watch.holds_nothing();
    }

    /// A worker's wait, for ever.
    pub fn wait(&self) {
        let fd = match &self.watch.carry {
            Some(carry) if carry.attends() => carry.fd(),
            _ => self.mailbox.fd(),
        };
        let _ = self.clock.wait(&[fd], None);
        self.mailbox.drain();
    }

    /// Whether it goes on when the log can.
    pub fn attends(&self) -> bool {
        self.watch.carry.as_ref().is_some_and(Carry::attends)
    }
}
