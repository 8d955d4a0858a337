//! What a scan's consumer must come to while nobody writes: rows, bytes and sum, from the
//! generated data and the log alone.

use super::table::{KeyAt, PROJECTED, ScanSpec, touch_expected};
use crate::{
    limits::Touched,
    lineitem::Rows,
    verify::{History, Write},
};
use anyhow::{Result, ensure};
use overside::table::row::{RowBuilder, RowLayout, RowView};
use std::{collections::HashMap, sync::Arc};

/// The expectation for every block of rows as they are now. Rows at the ends of a range are
/// reckoned when it is asked for.
pub(super) struct Expected {
    layout: Arc<RowLayout>,
    builder: RowBuilder,
    blocks: Vec<Sums>,
}

/// What rows come to, whole and projected.
#[derive(Clone, Copy, Default)]
struct Sums {
    whole: Touched,
    projected: Touched,
}

impl Expected {
    /// For the rows as generated.
    pub(super) fn new(rows: &dyn Rows, layout: &Arc<RowLayout>) -> Result<Expected> {
        let mut expected = Expected {
            layout: Arc::clone(layout),
            builder: RowBuilder::new(Arc::clone(layout)),
            blocks: vec![Sums::default(); rows.len().div_ceil(BLOCK_ROWS)],
        };
        for index in 0..rows.len() {
            let row = expected.row(rows, index, 1)?;
            expected.blocks[index / BLOCK_ROWS].add(row);
        }
        Ok(expected)
    }

    /// After the writes of `log`, which `history` has. Every row was there before it.
    pub(super) fn follow(&mut self, rows: &dyn Rows, history: &History, log: &[u8]) -> Result<()> {
        let mut before = HashMap::new();
        for write in log.as_chunks::<{ Write::BYTES }>().0 {
            let write = Write::decode(write);
            before.entry(write.index).or_insert(write.version - 1);
        }
        for (index, version) in before {
            let (latest, there) = history.latest(index);
            ensure!(there, "row {index} was left deleted");
            let index = index as usize;
            let (gone, come) = (self.row(rows, index, version)?, self.row(rows, index, latest)?);
            let block = &mut self.blocks[index / BLOCK_ROWS];
            block.remove(gone);
            block.add(come);
        }
        Ok(())
    }

    /// What reading these rows must come to.
    pub(super) fn of(&mut self, rows: &dyn Rows, history: &History, specs: &[ScanSpec]) -> Result<Touched> {
        let mut all = Touched::default();
        for spec in specs {
            let mut add = |sums: Sums| all.add(if spec.projected { sums.projected } else { sums.whole });
            let mut at = spec.rows.start;
            while at < spec.rows.end {
                let block_end = (at + BLOCK_ROWS).min(rows.len());
                if at.is_multiple_of(BLOCK_ROWS) && block_end <= spec.rows.end {
                    add(self.blocks[at / BLOCK_ROWS]);
                    at = block_end;
                } else {
                    add(self.row(rows, at, history.latest(at as u64).0)?);
                    at += 1;
                }
            }
        }
        Ok(all)
    }

    fn row(&mut self, rows: &dyn Rows, index: usize, version: i64) -> Result<Sums> {
        let row = rows.at_version(index, version);
        let projected = touch_expected(&row);
        let value = self.builder.encode(&row.values())?;
        let key = KeyAt::of(&self.layout, PROJECTED);
        Ok(Sums { whole: key.touch_whole(&RowView::of_value(value, &self.layout)?), projected })
    }
}

impl Sums {
    fn add(&mut self, row: Sums) {
        self.whole.add(row.whole);
        self.projected.add(row.projected);
    }

    fn remove(&mut self, row: Sums) {
        self.whole.remove(row.whole);
        self.projected.remove(row.projected);
    }
}

/// So many that sums take little memory, so few that the ends of a range are soon reckoned.
const BLOCK_ROWS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineitem::{Lineitem, schema};

    #[test]
    fn it_follows_the_log() {
        let table = Lineitem::sample(0.0005);
        let rows = table.rows();
        let layout = Arc::new(RowLayout::new(&schema().unwrap()));
        let mut expected = Expected::new(rows, &layout).unwrap();
        let mut history = History::default();
        let all = [ScanSpec { rows: 0..rows.len(), projected: false }];
        let part = [ScanSpec { rows: 10..20, projected: false }, ScanSpec { rows: 10..20, projected: true }];
        let before = expected.of(rows, &history, &all).unwrap();
        let part_before = expected.of(rows, &history, &part).unwrap();
        assert_eq!((before.rows, part_before.rows), (rows.len() as u64, 20));
        let write = |index, version, delete| Write { index, version, delete, before_ns: 1, after_ns: 1 };
        let log = write(40, 2, false).encode();
        history.extend(&log).unwrap();
        expected.follow(rows, &history, &log).unwrap();
        assert_ne!(expected.of(rows, &history, &all).unwrap().sum, before.sum);
        assert_eq!(expected.of(rows, &history, &part).unwrap(), part_before);
        // Gone and back within one piece of the log.
        let log = [write(41, 2, true).encode(), write(41, 3, false).encode()].concat();
        history.extend(&log).unwrap();
        expected.follow(rows, &history, &log).unwrap();
        let log = write(40, 3, true).encode();
        history.extend(&log).unwrap();
        assert!(expected.follow(rows, &history, &log).is_err());
    }

    /// However a range lies to the blocks, it comes to its rows, each as it is now.
    #[test]
    fn a_range_is_the_sum_of_its_rows() {
        let table = Lineitem::sample(0.0005);
        let rows = table.rows();
        let layout = Arc::new(RowLayout::new(&schema().unwrap()));
        let mut expected = Expected::new(rows, &layout).unwrap();
        let mut history = History::default();
        for round in 0..4 {
            let log: Vec<u8> = (0..rows.len() as u64)
                .step_by(7 + round)
                .flat_map(|index| {
                    let version = history.latest(index).0 + 1;
                    Write { index, version, delete: false, before_ns: 10, after_ns: 10 }.encode()
                })
                .collect();
            history.extend(&log).unwrap();
            expected.follow(rows, &history, &log).unwrap();
        }
        for (from, to) in [(0, 1), (0, 256), (255, 257), (3, 700), (256, 512), (512, rows.len()), (300, rows.len())] {
            for projected in [false, true] {
                let mut one_by_one = Touched::default();
                for index in from..to {
                    let row = [ScanSpec { rows: index..index + 1, projected }];
                    one_by_one.add(expected.of(rows, &history, &row).unwrap());
                }
                let range = [ScanSpec { rows: from..to, projected }];
                assert_eq!(expected.of(rows, &history, &range).unwrap(), one_by_one, "{from}..{to}");
            }
        }
    }
}
