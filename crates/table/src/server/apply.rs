//! Putting, getting and deleting rows.

use overside_bwtree::Error;

use super::store::{Table, fault};
use crate::row::RowView;
use crate::wire::{self, Applied, FAILED_MAX, Fault, FaultCode, PutMode};

/// Puts a batch: each row by itself, on to the next after one that fails. A batch whose framing is
/// broken is refused before anything is applied.
pub(crate) fn put(table: &Table, mode: PutMode, rows: &[u8]) -> Result<Applied, Fault> {
    let rows = framed(rows)?;
    let mut applied = Applied::default();
    let mut key = Vec::new();
    for value in rows {
        let outcome = put_row(table, mode, value, &mut key);
        if !note(&mut applied, outcome) {
            break;
        }
    }
    Ok(applied)
}

/// True when a row was replaced.
fn put_row(table: &Table, mode: PutMode, value: &[u8], key: &mut Vec<u8>) -> Result<bool, FaultCode> {
    let row = RowView::of_value(value, &table.layout).map_err(|_| FaultCode::BadRow)?;
    row.check().map_err(|_| FaultCode::BadRow)?;
    key.clear();
    table.keys.encode_row(&row, key).map_err(|_| FaultCode::BadRow)?;
    let replaced = match mode {
        PutMode::Upsert => table.tree.upsert(key, value),
        PutMode::Insert => table.tree.insert(key, value).map(|()| false),
        PutMode::Update => match table.tree.update(key, value) {
            Ok(false) => return Err(FaultCode::NotFound),
            done => done,
        },
    };
    let replaced = replaced.map_err(code)?;
    if !replaced {
        table.count(1);
    }
    Ok(replaced)
}

/// Deletes a batch of encoded keys.
pub(crate) fn delete(table: &Table, keys: &[u8]) -> Result<Applied, Fault> {
    let keys = framed(keys)?;
    let mut applied = Applied::default();
    for key in keys {
        let outcome = match table.tree.delete(key) {
            Ok(true) => {
                table.count(-1);
                Ok(true)
            }
            Ok(false) => Err(FaultCode::NotFound),
            Err(error) => Err(code(error)),
        };
        if !note(&mut applied, outcome) {
            break;
        }
    }
    Ok(applied)
}

/// Gets one row's value.
pub(crate) fn get(table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
    let mut value = Vec::new();
    let found = table.tree.get(key, &mut value).map_err(|e| fault(code(e), code(e).text().into()))?;
    Ok(found.then_some(value))
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
            // Without memory the rows behind would only fail as well.
            code != FaultCode::Exhausted && applied.failed.len() < FAILED_MAX
        }
    }
}

/// The pieces of a batch.
fn framed(batch: &[u8]) -> Result<Vec<&[u8]>, Fault> {
    wire::pieces(batch)
        .map_err(|error| fault(FaultCode::BadRequest, format!("{error}; nothing of the batch was applied")))
}

fn code(error: Error) -> FaultCode {
    match error {
        Error::Exists => FaultCode::Duplicate,
        Error::Exhausted => FaultCode::Exhausted,
        Error::ValueTooLong { .. } => FaultCode::TooLarge,
        _ => FaultCode::BadRow,
    }
}
