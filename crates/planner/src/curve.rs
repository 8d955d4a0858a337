//! Costs by length, as they were measured: straight between points, for what bends between them.

use crate::tally::{range_of, start_of};

/// Nanoseconds by length in bytes: measured points, joined by straight lines.
///
/// Below the first point it is as dear as there, beyond the last it goes on as between the last
/// two. Points lie where a quarter of a power of two begins, so that a range of lengths within one
/// never bends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    points: Vec<(u64, f64)>,
}

/// Why points are no curve.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// A length where no quarter of a power of two begins, or out of order.
    #[error("the point at {0} bytes is not 4, 5, 6 or 7 times a power of two up to 1 GiB, above the point before it")]
    Length(u64),
    /// A cost that nothing has.
    #[error("{ns} ns at {bytes} bytes is no cost; it must be a number from 0 to 1e12")]
    Cost {
        /// The point's length.
        bytes: u64,
        /// What stands there.
        ns: f64,
    },
}

/// A stretch of a curve that does not bend: `fixed + bytes · byte`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Line {
    /// Nanoseconds at no length.
    pub fixed_ns: f64,
    /// Nanoseconds a byte.
    pub byte_ns: f64,
}

impl Line {
    /// At a length, or for several pieces of so many bytes in all.
    #[inline]
    pub fn at(self, pieces: f64, bytes: f64) -> f64 {
        self.fixed_ns * pieces + self.byte_ns * bytes
    }

    /// Both.
    pub(crate) fn and(self, other: Line) -> Line {
        Line { fixed_ns: self.fixed_ns + other.fixed_ns, byte_ns: self.byte_ns + other.byte_ns }
    }

    /// Between this one (0) and another (1).
    pub fn mixed(self, other: Line, part: f64) -> Line {
        let between = |a: f64, b: f64| a * (1.0 - part) + b * part;
        Line { fixed_ns: between(self.fixed_ns, other.fixed_ns), byte_ns: between(self.byte_ns, other.byte_ns) }
    }
}

impl Curve {
    /// Through points of length in bytes and cost in nanoseconds.
    ///
    /// # Errors
    /// For lengths out of order or no powers of two, and costs that are none.
    pub fn new(points: impl IntoIterator<Item = (u64, f64)>) -> Result<Self, CurveError> {
        let mut out: Vec<(u64, f64)> = Vec::new();
        for (bytes, ns) in points {
            let begins = bytes.is_power_of_two() || start_of(range_of(bytes)) == bytes;
            if !begins || bytes == 0 || bytes > BYTES_MAX || out.last().is_some_and(|(before, _)| *before >= bytes) {
                return Err(CurveError::Length(bytes));
            }
            if !is_cost(ns) {
                return Err(CurveError::Cost { bytes, ns });
            }
            out.push((bytes, ns));
        }
        Ok(Self { points: out })
    }

    /// The points.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// The straight stretch at a length; none of an empty curve.
    pub fn line(&self, bytes: u64) -> Option<Line> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        if bytes < first.0 || self.points.len() == 1 {
            return Some(Line { fixed_ns: first.1, byte_ns: 0.0 });
        }
        let after = self.points.partition_point(|point| point.0 <= bytes).min(self.points.len() - 1);
        let (low, high) = (self.points[after - 1], self.points[after]);
        let slope = (high.1 - low.1) / (high.0 - low.0) as f64;
        // Nothing grows cheaper for ever: what noise bent down at the end goes on level.
        let byte_ns = if bytes >= last.0 { slope.max(0.0) } else { slope };
        let (at, ns) = if bytes >= last.0 { high } else { low };
        Some(Line { fixed_ns: ns - byte_ns * at as f64, byte_ns })
    }

    /// The cost of a piece of `bytes`; none of an empty curve.
    pub fn at(&self, bytes: u64) -> Option<f64> {
        Some(self.line(bytes)?.at(1.0, bytes as f64))
    }
}

/// Whether a figure can be a cost.
pub(crate) fn is_cost(ns: f64) -> bool {
    (0.0..=NS_MAX).contains(&ns)
}

const BYTES_MAX: u64 = 1 << 30;
const NS_MAX: f64 = 1e12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_met_and_lines_lie_between() {
        let curve = Curve::new([(4, 2.0), (64, 5.0), (1024, 125.0)]).unwrap();
        for (bytes, ns) in [(1, 2.0), (4, 2.0), (34, 3.5), (64, 5.0), (544, 65.0), (1024, 125.0), (2048, 253.0)] {
            assert_eq!(curve.at(bytes), Some(ns), "{bytes} bytes");
        }
        assert_eq!(Curve::default().at(8), None);
        assert_eq!(Curve::new([(64, 3.0)]).unwrap().at(1000), Some(3.0));
        let falling = Curve::new([(64, 3.0), (128, 1.0)]).unwrap();
        assert_eq!((falling.at(96), falling.at(1 << 20)), (Some(2.0), Some(1.0)), "no cost below none");
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(Curve::new([(9, 1.0)]), Err(CurveError::Length(9)));
        assert_eq!(Curve::new([(8, 1.0), (8, 1.0)]), Err(CurveError::Length(8)));
        assert_eq!(Curve::new([(8, -1.0)]), Err(CurveError::Cost { bytes: 8, ns: -1.0 }));
        assert!(matches!(Curve::new([(8, f64::NAN)]), Err(CurveError::Cost { bytes: 8, .. })));
        assert!(matches!(Curve::new([(8, f64::INFINITY)]), Err(CurveError::Cost { .. })));
    }
}
