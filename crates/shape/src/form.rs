//! The kinds of region.

use std::sync::Arc;

use crate::bitmap::Bitmap;
use crate::bitmapped::{Bitmapped, Column};
use crate::mapped::Mapped;
use crate::run::{Run, Runs};
use crate::shape::Shape;
use crate::strided::{Level, Strided};
use crate::variable::Variable;

/// How messages lie across the regions of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mask {
    /// Message i is element i of every region: a transposition (d-rdma §3.2 DR-M12).
    Rows,
    /// One region after another, by its own messages (d-rdma §3.2 DR-M13).
    Periods,
}

/// What a shape is made of, for whoever specialises by kind.
#[derive(Clone, Copy, Debug)]
pub enum ShapeKind<'a> {
    /// One range.
    Contiguous(Run),
    /// Periods within periods.
    Strided {
        /// Offset of the first run.
        base: u64,
        /// Outermost first, each of two periods or more; never empty.
        levels: &'a [Level],
        /// Of each innermost period, ascending, the first at 0; never empty.
        runs: &'a [Run],
    },
    /// Ranges without a rule, in message order.
    List(&'a [Run]),
    /// Set rows across columns, row after row.
    Bitmapped {
        /// In message order; never empty.
        columns: &'a [Column],
        /// Its first and last row are set.
        rows: &'a Bitmap,
    },
    /// Rows at offsets without a rule.
    Mapped {
        /// Offsets of the rows, in message order.
        rows: &'a [u64],
        /// Of each row, ascending; never empty.
        runs: &'a [Run],
    },
    /// Values of any length.
    Variable {
        /// Offset of the data that the offsets count from.
        data: u64,
        /// Ascending, one more than there are values.
        offsets: &'a [u64],
        /// Which values belong; all of them without.
        rows: Option<&'a Bitmap>,
    },
    /// Regions with a rule that cuts messages across them.
    Set {
        /// None is a set itself; all have the same number of elements.
        regions: &'a [Shape],
        /// The rule.
        mask: Mask,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// One range (an SGE in the language of verbs; d-rdma §3.1 DR-M05).
    Contiguous(Run),
    /// Periods (d-rdma §3.1 DR-M04).
    Strided(Strided),
    /// Ranges without a rule.
    List(Runs),
    /// Columns under a bitmap (d-rdma §3.3 DR-M18).
    Bitmapped(Bitmapped),
    /// Rows under a pattern (d-rdma §3.3 DR-M17).
    Mapped(Mapped),
    /// Offsets and data (d-rdma §6 DR-M52).
    Variable(Box<Variable>),
    /// Regions under a row mask (d-rdma §3.2).
    Set { regions: Arc<[Shape]>, mask: Mask },
}

impl Form {
    pub(crate) const fn empty() -> Self {
        Form::Contiguous(Run::new(0, 0))
    }

    /// Folded ranges.
    pub(crate) fn ranges(ranges: Vec<Run>) -> Self {
        match ranges.as_slice() {
            [] => Self::empty(),
            [one] => Form::Contiguous(*one),
            _ => Form::List(ranges.into()),
        }
    }

    pub(crate) fn kind(&self) -> ShapeKind<'_> {
        match self {
            Form::Contiguous(run) => ShapeKind::Contiguous(*run),
            Form::Strided(s) => ShapeKind::Strided { base: s.base, levels: &s.levels, runs: &s.runs },
            Form::List(runs) => ShapeKind::List(runs),
            Form::Bitmapped(b) => ShapeKind::Bitmapped { columns: &b.columns, rows: &b.rows },
            Form::Mapped(m) => ShapeKind::Mapped { rows: &m.rows, runs: &m.runs },
            Form::Variable(v) => ShapeKind::Variable { data: v.data, offsets: &v.offsets, rows: v.rows.as_ref() },
            Form::Set { regions, mask } => ShapeKind::Set { regions, mask: *mask },
        }
    }

    /// Bytes, the lowest of them, and one past the highest; all checked to fit when the form was
    /// made.
    pub(crate) fn extent(&self) -> (u64, u64, u64) {
        match self {
            Form::Contiguous(run) => (run.len, run.at, run.at + run.len),
            Form::Strided(s) => (s.periods() * s.period_bytes, s.base, s.base + s.reach_of(0)),
            Form::List(runs) => {
                let start = runs.iter().map(|r| r.at).min().unwrap_or(0);
                (runs.iter().map(|r| r.len).sum(), start, runs.iter().map(|r| r.at + r.len).max().unwrap_or(0))
            }
            Form::Bitmapped(b) => {
                let last = b.rows.rows() - 1;
                let start = b.columns.iter().map(|c| c.base).min().unwrap_or(0);
                let end = b.columns.iter().map(|c| c.base + last * c.stride + c.width).max().unwrap_or(0);
                (b.rows.ones() * b.row_bytes, start, end)
            }
            Form::Mapped(m) => {
                let (low, high) = m.rows.iter().fold((u64::MAX, 0), |(l, h), row| (l.min(*row), h.max(*row)));
                (m.rows.len() as u64 * m.row_bytes, low, high + m.runs.last().map_or(0, |r| r.at + r.len))
            }
            Form::Variable(v) => (v.bytes, v.start, v.end),
            Form::Set { regions, .. } => {
                let full = || regions.iter().filter(|r| r.bytes > 0);
                let start = full().map(Shape::start).min().unwrap_or(0);
                (full().map(|r| r.bytes).sum(), start, full().map(Shape::end).max().unwrap_or(0))
            }
        }
    }
}
