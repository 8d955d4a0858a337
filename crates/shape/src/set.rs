//! Sets of regions under a row mask, and what simpler region some of them are.

use crate::bitmapped::{Bitmapped, Column};
use crate::cut::Cut;
use crate::error::ShapeError;
use crate::form::{Form, Mask};
use crate::run::Run;
use crate::shape::Shape;
use crate::strided::{SPELT_MAX, canonical};

/// Checks regions under a mask.
pub(crate) fn set(mut regions: Vec<Shape>, mask: Mask) -> Result<Shape, ShapeError> {
    check(&regions)?;
    let bytes = regions.iter().try_fold(0u64, |sum, r| sum.checked_add(r.bytes)).ok_or(ShapeError::Overflow)?;
    let message = match mask {
        Mask::Rows => uniform(regions.iter().map(|r| r.element), |sum, bytes| sum.checked_add(bytes)),
        Mask::Periods => uniform(regions.iter().map(|r| r.message), |all, bytes| (all == bytes).then_some(all)),
    };
    if bytes == 0 && message != Cut::Natural {
        return Ok(Shape::whole(Form::empty()));
    }
    if regions.len() == 1 {
        let only = regions.swap_remove(0);
        return Ok(if mask == Mask::Rows { Shape { message: only.element, ..only } } else { only });
    }
    if mask == Mask::Rows && regions[0].elements() == 1 && bytes > 0 && regions.iter().all(is_spelt) {
        let ranges: Vec<Run> = regions.iter().flat_map(Shape::fragments).collect();
        return Shape::list(&ranges);
    }
    if mask == Mask::Rows
        && let Some(form) = joined(&regions)?
    {
        return Ok(Shape::of(form, message, message));
    }
    Ok(Shape::of(Form::Set { regions: regions.into(), mask }, message, message))
}

/// Whether the fragments of a region are hardly more than what it was declared with. A rule may
/// name more of them than there is memory.
fn is_spelt(region: &Shape) -> bool {
    match &region.form {
        Form::Contiguous(_) | Form::List(_) => true,
        Form::Strided(s) => s.fragment_count() <= SPELT_MAX,
        _ => false,
    }
}

fn check(regions: &[Shape]) -> Result<(), ShapeError> {
    let expected = regions.first().map_or(0, Shape::elements);
    for (index, region) in regions.iter().enumerate() {
        if matches!(region.form, Form::Set { .. }) {
            return Err(ShapeError::Nested { region: index });
        }
        let elements = region.elements();
        if elements != expected {
            //= d-rdma §3.2 DR-M14
            return Err(ShapeError::Elements { region: index, elements, expected });
        }
    }
    Ok(())
}

/// The cut that even cuts make together; none if one is uneven or they do not go together.
fn uniform(cuts: impl Iterator<Item = Cut>, join: impl Fn(u64, u64) -> Option<u64>) -> Cut {
    let mut out: Option<u64> = None;
    for cut in cuts {
        let Cut::Every(bytes) = cut else { return Cut::Natural };
        out = match out {
            None => Some(bytes),
            Some(so_far) => match join(so_far, bytes) {
                Some(bytes) => Some(bytes),
                None => return Cut::Natural,
            },
        };
    }
    Cut::Every(out.unwrap_or(0))
}

/// Regions under [`Mask::Rows`] that are one region: columns of adjacent rows, or columns under one
/// bitmap.
fn joined(regions: &[Shape]) -> Result<Option<Form>, ShapeError> {
    match &regions[0].form {
        Form::Strided(_) => rows_of_periods(regions),
        Form::Bitmapped(_) => Ok(under_one_bitmap(regions)),
        _ => Ok(None),
    }
}

/// Regions of the same periods whose elements ascend within a period.
fn rows_of_periods(regions: &[Shape]) -> Result<Option<Form>, ShapeError> {
    let Form::Strided(first) = &regions[0].form else { return Ok(None) };
    let Some(innermost) = first.levels.last() else { return Ok(None) };
    let mut runs: Vec<Run> = Vec::new();
    for region in regions {
        let Form::Strided(s) = &region.form else { return Ok(None) };
        let whole = region.element == Cut::Every(s.period_bytes);
        let (true, true, Some(at)) = (whole, s.levels == first.levels, s.base.checked_sub(first.base)) else {
            return Ok(None);
        };
        for run in s.runs.iter() {
            let run = Run::new(at + run.at, run.len);
            match runs.last_mut() {
                Some(previous) if previous.at + previous.len > run.at => return Ok(None),
                Some(previous) if previous.at + previous.len == run.at => previous.len += run.len,
                _ => runs.push(run),
            }
        }
    }
    let fits = runs.last().is_some_and(|last| last.at + last.len <= innermost.period);
    // Periods of several levels that fit as columns may not fit as rows.
    let reach = |from: usize| -> u64 {
        let steps: u64 = first.levels[from..].iter().map(|l| (l.count - 1) * l.period).sum();
        steps + runs.last().map_or(0, |r| r.at + r.len)
    };
    let nested = (1..first.levels.len()).all(|i| reach(i) <= first.levels[i - 1].period);
    if !fits || !nested {
        return Ok(None);
    }
    canonical(first.base, first.levels.to_vec(), runs).map(Some)
}

/// Columns of the same rows.
fn under_one_bitmap(regions: &[Shape]) -> Option<Form> {
    let mut columns: Vec<Column> = Vec::new();
    let Form::Bitmapped(first) = &regions[0].form else { return None };
    // Each against the one before it: bitmaps that share their bits are not compared, so each bitmap is looked at once.
    let mut before = &first.rows;
    for region in regions {
        let Form::Bitmapped(b) = &region.form else { return None };
        if b.rows != *std::mem::replace(&mut before, &b.rows) || region.element != Cut::Every(b.row_bytes) {
            return None;
        }
        columns.extend(&b.columns);
    }
    let row_bytes = columns.iter().map(|c| c.width).sum();
    Some(Form::Bitmapped(Bitmapped { columns: columns.into(), rows: first.rows.clone(), row_bytes }))
}
