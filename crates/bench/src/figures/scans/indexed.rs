//! Ranges through a secondary index: rows whose neighbours lie on other pages.

use super::{ALL, CLIENTS, RATE, SERVER, ScanPath, series};
use crate::{
    figures::{
        Figure, Setting,
        tables::{
            clients::{fresh, scattered},
            reading::read,
            server::{Kept, Served, VALUE_BYTES},
        },
    },
    limits::Touched,
    measure::{Cpu, alternate, elapsed_ns, now_ns},
};
use anyhow::{Result, ensure};
use overside::table::{
    client::{Client, RemoteTable, ScanOptions},
    row::ValueRef,
    schema::{Column, ColumnType, Schema},
    wire::{Mode, PutMode},
};
use overside_evidence::SplitMix64;
use std::{ops::Bound, path::Path};

pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    setting.progress.say("scans: a table with an index");
    let served = Served::start(setting.over, Kept::Memory, Path::new(""), false)?;
    let mut indexed = Indexed::fill(&served, rows(setting))?;
    let lengths: &[u64] = if setting.quick { &[100, 10_000] } else { &[100, 1000, 10_000, 100_000] };
    for (at, length) in lengths.iter().enumerate() {
        setting.progress.part("scans: through the index", at, lengths.len());
        let same = ALL.map(|mode| indexed.range(0, *length, mode));
        let same = same.into_iter().collect::<Result<Vec<_>>>()?;
        ensure!(
            same.windows(2).all(|pair| pair[0] == pair[1]),
            "modes bring different rows through an index: {same:?}"
        );
        let rounds = alternate(ALL.len(), setting.rounds(), |side, round| -> Result<[f64; 3]> {
            // Every mode reads the same ranges, and each round others.
            let mut random = SplitMix64(round as u64);
            let (start, client, server) = (now_ns(), Cpu::own(), served.cpu()?);
            let mut rows = 0;
            while elapsed_ns(start) < slice_ns(setting) {
                let first = random.below(indexed.rows - length + 1);
                rows += indexed.range(first, *length, ALL[side])?.rows;
            }
            let (wall, rows) = (elapsed_ns(start) as f64, rows as f64);
            let (server, client) = (served.cpu()? - server, Cpu::own() - client);
            Ok([rows * 1e9 / wall, server as f64 / rows, client as f64 / rows])
        })?;
        for (mode, rounds) in ALL.into_iter().zip(rounds) {
            for (at, of) in [RATE, SERVER, CLIENTS].into_iter().enumerate() {
                figure.record(
                    series(WHAT, of, ScanPath::Served(mode)),
                    *length,
                    rounds.iter().map(|values| values[at]).collect(),
                );
            }
        }
    }
    drop(indexed);
    served.end();
    Ok(())
}

/// A table, and a column of it whose order has nothing to do with the key's.
struct Indexed {
    client: Client,
    table: RemoteTable,
    rows: u64,
}

impl Indexed {
    fn fill(served: &Served, rows: u64) -> Result<Indexed> {
        let columns = vec![
            Column::new("key", ColumnType::UInt64),
            Column::new("place", ColumnType::UInt64),
            Column::new("value", ColumnType::FixedBinary(VALUE_BYTES as u16)),
        ];
        let mut client = served.connect()?;
        let table = client.create_table("indexed", &Schema::with_key(columns, &["key"])?)?;
        let (mut batch, mut random, mut value) = (table.batch(), SplitMix64(1), [0; VALUE_BYTES]);
        let mut puts = client.puts(&table, PutMode::Insert);
        for key in 0..rows {
            let value = ValueRef::FixedBinary(fresh(&mut random, &mut value));
            batch.push(&[ValueRef::UInt64(key), ValueRef::UInt64(scattered(key, rows)), value])?;
            if batch.bytes() >= FILL_BYTES || key + 1 == rows {
                puts.put(&batch)?;
                batch.clear();
            }
        }
        let applied = puts.settle()?.applied;
        drop(puts);
        ensure!(applied == rows, "{applied} of {rows} rows were inserted");
        client.create_index(&table, PLACE, |_, _| {})?;
        Ok(Indexed { client, table, rows })
    }

    /// Reads the rows of so many places.
    fn range(&mut self, first: u64, length: u64, mode: Mode) -> Result<Touched> {
        let (from, to) = ([ValueRef::UInt64(first)], [ValueRef::UInt64(first + length)]);
        let options = ScanOptions {
            from: Bound::Included(&from),
            to: Bound::Excluded(&to),
            index: Some(PLACE),
            mode,
            ..ScanOptions::default()
        };
        let read = read(&mut self.client, &self.table, &options)?.0;
        ensure!(read.rows == length, "a range of {length} rows through the index has {}", read.rows);
        Ok(read)
    }
}

/// More than any cache holds.
pub(super) fn rows(setting: &Setting<'_>) -> u64 {
    if setting.quick { 200_000 } else { 1_000_000 }
}

fn slice_ns(setting: &Setting<'_>) -> u64 {
    setting.slice_ns() * 4
}

/// As series are named.
pub(super) const WHAT: &str = "through an index";
/// The column that is indexed.
const PLACE: &[usize] = &[1];
const FILL_BYTES: usize = 256 << 10;
