//! A server whose disk does as its test says: what it holds back, and what it refuses.

mod crashed;
#[path = "../halting/mod.rs"]
mod halting;

use std::io;
use std::ops::Bound;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use halting::until;
use overside_disk::{BLOCK_BYTES, Completion, Disk, Entry, FileId, IoPath, Open, Request};
use overside_log::format::{Footer, parse_part, write_page};
use overside_log::{Manifest, Page};
use overside_shm::ShmProvider;
use overside_table::client::{Client, ClientError, RemoteTable, ScanOptions};
use overside_table::row::ValueRef;
use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::server::parts::{OpenDisk, World};
use overside_table::server::{DataOptions, OnFailure, Server, ServerOptions};
use overside_table::wire::{Durability, FaultCode, PutMode};

/// What a disk does for the time being.
#[derive(Debug, Default)]
struct Switches {
    /// Nothing that was pushed completes.
    stuck: AtomicBool,
    /// Writes fail.
    broken: AtomicBool,
    /// There is no room for another file.
    full: AtomicBool,
    /// Syncs of the log wait.
    unsynced: AtomicBool,
}

/// The system's files, behind switches.
#[derive(Debug)]
struct Switched {
    disk: Box<dyn Disk>,
    switches: Arc<Switches>,
    /// Files of the log.
    log: Vec<FileId>,
    /// Syncs of them that wait.
    waiting: Vec<(u64, Request)>,
}

impl Switched {
    fn new(disk: Box<dyn Disk>, switches: Arc<Switches>) -> Switched {
        Switched { disk, switches, log: Vec::new(), waiting: Vec::new() }
    }
}

impl Disk for Switched {
    fn path(&self) -> &Path {
        self.disk.path()
    }
    fn way(&self) -> IoPath {
        self.disk.way()
    }
    fn list(&mut self, folder: &str) -> io::Result<Vec<Entry>> {
        self.disk.list(folder)
    }
    fn create_folder(&mut self, name: &str) -> io::Result<()> {
        self.disk.create_folder(name)
    }
    fn open(&mut self, name: &str, how: Open) -> io::Result<FileId> {
        if matches!(how, Open::Create { .. }) && self.switches.full.load(Ordering::Acquire) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = self.disk.open(name, how)?;
        self.log.extend(name.starts_with("log/").then_some(file));
        Ok(file)
    }
    fn close(&mut self, file: FileId) {
        self.log.retain(|log| *log != file);
        self.disk.close(file);
    }
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.disk.unlink(name)
    }
    fn length(&mut self, file: FileId) -> io::Result<u64> {
        self.disk.length(file)
    }
    fn lock(&mut self, file: FileId, wait: Duration) -> io::Result<bool> {
        self.disk.lock(file, wait)
    }
    fn space(&mut self) -> io::Result<u64> {
        if self.switches.full.load(Ordering::Acquire) { Ok(0) } else { self.disk.space() }
    }
    fn push(&mut self, token: u64, request: Request) {
        let waits = matches!(&request, Request::Sync { file } if self.log.contains(file));
        if waits && self.switches.unsynced.load(Ordering::Acquire) {
            self.waiting.push((token, request));
        } else {
            self.disk.push(token, request);
        }
    }
    fn submit(&mut self) -> io::Result<()> {
        self.disk.submit()
    }
    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        if self.switches.stuck.load(Ordering::Acquire) {
            return Ok(());
        }
        if !self.waiting.is_empty() && !self.switches.unsynced.load(Ordering::Acquire) {
            self.waiting.drain(..).for_each(|(token, request)| self.disk.push(token, request));
            self.disk.submit()?;
        }
        let before = done.len();
        self.disk.poll(done)?;
        if self.switches.broken.load(Ordering::Acquire) {
            for completion in &mut done[before..] {
                if matches!(completion.request, Request::Write { .. }) {
                    completion.result = Err(io::Error::other("planted"));
                }
            }
        }
        Ok(())
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.disk.fd()
    }
    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.disk.wait(timeout)
    }
    fn another(&self) -> io::Result<Box<dyn Disk>> {
        Ok(Box::new(Switched::new(self.disk.another()?, self.switches.clone())))
    }
}

/// A server over such a disk.
struct Bench {
    switches: Arc<Switches>,
    failures: Arc<Mutex<Vec<String>>>,
    name: String,
    durability: Durability,
    checkpoint_bytes: u64,
    server: Option<Server>,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(called: &str) -> Bench {
        Bench::with(called, Durability::Sync)
    }

    fn with(called: &str, durability: Durability) -> Bench {
        let mut bench = Bench {
            switches: Arc::default(),
            failures: Arc::default(),
            name: format!("table-durable-{called}-{}", std::process::id()),
            durability,
            checkpoint_bytes: DataOptions::new("").checkpoint_bytes,
            server: None,
            folder: tempfile::tempdir().unwrap(),
        };
        bench.start();
        bench
    }

    fn start(&mut self) {
        let (switches, failures) = (self.switches.clone(), self.failures.clone());
        let disk = OpenDisk::new(move |path| Ok(Box::new(Switched::new(overside_disk::open(path)?, switches.clone()))));
        let options = ServerOptions {
            workers: 2,
            on_failure: Some(OnFailure::new(move |why| failures.lock().unwrap().push(why.to_owned()))),
            data: Some(DataOptions {
                durability: self.durability,
                checkpoint_bytes: self.checkpoint_bytes,
                ..DataOptions::new(self.folder.path().join("data"))
            }),
            world: World { disk: Some(disk), log_segment_bytes: Some(1 << 20), ..World::default() },
            ..ServerOptions::default()
        };
        self.server = Some(Server::start(ShmProvider::new().unwrap(), &[&self.name], options).unwrap());
    }

    fn client(&self) -> Client {
        Client::connect(ShmProvider::new().unwrap(), &self.name).unwrap()
    }

    /// Whether a call on a connection of its own comes back within some time; and what it says in the end, once `then` was called.
    fn waits<T: Send>(&self, call: impl FnOnce(&mut Client) -> T + Send, then: impl FnOnce()) -> (bool, T) {
        let mut client = self.client();
        let back = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let called = scope.spawn(|| {
                let said = call(&mut client);
                back.store(true, Ordering::Release);
                said
            });
            std::thread::sleep(Duration::from_millis(50));
            let waits = !back.load(Ordering::Acquire);
            then();
            (waits, called.join().unwrap())
        })
    }
}

fn schema() -> Schema {
    let columns = vec![Column::new("id", ColumnType::UInt64), Column::new("text", ColumnType::Utf8)];
    Schema::with_key(columns, &["id"]).unwrap()
}

fn put(client: &mut Client, table: &RemoteTable, id: u64, text: &str) -> Result<u32, ClientError> {
    let mut batch = table.batch();
    batch.push(&[ValueRef::UInt64(id), ValueRef::Utf8(text)]).unwrap();
    Ok(client.put(table, PutMode::Upsert, &batch)?.applied)
}

fn get(client: &mut Client, table: &RemoteTable, id: u64) -> Option<String> {
    let row = client.get(table, &[ValueRef::UInt64(id)]).unwrap()?;
    Some(row.view().str(1).unwrap().unwrap().to_owned())
}

fn count(client: &mut Client, table: &RemoteTable) -> usize {
    let mut scan = client.scan(table, &ScanOptions::default()).unwrap();
    let mut rows = 0;
    while let Some(block) = scan.next_block().unwrap() {
        rows += block.rows().count();
    }
    rows
}

/// What a client is shown, as text.
type Show<'s> = &'s (dyn Fn(&mut Client) -> String + Sync);

/// A put, and everything that shows it, waits for the disk; what shows nothing new does not.
/// Faults: refusal-not-held
#[test]
fn nothing_is_told_or_shown_before_it_is_on_the_disk() {
    let bench = Bench::new("held");
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    let other = client.create_table("other", &schema()).unwrap();
    put(&mut client, &table, 1, "old").unwrap();
    put(&mut client, &other, 1, "old").unwrap();
    client.create_index(&table, &[1], |_, _| {}).unwrap();
    let stick = |stuck| bench.switches.stuck.store(stuck, Ordering::Release);
    std::thread::scope(|scope| {
        // Each of these starts with a change that the disk does not take.
        let shows: [(&str, Show<'_>); 7] = [
            ("a get", &|client| get(client, &table, 2).unwrap_or_default()),
            ("a get of nothing beside it", &|client| format!("{:?}", get(client, &table, 3))),
            ("a scan", &|client| count(client, &table).to_string()),
            ("a refusal", &|client| {
                let mut batch = table.batch();
                batch.push(&[ValueRef::UInt64(2), ValueRef::Utf8("twice")]).unwrap();
                format!("{:?}", client.put(&table, PutMode::Insert, &batch).unwrap().failed)
            }),
            ("a delete of what is not there", &|client| {
                client.delete(&table, &[ValueRef::UInt64(9)]).unwrap().to_string()
            }),
            ("what is not behind an index", &|client| {
                let last = [ValueRef::Utf8("z")];
                let from = Bound::Included(&last[..]);
                let options = ScanOptions { from, index: Some(&[1]), ..ScanOptions::default() };
                let mut scan = client.scan(&table, &options).unwrap();
                scan.next_block().unwrap().is_some().to_string()
            }),
            ("the list of tables", &|client| client.tables().unwrap().len().to_string()),
        ];
        let expected = ["new", "None", "2", "[(0, Duplicate)]", "false", "false", "2"];
        for ((what, show), expected) in shows.into_iter().zip(expected) {
            stick(true);
            let position = |client: &mut Client| client.status().unwrap().unwrap().log_position;
            let before = position(&mut client);
            let mut writer = bench.client();
            let table = &table;
            let writing = scope.spawn(move || put(&mut writer, table, 2, "new"));
            // It is in the tree at once; of another table nothing is held meanwhile.
            until("it is in the log", || position(&mut client) > before);
            assert_eq!(get(&mut client, &other, 1).as_deref(), Some("old"));
            assert!(!writing.is_finished(), "the put itself waits");
            let (waits, said) = bench.waits(|client| show(client), || stick(false));
            assert!(waits, "{what} was shown before the change was on the disk");
            assert_eq!(said, expected, "{what}");
            writing.join().unwrap().unwrap();
            client.delete(table, &[ValueRef::UInt64(2)]).unwrap();
        }
    });
}

/// In `group` a create or a drop is acknowledged before it is on the disk. A checkpoint that shows it counts when it is there:
/// a power loss would else leave it, and not what was acknowledged before it.
/// Faults: tables-not-covered, indexes-not-covered
#[test]
fn a_checkpoint_waits_until_what_it_shows_of_tables_is_on_the_disk() {
    let bench = Bench::with("covered", Durability::Group);
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 1, "row").unwrap();
    let unsynced = |to| bench.switches.unsynced.store(to, Ordering::Release);
    let changes: [(&str, Show<'_>); 4] = [
        ("a create", &|client| client.create_table("u", &schema()).unwrap().info().name.clone()),
        ("a drop", &|client| format!("{:?}", client.drop_table("u").unwrap())),
        ("an index", &|client| format!("{:?}", client.create_index(&table, &[1], |_, _| {}).is_ok())),
        ("an index that goes", &|client| format!("{:?}", client.drop_index(&table, &[1]).unwrap())),
    ];
    for (what, change) in changes {
        // All that was changed before is on the disk.
        client.checkpoint().unwrap();
        unsynced(true);
        change(&mut client);
        let (mut asks, complete) = (bench.client(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                asks.checkpoint().unwrap();
                complete.store(true, Ordering::Release);
            });
            std::thread::sleep(Duration::from_millis(300));
            let early = complete.load(Ordering::Acquire);
            unsynced(false);
            assert!(!early, "{what} was shown by a checkpoint that counts before it was on the disk");
        });
    }
}

/// A create and a drop are changes like any other.
#[test]
fn tables_come_and_go_with_the_log() {
    let mut bench = Bench::new("tables");
    let stuck = bench.switches.clone();
    let stick = |to| stuck.stuck.store(to, Ordering::Release);
    stick(true);
    let (waits, created) = bench.waits(|client| client.create_table("t", &schema()).is_ok(), || stick(false));
    assert!(waits && created);
    stick(true);
    let (waits, dropped) = bench.waits(|client| client.drop_table("t").is_ok(), || stick(false));
    assert!(waits && dropped);
    bench.server = None;
    bench.start();
    assert!(bench.client().tables().unwrap().is_empty());
    let indexed = |client: &mut Client| {
        let table = client.table("t").unwrap();
        client.create_index(&table, &[1], |_, _| {}).is_ok()
    };
    bench.client().create_table("t", &schema()).unwrap();
    stick(true);
    let (waits, created) = bench.waits(indexed, || stick(false));
    assert!(waits && created);
    stick(true);
    let unindexed = |client: &mut Client| {
        let table = client.table("t").unwrap();
        client.drop_index(&table, &[1]).is_ok()
    };
    let (waits, dropped) = bench.waits(unindexed, || stick(false));
    assert!(waits && dropped);
}

#[test]
fn a_write_that_fails_ends_the_server_and_acknowledges_nothing() {
    let mut bench = Bench::new("failed");
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 1, "before").unwrap();
    bench.switches.broken.store(true, Ordering::Release);
    let switches = bench.switches.clone();
    let failures = bench.failures.clone();
    let server = bench.server.take();
    let (waits, said) = bench.waits(
        |client| put(client, &table, 2, "lost").map_err(|error| error.to_string()),
        || {
            until("its owner is told", || !failures.lock().unwrap().is_empty());
            // Nothing is tried again, though it would succeed.
            switches.broken.store(false, Ordering::Release);
            std::thread::sleep(Duration::from_millis(100));
            drop(server);
        },
    );
    // The group that an idle server writes may fail first; then the put is refused at once, and told why.
    assert!(said.as_ref().is_err_and(|why| waits || why.contains("planted")), "{waits} {said:?}");
    let told = failures.lock().unwrap().join("\n");
    assert!(told.contains("planted") && told.contains("failed") && told.lines().count() == 1, "{told}");
    bench.start();
    let mut client = bench.client();
    let table = client.table("t").unwrap();
    assert_eq!(get(&mut client, &table, 1).as_deref(), Some("before"));
}

/// Puts and creates are refused; gets, scans and deletes go on; with room again all does.
#[test]
fn a_full_disk_is_no_failure() {
    let bench = Bench::new("full");
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    (0..100).for_each(|id| assert_eq!(put(&mut client, &table, id, "small").unwrap(), 1));
    bench.switches.full.store(true, Ordering::Release);
    let text = "x".repeat(3000);
    let mut last = 1000;
    let fill = |client: &mut Client, last: &mut u64, text: &str| loop {
        match put(client, &table, *last, text) {
            Ok(_) => *last += 1,
            Err(error) => break error,
        }
        assert!(*last < 100_000, "it is never full");
    };
    // There is still room for what is smaller.
    fill(&mut client, &mut last, &text);
    let refusal = fill(&mut client, &mut last, "small");
    let ClientError::Refused { code: FaultCode::DiskFull, text: said } = &refusal else { panic!("{refusal}") };
    assert!(said.contains("data") && said.contains("bytes"), "{said}");
    assert_eq!(get(&mut client, &table, last), None, "what was refused is not there");
    assert_eq!(count(&mut client, &table), 100 + (last - 1000) as usize);
    let created = client.create_table("u", &schema());
    assert!(matches!(created, Err(ClientError::Refused { code: FaultCode::DiskFull, .. })), "{created:?}");
    for id in 0..5 {
        assert!(client.delete(&table, &[ValueRef::UInt64(id)]).unwrap(), "from a reserve");
    }
    bench.switches.full.store(false, Ordering::Release);
    until("with room again all goes on", || put(&mut client, &table, 7, "again").is_ok());
    assert!(bench.failures.lock().unwrap().is_empty());
}

/// A clean end on a full disk waits for no room, and keeps all that was acknowledged.
#[test]
fn a_server_on_a_full_disk_ends_and_keeps_what_it_acknowledged() {
    let mut bench = Bench::new("full-end");
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    bench.switches.full.store(true, Ordering::Release);
    let mut rows = 0;
    while put(&mut client, &table, rows, "small").is_ok() {
        rows += 1;
    }
    // Deletes take the reserve, too, until there is no block left.
    let mut deleted = 0;
    while client.delete(&table, &[ValueRef::UInt64(deleted)]).is_ok_and(|was_there| was_there) {
        deleted += 1;
    }
    assert!(deleted < rows, "the reserve has no end");
    drop(client);
    bench.server = None;
    assert!(bench.failures.lock().unwrap().is_empty());
    bench.switches.full.store(false, Ordering::Release);
    bench.start();
    let mut client = bench.client();
    let table = client.table("t").unwrap();
    assert_eq!(count(&mut client, &table), (rows - deleted) as usize);
}

/// What a checkpoint has comes back from it, what came later from the log; the log before it is given up.
#[test]
fn a_checkpoint_takes_the_place_of_the_log_before_it() {
    let mut bench = Bench::new("checkpoint");
    let mut client = bench.client();
    let idle = client.create_table("idle", &schema()).unwrap();
    put(&mut client, &idle, 1, "never again").unwrap();
    client.create_table("empty", &schema()).unwrap();
    client.create_table("gone", &schema()).unwrap();
    let table = client.create_table("t", &schema()).unwrap();
    let long = "x".repeat(40_000);
    let text =
        |id: u64, round: u64| if id % 50 == 7 { format!("{long}{round}") } else { format!("{id:0>100} in {round}") };
    let mut expected = std::collections::BTreeMap::new();
    for round in 0..3 {
        for id in 0..400 {
            put(&mut client, &table, id * 7 % 400, &text(id, round)).unwrap();
            expected.insert(id * 7 % 400, text(id, round));
        }
    }
    for id in (0..400).step_by(3) {
        client.delete(&table, &[ValueRef::UInt64(id)]).unwrap();
        expected.remove(&id);
    }
    let segments = |bench: &Bench| std::fs::read_dir(bench.folder.path().join("data/log")).unwrap().count();
    let before = segments(&bench);
    let first = client.checkpoint().unwrap();
    assert_eq!((first.tables, first.unchanged), (4, 0), "{first:?}");
    assert!(first.pages >= 4 && first.bytes > 200_000, "{first:?}");
    until("the log is given up", || segments(&bench) < before);
    client.drop_table("gone").unwrap();
    put(&mut client, &table, 1000, "after").unwrap();
    expected.insert(1000, "after".into());
    let second = client.checkpoint().unwrap();
    assert_eq!((second.tables, second.unchanged), (1, 2), "only one table has changed: {second:?}");
    assert!(client.status().unwrap().unwrap().since_checkpoint < 10_000);
    for id in 0..20 {
        put(&mut client, &table, id, "from the log").unwrap();
        expected.insert(id, "from the log".into());
    }
    for again in 0..2 {
        bench.server = None;
        bench.start();
        let recovery = bench.server.as_ref().unwrap().recovery().unwrap();
        assert_eq!(recovery.rows, expected.len() as u64 + 1, "{recovery:?}");
        assert!((20..40).contains(&recovery.replayed), "start {again}: only what the checkpoint lacks: {recovery:?}");
        let mut client = bench.client();
        let mut names: Vec<String> = client.tables().unwrap().into_iter().map(|table| table.name).collect();
        names.sort();
        assert_eq!(names, ["empty", "idle", "t"]);
        assert!(client.tables().unwrap().iter().any(|table| table.name == "t" && table.pages > 1));
        let table = client.table("t").unwrap();
        assert_eq!(count(&mut client, &table), expected.len());
        for (id, text) in &expected {
            assert_eq!(get(&mut client, &table, *id).as_ref(), Some(text), "row {id}");
        }
        let idle = client.table("idle").unwrap();
        assert_eq!(get(&mut client, &idle, 1).as_deref(), Some("never again"));
    }
}

/// Each start begins a segment. A server that only ever starts does not fill its disk with them.
#[test]
fn starts_without_a_change_give_the_log_behind_them_up() {
    let mut bench = Bench::new("starts");
    bench.checkpoint_bytes = 4 << 20;
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 1, "kept").unwrap();
    client.checkpoint().unwrap();
    drop(client);
    for _ in 0..16 {
        drop(bench.server.take());
        bench.start();
    }
    let log = bench.folder.path().join("data/log");
    let kept = || {
        let names = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| !name.to_string_lossy().contains('.')).count()
    };
    until("segments without records went", || kept() <= 8);
    let mut client = bench.client();
    let table = client.table("t").unwrap();
    assert_eq!(get(&mut client, &table, 1).as_deref(), Some("kept"));
}

/// Every page of the checkpoint says that it has 1,000 rows more, and every checksum fits that.
fn lie_about_rows(folder: &Path) {
    let end = |path: &Path, end: &str| path.extension().is_some_and(|extension| extension == end);
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let manifests: Vec<_> = files.filter(|path| end(path, "manifest")).collect();
    for path in manifests {
        let mut manifest = Manifest::parse(&std::fs::read(&path).unwrap()).unwrap();
        for table in &mut manifest.tables {
            let name = folder.join(format!("{:016x}.pages", table.file));
            let mut bytes = std::fs::read(&name).unwrap();
            let footer_at = table.footer_at as usize;
            let footer = &bytes[footer_at..footer_at + table.footer_bytes as usize];
            let mut footer = Footer::parse(footer, table.footer_checksum).unwrap();
            for part in &mut footer.parts {
                let (mut written, mut checksum) = (Vec::new(), 0);
                for page in parse_part(&bytes[part.at as usize..(part.at + part.bytes) as usize]) {
                    let page = page.unwrap().0;
                    let own = write_page(
                        &Page {
                            low: page.low,
                            high: page.high,
                            base: page.base,
                            rows: (page.rows.start, page.rows.end),
                            deltas: &page.deltas,
                            extents: &page.extents,
                            newest: page.newest,
                            count: page.count + 1000,
                        },
                        &mut written,
                    );
                    checksum = crc32c::crc32c_append(checksum, &own.to_le_bytes());
                }
                (part.rows, part.checksum) = (part.rows + 1000 * part.pages, checksum);
                assert_eq!(written.len() as u64, part.bytes);
                bytes[part.at as usize..][..written.len()].copy_from_slice(&written);
            }
            let (written, checksum) = footer.write();
            assert_eq!(written.len().next_multiple_of(BLOCK_BYTES), table.footer_bytes as usize);
            bytes[footer_at..].copy_from_slice(&written);
            (table.footer_checksum, table.rows) = (checksum, footer.rows());
            std::fs::write(&name, bytes).unwrap();
        }
        std::fs::write(&path, manifest.write()).unwrap();
    }
}

/// A table has the rows that are in its pages, whatever the pages say.
#[test]
fn rows_of_a_checkpoint_are_counted_and_not_believed() {
    let mut bench = Bench::new("counted");
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    let text = "x".repeat(500);
    for from in (0..4000).step_by(100) {
        let mut batch = table.batch();
        (from..from + 100).for_each(|id| batch.push(&[ValueRef::UInt64(id), ValueRef::Utf8(&text)]).unwrap());
        assert_eq!(client.put(&table, PutMode::Insert, &batch).unwrap().applied, 100);
    }
    client.checkpoint().unwrap();
    drop(client);
    bench.server = None;
    lie_about_rows(&bench.folder.path().join("data/checkpoint"));
    bench.start();
    let recovery = bench.server.as_ref().unwrap().recovery().unwrap();
    assert_eq!((recovery.rows, recovery.adopted_rows, recovery.replayed), (4000, 4000, 0), "{recovery:?}");
    assert!(recovery.adopted_bytes > 4000 * 500, "{recovery:?}");
    let mut client = bench.client();
    let table = client.table("t").unwrap();
    assert_eq!((client.tables().unwrap()[0].rows, count(&mut client, &table)), (4000, 4000));
}

/// Room in the log is claimed for what will be written there: a batch goes that just fits, and the log has room again after it.
#[test]
fn a_batch_claims_as_much_of_the_log_as_it_takes() {
    let bench = Bench::new("claims");
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    // A quarter of the segment is the largest claim, and a request is as long as its last row makes it.
    let most = ((1 << 20) - 2 * BLOCK_BYTES) / 4 / BLOCK_BYTES * BLOCK_BYTES;
    let mut fits = |bytes: usize, id: u64| put(&mut client, &table, id, &"x".repeat(bytes));
    assert_eq!(fits(most - 300, 1).unwrap(), 1);
    let refused = fits(most, 2);
    assert!(matches!(refused, Err(ClientError::Refused { code: FaultCode::TooLarge, .. })), "{refused:?}");
    for id in 3..30 {
        assert_eq!(fits(most - 300, id).unwrap(), 1);
    }
}

/// A table that was dropped has another behind it with its name, and the checkpoint has that one alone.
#[test]
fn a_name_that_was_given_again_is_the_later_tables() {
    let mut bench = Bench::new("again");
    let mut client = bench.client();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut other = bench.client();
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                other.checkpoint().unwrap();
            }
        });
        for round in 0..40 {
            let table = client.create_table("t", &schema()).unwrap();
            put(&mut client, &table, round, "row").unwrap();
            if round < 39 {
                client.drop_table("t").unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    bench.server = None;
    bench.start();
    let mut client = bench.client();
    let table = client.table("t").unwrap();
    assert_eq!((count(&mut client, &table), get(&mut client, &table, 39).as_deref()), (1, Some("row")));
}

/// Without a log a clean end keeps everything, and so does a checkpoint that somebody asked for.
#[test]
fn without_a_log_a_clean_end_keeps_the_tables() {
    let mut bench = Bench::new("none");
    bench.durability = Durability::None;
    bench.server = None;
    bench.start();
    for round in 0..3 {
        let mut client = bench.client();
        let table = match round {
            0 => client.create_table("t", &schema()).unwrap(),
            _ => client.table("t").unwrap(),
        };
        assert_eq!(count(&mut client, &table), 100 * round as usize);
        for id in 0..100 {
            put(&mut client, &table, 100 * round + id, "row").unwrap();
        }
        bench.server = None;
        bench.start();
    }
    assert!(bench.failures.lock().unwrap().is_empty());
}

/// A checkpoint that finds no room leaves the last one, and the server goes on.
#[test]
fn a_checkpoint_without_room_is_refused_and_leaves_nothing() {
    let mut bench = Bench::new("no-room");
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 1, "row").unwrap();
    client.checkpoint().unwrap();
    put(&mut client, &table, 2, "row").unwrap();
    let files = |bench: &Bench| std::fs::read_dir(bench.folder.path().join("data/checkpoint")).unwrap().count();
    let before = files(&bench);
    bench.switches.full.store(true, Ordering::Release);
    let refused = client.checkpoint();
    assert!(matches!(refused, Err(ClientError::Refused { code: FaultCode::DiskFull, .. })), "{refused:?}");
    assert_eq!(files(&bench), before);
    bench.switches.full.store(false, Ordering::Release);
    assert_eq!(get(&mut client, &table, 2).as_deref(), Some("row"));
    client.checkpoint().unwrap();
    bench.server = None;
    bench.start();
    let mut client = bench.client();
    let table = client.table("t").unwrap();
    assert_eq!(count(&mut client, &table), 2);
}
