//! Whether bytes are named twice (d-rdma §4.1 DR-M31): pairwise over the regions, by bases and
//! counts where the kinds allow it, else by one pass over the fragments of both.

use crate::address::tracks;
use crate::bitmap::Bitmap;
use crate::bitmapped::Column;
use crate::error::ShapeError;
use crate::form::Form;
use crate::fragments::Fragments;
use crate::run::Run;
use crate::shape::Shape;
use crate::strided::Strided;

impl Shape {
    /// Checks that no byte is named twice, as a destination demands.
    ///
    /// # Errors
    /// [`ShapeError::Overlap`] with the byte and the regions (of a set; columns of a bitmapped
    /// region) that name it.
    pub fn disjoint(&self) -> Result<(), ShapeError> {
        let parts = parts(self);
        for (first, a) in parts.iter().enumerate() {
            if let Some(at) = within_itself(a) {
                return Err(ShapeError::Overlap { at, first, second: first });
            }
            for (second, b) in parts.iter().enumerate().skip(first + 1) {
                if let Some(at) = common(a, b) {
                    return Err(ShapeError::Overlap { at, first, second });
                }
            }
        }
        Ok(())
    }

    /// A byte that both shapes name, if there is one.
    pub fn common_byte(&self, other: &Shape) -> Option<u64> {
        let (ours, theirs) = (parts(self), parts(other));
        ours.iter().find_map(|a| theirs.iter().find_map(|b| common(a, b)))
    }

    /// Checks that the shape can be a destination in a memory of `len` bytes.
    ///
    /// # Errors
    /// [`ShapeError::Escapes`], [`ShapeError::Overlap`].
    pub fn destination(&self, len: u64) -> Result<(), ShapeError> {
        self.within(len)?;
        self.disjoint()
    }
}

/// A region, or a column of one.
enum Part<'a> {
    Region(&'a Shape),
    Column(Column, &'a Bitmap),
}

fn parts(shape: &Shape) -> Vec<Part<'_>> {
    match &shape.form {
        Form::Set { regions, .. } => regions.iter().flat_map(parts).collect(),
        Form::Bitmapped(b) => b.columns.iter().map(|c| Part::Column(*c, &b.rows)).collect(),
        _ if shape.bytes == 0 => Vec::new(),
        _ => vec![Part::Region(shape)],
    }
}

impl Part<'_> {
    fn bounds(&self) -> (u64, u64) {
        match self {
            Part::Region(shape) => (shape.start, shape.end),
            Part::Column(c, rows) => (c.base, c.base + (rows.rows() - 1) * c.stride + c.width),
        }
    }

    /// Calls `with` on the ascending fragments.
    fn ascending<T>(&self, with: impl FnOnce(&mut dyn Iterator<Item = Run>) -> T) -> T {
        match self {
            Part::Column(column, rows) => with(&mut Fragments::of_column(*column, rows, 0..rows.ones())),
            Part::Region(shape) => match tracks(shape, 0..shape.bytes).and_then(|mut tracks| tracks.pop()) {
                Some(mut track) => with(&mut track),
                None => {
                    let mut sorted: Vec<Run> = shape.fragments().collect();
                    sorted.sort_unstable();
                    with(&mut sorted.into_iter())
                }
            },
        }
    }
}

/// A byte that a list or mapped rows name twice; other kinds ascend.
fn within_itself(part: &Part<'_>) -> Option<u64> {
    let Part::Region(Shape { form: Form::List(_) | Form::Mapped(_), .. }) = part else { return None };
    part.ascending(|runs| {
        let mut reach = 0;
        for run in runs {
            if run.at < reach {
                return Some(run.at);
            }
            reach = run.at + run.len;
        }
        None
    })
}

fn common(a: &Part<'_>, b: &Part<'_>) -> Option<u64> {
    let ((a_from, a_to), (b_from, b_to)) = (a.bounds(), b.bounds());
    if a_to <= b_from || b_to <= a_from {
        return None;
    }
    match (a, b) {
        (Part::Region(Shape { form: Form::Strided(a), .. }), Part::Region(Shape { form: Form::Strided(b), .. }))
            if a.levels.len() == 1 && b.levels.len() == 1 && a.levels[0].period == b.levels[0].period =>
        {
            of_one_period(a, b)
        }
        (Part::Column(a, a_rows), Part::Column(b, b_rows))
            if (a.stride, a.width) == (b.stride, b.width) && a.base.abs_diff(b.base) % a.stride == 0 =>
        {
            if a.base <= b.base { of_one_column(*a, a_rows, *b, b_rows) } else { of_one_column(*b, b_rows, *a, a_rows) }
        }
        _ => a.ascending(|ours| b.ascending(|theirs| in_both(ours, theirs))),
    }
}

/// Strides of one period: each pair of runs meets at one distance or at none.
fn of_one_period(a: &Strided, b: &Strided) -> Option<u64> {
    let (period, a_count, b_count) =
        (i128::from(a.levels[0].period), i128::from(a.levels[0].count), i128::from(b.levels[0].count));
    for ours in a.runs.iter() {
        for theirs in b.runs.iter() {
            let (at, to) = (i128::from(a.base + ours.at), i128::from(b.base + theirs.at));
            // Period i of ours and period j of theirs meet only if i - j is one of these two.
            let near = (to - at).div_euclid(period);
            for apart in [near, near + 1] {
                let gap = to - at - apart * period;
                let meets = gap < i128::from(ours.len) && -gap < i128::from(theirs.len);
                if meets && apart < a_count && -apart < b_count {
                    let i = apart.max(0);
                    return u64::try_from((at + i * period).max(to + (i - apart) * period)).ok();
                }
            }
        }
    }
    None
}

/// Two bitmaps over the rows of one column, `low` beginning at or before `high`.
fn of_one_column(low: Column, low_rows: &Bitmap, high: Column, high_rows: &Bitmap) -> Option<u64> {
    let lead = (high.base - low.base) / low.stride;
    // The bounds meet, so `lead` is a row of `low`.
    let rest = low_rows.slice(lead..low_rows.rows());
    let row = (0..rest.word_count().min(high_rows.word_count())).find_map(|i| {
        let both = rest.word(i) & high_rows.word(i);
        (both != 0).then(|| i as u64 * 64 + u64::from(both.trailing_zeros()))
    })?;
    Some(high.base + row * high.stride)
}

fn in_both(ours: &mut dyn Iterator<Item = Run>, theirs: &mut dyn Iterator<Item = Run>) -> Option<u64> {
    let (mut a, mut b) = (ours.next()?, theirs.next()?);
    loop {
        if a.at + a.len <= b.at {
            a = ours.next()?;
        } else if b.at + b.len <= a.at {
            b = theirs.next()?;
        } else {
            return Some(a.at.max(b.at));
        }
    }
}
