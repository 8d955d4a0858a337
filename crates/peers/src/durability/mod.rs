//! `durability`: tables that survive against redis and PostgreSQL, the same rows outstanding; and,
//! without a bar, beside fjall and bf-tree, which lie in the process that asks and get no message.

mod embedded;
mod postgresql;
mod redis;

use std::path::PathBuf;

use anyhow::Result;
use overside_bench::figures::{Batches, Ours, Testbed};
use overside_bench::measure::{Bar, Ratio, Spread, alternate};
use overside_bench::overside::table::wire::Durability;
use serde::Serialize;

use crate::{Measure, bars::Compared};
use embedded::{Bf, Fjall};
use fjall::PersistMode;
use postgresql::PostgreSql;
use redis::Redis;

/// How to measure, and where.
#[derive(clap::Args, Clone, Debug)]
pub struct DurabilityMeasure {
    #[command(flatten)]
    measure: Measure,
    /// In which folder all of them have their data; a new folder beside the current one unless
    /// said.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// A store with its clients: eight, each with a batch of rows under way.
trait Contender {
    /// Puts for so long.
    fn batches(&mut self, testbed: &mut Testbed, ns: u64) -> Result<Batches>;
}

impl Contender for Ours {
    fn batches(&mut self, _: &mut Testbed, ns: u64) -> Result<Batches> {
        Ours::batches(self, ns)
    }
}

#[derive(Serialize)]
struct Report {
    clients: u64,
    batch_rows: u64,
    value_bytes: usize,
    sides: Vec<SideReport>,
    skipped: Vec<String>,
    bars: Vec<Bar>,
}

#[derive(Serialize)]
struct SideReport {
    name: &'static str,
    /// What an acknowledged row survives.
    survives: &'static str,
    rows_per_s: Spread,
    /// Of all processes, clients included.
    cpu_ns_a_row: f64,
    rounds: Vec<f64>,
}

/// Measures and reports.
pub fn main(asked: &DurabilityMeasure) -> Result<()> {
    let Measure { quick, rounds, .. } = asked.measure;
    let mut testbed = Testbed::new(asked.dir.as_deref())?;
    let (mut sides, skipped) = start(&mut testbed)?;
    let (rounds, ns) = (rounds.unwrap_or(if quick { 5 } else { 9 }), if quick { 500_000_000 } else { 2_000_000_000 });
    let samples = alternate(sides.len(), rounds, |at, round| {
        let (name, side) = &mut sides[at];
        eprintln!("round {}: {name}", round + 1);
        side.batches(&mut testbed, ns)
    })?;
    let names: Vec<&'static str> = sides.iter().map(|(name, _)| *name).collect();
    let report = Report::of(&names, &samples, skipped);
    crate::bars::tell(&asked.measure, &report)
}

type Named = (&'static str, Box<dyn Contender>);

/// Those that are installed, and what is skipped and why.
fn start(testbed: &mut Testbed) -> Result<(Vec<Named>, Vec<String>)> {
    let mut sides: Vec<Named> = vec![
        (SYNC, Box::new(Ours::start(testbed, Durability::Sync)?)),
        (GROUP, Box::new(Ours::start(testbed, Durability::Group)?)),
    ];
    let mut skipped = Vec::new();
    for (name, fsync) in [(ALWAYS, "always"), (EVERYSEC, "everysec")] {
        match Redis::start(testbed, fsync)? {
            Some(redis) => sides.push((name, Box::new(redis))),
            None => skipped.push(format!("{name}: redis-server is not installed (Debian's package redis-server)")),
        }
    }
    match PostgreSql::start(testbed)? {
        Ok(postgresql) => sides.push((POSTGRESQL, Box::new(postgresql))),
        Err(why) => skipped.push(format!("{POSTGRESQL}: {why}")),
    }
    sides.push((FJALL_SYNC, Box::new(Fjall::start(testbed, "fjall-sync", PersistMode::SyncData)?)));
    sides.push((FJALL_BUFFER, Box::new(Fjall::start(testbed, "fjall-buffer", PersistMode::Buffer)?)));
    sides.push((BF_TREE, Box::new(Bf::start(testbed)?)));
    skipped.iter().for_each(|why| eprintln!("skipped: {why}"));
    Ok((sides, skipped))
}

impl Report {
    fn of(names: &[&'static str], samples: &[Vec<Batches>], skipped: Vec<String>) -> Report {
        let side = |(name, rounds): (&&'static str, &Vec<Batches>)| {
            let rates: Vec<f64> = rounds.iter().map(Batches::rows_per_s).collect();
            let each: Vec<f64> = rounds.iter().map(|round| round.cpu_ns as f64 / round.rows.max(1) as f64).collect();
            let survives = survives(name);
            SideReport {
                name,
                survives,
                rows_per_s: Spread::of(&rates),
                cpu_ns_a_row: Spread::of(&each).median,
                rounds: rates,
            }
        };
        let sides: Vec<SideReport> = names.iter().zip(samples).map(side).collect();
        let bars = bars(&sides);
        let (clients, batch_rows) = (Testbed::CLIENTS, Testbed::BATCH_ROWS);
        Report { clients, batch_rows, value_bytes: Testbed::VALUE_BYTES, sides, skipped, bars }
    }
}

impl Compared for Report {
    const FIGURE: &str = "peers-durability";

    fn bars(&self) -> &[Bar] {
        &self.bars
    }

    fn print(&self) {
        println!(
            "{} clients, each with a batch of {} rows under way; rows of 8 bytes of key and {} of value",
            self.clients, self.batch_rows, self.value_bytes
        );
        println!("\n{:32} {:>15} {:>20} {:>12}  survives", "", "thousand rows/s", "quartiles", "CPU µs a row");
        for side in &self.sides {
            let Spread { median, quarter_low, quarter_high, .. } = side.rows_per_s;
            let quartiles = format!("{:.1} .. {:.1}", quarter_low / 1e3, quarter_high / 1e3);
            let (name, survives, cpu) = (side.name, side.survives, side.cpu_ns_a_row / 1e3);
            println!("{name:32} {:>15.1} {quartiles:>20} {cpu:>12.2}  {survives}", median / 1e3);
        }
        println!("\nCPU is of all processes: server, its children and clients.");
        println!("fjall and bf-tree lie in the process that asks: a row of theirs crosses no boundary.");
        crate::bars::print(&self.bars);
    }
}

/// What an acknowledged row survives.
fn survives(name: &str) -> &'static str {
    match name {
        SYNC | ALWAYS | POSTGRESQL | FJALL_SYNC => "power loss",
        GROUP => "kill -9; of a power loss all but 10 ms",
        EVERYSEC => "kill -9; of a power loss all but a second",
        FJALL_BUFFER => "kill -9",
        BF_TREE => "kill -9, where its log has the row: not that of a new page",
        _ => "unknown",
    }
}

/// What is to be reached, as far as there is whom to compare with.
fn bars(sides: &[SideReport]) -> Vec<Bar> {
    let of = |name: &str| sides.iter().find(|side| side.name == name).map(|side| &side.rounds[..]);
    let bar = |(ours, theirs, wanted): (&str, &str, f64)| {
        let ratio = of(ours).zip(of(theirs)).and_then(|(ours, theirs)| Ratio::paired(ours, theirs));
        Bar::at_least(format!("{ours} over {theirs}, rows/s"), wanted, ratio)
    };
    [(SYNC, ALWAYS, 1.2), (GROUP, EVERYSEC, 1.2), (SYNC, POSTGRESQL, 3.0)].into_iter().map(bar).collect()
}

const SYNC: &str = "overside, sync";
const GROUP: &str = "overside, group";
const ALWAYS: &str = "redis, appendfsync always";
const EVERYSEC: &str = "redis, appendfsync everysec";
const POSTGRESQL: &str = "PostgreSQL, synchronous_commit";
const FJALL_SYNC: &str = "fjall, SyncData";
const FJALL_BUFFER: &str = "fjall, Buffer";
const BF_TREE: &str = "bf-tree with its log";

#[cfg(test)]
mod tests {
    use super::*;
    use overside_bench::measure::Verdict;

    #[test]
    fn bars_are_missed_met_and_not_measured() {
        let side = |name, rate: f64| SideReport {
            name,
            survives: survives(name),
            rows_per_s: Spread::of(&[rate]),
            cpu_ns_a_row: 1.0,
            rounds: vec![rate, rate * 1.01, rate * 0.99],
        };
        let sides = [side(SYNC, 100.0), side(ALWAYS, 95.0), side(POSTGRESQL, 10.0)];
        let verdicts: Vec<Verdict> = bars(&sides).iter().map(|bar| bar.verdict).collect();
        assert_eq!(verdicts, [Verdict::Missed, Verdict::NotMeasured, Verdict::Met]);
    }
}
