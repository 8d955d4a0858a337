//! Tables that survive: what a log, its checkpoints and recovery may cost, and the thesis'
//! latencies as ratios.

use super::{at, part, ratio};
use crate::{
    measured::{Lack, Measured, Metric, Reading, over},
    verdict::{ClaimPart, Goals, Of, Rule, Wanted},
};
use Metric::Recorded;
use Wanted::{AtLeast, AtMost, Within};

const ADOPTED: &str = "rows/s: adopted from a checkpoint";
const REPLAYED: &str = "rows/s: replayed from the log";
const INSERTED: &str = "rows/s: inserted into a tree";

/// In the order of the project's table.
pub(super) const GOALS: &Goals = &Goals {
    figure: "durability",
    parts: &[
        part("sync, one client, one row: p50 over in memory + a bare write", Of::Named(one_row), AtMost(1.25)),
        part("sync, 8 clients' batches: rows/s over the smaller limit", Of::Named(batches), AtLeast(0.7)),
        ratio(
            "group, 8 clients' batches: rows/s over in memory",
            Recorded,
            at("batches, rows/s: group", 0),
            at("batches, rows/s: in memory", 0),
            AtLeast(0.85),
        ),
        ratio(
            "none, 8 clients' batches: rows/s over in memory",
            Recorded,
            at("batches, rows/s: none", 0),
            at("batches, rows/s: in memory", 0),
            AtLeast(0.97),
        ),
        ratio(
            "gets in sync beside 50 % puts: p50 over in memory",
            Recorded,
            at("gets beside puts, p50 ns: sync", 0),
            at("gets beside puts, p50 ns: in memory", 0),
            AtMost(1.2),
        ),
        ratio(
            "puts while a checkpoint is written: p99.9 over undisturbed",
            Recorded,
            at("put, p99.9 ns: checkpoint", 0),
            at("put, p99.9 ns: undisturbed", 0),
            AtMost(2.0),
        ),
        ratio(
            "gets while a checkpoint is written: p99.9 over undisturbed",
            Recorded,
            at("get, p99.9 ns: checkpoint", 0),
            at("get, p99.9 ns: undisturbed", 0),
            AtMost(2.0),
        ),
        ratio(
            "full scans while a checkpoint is written: rows/s over undisturbed",
            Recorded,
            at("scan, rows/s: checkpoint", 0),
            at("scan, rows/s: undisturbed", 0),
            AtLeast(0.85),
        ),
        ratio(
            "adopting a checkpoint over reading and checksumming it alone",
            Recorded,
            at(ADOPTED, 0),
            at("rows/s: checkpoint read and checksummed", 0),
            AtLeast(0.5),
        ),
        ratio("adopting a checkpoint over inserting its rows", Recorded, at(ADOPTED, 0), at(INSERTED, 0), AtLeast(5.0)),
        ratio("replaying over inserting the rows", Recorded, at(REPLAYED, 0), at(INSERTED, 0), AtLeast(0.5)),
        part("idle: share of a core", Of::Value(Recorded, at("idle, share of a core", 0)), AtMost(0.01)),
        part("idle: bytes written", Of::Value(Recorded, at("idle, bytes written", 0)), Within(0.0, 0.0)),
    ],
};

pub(super) const RULES: &[Rule] = &[
    // Free of jitter is said of what goes on beside it; of recovery the thesis states no number.
    rule(
        "TH-M17",
        &[part(
            "put and get while a checkpoint is written: p99.9 over undisturbed",
            Of::Named(beside_checkpoint),
            AtMost(2.0),
        )],
    ),
    // Without a NIC, as ratios: 100 µs and 10 µs over the median access of 5 µs.
    rule(
        "TH-C13",
        &[
            part("gets: p99.9 over the median get", Of::Named(get_tail), AtMost(2.0)),
            part("puts in each durability: p99.9 over the median get", Of::Named(put_tails), AtMost(20.0)),
        ],
    ),
];

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "durability", parts, optional: false }
}

fn values(figure: &Measured, series: &str) -> Result<Vec<f64>, Lack> {
    figure.place(series, 0, None)?.values(figure, Recorded)
}

fn reading(at: &str, values: &[f64]) -> Option<Reading> {
    Reading::of(at.to_owned(), values, false)
}

/// Over what a put takes in memory and a write takes without a server, one after the other.
fn one_row(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let (sync, memory) = (values(figure, "one row, p50 ns: sync")?, values(figure, "one row, p50 ns: in memory")?);
    let bare = values(figure, "bare write of 4 KiB, p50 ns")?;
    let both: Vec<f64> = memory.iter().zip(&bare).map(|(memory, bare)| memory + bare).collect();
    Ok(reading("", &over(&sync, &both)).into_iter().collect())
}

/// Over the smaller of what goes in memory and what the disk takes in writes of a group's size.
fn batches(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let sync = values(figure, "batches, rows/s: sync")?;
    let memory = values(figure, "batches, rows/s: in memory")?;
    let disk = values(figure, "batches, rows/s: bare writes of a group's size")?;
    let limit: Vec<f64> = memory.iter().zip(&disk).map(|(memory, disk)| memory.min(*disk)).collect();
    Ok(reading("", &over(&sync, &limit)).into_iter().collect())
}

fn beside_checkpoint(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let mut readings = Vec::new();
    for what in ["put", "get"] {
        let of = |when: &str| values(figure, &format!("{what}, p99.9 ns: {when}"));
        readings.extend(reading(what, &over(&of("checkpoint")?, &of("undisturbed")?)));
    }
    Ok(readings)
}

fn get_tail(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let tail = over(&values(figure, "one get, p99.9 ns")?, &values(figure, "one get, p50 ns")?);
    Ok(reading("", &tail).into_iter().collect())
}

fn put_tails(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let median = values(figure, "one get, p50 ns")?;
    let mut readings = Vec::new();
    for durability in ["in memory", "none", "group", "sync"] {
        let tail = values(figure, &format!("one row, p99.9 ns: {durability}"))?;
        readings.extend(reading(durability, &over(&tail, &median)));
    }
    Ok(readings)
}
