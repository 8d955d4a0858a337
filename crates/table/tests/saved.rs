//! Directories that released versions left are read, every type of column in them. `version-1` was written by
//! `left_by_this_version` below: `cargo test -p overside-table --test saved -- --ignored`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use overside_shm::ShmProvider;
use overside_table::client::{Client, RemoteTable, ScanOptions};
use overside_table::row::{RowView, Value, ValueRef};
use overside_table::schema::{Column, ColumnType, Schema, TimeUnit};
use overside_table::server::parts::World;
use overside_table::server::{DataOptions, SavedOptions, SavedTables, Server, ServerOptions};
use overside_table::wire::PutMode;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/version-1")
}

/// A column of each type behind the key's two; all but the key may be null.
fn every_type() -> Schema {
    let timestamp = |unit, zone: Option<&str>| ColumnType::Timestamp { unit, zone: zone.map(Into::into) };
    let types = [
        ColumnType::Int8,
        ColumnType::Int16,
        ColumnType::Int32,
        ColumnType::Int64,
        ColumnType::UInt8,
        ColumnType::UInt16,
        ColumnType::UInt32,
        ColumnType::UInt64,
        ColumnType::Float32,
        ColumnType::Float64,
        ColumnType::Decimal128 { precision: 20, scale: 4 },
        ColumnType::Date32,
        timestamp(TimeUnit::Second, None),
        timestamp(TimeUnit::Nanosecond, Some("Europe/Berlin")),
        ColumnType::Boolean,
        ColumnType::FixedBinary(5),
        ColumnType::Utf8,
        ColumnType::Binary,
    ];
    let key = [Column::new("place", ColumnType::Utf8), Column::new("id", ColumnType::Int32)];
    let others = types.into_iter().enumerate().map(|(at, ty)| Column::nullable(format!("c{at}"), ty));
    Schema::with_key(key.into_iter().chain(others).collect(), &["place", "id"]).unwrap()
}

/// The row of every type with this number, in a version of it. Some values are null, and a few rows are longer than a page.
fn row(id: i32, version: i32) -> Vec<Value> {
    let n = i64::from(id) * 7 - 90 + i64::from(version);
    let long = if id % 16 == 3 { 20_000 } else { (id % 9) as usize };
    let mut row = vec![
        Value::Utf8(["here", "there"][id as usize % 2].into()),
        Value::Int32(id),
        Value::Int8(n as i8),
        Value::Int16(n as i16),
        Value::Int32(n as i32),
        Value::Int64(n << 40),
        Value::UInt8(n as u8),
        Value::UInt16(n as u16),
        Value::UInt32(n as u32),
        Value::UInt64(n as u64),
        Value::Float32(n as f32 / 8.0),
        Value::Float64(n as f64 / 1024.0),
        Value::Decimal128(i128::from(n) * 1_000_000_007),
        Value::Date32(n as i32),
        Value::Timestamp(n),
        Value::Timestamp(n * 1_000_000_007),
        Value::Boolean(n % 2 == 0),
        Value::FixedBinary(vec![n as u8; 5]),
        Value::Utf8(char::from(b'a' + (id % 26) as u8).to_string().repeat(long)),
        Value::Binary(vec![n as u8; id as usize % 7]),
    ];
    let null = 2 + (id as usize * 5) % 24;
    if null < row.len() {
        row[null] = Value::Null;
    }
    row
}

/// What is in the table `every`: from the checkpoint, from the log behind it, and from both.
fn expected() -> BTreeMap<(String, i32), Vec<Value>> {
    let version = |id: i32| match id {
        _ if id % 10 == 5 => None,
        _ if id >= 40 || id % 10 == 1 => Some(2),
        _ => Some(1),
    };
    let rows = (0..48).filter_map(|id| Some(row(id, version(id)?)));
    rows.map(|row| (key_of(&row), row)).collect()
}

fn key_of(row: &[Value]) -> (String, i32) {
    match row {
        [Value::Utf8(place), Value::Int32(id), ..] => (place.to_string(), *id),
        _ => panic!("{row:?} has no key"),
    }
}

fn put(client: &mut Client, table: &RemoteTable, rows: &[Vec<Value>]) {
    let mut batch = table.batch();
    for row in rows {
        let values: Vec<ValueRef<'_>> = row.iter().map(Value::as_ref).collect();
        batch.push(&values).unwrap();
    }
    assert_eq!(client.put(table, PutMode::Upsert, &batch).unwrap().applied as usize, rows.len());
}

fn values(row: &RowView<'_>) -> Vec<Value> {
    (0..row.layout().columns().len()).map(|column| row.value(column).unwrap().to_owned()).collect()
}

fn start(name: &str, dir: &Path) -> (Server, Client) {
    let name = format!("table-saved-{name}-{}", std::process::id());
    let options = ServerOptions {
        workers: 1,
        data: Some(DataOptions::new(dir)),
        world: World { log_segment_bytes: Some(128 << 10), ..World::default() },
        ..ServerOptions::default()
    };
    let server = Server::start(ShmProvider::new().unwrap(), &[&name], options).unwrap();
    let client = Client::connect(ShmProvider::new().unwrap(), &name).unwrap();
    (server, client)
}

/// Writes the committed directory anew.
#[test]
#[ignore = "writes the directory that the other test reads"]
fn left_by_this_version() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("data");
    let (server, mut client) = start("write", &dir);
    let every = client.create_table("every", &every_type()).unwrap();
    let simple = Schema::with_key(vec![Column::new("id", ColumnType::UInt64)], &["id"]).unwrap();
    let dropped = client.create_table("dropped", &simple).unwrap();
    client.create_table("empty", &simple).unwrap();
    put(&mut client, &dropped, &[vec![Value::UInt64(1)]]);
    let rows: Vec<Vec<Value>> = (0..40).map(|id| row(id, 1)).collect();
    for rows in rows.chunks(10) {
        put(&mut client, &every, rows);
    }
    assert_eq!(client.checkpoint().unwrap().tables, 3);
    for id in (0..48).filter(|id| *id >= 40 || *id % 10 == 1) {
        put(&mut client, &every, &[row(id, 2)]);
    }
    for id in (5..48).step_by(10) {
        let row = row(id, 1);
        assert!(client.delete(&every, &[row[0].as_ref(), row[1].as_ref()]).unwrap());
    }
    client.drop_table("dropped").unwrap();
    let late = client.create_table("late", &simple).unwrap();
    put(&mut client, &late, &[vec![Value::UInt64(7)], vec![Value::UInt64(8)]]);
    drop((client, server));
    let _ = fs::remove_dir_all(folder());
    copy(&dir, &folder(), &|name| !name.ends_with(".spare"));
}

fn copy(from: &Path, to: &Path, wanted: &dyn Fn(&str) -> bool) {
    fs::create_dir_all(to).unwrap();
    let private = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    // Whatever rights the sources were checked out with.
    private(to, 0o755);
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(name), wanted);
        } else if wanted(name.to_str().unwrap()) {
            fs::copy(entry.path(), to.join(&name)).unwrap();
            private(&to.join(&name), 0o644);
        }
    }
}

/// Read without a server, then served, changed and read again.
#[test]
fn what_version_1_left_is_read_and_served() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("data");
    copy(&folder(), &dir, &|_| true);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    let expected = expected();
    assert!(expected.values().any(|row| row.contains(&Value::Null)), "nulls are there, too");
    let read = || {
        let saved = SavedTables::open(&dir, &SavedOptions::default()).unwrap();
        let tables: Vec<(String, u64)> = saved.tables().into_iter().map(|table| (table.name, table.rows)).collect();
        let every = saved.table("every").unwrap();
        assert_eq!(every.described().schema(), &every_type());
        let blocks: Vec<_> = every.rows(&ScanOptions::default()).unwrap().map(Result::unwrap).collect();
        let rows: Vec<Vec<Value>> = blocks.iter().flat_map(|block| block.rows().map(|row| values(&row))).collect();
        (tables, rows.into_iter().map(|row| (key_of(&row), row)).collect::<BTreeMap<_, _>>())
    };
    let (tables, found) = read();
    assert_eq!(tables, [("empty".into(), 0), ("every".into(), 43), ("late".into(), 2)]);
    assert_eq!(found, expected);
    let (server, mut client) = start("read", &dir);
    let every = client.table("every").unwrap();
    let mut scan = client.scan(&every, &ScanOptions::default()).unwrap();
    let mut served = BTreeMap::new();
    while let Some(block) = scan.next_block().unwrap() {
        served.extend(block.rows().map(|row| values(&row)).map(|row| (key_of(&row), row)));
    }
    drop(scan);
    assert_eq!(served, expected);
    put(&mut client, &every, &[row(0, 3)]);
    // No number of a table comes again.
    let numbers: Vec<u32> = client.tables().unwrap().into_iter().map(|table| table.id).collect();
    client.create_table("dropped", &every_type()).unwrap();
    let new = client.tables().unwrap().into_iter().find(|table| table.name == "dropped").unwrap().id;
    assert!(numbers.iter().all(|number| *number < new), "{numbers:?}, and now {new}");
    drop((client, server));
    let mut changed = expected.clone();
    changed.insert(key_of(&row(0, 3)), row(0, 3));
    assert_eq!(read().1, changed);
}

/// A damaged page of the checkpoint, read with and without salvage: a row of it may be lost, none is wrong.
#[test]
fn of_a_damaged_checkpoint_only_what_is_sound_is_believed() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("data");
    copy(&folder(), &dir, &|_| true);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    // The table with rows: the longest file of pages.
    let files = fs::read_dir(dir.join("checkpoint")).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|path| path.extension().is_some_and(|end| end == "pages"));
    let file = pages.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let sound = fs::read(&file).unwrap();
    let expected = expected();
    let mut lost = 0;
    // A bit of a value's text, where a page shows nothing of it but its checksum.
    let texts = (0..sound.len() - 8)
        .filter(|at| sound[*at..at + 8].iter().all(|byte| *byte == sound[*at] && byte.is_ascii_lowercase()));
    let places: Vec<usize> = texts.step_by(4001).chain([4096 + 100, 4096 + 700]).collect();
    assert!(places.len() > 4, "{places:?}");
    for at in places {
        let mut damaged = sound.clone();
        damaged[at] ^= 1;
        fs::write(&file, &damaged).unwrap();
        assert!(SavedTables::open(&dir, &SavedOptions::default()).is_err(), "byte {at} is damaged");
        let saved = SavedTables::open(&dir, &SavedOptions { salvage: true, ..SavedOptions::default() }).unwrap();
        let losses = &saved.recovery().losses;
        assert!(losses.iter().any(|line| line.contains(".pages")), "{losses:?}");
        let every = saved.table("every").unwrap();
        let blocks: Vec<_> = every.rows(&ScanOptions::default()).unwrap().map(Result::unwrap).collect();
        let rows: Vec<Vec<Value>> = blocks.iter().flat_map(|block| block.rows().map(|row| values(&row))).collect();
        for row in &rows {
            // A lost page takes the row's newer state with it only if the log does not have it.
            assert_eq!(Some(row), expected.get(&key_of(row)), "byte {at}");
        }
        lost += expected.len() - rows.len();
    }
    assert!(lost > 0, "no damage cost a row");
}
