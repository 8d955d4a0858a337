//! `tree`: the Bw-tree alone against what else there is.

mod peers;
mod session;
mod workload;

use anyhow::{Result, ensure};
use overside_bench::measure::{Bar, Ratio, Spread, Verdict, median, rotation};
use serde::Serialize;

use crate::Measure;
use peers::{BwTree, Concurrent, Locked, Peer, SccTree, SkipList};
use session::{Measured, Work};

/// Everything that was measured, as JSON shows it.
#[derive(Serialize)]
struct Report {
    keys: usize,
    operations_a_column: usize,
    rounds: usize,
    maps: Vec<Map>,
    bars: Vec<Bar>,
}

#[derive(Serialize)]
struct Map {
    name: &'static str,
    threads: usize,
    /// Millions of operations (rows, for `scan`) a second.
    columns: Vec<ColumnReport>,
    bytes_a_record_filled: Option<f64>,
    bytes_a_record_at_the_end: Option<f64>,
    put_p50_ns: f64,
    put_p99_ns: f64,
    put_p999_ns: f64,
    /// Reads of keys that are there which did not find them, all rounds together.
    missed_reads: u64,
}

#[derive(Serialize)]
struct ColumnReport {
    name: &'static str,
    m_per_s: Spread,
}

/// Measures and reports.
pub fn main(measure: Measure) -> Result<()> {
    let (keys, operations) = if measure.quick { (1_000_000, 500_000) } else { (10_000_000, 2_000_000) };
    let rounds = measure.rounds.unwrap_or(3).max(1);
    let work = Work::new(keys, operations);
    // By threads, map and round.
    let mut all: Vec<Vec<Vec<Measured>>> = vec![vec![Vec::new(); MAPS.len()]; THREADS.len()];
    for round in 0..rounds {
        for (at, threads) in THREADS.into_iter().enumerate() {
            for map in rotation(MAPS.len(), round) {
                eprintln!("round {} of {rounds}: {threads} thread(s), {}", round + 1, MAPS[map].name);
                all[at][map].push((MAPS[map].run)(&work, threads)?);
            }
            if threads == 1 {
                // One thread is told the same by everybody.
                let sums: Vec<u64> = all[at].iter().filter_map(|rounds| rounds.last()).map(|m| m.checksum).collect();
                ensure!(
                    sums.windows(2).all(|two| two[0] == two[1]),
                    "the maps disagree about what was read: {sums:x?}"
                );
            }
        }
    }
    let maps = THREADS
        .into_iter()
        .zip(&all)
        .flat_map(|(threads, maps)| MAPS.iter().zip(maps).map(move |(map, rounds)| summary(map.name, threads, rounds)));
    let maps: Vec<Map> = maps.collect();
    let report = Report { keys, operations_a_column: operations, rounds, maps, bars: bars(&all) };
    if measure.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

struct Entry {
    name: &'static str,
    run: fn(&Work, usize) -> Result<Measured>,
}

const fn entry<P: Peer>() -> Entry {
    Entry { name: P::NAME, run: session::run::<P> }
}

/// Ours first, the locked map last.
const MAPS: [Entry; 5] =
    [entry::<BwTree>(), entry::<SkipList>(), entry::<SccTree>(), entry::<Concurrent>(), entry::<Locked>()];
const LOCKED: usize = 4;
const THREADS: [usize; 2] = [1, 2];

fn column(rounds: &[Measured], name: &str) -> Vec<f64> {
    rounds.iter().flat_map(|m| &m.rates).filter(|(column, _)| *column == name).map(|(_, rate)| *rate).collect()
}

fn names(rounds: &[Measured]) -> Vec<&'static str> {
    rounds.first().map(|m| m.rates.iter().map(|(name, _)| *name).collect()).unwrap_or_default()
}

fn summary(name: &'static str, threads: usize, rounds: &[Measured]) -> Map {
    let columns = names(rounds)
        .into_iter()
        .map(|name| ColumnReport { name, m_per_s: Spread::of(&column(rounds, name)) })
        .collect();
    let bytes: Vec<(f64, f64)> = rounds.iter().filter_map(|m| m.bytes_a_record).collect();
    let mid =
        |pick: fn(&(f64, f64)) -> f64| (!bytes.is_empty()).then(|| median(&bytes.iter().map(pick).collect::<Vec<_>>()));
    let put = |at: usize| median(&rounds.iter().map(|m| m.put_ns[at] as f64).collect::<Vec<_>>());
    Map {
        name,
        threads,
        columns,
        bytes_a_record_filled: mid(|b| b.0),
        bytes_a_record_at_the_end: mid(|b| b.1),
        put_p50_ns: put(0),
        put_p99_ns: put(1),
        put_p999_ns: put(2),
        missed_reads: rounds.iter().map(|m| m.missed).sum(),
    }
}

/// What is to be reached.
fn bars(all: &[Vec<Vec<Measured>>]) -> Vec<Bar> {
    let mut bars = Vec::new();
    let mut bar = |at: usize, other: usize, name: &'static str, wanted: f64| {
        let (ours, theirs) = (column(&all[at][0], name), column(&all[at][other], name));
        let words = format!("{name}, {} thread(s), against {}", THREADS[at], MAPS[other].name);
        bars.push(Bar::at_least(words, wanted, Ratio::paired(&ours, &theirs)));
    };
    for at in 0..THREADS.len() {
        for other in 1..LOCKED {
            for name in names(&all[at][0]) {
                bar(at, other, name, 1.0);
            }
        }
        bar(at, LOCKED, "E", 1.0);
    }
    bar(0, LOCKED, "scan", 6.0);
    for name in ["insert", "B", "A"] {
        bar(1, LOCKED, name, 1.0);
    }
    for name in ["read", "C"] {
        bar(0, LOCKED, name, 0.8);
    }
    bars
}

fn print(report: &Report) {
    println!(
        "{} random u64 -> u64, {} rounds; M operations (scan: rows) a second, medians",
        report.keys, report.rounds
    );
    for threads in THREADS {
        println!("\n{threads} thread(s)");
        let maps: Vec<&Map> = report.maps.iter().filter(|map| map.threads == threads).collect();
        let columns = maps.first().map(|map| &map.columns[..]).unwrap_or_default();
        print!("{:20}", "");
        columns.iter().for_each(|column| print!("{:>8}", column.name));
        println!("{:>10}{:>10}{:>9}{:>9}{:>10}", "B/rec", "at end", "put p50", "p99", "p99.9 ns");
        for map in maps {
            print!("{:20}", map.name);
            map.columns.iter().for_each(|column| print!("{:>8.3}", column.m_per_s.median));
            let bytes = |bytes: Option<f64>| bytes.map_or("-".into(), |bytes| format!("{bytes:.1}"));
            print!("{:>10}{:>10}", bytes(map.bytes_a_record_filled), bytes(map.bytes_a_record_at_the_end));
            println!("{:>9}{:>9}{:>10}", map.put_p50_ns, map.put_p99_ns, map.put_p999_ns);
        }
    }
    println!(
        "\nBytes a record count what the global allocator gave and, for the Bw-tree, the chunks of its arena (room for"
    );
    println!("deltas, replaced pages not yet let go and side tables included); `at end` is after A, B and E.");
    for map in report.maps.iter().filter(|map| map.missed_reads > 0) {
        println!(
            "{} replaces by removing and inserting: {} reads did not find a key that is there.",
            map.name, map.missed_reads
        );
    }
    crate::bars::print(&report.bars);
    let missed = report.bars.iter().filter(|bar| bar.verdict == Verdict::Missed).count();
    println!("\n{} of {} bars missed", missed, report.bars.len());
}
