//! A server whose disk does as its test says: what it holds back, and what it refuses.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overside_disk::{Completion, Disk, Entry, FileId, Open, Request, Way};
use overside_shm::ShmProvider;
use overside_table::client::{Client, ClientError, RemoteTable, ScanOptions};
use overside_table::row::ValueRef;
use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::server::parts::{OpenDisk, World};
use overside_table::server::{DataOptions, OnFailure, Server, ServerOptions};
use overside_table::wire::{FaultCode, PutMode};

/// What a disk does for the time being.
#[derive(Debug, Default)]
struct Switches {
    /// Nothing that was pushed completes.
    stuck: AtomicBool,
    /// Writes fail.
    broken: AtomicBool,
    /// There is no room for another file.
    full: AtomicBool,
}

/// The system's files, behind switches.
#[derive(Debug)]
struct Switched {
    disk: Box<dyn Disk>,
    switches: Arc<Switches>,
}

impl Disk for Switched {
    fn path(&self) -> &Path {
        self.disk.path()
    }
    fn way(&self) -> Way {
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
        self.disk.open(name, how)
    }
    fn close(&mut self, file: FileId) {
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
        self.disk.push(token, request);
    }
    fn submit(&mut self) -> io::Result<()> {
        self.disk.submit()
    }
    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        if self.switches.stuck.load(Ordering::Acquire) {
            return Ok(());
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
        Ok(Box::new(Switched { disk: self.disk.another()?, switches: self.switches.clone() }))
    }
}

/// A server over such a disk.
struct Bench {
    switches: Arc<Switches>,
    failures: Arc<Mutex<Vec<String>>>,
    name: String,
    server: Option<Server>,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(called: &str) -> Bench {
        let mut bench = Bench {
            switches: Arc::default(),
            failures: Arc::default(),
            name: format!("table-durable-{called}-{}", std::process::id()),
            server: None,
            folder: tempfile::tempdir().unwrap(),
        };
        bench.start();
        bench
    }

    fn start(&mut self) {
        let (switches, failures) = (self.switches.clone(), self.failures.clone());
        let disk = OpenDisk::new(move |path| {
            Ok(Box::new(Switched { disk: overside_disk::open(path)?, switches: switches.clone() }))
        });
        let options = ServerOptions {
            workers: 2,
            on_failure: Some(OnFailure::new(move |why| failures.lock().unwrap().push(why.to_owned()))),
            data: Some(DataOptions::new(self.folder.path().join("data"))),
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

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a client is shown, as text.
type Show<'s> = &'s (dyn Fn(&mut Client) -> String + Sync);

/// A put, and everything that shows it, waits for the disk; what shows nothing new does not.
#[test]
fn nothing_is_told_or_shown_before_it_is_on_the_disk() {
    let bench = Bench::new("held");
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    let other = client.create_table("other", &schema()).unwrap();
    put(&mut client, &table, 1, "old").unwrap();
    put(&mut client, &other, 1, "old").unwrap();
    let stick = |stuck| bench.switches.stuck.store(stuck, Ordering::Release);
    std::thread::scope(|scope| {
        // Each of these starts with a change that the disk does not take.
        let shows: [(&str, Show<'_>); 6] = [
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
            ("the list of tables", &|client| client.tables().unwrap().len().to_string()),
        ];
        let expected = ["new", "None", "2", "[(0, Duplicate)]", "false", "2"];
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
    assert!(waits && said.is_err(), "{said:?}");
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
