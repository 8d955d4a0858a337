//! Writers of rows, an index that is being made, and scans through it, under shuttle: the shipped
//! code of all three, on the shipped tree.
#![cfg(shuttle)]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use overside_bwtree::{Direction, PinnedPage, Put, Tree};
use overside_log::Claim;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Runner, thread};

use super::{Build, Building, Index, Through};
use crate::row::{RowBuilder, RowView, ValueRef};
use crate::schema::{Column, ColumnType, Schema};
use crate::server::parts::World;
use crate::server::store::{MemoryLimit, Store, Table};

/// A row as it was written: its group, which the index is on, and a number that no other write has.
type Written = (i32, i32);

fn start() -> (Store, Arc<Table>) {
    let memory = MemoryLimit { bytes_max: 8 << 20, segment_bytes: 4 << 20 };
    let world = World { page_bytes: Some(256), ..World::default() };
    let store = Store::new(memory, Arc::new(()), world, Some(1), None);
    let columns = [("id", ColumnType::UInt64), ("group", ColumnType::Int32), ("number", ColumnType::Int32)];
    let columns = columns.map(|(name, of)| Column::new(name, of)).to_vec();
    let mut schema = Vec::new();
    Schema::with_key(columns, &["id"]).unwrap().encode(&mut schema);
    let (table, _) = store.create("t", &schema).ok().unwrap();
    (store, table)
}

fn put(table: &Table, key: u64, (group, number): Written) {
    let mut row = RowBuilder::new(table.layout.clone());
    let row = row.encode(&[ValueRef::UInt64(key), ValueRef::Int32(group), ValueRef::Int32(number)]).unwrap();
    let change = table.change(Claim::Put, 1, row.len()).ok().unwrap();
    let (answers, _) = table.put_many(&change, Put::Upsert, &[(&key.to_be_bytes(), row)], 1);
    assert!(answers[0].is_ok(), "{answers:?}");
}

fn delete(table: &Table, key: u64) {
    let change = table.change(Claim::Delete, 1, 8).ok().unwrap();
    assert!(table.delete_now(&change, &key.to_be_bytes()).unwrap().0, "row {key} was not there");
}

fn get(table: &Table, key: u64) -> Option<Written> {
    let mut row = Vec::new();
    table.tree.get(&key.to_be_bytes(), &mut row).unwrap().then(|| written(table, &row))
}

fn written(table: &Table, row: &[u8]) -> Written {
    let row = RowView::of_value(row, &table.layout).unwrap();
    match (row.value(1).unwrap(), row.value(2).unwrap()) {
        (ValueRef::Int32(group), ValueRef::Int32(number)) => (group, number),
        other => panic!("a row has {other:?}"),
    }
}

/// The rows of a group, through the index.
fn scan(table: &Arc<Table>, index: &Arc<Index>, group: i32) -> Vec<(u64, Written)> {
    let [mut from, mut to] = [Vec::new(), Vec::new()];
    index.codec.encode_first(&[ValueRef::Int32(group)], &mut from).unwrap();
    index.codec.encode_first(&[ValueRef::Int32(group + 1)], &mut to).unwrap();
    let bounds = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
    let mut through = Through::new(table.clone(), index.clone(), table.tree.pin_account(), bounds);
    let row = |page: PinnedPage| {
        let row = page.merged().next().unwrap();
        let value = [row.prefix, page.rest_bytes(row.rest)].concat();
        (u64::from_be_bytes(row.key.to_vec().try_into().unwrap()), written(table, &value))
    };
    std::iter::from_fn(|| through.next()).map(row).collect()
}

/// A scan of a group gives rows of it alone. A row that is the same before and after the scan is
/// given once if it is of the group, else never.
fn look(table: &Arc<Table>, index: &Arc<Index>, group: i32) {
    let rows = || KEYS.map(|key| get(table, key));
    let before = rows();
    let given = scan(table, index, group);
    let after = rows();
    assert!(given.iter().all(|(_, row)| row.0 == group), "rows of group {group}: {given:?}");
    for (key, (before, after)) in KEYS.into_iter().zip(before.into_iter().zip(after)) {
        let Some(row) = before.filter(|_| before == after) else { continue };
        let times = given.iter().filter(|one| **one == (key, row)).count();
        let wanted = usize::from(row.0 == group);
        assert_eq!(times, wanted, "row {key} is {row:?} all the while; group {group}: {given:?}");
    }
}

/// Each row has its entry, and there is no other.
fn check(table: &Table, index: &Index) {
    let keys = |tree: &Tree| -> Vec<Vec<u8>> {
        tree.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward).map(|(key, _)| key).collect()
    };
    let rows: BTreeMap<u64, Written> = KEYS.into_iter().filter_map(|key| Some((key, get(table, key)?))).collect();
    let mut wanted: Vec<Vec<u8>> = Vec::new();
    for (key, (group, _)) in &rows {
        let mut entry = Vec::new();
        index.codec.encode_first(&[ValueRef::Int32(*group)], &mut entry).unwrap();
        wanted.push([&entry[..], &key.to_be_bytes()].concat());
    }
    wanted.sort();
    assert_eq!(keys(&index.tree), wanted, "entries of {rows:?}");
}

fn made(store: &Store, table: &Arc<Table>) -> Arc<Index> {
    let mut build = Build::begin(store, table, &[1]).ok().unwrap();
    while let Building::More = build.step().ok().unwrap() {}
    table.indexes.of(table, &[1]).ok().unwrap()
}

fn explore(body: fn()) {
    let mut config = shuttle::Config::new();
    config.stack_size = 0x20000;
    // A planted fault shows in one of some thousand schedules.
    let is_sought = std::env::var_os("OVERSIDE_MUTANT").is_some_and(|fault| !fault.is_empty());
    let schedules = if is_sought { SCHEDULES_FOR_FAULT } else { SCHEDULES };
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(body);
    Runner::new(PctScheduler::new(3, schedules), config).run(body);
}

/// Two writers of one row, one that deletes another, and scans meanwhile.
/// Faults: index-not-checked, index-without-turns
#[test]
fn scans_give_what_does_not_change_once_and_entries_end_as_rows_are() {
    explore(|| {
        let (store, table) = start();
        for key in KEYS {
            put(&table, key, (7, key as i32));
        }
        let index = made(&store, &table);
        let work: [fn(&Table); 3] = [
            |table| [(8, 100), (7, 101)].into_iter().for_each(|row| put(table, 2, row)),
            |table| put(table, 2, (9, 200)),
            |table| {
                delete(table, 3);
                put(table, 3, (8, 300));
            },
        ];
        let mut threads: Vec<_> = work.map(|work| with(&table, &index, move |table, _| work(table))).into();
        threads
            .push(with(&table, &index, |table, index| [7, 8].into_iter().for_each(|group| look(table, index, group))));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        check(&table, &index);
    });
}

/// An index is made while rows move between groups, come and go.
#[test]
fn an_index_that_is_made_beside_writers_has_every_row() {
    explore(|| {
        let (store, table) = start();
        for key in [1, 2, 3] {
            put(&table, key, (7, key as i32));
        }
        let writers = [(2, (8, 100)), (4, (7, 200))].map(|(key, row)| {
            let table = table.clone();
            thread::spawn(move || {
                put(&table, key, row);
                if key == 4 {
                    delete(&table, 3);
                }
            })
        });
        let index = made(&store, &table);
        // It is whole: whatever writers still do.
        look(&table, &index, 7);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        check(&table, &index);
    });
}

fn with(
    table: &Arc<Table>,
    index: &Arc<Index>,
    work: impl FnOnce(&Arc<Table>, &Arc<Index>) + Send + 'static,
) -> thread::JoinHandle<()> {
    let (table, index) = (table.clone(), index.clone());
    thread::spawn(move || work(&table, &index))
}

const KEYS: [u64; 4] = [1, 2, 3, 4];
const SCHEDULES: usize = 1000;
const SCHEDULES_FOR_FAULT: usize = 10_000;
