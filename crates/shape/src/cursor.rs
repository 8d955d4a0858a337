//! A place in the bytes of one region, in message order.

use crate::bitmap::{Bitmap, Ones};
use crate::bitmapped::{Bitmapped, Column};
use crate::form::Form;
use crate::mapped::Mapped;
use crate::run::{Run, Runs};
use crate::strided::{LEVELS_MAX, Strided};
use crate::variable::Variable;

/// Yields the runs of a region that is no set. Constant size, whatever the region.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    place: Position<'a>,
    /// What is left of the current run.
    rest: Run,
}

#[derive(Clone, Debug)]
enum Position<'a> {
    End,
    Strided { region: &'a Strided, digits: [u64; LEVELS_MAX], period_at: u64, run: usize },
    List { runs: &'a [Run], next: usize },
    Bitmapped { region: &'a Bitmapped, ones: Ones<'a>, row: u64, column: usize },
    Dense { base: u64, width: u64, ones: Ones<'a> },
    Column { column: Column, ones: Ones<'a> },
    Mapped { region: &'a Mapped, row: usize, run: usize },
    Variable { region: &'a Variable, ones: Ones<'a> },
}

impl<'a> Cursor<'a> {
    /// At byte `at` of the region's bytes in message order.
    pub(crate) fn new(form: &'a Form, at: u64) -> Self {
        let end = |run: Run| Self { place: Position::End, rest: Run::new(run.at + at, run.len - at) };
        match form {
            Form::Contiguous(run) if at < run.len => end(*run),
            Form::Variable(v) if v.rows.is_none() && at < v.bytes => end(Run::new(v.data + v.offsets[0], v.bytes)),
            Form::Strided(s) => Self::strided(s, at),
            Form::List(runs) => Self::list(runs, at),
            Form::Bitmapped(b) if at < b.rows.ones() * b.row_bytes => Self::bitmapped(b, at),
            Form::Mapped(m) => Self::mapped(m, at),
            Form::Variable(v) if at < v.bytes => Self::variable(v, at),
            // Behind the last byte; a set's regions have cursors of their own.
            _ => Self { place: Position::End, rest: Run::new(0, 0) },
        }
    }

    fn strided(region: &'a Strided, at: u64) -> Self {
        let (mut index, left) = (at / region.period_bytes, at % region.period_bytes);
        let past = index >= region.periods();
        let period_at = region.base + region.period_at(if past { 0 } else { index });
        let mut digits = [0; LEVELS_MAX];
        for (i, level) in region.levels.iter().enumerate().rev() {
            digits[i] = index % level.count;
            index /= level.count;
        }
        let (run, left) = if past { (usize::MAX, 0) } else { region.runs.locate(left) };
        let place = Position::Strided { region, digits, period_at, run };
        Self { place, rest: Run::new(0, 0) }.skip(left)
    }

    fn list(runs: &'a Runs, at: u64) -> Self {
        let (next, left) = runs.locate(at);
        Self { place: Position::List { runs, next }, rest: Run::new(0, 0) }.skip(left)
    }

    fn bitmapped(region: &'a Bitmapped, at: u64) -> Self {
        let mut ones = region.rows.ones_from(at / region.row_bytes);
        let place = match &*region.columns {
            [one] => return Self::column(*one, &region.rows, at / region.row_bytes).skip(at % region.row_bytes),
            _ => match ones.next() {
                Some(row) => Position::Bitmapped { region, ones, row, column: 0 },
                None => Position::End,
            },
        };
        Self { place, rest: Run::new(0, 0) }.skip(at % region.row_bytes)
    }

    /// At set row number `k` of one column.
    pub(crate) fn column(column: Column, rows: &'a Bitmap, k: u64) -> Self {
        let ones = rows.ones_from(k);
        let place = match column {
            Column { base, stride, width } if stride == width => Position::Dense { base, width, ones },
            _ => Position::Column { column, ones },
        };
        Self { place, rest: Run::new(0, 0) }
    }

    fn mapped(region: &'a Mapped, at: u64) -> Self {
        let (run, left) = region.runs.locate(at % region.row_bytes);
        let place = Position::Mapped { region, row: (at / region.row_bytes) as usize, run };
        Self { place, rest: Run::new(0, 0) }.skip(left)
    }

    fn variable(region: &'a Variable, at: u64) -> Self {
        let (k, left) = region.locate(at);
        let Some(rows) = &region.rows else { return Self { place: Position::End, rest: Run::new(0, 0) } };
        Self { place: Position::Variable { region, ones: Bitmap::ones_from(rows, k) }, rest: Run::new(0, 0) }.skip(left)
    }

    fn skip(mut self, mut bytes: u64) -> Self {
        while bytes > 0 {
            match self.take(bytes) {
                Some(run) => bytes -= run.len,
                None => break,
            }
        }
        self
    }

    /// The next bytes that lie together, `most` at most (and at least one).
    #[inline]
    pub(crate) fn take(&mut self, most: u64) -> Option<Run> {
        while self.rest.len == 0 {
            self.rest = self.place.next_run()?;
        }
        let len = most.min(self.rest.len);
        let out = Run::new(self.rest.at, len);
        self.rest = Run::new(out.at + len, self.rest.len - len);
        Some(out)
    }
}

impl Position<'_> {
    #[inline]
    fn next_run(&mut self) -> Option<Run> {
        match self {
            Position::End => None,
            Position::Strided { region, digits, period_at, run } => {
                if *run == region.runs.len() {
                    *run = 0;
                    if !advance(region, digits, period_at) {
                        *run = usize::MAX;
                    }
                }
                let next = region.runs.get(*run)?;
                *run += 1;
                Some(Run::new(*period_at + next.at, next.len))
            }
            Position::List { runs, next } => {
                let run = runs.get(*next)?;
                *next += 1;
                Some(*run)
            }
            Position::Bitmapped { region, ones, row, column } => {
                if *column == region.columns.len() {
                    (*row, *column) = (ones.next()?, 0);
                }
                let of = region.columns[*column];
                *column += 1;
                Some(Run::new(of.base + *row * of.stride, of.width))
            }
            Position::Dense { base, width, ones } => {
                let (row, len) = ones.next_span()?;
                Some(Run::new(*base + row * *width, len * *width))
            }
            Position::Column { column, ones } => {
                ones.next().map(|row| Run::new(column.base + row * column.stride, column.width))
            }
            Position::Mapped { region, row, run } => {
                if *run == region.runs.len() {
                    (*row, *run) = (*row + 1, 0);
                }
                let (at, next) = (region.rows.get(*row)?, region.runs[*run]);
                *run += 1;
                Some(Run::new(*at + next.at, next.len))
            }
            Position::Variable { region, ones } => ones.next().map(|row| region.run(row)),
        }
    }
}

/// The next innermost period; false behind the last.
#[inline]
fn advance(region: &Strided, digits: &mut [u64; LEVELS_MAX], period_at: &mut u64) -> bool {
    for (i, level) in region.levels.iter().enumerate().rev() {
        digits[i] += 1;
        if digits[i] < level.count {
            *period_at += level.period;
            return true;
        }
        *period_at -= (level.count - 1) * level.period;
        digits[i] = 0;
    }
    false
}
