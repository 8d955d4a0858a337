//! Everything that a demo has running, and the checks that every measurement goes through.

use super::{
    expected::Expected,
    table::{ScanSpec, Table},
    updates::Updater,
};
use crate::{
    limits::Touched,
    lineitem::Rows,
    report::{Sample, Verification},
    verify::{History, ScanOutcome, check},
};
use anyhow::Result;
use overside::table::{client::ScanSummary, wire::Mode};

/// The table with its rows, its updater, and what is known of both.
pub(super) struct Stage<'a> {
    pub(super) rows: &'a dyn Rows,
    pub(super) table: Table,
    pub(super) updater: Updater,
    pub(super) history: History,
    pub(super) expected: Expected,
    pub(super) checked: Checked,
}

/// What verification found so far.
#[derive(Debug, Default)]
pub(super) struct Checked {
    outcome: ScanOutcome,
    scans: usize,
    /// Timed scans, held against the sum that they must come to.
    sums: usize,
    words: Vec<String>,
    violations: usize,
    /// Workload and mode of scans that broke the contract.
    broken: Vec<(String, Mode)>,
}

impl Stage<'_> {
    /// Measures while nobody writes, and holds what was read against what it must come to.
    pub(super) fn measure(&mut self, workload: &str, specs: &[ScanSpec], mode: Mode) -> Result<(Sample, ScanSummary)> {
        let (sample, touched, summary) = self.table.measure(self.rows, specs, mode)?;
        let expected = self.expected.of(self.rows, &self.history, specs)?;
        self.checked.sum(workload, mode, touched, expected);
        Ok((sample, summary))
    }

    /// Scans while nobody writes, and checks the contract row by row.
    pub(super) fn verify(&mut self, workload: &str, specs: &[ScanSpec], mode: Mode) -> Result<()> {
        for spec in specs {
            let (scan, seen) = self.table.observe(self.rows, spec, mode)?;
            let outcome = check(self.rows, &self.history, &scan, seen);
            self.checked.contract(workload, mode, &outcome);
        }
        Ok(())
    }

    /// Updates these rows, all different, and takes note.
    pub(super) fn update(&mut self, indexes: &[u64]) -> Result<()> {
        let log = self.updater.update(indexes)?;
        self.note(&log)
    }

    /// Takes note of what the updater wrote.
    pub(super) fn note(&mut self, log: &[u8]) -> Result<()> {
        self.history.extend(log)?;
        self.expected.follow(self.rows, &self.history, log)
    }
}

impl Checked {
    /// Adds the outcome of a scan's check.
    pub(super) fn contract(&mut self, workload: &str, mode: Mode, outcome: &ScanOutcome) {
        self.scans += 1;
        self.outcome.add(outcome);
        if !outcome.kept() {
            self.violations += outcome.violations;
            let first = outcome.first.iter().map(|violation| format!("{workload}, {}: {violation}", mode.name()));
            self.words.extend(first);
            self.broken.push((workload.to_owned(), mode));
        }
    }

    fn sum(&mut self, workload: &str, mode: Mode, touched: Touched, expected: Touched) {
        self.sums += 1;
        if touched != expected {
            self.violations += 1;
            self.words.push(format!(
                "{workload}, {}: a timed scan read {} rows, {} bytes, sum {:x} instead of {}, {}, {:x}",
                mode.name(),
                touched.rows,
                touched.bytes,
                touched.sum,
                expected.rows,
                expected.bytes,
                expected.sum
            ));
            self.broken.push((workload.to_owned(), mode));
        }
    }

    /// Whether all scans of this workload in this mode kept the contract.
    pub(super) fn kept(&self, workload: &str, mode: Mode) -> bool {
        !self.broken.iter().any(|(w, m)| w == workload && *m == mode)
    }

    /// For the report.
    pub(super) fn verification(&self, updates: usize) -> Verification {
        Verification {
            scans: self.scans,
            timed_scans: self.sums,
            rows: self.outcome.rows,
            updated_rows: self.outcome.updated,
            contended_rows: self.outcome.contended,
            updates,
            violations: self.violations,
            first: self.words.iter().take(WORDS_MAX).cloned().collect(),
        }
    }
}

const WORDS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::Violation;

    #[test]
    fn a_violation_marks_its_workload_and_mode() {
        let mut checked = Checked::default();
        let read = Touched { rows: 3, bytes: 30, sum: 300 };
        checked.sum("full", Mode::Copy, read, read);
        checked.contract("full", Mode::Delta, &ScanOutcome { rows: 3, ..ScanOutcome::default() });
        assert!(checked.kept("full", Mode::Copy) && checked.kept("full", Mode::Delta));
        checked.sum("full", Mode::Copy, read, Touched { sum: 301, ..read });
        let torn = ScanOutcome { rows: 3, violations: 1, first: vec![Violation::Torn(1)], ..ScanOutcome::default() };
        checked.contract("hot", Mode::Delta, &torn);
        assert!(!checked.kept("full", Mode::Copy) && checked.kept("full", Mode::Delta));
        assert!(!checked.kept("hot", Mode::Delta));
        let told = checked.verification(7);
        assert_eq!((told.violations, told.scans, told.timed_scans, told.rows, told.updates), (2, 2, 2, 6, 7));
        assert!(told.first[1].contains("torn"), "{told:?}");
    }
}
