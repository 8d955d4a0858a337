//! What `cargo xtask guest power` runs in a machine whose power goes: a server in `sync`, and clients that say on standard output what
//! it acknowledged. The host holds that against what the next machine finds.

use std::collections::BTreeMap;
use std::time::Duration;

use overside_shm::ShmProvider;
use overside_table::client::{Client, RemoteTable, ScanOptions};
use overside_table::row::ValueRef;
use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::server::parts::World;
use overside_table::server::{DataOptions, Server, ServerOptions};
use overside_table::wire::PutMode;

const CLIENTS: u64 = 2;
/// As in `guest/src/power.rs`: each client changes so many keys in turn, and every fifth change is a delete.
const SLOTS: u64 = 32;
const DELETE_EACH: u64 = 5;
/// Numbers of one life lie apart from those of the next.
const LIFE: u64 = 1000;

#[test]
#[ignore = "cargo xtask guest power runs it, and never lets it end"]
fn serves() {
    // Behind what the harness has begun to say.
    println!();
    let dir = std::env::var("OVERSIDE_POWER_DIR").expect("OVERSIDE_POWER_DIR is the directory of the data");
    let data = DataOptions { checkpoint_bytes: 256 << 10, ..DataOptions::new(dir) };
    // So short that they are used again and again.
    let world = World { log_segment_bytes: Some(512 << 10), ..World::default() };
    let options =
        ServerOptions { workers: 2, memory_max: 256 << 20, data: Some(data), world, ..ServerOptions::default() };
    let _server = match Server::start(ShmProvider::new().unwrap(), &[NAME], options) {
        Ok(server) => server,
        Err(why) => panic!("broken: the server does not start: {why}"),
    };
    let mut client = connect();
    let table = match client.table("t") {
        Ok(table) => table,
        Err(_) => client.create_table("t", &schema()).unwrap(),
    };
    let newest = found(&mut client, &table);
    println!("found .");
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let from = newest.get(&number).map_or(0, |newest| (newest / LIFE + 1) * LIFE);
            println!("from {number} {from} .");
            let table = table.clone();
            scope.spawn(move || changes(number, from, &table));
        }
        println!("ready .");
    });
}

/// Says all rows; of each client the newest change that shows.
fn found(client: &mut Client, table: &RemoteTable) -> BTreeMap<u64, u64> {
    let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
    let mut scan = client.scan(table, &ScanOptions::default()).unwrap();
    while let Some(block) = scan.next_block().unwrap() {
        for row in block.rows() {
            let (key, value) = (row.u64(0).unwrap(), row.u64(1).unwrap());
            if row.str(2).unwrap().unwrap() != text(value) {
                println!("broken text of {key}");
            }
            println!("row {key} {value} .");
            let newest = newest.entry(key / SLOTS).or_default();
            *newest = (*newest).max(value);
        }
    }
    newest
}

/// One change after the other; each is said once it is acknowledged.
fn changes(number: u64, from: u64, table: &RemoteTable) {
    let mut client = connect();
    for change in from.. {
        let key = number * SLOTS + change % SLOTS;
        if change % DELETE_EACH == DELETE_EACH - 1 {
            client.delete(table, &[ValueRef::UInt64(key)]).unwrap();
        } else {
            let mut batch = table.batch();
            batch.push(&[ValueRef::UInt64(key), ValueRef::UInt64(change), ValueRef::Utf8(&text(change))]).unwrap();
            assert_eq!(client.put(table, PutMode::Upsert, &batch).unwrap().applied, 1);
        }
        println!("acked {number} {change} .");
    }
}

/// Short, or too long for its page.
fn text(value: u64) -> String {
    let letter = char::from(b'a' + (value % 26) as u8);
    std::iter::repeat_n(letter, if value.is_multiple_of(7) { 9000 } else { value as usize * 37 % 900 }).collect()
}

fn connect() -> Client {
    let provider = ShmProvider::new().unwrap();
    for _ in 0..1000 {
        if let Ok(client) = Client::connect(provider.clone(), NAME) {
            return client;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("broken: the server cannot be reached");
}

fn schema() -> Schema {
    let columns = vec![
        Column::new("id", ColumnType::UInt64),
        Column::new("value", ColumnType::UInt64),
        Column::new("text", ColumnType::Utf8),
    ];
    Schema::with_key(columns, &["id"]).unwrap()
}

const NAME: &str = "power";
