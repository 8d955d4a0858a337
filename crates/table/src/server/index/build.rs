//! An index made of the rows that are there, in steps, while others write.

use std::ops::Bound;
use std::sync::{Arc, Weak};

use overside_bwtree::{Error, Put, Tree};
use overside_log::{self as log, Claim};
use overside_service::Hold;

use super::{INDEXES_MAX, Index, Indexes, TURNS, VALUE_BYTES, described, entry, entry_key, entry_value, names};
use crate::key::IndexCodec;
use crate::server::durable::Denied;
use crate::server::store::{Store, Table, fault};
use crate::server::sync::Mutex;
use crate::wire::{Fault, FaultCode};

/// An index that is being made. Writers keep it from the beginning. Dropping it before its end
/// takes it out again, and the table is as it was.
#[derive(Debug)]
pub(crate) struct Build {
    /// A table that is dropped meanwhile shall not be kept by it.
    table: Weak<Table>,
    index: Arc<Index>,
    /// The last row that has its entry.
    last: Option<Vec<u8>>,
    rows: u64,
    of: u64,
    done: bool,
}

/// What a step came to.
#[derive(Debug)]
pub(crate) enum Building {
    /// There is more to do.
    More,
    /// It is there; what a reply that says so waits for.
    Done(Hold),
}

impl Build {
    /// Begins to make an index.
    ///
    /// # Errors
    /// There is such an index, or none can be over these columns, or there is no memory for it.
    pub(crate) fn begin(store: &Store, table: &Arc<Table>, columns: &[u16]) -> Result<Build, Fault> {
        let index = Arc::new(new_index(store, table, columns)?);
        table.indexes.add(table, &index)?;
        let (of, table) = (table.rows(), Arc::downgrade(table));
        Ok(Build { table, index, last: None, rows: 0, of, done: false })
    }

    /// Whether it is of these columns of this table.
    pub(crate) fn is_of(&self, table: &Arc<Table>, columns: &[u16]) -> bool {
        std::ptr::eq(self.table.as_ptr(), Arc::as_ptr(table)) && self.index.columns == columns
    }

    /// Rows looked at, and how many there were when it began.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.rows, self.of)
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// Gives some more rows their entries, and ends with the last.
    ///
    /// # Errors
    /// There is no memory, a row is too long for the index, or the table is gone. The
    /// table has no such index then.
    pub(crate) fn step(&mut self) -> Result<Building, Denied> {
        let table = self.table.upgrade().filter(|table| !table.is_dropped());
        let Some(table) = table else {
            let text = "the table was dropped meanwhile; look it up again";
            return Err(fault(FaultCode::UnknownTable, text.into()).into());
        };
        let keys = keys_behind(&table.tree, self.last.as_deref());
        if keys.is_empty() {
            return self.finish(&table).map(Building::Done);
        }
        self.rows += keys.len() as u64;
        add_entries(&table, &self.index, &keys)?;
        self.last = keys.into_iter().next_back();
        Ok(Building::More)
    }

    /// Every row has its entry: scans may use the index, and the log has it.
    fn finish(&mut self, table: &Table) -> Result<Hold, Denied> {
        let described = described(&self.index.columns);
        let mut change = table.change(Claim::Put, 1, described.len())?;
        let kept = table.indexes.write();
        let stamp = change.draw();
        self.index.is_whole_since(stamp);
        table.note_change(stamp);
        change.record(stamp, table.id, log::Change::CreateIndex { options: &described });
        change.append();
        drop(kept);
        self.done = true;
        Ok(change.done())
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        if !self.done
            && let Some(table) = self.table.upgrade()
        {
            table.indexes.write().all.retain(|index| !Arc::ptr_eq(index, &self.index));
        }
    }
}

impl Indexes {
    /// Writers keep it from now on: those that began before have ended.
    fn add(&self, table: &Table, index: &Arc<Index>) -> Result<(), Fault> {
        let mut kept = self.write();
        let named = names(&table.schema, &index.columns);
        if let Some(other) = kept.all.iter().find(|other| other.columns == index.columns) {
            let what = if other.is_whole() { "has an index" } else { "is being given an index" };
            let text = format!("table {:?} {what} on {named} already", table.name);
            return Err(fault(FaultCode::TableExists, text));
        }
        if kept.all.len() >= INDEXES_MAX {
            let text = format!("table {:?} has {INDEXES_MAX} indexes; drop one before you add {named}", table.name);
            return Err(fault(FaultCode::BadRequest, text));
        }
        if kept.turns.is_empty() {
            kept.turns.resize_with(TURNS, Mutex::default);
        }
        kept.all.push(index.clone());
        Ok(())
    }

    /// An index that a recovery found, whose entries are still to be made. Who only reads what is
    /// saved has no use for it.
    pub(crate) fn expect(&self, store: &Store, table: &Table, columns: &[u16]) -> Result<(), Fault> {
        if store.journal().is_none() {
            return Ok(());
        }
        let index = Arc::new(new_index(store, table, columns)?);
        self.add(table, &index)
    }

    /// A recovery found that it was dropped.
    pub(crate) fn forget(&self, columns: &[u16]) {
        self.write().all.retain(|index| index.columns != columns);
    }

    /// Makes all entries of what was [expected](Self::expect), before anybody connects.
    pub(crate) fn fill(&self, table: &Table) -> Result<(), Fault> {
        let expected: Vec<Arc<Index>> = self.read().all.iter().filter(|index| !index.is_whole()).cloned().collect();
        for index in expected {
            let mut last: Option<Vec<u8>> = None;
            loop {
                let keys = keys_behind(&table.tree, last.as_deref());
                if keys.is_empty() {
                    break;
                }
                add_entries(table, &index, &keys)?;
                last = keys.into_iter().next_back();
            }
            index.is_whole_since(0);
        }
        Ok(())
    }
}

fn new_index(store: &Store, table: &Table, columns: &[u16]) -> Result<Index, Fault> {
    let at: Vec<usize> = columns.iter().map(|column| usize::from(*column)).collect();
    let refused = |text: String| fault(FaultCode::BadRequest, format!("table {:?}: {text}", table.name));
    let codec = IndexCodec::new(&table.schema, &at).map_err(|error| refused(error.to_string()))?;
    if at == table.schema.key() {
        let text =
            format!("its rows lie in the order of {} already, its key; scan by key", names(&table.schema, columns));
        return Err(refused(text));
    }
    let what = format!("the index on {} of table {:?}", names(&table.schema, columns), table.name);
    Ok(Index::new(columns.to_vec(), codec, store.new_tree(&what, VALUE_BYTES)?))
}

/// The keys of the next rows.
fn keys_behind(tree: &Tree, last: Option<&[u8]>) -> Vec<Vec<u8>> {
    let mut reader = tree.reader();
    reader.seek(last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded, ROWS_TOGETHER);
    let mut keys = Vec::new();
    while let Some(rows) = reader.next_rows() {
        keys.extend(rows.rows().map(|row| row.key.to_vec()));
    }
    keys
}

/// Gives rows their entries as they are now. Who writes one of them waits meanwhile.
fn add_entries(table: &Table, index: &Index, keys: &[Vec<u8>]) -> Result<(), Fault> {
    let kept = table.indexes.read();
    let mut row = Vec::new();
    for keys in keys.chunks(TURNS_TOGETHER) {
        let _turns = table.indexes.turns(&kept, keys.iter().map(Vec::as_slice));
        let mut entries = Vec::with_capacity(keys.len());
        for key in keys {
            if table.tree.get(key, &mut row).unwrap_or(false) {
                let values = index.values_of(table, &row).map_err(|error| too_long(table, index, &error))?;
                entries.push(entry(&values, key));
            }
        }
        entries.sort_unstable_by(|a, b| entry_key(a).cmp(entry_key(b)));
        let rows: Vec<(&[u8], &[u8])> = entries.iter().map(|entry| (entry_key(entry), entry_value(entry))).collect();
        let answers = index.tree.put_many(Put::Upsert, &rows, 1);
        if answers.len() < rows.len() || answers.iter().any(Result::is_err) {
            return Err(no_memory(table, index, &Error::Exhausted));
        }
    }
    Ok(())
}

fn too_long(table: &Table, index: &Index, error: &dyn std::fmt::Display) -> Fault {
    let named = names(&table.schema, &index.columns);
    let text = format!("a row of table {:?} cannot be in an index on {named}: {error}", table.name);
    fault(FaultCode::BadRow, text)
}

fn no_memory(table: &Table, index: &Index, error: &dyn std::fmt::Display) -> Fault {
    let named = names(&table.schema, &index.columns);
    let text = format!(
        "no memory for the index on {named} of table {:?}: {error}; raise the limit (--memory), or drop a table",
        table.name
    );
    fault(FaultCode::Exhausted, text)
}

/// Rows of one step, between which the worker serves others.
const ROWS_TOGETHER: usize = if cfg!(shuttle) { 2 } else { 1024 };
/// Rows whose writers wait for one another.
const TURNS_TOGETHER: usize = 128;
