//! The way of a request: taken, sent, answered, ended.

use std::time::Instant;

use super::super::connection::Message;
use super::error::LinkError;
use super::{Link, Pending};
use crate::device::{Completion, DeviceError, Request, Work};
use crate::mutant::mutant;
use crate::wire::{Operation, Reply, RequestHeader, Status};

impl Link {
    pub(super) fn take(&mut self, request: Request) {
        let over = self.over.or(self.gave_up.then_some(DeviceError::Unreachable));
        let refused = over.map_or(Ok(()), Err).and(self.geometry.check(&request.work));
        let too_long = |work: &Work| {
            let length = work.range().map_or(0, |(_, length)| length);
            length > u64::from(self.request_bytes_max)
        };
        let refused = refused.and(if too_long(&request.work) { Err(DeviceError::Invalid) } else { Ok(()) });
        if refused.is_err() {
            return self.done.push(request.ended(refused));
        }
        let number = self.next;
        self.next += 1;
        let (range, writes) = (request.work.range(), request.work.writes());
        let admitted = range.is_none_or(|(at, length)| {
            mutant("volume-overlap-rule-off") || self.overlaps.enter(number, at, length, writes)
        });
        if admitted {
            self.ready.push_back(number);
        }
        self.pending.insert(
            number,
            Pending { tag: request.tag, work: request.work, admitted, sent: None, region: None, covers: None },
        );
    }

    /// Sends what may be sent.
    pub(super) fn send(&mut self) {
        let now = self.clock.now();
        if self.send_own(now) {
            self.send_ready(now);
        }
        if self.connection.as_mut().is_some_and(|connection| connection.post().is_err()) {
            self.lost();
        }
    }

    /// Bytes of requests that may be under way.
    pub(super) fn bytes_max(&self) -> u64 {
        self.requests_max as u64 * u64::from(self.request_bytes_max)
    }

    fn send_ready(&mut self, now: Instant) {
        let (bytes_max, lba_bytes) = (self.bytes_max(), self.lba_bytes());
        while let Some(number) = self.ready.front().copied() {
            let lowest = self.lowest();
            let Some(connection) = self.connection.as_mut().filter(|connection| connection.welcomed) else { return };
            let Some(pending) = self.pending.get_mut(&number) else {
                self.ready.pop_front();
                continue;
            };
            let bytes = pending.bytes();
            if self.sent >= self.requests_max || self.sent_bytes + bytes > bytes_max {
                break;
            }
            if pending.work.writes() && self.kept.bytes() >= self.options.kept_bytes_max {
                // Its own FLUSH makes room.
                match std::mem::replace(&mut self.own_flush, Ok(())) {
                    Ok(()) => break,
                    Err(error) => {
                        self.ready.pop_front();
                        self.ended(number, Err(error));
                        continue;
                    }
                }
            }
            if matches!(pending.work, Work::Flush) {
                pending.covers.get_or_insert(self.kept.mark());
            }
            let (at, length) = pending.work.range().unwrap_or_default();
            let operation = match &pending.work {
                Work::Read { .. } => Operation::Read,
                Work::Write { fua, .. } => Operation::Write { fua: *fua },
                Work::Flush => Operation::Flush,
                Work::Discard { .. } => Operation::Discard,
                Work::Zero { .. } => Operation::Zero,
                Work::Hint { hint, .. } => Operation::Hint(*hint),
                Work::Check { mend, .. } => Operation::Check { mend: *mend },
            };
            let request = RequestHeader {
                operation,
                session: self.session,
                generation: self.generation,
                number,
                lowest,
                lba: at / lba_bytes,
                length: length as u32,
            };
            match &pending.work {
                Work::Write { from, .. } => {
                    pending.region = connection.grant(&request, from);
                    match pending.region {
                        Some(_) => self.handle.grants(),
                        None if connection.send_with(&request.bytes(), from) => {}
                        None => break,
                    }
                }
                _ => connection.send(&request.bytes()),
            }
            pending.sent = Some(now);
            self.sent += 1;
            self.sent_bytes += bytes;
            self.ready.pop_front();
        }
    }

    /// Takes what the node says.
    pub(super) fn receive(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        if !connection.welcomed {
            let welcomed = match self.greeted() {
                Ok(Some(welcome)) => self.welcome(welcome),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            return match welcomed {
                Ok(()) => self.tried(false),
                Err(LinkError::Refused(Status::Device(error))) => self.end(error),
                Err(error) => {
                    self.lost();
                    self.tried(match error {
                        LinkError::Verbs(_) => false,
                        // It may be starting, or another writer may go. That may be this session, which left when it heard
                        // of another length.
                        LinkError::Refused(Status::Busy | Status::Full) => self.refused_since.is_some(),
                        _ => true,
                    });
                }
            };
        }
        let mut messages = std::mem::take(&mut self.messages);
        let mut lives = connection.receive(&mut messages);
        for message in messages.drain(..) {
            lives &= self.answered(&message);
            if let Some(connection) = &mut self.connection {
                connection.put(message.into_buffer());
            }
        }
        self.messages = messages;
        if !lives {
            self.lost();
        }
    }

    /// An answer. False: it is none that a node gives.
    fn answered(&mut self, message: &Message) -> bool {
        let Some(reply) = message.header().and_then(|header| Reply::of(&header, message.payload()).ok()) else {
            return false;
        };
        if self.farewell == Some(reply.number) {
            self.handle.left();
            return true;
        }
        if (reply.session, reply.generation) != (self.session, self.generation) {
            return false;
        }
        let result = match reply.status {
            Status::Done => Ok(()),
            Status::Device(error) => Err(error),
            _ => return false,
        };
        if self.own.get(&reply.number).is_some_and(|own| own.sent.is_some()) {
            return reply.length == 0 && self.own_ended(reply.number, result);
        }
        let Some(pending) = self.pending.get_mut(&reply.number).filter(|pending| pending.sent.is_some()) else {
            return false;
        };
        if reply.wrong != 0 && !matches!(pending.work, Work::Check { .. }) {
            return false;
        }
        let expected = match (&mut pending.work, result) {
            (Work::Read { length, into, .. }, Ok(())) => {
                if u64::from(reply.length) != *length as u64 || !message.copy(&mut into[..*length]) {
                    return false;
                }
                reply.length
            }
            (Work::Check { wrong, .. }, _) => {
                *wrong = reply.wrong;
                0
            }
            _ => 0,
        };
        if reply.length != expected {
            return false;
        }
        self.ended(reply.number, result);
        true
    }

    pub(super) fn ended(&mut self, number: u64, result: Result<(), DeviceError>) {
        let Some(pending) = self.pending.remove(&number) else { return };
        if result.is_ok() {
            self.keep(&pending);
        }
        if let (Some(region), Some(connection)) = (pending.region, &mut self.connection) {
            connection.written(region);
        }
        if pending.sent.is_some() {
            self.sent -= 1;
            self.sent_bytes -= pending.bytes();
        }
        if pending.work.range().is_some() {
            self.overlaps.leave(number, &mut self.admitted);
            for admitted in self.admitted.drain(..) {
                if let Some(pending) = self.pending.get_mut(&admitted) {
                    pending.admitted = true;
                    self.ready.push_back(admitted);
                }
            }
        }
        self.done.push(Completion { tag: pending.tag, work: pending.work, result });
    }
}
