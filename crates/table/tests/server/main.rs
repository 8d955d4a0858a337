//! Server and client together, over shared memory.
//!
//! Everything that a client can say to a server:
//!
//! | word | what it does there | when | hostile test |
//! |---|---|---|---|
//! | `Hello` | lets the other requests count | once, first, in 10 s, of this version, with buffers of 1 KiB to 4 MiB; any features | `bad_input`: `hostile_messages_close_their_connection_only`; `tests/lying_client.rs`: `a_client_of_another_version_is_served_nothing`, `a_hello_of_another_form_is_refused_by_its_version`; `limits`: `who_never_introduces_himself_is_closed` |
//! | `Create` | keeps a table | the schema can be; within the limit of memory | `bad_input`: `refusals_say_what_is_there`; `limits`: `the_limit_of_memory_is_of_all_tables_together` |
//! | `Drop` | gives a table back | its scans and pages under way have ended | `bad_input`: `a_dropped_table_is_gone_for_all_who_used_it` |
//! | `Status`, `Checkpoint` | keep a reply | as `Stats`; one checkpoint at a time | `tests/durable` |
//! | `List`, `Describe`, `Get`, `Stats`, `Choices`, `Prices`, `Held`, `Open` | keep a reply | what waits for all clients is within one limit | `bad_input`: `a_client_that_takes_no_answers_is_cut_off`, `a_client_that_takes_no_long_answers_is_cut_off` |
//! | `Put` | keeps rows | each is checked whole; within the limit of memory | `bad_input`: `what_only_a_hostile_client_says_is_refused_row_by_row`, `exhausted_memory_is_told_and_survived` |
//! | `Delete` | gives rows back; may wait for memory | for at most 20 s | `limits`: `a_delete_that_waits_for_memory_holds_up_nobody_else`, `a_delete_that_waits_ends_with_its_table_or_its_connection` |
//! | `CreateIndex`, `DropIndex`, `Indexes` | keep a tree, and give it back | the columns can have an index; 8 of them; within the limit of memory; ends with its client | `indexes`: `what_is_no_index_is_refused_by_name`, `an_index_without_memory_is_refused_and_its_client_may_go_meanwhile` |
//! | `ScanIndex` | as `Scan` and `ScanInPlace` | there is the index | `indexes`: `what_is_no_index_is_refused_by_name`; `tests/lying_client.rs`: `a_second_scan_is_refused_and_a_cancellation_of_nothing_is_nothing` |
//! | `Scan` | pins pages until they are taken | one at a time; within the connection's pins and window | `slow`: both; `tests/lying_client.rs`: `a_second_scan_is_refused_and_a_cancellation_of_nothing_is_nothing` |
//! | `ScanInPlace` | as `Scan`, and lends pages | both sides have `IN_PLACE`; else a fault | `in_place`: `in_place_is_for_who_said_so` |
//! | keeping a loan | keeps its page, and counts in the window | until the deadline | `in_place`: `a_block_that_is_kept_too_long_costs_the_connection`; `slow`: `a_client_that_keeps_its_loans_is_bounded_and_dropped` |
//! | `Cancel` | ends the scan of its connection | there is one | `tests/lying_client.rs`: the same |
//! | taking nothing | keeps what was sent, and pins | until the deadline | `slow`: `a_client_that_stops_reading_is_bounded_and_dropped` |

mod bad_input;
mod in_place;
mod indexes;
mod limits;
mod one_sided;
mod panics;
mod prices;
mod registrations;
mod scans;
mod slow;
mod watched;

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
    // A client waits for half a minute.
    assert!(start.elapsed().as_secs() < 20);
}
