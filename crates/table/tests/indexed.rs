//! Indexes of tables that survive: which there are is in the log and in checkpoints, their entries are made anew. And what a
//! scan through an index shows while a writer is between a row and its entries.

mod halting;

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use halting::Halting;
use overside_reference as reference;
use overside_shm::ShmProvider;
use overside_table::client::{Client, RemoteTable, ScanOptions};
use overside_table::row::ValueRef;
use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::server::{DataOptions, SavedOptions, SavedTables, Server, ServerOptions};
use overside_table::wire::{Durability, PutMode};

struct Bench {
    _server: Server,
    provider: Arc<ShmProvider>,
    name: String,
}

impl Bench {
    fn start(dir: &Path) -> Bench {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("table-indexed-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let options = ServerOptions { data: Some(DataOptions::new(dir)), workers: 1, ..ServerOptions::default() };
        let provider = ShmProvider::new().unwrap();
        Bench { _server: Server::start(provider.clone(), &[&name], options).unwrap(), provider, name }
    }

    fn client(&self) -> Client {
        Client::connect(self.provider.clone(), &self.name).unwrap()
    }
}

fn schema() -> Schema {
    let columns = vec![
        Column::new("id", ColumnType::UInt64),
        Column::new("group", ColumnType::Int32),
        Column::nullable("text", ColumnType::Utf8),
    ];
    Schema::with_key(columns, &["id"]).unwrap()
}

fn put(client: &mut Client, table: &RemoteTable, ids: impl Iterator<Item = u64>, groups: i32) {
    let mut batch = table.batch();
    for id in ids {
        let text = format!("text {id}");
        let text = if id.is_multiple_of(4) { ValueRef::Null } else { ValueRef::Utf8(&text) };
        batch.push(&[ValueRef::UInt64(id), ValueRef::Int32(id as i32 % groups), text]).unwrap();
    }
    client.put(table, PutMode::Upsert, &batch).unwrap();
}

/// Ids of a group, through the index on groups.
fn of_group(client: &mut Client, table: &RemoteTable, group: i32) -> Vec<u64> {
    let group = [ValueRef::Int32(group)];
    let bound = Bound::Included(&group[..]);
    let options = ScanOptions { from: bound, to: bound, index: Some(&[1]), ..ScanOptions::default() };
    let mut scan = client.scan(table, &options).unwrap();
    let mut ids = Vec::new();
    while let Some(block) = scan.next_block().unwrap() {
        ids.extend(block.rows().map(|row| row.u64(0).unwrap()));
    }
    ids
}

fn columns(client: &mut Client, table: &RemoteTable) -> Vec<Vec<u16>> {
    client.indexes(table).unwrap().into_iter().map(|index| index.columns).collect()
}

#[test]
fn indexes_are_there_again_with_an_entry_for_each_row() {
    let folder = tempfile::tempdir().unwrap();
    // Created before a checkpoint, between two, and never in one.
    for life in 0..6_u64 {
        let bench = Bench::start(folder.path());
        let mut client = bench.client();
        let table = match life {
            0 => client.create_table("t", &schema()).unwrap(),
            _ => client.table("t").unwrap(),
        };
        if life == 0 {
            client.create_index(&table, &[1], |_, _| {}).unwrap();
            put(&mut client, &table, 0..500, 10);
        }
        assert_eq!(table.info().rows, if life == 0 { 0 } else { 500 });
        // Rows moved in the life before; every other one of them through the log alone.
        let groups = if life == 0 { 10 } else { 10 + life as i32 - 1 };
        let expected = |group: i32| (0..500).filter(|id| *id as i32 % groups == group).collect::<Vec<u64>>();
        for group in [0, 3, groups - 1, groups] {
            assert_eq!(of_group(&mut client, &table, group), expected(group), "life {life}, group {group}");
        }
        let there = columns(&mut client, &table);
        match life {
            0 => assert_eq!(there, [vec![1]]),
            1 => {
                assert_eq!(there, [vec![1]]);
                client.create_index(&table, &[2, 1], |_, _| {}).unwrap();
                client.create_index(&table, &[2], |_, _| {}).unwrap();
            }
            2 => {
                assert_eq!(there, [vec![1], vec![2, 1], vec![2]]);
                assert_eq!(client.checkpoint().unwrap().unchanged, 1);
                client.drop_index(&table, &[2]).unwrap();
                // The drop alone makes it another table for a checkpoint.
                assert_eq!(client.checkpoint().unwrap().tables, 1);
            }
            _ => assert_eq!(there, [vec![1], vec![2, 1]]),
        }
        put(&mut client, &table, 0..500, 10 + life as i32);
        if life % 2 == 1 {
            client.checkpoint().unwrap();
        }
    }
    // Who reads what is saved needs no index, and finds all rows.
    let saved = SavedTables::open(folder.path(), &SavedOptions::default()).unwrap();
    let table = saved.table("t").unwrap();
    let blocks = table.rows(&ScanOptions::default()).unwrap();
    assert_eq!(blocks.map(|block| block.unwrap().len()).sum::<usize>(), 500);
    let through = ScanOptions { index: Some(&[1]), ..ScanOptions::default() };
    assert!(table.rows(&through).err().unwrap().to_string().contains("serve it to scan through an index"));
}

#[test]
fn a_table_that_is_dropped_takes_its_indexes_along() {
    let folder = tempfile::tempdir().unwrap();
    for life in 0..2 {
        let bench = Bench::start(folder.path());
        let mut client = bench.client();
        let table = match life {
            0 => client.create_table("t", &schema()).unwrap(),
            _ => client.table("t").unwrap(),
        };
        assert_eq!(columns(&mut client, &table), [[1_u16; 0]; 0]);
        if life == 0 {
            put(&mut client, &table, 0..50, 10);
            client.create_index(&table, &[1], |_, _| {}).unwrap();
            client.drop_table("t").unwrap();
            client.create_table("t", &schema()).unwrap();
        }
    }
}

/// What a get and scans through the index on groups say of row 7.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    got: Option<i32>,
    /// How often it is in groups 1 and 2.
    of_groups: [usize; 2],
}

fn seen(client: &mut Client, table: &RemoteTable) -> Seen {
    let got = client.get(table, &[ValueRef::UInt64(7)]).unwrap().map(|row| row.view().i32(1).unwrap());
    let of_groups = [1, 2].map(|group| of_group(client, table, group).iter().filter(|id| **id == 7).count());
    Seen { got, of_groups }
}

fn put_7(client: &mut Client, table: &RemoteTable, mode: PutMode, group: i32) {
    let mut batch = table.batch();
    batch.push(&[ValueRef::UInt64(7), ValueRef::Int32(group), ValueRef::Null]).unwrap();
    client.put(table, mode, &batch).unwrap();
}

/// What others see of row 7, which has group 1 or is not there, while a worker that carries out `change` halts at a point.
fn seen_at(point: &'static str, is_there: bool, change: impl Fn(&mut Client, &RemoteTable) + Sync) -> Seen {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(Halting::new(point));
    let world = reference::World::by(clock.clone());
    // What is shown is held back by nothing.
    let data = DataOptions { durability: Durability::None, ..DataOptions::new(folder.path()) };
    let options = ServerOptions { workers: 2, data: Some(data), ..ServerOptions::default() };
    let _server = Server::start(Arc::new(world.provider()), &["tables"], options).unwrap();
    let connect = || Client::connect(Arc::new(world.provider()), "tables").unwrap();
    let mut client = connect();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..6, 10);
    if is_there {
        put_7(&mut client, &table, PutMode::Insert, 1);
    }
    client.create_index(&table, &[1], |_, _| {}).unwrap();
    // One of them goes to the other worker.
    let others = (0..4).map(|_| connect()).collect();
    let answer = clock.halted(|| change(&mut client, &table), others, |other| Some(seen(other, &table)), || {});
    // Afterwards the index says what the table says.
    let end = seen(&mut connect(), &table);
    let of_group = |group| usize::from(end.got == Some(group));
    assert_eq!(end.of_groups, [of_group(1), of_group(2)], "after {point}");
    answer
}

#[test]
fn between_a_row_and_its_entries_a_scan_shows_the_row_as_it_is() {
    let there = |group: i32| Seen { got: Some(group), of_groups: [usize::from(group == 1), usize::from(group == 2)] };
    let gone = Seen { got: None, of_groups: [0, 0] };
    let moves = |client: &mut Client, table: &RemoteTable| put_7(client, table, PutMode::Upsert, 2);
    let goes = |client: &mut Client, table: &RemoteTable| {
        assert!(client.delete(table, &[ValueRef::UInt64(7)]).unwrap());
    };
    let twice = |client: &mut Client, table: &RemoteTable| put_7(client, table, PutMode::Insert, 2);
    assert_eq!(seen_at("index: before rows are put", true, moves), there(1));
    assert_eq!(seen_at("index: before old entries go", true, moves), there(2));
    assert_eq!(seen_at("index: before rows are put", false, moves), gone);
    assert_eq!(seen_at("index: before old entries go", false, moves), there(2));
    assert_eq!(seen_at("index: before the row goes", true, goes), there(1));
    assert_eq!(seen_at("index: before its entries go", true, goes), gone);
    // A put that is refused moves nothing.
    assert_eq!(seen_at("index: before old entries go", true, twice), there(1));
}
