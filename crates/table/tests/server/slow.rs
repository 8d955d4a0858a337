//! Clients that do not take what they asked for.

use std::time::{Duration, Instant};

use overside_table::wire::{self, Bounds, Request, ScanRequest};

use super::bad_input::Raw;
use super::*;

/// A client that stops in the middle of a scan holds back a bounded amount, delays no writer, and is
/// disconnected after the deadline, whereupon everything it held is free.
#[test]
fn a_client_that_stops_reading_is_bounded_and_dropped() {
    stops_reading(overside_table::client::ClientOptions::default());
}

/// Nor does one that keeps what was lent to it.
#[test]
fn a_client_that_keeps_its_loans_is_bounded_and_dropped() {
    // A message that is lent has up to seven pages, and a window of them more than the table.
    stops(overside_table::client::ClientOptions::default(), Mode::InPlace, 32, 7 * PINNED);
}

/// Long buffers take many pages a message, and hold back no more.
#[test]
fn a_client_with_long_buffers_holds_no_more() {
    stops_reading(overside_table::client::ClientOptions { block_bytes: 1 << 20, ..Default::default() });
}

fn stops_reading(client_options: overside_table::client::ClientOptions) {
    // One of the usual length has two.
    stops(client_options, Mode::Delta, ServerOptions::default().window, 2 * PINNED);
}

/// A client that stops after its first message holds back no more than a window of messages, of which each pins `each` bytes at most.
fn stops(client_options: overside_table::client::ClientOptions, mode: Mode, window: usize, each: u64) {
    let options = ServerOptions { deadline: Duration::from_secs(2), window, ..ServerOptions::default() };
    let longest = client_options.block_bytes.max(client_options.lent_bytes) as u64;
    let bench = Bench::with(options);
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..ROWS, 1, TEXT);
    let mut stopped = Client::connect_with(bench.provider.clone(), &bench.name, client_options).unwrap();
    let mut scan = stopped.scan_in_place(&table, &ScanOptions { mode, ..ScanOptions::default() }).unwrap();
    let first = scan.next_in_place().unwrap();
    assert!(first.is_some());
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
    // And some pages are taken ahead.
    assert!(held_max <= (window as u64 + 8) * each + 2 * longest, "{held_max} bytes held by one stopped client");
    let error = loop {
        match scan.next_block() {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert!(error.is_err(), "what had not been sent is an error, not the end");
    drop(scan);
    drop(first);
    let start = Instant::now();
    while client.stats().unwrap().bytes_pinned > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "pins of a closed connection are released");
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

/// What a page pins, with the room for its deltas.
const PINNED: u64 = 22 << 10;
/// More than the whole window holds: some 18 MB.
const ROWS: u64 = 40_000;
const TEXT: usize = 400;
const STEPS: u64 = 80;

/// Clients that ask for a lot and take nothing leave the others what they need: nobody waits for their deadline, which is an hour.
#[test]
fn who_takes_nothing_stops_nobody_else() {
    let options = ServerOptions { workers: 1, deadline: Duration::from_secs(3600), ..ServerOptions::default() };
    let bench = Bench::with(options);
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    // More than a window of messages.
    const ROWS: u64 = 30_000;
    (0..3).for_each(|part| put(&mut client, &table, part * ROWS / 3..(part + 1) * ROWS / 3, 1, 400));
    let hello = wire::encode(
        1,
        &Request::Hello {
            version: wire::VERSION,
            block_bytes: wire::BLOCK_BYTES as u32,
            features: wire::Features::ALL,
        },
    );
    let scan = |mode| {
        let scan =
            ScanRequest { table: table.info().id, bounds: Bounds::default(), columns: None, mode, rows_max: None };
        wire::encode(2, &Request::Scan(scan))
    };
    // Some for packed answers, more for the heads of gathered ones, and one for replies.
    let stats = wire::encode(2, &Request::Stats);
    let mut asked = vec![vec![scan(Mode::Copy)]; 3];
    asked.extend(vec![vec![scan(Mode::Gather)]; 6]);
    asked.push(vec![stats; 2000]);
    let mut idle: Vec<Raw> = Vec::new();
    for requests in asked {
        let mut raw = Raw::new(&bench);
        for request in [&hello].into_iter().chain(&requests) {
            while raw.send(request) == 0 {
                raw.sent();
            }
        }
        raw.sent();
        idle.push(raw);
    }
    // Each answer is a round of the only worker, in which it sends the others all that it may.
    (0..500).for_each(|_| _ = client.stats().unwrap());
    let mut others = [bench.client(), bench.client()];
    for mode in [Mode::Copy, Mode::Gather, Mode::Delta, Mode::Auto] {
        let options = ScanOptions { mode, ..ScanOptions::default() };
        std::thread::scope(|s| {
            for other in &mut others {
                let (table, options) = (&table, &options);
                s.spawn(move || assert_eq!(collect(other, table, options, 400).len() as u64, ROWS, "{mode:?}"));
            }
        });
    }
    assert_eq!(client.stats().unwrap().closed_for_cause, 0);
}
