//! What no client can bring about.

use std::fs::{self, File};
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overside_bwtree::Direction;
use overside_reference::{Change, Changed};
use overside_shm::ShmProvider;
use overside_verbs::{Access, Memory, MemoryRegion, ProtectionDomain, Provider, VerbsError};

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

/// Registers nothing while it is closed: who asks it to stays where he is, and is known.
#[derive(Debug)]
struct Gate {
    provider: Arc<dyn Provider>,
    closed: AtomicBool,
    waits: Mutex<Option<u32>>,
}

impl Change for Gate {
    fn provider(&self) -> &dyn Provider {
        &*self.provider
    }

    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        while self.closed.load(Ordering::Acquire) {
            let thread = fs::read_link("/proc/thread-self").unwrap();
            *self.waits.lock().unwrap() = thread.file_name().and_then(|name| name.to_str()?.parse().ok());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.provider.register(domain, memory, access)
    }
}

/// A worker stands still inside a table's tree, for the memory that its client's rows need is not
/// registered: another client hears which thread it is, and in which table (to-copy §4 TC-M25).
#[test]
fn a_thread_that_stays_in_a_table_is_told_to_clients() {
    let name = format!("table-stays-{}", std::process::id());
    let (closed, waits) = (AtomicBool::new(false), Mutex::default());
    let gate = Arc::new(Changed(Gate { provider: ShmProvider::new().unwrap(), closed, waits }));
    let options = ServerOptions { workers: 2, ..ServerOptions::default() };
    let server = Server::start(gate.clone(), &[&name], options).unwrap();
    let connect = || Client::connect(ShmProvider::new().unwrap(), &name).unwrap();
    // One worker each.
    let (mut client, mut watching) = (connect(), connect());
    let columns = vec![Column::new("id", ColumnType::UInt64), Column::new("text", ColumnType::Utf8)];
    let table = client.create_table("stays", &Schema::with_key(columns, &["id"]).unwrap()).unwrap();
    watching.create_table("other", table.schema()).unwrap();
    let stored = server.store.named("stays").unwrap();
    std::thread::scope(|scope| {
        gate.closed.store(true, Ordering::Release);
        // However this ends: a worker that waits would keep the scope open.
        let open = scopeguard::guard((), |()| gate.closed.store(false, Ordering::Release));
        scope.spawn(|| {
            let text = "x".repeat(TEXT);
            for part in 0..10u64 {
                let mut batch = table.batch();
                let ids = part * 3000..(part + 1) * 3000;
                ids.for_each(|id| batch.push(&[ValueRef::UInt64(id), ValueRef::Utf8(&text)]).unwrap());
                client.put(&table, PutMode::Insert, &batch).unwrap();
            }
        });
        let end = Instant::now() + PATIENCE;
        let thread = loop {
            if let Some(thread) = *gate.waits.lock().unwrap() {
                break thread;
            }
            assert!(Instant::now() < end, "a table grows without memory");
            std::thread::sleep(Duration::from_millis(1));
        };
        (0..4).for_each(|_| stored.tree.reclaim());
        let stall = watching.held().unwrap().unwrap().stall.expect("it has been there for three epochs");
        assert_eq!((stall.table.as_str(), stall.thread), ("stays", thread));
        let longer = watching.held().unwrap().unwrap().stall.expect("it is still there");
        assert!(longer.ns > stall.ns, "{longer:?} after {stall:?}");
        drop(open);
    });
    assert_eq!(watching.held().unwrap().unwrap().stall, None, "it went on");
}

/// All of a scan is posted, and its client takes nothing yet. What changes in the table's memory is
/// in the answer then, unless that was copied (to-copy §3 TC-M01, §4.1 TC-M27), so its head lies
/// apart from its rows (large-transfers §2.1 TH-M05). The table keeps the pages until they are
/// taken (to-copy §5.5 TC-M26).
#[test]
fn pages_are_read_where_they_lie_when_the_client_takes_them() {
    for mode in [Mode::Copy, Mode::Gather, Mode::Delta] {
        let name = format!("table-lies-{mode:?}-{}", std::process::id());
        let options = ServerOptions { workers: 1, ..ServerOptions::default() };
        let server = Server::start(ShmProvider::new().unwrap(), &[&name], options).unwrap();
        let connect = || Client::connect(ShmProvider::new().unwrap(), &name).unwrap();
        let (mut client, mut watching) = (connect(), connect());
        let columns = vec![Column::new("id", ColumnType::UInt64), Column::new("text", ColumnType::Utf8)];
        let table = client.create_table("t", &Schema::with_key(columns, &["id"]).unwrap()).unwrap();
        // Rows in pages, and rows in deltas.
        for (step, letter) in [(1, "x"), (50, "z")] {
            let (mut batch, text) = (table.batch(), letter.repeat(TEXT));
            let ids = (0..500).step_by(step);
            ids.for_each(|id| batch.push(&[ValueRef::UInt64(id), ValueRef::Utf8(&text)]).unwrap());
            client.put(&table, PutMode::Upsert, &batch).unwrap();
        }
        let stored = server.store.named("t").unwrap();
        let pages = || stored.tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
        let all = pages().count() as u64;
        assert!(all > 2 && pages().any(|page| page.delta_count() > 0));
        let mut scan = client.scan(&table, &ScanOptions { mode, ..ScanOptions::default() }).unwrap();
        let end = Instant::now() + PATIENCE;
        let mut sent = [0; 4];
        while sent.iter().sum::<u64>() < all {
            sent = watching.choices(&table).unwrap().unwrap().pages;
            assert!(Instant::now() < end, "{mode:?}: {sent:?} of {all}");
        }
        assert_eq!(sent[super::answer::index(mode)], all, "{mode:?}: {sent:?}");
        let mut pins = || watching.held().unwrap().unwrap().pins;
        if mode == Mode::Copy {
            while pins() > 0 {
                assert!(Instant::now() < end, "what was copied is still held");
            }
        } else {
            std::thread::sleep(Duration::from_millis(50));
            assert!(pins() > 0, "{mode:?}: what is under way is not held");
        }
        // By the kernel: no program may write what its request names.
        let memory = File::options().write(true).open("/proc/self/mem").unwrap();
        for page in pages() {
            for part in std::iter::once(page.base()).chain(page.deltas().map(|delta| delta.record())) {
                for (place, text) in part.windows(TEXT).enumerate() {
                    for (old, new) in [(b'x', b'y'), (b'z', b'w')] {
                        if text.iter().all(|byte| *byte == old) {
                            memory.write_all_at(&[new; TEXT], (part.as_ptr().addr() + place) as u64).unwrap();
                        }
                    }
                }
            }
        }
        let letters = if mode == Mode::Copy { ["x", "z"] } else { ["y", "w"] };
        let mut rows = 0;
        while let Some(block) = scan.next_block().unwrap() {
            for row in block.rows() {
                let letter = letters[usize::from(rows % 50 == 0)];
                assert_eq!(row.str(1).unwrap(), Some(letter.repeat(TEXT).as_str()), "{mode:?}: row {rows}");
                rows += 1;
            }
        }
        assert_eq!(rows, 500, "{mode:?}");
        drop(scan);
        while pins() > 0 {
            assert!(Instant::now() < end, "{mode:?}: what was taken is still held");
        }
    }
}

const TEXT: usize = 100;
const PATIENCE: Duration = Duration::from_secs(20);
