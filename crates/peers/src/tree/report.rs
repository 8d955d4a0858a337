//! What is shown of the samples: a table, bars, JSON.

use overside_bench::measure::{Bar, Ratio, Spread, Verdict, median};
use serde::Serialize;

use crate::bars::Compared;

use super::samples::Samples;
use super::session::{BYTES_AT_END, BYTES_FILLED, MISSED, PUT_NS};
use super::workload::COLUMNS;
use super::{MAPS, THREADS};

/// Everything that was measured, as JSON shows it.
#[derive(Serialize)]
pub struct Report {
    keys: usize,
    operations_a_column: usize,
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
    /// Median, 99th and 99.9th percentile.
    put_ns: Option<[f64; 3]>,
    /// Reads of keys that are there which did not find them, all rounds together.
    missed_reads: u64,
}

#[derive(Serialize)]
struct ColumnReport {
    name: &'static str,
    m_per_s: Spread,
}

impl Report {
    /// Summarises `samples`.
    pub fn of(samples: &Samples, keys: usize, operations_a_column: usize) -> Report {
        let all = THREADS.into_iter().flat_map(|threads| MAPS.iter().map(move |map| (threads, map.name)));
        let maps: Vec<Map> = all.map(|(threads, name)| summary(samples, threads, name)).collect();
        let measured = |map: &Map| !map.columns.is_empty() || map.put_ns.is_some();
        let maps = maps.into_iter().filter(measured).collect();
        Report { keys, operations_a_column, maps, bars: bars(samples) }
    }

    fn print_table(&self, threads: usize) {
        let maps: Vec<&Map> = self.maps.iter().filter(|map| map.threads == threads).collect();
        if maps.is_empty() {
            return;
        }
        println!("\n{threads} thread(s)");
        print!("{:20}", "");
        COLUMNS.iter().for_each(|name| print!("{name:>8}"));
        println!("{:>7}{:>10}{:>10}{:>9}{:>9}{:>10}", "rounds", "B/rec", "at end", "put p50", "p99", "p99.9 ns");
        for map in maps {
            print!("{:20}", map.name);
            for name in COLUMNS {
                match map.columns.iter().find(|column| column.name == name) {
                    Some(column) => print!("{:>8.3}", column.m_per_s.median),
                    None => print!("{:>8}", "-"),
                }
            }
            let rounds = map.columns.iter().map(|column| column.m_per_s.samples).max().unwrap_or(0);
            let bytes = |bytes: Option<f64>| bytes.map_or("-".into(), |bytes| format!("{bytes:.1}"));
            let ns = |at: usize| map.put_ns.map_or("-".into(), |put| format!("{:.0}", put[at]));
            print!("{rounds:>7}{:>10}{:>10}", bytes(map.bytes_a_record_filled), bytes(map.bytes_a_record_at_the_end));
            println!("{:>9}{:>9}{:>10}", ns(0), ns(1), ns(2));
        }
    }
}

impl Compared for Report {
    const FIGURE: &str = "peers-tree";

    fn bars(&self) -> &[Bar] {
        &self.bars
    }

    fn print(&self) {
        println!("{} random u64 -> u64; M operations (scan: rows) a second, medians", self.keys);
        for threads in THREADS {
            self.print_table(threads);
        }
        println!(
            "\nBytes a record count what the global allocator gave and, for the Bw-tree, the chunks of its arena (room for"
        );
        println!("deltas, replaced pages not yet let go and side tables included); `at end` is after what was asked.");
        for map in self.maps.iter().filter(|map| map.missed_reads > 0) {
            println!(
                "{} replaces by removing and inserting: {} reads did not find a key that is there.",
                map.name, map.missed_reads
            );
        }
        crate::bars::print(&self.bars);
        let missed = self.bars.iter().filter(|bar| bar.verdict == Verdict::Missed).count();
        println!("\n{missed} of {} bars missed", self.bars.len());
    }
}

fn summary(samples: &Samples, threads: usize, name: &'static str) -> Map {
    let of = |figure: &str| samples.of(threads, name, figure);
    let mid = |figure: &str| Some(of(figure)).filter(|values| !values.is_empty()).map(|values| median(&values));
    let column = |column: &'static str| {
        let values = of(column);
        (!values.is_empty()).then(|| ColumnReport { name: column, m_per_s: Spread::of(&values) })
    };
    let put = PUT_NS.map(mid);
    Map {
        name,
        threads,
        columns: COLUMNS.into_iter().filter_map(column).collect(),
        bytes_a_record_filled: mid(BYTES_FILLED),
        bytes_a_record_at_the_end: mid(BYTES_AT_END),
        put_ns: put[0].map(|_| put.map(Option::unwrap_or_default)),
        missed_reads: of(MISSED).iter().sum::<f64>() as u64,
    }
}

/// What is to be reached, as far as it was measured.
fn bars(samples: &Samples) -> Vec<Bar> {
    let [ours, others @ .., locked] = &MAPS;
    let mut bars = Vec::new();
    let mut bar = |threads: usize, other: &str, column: &str, wanted: f64| {
        let (ours, theirs) = samples.pairs(threads, ours.name, other, column);
        let words = format!("{column}, {threads} thread(s), against {other}");
        let bar = Bar::at_least(words, wanted, Ratio::paired(&ours, &theirs));
        if bar.verdict != Verdict::NotMeasured {
            bars.push(bar);
        }
    };
    for threads in THREADS {
        for other in others {
            COLUMNS.into_iter().for_each(|column| bar(threads, other.name, column, 1.0));
        }
        bar(threads, locked.name, "E", 1.0);
    }
    bar(1, locked.name, "scan", 6.0);
    ["insert", "B", "A"].into_iter().for_each(|column| bar(2, locked.name, column, 1.0));
    ["read", "C"].into_iter().for_each(|column| bar(1, locked.name, column, 0.8));
    bars
}
