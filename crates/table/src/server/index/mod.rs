//! Secondary indexes of a table.
//!
//! An index is a tree of its own. Each of its keys is the encoded values of the index's columns,
//! and behind them the primary key of a row; its value is how many bytes the former have.
//!
//! - `maintain`: who writes a row keeps the entries in step. The new entry goes in before
//!   the row is changed, the old one out afterwards. So the entry of a row as it is now
//!   is there all the while.
//! - `through`: a scan finds entries, looks each row up, and checks it against its entry before the
//!   row is given. An entry whose row has other values, or is gone, gives nothing.
//! - `build`: entries of the rows that were there before the index. Writers keep it from its first
//!   step on; scans find it once it is whole.
//!
//! Both together give the promise: a row that did not change during a scan is given exactly once if
//! it matches, and never otherwise. Readers take no lock on the way. Writers of one row take turns,
//! by a lock of many rows: else two of them could each take out the entry that the other put in.

mod build;
#[cfg(all(test, shuttle))]
mod explored;
mod maintain;
mod through;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, TryLockError};

use overside_bwtree::{Tree, Waits};
use overside_disk::mutant;

use super::durable::Change;
use super::store::{Table, fault};
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::key::IndexCodec;
use crate::schema::Schema;
use crate::wire::{Fault, FaultCode, IndexInfo};

pub(crate) use build::{Build, Building};
pub(crate) use through::Through;

/// All indexes of a table.
#[derive(Debug)]
pub(crate) struct Indexes {
    kept: RwLock<Kept>,
    /// How a simulation waits for a lock; the system does where it is none.
    waits: Option<&'static dyn Waits>,
}

/// The indexes that writers keep. Who writes rows holds it for reading
/// until entries and rows agree.
#[derive(Debug, Default)]
pub(super) struct Kept {
    all: Vec<Arc<Index>>,
    /// Each of them stands for many rows. None before the first index.
    turns: Vec<Mutex<()>>,
}

/// An index.
#[derive(Debug)]
pub(crate) struct Index {
    columns: Vec<u16>,
    codec: IndexCodec,
    tree: Tree,
    /// Every row has its entry: scans may use it.
    whole: AtomicBool,
    /// The stamp of its creation; 0 where it is older than the server, or there is no log.
    since: AtomicU64,
    /// Entries that are no row's any more, and for whose removal there was no memory.
    left: Mutex<Vec<Vec<u8>>>,
}

impl Indexes {
    pub(crate) fn new(waits: Option<&'static dyn Waits>) -> Indexes {
        Indexes { kept: RwLock::default(), waits }
    }

    /// The indexes that scans may use.
    pub(crate) fn whole(&self) -> Vec<Arc<Index>> {
        self.read().all.iter().filter(|index| index.is_whole()).cloned().collect()
    }

    /// The index of these columns.
    ///
    /// # Errors
    /// There is none; the text names those that are there.
    pub(crate) fn of(&self, table: &Table, columns: &[u16]) -> Result<Arc<Index>, Fault> {
        let whole = self.whole();
        let found = whole.iter().find(|index| index.columns == columns).cloned();
        found.ok_or_else(|| {
            let schema = &table.schema;
            let there: Vec<String> = whole.iter().map(|index| names(schema, &index.columns)).collect();
            let there = match there.as_slice() {
                [] => "it has none; create one (overside index create)".to_owned(),
                there => format!("there are: {}", there.join("; ")),
            };
            let text = format!("table {:?} has no index on {}; {there}", table.name, names(schema, columns));
            fault(FaultCode::BadRequest, text)
        })
    }

    /// Takes out the index of these columns, unless it is not whole; `with` it, under the lock,
    /// before any writer goes on without it.
    pub(super) fn take_out(&self, columns: &[u16], with: impl FnOnce()) -> bool {
        let mut kept = self.write();
        let place = kept.all.iter().position(|index| index.columns == columns && index.is_whole());
        let Some(place) = place else { return false };
        kept.all.remove(place);
        with();
        true
    }

    fn read(&self) -> RwLockReadGuard<'_, Kept> {
        self.kept.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody is between a row and its entries while it is held.
    fn write(&self) -> RwLockWriteGuard<'_, Kept> {
        let Some(waits) = self.waits else { return self.kept.write().unwrap_or_else(PoisonError::into_inner) };
        let mut times = 0;
        loop {
            match self.kept.try_write() {
                Ok(kept) => return kept,
                Err(TryLockError::Poisoned(kept)) => return kept.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    times += 1;
                    waits.pause(times);
                }
            }
        }
    }

    fn lock<'l>(&self, lock: &'l Mutex<()>) -> MutexGuard<'l, ()> {
        let Some(waits) = self.waits else { return lock.lock().unwrap_or_else(PoisonError::into_inner) };
        let mut times = 0;
        loop {
            match lock.try_lock() {
                Ok(locked) => return locked,
                Err(TryLockError::Poisoned(locked)) => return locked.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    times += 1;
                    waits.pause(times);
                }
            }
        }
    }

    /// The turns of rows by their keys, in an order that all who take several have in common.
    fn turns<'l, 'k>(&self, kept: &'l Kept, keys: impl Iterator<Item = &'k [u8]>) -> Vec<MutexGuard<'l, ()>> {
        if mutant("index-without-turns") {
            return Vec::new();
        }
        let mut numbers: Vec<usize> = keys.map(|key| turn_of(key, kept.turns.len())).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.iter().map(|number| self.lock(&kept.turns[*number])).collect()
    }
}

impl Index {
    pub(super) fn new(columns: Vec<u16>, codec: IndexCodec, tree: Tree) -> Index {
        let (whole, since) = (AtomicBool::new(false), AtomicU64::new(0));
        Index { columns, codec, tree, whole, since, left: Mutex::default() }
    }

    pub(crate) fn columns(&self) -> &[u16] {
        &self.columns
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn info(&self) -> IndexInfo {
        let stats = self.tree.stats();
        let pages = 1 + stats.splits.saturating_sub(stats.merges);
        IndexInfo { columns: self.columns.clone(), pages, bytes: stats.committed_bytes }
    }

    /// The stamp of its creation.
    fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    /// Scans may use it from now on. To be said before its record is appended.
    fn is_whole_since(&self, stamp: u64) {
        self.since.store(stamp, Ordering::Relaxed);
        self.whole.store(true, Ordering::Release);
    }

    /// Takes out what found no memory before and is still no row's entry.
    fn clear_left(&self, indexes: &Indexes, kept: &Kept, table: &Table, change: &Change<'_>) {
        let some = |left: &Mutex<Vec<Vec<u8>>>| left.lock().unwrap_or_else(PoisonError::into_inner).pop();
        for _ in 0..LEFT_AT_ONCE {
            let Some(entry) = some(&self.left) else { return };
            let Some((values, key)) = split(&entry) else { continue };
            let _turn = indexes.turns(kept, std::iter::once(key));
            let mut row = Vec::new();
            let found = table.tree.get(key, &mut row).unwrap_or(false);
            let is_now = found && self.values_of(table, &row).is_ok_and(|now| now == values);
            if !is_now && change.delete_now(&self.tree, entry_key(&entry)).is_err() {
                self.leave(entry);
                return;
            }
        }
    }

    /// An entry that is no row's stays until there is memory to take it out.
    fn leave(&self, entry: Vec<u8>) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }
}

/// Which turn a row takes: FNV-1a of its key.
fn turn_of(key: &[u8], turns: usize) -> usize {
    let hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    ((hash ^ (hash >> 32)) % turns as u64) as usize
}

/// An entry in one piece: u16 bytes of the values, the values, the primary key. The tree has it
/// without the first two bytes as a key, and those as its value.
fn entry(values: &[u8], key: &[u8]) -> Vec<u8> {
    // Encoded values have at most 1 KiB.
    [&(values.len() as u16).to_le_bytes()[..], values, key].concat()
}

fn entry_key(entry: &[u8]) -> &[u8] {
    entry.get(VALUE_BYTES..).unwrap_or_default()
}

fn entry_value(entry: &[u8]) -> &[u8] {
    entry.get(..VALUE_BYTES).unwrap_or_default()
}

/// The values and the primary key of an entry.
fn split(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = entry.split_first_chunk::<VALUE_BYTES>()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))
}

/// Columns by name.
pub(crate) fn names(schema: &Schema, columns: &[u16]) -> String {
    let name = |column: &u16| match schema.columns().get(usize::from(*column)) {
        Some(column) => column.name.clone(),
        None => format!("column {column}"),
    };
    columns.iter().map(name).collect::<Vec<_>>().join(",")
}

/// Indexes in the form that a table's description and the log's records have: u8
/// how many columns, each u16.
pub(crate) fn described(columns: &[u16]) -> Vec<u8> {
    let mut out = vec![columns.len() as u8];
    columns.iter().for_each(|column| out.extend(column.to_le_bytes()));
    out
}

/// The columns of a described index, and what comes behind them.
pub(crate) fn described_as(described: &[u8]) -> Option<(Vec<u16>, &[u8])> {
    let (count, rest) = described.split_first()?;
    let (columns, rest) = rest.split_at_checked(2 * usize::from(*count))?;
    let columns = columns.chunks_exact(2).map(|column| u16::from_le_bytes([column[0], column[1]]));
    Some((columns.collect(), rest))
}

/// Bytes of an entry's value.
pub(super) const VALUE_BYTES: usize = 2;
/// Indexes of a table: each costs every put a search, and has addresses reserved as a table has.
pub(super) const INDEXES_MAX: usize = 8;
/// Rows that are put meanwhile seldom wait for each other; where schedules are explored, some have
/// a turn in common.
const TURNS: usize = if cfg!(shuttle) { 2 } else { 4096 };
/// Entries that one put takes out for earlier ones.
const LEFT_AT_ONCE: usize = 4;
