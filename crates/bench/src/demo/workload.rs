//! The workloads, and how a round of each is asked for.

use super::table::Asked;
use crate::baseline::Request;
use crate::lineitem::PackedRows;

/// What is scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    /// Every row, every column.
    Full,
    /// 1 % of the key space at random places.
    Range,
    /// Three of the columns, every row.
    Projection,
}

impl Workload {
    /// All that run on clean pages; `hot` is `full` after fresh updates.
    pub(super) const ALL: [Workload; 3] = [Workload::Full, Workload::Range, Workload::Projection];

    /// As the report names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Workload::Full => "full",
            Workload::Range => "range",
            Workload::Projection => "projection",
        }
    }

    /// The scans of one round, the same for every mode: about as many rows as make a round long enough to time.
    pub(super) fn round(self, rows: usize, round: usize) -> Vec<Asked> {
        let whole = Asked { rows: 0..rows, projected: self == Workload::Projection };
        match self {
            Workload::Full | Workload::Projection => vec![whole; (ROWS_A_ROUND / rows.max(1)).clamp(1, 64)],
            Workload::Range => (0..RANGES_A_ROUND).map(|at| range(rows, round * RANGES_A_ROUND + at)).collect(),
        }
    }

    /// The scans that verification looks at.
    pub(super) fn verified(self, rows: usize, round: usize) -> Vec<Asked> {
        let mut asked = self.round(rows, round);
        asked.truncate(if self == Workload::Range { 5 } else { 1 });
        asked
    }
}

impl Asked {
    /// The same, asked of the baseline.
    pub(super) fn request(&self, rows: &PackedRows) -> Request {
        let mut request = Request { projected: self.projected, ..Request::full() };
        if self.rows.start > 0 {
            request.keys.start = rows.row(self.rows.start).key();
        }
        if self.rows.end < rows.len() {
            request.keys.end = rows.row(self.rows.end).key();
        }
        request
    }
}

/// 1 % of the rows from a place that `number` tells.
fn range(rows: usize, number: usize) -> Asked {
    let length = (rows / 100).max(1);
    let mut z = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^= z >> 27;
    let start = ((u128::from(z.wrapping_mul(0x94D0_49BB_1331_11EB)) * (rows - length + 1) as u128) >> 64) as usize;
    Asked { rows: start..start + length, projected: false }
}

const ROWS_A_ROUND: usize = 650_000;
const RANGES_A_ROUND: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_a_hundredth_each_within_the_table_and_all_over_it() {
        let asked: Vec<Asked> = (0..20).flat_map(|round| Workload::Range.round(10_000, round)).collect();
        assert!(asked.iter().all(|a| a.rows.len() == 100 && a.rows.end <= 10_000 && !a.projected));
        let (low, high) = (asked.iter().map(|a| a.rows.start).min(), asked.iter().map(|a| a.rows.end).max());
        assert!(low < Some(500) && high > Some(9_500), "{low:?} {high:?}");
        assert_ne!(Workload::Range.round(10_000, 0)[0].rows, Workload::Range.round(10_000, 1)[0].rows);
        assert_eq!(range(1, 5).rows, 0..1);
    }

    #[test]
    fn a_round_of_a_small_table_is_several_scans() {
        assert_eq!(Workload::Full.round(600_572, 0).len(), 1);
        assert_eq!(Workload::Projection.round(6_005, 0).len(), 64);
        assert!(Workload::Projection.round(10, 0).iter().all(|asked| asked.projected));
    }
}
