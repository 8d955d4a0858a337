//! What a scan's consumer must come to while nobody writes: rows, bytes and sum, from the generated data and the log alone.

use super::table::{Asked, KeyAt, PROJECTED, touch_expected};
use crate::{
    limits::Touched,
    lineitem::PackedRows,
    verify::{History, Write},
};
use anyhow::{Result, ensure};
use overside::table::row::{RowBuilder, RowLayout, RowView};
use std::sync::Arc;

/// The expectation for every row as it is now.
pub(super) struct Expected {
    layout: Arc<RowLayout>,
    builder: RowBuilder,
    whole: Vec<Touched>,
    projected: Vec<Touched>,
}

impl Expected {
    /// For the rows as generated.
    pub(super) fn new(rows: &PackedRows, layout: &Arc<RowLayout>) -> Result<Expected> {
        let mut expected = Expected {
            layout: Arc::clone(layout),
            builder: RowBuilder::new(Arc::clone(layout)),
            whole: vec![Touched::default(); rows.len()],
            projected: vec![Touched::default(); rows.len()],
        };
        let fresh = History::default();
        for index in 0..rows.len() {
            expected.refresh(rows, &fresh, index)?;
        }
        Ok(expected)
    }

    /// After the writes of `log`, which `history` has.
    pub(super) fn follow(&mut self, rows: &PackedRows, history: &History, log: &[u8]) -> Result<()> {
        for write in log.as_chunks::<{ Write::BYTES }>().0 {
            self.refresh(rows, history, Write::decode(write).index as usize)?;
        }
        Ok(())
    }

    /// What reading these rows must come to.
    pub(super) fn of(&self, asked: &[Asked]) -> Touched {
        let mut all = Touched::default();
        for asked in asked {
            let rows = if asked.projected { &self.projected } else { &self.whole };
            rows[asked.rows.clone()].iter().for_each(|row| all.add(*row));
        }
        all
    }

    fn refresh(&mut self, rows: &PackedRows, history: &History, index: usize) -> Result<()> {
        let (version, there) = history.latest(index as u64);
        ensure!(there, "row {index} was left deleted");
        let row = rows.at_version(index, version);
        self.projected[index] = touch_expected(&row);
        let value = self.builder.encode(&row.values())?;
        let key = KeyAt::of(&self.layout, PROJECTED);
        self.whole[index] = key.touch_whole(&RowView::of_value(value, &self.layout)?);
        Ok(())
    }
}

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
        let all = [Asked { rows: 0..rows.len(), projected: false }];
        let part = [Asked { rows: 10..20, projected: false }, Asked { rows: 10..20, projected: true }];
        let (before, part_before) = (expected.of(&all), expected.of(&part));
        assert_eq!((before.rows, part_before.rows), (rows.len() as u64, 20));
        let write = |version, delete| Write { index: 40, version, delete, before_ns: 1, after_ns: 1 };
        let mut history = History::default();
        let log = write(2, false).encode();
        history.extend(&log).unwrap();
        expected.follow(rows, &history, &log).unwrap();
        assert_ne!(expected.of(&all).sum, before.sum);
        assert_eq!(expected.of(&part), part_before);
        let log = write(3, true).encode();
        history.extend(&log).unwrap();
        assert!(expected.follow(rows, &history, &log).is_err());
    }
}
