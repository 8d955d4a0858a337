//! What a scan returns, in every mode.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use super::watched::Watched;
use super::*;

#[test]
fn every_mode_returns_the_same_rows_in_order() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, (0..5000).map(|i| i * 2), 1, 60);
    // Deltas on top: replaced, inserted and deleted rows.
    put(&mut client, &table, (0..5000).step_by(97).map(|i| i * 2), 2, 60);
    put(&mut client, &table, (0..5000).step_by(131).map(|i| i * 2 + 1), 3, 60);
    for id in (0..10_000u64).step_by(202) {
        client.delete(&table, &[ValueRef::UInt64(id)]).unwrap();
    }
    let mut expected: Vec<(u64, u64)> = (0..5000).map(|i| (i * 2, if i % 97 == 0 { 2 } else { 1 })).collect();
    expected.extend((0..5000).step_by(131).map(|i| (i * 2 + 1, 3)));
    expected.retain(|(id, _)| id % 202 != 0);
    expected.sort_unstable();
    for mode in ALL_MODES {
        let options = ScanOptions { mode, ..ScanOptions::default() };
        assert_eq!(collect(&mut client, &table, &options, 60), expected, "{mode:?}");
    }
}

#[test]
fn pages_that_travel_the_same_way_share_messages() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..20_000, 1, 60);
    let pages = client.table("t").unwrap().info().pages;
    // Three of four columns' bytes stay behind in a narrow scan: many pages fit.
    for (columns, least) in [(None, 2), (Some(&[0, 1][..]), 5)] {
        for mode in [Mode::Copy, Mode::Gather] {
            let mut scan = client.scan(&table, &ScanOptions { mode, columns, ..ScanOptions::default() }).unwrap();
            while scan.next_block().unwrap().is_some() {}
            let server = scan.summary().server;
            assert_eq!(server.chosen.iter().sum::<u64>(), pages, "{mode:?}: every page once");
            assert!(server.messages * least <= pages + pages / 8, "{mode:?}: {} of {pages} pages", server.messages);
        }
    }
}

#[test]
fn ranges_columns_and_limits() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..3000, 1, 30);
    put(&mut client, &table, (0..3000).step_by(50), 2, 30);
    let (from, to) = ([ValueRef::UInt64(100)], [ValueRef::UInt64(2345)]);
    for mode in ALL_MODES {
        let options = ScanOptions {
            from: Bound::Excluded(&from),
            to: Bound::Included(&to),
            columns: Some(&[1, 0]),
            mode,
            ..ScanOptions::default()
        };
        let mut scan = client.scan(&table, &options).unwrap();
        let mut ids = Vec::new();
        while let Some(block) = scan.next_block().unwrap() {
            block.rows().for_each(|row| {
                let (version, id) = (row.u64(0).unwrap(), row.u64(1).unwrap());
                assert_eq!(version, if id % 50 == 0 { 2 } else { 1 });
                ids.push(id);
            });
        }
        assert!(ids.iter().copied().eq(101..=2345), "{mode:?}");
        drop(scan);
        let options = ScanOptions { mode, rows_max: Some(10), ..ScanOptions::default() };
        let some = collect(&mut client, &table, &options, 30).len();
        assert!((10..1000).contains(&some), "{mode:?}: {some} rows after a limit of 10");
    }
}

#[test]
fn large_values_travel_whole() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    for (id, len) in [(1u64, 3000), (2, 20_000), (3, 200_000), (4, 1_000_000), (5, 10)] {
        let text = text(id, 1, len);
        let mut batch = table.batch();
        batch.push(&[ValueRef::UInt64(id), ValueRef::UInt64(1), ValueRef::Utf8(&text)]).unwrap();
        assert_eq!(client.put(&table, PutMode::Insert, &batch).unwrap().applied, 1);
        let row = client.get(&table, &[ValueRef::UInt64(id)]).unwrap().unwrap();
        assert_eq!(row.view().str(2).unwrap(), Some(text.as_str()));
    }
    for mode in ALL_MODES {
        let mut scan = client.scan(&table, &ScanOptions { mode, ..ScanOptions::default() }).unwrap();
        let mut lens = Vec::new();
        while let Some(block) = scan.next_block().unwrap() {
            block.rows().for_each(|row| {
                let value = row.str(2).unwrap().unwrap();
                assert_eq!(value, text(row.u64(0).unwrap(), 1, value.len()), "{mode:?}");
                lens.push(value.len());
            });
        }
        assert_eq!(lens, [3000, 20_000, 200_000, 1_000_000, 10], "{mode:?}");
    }
}

#[test]
fn a_dropped_scan_leaves_the_connection_usable() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..50_000, 1, 40);
    for _ in 0..5 {
        let mut scan = client.scan(&table, &ScanOptions::default()).unwrap();
        assert!(scan.next_block().unwrap().is_some());
        drop(scan);
        assert_eq!(client.get(&table, &[ValueRef::UInt64(9)]).unwrap().unwrap().view().u64(0), Some(9));
    }
}

/// Rows present throughout come exactly once, in order, whole, while writers split, merge and update
/// under the scan; each version seen was there at some moment of the scan.
#[test]
fn scans_keep_their_promise_under_writers() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, (0..4000).map(|i| i * 4), 0, 50);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let (mut client, table, stop) = (bench.client(), table.clone(), &stop);
            scope.spawn(move || {
                let mut version = 1;
                while !stop.load(Ordering::Relaxed) {
                    // Updates of rows that stay, and a band of rows that come and go.
                    put(&mut client, &table, (0..4000).skip(writer as usize).step_by(7).map(|i| i * 4), version, 50);
                    let band = (version * 37) % 3000;
                    put(&mut client, &table, (band..band + 300).map(|i| i * 4 + 1 + writer), version, 50);
                    for i in band..band + 300 {
                        client.delete(&table, &[ValueRef::UInt64(i * 4 + 1 + writer)]).unwrap();
                    }
                    version += 1;
                }
            });
        }
        // However this ends: writers that go on would keep the scope open.
        let _stop = scopeguard::guard((), |()| stop.store(true, Ordering::Relaxed));
        for round in 0..25 {
            let mode = ALL_MODES[round % ALL_MODES.len()];
            let options = ScanOptions { mode, ..ScanOptions::default() };
            let rows = match mode {
                Mode::InPlace => super::in_place::collect_in_place(&mut client, &table, &options, 50).0,
                _ => collect(&mut client, &table, &options, 50),
            };
            assert!(rows.windows(2).all(|w| w[0].0 < w[1].0), "{mode:?}: out of order or twice");
            let lasting = rows.iter().filter(|(id, _)| id % 4 == 0).count();
            assert_eq!(lasting, 4000, "{mode:?}: rows present throughout");
        }
    });
}

/// A page that with its head has more fragments than a list of the device has entries is copied, else it is gathered (to-copy
/// §5.1, TC-M06).
#[test]
fn what_the_device_s_lists_have_no_room_for_is_copied() {
    let sent = |sge_max: usize| {
        let name = format!("table-test-lists-{sge_max}-{}", std::process::id());
        let server = Server::start(Watched::with_lists(sge_max), &[&name], ServerOptions::default()).unwrap();
        let mut client = Client::connect(ShmProvider::new().unwrap(), &name).unwrap();
        let table = client.create_table("t", &schema()).unwrap();
        put(&mut client, &table, 0..5000, 1, 50);
        // Deltas on every page.
        put(&mut client, &table, (0..5000).step_by(40), 2, 50);
        let options = ScanOptions { mode: Mode::Gather, ..ScanOptions::default() };
        let mut scan = client.scan(&table, &options).unwrap();
        let mut rows = Vec::new();
        while let Some(block) = scan.next_block().unwrap() {
            block.rows().for_each(|row| rows.push((row.u64(0).unwrap(), row.u64(1).unwrap())));
        }
        assert!(rows.into_iter().eq((0..5000).map(|id| (id, if id % 40 == 0 { 2 } else { 1 }))), "{sge_max}");
        let [copied, gathered, ..] = scan.summary().server.chosen;
        drop(scan);
        server.shutdown();
        (copied, gathered)
    };
    let (long, short) = (sent(256), sent(1));
    assert!(long.0 == 0 && long.1 > 10, "{long:?} copied and gathered by lists of 256");
    assert_eq!(short, (long.1, 0), "a list of one entry has no room for a head and a page");
}
