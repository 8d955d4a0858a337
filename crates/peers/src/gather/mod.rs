//! `gather`: messages of scattered records over shared memory and TCP, against libfabric and UCX on
//! the same memory.

mod program;
mod report;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use overside_bench::figures::Sample;
use overside_bench::figures::gather::{Gather, Messages};
use overside_bench::measure::alternate;

use crate::Measure;
use program::{Library, MessageKind, Pair, Programs};
use report::Report;

/// How to measure.
#[derive(clap::Args, Clone, Debug)]
pub struct GatherMeasure {
    #[command(flatten)]
    measure: Measure,
    /// Only messages of so many records.
    #[arg(long, value_name = "RECORDS,…", value_delimiter = ',', conflicts_with = "results")]
    only: Vec<usize>,
}

/// Whose messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Overside,
    Other(Library),
}

impl Who {
    pub fn name(self) -> &'static str {
        match self {
            Who::Overside => "Overside",
            Who::Other(library) => library.name(),
        }
    }
}

/// A way of sending that was measured.
pub struct Side {
    pub who: Who,
    /// As addresses name it.
    pub over: &'static str,
    pub way: &'static str,
    /// Gather entries a message may have.
    pub entries: Option<usize>,
    pub rounds: Vec<Sample>,
}

/// All sides for messages of one kind.
pub struct Cell {
    pub record_bytes: usize,
    pub per_message: usize,
    pub sides: Vec<Side>,
}

/// Measures and reports.
pub fn main(asked: &GatherMeasure) -> Result<()> {
    let measure = &asked.measure;
    let region_bytes = if measure.quick { 64 << 20 } else { 256 << 20 };
    let rounds = measure.rounds.unwrap_or(if measure.quick { 5 } else { 11 }).max(2);
    let slice_ns = if measure.quick { 12_000_000 } else { 40_000_000 };
    let programs = Programs::new()?;
    let (mut others, mut skipped) = (Vec::new(), Vec::new());
    for library in Library::ALL {
        match programs.compile(library) {
            Ok(program) => others.extend(TRANSPORTS.map(|over| (library, over, program.clone()))),
            Err(why) => skipped.push(format!("{}: {why:#}", library.name())),
        }
    }
    let ours = TRANSPORTS.map(|over| Gather::start(over, region_bytes).map(|gather| (over, gather)));
    let mut ours = ours.into_iter().collect::<Result<Vec<_>>>()?;
    let mut cells = Vec::new();
    for record_bytes in RECORD_BYTES {
        for per_message in PER_MESSAGE.into_iter().filter(|n| asked.only.is_empty() || asked.only.contains(n)) {
            eprintln!("records of {record_bytes} B, {per_message} a message");
            let kind = MessageKind { region_bytes, record_bytes, per_message };
            let sides = cell(kind, &mut ours, &mut others, &mut skipped, rounds, slice_ns)?;
            cells.push(Cell { record_bytes, per_message, sides });
        }
    }
    ensure!(!cells.is_empty(), "no message has so many records; choose of {PER_MESSAGE:?}");
    let report = Report::new(&cells, region_bytes, rounds, skipped);
    crate::bars::tell(measure, &report)
}

/// Everything for messages of one kind: checked first, then measured in turn. A library's transport
/// that does not start is left out from then on, and told.
fn cell(
    kind: MessageKind,
    ours: &mut [(&'static str, Gather)],
    others: &mut Vec<(Library, &'static str, PathBuf)>,
    skipped: &mut Vec<String>,
    rounds: usize,
    slice_ns: u64,
) -> Result<Vec<Side>> {
    let mut running = Running { ours: Vec::new(), theirs: Vec::new() };
    for (over, gather) in ours {
        running.ours.push((over, gather.messages(kind.record_bytes, kind.per_message)?));
    }
    others.retain(|(library, over, program)| match Pair::start(program, over, kind) {
        Ok(pair) => {
            running.theirs.push((*library, *over, pair));
            true
        }
        Err(why) => {
            skipped.push(format!("{} over {over}: {why:#}", library.name()));
            false
        }
    });
    let mut sides = running.sides();
    for (runner, side) in &sides {
        let what = || format!("{} over {}, {}", side.who.name(), side.over, side.way);
        running.check(*runner).with_context(what)?;
    }
    let samples = alternate(sides.len(), rounds, |at, _| {
        let (runner, side) = &sides[at];
        running.run(*runner, slice_ns).with_context(|| format!("{} over {}", side.who.name(), side.over))
    })?;
    for ((_, side), rounds) in sides.iter_mut().zip(samples) {
        side.rounds = rounds;
    }
    Ok(sides.into_iter().map(|(_, side)| side).collect())
}

/// Processes at work, all for messages of one kind.
struct Running<'a> {
    ours: Vec<(&'static str, Messages<'a>)>,
    theirs: Vec<(Library, &'static str, Pair)>,
}

/// Which of them, and which way.
#[derive(Clone, Copy)]
enum Runner {
    Ours { at: usize, way: usize },
    Theirs { at: usize, packed: bool },
}

impl Running<'_> {
    fn sides(&self) -> Vec<(Runner, Side)> {
        let mut sides = Vec::new();
        for (at, (over, messages)) in self.ours.iter().enumerate() {
            for (way, name) in messages.ways().enumerate() {
                let side = Side { who: Who::Overside, over, way: name, entries: None, rounds: Vec::new() };
                sides.push((Runner::Ours { at, way }, side));
            }
        }
        for (at, (library, over, pair)) in self.theirs.iter().enumerate() {
            for (packed, way) in [(false, "zero-copy"), (true, "copy-out")] {
                let entries = (!packed).then_some(pair.entries);
                let side = Side { who: Who::Other(*library), over, way, entries, rounds: Vec::new() };
                sides.push((Runner::Theirs { at, packed }, side));
            }
        }
        sides
    }

    /// What arrives is what was to be sent.
    fn check(&mut self, runner: Runner) -> Result<()> {
        match runner {
            Runner::Ours { at, way } => self.ours[at].1.check(way, CHECKED),
            Runner::Theirs { at, packed } => {
                let mut expected = 0u64;
                self.ours[0]
                    .1
                    .each_record(CHECKED, |record| expected = expected.wrapping_add(program::digest_of(record)));
                let came = self.theirs[at].2.check(packed, CHECKED)?;
                ensure!(came == expected, "what arrived is not what was sent");
                Ok(())
            }
        }
    }

    fn run(&mut self, runner: Runner, slice_ns: u64) -> Result<Sample> {
        match runner {
            Runner::Ours { at, way } => self.ours[at].1.run(way, slice_ns),
            Runner::Theirs { at, packed } => self.theirs[at].2.run(packed, slice_ns),
        }
    }
}

/// As addresses, libfabric's providers and `UCX_TLS` name them.
const TRANSPORTS: [&str; 2] = ["shm", "tcp"];
const RECORD_BYTES: [usize; 2] = [128, 1024];
const PER_MESSAGE: [usize; 4] = [1, 4, 16, 64];
/// Messages whose arrival is checked, for each side.
const CHECKED: u64 = 200;
