//! Gap analysis: where a region's gaps are, how long, and their share (d-rdma §4.1 DR-M21, DR-M30).
//!
//! A stride knows its gaps from its levels and a bitmap by counting bits; only sets and what has no
//! rule are laid out in address order for it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::bitmap::Bitmap;
use crate::bitmapped::Column;
use crate::form::{Form, ShapeKind};
use crate::run::Run;
use crate::shape::Shape;
use crate::strided::{Level, Strided};

/// Gaps of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GapClass {
    /// Bytes of each.
    pub len: u64,
    /// How many there are.
    pub count: u64,
}

/// Data and gaps within a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Bytes that belong.
    pub data: u64,
    /// Bytes that do not.
    pub gaps: u64,
}

impl Coverage {
    /// Bytes of gap per byte of data; infinite without data.
    pub fn ratio(self) -> f64 {
        self.gaps as f64 / self.data as f64
    }
}

/// The gaps between address-ordered, merged fragments, as [`Shape::address_order`] makes them.
pub fn gaps(ordered: &[Run]) -> impl Iterator<Item = Run> {
    ordered.windows(2).map(|w| Run::new(w[0].at + w[0].len, w[1].at - w[0].at - w[0].len))
}

impl Shape {
    /// The lengths of the gaps between the first and the last byte in address order, ascending,
    /// with their number. Strides answer from their levels and single bitmapped columns from their
    /// bits; other kinds are laid out.
    pub fn gap_classes(&self) -> Vec<GapClass> {
        let mut classes = BTreeMap::new();
        match &self.form {
            Form::Contiguous(_) => {}
            Form::Strided(s) => of_stride(s, &mut classes),
            Form::Bitmapped(b) if b.columns.len() == 1 => of_bits(b.columns[0], &b.rows, &mut classes),
            _ => {
                let mut ordered = Vec::new();
                self.address_order(&mut ordered);
                gaps(&ordered).for_each(|gap| *classes.entry(gap.len).or_insert(0) += 1);
            }
        }
        classes
            .into_iter()
            .filter(|(len, count)| *len > 0 && *count > 0)
            .map(|(len, count)| GapClass { len, count })
            .collect()
    }

    /// How much of the addresses `range` belongs to the shape. A byte that regions of a set share
    /// counts for each. By arithmetic for strides, by bit counts for bitmaps, by search for values;
    /// lists and mapped rows are read.
    pub fn coverage(&self, range: Range<u64>) -> Coverage {
        let data = self.data_below(range.end) - self.data_below(range.start.min(range.end));
        let gaps = range.end.saturating_sub(range.start).saturating_sub(data);
        Coverage { data, gaps }
    }

    /// Bytes of the shape below an address.
    fn data_below(&self, address: u64) -> u64 {
        let clip = |run: Run| address.saturating_sub(run.at).min(run.len);
        match &self.form {
            Form::Contiguous(run) => clip(*run),
            Form::Strided(s) => below(&s.levels, &s.runs, s.period_bytes, address.saturating_sub(s.base)),
            Form::List(runs) => runs.iter().map(|run| clip(*run)).sum(),
            Form::Bitmapped(b) => b.columns.iter().map(|c| column_below(*c, &b.rows, address)).sum(),
            Form::Mapped(m) => {
                let row = |at: &u64| m.runs.iter().map(|r| clip(Run::new(at + r.at, r.len))).sum::<u64>();
                m.rows.iter().map(row).sum()
            }
            Form::Variable(v) => {
                // The row that the address lies in or behind.
                let row = v.offsets.partition_point(|offset| v.data + offset <= address) as u64;
                let Some(row) = row.checked_sub(1).filter(|row| *row + 1 < v.offsets.len() as u64) else {
                    return if row == 0 { 0 } else { v.bytes };
                };
                let (before, belongs) = match &v.rows {
                    Some(rows) => (rows.rank(row), rows.contains(row)),
                    None => (row, true),
                };
                v.bytes_before(before) + if belongs { clip(v.run(row)) } else { 0 }
            }
            Form::Set { regions, .. } => regions.iter().map(|r| r.data_below(address)).sum(),
        }
    }

    /// Whether the fragments ascend in address as they stand in the message.
    pub fn ascends(&self) -> bool {
        match self.kind() {
            ShapeKind::Contiguous(_) | ShapeKind::Strided { .. } | ShapeKind::Variable { .. } => true,
            ShapeKind::Bitmapped { columns, .. } => columns.len() == 1,
            ShapeKind::List(runs) => runs.windows(2).all(|w| w[0].at + w[0].len <= w[1].at),
            ShapeKind::Mapped { .. } | ShapeKind::Set { .. } => false,
        }
    }
}

/// Bytes of periods within periods that lie below offset `at`.
fn below(levels: &[Level], runs: &[Run], period_bytes: u64, at: u64) -> u64 {
    let Some((level, inner)) = levels.split_first() else {
        return runs.iter().map(|r| at.saturating_sub(r.at).min(r.len)).sum();
    };
    let full: u64 = inner.iter().map(|l| l.count).product::<u64>() * period_bytes;
    let periods = at / level.period;
    if periods >= level.count {
        return level.count * full;
    }
    periods * full + below(inner, runs, period_bytes, at % level.period)
}

fn column_below(column: Column, rows: &Bitmap, address: u64) -> u64 {
    let Some(at) = address.checked_sub(column.base) else { return 0 };
    let row = at / column.stride;
    let part = if rows.contains(row) { (at % column.stride).min(column.width) } else { 0 };
    rows.rank(row) * column.width + part
}

fn of_stride(s: &Strided, classes: &mut BTreeMap<u64, u64>) {
    gaps(&s.runs).for_each(|gap| *classes.entry(gap.len).or_insert(0) += s.periods());
    let mut outer = 1;
    for (i, level) in s.levels.iter().enumerate() {
        *classes.entry(level.period - s.reach_of(i + 1)).or_insert(0) += outer * (level.count - 1);
        outer *= level.count;
    }
}

fn of_bits(column: Column, rows: &Bitmap, classes: &mut BTreeMap<u64, u64>) {
    // Gaps of so many rows that are not set; longer ones are rare.
    let mut short = [0u64; 64];
    let mut reach = None;
    let mut ones = rows.ones_from(0);
    while let Some((row, len)) = ones.next_span() {
        short[0] += len - 1;
        match reach.map(|reach: u64| row - reach) {
            Some(missing @ 0..64) => short[missing as usize] += 1,
            Some(missing) => *classes.entry(gap_of(column, missing)).or_insert(0) += 1,
            None => {}
        }
        reach = Some(row + len);
    }
    for (missing, count) in short.into_iter().enumerate() {
        *classes.entry(gap_of(column, missing as u64)).or_insert(0) += count;
    }
}

/// Bytes between two values with so many rows missing between them.
fn gap_of(column: Column, missing: u64) -> u64 {
    (missing + 1) * column.stride - column.width
}
