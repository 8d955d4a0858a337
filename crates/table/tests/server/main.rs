//! Server and client together, over shared memory.

mod bad_input;
mod in_place;
mod limits;
mod panics;
mod prices;
mod scans;
mod slow;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use overside_shm::ShmProvider;
use overside_table::client::{Client, RemoteTable, ScanOptions};
use overside_table::row::ValueRef;
use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::server::{Server, ServerOptions};
use overside_table::wire::{Mode, PutMode};
use overside_verbs::Provider;

/// A server of its own for a test.
struct Bench {
    server: Option<Server>,
    provider: Arc<dyn Provider>,
    name: String,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(ServerOptions::default())
    }

    fn with(options: ServerOptions) -> Bench {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("table-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let server = Server::start(ShmProvider::new().unwrap(), &[&name], options).unwrap();
        Bench { server: Some(server), provider: ShmProvider::new().unwrap(), name }
    }

    fn client(&self) -> Client {
        Client::connect(self.provider.clone(), &self.name).unwrap()
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown();
        }
    }
}

/// (id, a version, text of the given length): enough to see whether a row is torn.
fn schema() -> Schema {
    let columns = vec![
        Column::new("id", ColumnType::UInt64),
        Column::new("version", ColumnType::UInt64),
        Column::nullable("text", ColumnType::Utf8),
    ];
    Schema::with_key(columns, &["id"]).unwrap()
}

fn text(id: u64, version: u64, len: usize) -> String {
    let seed = format!("{id}-{version}-");
    seed.chars().cycle().take(len).collect()
}

fn put(client: &mut Client, table: &RemoteTable, ids: impl Iterator<Item = u64>, version: u64, len: usize) {
    let mut batch = table.batch();
    for id in ids {
        let text = text(id, version, len);
        batch.push(&[ValueRef::UInt64(id), ValueRef::UInt64(version), ValueRef::Utf8(&text)]).unwrap();
    }
    let applied = client.put(table, PutMode::Upsert, &batch).unwrap();
    assert_eq!(applied.applied as usize, batch.len(), "{applied:?}");
}

/// All (id, version) of a scan, each row checked to be whole.
fn collect(client: &mut Client, table: &RemoteTable, options: &ScanOptions<'_>, len: usize) -> Vec<(u64, u64)> {
    let mut rows = Vec::new();
    let mut scan = client.scan(table, options).unwrap();
    while let Some(block) = scan.next_block().unwrap() {
        block.rows().for_each(|row| {
            let (id, version) = (row.u64(0).unwrap(), row.u64(1).unwrap());
            assert_eq!(row.str(2).unwrap(), Some(text(id, version, len).as_str()), "a torn row");
            rows.push((id, version));
        });
    }
    assert_eq!(scan.summary().rows as usize, rows.len());
    rows
}

const ALL_MODES: [Mode; 5] = [Mode::Copy, Mode::Gather, Mode::Delta, Mode::Auto, Mode::InPlace];

#[test]
fn rows_are_put_got_and_deleted() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..1000, 1, 20);
    let row = client.get(&table, &[ValueRef::UInt64(7)]).unwrap().unwrap();
    assert_eq!(row.view().u64(1), Some(1));
    assert!(client.get(&table, &[ValueRef::UInt64(1000)]).unwrap().is_none());
    assert!(client.delete(&table, &[ValueRef::UInt64(7)]).unwrap());
    assert!(!client.delete(&table, &[ValueRef::UInt64(7)]).unwrap());
    assert!(client.get(&table, &[ValueRef::UInt64(7)]).unwrap().is_none());
    assert_eq!(client.table("t").unwrap().info().rows, 999);
    client.drop_table("t").unwrap();
    assert!(client.tables().unwrap().is_empty());
}

#[test]
fn a_stopped_server_is_an_error_and_not_a_wait() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    client.create_table("t", &schema()).unwrap();
    bench.stop();
    let start = std::time::Instant::now();
    // Whether the end is met while a request waits for its answer, or before it is posted.
    for _ in 0..2 {
        let error = client.tables().unwrap_err().to_string();
        assert!(error.contains("to the server ended: the peer closed the connection;"), "{error}");
    }
    assert!(start.elapsed().as_secs() < 5);
}
