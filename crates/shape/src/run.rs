//! A range of bytes, and lists of them.

use crate::error::ShapeError;

/// `len` bytes from offset `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// Offset of the first byte.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Run {
    /// `len` bytes from offset `at`.
    pub const fn new(at: u64, len: u64) -> Self {
        Self { at, len }
    }

    /// Offset one past the last byte, unless that overflows.
    pub fn end(self) -> Option<u64> {
        self.at.checked_add(self.len)
    }
}

/// Ascending, disjoint runs with touching neighbours folded and empty ones dropped.
pub(crate) fn folded(runs: &[Run], fault: ShapeError) -> Result<Vec<Run>, ShapeError> {
    let mut out: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs.iter().filter(|r| r.len > 0) {
        run.end().ok_or(ShapeError::Overflow)?;
        match out.last_mut() {
            Some(previous) if previous.at + previous.len > run.at => return Err(fault),
            Some(previous) if previous.at + previous.len == run.at => previous.len += run.len,
            _ => out.push(*run),
        }
    }
    Ok(out)
}

/// Sum of the lengths.
pub(crate) fn total(runs: &[Run]) -> Result<u64, ShapeError> {
    runs.iter().try_fold(0u64, |sum, r| sum.checked_add(r.len)).ok_or(ShapeError::Overflow)
}
