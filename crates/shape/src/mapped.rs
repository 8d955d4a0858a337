//! Rows at offsets without a rule, each under one pattern.

use std::sync::Arc;

use crate::error::ShapeError;
use crate::form::Form;
use crate::offsets::Offsets;
use crate::run::{Run, Runs, folded, total};
use crate::strided::{Level, canonical, regular};

/// Rows and the pattern of each (d-rdma §3.3 DR-M17).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mapped {
    /// Offsets of the pattern's first run.
    pub(crate) rows: Offsets,
    /// The first is at 0.
    pub(crate) runs: Runs,
    pub(crate) row_bytes: u64,
    pub(crate) fragments: u64,
}

/// Checks rows and their pattern; equidistant ascending rows are a stride. Gives the row's bytes
/// besides.
pub(crate) fn mapped(rows: Arc<[u64]>, runs: &[Run]) -> Result<(Form, u64), ShapeError> {
    let mut runs = folded(runs, ShapeError::Runs { period: u64::MAX })?;
    let row_bytes = total(&runs)?;
    let (Some(first), Some(last)) = (runs.first().copied(), runs.last().copied()) else {
        return Ok((Form::empty(), row_bytes));
    };
    let reach = last.at + last.len;
    if rows.iter().any(|row| row.checked_add(reach).is_none()) {
        return Err(ShapeError::Overflow);
    }
    row_bytes.checked_mul(rows.len() as u64).ok_or(ShapeError::Overflow)?;
    runs.iter_mut().for_each(|r| r.at -= first.at);
    let lead = |rows: Arc<[u64]>| -> Arc<[u64]> {
        if first.at == 0 { rows } else { rows.iter().map(|row| row + first.at).collect() }
    };
    let rows = lead(rows);
    let span = reach - first.at;
    match *rows {
        [] => return Ok((Form::empty(), row_bytes)),
        [one] => return Ok((canonical(one, Vec::new(), runs)?, row_bytes)),
        [one, two, ..] if two > one && two - one >= span && equidistant(&rows, two - one) => {
            let level = Level::new(two - one, rows.len() as u64);
            return Ok((regular(one, &[level], &runs)?.form, row_bytes));
        }
        _ => {}
    }
    let touching = rows.windows(2).filter(|w| w[0] + span == w[1]).count();
    let fragments = (runs.len() * rows.len() - touching) as u64;
    Ok((Form::Mapped(Mapped { rows: Offsets::new(rows), runs: runs.into(), row_bytes, fragments }), row_bytes))
}

fn equidistant(rows: &[u64], step: u64) -> bool {
    rows.windows(2).all(|w| w[0].checked_add(step) == Some(w[1]))
}
