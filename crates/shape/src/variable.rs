//! Values of any length: offsets and data, as Arrow lays them out.

use std::sync::Arc;

use crate::bitmap::Bitmap;
use crate::bitmapped::{Column, Stepped, column, trimmed};
use crate::error::ShapeError;
use crate::form::Form;
use crate::offsets::Offsets;
use crate::run::Run;

/// Values of any length under offsets, all of them or those of a bitmap (d-rdma §6 DR-M52).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variable {
    pub(crate) data: u64,
    pub(crate) offsets: Offsets,
    pub(crate) rows: Option<Bitmap>,
    /// With a bitmap: bytes before each block of its set rows.
    pub(crate) blocks: Arc<[u64]>,
    pub(crate) bytes: u64,
    pub(crate) fragments: u64,
    /// Values of a byte or more.
    pub(crate) nonempty: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Variable {
    /// Values that belong.
    pub(crate) fn values(&self) -> u64 {
        self.rows.as_ref().map_or(self.offsets.len() as u64 - 1, Bitmap::ones)
    }

    /// Where row `row` of the offsets lies.
    pub(crate) fn run(&self, row: u64) -> Run {
        let (from, to) = (self.offsets[row as usize], self.offsets[row as usize + 1]);
        Run::new(self.data + from, to - from)
    }

    /// Bytes of the values before value number `k`.
    pub(crate) fn bytes_before(&self, k: u64) -> u64 {
        let Some(rows) = &self.rows else { return self.offsets[k as usize] - self.offsets[0] };
        if k >= self.values() {
            return self.bytes;
        }
        let rest = k % VALUES_PER_BLOCK;
        let within: u64 = rows.ones_from(k - rest).take(rest as usize).map(|row| self.run(row).len).sum();
        self.blocks[(k / VALUES_PER_BLOCK) as usize] + within
    }

    /// The value that holds stream byte `at`, and the byte's offset in it.
    pub(crate) fn locate(&self, at: u64) -> (u64, u64) {
        let block = self.blocks.partition_point(|before| *before <= at).saturating_sub(1);
        let (mut k, mut left) = (block as u64 * VALUES_PER_BLOCK, at - self.blocks[block]);
        let from = k;
        for row in self.rows.iter().flat_map(|rows| rows.ones_from(from)) {
            let len = self.run(row).len;
            if left < len {
                break;
            }
            (left, k) = (left - len, k + 1);
        }
        (k, left)
    }
}

/// Checks offsets and selection. Values of one length are a column.
pub(crate) fn variable(data: u64, offsets: Arc<[u64]>, rows: Option<Bitmap>) -> Result<Form, ShapeError> {
    let Some((&first, &last)) = offsets.first().zip(offsets.last()) else {
        return Err(ShapeError::Offsets { index: 0 });
    };
    if let Some(index) = offsets.windows(2).position(|w| w[0] > w[1]) {
        return Err(ShapeError::Offsets { index: index + 1 });
    }
    data.checked_add(last).ok_or(ShapeError::Overflow)?;
    let values = offsets.len() as u64 - 1;
    if let Some(rows) = rows.as_ref().filter(|rows| rows.rows() != values) {
        return Err(ShapeError::Selection { rows: rows.rows(), values });
    }
    let width = offsets.get(1).map_or(0, |second| second - first);
    if width > 0 && offsets.windows(2).all(|w| w[1] - w[0] == width) {
        let dense = Column::dense(data + first, width);
        let all = || Bitmap::of(values, |_| true);
        let rows = Stepped::of(&rows.unwrap_or_else(all));
        return match trimmed(&[dense], &rows)? {
            Some(columns) => column(columns[0], &rows),
            None => Ok(Form::empty()),
        };
    }
    let rows = rows.filter(|rows| rows.ones() < values);
    let full = last > first;
    let nonempty = offsets.windows(2).filter(|w| w[0] < w[1]).count() as u64;
    let mut out = Variable {
        data,
        offsets: Offsets::new(offsets),
        rows: None,
        blocks: Arc::new([]),
        bytes: last - first,
        fragments: u64::from(full),
        nonempty,
        start: if full { data + first } else { 0 },
        end: if full { data + last } else { 0 },
    };
    if let Some(rows) = rows {
        select(&mut out, rows);
    }
    Ok(Form::Variable(Box::new(out)))
}

/// Narrows a region of all values to those of a bitmap.
fn select(region: &mut Variable, rows: Bitmap) {
    let (mut bytes, mut fragments, mut nonempty, mut start, mut end) = (0, 0, 0, None, 0);
    let mut blocks = Vec::with_capacity(rows.ones().div_ceil(VALUES_PER_BLOCK) as usize);
    for (k, row) in rows.ones_from(0).enumerate() {
        if (k as u64).is_multiple_of(VALUES_PER_BLOCK) {
            blocks.push(bytes);
        }
        let run = region.run(row);
        if run.len > 0 {
            fragments += u64::from(start.is_none() || end != run.at);
            start = start.or(Some(run.at));
            (end, bytes, nonempty) = (run.at + run.len, bytes + run.len, nonempty + 1);
        }
    }
    (region.rows, region.blocks) = (Some(rows), blocks.into());
    (region.bytes, region.fragments, region.nonempty) = (bytes, fragments, nonempty);
    (region.start, region.end) = (start.unwrap_or(0), end);
}

/// Selected values between two entries of the directory.
const VALUES_PER_BLOCK: u64 = 64;
