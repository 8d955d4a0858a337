//! What a server gives away is limited: connections, memory of all tables together, and a worker's time.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use overside_table::client::ClientError;
use overside_table::row::{RowBuilder, RowLayout};
use overside_table::server::Notices;
use overside_table::wire::{self, FaultCode, Request};

use super::bad_input::{Raw, refused};
use super::*;

/// Waits until the server's figures are so.
fn until(client: &mut Client, what: &str, mut so: impl FnMut(&wire::ServerStats) -> bool) {
    let start = Instant::now();
    while !so(&client.stats().unwrap()) {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: {:?}", client.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn one_connection_too_many_is_told_so_and_gets_in_when_another_ends() {
    let bench = Bench::with(ServerOptions { connections_max: 2, ..ServerOptions::default() });
    let (mut first, second) = (bench.client(), bench.client());
    let connect = || Client::connect(bench.provider.clone(), &bench.name);
    let (code, text) = refused(connect());
    assert_eq!(code, FaultCode::TooManyConnections);
    assert!(text.contains("2 connections") && text.contains("--max-connections"), "{text}");
    // Who was turned away takes nobody's place, and those who are there are served.
    assert_eq!(first.stats().unwrap().connections, 2);
    drop(second);
    until(&mut first, "its place is free", |stats| stats.connections == 1);
    assert!(connect().unwrap().tables().unwrap().is_empty());
}

/// Those who are turned away take the server's memory too until they are gone, so not even they may be many.
#[test]
fn who_is_turned_away_and_stays_is_closed_and_cannot_be_many() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let notices = {
        let lines = lines.clone();
        Notices::new(move |line| lines.lock().unwrap().push(line.to_owned()))
    };
    let deadline = Duration::from_secs(3);
    let options = ServerOptions { connections_max: 1, deadline, notices: Some(notices), ..ServerOptions::default() };
    let bench = Bench::with(options);
    let mut client = bench.client();
    let mut staying: Vec<Raw> = (0..70).map(|_| Raw::new(&bench)).collect();
    let start = Instant::now();
    while !lines.lock().unwrap().iter().any(|line| line.contains("no place for the connection")) {
        assert!(start.elapsed() < Duration::from_secs(60), "{lines:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(staying.iter_mut().all(Raw::disconnected));
    assert_eq!(client.stats().unwrap().connections, 1);
    // And one after them is told again what is the matter.
    let start = Instant::now();
    loop {
        match Client::connect(bench.provider.clone(), &bench.name) {
            Err(ClientError::Refused { code: FaultCode::TooManyConnections, .. }) => break,
            other => assert!(start.elapsed() < Duration::from_secs(60), "{other:?}"),
        }
    }
}

/// Nor may anybody have a place for nothing.
#[test]
fn who_never_introduces_himself_is_closed() {
    let bench = Bench::with(ServerOptions { deadline: Duration::from_secs(1), ..ServerOptions::default() });
    let mut silent = Raw::new(&bench);
    let mut polite = bench.client();
    until(&mut polite, "the silent one is closed", |stats| stats.closed_for_cause == 1);
    assert!(silent.disconnected());
    std::thread::sleep(Duration::from_millis(1500));
    assert!(polite.tables().unwrap().is_empty(), "who did may be silent for as long as it likes");
}

#[test]
fn the_limit_of_memory_is_of_all_tables_together() {
    let bench = Bench::with(ServerOptions { memory_max: 40 << 20, ..ServerOptions::default() });
    let mut client = bench.client();
    let mut tables = 0;
    let refusal = loop {
        match client.create_table(&format!("t{tables}"), &schema()) {
            Ok(_) => tables += 1,
            Err(ClientError::Refused { code, text }) => break (code, text),
            Err(error) => panic!("{error}"),
        }
        assert!(tables <= 80, "each has at least 512 KiB");
    };
    assert_eq!((tables, refusal.0), (80, FaultCode::Exhausted), "{}", refusal.1);
    assert!(client.stats().unwrap().bytes_committed <= 40 << 20);
    client.drop_table("t0").unwrap();
    let start = Instant::now();
    while client.create_table("again", &schema()).is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "a dropped table's memory is there for others");
    }
}

/// One worker and little memory, which a client that stops in the middle of a scan holds back for as long as it likes.
fn tight() -> ServerOptions {
    ServerOptions {
        workers: 1,
        memory_max: 4 << 20,
        segment_bytes: 2 << 20,
        pinned_max: 64 << 20,
        window: 4096,
        deadline: Duration::from_secs(60),
        ..ServerOptions::default()
    }
}

/// A full table, and the numbers of its rows.
fn filled(client: &mut Client) -> (RemoteTable, u64) {
    let table = client.create_table("t", &schema()).unwrap();
    let text = text(0, 0, 400);
    for first in (0..).step_by(100) {
        let mut batch = table.batch();
        for id in first..first + 100 {
            batch.push(&[ValueRef::UInt64(id), ValueRef::UInt64(0), ValueRef::Utf8(&text)]).unwrap();
        }
        let applied = client.put(&table, PutMode::Insert, &batch).unwrap();
        if let Some((_, code)) = applied.failed.first() {
            assert_eq!(*code, FaultCode::Exhausted);
            return (table, first + u64::from(applied.applied));
        }
    }
    unreachable!("memory is limited")
}

/// All keys, as a batch that takes a few of every page before it takes more of any: nothing is empty before all is rewritten.
fn everywhere(rows: u64) -> Vec<u8> {
    let mut keys = Vec::new();
    let ids = (0..STRIDE).flat_map(|first| (first..rows).step_by(STRIDE as usize));
    ids.for_each(|id| wire::push_piece(&mut keys, &id.to_be_bytes()));
    keys
}

const STRIDE: u64 = 16;

/// One worker, a full table, and a client that has stopped in the middle of a scan: a delete that needs the memory of the pages
/// which that one holds waits, and the worker serves the others all the while. When the scan goes on, so does the delete.
#[test]
fn a_delete_that_waits_for_memory_holds_up_nobody_else() {
    let bench = Bench::with(tight());
    let mut other = bench.client();
    let (table, rows) = filled(&mut other);
    let mut reader = bench.client();
    let mut scan = reader.scan(&table, &ScanOptions { mode: Mode::Delta, ..ScanOptions::default() }).unwrap();
    assert!(scan.next_block().unwrap().is_some());
    let keys = everywhere(rows);
    let (number, mut row) = (table.info().id, Vec::new());
    let mut builder = RowBuilder::new(Arc::new(RowLayout::new(&schema())));
    let first = [ValueRef::UInt64(0), ValueRef::UInt64(7), ValueRef::Null];
    wire::push_piece(&mut row, builder.encode(&first).unwrap());
    let mut raw = Raw::new(&bench);
    raw.send(&wire::encode(
        1,
        &Request::Hello { version: wire::VERSION, block_bytes: 4096, features: wire::Features::ALL },
    ));
    raw.send(&wire::encode(2, &Request::Delete { table: number, keys: &keys }));
    raw.send(&wire::encode(3, &Request::Put { table: number, mode: PutMode::Insert, rows: &row }));
    until(&mut other, "a delete waits", |stats| raw.sent() && stats.waiting == 1);
    // The only worker has answered that, and answers more.
    let last = [ValueRef::UInt64(rows - 1)];
    assert!(other.get(&table, &last).unwrap().is_some());
    while scan.next_block().unwrap().is_some() {}
    drop(scan);
    // What the same client asked for after the delete is done after it: the other way round the row would be a duplicate.
    let start = Instant::now();
    while other.get(&table, &first[..1]).unwrap().is_none_or(|row| row.view().u64(1) != Some(7)) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", other.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(other.table("t").unwrap().info().rows, 1);
    assert_eq!(other.stats().unwrap().waiting, 0);
}

/// Whose table is dropped meanwhile is told so, and whose connection ends is forgotten.
#[test]
fn a_delete_that_waits_ends_with_its_table_or_its_connection() {
    let bench = Bench::with(tight());
    let mut other = bench.client();
    let (table, rows) = filled(&mut other);
    let mut reader = bench.client();
    let mut scan = reader.scan(&table, &ScanOptions { mode: Mode::Delta, ..ScanOptions::default() }).unwrap();
    assert!(scan.next_block().unwrap().is_some());
    let delete = wire::encode(2, &Request::Delete { table: table.info().id, keys: &everywhere(rows) });
    let hello =
        wire::encode(1, &Request::Hello { version: wire::VERSION, block_bytes: 4096, features: wire::Features::ALL });
    let mut gone = Raw::new(&bench);
    gone.send(&hello);
    gone.send(&delete);
    until(&mut other, "a delete waits", |stats| gone.sent() && stats.waiting == 1);
    drop(gone);
    until(&mut other, "it is forgotten", |stats| stats.waiting == 0);
    std::thread::scope(|s| {
        let deleting = s.spawn(|| {
            let mut client = bench.client();
            // What the one before deleted is not there any more.
            let ids = (0..STRIDE).flat_map(|first| (first..rows).step_by(STRIDE as usize));
            ids.into_iter().find_map(|id| client.delete(&table, &[ValueRef::UInt64(id)]).err())
        });
        until(&mut other, "a delete waits", |stats| stats.waiting == 1);
        other.drop_table("t").unwrap();
        let told = deleting.join().unwrap();
        assert!(matches!(told, Some(ClientError::Refused { code: FaultCode::UnknownTable, .. })), "{told:?}");
    });
}

/// The widest tables there can be, of which a few would fill the longest message that a client takes.
#[test]
fn any_number_of_wide_tables_is_listed() {
    let bench = Bench::with(ServerOptions { segment_bytes: 2 << 20, memory_max: 2 << 30, ..ServerOptions::default() });
    let mut client = bench.client();
    let columns = (0..1024).map(|n| Column::new(format!("{n:x<255}"), ColumnType::Boolean)).collect();
    let wide = Schema::new(columns, vec![0]).unwrap();
    const TABLES: usize = 200;
    for n in (0..TABLES).rev() {
        client.create_table(&format!("t{n:03}"), &wide).unwrap();
    }
    let tables = client.tables().unwrap();
    let names: Vec<_> = tables.iter().map(|table| table.name.clone()).collect();
    assert_eq!(names, (0..TABLES).map(|n| format!("t{n:03}")).collect::<Vec<_>>());
    assert!(tables.iter().all(|table| Schema::decode(&table.schema).unwrap() == wide));
    // An error names some of them.
    let (_, text) = refused(client.table("u"));
    assert!(text.contains("there are 200") && text.contains("t049") && !text.contains("t050"), "{text}");
}
