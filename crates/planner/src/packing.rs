//! What packing all of a shape costs, with the kernel that its kind has.

use overside_shape::{Shape, ShapeKind};

use crate::planner::Planner;
use crate::tables::AccessPattern;
use crate::tally::{Range, Tally};

/// Nanoseconds, in two parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Packing {
    /// Passing over all that the shape lies in, what it does not want included: several shapes that
    /// lie in the same cache lines pay for it once, if they are packed together.
    pub(crate) pass_ns: f64,
    /// Moving its bytes.
    pub(crate) move_ns: f64,
}

impl Packing {
    pub(crate) fn ns(self) -> f64 {
        self.pass_ns + self.move_ns
    }
}

impl Planner {
    /// `pieces_ns`, where it is known: packing them one by one, which is what is done where there
    /// is no kernel.
    pub(crate) fn packing(
        &self,
        shape: &Shape,
        tally: &Tally,
        pattern: &AccessPattern,
        pieces_ns: Option<f64>,
    ) -> Packing {
        if let Some(move_ns) = pieces_ns.filter(|_| !pattern.regular) {
            return Packing { pass_ns: 0.0, move_ns };
        }
        if let ShapeKind::Bitmapped { columns, rows } = shape.kind() {
            let (mut pass, mut run, mut known) = (0.0, 0.0, true);
            for column in columns {
                let (row_ns, run_ns) = self.profile().pack_bitmapped(column.width).unwrap_or_else(|| {
                    known = false;
                    (0.0, 0.0)
                });
                (pass, run) = (pass + row_ns, run + run_ns / columns.len() as f64);
            }
            if known {
                return Packing { pass_ns: rows.rows() as f64 * pass, move_ns: tally.pieces() * run };
            }
        }
        let each = |range: &Range| self.tables().kernel(range.index, pattern).at(range.pieces, range.bytes);
        Packing { pass_ns: 0.0, move_ns: tally.ranges().iter().map(each).sum() }
    }
}
