//! Holding what a scan returned against what it owes.

use super::History;
use crate::lineitem::{Row, Rows};
use std::{fmt, ops::Range};

/// A scan: which rows it was asked for, and when it ran.
#[derive(Clone, Debug)]
pub struct Scan {
    /// Indexes in the generated table.
    pub rows: Range<usize>,
    /// The clock before the scan was asked for.
    pub start_ns: u64,
    /// The clock after its last row had come.
    pub end_ns: u64,
}

/// A row as the scan returned it, reduced to what verification needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its key.
    pub key: (i64, i32),
    /// What it showed.
    pub shown: Shown,
}

/// What a returned row showed of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// All columns; `whole` says whether they have the checksum they carry.
    Row {
        /// The version column.
        version: i64,
        /// The checksum column.
        checksum: i64,
        /// Whether it is the checksum of the columns that came.
        whole: bool,
    },
    /// A projection to the price, which tells the versions of a row apart.
    Price(i64),
}

impl Seen {
    /// Reduces a row with all its columns.
    pub fn row(row: &Row<'_>) -> Seen {
        Seen { key: row.key(), shown: Shown::Row { version: row.version, checksum: row.checksum, whole: row.whole() } }
    }
}

/// What a scan did that it must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The row's columns are not of one version.
    Torn(u64),
    /// The row's version had been replaced before the scan began.
    Stale(u64, i64),
    /// The row's version was written only after the scan had ended, or never.
    Future(u64, i64),
    /// The row is whole, but is not what was written under this version.
    Foreign(u64),
    /// A row that was present throughout did not come.
    Missing(u64),
    /// The row came more than once.
    Twice(u64),
    /// The row came after one with a larger key.
    OutOfOrder(u64),
    /// A key that is not in the table, or not in the range asked for.
    Unasked((i64, i32)),
}

/// The result of checking a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanOutcome {
    /// How many rows came.
    pub rows: usize,
    /// How many of them had been updated at least once.
    pub updated: usize,
    /// How many of them had more than one version to choose from while the scan ran.
    pub contended: usize,
    /// How many violations there were.
    pub violations: usize,
    /// The first few of them.
    pub first: Vec<Violation>,
}

impl ScanOutcome {
    /// Whether the contract was kept.
    pub fn kept(&self) -> bool {
        self.violations == 0
    }

    /// Adds another scan's outcome.
    pub fn add(&mut self, other: &ScanOutcome) {
        self.rows += other.rows;
        self.updated += other.updated;
        self.contended += other.contended;
        self.violations += other.violations;
        let room = FIRST_MAX - self.first.len().min(FIRST_MAX);
        self.first.extend(other.first.iter().copied().take(room));
    }

    fn violation(&mut self, violation: Violation) {
        self.violations += 1;
        if self.first.len() < FIRST_MAX {
            self.first.push(violation);
        }
    }
}

/// Checks what `scan` returned, in the order it came.
pub fn check(rows: &dyn Rows, history: &History, scan: &Scan, seen: impl IntoIterator<Item = Seen>) -> ScanOutcome {
    let mut outcome = ScanOutcome::default();
    let mut next = scan.rows.start;
    let mut came = vec![0u64; scan.rows.len().div_ceil(64)];
    for seen in seen {
        outcome.rows += 1;
        let expected = next < rows.len() && rows.key(next) == seen.key;
        let found = if expected { Ok(next) } else { rows.find(seen.key) };
        let Some(index) = found.ok().filter(|index| scan.rows.contains(index)) else {
            outcome.violation(Violation::Unasked(seen.key));
            continue;
        };
        let (word, bit) = ((index - scan.rows.start) / 64, (index - scan.rows.start) % 64);
        if came[word] >> bit & 1 == 1 {
            outcome.violation(Violation::Twice(index as u64));
        } else if index < next {
            outcome.violation(Violation::OutOfOrder(index as u64));
        }
        came[word] |= 1 << bit;
        next = next.max(index + 1);
        check_version(rows, history, scan, index, seen.shown, &mut outcome);
    }
    for index in scan.rows.clone() {
        let at = index - scan.rows.start;
        let missing = came[at / 64] >> (at % 64) & 1 == 0;
        if missing && !history.absent_between(index as u64, scan.start_ns, scan.end_ns) {
            outcome.violation(Violation::Missing(index as u64));
        }
    }
    outcome
}

fn check_version(
    rows: &dyn Rows,
    history: &History,
    scan: &Scan,
    index: usize,
    shown: Shown,
    outcome: &mut ScanOutcome,
) {
    let row = index as u64;
    let latest = history.latest(row).0;
    outcome.updated += usize::from(latest > 1);
    if latest > 1 {
        let current = history.current_between(row, scan.start_ns, scan.end_ns);
        outcome.contended += usize::from(current.take(2).count() > 1);
    }
    let version = match shown {
        Shown::Row { whole: false, .. } => return outcome.violation(Violation::Torn(row)),
        Shown::Row { version, checksum, .. } => {
            if history.current(row, version).is_some() && rows.at_version(index, version).checksum != checksum {
                return outcome.violation(Violation::Foreign(row));
            }
            version
        }
        Shown::Price(price) => {
            let has_it = |version: &i64| rows.at_version(index, *version).extendedprice == price;
            let mut current = history.current_between(row, scan.start_ns, scan.end_ns);
            match current.find(has_it).or_else(|| (1..=latest).find(has_it)) {
                Some(version) => version,
                None => return outcome.violation(Violation::Foreign(row)),
            }
        }
    };
    match history.current(row, version) {
        Some(current) if *current.end() < scan.start_ns => {
            outcome.violation(Violation::Stale(row, version));
        }
        Some(current) if *current.start() <= scan.end_ns => {}
        _ => outcome.violation(Violation::Future(row, version)),
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Torn(row) => {
                write!(f, "row {row} is torn: its columns are of several versions")
            }
            Violation::Stale(row, v) => write!(f, "row {row} came as version {v}, replaced before the scan began"),
            Violation::Future(row, v) => write!(f, "row {row} came as version {v}, not written before the scan ended"),
            Violation::Foreign(row) => write!(f, "row {row} is not what was written"),
            Violation::Missing(row) => {
                write!(f, "row {row} was present throughout and did not come")
            }
            Violation::Twice(row) => write!(f, "row {row} came more than once"),
            Violation::OutOfOrder(row) => write!(f, "row {row} came after a larger key"),
            Violation::Unasked((order, line)) => {
                write!(f, "key ({order}, {line}) came and was not asked for")
            }
        }
    }
}

const FIRST_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lineitem::Lineitem, verify::Write};
    use std::sync::LazyLock;

    static TABLE: LazyLock<Lineitem> = LazyLock::new(|| Lineitem::sample(0.0005));

    /// Row 5 is replaced by version 2 at 100 to 110 and by version 3 at 300 to 310; row 9 is
    /// deleted at 300 to 310. The scan runs from 200 to 400.
    fn history() -> History {
        let write =
            |index, version, before_ns, delete| Write { index, version, delete, before_ns, after_ns: before_ns + 10 };
        let mut history = History::default();
        let writes =
            [write(5, 2, 100, false), write(5, 3, 300, false), write(9, 2, 300, true), write(12, 2, 500, false)];
        for write in writes {
            history.extend(&write.encode()).unwrap();
        }
        history
    }

    fn honest() -> Vec<Seen> {
        let rows = TABLE.rows();
        let version = |index| if index == 5 { 2 } else { 1 };
        (0..rows.len()).map(|index| Seen::row(&rows.at_version(index, version(index)))).collect()
    }

    fn outcome(seen: Vec<Seen>) -> ScanOutcome {
        let scan = Scan { rows: 0..TABLE.rows().len(), start_ns: 200, end_ns: 400 };
        check(TABLE.rows(), &history(), &scan, seen)
    }

    fn planted(plant: impl FnOnce(&mut Vec<Seen>)) -> Vec<Violation> {
        let mut seen = honest();
        plant(&mut seen);
        let outcome = outcome(seen);
        assert_eq!(outcome.violations, outcome.first.len());
        outcome.first
    }

    #[test]
    fn an_honest_scan_is_kept_whichever_current_version_it_shows() {
        let rows = TABLE.rows();
        let kept = outcome(honest());
        assert!(kept.kept(), "{kept:?}");
        assert_eq!((kept.rows, kept.updated, kept.contended), (rows.len(), 3, 1));
        assert_eq!(planted(|seen| seen[5] = Seen::row(&rows.at_version(5, 3))), []);
        // Row 9 is deleted while the scan runs: it may come or not.
        assert_eq!(planted(|seen| _ = seen.remove(9)), []);
    }

    #[test]
    fn planted_violations_are_found() {
        let rows = TABLE.rows();
        let mut torn = rows.at_version(5, 3);
        torn.comment = rows.at_version(5, 2).comment;
        assert_eq!(planted(|seen| seen[5] = Seen::row(&torn)), [Violation::Torn(5)]);
        let stale = Seen::row(&rows.at_version(5, 1));
        assert_eq!(planted(|seen| seen[5] = stale), [Violation::Stale(5, 1)]);
        let future = Seen::row(&rows.at_version(12, 2));
        assert_eq!(planted(|seen| seen[12] = future), [Violation::Future(12, 2)]);
        let never = Seen::row(&rows.at_version(5, 4));
        assert_eq!(planted(|seen| seen[5] = never), [Violation::Future(5, 4)]);
        assert_eq!(planted(|seen| _ = seen.remove(7)), [Violation::Missing(7)]);
        assert_eq!(planted(|seen| seen.truncate(rows.len() - 1)), [Violation::Missing(rows.len() as u64 - 1)]);
        assert_eq!(planted(|seen| seen.insert(8, seen[7])), [Violation::Twice(7)]);
        assert_eq!(planted(|seen| seen.push(seen[7])), [Violation::Twice(7)]);
        assert_eq!(planted(|seen| seen.swap(20, 21)), [Violation::OutOfOrder(20)]);
        let mut other = rows.row(30);
        other.quantity += 100;
        other.checksum = other.sum();
        assert_eq!(planted(|seen| seen[30] = Seen::row(&other)), [Violation::Foreign(30)]);
        let unknown = planted(|seen| {
            seen.insert(3, Seen { key: (i64::MAX, 1), ..seen[3] });
        });
        assert_eq!(unknown, [Violation::Unasked((i64::MAX, 1))]);
    }

    #[test]
    fn a_range_owes_its_rows_and_no_others() {
        let range = |rows| Scan { rows, start_ns: 200, end_ns: 400 };
        let seen = honest();
        let check = |rows: Range<usize>, seen: &[Seen]| {
            check(TABLE.rows(), &history(), &range(rows), seen.iter().copied()).first
        };
        assert_eq!(check(4..8, &seen[4..8]), []);
        assert_eq!(check(4..8, &seen[4..7]), [Violation::Missing(7)]);
        assert_eq!(check(4..8, &seen[3..8]), [Violation::Unasked(seen[3].key)]);
    }

    #[test]
    fn prices_stand_for_versions_in_projections() {
        let rows = TABLE.rows();
        let price = |index, version| Seen {
            key: rows.row(index).key(),
            shown: Shown::Price(rows.at_version(index, version).extendedprice),
        };
        let honest: Vec<_> = (0..rows.len()).map(|index| price(index, if index == 5 { 2 } else { 1 })).collect();
        let with = |index: usize, seen| {
            let mut all = honest.clone();
            all[index] = seen;
            outcome(all).first
        };
        assert_eq!(with(5, price(5, 3)), []);
        assert_eq!(with(5, price(5, 1)), [Violation::Stale(5, 1)]);
        assert_eq!(with(12, price(12, 2)), [Violation::Future(12, 2)]);
        let foreign = Seen { shown: Shown::Price(-1), ..honest[6] };
        assert_eq!(with(6, foreign), [Violation::Foreign(6)]);
    }
}
