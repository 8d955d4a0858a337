//! Rows put and deleted together with their entries.

use std::collections::BTreeSet;

use overside_bwtree::{Error, Put};

use super::{Index, Kept, VALUE_BYTES, entry, entry_key, entry_value};
use crate::key::KeyError;
use crate::row::RowView;
use crate::server::durable::Change;
use crate::server::store::Table;

/// What a row's change does to its entry in each index, in their order.
type Moves = Vec<Move>;

/// What becomes of one entry.
#[derive(Debug, Default)]
struct Move {
    /// The entry of the row as it was; none where it stays, or there was none.
    old: Option<Vec<u8>>,
    /// The entry of the row as it will be, which is in the index by now; none
    /// where it was there before.
    new: Option<Vec<u8>>,
}

impl Table {
    /// Puts rows, as [`Change::put_many`] does, and their entries.
    pub(crate) fn put_many(
        &self,
        change: &Change<'_>,
        put: Put,
        rows: &[(&[u8], &[u8])],
        refused_max: usize,
    ) -> (Vec<Result<bool, Error>>, Vec<u64>) {
        let kept = self.indexes.read();
        if kept.all.is_empty() {
            return change.put_many(&self.tree, put, rows, refused_max);
        }
        for index in &kept.all {
            index.clear_left(&self.indexes, &kept, self, change);
        }
        let (mut answers, mut stamps) = (Vec::with_capacity(rows.len()), Vec::new());
        let mut refused = 0;
        while answers.len() < rows.len() && refused < refused_max {
            let behind = &rows[answers.len()..];
            let some = &behind[..different(behind)];
            let part = self.put_some(&kept, change, put, some, refused_max - refused);
            refused += part.answers.iter().filter(|answer| refuses(put, answer)).count();
            answers.extend(part.answers);
            stamps.extend(part.stamps);
            if part.ended {
                break;
            }
        }
        (answers, stamps)
    }

    /// Deletes a key without waiting for memory, as [`Change::delete_now`] does, and its entries.
    pub(crate) fn delete_now(&self, change: &Change<'_>, key: &[u8]) -> Result<(bool, u64), Error> {
        let kept = self.indexes.read();
        if kept.all.is_empty() {
            return change.delete_now(&self.tree, key);
        }
        let _turn = self.indexes.turns(&kept, std::iter::once(key));
        let mut row = Vec::new();
        let was_there = self.tree.get(key, &mut row)?;
        let entries = if was_there { self.entries(&kept, key, &row) } else { Vec::new() };
        change.point("index: before the row goes");
        let deleted = change.delete_now(&self.tree, key)?;
        change.point("index: before its entries go");
        if deleted.0 {
            self.take_out(&kept, change, entries);
        }
        Ok(deleted)
    }

    /// Puts rows of different keys.
    fn put_some(
        &self,
        kept: &Kept,
        change: &Change<'_>,
        put: Put,
        rows: &[(&[u8], &[u8])],
        refused_max: usize,
    ) -> Part {
        let _turns = self.indexes.turns(kept, rows.iter().map(|(key, _)| *key));
        let mut moves = Vec::with_capacity(rows.len());
        let mut refusal = None;
        for row in rows {
            match self.before(kept, change, put, *row) {
                Ok(moved) => moves.push(moved),
                Err(error) => {
                    refusal = Some(error);
                    break;
                }
            }
        }
        change.point("index: before rows are put");
        let tried = moves.len();
        let (mut answers, mut stamps) = change.put_many(&self.tree, put, &rows[..tried], refused_max);
        change.point("index: before old entries go");
        for (at, moved) in moves.into_iter().enumerate() {
            let is_put = answers.get(at).is_some_and(|answer| !refuses(put, answer));
            self.after(kept, change, moved, is_put);
        }
        let mut ended = answers.len() < tried;
        if let Some(error) = refusal.filter(|_| !ended) {
            ended = error == Error::Exhausted;
            answers.push(Err(error));
            if change.bears_stamps() {
                stamps.push(0);
            }
        }
        Part { answers, stamps, ended }
    }

    /// Sees to it that a row has its entries before it is put.
    fn before(&self, kept: &Kept, change: &Change<'_>, put: Put, row: (&[u8], &[u8])) -> Result<Moves, Error> {
        let (key, value) = row;
        let mut was = Vec::new();
        let was_there = self.tree.get(key, &mut was)?;
        let goes_on = match put {
            Put::Insert => !was_there,
            Put::Update => was_there,
            Put::Upsert => true,
        };
        if !goes_on {
            return Ok(Vec::new());
        }
        let mut moves = Vec::with_capacity(kept.all.len());
        let outcome = (|| {
            for index in &kept.all {
                let old = was_there.then(|| self.entry_of(index, key, &was)).flatten();
                let values = index.values_of(self, value).map_err(|_| too_long(value))?;
                let new = entry(&values, key);
                if old.as_ref() == Some(&new) {
                    moves.push(Move::default());
                    continue;
                }
                change.put_one(&index.tree, entry_key(&new), entry_value(&new))?;
                moves.push(Move { old, new: Some(new) });
            }
            Ok(())
        })();
        match outcome {
            Ok(()) => Ok(moves),
            Err(error) => {
                self.after(kept, change, moves, false);
                Err(error)
            }
        }
    }

    /// Takes out the entries that are no row's: the old ones where it was put, the
    /// new ones where it was not.
    fn after(&self, kept: &Kept, change: &Change<'_>, moves: Moves, is_put: bool) {
        let gone = |moved: Move| if is_put { moved.old } else { moved.new };
        self.take_out(kept, change, moves.into_iter().map(gone).collect());
    }

    fn take_out(&self, kept: &Kept, change: &Change<'_>, entries: Vec<Option<Vec<u8>>>) {
        for (index, entry) in kept.all.iter().zip(entries) {
            let Some(entry) = entry else { continue };
            if change.delete_now(&index.tree, entry_key(&entry)).is_err() {
                index.leave(entry);
            }
        }
    }

    fn entries(&self, kept: &Kept, key: &[u8], row: &[u8]) -> Vec<Option<Vec<u8>>> {
        kept.all.iter().map(|index| self.entry_of(index, key, row)).collect()
    }

    /// The entry of a row that is in the table.
    fn entry_of(&self, index: &Index, key: &[u8], row: &[u8]) -> Option<Vec<u8>> {
        index.values_of(self, row).ok().map(|values| entry(&values, key))
    }
}

impl Index {
    /// The encoded values of its columns in a row.
    pub(super) fn values_of(&self, table: &Table, row: &[u8]) -> Result<Vec<u8>, KeyError> {
        let mut values = Vec::with_capacity(ROOM);
        let row = RowView::of_value(row, &table.layout).map_err(|_| KeyError::Malformed)?;
        self.codec.encode_row(&row, &mut values)?;
        Ok(values)
    }
}

/// What became of some rows.
struct Part {
    answers: Vec<Result<bool, Error>>,
    stamps: Vec<u64>,
    /// There is no memory for those behind, or there were too many refusals.
    ended: bool,
}

/// How many rows from the first one on have different keys. Their turns are taken together,
/// so there may not be many.
fn different(rows: &[(&[u8], &[u8])]) -> usize {
    let mut keys = BTreeSet::new();
    rows.iter().take(TOGETHER_MAX).take_while(|(key, _)| keys.insert(*key)).count()
}

/// Whether a row that is told so is as it was.
fn refuses(put: Put, answer: &Result<bool, Error>) -> bool {
    match answer {
        Ok(was_there) => put == Put::Update && !was_there,
        Err(_) => true,
    }
}

/// A row's values are too long for an index.
fn too_long(row: &[u8]) -> Error {
    Error::KeyTooLong { len: row.len().saturating_sub(VALUE_BYTES), max: crate::key::KEY_BYTES_MAX }
}

/// Rows that are put together.
const TOGETHER_MAX: usize = 32;
/// Bytes that most values take.
const ROOM: usize = 32;
