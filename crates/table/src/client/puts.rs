//! Rows on their way to a table, some requests ahead of their replies.

use std::collections::VecDeque;
use std::ops::Range;

use overside_service::client::LinkError;

use super::link::Link;
use super::{ClientError, RowBatch};
use crate::arrow::EncodedRows;
use crate::wire::{Applied, FAILED_MAX, PutMode, Reply, Request};

/// Batches that are put one after another, without a pause between them: the server works on some
/// requests while the caller makes the next ones.
#[derive(Debug)]
pub struct Puts<'c> {
    link: &'c mut Link,
    table: u32,
    mode: PutMode,
    /// Requests without a reply, and which rows each has.
    waiting: VecDeque<(u32, Range<u64>)>,
    sent: u64,
    told: PutsApplied,
}

/// What became of the rows of all batches whose outcome the server told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutsApplied {
    /// Rows that were looked at.
    pub rows: u64,
    /// Of those, the ones that changed the table.
    pub applied: u64,
    /// Of those that did, the ones that replaced a row that was there.
    pub replaced: u64,
    /// The others, by their index among all rows put, with the reason; at most [`FAILED_MAX`] of
    /// them are named.
    pub failed: Vec<(u64, crate::wire::FaultCode)>,
}

impl<'c> Puts<'c> {
    pub(super) fn new(link: &'c mut Link, table: u32, mode: PutMode) -> Puts<'c> {
        Puts { link, table, mode, waiting: VecDeque::new(), sent: 0, told: PutsApplied::default() }
    }

    /// Sends a batch; it returns when the last of it is sent, with some replies still to come.
    ///
    /// # Errors
    /// When the connection fails, [`ClientError::Partly`] says how many rows were acknowledged.
    pub fn put(&mut self, batch: &RowBatch) -> Result<(), ClientError> {
        self.put_all(batch.len(), batch.requests())
    }

    /// The same of the rows of a record batch.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_encoded(&mut self, rows: &EncodedRows) -> Result<(), ClientError> {
        self.put_all(rows.len(), rows.requests())
    }

    fn put_all<'r>(
        &mut self,
        rows: usize,
        requests: impl Iterator<Item = (&'r [u8], Range<u64>)>,
    ) -> Result<(), ClientError> {
        let first = self.sent;
        self.sent += rows as u64;
        for (rows, range) in requests {
            if self.waiting.len() >= PUTS_AHEAD {
                self.settle_one()?;
            }
            let number = self.link.send(&Request::Put { table: self.table, mode: self.mode, rows });
            let number = number.map_err(|error| self.partly(error))?;
            self.waiting.push_back((number, first + range.start..first + range.end));
        }
        Ok(())
    }

    /// How many rows, from the first one on, are in requests that the server has answered.
    pub fn acknowledged(&self) -> u64 {
        self.waiting.front().map_or(self.sent, |(_, rows)| rows.start)
    }

    /// What is known by now.
    pub fn told(&self) -> &PutsApplied {
        &self.told
    }

    /// Waits for the replies that are still to come.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn settle(&mut self) -> Result<&PutsApplied, ClientError> {
        while !self.waiting.is_empty() {
            self.settle_one()?;
        }
        Ok(&self.told)
    }

    fn settle_one(&mut self) -> Result<(), ClientError> {
        let Some((number, range)) = self.waiting.pop_front() else { return Ok(()) };
        let error = match self.link.reply(number) {
            Ok(Reply::Applied(applied)) if is_of(&applied, range.end - range.start) => {
                self.add(applied, range.start);
                return Ok(());
            }
            Ok(other) => ClientError::unexpected(&other),
            Err(error) => error,
        };
        // Where one request was refused, the others have replies as well; else there are none to wait for.
        if !matches!(error, ClientError::Refused { .. }) {
            self.waiting.clear();
        }
        Err(self.partly(error))
    }

    fn add(&mut self, part: Applied, first: u64) {
        let told = &mut self.told;
        told.rows += u64::from(part.rows);
        told.applied += u64::from(part.applied);
        told.replaced += u64::from(part.replaced);
        let room = FAILED_MAX.saturating_sub(told.failed.len());
        told.failed.extend(part.failed.into_iter().take(room).map(|(at, code)| (first + u64::from(at), code)));
    }

    fn partly(&self, error: ClientError) -> ClientError {
        match error {
            ClientError::Link(LinkError::Disconnected { .. }) if self.told.rows > 0 => {
                ClientError::Partly { acknowledged: self.told.rows, rows: self.sent }
            }
            other => other,
        }
    }
}

impl Drop for Puts<'_> {
    /// The replies belong to nobody else: the connection's next request must not meet them.
    fn drop(&mut self) {
        while !self.waiting.is_empty() {
            let _ = self.settle_one();
        }
    }
}

impl From<PutsApplied> for Applied {
    /// Of one batch, which has no more rows than its indices can say.
    fn from(told: PutsApplied) -> Applied {
        Applied {
            rows: told.rows as u32,
            applied: told.applied as u32,
            replaced: told.replaced as u32,
            failed: told.failed.into_iter().map(|(at, code)| (at as u32, code)).collect(),
        }
    }
}

/// Whether a batch of so many rows can have had this outcome.
fn is_of(applied: &Applied, rows: u64) -> bool {
    let named = applied.failed.iter().all(|(at, _)| *at < applied.rows);
    u64::from(applied.rows) <= rows && applied.applied <= applied.rows && applied.replaced <= applied.applied && named
}

/// Requests that wait for their replies at once. A server that is done with them all has to wait
/// for the next rows to be read and encoded, which come by some thousands.
pub(super) const PUTS_AHEAD: usize = 12;
