//! Clients that do not take what they asked for.

use std::time::{Duration, Instant};

use super::*;

/// A client that stops in the middle of a scan holds back a bounded amount, delays no writer, and is
/// disconnected after the deadline, whereupon everything it held is free.
#[test]
fn a_client_that_stops_reading_is_bounded_and_dropped() {
    stops_reading(overside_table::client::ClientOptions::default());
}

/// Long buffers take many pages a message, and hold back no more.
#[test]
fn a_client_with_long_buffers_holds_no_more() {
    stops_reading(overside_table::client::ClientOptions { block_bytes: 1 << 20, ..Default::default() });
}

fn stops_reading(client_options: overside_table::client::ClientOptions) {
    let options = ServerOptions { deadline: Duration::from_secs(2), ..ServerOptions::default() };
    let (window, longest) = (options.window as u64, client_options.block_bytes as u64);
    let bench = Bench::with(options);
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..ROWS, 1, TEXT);
    let mut stopped = Client::connect_with(bench.provider.clone(), &bench.name, client_options).unwrap();
    let mut scan = stopped.scan(&table, &ScanOptions { mode: Mode::Delta, ..ScanOptions::default() }).unwrap();
    assert!(scan.next_block().unwrap().is_some());
    let start = Instant::now();
    let mut held_max = 0;
    // Writers go on for as long as it takes, replacing every page many times. A look after every few pages: on a busy machine all of them
    // take longer than the deadline.
    for step in 0.. {
        let stats = client.stats().unwrap();
        held_max = held_max.max(stats.bytes_pinned);
        if stats.closed_for_cause > 0 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "never disconnected");
        let (version, first) = (2 + step / STEPS, step % STEPS * (ROWS / STEPS));
        put(&mut client, &table, first..first + ROWS / STEPS, version, TEXT);
    }
    assert!(held_max > 0, "the scan pinned pages");
    // A message of the usual length has two pages at most, each with the room for its deltas; and some pages are taken ahead.
    assert!(held_max <= (window + 8) * (44 << 10) + 2 * longest, "{held_max} bytes held by one stopped client");
    let error = loop {
        match scan.next_block() {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert!(error.is_err(), "what had not been sent is an error, not the end");
    drop(scan);
    let start = Instant::now();
    while client.stats().unwrap().bytes_pinned > 0 {
        assert!(start.elapsed() < Duration::from_secs(5), "pins of a closed connection are released");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Holding every received block is the client's own doing, and it is told.
#[test]
fn blocks_held_are_told() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..20_000, 1, 100);
    let options = overside_table::client::ClientOptions { timeout: Duration::from_secs(1), ..Default::default() };
    let mut holder = Client::connect_with(bench.provider.clone(), &bench.name, options).unwrap();
    let mut scan = holder.scan(&table, &ScanOptions::default()).unwrap();
    let mut blocks = Vec::new();
    let error = loop {
        match scan.next_block() {
            Ok(Some(block)) => blocks.push(block),
            Ok(None) => panic!("the ring is smaller than the table"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("drop blocks"), "{error}");
}

/// More than the whole window holds: some 18 MB.
const ROWS: u64 = 40_000;
const TEXT: usize = 400;
const STEPS: u64 = 80;
