//! The workloads, and how a round of each is asked for.

use super::table::ScanSpec;
use crate::baseline::Request;
use crate::lineitem::Rows;
use overside_evidence::SplitMix64;

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

    /// The scans of one round, the same for every mode: about as many rows as make a round long
    /// enough to time. Of a large table no more: one part of it, each round another.
    pub(super) fn round(self, rows: usize, round: usize) -> Vec<ScanSpec> {
        let parts = parts(rows);
        match self {
            Workload::Full | Workload::Projection => {
                vec![self.part(rows, round % parts, parts); (ROWS_A_ROUND / rows.max(1)).clamp(1, 64)]
            }
            Workload::Range => {
                let ranges = (RANGES_A_ROUND / parts).max(1);
                (0..ranges).map(|at| range(rows, round * ranges + at)).collect()
            }
        }
    }

    /// The scans that verification looks at while rows change.
    pub(super) fn watched(self, rows: usize, round: usize) -> Vec<ScanSpec> {
        let mut specs = self.round(rows, round);
        specs.truncate(if self == Workload::Range { 5 } else { 1 });
        specs
    }

    /// The scans of pages at rest that verification looks at in the `mode`-th of `modes`.
    /// All modes see all of a small table; of a large one each sees its share, and
    /// together they see every row.
    pub(super) fn verified(self, rows: usize, mode: usize, modes: usize) -> Vec<ScanSpec> {
        match self {
            Workload::Full | Workload::Projection if parts(rows) > 1 => vec![self.part(rows, mode, modes)],
            _ => self.watched(rows, mode),
        }
    }

    fn part(self, rows: usize, part: usize, parts: usize) -> ScanSpec {
        let at = |part: usize| rows * part / parts;
        ScanSpec { rows: at(part)..at(part + 1), projected: self == Workload::Projection }
    }
}

impl ScanSpec {
    /// As many rows, asked of the baseline, which keeps the first `kept` rows.
    pub(super) fn request(&self, rows: &dyn Rows, kept: usize) -> Request {
        let mut request = Request { projected: self.projected, ..Request::full() };
        let count = self.rows.len().min(kept);
        let start = if self.rows.end <= kept { self.rows.start } else { self.rows.start % (kept - count + 1) };
        if start > 0 {
            request.keys.start = rows.key(start);
        }
        if start + count < kept {
            request.keys.end = rows.key(start + count);
        }
        request
    }
}

/// How many parts a table is scanned in, one a round.
pub(super) fn parts(rows: usize) -> usize {
    if rows <= ROWS_A_ROUND { 1 } else { rows.div_ceil(PART_ROWS) }
}

/// As many rows as the largest part has: what the baseline and the limit keep.
pub(super) fn part_rows(rows: usize) -> usize {
    rows.div_ceil(parts(rows))
}

/// 1 % of the rows from a place that `number` tells.
fn range(rows: usize, number: usize) -> ScanSpec {
    let length = (rows / 100).max(1);
    let start = SplitMix64(number as u64).below((rows - length + 1) as u64) as usize;
    ScanSpec { rows: start..start + length, projected: false }
}

const ROWS_A_ROUND: usize = 650_000;
/// Of a large table: no cache holds them, and what keeps a second copy of them takes
/// little beside the table.
const PART_ROWS: usize = 325_000;
const RANGES_A_ROUND: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_a_hundredth_each_within_the_table_and_all_over_it() {
        let specs: Vec<ScanSpec> = (0..20).flat_map(|round| Workload::Range.round(10_000, round)).collect();
        assert!(specs.iter().all(|a| a.rows.len() == 100 && a.rows.end <= 10_000 && !a.projected));
        let (low, high) = (specs.iter().map(|a| a.rows.start).min(), specs.iter().map(|a| a.rows.end).max());
        assert!(low < Some(500) && high > Some(9_500), "{low:?} {high:?}");
        assert_ne!(Workload::Range.round(10_000, 0)[0].rows, Workload::Range.round(10_000, 1)[0].rows);
        assert_eq!(range(1, 5).rows, 0..1);
    }

    /// Rounds of a large table are no longer than those of a small one, see all of it in turn,
    /// and so does verification.
    #[test]
    fn a_large_table_is_scanned_a_part_a_round() {
        let rows = 6_001_215;
        for workload in [Workload::Full, Workload::Projection] {
            let covered = |scans: Vec<ScanSpec>| {
                assert_eq!(
                    scans.iter().fold(0, |at, spec| if spec.rows.start == at { spec.rows.end } else { at }),
                    rows
                );
            };
            covered((0..parts(rows)).flat_map(|round| workload.round(rows, round)).collect());
            covered((0..5).flat_map(|mode| workload.verified(rows, mode, 5)).collect());
            assert!((0..20).all(|round| workload.round(rows, round)[0].rows.len() <= part_rows(rows)));
            assert_eq!(workload.verified(600_572, 3, 5)[0].rows, 0..600_572);
        }
        let ranges: usize = Workload::Range.round(rows, 3).iter().map(|spec| spec.rows.len()).sum();
        assert!(ranges <= ROWS_A_ROUND / 2, "{ranges}");
        assert!(part_rows(rows) <= ROWS_A_ROUND && part_rows(600_572) == 600_572);
    }

    /// The baseline sends as many rows as were asked of the table, wherever those lie.
    #[test]
    fn what_the_baseline_lacks_is_asked_of_what_it_has() {
        let table = crate::lineitem::Lineitem::sample(0.0005);
        let rows = table.rows();
        let spec = |rows| ScanSpec { rows, projected: false };
        let of =
            |request: &Request| rows.find(request.keys.start).unwrap_or(0)..rows.find(request.keys.end).unwrap_or(1000);
        for (range, there) in [(0..1000, 0..1000), (10..30, 10..30), (1000..2000, 0..1000), (1500..1600, 599..699)] {
            assert_eq!(of(&spec(range).request(rows, 1000)), there);
        }
    }

    #[test]
    fn a_round_of_a_small_table_is_several_scans() {
        assert_eq!(Workload::Full.round(600_572, 0).len(), 1);
        assert_eq!(Workload::Projection.round(6_005, 0).len(), 64);
        assert!(Workload::Projection.round(10, 0).iter().all(|spec| spec.projected));
    }
}
