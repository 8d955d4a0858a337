//! The kinds of shape, their checks at construction and their canonical forms.

use crate::fragments::Fragments;

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

/// Which bytes, in message order. See the crate's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    form: Form,
    bytes: u64,
    end: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// One range (an SGE in the language of verbs; d-rdma §3.1 DR-M05).
    Contiguous(Run),
    /// `count` periods of `period` bytes from `base`; `runs` of each belong (d-rdma §3.1 DR-M04).
    Strided { base: u64, period: u64, count: u64, runs: Box<[Run]> },
    /// Ranges without a rule.
    List(Box<[Run]>),
}

/// Why a description is not a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// An offset or a length leaves 64 bits.
    #[error("the shape's offsets exceed 64 bits; check base, period and count")]
    Overflow,
    /// Runs of a period overlap, are out of order or stick out of it.
    #[error("the runs of a period must be in order, disjoint and inside the period of {period} bytes")]
    Runs {
        /// The period in bytes.
        period: u64,
    },
    /// The shape needs bytes that the memory does not have.
    #[error("the shape ends at byte {end} but its memory has {len}")]
    Escapes {
        /// One past the shape's last byte.
        end: u64,
        /// The memory's length in bytes.
        len: u64,
    },
}

impl Shape {
    /// `len` bytes from `at`.
    ///
    /// # Errors
    /// [`ShapeError::Overflow`] when the end exceeds 64 bits.
    pub fn contiguous(at: u64, len: u64) -> Result<Self, ShapeError> {
        Self::list(&[Run::new(at, len)])
    }

    /// `count` periods of `period` bytes, the first at `base`; of each period the
    /// bytes of `runs` (offsets from the period's start, ascending, disjoint).
    ///
    /// # Errors
    /// [`ShapeError::Runs`] for runs out of order or outside of the period,
    /// [`ShapeError::Overflow`] when the last period exceeds 64 bits.
    pub fn strided(base: u64, period: u64, count: u64, runs: &[Run]) -> Result<Self, ShapeError> {
        let runs = folded(runs, ShapeError::Runs { period })?;
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
            return Self::list(&[]);
        };
        // Folding proved that every end fits in 64 bits.
        let reach = last.at + last.len;
        if reach > period {
            return Err(ShapeError::Runs { period });
        }
        if count == 0 {
            return Self::list(&[]);
        }
        let end = (count - 1)
            .checked_mul(period)
            .and_then(|steps| steps.checked_add(base)?.checked_add(reach))
            .ok_or(ShapeError::Overflow)?;
        let per_period: u64 = runs.iter().map(|r| r.len).sum();
        let bytes = per_period.checked_mul(count).ok_or(ShapeError::Overflow)?;
        let dense = runs.len() == 1 && first.len == period;
        let form = if dense {
            Form::Contiguous(Run::new(base, bytes))
        } else if count == 1 {
            return Self::list(&runs.iter().map(|r| Run::new(base + r.at, r.len)).collect::<Vec<_>>());
        } else {
            // Equal descriptions meet in one form: the first run starts its period.
            let lead = first.at;
            let runs = runs.iter().map(|r| Run::new(r.at - lead, r.len)).collect();
            Form::Strided { base: base + lead, period, count, runs }
        };
        Ok(Self { form, bytes, end })
    }

    /// The given ranges in the given order; touching neighbours are folded and empty ones dropped.
    ///
    /// # Errors
    /// [`ShapeError::Overflow`] when a range or the sum exceeds 64 bits.
    pub fn list(ranges: &[Run]) -> Result<Self, ShapeError> {
        let mut out: Vec<Run> = Vec::with_capacity(ranges.len());
        let (mut bytes, mut end) = (0u64, 0u64);
        for range in ranges.iter().filter(|r| r.len > 0) {
            end = end.max(range.end().ok_or(ShapeError::Overflow)?);
            bytes = bytes.checked_add(range.len).ok_or(ShapeError::Overflow)?;
            match out.last_mut() {
                Some(previous) if previous.at + previous.len == range.at => previous.len += range.len,
                _ => out.push(*range),
            }
        }
        let form = match out.as_slice() {
            [] => Form::Contiguous(Run::new(0, 0)),
            [one] => Form::Contiguous(*one),
            _ => Form::List(out.into()),
        };
        Ok(Self { form, bytes, end })
    }

    /// Bytes in the message.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One past the highest byte; 0 for an empty shape.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The fragments in message order, each as large as it can be within the shape's rule.
    pub fn fragments(&self) -> Fragments<'_> {
        Fragments::new(&self.form)
    }

    /// How many fragments [`fragments`](Self::fragments) yields.
    pub fn fragment_count(&self) -> u64 {
        match &self.form {
            Form::Contiguous(run) => u64::from(run.len > 0),
            Form::Strided { period, count, runs, .. } => {
                let wraps = wraps(*period, runs);
                runs.len() as u64 * count - if wraps { count - 1 } else { 0 }
            }
            Form::List(runs) => runs.len() as u64,
        }
    }

    /// Checks that the shape lies in a memory of `len` bytes.
    ///
    /// # Errors
    /// [`ShapeError::Escapes`].
    pub fn within(&self, len: u64) -> Result<(), ShapeError> {
        if self.end > len {
            return Err(ShapeError::Escapes { end: self.end, len });
        }
        Ok(())
    }
}

/// Whether the last run of a period touches the first of the next.
pub(crate) fn wraps(period: u64, runs: &[Run]) -> bool {
    match (runs.first(), runs.last()) {
        (Some(first), Some(last)) => runs.len() > 1 && last.at + last.len == period + first.at,
        _ => false,
    }
}

/// Ascending, disjoint runs with touching neighbours folded and empty ones dropped.
fn folded(runs: &[Run], fault: ShapeError) -> Result<Vec<Run>, ShapeError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of(shape: &Shape) -> Vec<u64> {
        shape.fragments().flat_map(|r| r.at..r.at + r.len).collect()
    }

    #[test]
    fn a_dense_stride_is_one_range() {
        let dense = Shape::strided(8, 4, 5, &[Run::new(0, 1), Run::new(1, 3)]);
        assert_eq!(dense, Shape::contiguous(8, 20));
    }

    #[test]
    fn a_single_period_loses_its_stride() {
        let one = Shape::strided(8, 100, 1, &[Run::new(4, 4)]);
        assert_eq!(one, Shape::contiguous(12, 4));
    }

    #[test]
    fn two_rows_without_column_c() {
        // d-rdma Fig. 5 DR-M08: four 4-byte columns, C dropped.
        let shape = Shape::strided(0, 16, 2, &[Run::new(0, 8), Run::new(12, 4)]).unwrap();
        let fragments: Vec<_> = shape.fragments().collect();
        assert_eq!(fragments, [Run::new(0, 8), Run::new(12, 12), Run::new(28, 4)], "D of row 1 and A,B of row 2 touch");
        assert_eq!(shape.fragment_count(), 3);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(Shape::contiguous(u64::MAX, 2), Err(ShapeError::Overflow));
        assert_eq!(Shape::strided(0, u64::MAX / 2, 4, &[Run::new(0, 1)]), Err(ShapeError::Overflow));
        let overlap = Shape::strided(0, 8, 2, &[Run::new(0, 4), Run::new(3, 2)]);
        assert_eq!(overlap, Err(ShapeError::Runs { period: 8 }));
        let outside = Shape::strided(0, 8, 2, &[Run::new(6, 4)]);
        assert_eq!(outside, Err(ShapeError::Runs { period: 8 }));
        let escapes = Shape::contiguous(10, 10).unwrap().within(19);
        assert_eq!(escapes, Err(ShapeError::Escapes { end: 20, len: 19 }));
    }

    proptest! {
        #[test]
        fn a_stride_names_the_bytes_its_rule_names(
            base in 0u64..50, gap in 0u64..9, count in 0u64..9,
            lens in proptest::collection::vec((0u64..4, 0u64..5), 0..5),
        ) {
            let mut at = 0;
            let mut runs = Vec::new();
            for (skip, len) in lens { at += skip; runs.push(Run::new(at, len)); at += len; }
            let period = at + gap;
            let shape = Shape::strided(base, period, count, &runs).unwrap();
            let expected: Vec<u64> = (0..count)
                .flat_map(|i| runs.iter().flat_map(move |r| {
                    let start = base + i * period + r.at;
                    start..start + r.len
                }))
                .collect();
            prop_assert_eq!(bytes_of(&shape), expected.clone());
            prop_assert_eq!(shape.bytes(), expected.len() as u64);
            prop_assert_eq!(shape.fragment_count(), shape.fragments().count() as u64);
            prop_assert_eq!(shape.end(), expected.iter().max().map_or(0, |m| m + 1));
            // Fragments are as large as they can be.
            let fragments: Vec<_> = shape.fragments().collect();
            prop_assert!(fragments.windows(2).all(|w| w[0].at + w[0].len != w[1].at));
        }
    }
}
