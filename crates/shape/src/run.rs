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

/// Many runs, and the bytes before each block of them: a place in their bytes is found without a
/// walk from the first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Runs {
    list: Box<[Run]>,
    /// Bytes before each block of [`RUNS_PER_BLOCK`] but the first.
    before: Box<[u64]>,
}

impl Runs {
    /// The run that holds byte `at` of their bytes in order, and the byte's offset in it; behind
    /// the last, where there is none.
    pub(crate) fn locate(&self, at: u64) -> (usize, u64) {
        let block = self.before.partition_point(|before| *before <= at);
        let mut left = at - block.checked_sub(1).map_or(0, |before| self.before[before]);
        let mut index = block * RUNS_PER_BLOCK;
        while let Some(run) = self.list.get(index)
            && left >= run.len
        {
            (index, left) = (index + 1, left - run.len);
        }
        (index, left)
    }
}

impl From<Vec<Run>> for Runs {
    /// Their lengths are known to add up within 64 bits.
    fn from(list: Vec<Run>) -> Self {
        let mut bytes = 0u64;
        let blocks = list.chunks_exact(RUNS_PER_BLOCK).map(|block| {
            bytes += block.iter().map(|run| run.len).sum::<u64>();
            bytes
        });
        Self { before: blocks.collect(), list: list.into() }
    }
}

impl std::ops::Deref for Runs {
    type Target = [Run];

    fn deref(&self) -> &[Run] {
        &self.list
    }
}

/// Runs between two entries of the directory.
const RUNS_PER_BLOCK: usize = 64;

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
