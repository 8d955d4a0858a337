//! Clean pages, nobody writing: every workload in every mode, beside the baseline and the limit.

use super::{
    stage::Stage,
    workload::{Workload, part_rows},
};
use crate::{
    baseline::Baseline,
    limits::{Chunks, CopyLimits},
    measure::{Ratio, rotation},
    report::{Prices, Run, Sample},
};
use anyhow::{Result, ensure};
use overside::{
    memory::kernels::Kernel,
    table::{client::ScanSummary, wire::Mode},
};

/// The modes in the order of the report.
pub(super) const MODES: [Mode; 5] = [Mode::Copy, Mode::Gather, Mode::Delta, Mode::InPlace, Mode::Auto];

/// What the quiet rounds came to.
#[derive(Default)]
pub(super) struct Quiet {
    pub(super) runs: Vec<Run>,
    pub(super) baseline: Vec<Run>,
    pub(super) prices: Vec<Prices>,
    /// A full scan by `auto` over the limit of the same round.
    pub(super) of_limit: Option<Ratio>,
    /// The limit's rounds, bytes per second.
    pub(super) limit: Vec<f64>,
    /// A full scan in place over one process that reads such pages in the same round.
    pub(super) of_reading: Option<Ratio>,
    /// The kernel's share of the server's and of the client's CPU.
    pub(super) kernel_share: [f64; 2],
}

/// Runs `rounds` rounds. Within a round every side of a workload runs once,
/// in an order that rotates.
pub(super) fn run(
    stage: &mut Stage<'_>,
    baseline: &mut Baseline,
    chunks: &mut Chunks,
    limits: &CopyLimits,
    rounds: usize,
    mut progress: impl FnMut(usize),
) -> Result<Quiet> {
    let (mut limit, mut reading) = (Vec::new(), Vec::new());
    let kernel = fastest(limits);
    let mut samples: Vec<Vec<Vec<Sample>>> = vec![vec![Vec::new(); MODES.len() + 1]; Workload::ALL.len()];
    let mut ends = [ScanSummary::default(); Workload::ALL.len()];
    let before = stage.table.splits()?;
    for round in 0..rounds {
        for (at, workload) in Workload::ALL.into_iter().enumerate() {
            let specs = workload.round(stage.rows.len(), round);
            let sides = MODES.len() + 1 + if workload == Workload::Full { 2 } else { 0 };
            for side in rotation(sides, round) {
                if let Some(mode) = MODES.get(side) {
                    let (sample, summary) = stage.measure(workload.name(), &specs, *mode)?;
                    samples[at][side].push(sample);
                    if *mode == Mode::Auto {
                        ends[at] = summary;
                    }
                } else if side == MODES.len() {
                    samples[at][side].push(socket(stage, baseline, &specs)?);
                } else if side == MODES.len() + 1 {
                    // As many passes as scans, so that the second finds in the cache what theirs does.
                    limit.push(chunks.chunked(kernel, specs.len()));
                } else {
                    reading.push(chunks.in_place(specs.len()));
                }
            }
            progress(round * Workload::ALL.len() + at + 1);
        }
    }
    let after = stage.table.splits()?;
    let kernel_share = [0, 1].map(|side| after[side].since(before[side]).kernel_share());
    let over = |mode: Mode, limit: &[f64]| {
        let rounds = MODES.iter().zip(&samples[0]).find(|(of, _)| **of == mode).map(|(_, samples)| samples);
        let rounds: Vec<f64> = rounds.into_iter().flatten().map(Sample::bytes_per_s).collect();
        Ratio::paired(&rounds, limit)
    };
    let (of_limit, of_reading) = (over(Mode::Auto, &limit), over(Mode::InPlace, &reading));
    Ok(Quiet { of_limit, of_reading, limit, kernel_share, ..summarise(&samples, &ends) })
}

fn summarise(samples: &[Vec<Vec<Sample>>], ends: &[ScanSummary]) -> Quiet {
    let mut quiet = Quiet::default();
    for (workload, samples) in Workload::ALL.into_iter().zip(samples) {
        for (mode, samples) in MODES.iter().zip(samples) {
            quiet.runs.push(Run::of(workload.name(), mode.name(), 0, samples));
        }
        quiet.baseline.push(Run::of(workload.name(), "socket", 0, &samples[MODES.len()]));
    }
    quiet.prices = Workload::ALL.iter().zip(ends).map(|(w, end)| prices(w.name(), end)).collect();
    quiet
}

/// Checks every workload in every mode row by row, untimed; of a large table each mode its share.
pub(super) fn verify(stage: &mut Stage<'_>) -> Result<()> {
    for workload in Workload::ALL {
        for (at, mode) in MODES.into_iter().enumerate() {
            let specs = workload.verified(stage.rows.len(), at, MODES.len());
            stage.verify(workload.name(), &specs, mode)?;
        }
    }
    Ok(())
}

/// What the planner expected a page to cost, from the end of a scan by `auto`.
pub(super) fn prices(workload: &str, end: &ScanSummary) -> Prices {
    let pages: u64 = end.server.chosen.iter().sum();
    let ns = end.server.price_ns.map(|ns| (ns > 0 && pages > 0).then(|| ns as f64 / pages as f64));
    Prices { workload: workload.to_owned(), ns }
}

fn socket(stage: &Stage<'_>, baseline: &mut Baseline, specs: &[super::table::ScanSpec]) -> Result<Sample> {
    let mut all = Sample { scans: specs.len() as u32, ..Sample::default() };
    for spec in specs {
        let run = baseline.run(&spec.request(stage.rows, part_rows(stage.rows.len())))?;
        ensure!(run.touched.rows == spec.rows.len() as u64, "the baseline lost rows");
        all.rows += run.touched.rows;
        all.bytes += run.touched.bytes;
        all.wall_ns += run.wall_ns;
        all.server_cpu_ns += run.server_cpu_ns;
        all.client_cpu_ns += run.client_cpu_ns;
    }
    all.server_bytes_copied = all.bytes;
    Ok(all)
}

fn fastest(limits: &CopyLimits) -> Kernel {
    let name = limits.best_chunked().map(|limit| limit.kernel.as_str());
    let is = |kernel: &Kernel| Some(crate::limits::kernel_name(*kernel)) == name;
    Kernel::available().into_iter().find(is).unwrap_or(Kernel::Libc)
}
