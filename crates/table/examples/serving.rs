//! What a full scan costs its server and its client, in instructions: both in turn on one thread, over shared memory.
//! `cargo xtask instructions` counts `served` under callgrind; run alone it says how much was scanned.
//! `cargo run --release -p overside-table --example serving -- [SCANS [MODE]]`

use std::time::Duration;

use overside_shm::ShmProvider;
use overside_table::client::{Client, RemoteTable, Scan, ScanOptions};
use overside_table::row::ValueRef;
use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::server::ServerOptions;
use overside_table::server::parts::Stepped;
use overside_table::wire::{Mode, PutMode};

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let scans: usize = arguments.next().map_or(Ok(20), |scans| scans.parse())?;
    let mode: Mode = arguments.next().map_or(Ok(Mode::Gather), |mode| mode.parse())?;
    let name = format!("serving-{}", std::process::id());
    let mut server = Stepped::start(ShmProvider::new()?, &name, &ServerOptions::default())?;
    let loading = std::thread::spawn(move || load(&name));
    // Somebody else waits for the server until the table is loaded.
    while !loading.is_finished() {
        server.greet(Duration::from_millis(1));
        while server.step() {}
    }
    let (mut client, table) = loading.join().map_err(|_| "loading panicked")??;
    let (mut rows, mut messages) = (0, 0);
    for _ in 0..scans {
        let mut scan = client.scan(&table, &ScanOptions { mode, ..ScanOptions::default() })?;
        served(&mut server);
        rows += consumed(&mut scan)?;
        messages += scan.summary().server.messages;
    }
    println!("{scans} scans, {rows} rows in {messages} messages");
    Ok(())
}

/// All that the server does for a scan, with letting go of the one before.
#[inline(never)]
fn served(server: &mut Stepped) {
    while server.step() {}
}

/// All that the client does, which waits for nothing any more; rows are counted and not looked at.
#[inline(never)]
fn consumed(scan: &mut Scan<'_>) -> Result<usize, Failed> {
    let mut rows = 0;
    while let Some(block) = scan.next_block()? {
        rows += block.rows().len();
    }
    Ok(rows)
}

/// A table of fewer messages than the server sends ahead, loaded in key order, without deltas.
fn load(name: &str) -> Result<(Client, RemoteTable), Failed> {
    let columns = vec![
        Column::new("id", ColumnType::UInt64),
        Column::new("version", ColumnType::UInt64),
        Column::nullable("text", ColumnType::Utf8),
    ];
    let mut client = Client::connect(ShmProvider::new()?, name)?;
    let table = client.create_table("t", &Schema::with_key(columns, &["id"])?)?;
    let text = "serving ".repeat(20);
    let mut batch = table.batch();
    for id in 0..ROWS {
        batch.push(&[ValueRef::UInt64(id), ValueRef::UInt64(0), ValueRef::Utf8(&text)])?;
    }
    client.put(&table, PutMode::Insert, &batch)?;
    // What loading left as deltas is consolidated by changing those pages until their chains are full.
    for version in 1.. {
        batch.clear();
        let (mut first, mut scan) =
            (0, client.scan(&table, &ScanOptions { mode: Mode::Delta, ..ScanOptions::default() })?);
        while let Some(block) = scan.next_block()? {
            for page in block.pages() {
                if page.deltas > 0 {
                    batch.push(&[ValueRef::UInt64(first), ValueRef::UInt64(version), ValueRef::Utf8(&text)])?;
                }
                first += page.rows as u64;
            }
        }
        drop(scan);
        if batch.is_empty() {
            break;
        }
        client.put(&table, PutMode::Upsert, &batch)?;
    }
    Ok((client, table))
}

const ROWS: u64 = 12_000;
