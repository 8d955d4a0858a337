//! The workloads while the third process updates rows: timed, and checked against its log.

use super::{quiet::MODES, stage::Stage, workload::Workload};
use crate::{
    measure::rotation,
    report::{Run, Sample},
    verify::check,
};
use anyhow::Result;

/// Rows that are updated per second meanwhile.
pub(super) const UPDATES_PER_S: u64 = 20_000;

/// Runs `rounds` rounds; every workload in every mode is timed once and checked once in each.
pub(super) fn run(stage: &mut Stage<'_>, rounds: usize, mut progress: impl FnMut()) -> Result<Vec<Run>> {
    let mut samples: Vec<Vec<Vec<Sample>>> = vec![vec![Vec::new(); MODES.len()]; Workload::ALL.len()];
    for round in 0..rounds {
        for (at, workload) in Workload::ALL.into_iter().enumerate() {
            let timed = workload.round(stage.rows.len(), round);
            let watched = workload.watched(stage.rows.len(), round);
            let mut seen = Vec::new();
            stage.updater.run(UPDATES_PER_S)?;
            for side in rotation(MODES.len(), round) {
                let (sample, _, _) = stage.table.measure(stage.rows, &timed, MODES[side])?;
                samples[at][side].push(sample);
                for spec in &watched {
                    seen.push((MODES[side], stage.table.observe(stage.rows, spec, MODES[side])?));
                }
            }
            let log = stage.updater.stop()?;
            stage.note(&log)?;
            for (mode, (scan, seen)) in seen {
                let outcome = check(stage.rows, &stage.history, &scan, seen);
                stage.checked.contract(workload.name(), mode, &outcome);
            }
            progress();
        }
    }
    let mut runs = Vec::new();
    for (workload, samples) in Workload::ALL.into_iter().zip(&samples) {
        for (mode, samples) in MODES.iter().zip(samples) {
            runs.push(Run::of(workload.name(), mode.name(), 0, samples));
        }
    }
    Ok(runs)
}
