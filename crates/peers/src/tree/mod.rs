//! `tree`: the Bw-tree alone against what else there is.

mod peers;
mod report;
mod samples;
mod session;
mod workload;

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;
use overside_bench::measure::rotation;

use crate::Measure;
use peers::{BwTree, Concurrent, Locked, Peer, SccTree, SkipList};
use report::Report;
use samples::{Sample, Samples};
use session::{Measured, PUT, Work};
use workload::COLUMNS;

/// What to measure, and what of it now.
#[derive(Args, Clone, Debug)]
pub struct TreeMeasure {
    #[command(flatten)]
    measure: Measure,
    /// Only these columns: insert, read, C, B, A, E, scan, and put (latency).
    #[arg(long, value_delimiter = ',', conflicts_with = "results")]
    only: Vec<String>,
    /// Only these maps: bwtree, skiplist, treeindex, concurrent-map, btreemap.
    #[arg(long, value_delimiter = ',', conflicts_with = "results")]
    peers: Vec<String>,
    /// Only with so many threads: 1, 2.
    #[arg(long, value_delimiter = ',', conflicts_with = "results")]
    threads: Vec<usize>,
    /// Keeps samples in this file and reports those of earlier runs as well: ten million keys in
    /// pieces.
    #[arg(long, conflicts_with = "results")]
    keep: Option<PathBuf>,
}

/// Measures and reports.
pub fn main(tree: &TreeMeasure) -> Result<()> {
    let (keys, operations) = if tree.measure.quick { (1_000_000, 500_000) } else { (10_000_000, 2_000_000) };
    let rounds = tree.measure.rounds.unwrap_or(3);
    let maps = chosen_maps(&tree.peers)?;
    let columns = chosen_columns(&tree.only)?;
    if let Some(wrong) = tree.threads.iter().find(|threads| !THREADS.contains(threads)) {
        bail!("--threads {wrong}: one of 1, 2");
    }
    let mut samples = match &tree.keep {
        Some(file) => Samples::read(file, keys, operations)?,
        None => Samples::default(),
    };
    let work = Work::new(keys, operations, &columns);
    for round in (samples.next_round()..).take(rounds) {
        for threads in THREADS.into_iter().filter(|n| tree.threads.is_empty() || tree.threads.contains(n)) {
            let mut sums = Vec::new();
            for map in rotation(maps.len(), round).map(|at| maps[at]) {
                eprintln!("round {}: {threads} thread(s), {}", round + 1, map.name);
                let Measured { figures, checksum } = (map.run)(&work, threads)?;
                sums.push(checksum);
                for (figure, value) in figures {
                    let (map, figure) = (map.name.to_string(), figure.to_string());
                    samples.add(Sample { keys, operations, round, threads, map, figure, value });
                }
            }
            // One thread is told the same by everybody.
            let agree = threads > 1 || sums.windows(2).all(|two| two[0] == two[1]);
            ensure!(agree, "the maps disagree about what was read: {sums:x?}");
        }
        if let Some(file) = &tree.keep {
            samples.append(file)?;
        }
    }
    let report = Report::of(&samples, keys, operations);
    crate::bars::tell(&tree.measure, &report)
}

fn chosen_maps(names: &[String]) -> Result<Vec<&'static Entry>> {
    if names.is_empty() {
        return Ok(MAPS.iter().collect());
    }
    if let Some(unknown) = names.iter().find(|name| MAPS.iter().all(|map| map.short != *name)) {
        bail!("--peers {unknown}: one of {}", MAPS.map(|map| map.short).join(", "));
    }
    Ok(MAPS.iter().filter(|map| names.iter().any(|name| name == map.short)).collect())
}

fn chosen_columns(names: &[String]) -> Result<Vec<&'static str>> {
    let all = || COLUMNS.into_iter().chain([PUT]);
    if let Some(unknown) = names.iter().find(|name| all().all(|column| column != *name)) {
        bail!("--only {unknown}: one of {}", all().collect::<Vec<_>>().join(", "));
    }
    Ok(all().filter(|column| names.is_empty() || names.iter().any(|name| name == column)).collect())
}

struct Entry {
    /// As the table shows it.
    name: &'static str,
    /// As `--peers` has it.
    short: &'static str,
    run: fn(&Work, usize) -> Result<Measured>,
}

const fn entry<P: Peer>(short: &'static str) -> Entry {
    Entry { name: P::NAME, short, run: session::run::<P> }
}

/// Ours first, the locked map last.
const MAPS: [Entry; 5] = [
    entry::<BwTree>("bwtree"),
    entry::<SkipList>("skiplist"),
    entry::<SccTree>("treeindex"),
    entry::<Concurrent>("concurrent-map"),
    entry::<Locked>("btreemap"),
];
const THREADS: [usize; 2] = [1, 2];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused_with_what_is() {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(chosen_columns(&names(&["E", "insert"])).unwrap(), ["insert", "E"]);
        assert_eq!(chosen_columns(&[]).unwrap().len(), 8);
        assert!(chosen_columns(&names(&["F"])).unwrap_err().to_string().contains("scan, put"));
        let maps = chosen_maps(&names(&["concurrent-map", "bwtree"])).unwrap();
        assert_eq!(maps.iter().map(|map| map.name).collect::<Vec<_>>(), ["overside bwtree", "concurrent-map"]);
        let unknown = chosen_maps(&names(&["redb"])).err().map(|error| error.to_string());
        assert!(unknown.is_some_and(|text| text.contains("treeindex")));
    }
}
