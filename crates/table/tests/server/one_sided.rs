//! Scans that the server takes no part in.

use std::ops::Bound;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use overside_table::client::{ClientError, Scan};
use overside_table::server::{DataOptions, StartError};
use rustix::process::{Pid, Signal, kill_process};

use super::*;

fn open() -> ServerOptions {
    ServerOptions { one_sided: true, segment_bytes: 2 << 20, ..ServerOptions::default() }
}

/// All rows of a scan: id, version, and what stands for the text.
fn rows(mut scan: Scan<'_>) -> Vec<(u64, u64, u32)> {
    let mut rows = Vec::new();
    while let Some(block) = scan.next_block().unwrap() {
        rows.extend(block.rows().map(|row| {
            let text = row.str(2).unwrap().map_or(0, |text| crc32c::crc32c(text.as_bytes()));
            (row.u64(0).unwrap(), row.u64(1).unwrap(), text)
        }));
    }
    assert_eq!(scan.summary().rows as usize, rows.len());
    rows
}

#[test]
fn it_sees_what_a_scan_sees() {
    let bench = Bench::with(open());
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, (0..9000).map(|id| id * 3), 1, 60);
    put(&mut client, &table, (0..9000).map(|id| id * 7), 2, 33);
    put(&mut client, &table, (100..104).chain([20_000]), 3, 200_000);
    for id in (0..27_000).step_by(21) {
        client.delete(&table, &[ValueRef::UInt64(id)]).unwrap();
    }
    let key = |id: &u64| [ValueRef::UInt64(*id)];
    let ids = [0, 101, 4_444, 20_000, 63_000, u64::MAX];
    for (from, to) in ids.iter().flat_map(|from| ids.iter().map(move |to| (from, to))) {
        let (from, to) = (key(from), key(to));
        for (from, to) in [
            (Bound::Included(&from[..]), Bound::Excluded(&to[..])),
            (Bound::Excluded(&from[..]), Bound::Included(&to[..])),
            (Bound::Unbounded, Bound::Included(&to[..])),
        ] {
            let options = ScanOptions { from, to, ..ScanOptions::default() };
            let usual = rows(client.scan(&table, &options).unwrap());
            assert_eq!(rows(client.scan_one_sided(&table, &options).unwrap()), usual, "{from:?} {to:?}");
        }
    }
    let options = ScanOptions { columns: Some(&[2, 0]), rows_max: Some(1000), ..ScanOptions::default() };
    let mut scan = client.scan_one_sided(&table, &options).unwrap();
    let first = scan.next_block().unwrap().unwrap();
    let row = first.row(0).unwrap();
    assert_eq!((row.u64(1).unwrap(), row.str(0).unwrap()), (3, Some(text(3, 1, 60).as_str())));
    let mut all = first.len();
    while let Some(block) = scan.next_block().unwrap() {
        all += block.len();
    }
    assert!((1000..2000).contains(&all), "{all} rows");
    drop(scan);
    let options = ScanOptions { index: Some(&[1]), ..ScanOptions::default() };
    let error = client.scan_one_sided(&table, &options).unwrap_err();
    assert!(error.to_string().contains("an index is read by the server alone"), "{error}");
}

/// The table outgrows what the client was told of it when its scan began.
#[test]
fn a_scan_finds_what_came_into_new_memory() {
    let bench = Bench::with(open());
    let (mut client, mut other) = (bench.client(), bench.client());
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..10, 1, 60);
    let scan = client.scan_one_sided(&table, &ScanOptions::default()).unwrap();
    put(&mut other, &table, 0..100_000, 2, 60);
    let rows = rows(scan);
    assert!(rows.iter().map(|(id, version, _)| (*id, *version)).eq((0..100_000).map(|id| (id, 2))));
}

#[test]
fn a_server_shows_its_memory_where_it_was_asked_to_alone() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    let error = client.scan_one_sided(&table, &ScanOptions::default()).unwrap_err();
    assert!(matches!(&error, ClientError::Refused { text, .. } if text.contains("--one-sided")), "{error}");
    let dir = std::env::temp_dir().join(format!("one-sided-{}", std::process::id()));
    let options = ServerOptions { data: Some(DataOptions::new(&dir)), ..open() };
    let refused = Server::start(ShmProvider::new().unwrap(), &["never"], options).unwrap_err();
    assert!(matches!(&refused, StartError::Verbs(_)) && refused.to_string().contains("kept on a disk"), "{refused}");
    assert!(!dir.exists());
}

#[test]
fn a_table_that_was_dropped_meanwhile_is_an_error() {
    let bench = Bench::with(open());
    let (mut client, mut other) = (bench.client(), bench.client());
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..100_000, 1, 60);
    let mut scan = client.scan_one_sided(&table, &ScanOptions::default()).unwrap();
    scan.next_block().unwrap().unwrap();
    other.drop_table("t").unwrap();
    let error = loop {
        match scan.next_block() {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ClientError::Link(_) | ClientError::Refused { .. }), "{error}");
}

/// Rows that are there throughout come once, whole, and no older than when the scan began.
#[test]
fn beside_writers_rows_are_whole_and_none_is_older_than_the_scan() {
    const IDS: u64 = 20_000;
    let bench = Bench::with(open());
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..IDS, 1, 40);
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(1));
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut writer = bench.client();
            let table = writer.table("t").unwrap();
            for version in 2.. {
                put(&mut writer, &table, (0..IDS).step_by(3), version, 40);
                acknowledged.store(version, Ordering::SeqCst);
                // Others come and go between those that stay.
                put(&mut writer, &table, IDS..IDS + 500, version, 40);
                (IDS..IDS + 500).for_each(|id| _ = writer.delete(&table, &[ValueRef::UInt64(id)]).unwrap());
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let _stop = scopeguard::guard((), |()| stop.store(true, Ordering::Relaxed));
        let begun = Instant::now();
        let mut scans = 0;
        while scans < 20 || (acknowledged.load(Ordering::SeqCst) < 6 && begun.elapsed() < Duration::from_secs(30)) {
            let before = acknowledged.load(Ordering::SeqCst);
            let mut scan = client.scan_one_sided(&table, &ScanOptions::default()).unwrap();
            let mut next = 0;
            while let Some(block) = scan.next_block().unwrap() {
                for row in block.rows() {
                    let (id, version) = (row.u64(0).unwrap(), row.u64(1).unwrap());
                    assert_eq!(row.str(2).unwrap(), Some(text(id, version, 40).as_str()), "a torn row");
                    if id < IDS {
                        assert_eq!(id, next);
                        assert!(
                            version >= if id.is_multiple_of(3) { before } else { 1 },
                            "{id}: {version} of {before}"
                        );
                        next += 1;
                    }
                }
            }
            assert_eq!(next, IDS);
            scans += 1;
        }
        assert!(acknowledged.load(Ordering::SeqCst) >= 3, "the writer does not get on");
    });
}

const SERVES: &str = "ONE_SIDED_TEST_SERVES";
const PATIENCE: Duration = Duration::from_secs(30);

/// Goes on and ends with the test.
struct Serving(Child);

impl Serving {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
#[ignore = "the server of the test below"]
fn serves() {
    let Ok(name) = std::env::var(SERVES) else { return };
    let _server = Server::start(ShmProvider::new().unwrap(), &[&name], open()).unwrap();
    std::thread::sleep(4 * PATIENCE);
}

/// The server is stopped after it said where the table lies: its client reads all of it.
#[test]
fn a_server_that_stands_still_is_read() {
    let name = format!("one-sided-stopped-{}", std::process::id());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "one_sided::serves", "--ignored", "--nocapture"]);
    let server = Serving(command.env(SERVES, &name).stdout(Stdio::null()).spawn().unwrap());
    let start = Instant::now();
    let mut client = loop {
        match Client::connect(ShmProvider::new().unwrap(), &name) {
            Ok(client) => break client,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..50_000, 1, 60);
    let scan = client.scan_one_sided(&table, &ScanOptions::default()).unwrap();
    server.signal(Signal::STOP);
    let rows = rows(scan);
    server.signal(Signal::CONT);
    assert!(rows.iter().map(|(id, ..)| *id).eq(0..50_000));
    assert!(client.stats().unwrap().bytes_committed > 0, "and it goes on");
}
