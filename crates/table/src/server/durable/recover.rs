//! What a server does with the directory of its data before anybody connects.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use overside_bwtree::{Put, Stamps};
use overside_disk::{Disk, mutant};
use overside_log::{self as log, Change, Directory, Mode, Record};
use overside_service::Threads;
use overside_verbs::Clock;

use super::adopt::Adopter;
use super::checkpoint::Checkpointer;
use super::saved::existing;
use super::writer::{Desk, Writer};
use super::{DataOptions, Journal};
use crate::row::RowView;
use crate::server::index;
use crate::server::store::{Store, Table, described_as, empty};
use crate::server::{ServerOptions, StartError};
use crate::wire::Durability;

/// What a server found in the directory of its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Rows of all tables.
    pub rows: u64,
    /// Rows that came from the checkpoint, and bytes of the pages they were in.
    pub adopted_rows: u64,
    /// Bytes of those pages.
    pub adopted_bytes: u64,
    /// How long that took.
    pub adopt_took: Duration,
    /// Records of the log that were replayed.
    pub replayed: u64,
    /// Bytes of the log that was read.
    pub replayed_bytes: u64,
    /// How long that took.
    pub replay_took: Duration,
    /// Bytes of a torn end of the log, which nobody was told to be there.
    pub cut_bytes: u64,
    /// What was damaged and passed over, a line each, where that was asked for
    /// ([`DataOptions::salvage`]).
    pub losses: Vec<String>,
    /// How long all of it took.
    pub took: Duration,
}

/// Why the directory of a server's data cannot be used; nothing in it was changed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DataError(String);

impl DataError {
    pub(super) fn of(why: &dyn fmt::Display) -> DataError {
        DataError(why.to_string())
    }
}

/// Told how far a recovery is, by several threads.
#[derive(Clone)]
pub struct OnProgress(Arc<Tells>);

type Tells = dyn Fn(Recovering) + Send + Sync;

/// How far a recovery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovering {
    /// It reads the checkpoint.
    Adopting {
        /// Rows that it has.
        rows: u64,
        /// Rows that the checkpoint says there are.
        of: u64,
    },
    /// It replays the log.
    Replaying {
        /// Records that it has replayed.
        records: u64,
    },
}

impl OnProgress {
    /// `to` is told.
    pub fn new(to: impl Fn(Recovering) + Send + Sync + 'static) -> OnProgress {
        OnProgress(Arc::new(to))
    }

    pub(super) fn tell(&self, how_far: Recovering) {
        (self.0)(how_far);
    }
}

impl fmt::Debug for OnProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnProgress").finish_non_exhaustive()
    }
}

/// A directory that was recovered.
pub(in crate::server) struct Opened {
    pub(in crate::server) store: Arc<Store>,
    pub(in crate::server) writer: Writer,
    pub(in crate::server) checkpointer: Checkpointer,
    pub(in crate::server) recovery: Recovery,
}

/// Opens the directory and recovers its tables into a store.
///
/// # Errors
/// The directory cannot be used, or its tables do not fit the server's memory.
pub(in crate::server) fn open(
    data: &DataOptions,
    options: &ServerOptions,
    clock: Arc<dyn Clock>,
    new_store: impl FnOnce(Option<Arc<Journal>>) -> Arc<Store>,
) -> Result<Opened, StartError> {
    let began = clock.now();
    let refused = |error: &dyn fmt::Display| DataError::of(error);
    let disk = match &options.world.disk {
        Some(disk) => disk.open(&data.dir),
        None => overside_disk::open(&data.dir),
    };
    let disk: Box<dyn Disk> = disk.map_err(|error| refused(&error))?;
    let way = disk.way().to_string();
    // Replayed changes draw stamps of their own; those of this server come behind all that the log knows.
    let journal = Arc::new(Journal::new(data.clone(), Stamps::new(1), way, options.world.pace_min, clock.clone())?);
    let store = new_store(Some(journal.clone()));
    let mut id = [0; 16];
    clock.fill(&mut id)?;
    let mode = if data.salvage { Mode::Salvage } else { Mode::Serve };
    let mut directory =
        Directory::open(disk, id, log_options(data, options), mode).map_err(|refusal| refused(&refusal))?;
    let how = How {
        only: None,
        threads: options.world.threads.clone(),
        threads_max: data.recovery_threads.max(1),
        on_progress: data.on_progress.clone(),
        clock: &*clock,
    };
    let (manifest, replayed, mut recovery) = recover(&store, &mut directory, &how)?;
    for table in store.all() {
        table.indexes.fill(&table).map_err(|fault| DataError::of(&fault.text))?;
    }
    // Until here nothing in the directory was changed.
    let (mut log, appender) = directory.start().map_err(|refusal| refused(&refusal))?;
    let checkpoints = log.checkpoints().map_err(|error| refused(&error))?;
    journal.stamps.advance(replayed.next_stamp);
    store.number_from(replayed.next_table);
    journal.begin(appender);
    // What a recovery would replay now.
    journal.begun_at.store(manifest.as_ref().map_or(0, |manifest| manifest.position), Ordering::Relaxed);
    // Many starts leave many segments with little in them, which no growth of the log would ever give up.
    let wasted = log.bytes_kept().saturating_sub(replayed.bytes) > data.checkpoint_bytes;
    let at_once = !recovery.losses.is_empty() || wasted;
    recovery.took = clock.now().duration_since(began);
    let on_failure = options.on_failure.clone();
    let mut checkpointer = Checkpointer {
        journal: journal.clone(),
        store: store.clone(),
        checkpoints,
        on_failure: on_failure.clone(),
        at_once,
        sizes: BTreeMap::new(),
    };
    if journal.may_forget_tables() {
        checkpointer.set_numbers_aside();
    }
    let desk = Desk::new(journal, log, began, on_failure).map_err(|error| refused(&error))?;
    let writer = Writer { desk };
    Ok(Opened { store, writer, checkpointer, recovery })
}

/// How a directory is recovered.
pub(super) struct How<'a> {
    /// The rows of this table alone; of others there is the name.
    pub(super) only: Option<&'a str>,
    pub(super) threads: Arc<dyn Threads>,
    /// How many of them there may be.
    pub(super) threads_max: usize,
    pub(super) on_progress: Option<OnProgress>,
    pub(super) clock: &'a dyn Clock,
}

/// Recovers the tables in a directory: those of its newest checkpoint, and what the log behind it
/// says. Nothing in the directory is changed.
///
/// # Errors
/// The directory is damaged, or its tables do not fit the memory.
pub(super) fn recover<D: Disk>(
    store: &Store,
    directory: &mut Directory<D>,
    how: &How<'_>,
) -> Result<(Option<log::Manifest>, log::Replayed, Recovery), DataError> {
    let began = how.clock.now();
    let manifest = directory.checkpoint().map_err(|refusal| DataError::of(&refusal))?;
    let tables = manifest.as_ref().map_or(&[][..], |manifest| &manifest.tables);
    let of = tables.iter().fold(0, |sum: u64, table| sum.saturating_add(table.rows));
    let adopter = Adopter::new(store, how.threads.clone(), how.threads_max, of, how.on_progress.clone());
    for table in tables {
        adopter.table(directory, table, how.only).map_err(|text| DataError::of(&text))?;
    }
    let adopted = how.clock.now();
    let mut replay = Replay::new(store, how.only, how.on_progress.clone());
    let replayed = directory.replay(&mut |record| replay.take(&record)).map_err(|refusal| DataError::of(&refusal))?;
    replay.flush().map_err(|text| DataError::of(&text))?;
    let read = how.clock.now();
    let recovery = Recovery {
        rows: store.all().iter().map(|table| table.rows()).sum(),
        adopted_rows: adopter.rows(),
        adopted_bytes: adopter.bytes(),
        adopt_took: adopted.duration_since(began),
        replayed: replayed.records,
        replayed_bytes: replayed.bytes,
        replay_took: read.duration_since(adopted),
        cut_bytes: replayed.cut_bytes,
        losses: directory.losses().to_vec(),
        took: read.duration_since(began),
    };
    Ok((manifest, replayed, recovery))
}

/// Reads all that counts in the directory of a server's data, and checks every checksum in it.
/// Nothing is changed.
///
/// # Errors
/// There is none, it is in use or of another version, or the disk fails.
pub fn check_data(dir: &Path) -> Result<log::Checked, DataError> {
    let disk = existing(dir)?;
    log::check(disk, log::Options::default()).map_err(|refusal| DataError::of(&refusal))
}

fn log_options(data: &DataOptions, options: &ServerOptions) -> log::Options {
    let durability = match data.durability {
        Durability::Sync => log::Durability::Sync,
        Durability::Group => log::Durability::Group { every: data.group },
        Durability::None => log::Durability::None,
    };
    let usual = log::Options::default();
    let segment_bytes = options.world.log_segment_bytes.unwrap_or(usual.segment_bytes);
    let part_bytes = options.world.checkpoint_part_bytes.unwrap_or(usual.part_bytes);
    log::Options { durability, segment_bytes, part_bytes, ..usual }
}

/// Records becoming rows. Puts of one table go to its tree together.
struct Replay<'s> {
    store: &'s Store,
    /// Rows of other tables are passed over.
    only: Option<&'s str>,
    tables: BTreeMap<u32, Arc<Table>>,
    /// The table of the puts that wait.
    table: Option<Arc<Table>>,
    bytes: Vec<u8>,
    /// Where each key and each value of them ends.
    ends: Vec<(usize, usize)>,
    key: Vec<u8>,
    records: u64,
    on_progress: Option<OnProgress>,
}

impl<'s> Replay<'s> {
    fn new(store: &'s Store, only: Option<&'s str>, on_progress: Option<OnProgress>) -> Replay<'s> {
        let tables = store.all().into_iter().map(|table| (table.id, table)).collect();
        let (bytes, ends, key) = (Vec::new(), Vec::new(), Vec::new());
        Replay { store, only, tables, table: None, bytes, ends, key, records: 0, on_progress }
    }

    /// The next record in the order of stamps.
    fn take(&mut self, record: &Record<'_>) -> Result<(), String> {
        self.records += 1;
        if let Some(told) = self.on_progress.as_ref().filter(|_| self.records.is_multiple_of(TOLD_EACH)) {
            told.tell(Recovering::Replaying { records: self.records });
        }
        if let Some(table) = self.tables.get(&record.table) {
            // The checkpoint does not have this.
            table.note_change(record.stamp);
            let is_row = matches!(record.change, Change::Put { .. } | Change::Delete { .. });
            if is_row && self.only.is_some_and(|only| only != table.name) {
                return Ok(());
            }
        }
        match record.change {
            Change::Create { options } => {
                self.flush()?;
                // A checkpoint may have it already.
                if !self.tables.contains_key(&record.table) {
                    self.give_up_name(record.table, options);
                    let table = self.store.restore(record.table, options, &empty).map_err(|fault| fault.text)?;
                    let table = table.inspect(|table| table.note_change(record.stamp));
                    self.tables.extend(table.map(|table| (record.table, table)));
                }
                Ok(())
            }
            Change::Drop => {
                self.flush()?;
                self.store.forget(record.table);
                self.store.number_from(record.table.saturating_add(1));
                self.tables.remove(&record.table);
                Ok(())
            }
            Change::CreateIndex { options } => self.index(record.table, options, true),
            Change::DropIndex { options } => self.index(record.table, options, false),
            Change::Put { key, value } => self.put(record.table, key, value),
            Change::Delete { key } => {
                self.flush()?;
                // The table may have been dropped meanwhile.
                let Some(table) = self.tables.get(&record.table) else { return Ok(()) };
                let was_there = table.tree.delete(key).map_err(|error| no_room(table, &error))?;
                table.count(-i64::from(was_there));
                Ok(())
            }
        }
    }

    /// A name is free when a table is created. Where an earlier one has it, the record of its drop
    /// never reached the log, for nobody heard of it; logs of earlier builds may have the create
    /// alone.
    fn give_up_name(&mut self, number: u32, described: &[u8]) {
        let earlier = described_as(described).and_then(|(name, _)| self.store.named(name).ok());
        if let Some(earlier) = earlier.filter(|table| table.id < number && !mutant("tables-logged-late")) {
            self.store.forget(earlier.id);
            self.tables.remove(&earlier.id);
        }
    }

    /// A table has an index from here on, or has it no more. Its entries are made at the end.
    fn index(&mut self, number: u32, described: &[u8], there: bool) -> Result<(), String> {
        let Some(table) = self.tables.get(&number) else { return Ok(()) };
        let (columns, rest) = index::described_as(described).ok_or("an index in the log is garbled")?;
        if !rest.is_empty() {
            return Err("an index in the log is garbled".into());
        }
        // A checkpoint may have it already, or have it no more.
        table.indexes.forget(&columns);
        if there {
            table.indexes.expect(self.store, table, &columns).map_err(|fault| fault.text)?;
        }
        Ok(())
    }

    fn put(&mut self, number: u32, key: &[u8], value: &[u8]) -> Result<(), String> {
        if self.table.as_ref().is_none_or(|table| table.id != number) {
            self.flush()?;
            self.table = self.tables.get(&number).cloned();
        }
        let Some(table) = &self.table else { return Ok(()) };
        self.key.clear();
        let row = RowView::of_value(value, &table.layout).ok().filter(|row| row.check().is_ok());
        let keyed = row.is_some_and(|row| table.keys.encode_row(&row, &mut self.key).is_ok());
        if !keyed || self.key != key {
            return Err(format!("a row of table {:?} in the log does not have the table's form", table.name));
        }
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
        if self.bytes.len() >= TOGETHER_BYTES { self.flush() } else { Ok(()) }
    }

    /// Puts what waits.
    fn flush(&mut self) -> Result<(), String> {
        let Some(table) = self.table.take() else { return Ok(()) };
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, value)| *value));
        let rows =
            starts.zip(&self.ends).map(|(start, (key, value))| (&self.bytes[start..*key], &self.bytes[*key..*value]));
        let rows: Vec<(&[u8], &[u8])> = rows.collect();
        let answers = table.tree.put_many(Put::Upsert, &rows, usize::MAX);
        let complete = answers.len() == rows.len();
        let mut new = 0;
        for answer in answers {
            new += i64::from(!answer.map_err(|error| no_room(&table, &error))?);
        }
        if !complete {
            return Err(no_room(&table, &overside_bwtree::Error::Exhausted));
        }
        table.count(new);
        self.bytes.clear();
        self.ends.clear();
        self.table = Some(table);
        Ok(())
    }
}

fn no_room(table: &Table, error: &overside_bwtree::Error) -> String {
    format!("table {:?} does not fit the memory ({error}); raise the limit (--memory)", table.name)
}

/// Records between two words on how far it is.
const TOLD_EACH: u64 = 10_000;
/// Rows that are put together.
const TOGETHER_BYTES: usize = 256 << 10;
