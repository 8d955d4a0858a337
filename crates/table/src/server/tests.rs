//! What no client can bring about.

use std::ops::Bound;

use overside_bwtree::Direction;
use overside_shm::ShmProvider;

use super::{Server, ServerOptions};
use crate::client::{Client, ClientError, RemoteTable, ScanOptions};
use crate::row::ValueRef;
use crate::schema::{Column, ColumnType, Schema};
use crate::wire::{FaultCode, Mode, PutMode};

/// Whatever the reason, a row that cannot be read is an error to who reads it, and not a row left
/// out.
#[test]
fn a_broken_row_ends_its_scan_with_an_error() {
    let name = format!("table-broken-{}", std::process::id());
    let server = Server::start(ShmProvider::new().unwrap(), &[&name], ServerOptions::default()).unwrap();
    let mut client = Client::connect(ShmProvider::new().unwrap(), &name).unwrap();
    let texts = ["a", "b"].map(|name| Column::new(name, ColumnType::Utf8));
    let columns = [Column::new("id", ColumnType::UInt64)].into_iter().chain(texts).collect();
    let table = client.create_table("t", &Schema::with_key(columns, &["id"]).unwrap()).unwrap();
    let mut batch = table.batch();
    (0..100u64).for_each(|id| batch.push(&[ValueRef::UInt64(id), ValueRef::Utf8("x"), ValueRef::Utf8("y")]).unwrap());
    assert_eq!(client.put(&table, PutMode::Insert, &batch).unwrap().applied, 100);
    let stored = server.store.named("t").unwrap();
    let mut broken = vec![0; stored.layout.prefix_len()];
    broken.extend([0xFF; 3]);
    stored.tree.upsert(&50u64.to_be_bytes(), &broken).unwrap();
    drop(stored);
    for mode in [Mode::Copy, Mode::Auto] {
        let options = ScanOptions { columns: Some(&[0, 2]), mode, ..ScanOptions::default() };
        let mut scan = client.scan(&table, &options).unwrap();
        let told = loop {
            match scan.next_block() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{} rows of 100, and nothing said of the others", scan.summary().rows),
                Err(error) => break error,
            }
        };
        assert!(matches!(told, ClientError::Refused { code: FaultCode::BadRow, .. }), "{told}");
        drop(scan);
        // The connection is as good as before.
        assert!(client.get(&table, &[ValueRef::UInt64(51)]).unwrap().is_some());
    }
}

/// What the trees say of memory that is held back is what a client hears (to-copy §4, TC-M25).
#[test]
fn memory_that_is_held_back_is_told_to_clients() {
    let name = format!("table-held-{}", std::process::id());
    let server = Server::start(ShmProvider::new().unwrap(), &[&name], ServerOptions::default()).unwrap();
    let mut client = Client::connect(ShmProvider::new().unwrap(), &name).unwrap();
    let columns = vec![Column::new("id", ColumnType::UInt64), Column::new("text", ColumnType::Utf8)];
    let table = client.create_table("t", &Schema::with_key(columns, &["id"]).unwrap()).unwrap();
    let put = |client: &mut Client, table: &RemoteTable| {
        let mut batch = table.batch();
        let text = "x".repeat(100);
        (0..5000).for_each(|id| batch.push(&[ValueRef::UInt64(id), ValueRef::Utf8(&text)]).unwrap());
        client.put(table, PutMode::Upsert, &batch).unwrap();
    };
    // Writers let go from time to time alone: what they have replaced last is still held.
    let mut puts = 0;
    let held = loop {
        put(&mut client, &table);
        let held = client.held().unwrap().unwrap();
        if held.by_epochs > 0 {
            break held;
        }
        puts += 1;
        assert!(puts < 100, "nothing that was replaced is ever held");
    };
    let stored = server.store.named("t").unwrap();
    let stats = stored.tree.stats();
    assert_eq!((held.by_epochs, held.by_pins, held.pins), (stats.held_by_epochs_bytes, 0, 0));
    assert_eq!(held.stall, None, "nobody is inside");
    stored.tree.reclaim();
    assert_eq!(client.held().unwrap().unwrap(), Default::default());
    // A page that is held by a pin, and replaced under it.
    let page = stored.tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).next().unwrap();
    assert!((8 << 10..=16 << 10).contains(&page.base().len()), "pages of 16 KiB (TC-M31)");
    assert_eq!(client.held().unwrap().unwrap().pins, 1);
    for _ in 0..20 {
        put(&mut client, &table);
    }
    stored.tree.reclaim();
    let held = client.held().unwrap().unwrap();
    assert!(held.by_pins >= page.base().len() as u64 && held.pins == 1, "{held:?}");
    drop(page);
    stored.tree.reclaim();
    assert_eq!(client.held().unwrap().unwrap(), Default::default());
}

/// A number that was given means its table for ever, so there is an end to them.
#[test]
fn when_all_numbers_are_given_creates_are_refused() {
    let name = format!("table-numbers-{}", std::process::id());
    let server = Server::start(ShmProvider::new().unwrap(), &[&name], ServerOptions::default()).unwrap();
    server.store.number_from(u32::MAX - 1);
    let mut client = Client::connect(ShmProvider::new().unwrap(), &name).unwrap();
    let schema = Schema::with_key(vec![Column::new("id", ColumnType::UInt64)], &["id"]).unwrap();
    let last = client.create_table("last", &schema).unwrap();
    assert_eq!(last.info().id, u32::MAX - 1);
    for _ in 0..2 {
        let refused = client.create_table("beyond", &schema).unwrap_err();
        let meant = matches!(&refused, ClientError::Refused { code: FaultCode::Exhausted, .. });
        assert!(meant && refused.to_string().contains("2^32"), "{refused}");
    }
    client.drop_table("last").unwrap();
    assert!(client.create_table("last", &schema).is_err(), "its number is not free again");
}
