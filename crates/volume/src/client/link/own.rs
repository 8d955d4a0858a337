//! The link's own requests: what a node may have lost is written again, and flushed at a bound.

use std::time::Instant;

use super::super::kept::What;
use super::{Link, NUMBERS_MAX, Own, OwnWork, Pending};
use crate::device::{DeviceError, Work};
use crate::wire::Operation;

impl Link {
    /// The node may lack what it had acknowledged.
    pub(super) fn is_rewriting(&self) -> bool {
        let rewrites = |own: &Own| matches!(own.work, OwnWork::Rewrite { .. });
        !self.rewrites.is_empty() || self.own.values().any(rewrites)
    }

    /// What is written again to a node's new life has the numbers before those of requests, of
    /// which none was sent to it. Else it would run ahead of the lowest that is unanswered,
    /// further than the node remembers. Within a life a number stays what it is: the node knows
    /// by it what is carried out.
    pub(super) fn number_rewrites(&mut self) {
        if self.rewrites.is_empty() {
            return;
        }
        let first = self.first_pending();
        self.next_rewrite = self.next;
        let by = self.next + self.rewrites.len() as u64 - first;
        let pending = std::mem::take(&mut self.pending);
        self.pending = pending.into_iter().map(|(number, pending)| (number + by, pending)).collect();
        self.overlaps.renumber(by);
        self.next += by;
    }

    /// Sends what is the link's own: whether requests may follow.
    pub(super) fn send_own(&mut self, now: Instant) -> bool {
        if self.connection.as_ref().is_none_or(|connection| !connection.welcomed) {
            return false;
        }
        let flushes = |own: &Own| matches!(own.work, OwnWork::Flush { .. });
        let is_full = self.kept.bytes() >= self.options.kept_bytes_max / 2 && self.own_flush.is_ok();
        if self.keeps && is_full && !self.is_rewriting() && !self.own.values().any(flushes) {
            self.begin_own(OwnWork::Flush { covers: self.kept.mark() });
        }
        let unsent = |(number, own): (&u64, &Own)| own.sent.is_none().then_some(*number);
        while self.sent < self.requests_max {
            let number = match self.own.iter().find_map(unsent) {
                Some(number) => number,
                None if self.next_rewrite.saturating_sub(self.lowest()) >= NUMBERS_MAX => break,
                None => match self.rewrites.pop_front() {
                    Some(at) => self.begin_own(OwnWork::Rewrite { at }),
                    None => break,
                },
            };
            if !self.send_one(number, now) {
                break;
            }
        }
        !self.is_rewriting()
    }

    fn begin_own(&mut self, work: OwnWork) -> u64 {
        let next = if let OwnWork::Rewrite { .. } = work { &mut self.next_rewrite } else { &mut self.next };
        let number = *next;
        *next += 1;
        self.own.insert(number, Own { work, sent: None });
        number
    }

    /// Sends one of the link's own requests; false where there is no room for it yet.
    fn send_one(&mut self, number: u64, now: Instant) -> bool {
        let Some(work) = self.own.get(&number).map(|own| own.work) else { return true };
        let (operation, at, what) = match work {
            OwnWork::Flush { .. } => (Operation::Flush, 0, None),
            OwnWork::Rewrite { at } => match self.kept.piece(at) {
                Some(what @ What::Bytes(_)) => (Operation::Write { fua: false }, at, Some(what)),
                Some(what @ What::Zero(_)) => (Operation::Zero, at, Some(what)),
                Some(what @ What::Discard(_)) => (Operation::Discard, at, Some(what)),
                // Nothing is asked for before all is written again, so it is there.
                None => {
                    self.own.remove(&number);
                    return true;
                }
            },
        };
        let (length, bytes) = (what.map_or(0, What::length), what.map_or(0, What::payload));
        if self.sent_bytes + bytes > self.bytes_max() {
            return false;
        }
        let header = self.request(number, operation, at, length).bytes();
        let Some(connection) = &mut self.connection else { return false };
        match what {
            Some(What::Bytes(bytes)) if !connection.send_with(&header, bytes) => return false,
            Some(What::Bytes(_)) => {}
            _ => connection.send(&header),
        }
        if let Some(own) = self.own.get_mut(&number) {
            own.sent = Some(now);
        }
        self.sent += 1;
        self.sent_bytes += bytes;
        true
    }

    /// One of the link's own requests has ended. False: it is asked again over another connection.
    pub(super) fn own_ended(&mut self, number: u64, result: Result<(), DeviceError>) -> bool {
        let Some(Own { work, .. }) = self.own.remove(&number) else { return false };
        self.sent -= 1;
        match (work, result) {
            (_, Err(DeviceError::Fenced)) => self.end(DeviceError::Fenced),
            (OwnWork::Flush { covers }, Ok(())) => self.kept.flushed(covers),
            (OwnWork::Flush { .. }, Err(error)) => self.own_flush = Err(error),
            (OwnWork::Rewrite { at }, _) => {
                let what = self.kept.piece(at);
                let (length, bytes) = (what.map_or(0, What::length), what.map_or(0, What::payload));
                self.sent_bytes -= bytes;
                if result.is_err() {
                    // I/O waits until the node has it.
                    self.rewrites.push_back(at);
                    return false;
                }
                self.handle.rewrote();
                if !self.keeps {
                    self.kept.forget(at, length);
                }
                self.is_back();
            }
        }
        true
    }

    /// What a node has acknowledged is kept until it is on stable storage.
    pub(super) fn keep(&mut self, pending: &Pending) {
        let keeps = self.keeps;
        match &pending.work {
            Work::Write { at, from, fua } if *fua || !keeps => self.kept.forget(*at, from.len() as u64),
            Work::Write { at, from, .. } => self.kept.remember(*at, What::Bytes(from.to_vec())),
            Work::Zero { at, length } | Work::Discard { at, length } if !keeps => self.kept.forget(*at, *length),
            Work::Zero { at, length } => self.kept.remember(*at, What::Zero(*length)),
            Work::Discard { at, length } => self.kept.remember(*at, What::Discard(*length)),
            Work::Flush => {
                self.own_flush = Ok(());
                self.kept.flushed(pending.covers.unwrap_or(0));
            }
            Work::Read { .. } | Work::Hint { .. } | Work::Check { .. } => {}
        }
    }
}
