//! How fast scans are on this machine: a server in another process, a full scan in every mode.
//!
//! `cargo run --release -p overside --example scan -- [ROWS] [UPDATES A PAGE] [ROUNDS] [MODE]`
use std::time::Instant;

use overside::table::client::{Client, RemoteTable, ScanOptions};
use overside::table::row::ValueRef;
use overside::table::schema::{Column, ColumnType, Schema};
use overside::table::server::ServerOptions;
use overside::table::wire::{Mode, PutMode};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [serve, address] = arguments.as_slice()
        && serve == "serve"
    {
        let _server = overside::serve(&[address], ServerOptions::default())?;
        std::io::stdin().read_line(&mut String::new())?; // until the parent ends
        return Ok(());
    }
    let number = |at: usize, default: u64| arguments.get(at).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (rows, updates) = (number(0, 600_000), number(1, 0));
    let address = format!("shm:scan-example-{}", std::process::id());
    let mut server = std::process::Command::new(std::env::current_exe()?)
        .args(["serve", &address])
        .stdin(std::process::Stdio::piped())
        .spawn()?;
    let mut client = loop {
        match overside::connect(&address) {
            Ok(client) => break client,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    };
    let table = load(&mut client, rows, updates)?;
    let modes = match arguments.get(3) {
        Some(mode) => vec![mode.parse()?],
        None => vec![Mode::Copy, Mode::Gather, Mode::Delta, Mode::Auto],
    };
    for round in 0..number(2, 5) {
        for &mode in &modes {
            let (start, cpu) = (Instant::now(), client.stats()?.cpu_ns);
            let mut scan = client.scan(&table, &ScanOptions { mode, ..ScanOptions::default() })?;
            let mut sum = 0u64;
            while let Some(block) = scan.next_block()? {
                block.rows().for_each(|row| {
                    let touched = row.prefix().iter().step_by(64).chain(row.rest().iter().step_by(64));
                    sum += row.len() as u64 + row.u64(0).unwrap_or(0) + touched.map(|b| u64::from(*b)).sum::<u64>();
                });
            }
            let (seconds, summary) = (start.elapsed().as_secs_f64(), scan.summary());
            drop(scan);
            let server = (client.stats()?.cpu_ns - cpu) as f64 / summary.rows as f64;
            println!(
                "round {round} {:6} {:6.2} GB/s {:5.1} ns a row, server {server:5.1} ns, chosen {:?}, price {:?} ({sum})",
                mode.name(),
                summary.row_bytes as f64 / seconds / 1e9,
                seconds * 1e9 / summary.rows as f64,
                summary.server.chosen,
                summary.server.price_ns.map(|p| p / summary.server.messages.max(1)),
            );
        }
    }
    drop(client);
    drop(server.stdin.take());
    server.wait()?;
    Ok(())
}

fn load(client: &mut Client, rows: u64, updates: u64) -> Result<RemoteTable> {
    let mut columns = vec![Column::new("id", ColumnType::UInt64)];
    columns.extend((0..12).map(|i| Column::new(format!("c{i}"), ColumnType::Int64)));
    columns.push(Column::nullable("text", ColumnType::Utf8));
    let table = client.create_table("t", &Schema::with_key(columns, &["id"])?)?;
    let text = "the quick brown fox jumps over the lazy dog";
    let put = |client: &mut Client, ids: &mut dyn Iterator<Item = u64>| -> Result<()> {
        let mut batch = table.batch();
        for id in ids {
            let mut values = vec![ValueRef::UInt64(id)];
            values.extend((0..12).map(|c| ValueRef::Int64((id * c) as i64)));
            values.push(ValueRef::Utf8(&text[..(id % 43) as usize]));
            batch.push(&values)?;
        }
        client.put(&table, PutMode::Upsert, &batch)?;
        Ok(())
    };
    let start = Instant::now();
    put(client, &mut (0..rows))?;
    println!("loaded {rows} rows in {:.2?}", start.elapsed());
    let pages = client.table("t")?.info().pages;
    if updates > 0 {
        put(client, &mut (0..rows).step_by((rows / (pages * updates)).max(1) as usize))?;
    }
    println!("{pages} pages, {:?}", client.stats()?);
    Ok(table)
}
