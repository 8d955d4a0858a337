//! What goes on while a checkpoint is written, beside what goes on without one.

use crate::{
    figures::{
        Figure, Setting,
        tables::{
            clients::{Stretch, Work, Worker, during, quantile, together},
            server::{Kept, Served},
        },
    },
    measure::{elapsed_ns, now_ns},
};
use anyhow::{Result, ensure};
use overside::table::wire::Durability;
use serde_json::json;
use std::path::Path;

/// Rows of the table: 1 GiB of pages in a full run.
fn rows(setting: &Setting<'_>) -> u64 {
    if setting.quick { 400_000 } else { 8_000_000 }
}

pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure, folder: &Path) -> Result<()> {
    let rows = rows(setting);
    setting.progress.say("durability: a table to be checkpointed");
    let served = Served::start(setting.over, Kept::On(Durability::Sync), &folder.join("checkpointed"), false)?;
    let mut workers = vec![Worker::new(&served, rows, 1)?];
    workers[0].fill(|number| number)?;
    let mut asking = served.connect()?;
    let rounds = if setting.quick { 3 } else { 5 };
    let mut all: Vec<[Stretch; 2]> = Vec::new();
    let (mut bytes, mut took_s) = (0, Vec::new());
    for round in 0..rounds {
        setting.progress.part("durability: while a checkpoint is written", round, rounds);
        for work in [Work::GetAndPut, Work::Scan] {
            // A table that nobody has changed would be passed over.
            workers[0].touch()?;
            let begun = now_ns();
            let (beside, done) = during(&served, &mut workers, work, || Ok(asking.checkpoint()?))?;
            let ns = elapsed_ns(begun);
            ensure!(done.tables == 1, "no table was written");
            bytes = done.bytes;
            took_s.push(ns as f64 / 1e9);
            // As long without one.
            let alone = together(&served, &mut workers, work, ns)?;
            all.push([alone, beside]);
        }
    }
    for (at, when) in ["undisturbed", "checkpoint"].into_iter().enumerate() {
        let of = |offset: usize, value: &dyn Fn(&Stretch) -> f64| -> Vec<f64> {
            all.iter().skip(offset).step_by(2).map(|pair| value(&pair[at])).collect()
        };
        figure.record(format!("put, p99.9 ns: {when}"), 0, of(0, &|s| quantile(&s.puts, TAIL)));
        figure.record(format!("get, p99.9 ns: {when}"), 0, of(0, &|s| quantile(&s.gets, TAIL)));
        figure.record(format!("put, p50 ns: {when}"), 0, of(0, &|s| quantile(&s.puts, 0.5)));
        figure.record(format!("get, p50 ns: {when}"), 0, of(0, &|s| quantile(&s.gets, 0.5)));
        figure.record(format!("scan, rows/s: {when}"), 0, of(1, &Stretch::rows_per_s));
    }
    let told = json!({ "bytes": bytes, "seconds": took_s, "rows": rows });
    figure.more.insert("checkpoint".into(), told);
    served.end();
    Ok(())
}

const TAIL: f64 = 0.999;
