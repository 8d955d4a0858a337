//! Pages with fresh updates: every page gets exactly n of them before each round.

use super::{
    quiet::{MODES, prices},
    stage::Stage,
    table::{Page, ScanSpec},
    workload::Workload,
};
use crate::{
    measure::rotation,
    report::{Prices, Run, Sample},
};
use anyhow::{Result, ensure};
use overside::table::{client::ScanSummary, wire::Mode};
use std::ops::Range;

/// Runs of full scans after `updates` fresh updates to every page, and the planner's prices. Of a
/// large table it is one part.
pub(super) fn run(
    stage: &mut Stage<'_>,
    updates: usize,
    rounds: usize,
    mut progress: impl FnMut(),
) -> Result<(Vec<Run>, Prices)> {
    let rows = Workload::Full.round(stage.rows.len(), 0)[0].rows.clone();
    let specs = vec![ScanSpec { rows: rows.clone(), projected: false }; SCANS];
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); MODES.len()];
    let mut end = ScanSummary::default();
    for round in 0..rounds {
        clean(stage, &rows)?;
        freshen(stage, &rows, updates)?;
        for side in rotation(MODES.len(), round) {
            let (sample, summary) = stage.measure("hot", &specs, MODES[side])?;
            samples[side].push(sample);
            if MODES[side] == Mode::Auto {
                end = summary;
            }
        }
        if let Some(mode) = MODES.get(round % MODES.len()).filter(|_| round < MODES.len()) {
            stage.verify("hot", &specs[..1], *mode)?;
        }
        progress();
    }
    let run = |(mode, samples): (&Mode, &Vec<Sample>)| Run::of("hot", mode.name(), updates as u32, samples);
    Ok((MODES.iter().zip(&samples).map(run).collect(), prices("hot", &end)))
}

/// Updates the pages of these rows until none has a delta: the change after the longest
/// chain consolidates its page.
pub(super) fn clean(stage: &mut Stage<'_>, of: &Range<usize>) -> Result<Vec<Page>> {
    for _ in 0..TRIES {
        let pages = stage.table.pages(stage.rows, of.clone())?;
        let dirty = pages.iter().filter(|page| page.deltas > 0).count();
        if dirty <= pages.len() / TOLERATED {
            return Ok(pages);
        }
        let mut rows = Vec::new();
        for slot in 0..SLOTS {
            let due = |page: &&Page| page.deltas > 0 && slot >= page.deltas.min(CHAIN_MAX);
            rows.extend(pages.iter().filter(due).filter_map(|page| page.slot(slot)));
        }
        stage.update(&rows)?;
    }
    anyhow::bail!("pages still have deltas after {TRIES} times as many updates as consolidate them")
}

/// Gives every page of these rows, clean until now, `updates` updates of different
/// rows, spread over the page.
fn freshen(stage: &mut Stage<'_>, of: &Range<usize>, updates: usize) -> Result<()> {
    let pages = stage.table.pages(stage.rows, of.clone())?;
    for slot in 0..updates {
        let rows: Vec<u64> = pages.iter().filter_map(|page| page.slot(slot)).collect();
        stage.update(&rows)?;
    }
    let pages = stage.table.pages(stage.rows, of.clone())?;
    let other = pages.iter().filter(|page| page.deltas != updates).count();
    ensure!(
        other <= pages.len() / TOLERATED + 1,
        "{other} of {} pages have another number of deltas than the {updates} updates they got",
        pages.len()
    );
    Ok(())
}

impl Page {
    /// The row of the page that its `slot`-th update goes to; none where the page is too small.
    fn slot(&self, slot: usize) -> Option<u64> {
        (self.rows >= SLOTS).then(|| (self.first + slot * self.rows / SLOTS) as u64)
    }
}

const SCANS: usize = 1;
/// Deltas that a page has at most; the next change consolidates it.
pub(super) const CHAIN_MAX: usize = 8;
const SLOTS: usize = CHAIN_MAX + 1;
const TRIES: usize = 6;
/// One page in so many may differ: the last is small, and pages split.
const TOLERATED: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_different_rows_of_the_page() {
        for rows in SLOTS..60 {
            let page = Page { first: 1000, rows, deltas: 0 };
            let slots: Vec<u64> = (0..SLOTS).filter_map(|slot| page.slot(slot)).collect();
            assert!(slots.windows(2).all(|pair| pair[0] < pair[1]), "{rows}: {slots:?}");
            assert!(slots[0] == 1000 && slots[SLOTS - 1] < 1000 + rows as u64);
        }
        assert_eq!(Page { first: 0, rows: 3, deltas: 1 }.slot(0), None);
    }
}
