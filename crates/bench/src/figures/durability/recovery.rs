//! Recovery: pages adopted from a checkpoint, records replayed from a log,
//! and the same rows inserted.

use super::bare;
use crate::{
    figures::{
        Figure, Setting,
        tables::{
            clients::{Worker, fresh, row, scattered},
            server::{Kept, Recovered, Served, VALUE_BYTES, schema},
        },
    },
    measure::{alternate, elapsed_ns, now_ns},
};
use anyhow::{Context, Result, ensure};
use overside::{
    bwtree::{Options, Put, SegmentArena, Tree},
    table::{
        row::{RowBuilder, RowLayout},
        wire::Durability,
    },
};
use overside_evidence::SplitMix64;
use std::{path::Path, sync::Arc};

/// Rows of the tables.
pub(super) fn rows(setting: &Setting<'_>) -> u64 {
    if setting.quick { 150_000 } else { 1_000_000 }
}

/// What each way makes of the same rows, a second.
pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure, folder: &Path) -> Result<()> {
    let rows = rows(setting);
    let (log, checkpoint) = (folder.join("recover-log"), folder.join("recover-checkpoint"));
    for dir in [&log, &checkpoint] {
        setting.progress.say("durability: rows to recover");
        let served = Served::start(setting.over, Kept::On(Durability::Group), dir, false)?;
        Worker::new(&served, rows, 1)?.fill(|number| scattered(number, rows))?;
        if *dir == checkpoint {
            served.connect()?.checkpoint()?;
        }
        served.end();
    }
    let rounds = setting.rounds().min(7);
    let (mut done, mut whole) = (0, Vec::new());
    let rates = alternate(NAMES.len(), rounds, |side, _| -> Result<f64> {
        done += 1;
        setting.progress.part("durability: recovery", done, rounds * NAMES.len());
        let ns = match side {
            0 => {
                let found = recovered(setting, &checkpoint, rows, false)?;
                whole.push(rows as f64 * 1e9 / (found.adopt_ns + found.replay_ns).max(1) as f64);
                found.adopt_ns
            }
            1 => bare::read_and_checksum(&checkpoint)?,
            2 => {
                let found = recovered(setting, &log, rows, true)?;
                found.adopt_ns + found.replay_ns
            }
            _ => inserted(rows)?,
        };
        Ok(rows as f64 * 1e9 / ns.max(1) as f64)
    })?;
    for (name, rates) in NAMES.into_iter().zip(rates) {
        figure.record(name, 0, rates);
    }
    figure.record("rows/s: recovered from a checkpoint, with a look at its log", 0, whole);
    Ok(())
}

/// What a server says of its recovery, by its own clock, when it has all rows.
fn recovered(setting: &Setting<'_>, dir: &Path, rows: u64, by_log: bool) -> Result<Recovered> {
    let served = Served::start(setting.over, Kept::On(Durability::Group), dir, false)?;
    let found = served.recovered;
    let replayed = if by_log { rows..rows + 16 } else { 0..16 };
    ensure!(found.rows == rows, "{} of {rows} rows came back", found.rows);
    ensure!(replayed.contains(&found.replayed), "{} records were replayed of {rows} rows", found.replayed);
    served.end();
    Ok(found)
}

/// As many rows, in the order in which they were put, into a tree of this process, many at a time.
/// They are encoded before.
fn inserted(rows: u64) -> Result<u64> {
    let layout = Arc::new(RowLayout::new(&schema()?));
    let arena = SegmentArena::new(SEGMENT_BYTES, ARENA_BYTES, Arc::new(()))?;
    let tree = Tree::new(Arc::new(arena), Options { prefix_len: layout.prefix_len(), ..Options::default() })?;
    let mut builder = RowBuilder::new(layout);
    let (mut random, mut value, mut took) = (SplitMix64(1), [0; VALUE_BYTES], 0);
    let mut number = 0;
    while number < rows {
        let mut encoded = Vec::new();
        for at in number..rows.min(number + TOGETHER) {
            let key = scattered(at, rows);
            let bytes = builder.encode(&row(key, fresh(&mut random, &mut value)))?;
            encoded.push((key.to_be_bytes(), bytes.to_vec()));
        }
        let together: Vec<(&[u8], &[u8])> = encoded.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        let start = now_ns();
        let put = tree.put_many(Put::Insert, &together, usize::MAX);
        took += elapsed_ns(start);
        let all = put.len() == together.len() && put.iter().all(Result::is_ok);
        all.then_some(()).context("the tree refused rows")?;
        number += together.len() as u64;
    }
    Ok(took)
}

/// As rules name them.
const NAMES: [&str; 4] = [
    "rows/s: adopted from a checkpoint",
    "rows/s: checkpoint read and checksummed",
    "rows/s: replayed from the log",
    "rows/s: inserted into a tree",
];
/// About as many as a recovery puts together.
const TOGETHER: u64 = 2048;
const SEGMENT_BYTES: usize = 8 << 20;
const ARENA_BYTES: usize = 2 << 30;
