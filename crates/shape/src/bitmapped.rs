//! Columns under a bitmap of rows.

use crate::bitmap::Bitmap;
use crate::error::ShapeError;
use crate::form::Form;
use crate::run::Run;
use crate::strided::{Level, regular};

/// A column of a bitmapped region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Column {
    /// Offset of row 0's value.
    pub base: u64,
    /// Bytes from one row's value to the next row's.
    pub stride: u64,
    /// Bytes of a value.
    pub width: u64,
}

impl Column {
    /// Values of `width` bytes, `stride` apart, the first at `base`.
    pub const fn new(base: u64, stride: u64, width: u64) -> Self {
        Self { base, stride, width }
    }

    /// Values of `width` bytes without space between them.
    pub const fn dense(base: u64, width: u64) -> Self {
        Self { base, stride: width, width }
    }
}

/// In which order the values of a bitmapped region stand in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Row after row, each across all columns: a message a row (d-rdma §3.3 DR-M18).
    Rows,
    /// Column after column.
    Columns,
}

/// Set rows across columns, row after row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bitmapped {
    pub(crate) columns: Box<[Column]>,
    /// Its first and last row are set.
    pub(crate) rows: Bitmap,
    pub(crate) row_bytes: u64,
}

impl Bitmapped {
    /// Maximal fragments in message order.
    pub(crate) fn fragment_count(&self) -> u64 {
        if let [one] = &*self.columns {
            return if one.stride == one.width { self.rows.spans() } else { self.rows.ones() };
        }
        let mut count = 0;
        let mut reach = None;
        for row in self.rows.ones_from(0) {
            for column in &self.columns {
                let at = column.base + row * column.stride;
                count += u64::from(reach != Some(at));
                reach = Some(at + column.width);
            }
        }
        count
    }
}

/// What has to be stepped through a bitmap for: once, however many columns and regions lie under
/// it.
#[derive(Clone, Debug)]
pub(crate) struct Stepped {
    /// First and last set row, unless there is none.
    reach: Option<(u64, u64)>,
    /// The rows from the first set one to the last.
    pub(crate) rows: Bitmap,
    /// The distance between set rows, if it is one and the same.
    pub(crate) step: Option<u64>,
}

impl Stepped {
    pub(crate) fn of(rows: &Bitmap) -> Self {
        let reach = rows.reach();
        let trimmed = match reach {
            Some((first, last)) if first > 0 || last + 1 < rows.rows() => rows.slice(first..last + 1),
            _ => rows.clone(),
        };
        let step = trimmed.step();
        Self { reach, rows: trimmed, step }
    }
}

/// Checks columns over a bitmap and puts their bases on the first set row. Columns without a row
/// are empty.
pub(crate) fn trimmed(columns: &[Column], rows: &Stepped) -> Result<Option<Vec<Column>>, ShapeError> {
    for (index, column) in columns.iter().enumerate() {
        let fits = column.width > 0 && (column.stride >= column.width || rows.rows.ones() <= 1);
        if !fits {
            return Err(ShapeError::Column { column: index, stride: column.stride, width: column.width });
        }
    }
    let Some((first, last)) = rows.reach else { return Ok(None) };
    let mut out = Vec::with_capacity(columns.len());
    for column in columns {
        let at = |row: u64| row.checked_mul(column.stride).and_then(|at| at.checked_add(column.base));
        let reach = at(last).and_then(|at| at.checked_add(column.width));
        let (Some(base), Some(_)) = (at(first), reach) else { return Err(ShapeError::Overflow) };
        out.push(Column { base, ..*column });
    }
    Ok(Some(out))
}

/// One trimmed column whose set rows lie at one distance is a stride.
pub(crate) fn column(column: Column, stepped: &Stepped) -> Result<Form, ShapeError> {
    let rows = &stepped.rows;
    let level = match stepped.step {
        _ if rows.ones() == 1 => Level::new(0, 1),
        Some(step) => Level::new(step.checked_mul(column.stride).ok_or(ShapeError::Overflow)?, rows.ones()),
        None => {
            let (columns, row_bytes) = (Box::new([column]), column.width);
            return Ok(Form::Bitmapped(Bitmapped { columns, rows: rows.clone(), row_bytes }));
        }
    };
    let levels: &[Level] = if level.count > 1 { &[level] } else { &[] };
    Ok(regular(column.base, levels, &[Run::new(0, column.width)])?.form)
}
