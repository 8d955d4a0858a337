//! Secondary indexes: rows found by another column than the key's, in every mode, while others write.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use overside_table::block::Answer;
use overside_table::client::{Client, ClientError, RemoteTable, ScanOptions};
use overside_table::row::{Bytes, RowView, ValueRef};
use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::server::ServerOptions;
use overside_table::wire::{FaultCode, Mode, PutMode};

use super::{ALL_MODES, Bench};

const GROUP: usize = 1;
const NOTE: usize = 2;

/// (id, a group, a note that may be null).
fn schema() -> Schema {
    let columns = vec![
        Column::new("id", ColumnType::UInt64),
        Column::new("group", ColumnType::Int64),
        Column::nullable("note", ColumnType::Utf8),
    ];
    Schema::with_key(columns, &["id"]).unwrap()
}

/// Of each row its group and its note, by its id.
type Rows = BTreeMap<u64, (i64, Option<String>)>;
type Found = (u64, i64, Option<String>);

fn put(client: &mut Client, table: &RemoteTable, mode: PutMode, rows: &[Found]) -> u32 {
    let mut batch = table.batch();
    for (id, group, note) in rows {
        let note = note.as_deref().map_or(ValueRef::Null, ValueRef::Utf8);
        batch.push(&[ValueRef::UInt64(*id), ValueRef::Int64(*group), note]).unwrap();
    }
    client.put(table, mode, &batch).unwrap().applied
}

fn read<P: Bytes>(row: &RowView<'_, P>) -> Found {
    let mut note = String::new();
    let is_there = row.copy_str(NOTE, &mut note).unwrap();
    (row.u64(0).unwrap(), row.i64(GROUP).unwrap(), is_there.then_some(note))
}

/// All rows of a scan, in its order; read in place where they are lent.
fn found(client: &mut Client, table: &RemoteTable, options: &ScanOptions<'_>) -> Vec<Found> {
    let mut rows = Vec::new();
    let mut scan = client.scan_in_place(table, options).unwrap();
    while let Some(answer) = scan.next_in_place().unwrap() {
        match &answer {
            Answer::Copied(block) => rows.extend(block.rows().map(|row| read(&row))),
            Answer::Lent(block) => {
                rows.extend(block.read(|all| all.map(|row| read(&row)).collect::<Vec<_>>()).unwrap())
            }
        }
    }
    rows
}

fn through<'a>(index: &'a [usize], mode: Mode) -> ScanOptions<'a> {
    ScanOptions { index: Some(index), mode, ..ScanOptions::default() }
}

/// What a scan through an index must give: the rows in the order of its values, and of equal ones by id.
fn by_group(rows: &Rows) -> Vec<Found> {
    let mut all: Vec<Found> = rows.iter().map(|(id, (group, note))| (*id, *group, note.clone())).collect();
    all.sort_by_key(|(id, group, _)| (*group, *id));
    all
}

fn by_note(rows: &Rows) -> Vec<Found> {
    let mut all = by_group(rows);
    all.sort_by(|a, b| (&a.2, a.0).cmp(&(&b.2, b.0)));
    all
}

fn refused(error: ClientError) -> (FaultCode, String) {
    match error {
        ClientError::Refused { code, text } => (code, text),
        other => panic!("{other}"),
    }
}

fn create(client: &mut Client, table: &RemoteTable, columns: &[usize]) {
    client.create_index(table, columns, |_, _| {}).unwrap();
}

#[test]
fn ranges_of_an_index_come_in_its_order_in_every_mode() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    let row = |id: u64| {
        let note = (!id.is_multiple_of(5)).then(|| "n".repeat((id * 7 % 90) as usize));
        (id, (id * 37 % 101) as i64 - 50, note)
    };
    let rows: Vec<Found> = (0..3000).map(row).collect();
    put(&mut client, &table, PutMode::Insert, &rows[..2000]);
    create(&mut client, &table, &[GROUP]);
    create(&mut client, &table, &[NOTE]);
    // Some of them are there before the indexes, some come later.
    put(&mut client, &table, PutMode::Insert, &rows[2000..]);
    let all: Rows = rows.iter().map(|(id, group, note)| (*id, (*group, note.clone()))).collect();
    let indexes = client.indexes(&table).unwrap();
    assert_eq!(indexes.iter().map(|index| index.columns.clone()).collect::<Vec<_>>(), [vec![1], vec![2]]);
    assert!(indexes.iter().all(|index| index.pages > 1 && index.bytes > 0), "{indexes:?}");
    for mode in ALL_MODES {
        assert_eq!(found(&mut client, &table, &through(&[GROUP], mode)), by_group(&all), "{mode:?}");
        assert_eq!(found(&mut client, &table, &through(&[NOTE], mode)), by_note(&all), "{mode:?}");
        let (low, high) = ([ValueRef::Int64(-7)], [ValueRef::Int64(20)]);
        for (from, to) in [
            (Bound::Included(&low[..]), Bound::Included(&high[..])),
            (Bound::Excluded(&low[..]), Bound::Excluded(&high[..])),
            (Bound::Unbounded, Bound::Included(&low[..])),
            (Bound::Excluded(&high[..]), Bound::Unbounded),
        ] {
            let within = |group: i64| {
                let above = match from {
                    Bound::Included(_) => group >= -7,
                    Bound::Excluded(values) => group > if values == low { -7 } else { 20 },
                    Bound::Unbounded => true,
                };
                above
                    && match to {
                        Bound::Included(values) => group <= if values == low { -7 } else { 20 },
                        Bound::Excluded(_) => group < 20,
                        Bound::Unbounded => true,
                    }
            };
            let options = ScanOptions { from, to, ..through(&[GROUP], mode) };
            let expected: Vec<Found> = by_group(&all).into_iter().filter(|row| within(row.1)).collect();
            assert_eq!(found(&mut client, &table, &options), expected, "{mode:?} {from:?} {to:?}");
        }
        // Nulls are in the index; an upper end alone leaves them out, and they can be asked for.
        let note = [ValueRef::Utf8("nnnn")];
        let upto = ScanOptions { to: Bound::Included(&note), ..through(&[NOTE], mode) };
        let expected = by_note(&all).into_iter().filter(|row| row.2.as_ref().is_some_and(|note| note.len() <= 4));
        assert_eq!(found(&mut client, &table, &upto), expected.collect::<Vec<_>>(), "{mode:?}");
        let null = [ValueRef::Null];
        let nulls = ScanOptions { from: Bound::Included(&null), to: Bound::Included(&null), ..through(&[NOTE], mode) };
        assert_eq!(found(&mut client, &table, &nulls).len(), 600, "{mode:?}");
        let few = ScanOptions { rows_max: Some(7), ..through(&[GROUP], mode) };
        assert!((7..200).contains(&found(&mut client, &table, &few).len()), "{mode:?}");
    }
    // Some columns of the rows, in another order.
    let only = ScanOptions { columns: Some(&[GROUP, 0]), ..through(&[GROUP], Mode::Auto) };
    let mut scan = client.scan(&table, &only).unwrap();
    let mut pairs = Vec::new();
    while let Some(block) = scan.next_block().unwrap() {
        pairs.extend(block.rows().map(|row| (row.i64(0).unwrap(), row.u64(1).unwrap())));
    }
    drop(scan);
    assert_eq!(pairs, by_group(&all).iter().map(|(id, group, _)| (*group, *id)).collect::<Vec<_>>());
}

#[test]
fn an_index_of_several_columns_is_ranged_by_the_first_of_them() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    let rows: Vec<Found> = (0..300).map(|id| (id, id as i64 % 3, Some(format!("{}", 1000 - id)))).collect();
    put(&mut client, &table, PutMode::Insert, &rows);
    create(&mut client, &table, &[GROUP, NOTE]);
    let one = [ValueRef::Int64(1)];
    let options =
        ScanOptions { from: Bound::Included(&one), to: Bound::Included(&one), ..through(&[GROUP, NOTE], Mode::Auto) };
    let mut expected: Vec<Found> = rows.iter().filter(|row| row.1 == 1).cloned().collect();
    expected.sort_by(|a, b| a.2.cmp(&b.2));
    assert_eq!(found(&mut client, &table, &options), expected);
    let exact = [ValueRef::Int64(1), ValueRef::Utf8("900")];
    let options = ScanOptions { from: Bound::Included(&exact), to: Bound::Included(&exact), ..options };
    assert_eq!(found(&mut client, &table, &options), [(100, 1, Some("900".into()))]);
}

/// Batches of puts of each kind and deletes, some of them refused, against a map.
#[test]
fn entries_follow_every_kind_of_change() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    create(&mut client, &table, &[GROUP]);
    create(&mut client, &table, &[NOTE, GROUP]);
    let (mut rows, mut seed) = (Rows::new(), 7_u64);
    let mut below = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    for round in 0..120 {
        let mut batch: Vec<Found> = Vec::new();
        for _ in 0..1 + below(70) {
            // Few keys, so that one batch has some of them twice.
            let note = (below(3) > 0).then(|| format!("{}", below(5)));
            batch.push((below(60), below(4) as i64, note));
        }
        let mode = [PutMode::Upsert, PutMode::Insert, PutMode::Update][below(3) as usize];
        let mut applied = 0;
        for (id, group, note) in batch.iter().cloned() {
            let goes = match mode {
                PutMode::Upsert => true,
                PutMode::Insert => !rows.contains_key(&id),
                PutMode::Update => rows.contains_key(&id),
            };
            if goes {
                applied += 1;
                rows.insert(id, (group, note));
            }
        }
        assert_eq!(put(&mut client, &table, mode, &batch), applied, "round {round}");
        for _ in 0..below(20) {
            let id = below(60);
            assert_eq!(client.delete(&table, &[ValueRef::UInt64(id)]).unwrap(), rows.remove(&id).is_some());
        }
        let mode = ALL_MODES[round % ALL_MODES.len()];
        assert_eq!(found(&mut client, &table, &through(&[GROUP], mode)), by_group(&rows), "round {round}");
        let mut expected = by_group(&rows);
        expected.sort_by(|a, b| (&a.2, a.1, a.0).cmp(&(&b.2, b.1, b.0)));
        assert_eq!(found(&mut client, &table, &through(&[NOTE, GROUP], mode)), expected, "round {round}");
    }
}

/// Writers of the same rows, and an index that comes while they write: rows that nobody touches come exactly once, those of
/// others with values that they had, and in the end every row is found by what it is.
#[test]
fn rows_that_nobody_changes_come_exactly_once_while_others_write() {
    const STILL: u64 = 400;
    const MOVING: u64 = 40;
    let bench = Bench::with(ServerOptions { workers: 3, ..ServerOptions::default() });
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    // Ids of rows that stay, and between them those of rows that move between groups, come and go.
    let still: Vec<Found> = (0..STILL).map(|n| (2 * n, n as i64 % 10, Some(format!("{n}")))).collect();
    put(&mut client, &table, PutMode::Insert, &still);
    let (ended, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut expected = still;
    expected.sort_by_key(|(id, group, _)| (*group, *id));
    std::thread::scope(|scope| {
        for writer in 0..3_u64 {
            let (bench, table, ended, changes) = (&bench, &table, &ended, &changes);
            scope.spawn(move || {
                let mut client = bench.client();
                let mut turn = writer;
                while !ended.load(Ordering::Relaxed) {
                    turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let id = 2 * ((turn >> 33) % MOVING) + 1;
                    if turn >> 62 == 0 {
                        client.delete(table, &[ValueRef::UInt64(id)]).unwrap();
                    } else {
                        let group = (turn >> 40) as i64 % 10;
                        // The note says the group: a torn or stale row would not agree.
                        let row = |id| (id, group, Some(format!("group {group}")));
                        put(&mut client, table, PutMode::Upsert, &[row(id), row(((id + 14) % (2 * MOVING)) | 1)]);
                    }
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        create(&mut client, &table, &[GROUP]);
        for round in 0..60 {
            let mode = ALL_MODES[round % ALL_MODES.len()];
            let (low, high) = ([ValueRef::Int64(2)], [ValueRef::Int64(7)]);
            let options = match round % 2 {
                0 => through(&[GROUP], mode),
                _ => ScanOptions { from: Bound::Included(&low), to: Bound::Included(&high), ..through(&[GROUP], mode) },
            };
            let rows = found(&mut client, &table, &options);
            assert!(rows.is_sorted_by_key(|row| row.1), "{mode:?}");
            let (stay, moved): (Vec<Found>, Vec<Found>) = rows.into_iter().partition(|row| row.0 % 2 == 0);
            let wanted: Vec<Found> =
                expected.iter().filter(|row| round % 2 == 0 || (2..=7).contains(&row.1)).cloned().collect();
            assert_eq!(stay, wanted, "{mode:?}, round {round}");
            assert!(moved.iter().all(|row| row.2 == Some(format!("group {}", row.1))), "{moved:?}");
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(changes.load(Ordering::Relaxed) > 0);
    let rows: Rows = found(&mut client, &table, &ScanOptions::default())
        .into_iter()
        .map(|(id, group, note)| (id, (group, note)))
        .collect();
    assert_eq!(found(&mut client, &table, &through(&[GROUP], Mode::Auto)), by_group(&rows));
}

#[test]
fn what_is_no_index_is_refused_by_name() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    let mut told = |columns: &[usize]| refused(client.create_index(&table, columns, |_, _| {}).unwrap_err());
    assert!(told(&[7]).1.contains("no column 7"), "{:?}", told(&[7]));
    assert!(told(&[GROUP, NOTE, GROUP]).1.contains("column \"group\" is named twice"));
    assert!(told(&[]).1.contains("1 to 16 columns"));
    assert!(told(&[0]).1.contains("order of id already"), "{:?}", told(&[0]));
    create(&mut client, &table, &[GROUP]);
    let twice = refused(client.create_index(&table, &[GROUP], |_, _| {}).unwrap_err());
    assert_eq!(twice.0, FaultCode::TableExists);
    assert!(twice.1.contains("has an index on group already"), "{}", twice.1);
    let none = refused(client.drop_index(&table, &[NOTE]).unwrap_err()).1;
    assert!(none.contains("no index on note; there are: group"), "{none}");
    let mut scan = client.scan(&table, &through(&[NOTE], Mode::Auto)).unwrap();
    assert!(refused(scan.next_block().unwrap_err()).1.contains("no index on note"));
    drop(scan);
    // A bound of another type is refused before it is sent.
    let text = [ValueRef::Utf8("x")];
    let options = ScanOptions { from: Bound::Included(&text), ..through(&[GROUP], Mode::Auto) };
    assert!(matches!(client.scan(&table, &options), Err(ClientError::Key(_))));
    client.drop_index(&table, &[GROUP]).unwrap();
    assert!(client.indexes(&table).unwrap().is_empty());
    let mut scan = client.scan(&table, &through(&[GROUP], Mode::Auto)).unwrap();
    assert!(refused(scan.next_block().unwrap_err()).1.contains("it has none; create one"));
    drop(scan);
    for columns in 1..=8_usize {
        // Orders of columns are different indexes.
        let orders: [&[usize]; 8] = [&[1], &[2], &[1, 2], &[2, 1], &[1, 0], &[2, 0], &[0, 1], &[0, 2]];
        create(&mut client, &table, orders[columns - 1]);
    }
    assert!(refused(client.create_index(&table, &[0, 1, 2], |_, _| {}).unwrap_err()).1.contains("has 8 indexes"));
    bench.client().drop_table("t").unwrap();
    assert_eq!(refused(client.create_index(&table, &[GROUP], |_, _| {}).unwrap_err()).0, FaultCode::UnknownTable);
    assert_eq!(refused(client.indexes(&table).unwrap_err()).0, FaultCode::UnknownTable);
}

#[test]
fn an_index_that_cannot_be_made_leaves_the_table_as_it_was() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    let mut rows: Vec<Found> = (0..5000).map(|id| (id, 0, Some("short".into()))).collect();
    rows[4321].2 = Some("long".repeat(400));
    put(&mut client, &table, PutMode::Insert, &rows);
    let (code, text) = refused(client.create_index(&table, &[NOTE], |_, _| {}).unwrap_err());
    assert_eq!(code, FaultCode::BadRow);
    assert!(text.contains("index on note") && text.contains("1024"), "{text}");
    assert!(client.indexes(&table).unwrap().is_empty());
    // Rows that such an index could not take are put as before.
    put(&mut client, &table, PutMode::Insert, &[(9000, 1, Some("long".repeat(500)))]);
    assert_eq!(found(&mut client, &table, &ScanOptions::default()).len(), 5001);
    // And where an index is, one that it cannot take is refused, alone, and changes nothing.
    for id in [4321, 9000] {
        client.delete(&table, &[ValueRef::UInt64(id)]).unwrap();
    }
    create(&mut client, &table, &[GROUP]);
    create(&mut client, &table, &[NOTE]);
    let mut batch = table.batch();
    for (id, note) in [(1, "first"), (2, &*"x".repeat(2000)), (3, "third")] {
        batch.push(&[ValueRef::UInt64(id), ValueRef::Int64(8), ValueRef::Utf8(note)]).unwrap();
    }
    let applied = client.put(&table, PutMode::Upsert, &batch).unwrap();
    assert_eq!((applied.rows, applied.applied, applied.failed), (3, 2, vec![(1, FaultCode::BadRow)]));
    let eight = [ValueRef::Int64(8)];
    let options = ScanOptions { from: Bound::Included(&eight), ..through(&[GROUP], Mode::Auto) };
    assert_eq!(found(&mut client, &table, &options).iter().map(|row| row.0).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(found(&mut client, &table, &through(&[NOTE], Mode::Auto)).len(), 4999);
}

#[test]
fn an_index_without_memory_is_refused_and_its_client_may_go_meanwhile() {
    let bench = Bench::with(ServerOptions { memory_max: 8 << 20, segment_bytes: 2 << 20, ..ServerOptions::default() });
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    let rows: Vec<Found> = (0..60_000).map(|id| (id, -(id as i64), Some("a note of some bytes".into()))).collect();
    let mut there = 0;
    for some in rows.chunks(10_000) {
        there += u64::from(put(&mut client, &table, PutMode::Insert, some));
    }
    let (code, text) = refused(client.create_index(&table, &[GROUP, NOTE], |_, _| {}).unwrap_err());
    assert_eq!(code, FaultCode::Exhausted, "{text}");
    assert!(text.contains("--memory"), "{text}");
    assert!(client.indexes(&table).unwrap().is_empty());
    assert_eq!(client.table("t").unwrap().info().rows, there);
    // What the index took is free again.
    for id in 0..1000 {
        assert!(client.delete(&table, &[ValueRef::UInt64(id)]).unwrap());
    }
    assert_eq!(put(&mut client, &table, PutMode::Insert, &rows[..100]), 100);
}

#[test]
fn a_scan_through_an_index_that_is_dropped_comes_to_its_end() {
    let bench = Bench::new();
    let (mut client, mut other) = (bench.client(), bench.client());
    let table = client.create_table("t", &schema()).unwrap();
    let rows: Vec<Found> = (0..20_000).map(|id| (id, id as i64 % 7, Some("x".repeat(100)))).collect();
    put(&mut client, &table, PutMode::Insert, &rows);
    create(&mut client, &table, &[GROUP]);
    let mut scan = client.scan(&table, &through(&[GROUP], Mode::Copy)).unwrap();
    let mut count = scan.next_block().unwrap().unwrap().len();
    other.drop_index(&table, &[GROUP]).unwrap();
    while let Some(block) = scan.next_block().unwrap() {
        count += block.len();
    }
    assert_eq!(count, 20_000);
}
