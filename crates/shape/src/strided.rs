//! Regular regions: periods within periods, and their canonical form.

use crate::cursor::Cursor;
use crate::error::ShapeError;
use crate::form::Form;
use crate::run::{Run, Runs, folded, total};

/// `count` periods of `period` bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level {
    /// Bytes from one period's start to the next one's.
    pub period: u64,
    /// How many periods.
    pub count: u64,
}

impl Level {
    /// `count` periods of `period` bytes.
    pub const fn new(period: u64, count: u64) -> Self {
        Self { period, count }
    }

    fn reach(self, inner: u64) -> Option<u64> {
        self.count.checked_sub(1)?.checked_mul(self.period)?.checked_add(inner)
    }
}

/// A strided region with an element's width and a frequency (d-rdma §3.1 DR-M04): of each `of`
/// elements, `take` from element `start` on, `count` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frequency {
    /// Offset of the first period.
    pub base: u64,
    /// Bytes of an element.
    pub width: u64,
    /// Elements taken of each period.
    pub take: u64,
    /// Elements of a period.
    pub of: u64,
    /// First element taken of each period.
    pub start: u64,
    /// Periods.
    pub count: u64,
}

/// Periods within periods, ascending in address. Every field is canonical.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Strided {
    pub(crate) base: u64,
    /// Outermost first; each has two periods or more.
    pub(crate) levels: Box<[Level]>,
    /// Of each innermost period; the first starts it.
    pub(crate) runs: Runs,
    /// Bytes of one innermost period's runs.
    pub(crate) period_bytes: u64,
}

impl Strided {
    /// Innermost periods in all.
    pub(crate) fn periods(&self) -> u64 {
        self.levels.iter().map(|l| l.count).product()
    }

    /// Offset of innermost period `index` from the base.
    pub(crate) fn period_at(&self, mut index: u64) -> u64 {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            at += index % level.count * level.period;
            index /= level.count;
        }
        at
    }

    /// Maximal fragments: the runs, less one for each period that touches the next.
    pub(crate) fn fragment_count(&self) -> u64 {
        let mut count = self.runs.len() as u64 * self.periods();
        let mut outer = 1;
        for (i, level) in self.levels.iter().enumerate() {
            if self.reach_of(i + 1) == level.period {
                count -= outer * (level.count - 1);
            }
            outer *= level.count;
        }
        count
    }

    /// Bytes from the first to one past the last of levels `from` and within.
    pub(crate) fn reach_of(&self, from: usize) -> u64 {
        let steps: u64 = self.levels[from..].iter().map(|l| (l.count - 1) * l.period).sum();
        steps + self.runs.last().map_or(0, |r| r.at + r.len)
    }
}

/// A checked description and what follows from it.
pub(crate) struct Regular {
    pub(crate) form: Form,
    /// Bytes of one period as it was declared: the message (d-rdma §3.1 DR-M07).
    pub(crate) period_bytes: u64,
}

/// Checks levels (outermost first) over runs and folds them.
pub(crate) fn regular(base: u64, levels: &[Level], runs: &[Run]) -> Result<Regular, ShapeError> {
    let innermost = levels.last().map_or(u64::MAX, |l| l.period);
    let mut runs = folded(runs, ShapeError::Runs { period: innermost })?;
    let period_bytes = total(&runs)?;
    let (Some(first), Some(last)) = (runs.first().copied(), runs.last().copied()) else {
        return Ok(Regular { form: Form::empty(), period_bytes });
    };
    if last.at + last.len > innermost {
        return Err(ShapeError::Runs { period: innermost });
    }
    if levels.iter().any(|l| l.count == 0) {
        return Ok(Regular { form: Form::empty(), period_bytes });
    }
    let base = base.checked_add(first.at).ok_or(ShapeError::Overflow)?;
    runs.iter_mut().for_each(|r| r.at -= first.at);
    let mut reach = last.at + last.len - first.at;
    for (index, level) in levels.iter().enumerate().rev() {
        if level.count > 1 && level.period < reach {
            return Err(ShapeError::Level { level: index, period: level.period, reach });
        }
        reach = level.reach(reach).ok_or(ShapeError::Overflow)?;
    }
    base.checked_add(reach).ok_or(ShapeError::Overflow)?;
    let levels = levels.iter().copied().filter(|l| l.count > 1).collect();
    Ok(Regular { form: canonical(base, levels, runs)?, period_bytes })
}

/// The canonical form of checked levels over folded runs of which the first is at 0. A handful of
/// fragments goes by way of their list, so that whatever describes them meets in one form.
pub(crate) fn canonical(base: u64, levels: Vec<Level>, runs: Vec<Run>) -> Result<Form, ShapeError> {
    let form = reduced(base, levels, runs)?;
    let few = match &form {
        Form::Strided(s) => s.fragment_count() <= SPELT_MAX,
        Form::List(runs) => runs.len() as u64 <= SPELT_MAX,
        _ => false,
    };
    if !few {
        return Ok(form);
    }
    let mut cursor = Cursor::new(&form, 0);
    let mut ranges: Vec<Run> = Vec::new();
    while let Some(run) = cursor.take(u64::MAX) {
        match ranges.last_mut() {
            Some(previous) if previous.at + previous.len == run.at => previous.len += run.len,
            _ => ranges.push(run),
        }
    }
    listed(ranges)
}

fn reduced(base: u64, levels: Vec<Level>, runs: Vec<Run>) -> Result<Form, ShapeError> {
    let (mut deep, mut few) = (levels.clone(), runs.clone());
    compress(&mut deep, &mut few);
    match folded_levels(base, deep, few) {
        // Runs that repeat may make more levels than are kept; then they stay runs.
        Err(ShapeError::Levels { .. }) => folded_levels(base, levels, runs),
        form => form,
    }
}

fn folded_levels(base: u64, mut levels: Vec<Level>, mut runs: Vec<Run>) -> Result<Form, ShapeError> {
    loop {
        let before = levels.len();
        flatten(&mut levels);
        if let ([run], Some(inner)) = (runs.as_mut_slice(), levels.last().copied())
            && run.len == inner.period
        {
            run.len *= inner.count;
            levels.pop();
        }
        if levels.len() == before {
            break;
        }
    }
    if levels.is_empty() {
        runs.iter_mut().for_each(|r| r.at += base);
        return Ok(Form::ranges(runs));
    }
    if levels.len() > LEVELS_MAX {
        return Err(ShapeError::Levels { levels: levels.len(), max: LEVELS_MAX });
    }
    let period_bytes = total(&runs)?;
    Ok(Form::Strided(Strided { base, levels: levels.into(), runs: runs.into(), period_bytes }))
}

/// Runs that repeat at one distance become levels of their own.
fn compress(levels: &mut Vec<Level>, runs: &mut Vec<Run>) {
    // As many divisors as a number of runs may have, each may fail at the last run: what is found by then is found.
    let mut left = COMPARED_MIN.max(runs.len().saturating_mul(COMPARED_PER_RUN));
    while runs.len() > 1 {
        if let Some(block) = (1..runs.len()).find(|block| repeats(runs, *block, &mut left)) {
            levels.push(Level::new(runs[block].at - runs[0].at, (runs.len() / block) as u64));
            runs.truncate(block);
        } else if let Some((level, period)) = touching(runs, &mut left) {
            levels.push(level);
            *runs = period;
        } else {
            return;
        }
    }
}

/// Whether `runs` is its first `block` runs again and again, at one distance. No longer so once
/// `left` comparisons are spent.
fn repeats(runs: &[Run], block: usize, left: &mut usize) -> bool {
    let step = runs[block].at - runs[0].at;
    runs.len().is_multiple_of(block)
        && (block..runs.len())
            .all(|i| spend(left) && runs[i].len == runs[i - block].len && runs[i].at - runs[i - block].at == step)
}

/// Takes one of `left`; false when there is none.
fn spend(left: &mut usize) -> bool {
    let some = left.checked_sub(1);
    *left = some.unwrap_or(0);
    some.is_some()
}

/// A level whose periods continue those within it at the same distance is one with them.
fn flatten(levels: &mut Vec<Level>) {
    let mut i = 1;
    while i < levels.len() {
        let (outer, inner) = (levels[i - 1], levels[i]);
        if inner.period.checked_mul(inner.count) == Some(outer.period) {
            levels[i - 1] = Level::new(inner.period, inner.count * outer.count);
            levels.remove(i);
        } else {
            i += 1;
        }
    }
}

/// The canonical form of ranges in the order given: touching neighbours folded, and a stride if the
/// whole list is one in ascending order.
pub(crate) fn listed(ranges: Vec<Run>) -> Result<Form, ShapeError> {
    let ascending = ranges.windows(2).all(|w| w[0].at + w[0].len < w[1].at);
    if ranges.len() < 2 || !ascending {
        return Ok(Form::ranges(ranges));
    }
    let base = ranges[0].at;
    let runs = ranges.iter().map(|r| Run::new(r.at - base, r.len)).collect();
    match reduced(base, Vec::new(), runs) {
        // A list may be a stride of more levels than are kept; it stays a list.
        Err(_) => Ok(Form::ranges(ranges)),
        form => form,
    }
}

/// The period of ranges whose periods touch: the last run of one is folded with the first run of
/// the next.
fn touching(runs: &[Run], left: &mut usize) -> Option<(Level, Vec<Run>)> {
    let (last, inner) = (runs.len() - 1, runs.first()?.len);
    let blocks = (1..=last / 2).filter(|block| last.is_multiple_of(*block));
    for block in blocks {
        let step = runs[block + 1].at - runs[1].at;
        let tail = runs[last].len;
        let equidistant = (block + 1..=last).all(|i| spend(left) && runs[i].at - runs[i - block].at == step);
        let alike = (block + 1..last).all(|i| spend(left) && runs[i].len == runs[i - block].len);
        let joined = runs[block].len == tail + inner && runs[block].at + tail == step;
        if equidistant && alike && joined {
            let mut period = runs[..=block].to_vec();
            period[block].len = tail;
            return Some((Level::new(step, (last / block) as u64), period));
        }
    }
    None
}

/// Fragments up to which a stride is compared by what it lists. As many make a small list.
pub(crate) const SPELT_MAX: u64 = 32;
/// Comparisons for each run in search of what repeats: a run with many divisors would be compared
/// hundreds of times.
const COMPARED_PER_RUN: usize = 16;
/// Comparisons however few runs there are: all that a hundred runs can take.
const COMPARED_MIN: usize = 1 << 14;
/// Levels that a shape keeps.
pub(crate) const LEVELS_MAX: usize = 6;
