//! Scans whose pages are lent and read where they lie: what they return, and what either side's faults cost.

use std::ops::Bound;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use overside_table::block::{Answer, LentBlock, LentError};
use overside_table::client::{Client, ClientError, ClientOptions, RemoteTable};
use overside_table::row::{Bytes, RowView};
use overside_table::wire::{self, Bounds, Features, MODES, Reply, Request, ScanRequest};

use super::bad_input::Raw;
use super::*;

const IN_PLACE: ScanOptions<'_> = ScanOptions {
    from: Bound::Unbounded,
    to: Bound::Unbounded,
    index: None,
    columns: None,
    mode: Mode::InPlace,
    rows_max: None,
};

/// The (id, version) of a row that was checked to be whole.
fn whole<P: Bytes>(row: RowView<'_, P>, len: usize) -> (u64, u64) {
    let (id, version) = (row.u64(0).unwrap(), row.u64(1).unwrap());
    let mut found = String::new();
    assert!(row.copy_str(2, &mut found).unwrap());
    assert_eq!(found, text(id, version, len), "a torn row");
    (id, version)
}

fn rows_of(block: &LentBlock, len: usize) -> Result<Vec<(u64, u64)>, LentError> {
    block.read(|rows| rows.map(|row| whole(row, len)).collect())
}

/// All (id, version) of a scan read in place, and how many pages were.
pub fn collect_in_place(
    client: &mut Client,
    table: &RemoteTable,
    options: &ScanOptions<'_>,
    len: usize,
) -> (Vec<(u64, u64)>, u64) {
    let mut rows = Vec::new();
    let mut scan = client.scan_in_place(table, options).unwrap();
    let mut kept = Vec::new();
    while let Some(answer) = scan.next_in_place().unwrap() {
        match &answer {
            Answer::Copied(block) => rows.extend(block.rows().map(|row| whole(row, len))),
            Answer::Lent(block) => rows.extend(rows_of(block, len).unwrap()),
        }
        kept.push(answer);
        // Returned in no order.
        if kept.len() > 5 {
            kept.swap_remove(rows.len() % 5);
        }
    }
    assert_eq!(scan.summary().rows as usize, rows.len());
    (rows, scan.summary().server.chosen[3])
}

/// A server with a table of some pages with deltas on them.
fn filled(options: ServerOptions) -> (Bench, Client, RemoteTable) {
    let bench = Bench::with(options);
    let mut client = bench.client();
    let table = fill(&mut client);
    (bench, client, table)
}

fn fill(client: &mut Client) -> RemoteTable {
    let table = client.create_table("t", &schema()).unwrap();
    put(client, &table, 0..ROWS, 1, TEXT);
    put(client, &table, (0..ROWS).step_by(37), 2, TEXT);
    table
}

fn expected() -> Vec<(u64, u64)> {
    (0..ROWS).map(|id| (id, if id % 37 == 0 { 2 } else { 1 })).collect()
}

fn first(client: &mut Client, table: &RemoteTable) -> LentBlock {
    let mut scan = client.scan_in_place(table, &IN_PLACE).unwrap();
    match scan.next_in_place().unwrap() {
        Some(Answer::Lent(block)) => block,
        other => panic!("not lent: {other:?}"),
    }
}

#[test]
fn pages_are_read_where_they_lie() {
    let (_bench, mut client, table) = filled(ServerOptions::default());
    let pages = client.table("t").unwrap().info().pages;
    let (rows, lent) = collect_in_place(&mut client, &table, &IN_PLACE, TEXT);
    assert_eq!((rows, lent), (expected(), pages));
    // Nothing is packed, and the caller that asks for whole blocks gets copies of the same.
    let mut scan = client.scan(&table, &IN_PLACE).unwrap();
    let mut copied = Vec::new();
    while let Some(block) = scan.next_block().unwrap() {
        copied.extend(block.rows().map(|row| whole(row, TEXT)));
    }
    let server = scan.summary().server;
    assert_eq!((copied, server.chosen[3], server.bytes_copied), (expected(), pages, 0));
    drop(scan);
    // Any other mode sends what it always did, to this reader as well.
    for mode in [Mode::Copy, Mode::Gather, Mode::Delta] {
        let (rows, lent) = collect_in_place(&mut client, &table, &ScanOptions { mode, ..IN_PLACE }, TEXT);
        assert_eq!((rows, lent), (expected(), 0), "{mode:?}");
    }
    let to = [ValueRef::UInt64(4321)];
    let options = ScanOptions { to: Bound::Excluded(&to), ..IN_PLACE };
    assert_eq!(collect_in_place(&mut client, &table, &options, TEXT).0, expected()[..4321]);
}

/// What a message costs is shared by as many pages as the client allows, which is more than its buffers for copies hold.
#[test]
fn pages_share_a_loan_up_to_what_the_client_allows() {
    let (bench, mut client, table) = filled(ServerOptions::default());
    let pages = client.table("t").unwrap().info().pages;
    for lent_bytes in [40 << 10, 64 << 10, 100 << 10] {
        let options = ClientOptions { lent_bytes, ..ClientOptions::default() };
        let mut client = Client::connect_with(ShmProvider::new().unwrap(), &bench.name, options).unwrap();
        let mut scan = client.scan_in_place(&table, &IN_PLACE).unwrap();
        let (mut rows, mut longest, mut messages) = (0, 0, 0);
        while let Some(answer) = scan.next_in_place().unwrap() {
            let Answer::Lent(block) = &answer else { panic!("it was copied") };
            rows += rows_of(block, TEXT).unwrap().len();
            (longest, messages) = (longest.max(block.row_bytes() as usize), messages + 1);
        }
        assert_eq!((rows, scan.summary().server.chosen[3]), (expected().len(), pages));
        assert!(longest <= lent_bytes && longest > lent_bytes / 2, "{longest} of {lent_bytes}");
        assert!(longest > options.block_bytes || lent_bytes < 64 << 10);
        assert!(messages < pages, "{messages} messages of {pages} pages");
    }
}

/// Values in extents of their own are lent as well; those of other lengths than a buffer are copied.
#[test]
fn large_values_are_lent_or_copied() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    let lens = [3000usize, 20_000, 200_000, 10];
    for (id, len) in lens.into_iter().enumerate() {
        put(&mut client, &table, id as u64..id as u64 + 1, 1, len);
    }
    let mut scan = client.scan_in_place(&table, &IN_PLACE).unwrap();
    let mut found = Vec::new();
    while let Some(answer) = scan.next_in_place().unwrap() {
        let len = |id: u64| lens[id as usize];
        match &answer {
            Answer::Copied(block) => found.extend(block.rows().map(|row| whole(row, len(row.u64(0).unwrap())))),
            Answer::Lent(block) => {
                found.extend(
                    block
                        .read(|rows| rows.map(|row| whole(row, len(row.u64(0).unwrap()))).collect::<Vec<_>>())
                        .unwrap(),
                );
            }
        }
    }
    assert_eq!(found, [(0, 1), (1, 1), (2, 1), (3, 1)]);
}

/// A block that is kept stays what it was, whatever becomes of its rows and of their table.
#[test]
fn what_is_lent_stays_as_it_was() {
    let (bench, mut client, table) = filled(ServerOptions::default());
    let mut reader = bench.client();
    let block = first(&mut reader, &table);
    let before = rows_of(&block, TEXT).unwrap();
    assert_eq!(before, expected()[..before.len()]);
    for version in 3..8 {
        put(&mut client, &table, 0..ROWS, version, TEXT);
    }
    assert_eq!(rows_of(&block, TEXT).unwrap(), before);
    client.drop_table("t").unwrap();
    let other = client.create_table("u", &schema()).unwrap();
    put(&mut client, &other, 0..ROWS, 9, TEXT);
    assert_eq!(rows_of(&block, TEXT).unwrap(), before);
    drop(block);
    let start = Instant::now();
    while client.stats().unwrap().bytes_pinned > 0 {
        assert!(start.elapsed() < PATIENCE, "what was returned is let go");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(reader.tables().unwrap().len(), 1, "the connection goes on");
}

/// A client that keeps a block past the deadline loses its connection, and what it kept is no longer vouched for.
#[test]
fn a_block_that_is_kept_too_long_costs_the_connection() {
    let (bench, mut client, table) =
        filled(ServerOptions { deadline: Duration::from_secs(1), ..ServerOptions::default() });
    let mut hoarder = bench.client();
    let block = first(&mut hoarder, &table);
    assert!(rows_of(&block, TEXT).is_ok());
    let start = Instant::now();
    while client.stats().unwrap().closed_for_cause == 0 {
        assert!(start.elapsed() < PATIENCE, "never disconnected");
        // It asks for other things meanwhile, and takes the answers.
        let _ = hoarder.tables();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(block.read(|rows| rows.count()).unwrap_err(), LentError::Revoked);
    assert!(hoarder.tables().is_err());
    assert_eq!(collect_in_place(&mut bench.client(), &table, &IN_PLACE, TEXT).0, expected());
}

/// As many pages as the client's pins allow are lent; the others are copied, and the scan goes on.
#[test]
fn beyond_the_budget_pages_are_copied() {
    let (bench, mut client, table) =
        filled(ServerOptions { pinned_max: 32 << 10, window: 8, ..ServerOptions::default() });
    let mut reader = bench.client();
    let mut scan = reader.scan_in_place(&table, &IN_PLACE).unwrap();
    let (mut kept, mut copied) = (Vec::new(), 0);
    // Every page that is lent is replaced meanwhile, so that only the client keeps it.
    while let Some(answer) = scan.next_in_place().unwrap() {
        match answer {
            Answer::Lent(block) if kept.len() < 3 => {
                kept.push(block);
                put(&mut client, &table, (0..ROWS).step_by(3), 3 + kept.len() as u64, TEXT);
            }
            Answer::Lent(_) => {}
            Answer::Copied(_) => copied += 1,
        }
    }
    let over = scan.summary().server.over_budget;
    assert!(over > 0 && copied > 0, "{over} pages over the budget, {copied} messages copied");
    assert!(kept.iter().all(|block| rows_of(block, TEXT).is_ok()));
}

/// A client that did not say that it reads in place cannot ask for it.
#[test]
fn in_place_is_for_who_said_so() {
    let (bench, client, table) = filled(ServerOptions::default());
    assert!(client.features().contains(Features::IN_PLACE));
    let scan = |mode| ScanRequest {
        table: table.info().id,
        bounds: Bounds::default(),
        columns: None,
        mode,
        rows_max: Some(1),
    };
    for (features, request, refused) in [
        (Features::default(), Request::ScanInPlace { scan: scan(Mode::Auto), lent_bytes_max: 1 << 17 }, true),
        (Features::default(), Request::Scan(scan(Mode::InPlace)), true),
        (Features::IN_PLACE, Request::Scan(scan(Mode::InPlace)), true),
        (Features::default(), Request::Scan(scan(Mode::Auto)), false),
        (Features::IN_PLACE, Request::ScanInPlace { scan: scan(Mode::InPlace), lent_bytes_max: 1 << 17 }, false),
    ] {
        let mut raw = Raw::new(&bench);
        let hello = Request::Hello { version: wire::VERSION, block_bytes: wire::BLOCK_BYTES as u32, features };
        raw.send(&wire::encode(1, &hello));
        raw.answer();
        raw.send(&wire::encode(2, &request));
        let answer = raw.answer();
        let reply = wire::decode::<Reply>(&answer);
        assert_eq!(matches!(reply, Ok((2, Reply::Fault(_)))), refused, "{features:?}: {request:?}: {reply:?}");
    }
}

const SERVES: &str = "IN_PLACE_TEST_SERVES";
const READS: &str = "IN_PLACE_TEST_READS";

fn child(test: &str, variable: &str, value: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(variable, value).stdout(Stdio::null());
    command.spawn().unwrap()
}

#[test]
#[ignore = "the server of the test below"]
fn serves() {
    let Ok(name) = std::env::var(SERVES) else { return };
    let _server = Server::start(ShmProvider::new().unwrap(), &[&name], ServerOptions::default()).unwrap();
    std::thread::sleep(4 * PATIENCE);
}

/// The server is killed while its pages are read: they stay as they were, and the rest of the scan is an error.
#[test]
fn pages_of_a_killed_server_stay_readable() {
    let name = format!("in-place-killed-{}", std::process::id());
    let mut server = child("in_place::serves", SERVES, &name);
    let start = Instant::now();
    // A page a message.
    let options = ClientOptions { block_bytes: 20 << 10, lent_bytes: 0, ..ClientOptions::default() };
    let mut client = loop {
        match Client::connect_with(ShmProvider::new().unwrap(), &name, options) {
            Ok(client) => break client,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let table = fill(&mut client);
    // Far more pages than a server may have under way before anybody takes one.
    let more = ROWS..8 * ROWS;
    put(&mut client, &table, more.clone(), 1, TEXT);
    let mut scan = client.scan_in_place(&table, &IN_PLACE).unwrap();
    let mut kept = Vec::new();
    let mut take = |scan: &mut overside_table::client::Scan<'_>| {
        let answer = scan.next_in_place()?;
        kept.push(answer.expect("the server was killed before the scan's end"));
        Ok::<_, ClientError>(kept.len())
    };
    take(&mut scan).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let error = loop {
        match take(&mut scan) {
            Ok(count) => assert!(count < 1000, "the window is bounded"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ClientError::Link(_)), "{error}");
    drop(scan);
    let mut rows = Vec::new();
    for answer in &kept {
        match answer {
            Answer::Copied(block) => rows.extend(block.rows().map(|row| whole(row, TEXT))),
            Answer::Lent(block) => rows.extend(rows_of(block, TEXT).unwrap()),
        }
    }
    let all: Vec<_> = expected().into_iter().chain(more.map(|id| (id, 1))).collect();
    assert!(rows.len() < all.len() && rows == all[..rows.len()]);
}

#[test]
#[ignore = "the client of the test below"]
fn reads() {
    let Ok(name) = std::env::var(READS) else { return };
    let mut client = Client::connect(ShmProvider::new().unwrap(), &name).unwrap();
    let table = client.table("t").unwrap();
    let mut scan = client.scan_in_place(&table, &IN_PLACE).unwrap();
    let kept: Vec<_> = (0..5).map(|_| scan.next_in_place().unwrap().unwrap()).collect();
    std::thread::sleep(4 * PATIENCE);
    drop(kept);
}

/// The client is killed while it reads: what it was lent is let go at once.
#[test]
fn a_killed_client_keeps_nothing() {
    let (bench, mut client, table) = filled(ServerOptions::default());
    let mut reader = child("in_place::reads", READS, &bench.name);
    let start = Instant::now();
    let mut version = 3;
    while client.stats().unwrap().bytes_pinned == 0 {
        assert!(start.elapsed() < PATIENCE, "it pins nothing");
        put(&mut client, &table, (0..ROWS).step_by(5), version, TEXT);
        version += 1;
    }
    reader.kill().unwrap();
    reader.wait().unwrap();
    let start = Instant::now();
    while client.stats().unwrap().bytes_pinned > 0 {
        // Before the server's deadline, which would end it, too.
        assert!(start.elapsed() < Duration::from_secs(9), "a dead client's pins are let go");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(MODES[3], Mode::InPlace);
}

const ROWS: u64 = 6000;
const TEXT: usize = 90;
const PATIENCE: Duration = Duration::from_secs(30);
