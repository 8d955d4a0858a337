//! A node that is away: connections are lost, tried again, and given up.

use std::time::Instant;

use overside_verbs::VerbsError;

use super::{Link, PAUSE_MAX};
use crate::device::DeviceError;

impl Link {
    /// The connection is of no use any more: another one is tried soon.
    pub(super) fn lost(&mut self) {
        let now = self.clock.now();
        if let Some(mut connection) = self.connection.take() {
            let _ = connection.watched_by(&self.watch, false);
            // Of what was granted the node has read nothing: over the next connection it is sent.
            self.copies = !connection.was_read() && self.pending.values().any(|pending| pending.region.is_some());
        }
        self.messages.clear();
        self.farewell = None;
        self.handle.lost();
        self.away_since.get_or_insert(now);
        self.next_try = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.ready.clear();
        (self.sent, self.sent_bytes) = (0, 0);
        self.pending.values_mut().for_each(|pending| (pending.sent, pending.region) = (None, None));
        self.own.values_mut().for_each(|own| own.sent = None);
    }

    /// Nothing more can be carried out.
    pub(super) fn end(&mut self, error: DeviceError) {
        self.lost();
        self.over = Some(error);
        self.own.clear();
        self.rewrites.clear();
        self.kept.clear();
        let numbers: Vec<u64> = self.pending.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.ended(number, Err(error)));
    }

    /// What time has come for.
    pub(super) fn look_at_the_clock(&mut self) {
        if self.over.is_some() {
            return;
        }
        let now = self.clock.now();
        if self.given_up().is_some_and(|when| now >= when) {
            match &self.options.spare {
                _ if !self.options.returns => return self.end(DeviceError::Unreachable),
                Some(spare) if !spare.let_go() => self.ask_again = Some(now + PAUSE_MAX),
                _ => self.give_up(),
            }
        }
        let is_time = self.connection.is_none() && now >= self.next_try;
        let dialled = if is_time { self.dial() } else { Ok(()) };
        // What a try that has come through is told says whether it is refused.
        let refused = dialled.as_ref().err().map(|error| matches!(error, VerbsError::Key(_)));
        let is_late = self.too_late().is_some_and(|when| now >= when);
        if refused.is_some() || is_late {
            self.lost();
            self.tried(refused.unwrap_or(false));
        }
    }

    /// Requests end, and the session stays. What is kept, and written again, is the node's once it
    /// is back.
    fn give_up(&mut self) {
        self.gave_up = true;
        let numbers: Vec<u64> = self.pending.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.ended(number, Err(DeviceError::Unreachable)));
        self.ready.clear();
    }

    /// When requests end that wait for a node that is away.
    pub(super) fn given_up(&self) -> Option<Instant> {
        if self.gave_up {
            return None;
        }
        let first = self.options.give_up.and_then(|give_up| Some(self.away_since? + give_up));
        self.ask_again.or(first)
    }

    /// When an answer is overdue.
    pub(super) fn too_late(&self) -> Option<Instant> {
        let connection = self.connection.as_ref()?;
        if !connection.welcomed {
            return Some(connection.since + self.options.deadline);
        }
        let own = self.own.values().filter_map(|own| own.sent);
        let oldest = self.pending.values().filter_map(|pending| pending.sent).chain(own).min();
        oldest.map(|sent| sent + self.options.deadline)
    }
}
