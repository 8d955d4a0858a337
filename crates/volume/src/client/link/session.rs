//! The session: a connection is greeted, let in, and left.

use overside_verbs::VerbsError;

use super::super::connection::Connection;
use super::super::registered::Registered;
use super::error::LinkError;
use super::{Link, PAUSE_MIN};
use crate::device::{Geometry, SECTOR_BYTES};
use crate::files::PIECE_BYTES;
use crate::mutant::mutant;
use crate::wire::{FILES, GRANTS, HEADER, Hello, KEEPS, Operation, Proof, Role, Status, Welcome};

impl Link {
    /// Tells the node that nothing more comes, once that is so and wanted.
    pub(super) fn leave(&mut self) {
        let is_busy = !self.pending.is_empty() || !self.own.is_empty() || self.is_rewriting();
        if !self.handle.leaves() || is_busy || self.handle.has_left() {
            return;
        }
        let away = self.connection.as_ref().is_none_or(|connection| !connection.welcomed);
        if self.over.is_some() || (away && self.session == 0) {
            return self.handle.left();
        }
        if self.farewell.is_some() || away {
            return;
        }
        let number = self.next;
        self.next += 1;
        let header = self.request(number, Operation::Goodbye, 0, 0).bytes();
        let Some(connection) = &mut self.connection else { return };
        connection.send(&header);
        self.farewell = Some(number);
        if connection.post().is_err() {
            self.lost();
        }
    }

    /// Connects, and greets the node with a new generation.
    pub(super) fn dial(&mut self) -> Result<(), VerbsError> {
        let length = (HEADER + self.options.request_bytes_max as usize, self.options.receives.max(1));
        let prices = || self.options.prices.clone().unwrap_or_else(|| self.provider.profile());
        let registration = self.options.registration.filter(|_| self.options.role != Role::Reader && !self.copies);
        let counts = || self.handle.clone();
        let registered = registration.and_then(|options| Registered::new(&self.provider, options, &prices(), counts()));
        let mut connection =
            Connection::open(&self.provider, &self.address, self.options.patience, length, registered)?;
        self.generation = self.generation.wrapping_add(1);
        connection.watched_by(&self.watch, true)?;
        connection.send(&self.hello().bytes());
        connection.post()?;
        self.connection = Some(connection);
        Ok(())
    }

    fn hello(&self) -> Hello {
        Hello {
            number: 0,
            name: self.volume.clone(),
            role: self.options.role,
            session: self.session,
            incarnation: self.incarnation,
            generation: self.generation,
            buffer_bytes: (HEADER + self.options.request_bytes_max as usize) as u32,
            features: if self.options.files { FILES | GRANTS } else { crate::wire::FEATURES },
            process: self.options.process,
            group: self.options.group,
        }
    }

    /// The node's answer to the greeting, if it is there. Where it asks for a proof it gets one,
    /// and answers again.
    pub(super) fn greeted(&mut self) -> Result<Option<Welcome>, LinkError> {
        let Some(connection) = &mut self.connection else { return Err(VerbsError::Closed.into()) };
        connection.post()?;
        let lives = connection.receive(&mut self.messages);
        let Some(message) = self.messages.pop() else {
            return if lives { Ok(None) } else { Err(VerbsError::Closed.into()) };
        };
        let parsed = message.header().and_then(|header| Welcome::parse(&header).ok());
        let parsed = parsed.filter(|_| message.payload() == 0 && self.messages.is_empty());
        connection.put(message.into_buffer());
        let welcome = parsed.ok_or(LinkError::Malformed)?;
        let (Status::Prove, Some(key)) = (welcome.status, &self.options.key) else { return Ok(Some(welcome)) };
        let proof = Proof::new(key, &self.hello(), &welcome).bytes();
        if let Some(connection) = &mut self.connection {
            connection.send(&proof);
            connection.post()?;
        }
        Ok(None)
    }

    /// The node lets this side in: what is unanswered is asked again.
    pub(super) fn welcome(&mut self, welcome: Welcome) -> Result<(), LinkError> {
        if welcome.status != Status::Done {
            return Err(LinkError::Refused(welcome.status));
        }
        let unit_bytes = u64::from(welcome.unit_bytes);
        let geometry = Geometry { bytes: welcome.bytes, unit_bytes, read_only: welcome.read_only };
        let max = welcome.request_bytes_max.min(self.options.request_bytes_max);
        let files = self.options.files;
        let (unit_min, max_min) = if files { (1, PIECE_BYTES) } else { (SECTOR_BYTES, unit_bytes) };
        let sane = unit_bytes.is_power_of_two() && unit_bytes >= unit_min && u64::from(max) >= max_min;
        let sane = sane && files == (welcome.features & FILES != 0) && (!files || unit_bytes == 1);
        // Of files each piece is as long as every node takes.
        let shorter = !files && max < self.request_bytes_max;
        let other = self.session != 0 && (geometry != self.geometry || shorter);
        if !sane || welcome.requests_max == 0 || welcome.generation != self.generation || other {
            return Err(LinkError::Malformed);
        }
        self.handle.welcomed();
        self.geometry = geometry;
        self.request_bytes_max = max;
        self.requests_max = usize::from(welcome.requests_max).min(self.options.receives);
        if welcome.incarnation != self.incarnation {
            // The power may have gone between the two lives.
            self.own.clear();
            let lost = !mutant("volume-lost-writes-not-written-again");
            self.rewrites = self.kept.places().filter(|_| lost).collect();
            self.number_rewrites();
        }
        self.keeps = welcome.features & KEEPS != 0;
        (self.session, self.incarnation) = (welcome.session, welcome.incarnation);
        if let Some(connection) = &mut self.connection {
            connection.welcomed = true;
            if welcome.features & GRANTS == 0 {
                connection.grants_nothing();
            }
        }
        self.is_back();
        self.ready = self.pending.iter().filter(|(_, pending)| pending.admitted).map(|(number, _)| *number).collect();
        (self.sent, self.sent_bytes) = (0, 0);
        Ok(())
    }

    /// The node is there, and has all that it had acknowledged.
    pub(super) fn is_back(&mut self) {
        if !self.is_rewriting() {
            (self.away_since, self.pause, self.ask_again) = (None, PAUSE_MIN, None);
            if std::mem::take(&mut self.gave_up)
                && let Some(spare) = &self.options.spare
            {
                spare.is_back();
            }
        }
    }
}
