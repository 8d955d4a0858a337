//! A request's changes, from the claim of room in the log to the append of their records.

use std::sync::atomic::Ordering;

use overside_bwtree::{ChangeOutcome, Error, Put, Tree, Writing};
use overside_disk::mutant;
use overside_log::{self as log, Claim, Record, Records, Room};
use overside_service::Hold;

use super::{Denied, Journal};
use crate::wire::Durability;

/// What a request changes. Room in the log is claimed before the first change; [`done`](Self::done)
/// appends the records of all that was changed. Without a log it costs nothing.
#[derive(Debug)]
pub(crate) struct Change<'j>(Option<Open<'j>>);

/// A change that will be in the log.
#[derive(Debug)]
struct Open<'j> {
    journal: &'j Journal,
    /// Dropped after the records are appended.
    writing: Option<Unlogged<'j>>,
    room: Option<Room>,
    records: Records,
    /// Where the log had the records when they were appended.
    position: u64,
    /// The newest stamp of what refused something.
    shown: u64,
}

/// What may be in a tree and is not in the log yet.
#[derive(Debug)]
struct Unlogged<'j> {
    journal: &'j Journal,
    writing: Writing<'j>,
}

impl<'j> Change<'j> {
    /// For up to `count` records of rows or keys of up to `bytes` bytes in all.
    ///
    /// # Errors
    /// There is no room in the log; nothing was changed.
    pub(crate) fn begin(
        journal: Option<&'j Journal>,
        claim: Claim,
        count: usize,
        bytes: usize,
    ) -> Result<Change<'j>, Denied> {
        let Some(journal) = journal else { return Ok(Change(None)) };
        let room = match journal.options.durability {
            Durability::None => None,
            _ => Some(journal.claim(count * Records::bytes_of(0, 0) + bytes, claim)?),
        };
        let writing = Some(Unlogged { journal, writing: journal.stamps.begin() });
        Ok(Change(Some(Open { journal, writing, room, records: Records::default(), position: 0, shown: 0 })))
    }

    /// Puts rows, as [`Tree::put_many`] does; with each row's stamp, where there is a log.
    pub(crate) fn put_many(
        &self,
        tree: &Tree,
        put: Put,
        rows: &[(&[u8], &[u8])],
        refused_max: usize,
    ) -> (Vec<Result<bool, Error>>, Vec<u64>) {
        match self.writing() {
            Some(writing) => tree.within(writing).put_many(put, rows, refused_max),
            None => (tree.put_many(put, rows, refused_max), Vec::new()),
        }
    }

    /// Puts one row, whatever was there.
    pub(crate) fn put_one(&self, tree: &Tree, key: &[u8], value: &[u8]) -> Result<(), Error> {
        match self.writing() {
            Some(writing) => tree.within(writing).put(Put::Upsert, key, value).map(|_| ()),
            None => tree.upsert(key, value).map(|_| ()),
        }
    }

    /// Whether its changes bear stamps.
    pub(crate) fn bears_stamps(&self) -> bool {
        self.writing().is_some()
    }

    /// A place where a simulation may let others go on.
    pub(crate) fn point(&self, name: &'static str) {
        if let Some(open) = &self.0 {
            open.journal.clock.point(name);
        }
    }

    /// Deletes a key without waiting for memory; whether it was there, and the stamp.
    pub(crate) fn delete_now(&self, tree: &Tree, key: &[u8]) -> Result<(bool, u64), Error> {
        let Some(writing) = self.writing() else { return Ok((tree.delete_now(key)?, 0)) };
        let outcome = tree.within(writing).delete_now(key)?;
        Ok((matches!(outcome, ChangeOutcome::Done { .. }), outcome.stamp()))
    }

    /// A stamp for a change that is none of a tree.
    pub(crate) fn draw(&self) -> u64 {
        self.writing().map_or(0, Writing::draw)
    }

    /// What was changed, for the log.
    #[inline]
    pub(crate) fn record(&mut self, stamp: u64, table: u32, change: log::Change<'_>) {
        if let Some(open) = &mut self.0
            && open.room.is_some()
        {
            open.records.push(Record { stamp, table, change });
        }
    }

    /// Something was refused by what a change of this stamp, or an older one, left there.
    #[inline]
    pub(crate) fn refused(&mut self, stamp: u64) {
        if let Some(open) = &mut self.0 {
            open.shown = open.shown.max(stamp);
        }
    }

    /// Appends the records under the caller's lock, which gives them their place in the log.
    pub(crate) fn append(&mut self) {
        if let Some(open) = &mut self.0 {
            open.append();
        }
    }

    /// Appends the records, unless they were; what the reply waits for.
    pub(crate) fn done(mut self) -> Hold {
        self.0.as_mut().map_or(Hold::NONE, Open::end)
    }

    fn writing(&self) -> Option<&Writing<'j>> {
        self.0.as_ref().and_then(|open| open.writing.as_ref()).map(|unlogged| &unlogged.writing)
    }
}

impl Open<'_> {
    fn append(&mut self) {
        if let (Some(room), Some(appender)) = (self.room.take(), self.journal.appender.get())
            && !self.records.is_empty()
        {
            self.position = appender.append(room, &self.records).0;
            self.journal.appended.fetch_max(self.position, Ordering::Relaxed);
        }
    }

    fn end(&mut self) -> Hold {
        let Some(writing) = self.writing.take() else { return Hold::NONE };
        let journal = self.journal;
        if !self.records.is_empty() {
            journal.point("installed");
        }
        self.append();
        let position = self.position;
        drop(writing);
        // After the writing: the floor may pass it when the log's writer looks.
        if position > 0 || journal.wanted.load(Ordering::SeqCst) > journal.marks.reached().floor {
            journal.want_log();
        }
        let refused = self.shown > 0 && !mutant("refusal-not-held");
        let shown = if refused { journal.until_floor(self.shown + 1) } else { Hold::NONE };
        let position = if mutant("change-not-held") { 0 } else { position };
        Hold { position, floor: 0 }.and(shown)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

impl Drop for Unlogged<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The tree may have what the log never will: nothing more may be acknowledged.
            self.journal.broken.store(true, Ordering::Release);
        }
    }
}
