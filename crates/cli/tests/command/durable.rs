//! Servers that keep their tables in a directory: killed in the middle of a load, and started again.

use super::server::{Server, overside, told};
use overside::table::client::{Client, RemoteTable, ScanOptions};
use overside::table::row::ValueRef;
use overside::table::schema::{Column, ColumnType, Schema};
use overside::table::wire::PutMode;
use rustix::process::Signal;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A server on a directory of its own, started again and again.
pub struct Durable {
    pub folder: tempfile::TempDir,
    pub options: Vec<&'static str>,
}

impl Durable {
    pub fn new(options: &[&'static str]) -> Durable {
        Durable { folder: tempfile::tempdir().unwrap(), options: options.to_vec() }
    }

    pub fn dir(&self) -> String {
        self.folder.path().join("data").to_str().unwrap().to_string()
    }

    pub fn start(&self) -> Server {
        let dir = self.dir();
        Server::with(&[&["--data", &dir][..], &self.options].concat())
    }
}

pub fn schema() -> Schema {
    let columns = vec![Column::new("id", ColumnType::UInt64), Column::new("version", ColumnType::UInt64)];
    let text = Column::new("text", ColumnType::Utf8);
    Schema::with_key(columns.into_iter().chain([text]).collect(), &["id"]).unwrap()
}

pub fn connect(server: &Server) -> Client {
    overside::connect(&server.address).unwrap()
}

pub fn put(client: &mut Client, table: &RemoteTable, ids: std::ops::Range<u64>, version: u64) -> Result<(), String> {
    let mut batch = table.batch();
    for id in ids.clone() {
        // A few are longer than a page, and lie in extents of their own.
        let text = "x".repeat(if id % 97 == 3 { 20_000 } else { (id % 50) as usize });
        batch.push(&[ValueRef::UInt64(id), ValueRef::UInt64(version), ValueRef::Utf8(&text)]).unwrap();
    }
    let applied = client.put(table, PutMode::Upsert, &batch).map_err(|error| error.to_string())?;
    assert_eq!(u64::from(applied.applied), ids.end - ids.start);
    Ok(())
}

/// A number as the command prints it.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let cut = |at: usize| (digits.len() - at).is_multiple_of(3) && at > 0;
    digits.char_indices().flat_map(|(at, c)| cut(at).then_some(',').into_iter().chain([c])).collect()
}

fn numbered(client: &mut Client, name: &str) -> u32 {
    client.tables().unwrap().into_iter().find(|table| table.name == name).unwrap().id
}

/// The versions of all rows, by id.
pub fn rows(client: &mut Client, table: &RemoteTable) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    let mut scan = client.scan(table, &ScanOptions::default()).unwrap();
    while let Some(block) = scan.next_block().unwrap() {
        for row in block.rows() {
            let [ValueRef::UInt64(id), ValueRef::UInt64(version)] = [0, 1].map(|column| row.value(column).unwrap())
            else {
                panic!("columns of other types");
            };
            let length = if id % 97 == 3 { 20_000 } else { (id % 50) as usize };
            assert_eq!(row.str(2).unwrap().map(str::len), Some(length), "row {id}");
            assert!(found.insert(id, version).is_none(), "row {id} came twice");
        }
    }
    found
}

/// What a client knows of its changes.
#[derive(Default)]
pub struct Known {
    /// The last one that began.
    begun: u64,
    /// Those that were acknowledged, ascending.
    acknowledged: Vec<u64>,
}

impl Known {
    /// Changes rows of this client until its server is gone: each change puts its first rows again, and a few new ones.
    pub fn load(&mut self, mut connection: Client, client: u64, acknowledged: &AtomicU64) {
        let table = connection.table("t").unwrap();
        let base = client * CLIENT;
        loop {
            self.begun += 1;
            let version = self.begun;
            let new = base + HOT + version * BATCH;
            let done = put(&mut connection, &table, base..base + HOT, version)
                .and_then(|()| put(&mut connection, &table, new..new + BATCH, version));
            if done.is_err() {
                return;
            }
            self.acknowledged.push(version);
            acknowledged.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// All that was acknowledged is there, and nothing that never began.
    pub fn check(&self, found: &BTreeMap<u64, u64>, client: u64) {
        let base = client * CLIENT;
        let newest = self.acknowledged.last().copied().unwrap_or(0);
        for hot in (base..base + HOT).filter(|_| newest > 0) {
            let version = found.get(&hot).copied().unwrap_or(0);
            assert!((newest..=self.begun).contains(&version), "{hot}: {version}, not {newest} to {}", self.begun);
        }
        for version in &self.acknowledged {
            let new = base + HOT + version * BATCH;
            for id in new..new + BATCH {
                assert_eq!(found.get(&id), Some(version), "row {id} of client {client} was acknowledged");
            }
        }
        for (id, version) in found.range(base..base + CLIENT) {
            assert!(*version <= self.begun, "row {id} has a version that never began: {version}");
        }
    }
}

const CLIENT: u64 = 1 << 32;
const CLIENTS: u64 = 3;
const HOT: u64 = 5;
const BATCH: u64 = 7;

/// Starts a server, lets clients change rows, and kills it in the middle of that; several times over.
fn killed_again_and_again(durable: &Durable, rounds: u64) {
    let mut clients: Vec<Known> = (0..CLIENTS).map(|_| Known::default()).collect();
    for round in 0..=rounds {
        let mut server = durable.start();
        let mut client = connect(&server);
        let table = match client.table("t") {
            Ok(table) => table,
            Err(_) if round == 0 => client.create_table("t", &schema()).unwrap(),
            Err(error) => panic!("round {round}: {error}"),
        };
        let found = rows(&mut client, &table);
        clients.iter().zip(0..).for_each(|(known, number)| known.check(&found, number));
        if round == rounds {
            let acknowledged: usize = clients.iter().map(|known| known.acknowledged.len()).sum();
            assert!(acknowledged > 10, "{acknowledged} changes in all: nothing was tested");
            return;
        }
        let acknowledged = &AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (known, number) in clients.iter_mut().zip(0..) {
                let connection = connect(&server);
                scope.spawn(move || known.load(connection, number, acknowledged));
            }
            // In the middle of it, and at another place each time.
            while acknowledged.load(Ordering::Acquire) < 20 + 31 * round {
                std::thread::sleep(Duration::from_micros(300));
            }
            server.child.kill().unwrap();
            server.child.wait().unwrap();
        });
    }
}

#[test]
fn what_was_acknowledged_is_there_after_kill_9() {
    killed_again_and_again(&Durable::new(&["--workers", "2"]), 3);
}

#[test]
fn in_group_the_kernel_has_it_before_the_reply() {
    killed_again_and_again(&Durable::new(&["--durability", "group", "--group-ms", "1000"]), 1);
}

#[test]
fn a_clean_end_keeps_all_tables_and_a_drop_is_for_good() {
    let durable = Durable::new(&[]);
    let (kept, dropped, number) = {
        let mut server = durable.start();
        let mut client = connect(&server);
        let kept = client.create_table("kept", &schema()).unwrap();
        put(&mut client, &kept, 0..1000, 1).unwrap();
        for id in 0..500 {
            assert!(client.delete(&kept, &[ValueRef::UInt64(id)]).unwrap());
        }
        let table = client.create_table("dropped", &schema()).unwrap();
        put(&mut client, &table, 0..100, 1).unwrap();
        let dropped = numbered(&mut client, "dropped");
        client.drop_table("dropped").unwrap();
        let again = client.create_table("again", &schema()).unwrap();
        put(&mut client, &again, 0..10, 1).unwrap();
        client.drop_table("again").unwrap();
        let again = client.create_table("again", &schema()).unwrap();
        put(&mut client, &again, 5..7, 2).unwrap();
        let numbers = (numbered(&mut client, "kept"), dropped, numbered(&mut client, "again"));
        server.signal(Signal::TERM);
        assert!(server.child.wait().unwrap().success());
        let mut rest = String::new();
        server.output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("ended; the tables are in {}\n", durable.dir()));
        numbers
    };
    // Once more without a change in between.
    for _ in 0..2 {
        let mut server = durable.start();
        let mut client = connect(&server);
        let names: Vec<String> = client.tables().unwrap().into_iter().map(|table| table.name).collect();
        assert_eq!(names, ["again", "kept"]);
        let table = client.table("kept").unwrap();
        assert_eq!((numbered(&mut client, "kept"), rows(&mut client, &table).len()), (kept, 500));
        assert_eq!(client.tables().unwrap()[1].rows, 500, "they are counted, too");
        let table = client.table("again").unwrap();
        assert_eq!(
            (numbered(&mut client, "again"), rows(&mut client, &table)),
            (number, BTreeMap::from([(5, 2), (6, 2)]))
        );
        server.signal(Signal::INT);
        assert!(server.child.wait().unwrap().success());
    }
    let server = durable.start();
    let mut client = connect(&server);
    let new = client.create_table("dropped", &schema()).unwrap();
    assert!(numbered(&mut client, "dropped") > number.max(dropped), "numbers of tables never go back");
    assert_eq!(rows(&mut client, &new), BTreeMap::new());
}

/// What a server says that refuses to start: one line, and exit status 1.
pub fn refused(arguments: &[&str]) -> String {
    let output = overside(&[&["serve", "--listen", "shm:never"], arguments].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(output.stdout.is_empty());
    let told = told(&output);
    // Prices are not measured for a server that never serves.
    assert!(told.starts_with("overside: ") && told.lines().count() == 1, "{told}");
    told.trim_end().to_owned()
}

#[test]
fn a_directory_that_cannot_be_used_is_refused_in_a_line_and_left_as_it_is() {
    let durable = Durable::new(&[]);
    let place = |name: &str| durable.folder.path().join(name);
    let refuses = |dir: &Path, words: &str| {
        let told = refused(&["--data", dir.to_str().unwrap()]);
        assert!(told.contains(words), "{words:?} is not in {told}");
    };
    std::fs::write(place("file"), "text").unwrap();
    refuses(&place("file"), "is no folder; name one");
    std::fs::create_dir(place("open")).unwrap();
    std::fs::set_permissions(place("open"), Permissions::from_mode(0o777)).unwrap();
    refuses(&place("open"), "can be written by other users");
    std::fs::create_dir(place("strange")).unwrap();
    std::fs::write(place("strange").join("letter"), "text").unwrap();
    refuses(&place("strange"), "is no data directory: it holds `letter`");
    assert_eq!(std::fs::read_dir(place("strange")).unwrap().count(), 1, "nothing was made in it");
    let server = durable.start();
    refuses(Path::new(&durable.dir()), "is in use by another server");
    drop(server);
    // What lies in it leads nowhere else.
    std::fs::rename(place("data").join("log"), place("elsewhere")).unwrap();
    std::os::unix::fs::symlink(place("elsewhere"), place("data").join("log")).unwrap();
    refuses(Path::new(&durable.dir()), "log");
    let output = overside(&["serve", "--listen", "shm:never", "--durability", "group"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "--durability is nothing without --data");
}

/// A directory is checked while nobody serves it; a flipped byte of a checkpoint is a line and status 1, and nothing is changed.
#[test]
fn a_directory_is_checked_and_a_fault_is_told() {
    let durable = Durable::new(&[]);
    let check = || {
        let output = overside(&["check", &durable.dir()]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), told(&output))
    };
    let (status, _, error) = check();
    assert!(status == Some(1) && error.contains("there is no directory"), "{error}");
    let mut server = durable.start();
    let mut client = connect(&server);
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..2000, 1).unwrap();
    let written = overside(&["checkpoint", &server.address]).output().unwrap();
    assert!(String::from_utf8(written.stdout).unwrap().starts_with("1 table written ("));
    put(&mut client, &table, 0..10, 2).unwrap();
    let (status, _, error) = check();
    assert!(status == Some(1) && error.contains("in use"), "{error}");
    drop(client);
    server.signal(Signal::INT);
    assert!(server.child.wait().unwrap().success());
    let (status, sound, error) = check();
    assert!(status == Some(0) && sound.contains("1 tables, ") && sound.contains("2,000 rows"), "{sound}{error}");
    assert!(sound.contains("behind it: 10 records"), "{sound}");
    let pages = std::fs::read_dir(Path::new(&durable.dir()).join("checkpoint")).unwrap();
    let pages = pages.map(|entry| entry.unwrap().path()).find(|path| path.extension().is_some_and(|e| e == "pages"));
    let pages = pages.unwrap();
    let mut bytes = std::fs::read(&pages).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&pages, &bytes).unwrap();
    let (status, faults, error) = check();
    assert!(status == Some(1) && faults.contains(".pages") && error.contains("1 fault"), "{faults}{error}");
    assert_eq!(std::fs::read(&pages).unwrap(), bytes);
    let refusal = refused(&["--data", &durable.dir()]);
    assert!(refusal.contains(".pages"), "{refusal}");
}

/// What a script reads of a directory: at a start what was found in it, later how the disk is written and at what pace.
#[test]
fn a_start_and_a_status_describe_the_directory_in_json() {
    let durable = Durable::new(&[]);
    let mut server = durable.start();
    let mut client = connect(&server);
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..500, 1).unwrap();
    client.checkpoint().unwrap();
    put(&mut client, &table, 0..10, 2).unwrap();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let dir = durable.dir();
    let (server, line) = Server::saying(&["--data", &dir, "--durability", "group", "--json"]);
    let said: Json = serde_json::from_str(&line).unwrap();
    assert_eq!((&said["listening"], &said["pid"]), (&json!([server.address]), &json!(server.child.id())), "{said}");
    let data = &said["data"];
    let found = json!({ "dir": dir, "durability": "group", "rows": 500, "replayed": 10, "cut_bytes": 0 });
    for (name, value) in found.as_object().unwrap() {
        assert_eq!(&data[name], value, "{name} of {data}");
    }
    let ms = |name: &str| data[name].as_u64().unwrap_or_else(|| panic!("{name} of {data}"));
    assert!(ms("recovered_ms") >= ms("adopt_ms") + ms("replay_ms") && ms("recovered_ms") < 600_000, "{data}");
    let status = server.json(&["status", "@"]);
    let data = &status["data"];
    let way = data["way"].as_str().unwrap();
    assert!(way.starts_with("io_uring, ") || way.starts_with("pwritev2, "), "{data}");
    let governor = &data["governor"];
    let number = |name: &str| governor[name].as_u64().unwrap_or_else(|| panic!("{name} of {governor}"));
    assert!(number("pace") >= 8 << 20, "it never falls below: {governor}");
    assert_eq!(number("halvings"), 0, "nothing was to be paced: {governor}");
    assert!(number("p999_ns").max(number("undisturbed_ns")) < 600_000_000_000, "{governor}");
    let (server, line) = Server::saying(&["--json"]);
    let said: Json = serde_json::from_str(&line).unwrap();
    assert_eq!(said.get("data"), Some(&Json::Null), "{said}");
    assert_eq!(server.json(&["status", "@"]).get("data"), Some(&Json::Null));
}

/// Bytes that a process has given to the disk.
fn written_bytes(server: &Server) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/io", server.child.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap();
    line.parse().unwrap()
}

/// How often a process's threads have woken or been put aside, in all.
fn switches(server: &Server) -> u64 {
    let of = |task: &Path| {
        let text = std::fs::read_to_string(task.join("status")).unwrap_or_default();
        let counts = text.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
        counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum::<u64>()
    };
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    tasks.map(|task| of(&task.unwrap().path())).sum()
}

/// Looks again and again, for two minutes at most.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let mut left = 2400;
    while !so() {
        assert!(left > 0, "{what}");
        left -= 1;
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Once the log has stated what is on the disk, and its spare segments are written through, nothing happens any more.
#[test]
fn an_idle_server_writes_nothing_at_all() {
    let durable = Durable::new(&[]);
    let server = durable.start();
    let mut client = connect(&server);
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..100, 1).unwrap();
    until("spare segments are written through", || written_bytes(&server) >= 2 * (64 << 20));
    let mut durable_to = || client.status().unwrap().unwrap().log_durable;
    let before = durable_to();
    let mut other = connect(&server);
    put(&mut other, &table, 0..1, 2).unwrap();
    until("an empty group behind that states what is durable", || durable_to() >= before + 2 * 4096);
    drop((client, other));
    let mut before = 0;
    until("it comes to rest", || std::mem::replace(&mut before, switches(&server)) == before);
    let bytes = written_bytes(&server);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(written_bytes(&server), bytes);
    let woken = switches(&server) - before;
    assert!(woken < 20, "an idle server's threads woke {woken} times");
}

/// The files of a folder: names, lengths, and when they were written last.
fn files_of(folder: &Path) -> Vec<(std::ffi::OsString, u64, std::time::SystemTime)> {
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let about = entry.metadata().unwrap();
        (entry.file_name(), about.len(), about.modified().unwrap())
    };
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(file).collect();
    files.sort();
    files
}

/// A signal in the middle of a recovery ends the command, and the next start finds what was there.
#[test]
fn an_interrupted_recovery_ends_at_once_and_loses_nothing() {
    let durable = Durable::new(&[]);
    let mut server = durable.start();
    let mut client = connect(&server);
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..500, 1).unwrap();
    drop(client);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    drop(server);
    let log = Path::new(&durable.dir()).join("log");
    let segments = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path());
    let segment = segments.filter(|path| path.extension().is_none()).max().unwrap();
    // A writer that is not gone yet, so that the recovery waits for it.
    let held = std::fs::File::open(&segment).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let before = files_of(&log);
    assert!(before.len() > 1, "{before:?}");
    for signal in [Signal::INT, Signal::TERM] {
        let mut waiting = overside(&["serve", "--listen", "shm:never", "--data", &durable.dir()]);
        let mut waiting = waiting.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lock = format!(" {} ", waiting.id());
        until("it has locked the directory", || {
            assert!(waiting.try_wait().unwrap().is_none(), "it ended before it was interrupted");
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            locks.lines().any(|line| line.contains("FLOCK") && line.contains(&lock))
        });
        super::server::send(&waiting, signal);
        let output = waiting.wait_with_output().unwrap();
        let said = told(&output);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(output.stdout.is_empty(), "it never listened");
        assert_eq!(said, "overside: interrupted; nothing in the data directory is lost\n");
        assert_eq!(files_of(&log), before, "the directory is as it was");
    }
    drop(held);
    let server = durable.start();
    let mut client = connect(&server);
    let table = client.table("t").unwrap();
    assert_eq!(rows(&mut client, &table).len(), 500);
}

/// A checkpoint that is under way when a signal comes is given up: the last one counts, and the log behind it.
#[test]
fn an_interrupted_checkpoint_leaves_the_last_one_and_the_log() {
    let durable = Durable::new(&[]);
    let mut server = durable.start();
    let mut client = connect(&server);
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..50, 1).unwrap();
    client.checkpoint().unwrap();
    let text = "x".repeat(8000);
    for some in 1..=25 {
        let mut batch = table.batch();
        for id in some * 100..some * 100 + 100 {
            batch.push(&[ValueRef::UInt64(id), ValueRef::UInt64(2), ValueRef::Utf8(&text)]).unwrap();
        }
        client.put(&table, PutMode::Upsert, &batch).unwrap();
    }
    let mut asking = connect(&server);
    let asking = std::thread::spawn(move || asking.checkpoint().is_ok());
    until("a checkpoint", || client.status().unwrap().unwrap().is_checkpointing || asking.is_finished());
    server.signal(Signal::INT);
    assert!(server.child.wait().unwrap().success(), "{}", server.log());
    let complete = asking.join().unwrap();
    let folder = std::fs::read_dir(Path::new(&durable.dir()).join("checkpoint")).unwrap();
    let names: Vec<String> = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 2, "a manifest and a table's pages, and nothing unfinished: {names:?}, {complete}");
    let server = durable.start();
    let mut client = connect(&server);
    let table = client.table("t").unwrap();
    let mut scan = client.scan(&table, &ScanOptions::default()).unwrap();
    let mut count = 0;
    while let Some(block) = scan.next_block().unwrap() {
        count += block.rows().count();
    }
    assert_eq!(count, 2550);
}
