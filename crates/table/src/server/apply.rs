//! Putting, getting and deleting rows.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use overside_bwtree::{Error, Put};
use overside_log::{self as log, Claim};
use overside_service::Hold;

use super::durable::{Change, Denied};
use super::store::{Table, fault};
use crate::row::RowView;
use crate::wire::{self, Applied, FAILED_MAX, Fault, FaultCode, PutMode};

/// Puts a batch: each row by itself, on to the next after one that fails. A batch whose framing is
/// broken is refused before anything is applied. With what its reply waits for.
pub(crate) fn put(table: &Table, mode: PutMode, batch: &[u8]) -> Result<(Applied, Hold), Denied> {
    let values = framed(batch)?;
    let keys = Keys::of(table, &values);
    // What the log will have if every row is put, to the byte.
    let (count, bytes) = keys.records(&values);
    let mut change = table.change(Claim::Put, count, bytes)?;
    let (mut applied, mut inserted) = (Applied::default(), 0);
    let (mut at, mut goes_on) = (0, true);
    // Rows go to the tree together as far as they are rows.
    for end in keys.no_rows.iter().copied().chain([values.len()]) {
        let rows: Vec<(&[u8], &[u8])> = (at..end).map(|row| (keys.key(row), values[row])).collect();
        let refused_max = FAILED_MAX - applied.failed.len();
        let (answers, stamps) = table.put_many(&change, put_of(mode), &rows, refused_max);
        // What is behind the last answer was not looked at.
        goes_on &= answers.len() == rows.len();
        for (at, answer) in answers.into_iter().enumerate() {
            let outcome = match answer {
                Ok(false) if mode == PutMode::Update => Err(FaultCode::NotFound),
                answer => answer.map_err(code),
            };
            inserted += i64::from(outcome == Ok(false));
            if let Some(stamp) = stamps.get(at) {
                let (key, value) = rows[at];
                match outcome {
                    Ok(_) => {
                        table.note_change(*stamp);
                        change.record(*stamp, table.id, log::Change::Put { key, value });
                    }
                    Err(_) => change.refused(*stamp),
                }
            }
            goes_on &= note(&mut applied, outcome);
        }
        if goes_on && end < values.len() {
            goes_on = note(&mut applied, Err(FaultCode::BadRow));
        }
        if !goes_on {
            break;
        }
        at = end + 1;
    }
    table.count(inserted);
    table.chains.changed(u64::from(applied.applied), &table.tree);
    Ok((applied, change.done()))
}

/// The keys of rows, one after another.
#[derive(Default)]
struct Keys {
    bytes: Vec<u8>,
    /// Where the keys of those before end, for each row; and where the last one does.
    ends: Vec<usize>,
    /// Those that are no rows of the table. They have an empty key.
    no_rows: Vec<usize>,
}

impl Keys {
    fn of(table: &Table, values: &[&[u8]]) -> Keys {
        let mut keys = Keys { ends: Vec::with_capacity(values.len() + 1), ..Keys::default() };
        keys.ends.push(0);
        for (at, value) in values.iter().enumerate() {
            let begin = keys.bytes.len();
            let row = RowView::of_value(value, &table.layout).ok().filter(|row| row.check().is_ok());
            if row.is_none_or(|row| table.keys.encode_row(&row, &mut keys.bytes).is_err()) {
                keys.bytes.truncate(begin);
                keys.no_rows.push(at);
            }
            keys.ends.push(keys.bytes.len());
        }
        keys
    }

    fn key(&self, row: usize) -> &[u8] {
        &self.bytes[self.ends[row]..self.ends[row + 1]]
    }

    /// How many are rows, and the bytes of their keys and values.
    fn records(&self, values: &[&[u8]]) -> (usize, usize) {
        let all: usize = values.iter().map(|value| value.len()).sum();
        let no_rows: usize = self.no_rows.iter().map(|row| values[*row].len()).sum();
        (values.len() - self.no_rows.len(), self.bytes.len() + all - no_rows)
    }
}

fn put_of(mode: PutMode) -> Put {
    match mode {
        PutMode::Upsert => Put::Upsert,
        PutMode::Insert => Put::Insert,
        PutMode::Update => Put::Update,
    }
}

/// Deletes a batch of encoded keys. Where others hold back the memory that the next of them takes,
/// what is left to do.
pub(crate) fn delete(table: &Arc<Table>, keys: &[u8], now: impl FnOnce() -> Instant) -> Result<Deleting, Denied> {
    let mut change = change_keys(table, keys)?;
    let (applied, left) = delete_from(table, &mut change, keys, Applied::default(), true);
    let hold = change.done();
    let Some(left) = left else { return Ok(Deleting::Done(applied, hold)) };
    let now = now();
    let parked = Parked { table: Arc::downgrade(table), keys: left.into(), applied, hold, since: now, due: now };
    Ok(Deleting::Parked(parked.again(now)))
}

/// What became of a batch of keys.
#[derive(Debug)]
pub(crate) enum Deleting {
    /// With what the reply waits for.
    Done(Applied, Hold),
    /// To be [resumed](Parked::resume).
    Parked(Parked),
}

/// Deletes that wait for memory which others hold back. The worker serves its other clients
/// meanwhile.
#[derive(Debug)]
pub(crate) struct Parked {
    /// A table that is dropped meanwhile shall not be kept by it.
    table: Weak<Table>,
    /// The keys that are left, framed as they came.
    keys: Vec<u8>,
    applied: Applied,
    /// What the reply waits for so far.
    hold: Hold,
    since: Instant,
    due: Instant,
}

impl Parked {
    /// When to try again.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Goes on; after `patience` since it began, a key without memory is told so.
    pub(crate) fn resume(mut self, patience: Duration, now: Instant) -> Result<Deleting, Fault> {
        let table = self.table.upgrade().filter(|table| !table.is_dropped());
        let Some(table) = table else {
            return Err(fault(FaultCode::UnknownTable, "the table was dropped meanwhile; look it up again".into()));
        };
        let before = self.keys.len();
        let parks = now.duration_since(self.since) < patience;
        let (applied, left, hold) = match change_keys(&table, &self.keys) {
            Ok(mut change) => {
                let (applied, left) = delete_from(&table, &mut change, &self.keys, self.applied, parks);
                (applied, left, change.done())
            }
            Err(Denied::Later(_)) if parks => return Ok(Deleting::Parked(self.again(now))),
            // Some of the keys are gone already, so the reply names the first that is not.
            Err(Denied::Now(full) | Denied::Later(full)) => {
                note(&mut self.applied, Err(full.code));
                (self.applied, None, Hold::NONE)
            }
        };
        self.hold = self.hold.and(hold);
        let Some(left) = left else { return Ok(Deleting::Done(applied, self.hold)) };
        if left.len() < before {
            self.since = now;
        }
        Ok(Deleting::Parked(Parked { keys: left.into(), applied, ..self }.again(now)))
    }

    /// The longer it has waited, the less often it tries.
    fn again(self, now: Instant) -> Parked {
        let pause = (now.duration_since(self.since) / 2).clamp(PAUSE_MIN, PAUSE_MAX);
        Parked { due: now + pause, ..self }
    }
}

/// Begins to delete the keys of a batch.
fn change_keys<'t>(table: &'t Table, keys: &[u8]) -> Result<Change<'t>, Denied> {
    let keys = framed(keys)?;
    table.change(Claim::Delete, keys.len(), keys.iter().map(|key| key.len()).sum())
}

/// Deletes keys one after another; those that are left where `parks` and there is no memory for the
/// next.
fn delete_from<'k>(
    table: &Table,
    change: &mut Change<'_>,
    keys: &'k [u8],
    mut applied: Applied,
    parks: bool,
) -> (Applied, Option<&'k [u8]>) {
    let mut left = keys;
    while let Some((key, rest)) = wire::split_piece(left) {
        let outcome = match table.delete_now(change, key) {
            Ok((true, stamp)) => {
                table.count(-1);
                if stamp > 0 {
                    table.note_change(stamp);
                }
                change.record(stamp, table.id, log::Change::Delete { key });
                table.chains.changed(1, &table.tree);
                Ok(true)
            }
            Ok((false, stamp)) => {
                change.refused(stamp);
                Err(FaultCode::NotFound)
            }
            Err(Error::Exhausted) if parks => return (applied, Some(left)),
            Err(error) => Err(code(error)),
        };
        if !note(&mut applied, outcome) {
            break;
        }
        left = rest;
    }
    (applied, None)
}

/// Gets one row's value, and what showing it waits for.
pub(crate) fn get(table: &Table, key: &[u8]) -> (Option<Vec<u8>>, Hold) {
    let mut value = Vec::new();
    let (found, newest) = table.tree.get_stamped(key, &mut value);
    (found.then_some(value), table.shown(newest))
}

/// Counts an outcome; false when the rest of the batch makes no sense.
fn note(applied: &mut Applied, outcome: Result<bool, FaultCode>) -> bool {
    let index = applied.rows;
    applied.rows += 1;
    match outcome {
        Ok(replaced) => {
            applied.applied += 1;
            applied.replaced += u32::from(replaced);
            true
        }
        Err(code) => {
            applied.failed.push((index, code));
            // Without memory, or room in the log, the rows behind would only fail as well.
            !matches!(code, FaultCode::Exhausted | FaultCode::DiskFull) && applied.failed.len() < FAILED_MAX
        }
    }
}

/// The pieces of a batch.
fn framed(batch: &[u8]) -> Result<Vec<&[u8]>, Fault> {
    wire::pieces(batch)
        .map_err(|error| fault(FaultCode::BadRequest, format!("{error}; nothing of the batch was applied")))
}

/// Between two tries of a delete that waits for memory.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(32);

fn code(error: Error) -> FaultCode {
    match error {
        Error::Exists => FaultCode::Duplicate,
        Error::Exhausted => FaultCode::Exhausted,
        Error::ValueTooLong { .. } => FaultCode::TooLarge,
        _ => FaultCode::BadRow,
    }
}
