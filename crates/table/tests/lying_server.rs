//! A server that says anything: its client ends each call with a result or an error, believes nothing that cannot be, and waits no
//! longer than it was told to.
//!
//! Everything that a server can say to its client:
//!
//! | word | what it does there | when | hostile test |
//! |---|---|---|---|
//! | any reply | answers a call | it has the call's number and kind | `only_the_answer_to_a_request_answers_it` |
//! | `Applied` | says what became of a batch | it can have had that outcome | `a_batch_has_no_outcome_that_it_cannot_have` |
//! | `Row`, `Table`, `Tables` | are handed on | row and schema are checked whole; tables ascend by name | `only_the_answer_to_a_request_answers_it`; `fuzz`: `row`, `schema` |
//! | a part | keeps up to 4 MiB | it follows the one before | `only_the_answer_to_a_request_answers_it`; `fuzz`: `parts` |
//! | a scan answer | is handed on as rows | it is of this scan, the next by number, and everything it names lies in it | `a_scan_ends_by_its_own_end_and_misses_and_repeats_nothing`; `fuzz`: `scan_answer` |
//! | `Opened` | says what to read | the schema is the table's; regions ascend; what is read there is checked (`crates/bwtree/tests/walk.rs`) | `what_a_server_does_not_grant_is_an_error` |
//! | `ScanEnd`, a fault | ends a scan | it has the scan's number | the same |
//! | more and more rows | keep whoever gave up the scan | for no longer than the client's timeout | `a_scan_that_is_given_up_ends_in_time` |
//! | nothing | keeps whoever waits | for no longer than that | the same |

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment, View};
use overside_shm::ShmProvider;
use overside_table::client::{Client, ClientError, ClientOptions, RemoteTable, ScanOptions};
use overside_table::row::ValueRef;
use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::wire::{
    self, ASSEMBLY_BYTES_MAX, Applied, FaultCode, OpenRegion, Opened, PutMode, Reply, ScanReply, TableInfo,
};
use overside_verbs::{
    CompletionQueue, Opcode, PortOptions, Provider, QueuePair, RemoteToken, Status, VerbsError, WorkRequest,
};

/// Answers hello and one look at the table as a server does, and whatever comes then by `says`: the messages that answer request
/// `number`, over and over where `on` says so.
struct Liar {
    name: String,
    thread: JoinHandle<()>,
}

type Says = fn(number: u32) -> Vec<Vec<u8>>;

impl Liar {
    fn start(says: Says, on: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("lying-server-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let provider = ShmProvider::new().unwrap();
        let domain = provider.allocate_domain().unwrap();
        let mut listener = provider.listen(&domain, &name).unwrap();
        let thread = std::thread::spawn(move || {
            let options = PortOptions { shared_receives: 0, ..PortOptions::default() };
            let mut queue = CompletionQueue::new(provider.open_port(&domain, options).unwrap());
            let link = listener.accept(PATIENCE).unwrap().expect("nobody connects");
            let qp = queue.attach(link).unwrap();
            // The client hangs up: that is the end.
            _ = serve(&mut queue, qp, says, on);
        });
        Self { name, thread }
    }

    fn client(&self) -> Client {
        let options = ClientOptions { timeout: Duration::from_secs(2), ..ClientOptions::default() };
        Client::connect_with(ShmProvider::new().unwrap(), &self.name, options).unwrap()
    }

    /// A client, and the table that it looked up.
    fn table(&self) -> (Client, RemoteTable) {
        let mut client = self.client();
        let table = client.table("t").unwrap();
        (client, table)
    }

    fn ends(self) {
        self.thread.join().expect("the server failed");
    }
}

fn serve(queue: &mut CompletionQueue, qp: QueuePair, says: Says, on: bool) -> Result<(), VerbsError> {
    let buffers = Segment::private(RECEIVES * RECEIVE_BYTES).unwrap().carve(RECEIVE_BYTES);
    let mut spare: Vec<(u64, Buffer)> = buffers.into_iter().map(|buffer| (0, buffer)).collect();
    let (mut out, mut again, mut done, mut heard) = (VecDeque::new(), Vec::new(), Vec::new(), 0);
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        queue.post_receive(Some(qp), &mut spare)?;
        queue.post(qp, &mut out)?;
        queue.poll_wait(&mut done, Some(Duration::from_millis(1)))?;
        for done in done.drain(..) {
            let (Opcode::Receive, Some(buffer)) = (done.opcode, done.buffer) else { continue };
            if done.status != Status::Success {
                return Ok(());
            }
            let number = u32::from_le_bytes(std::array::from_fn(|i| buffer[4 + i]));
            let answer = match heard {
                0 => {
                    let (version, request_bytes_max) = (wire::VERSION, wire::REQUEST_BYTES_MAX as u32);
                    vec![wire::encode(
                        number,
                        &Reply::Hello { version, request_bytes_max, pid: 1, features: wire::Features(u64::MAX) },
                    )]
                }
                1 => vec![wire::encode(number, &Reply::Table(info()))],
                _ => says(number),
            };
            heard += 1;
            again = if on && heard > 2 { answer.clone() } else { Vec::new() };
            out.extend(answer.into_iter().map(message));
            spare.push((0, buffer));
        }
        if out.is_empty() {
            out.extend(again.iter().cloned().map(message));
        }
    }
    Ok(())
}

fn message(bytes: Vec<u8>) -> WorkRequest {
    WorkRequest::send(0, View::foreign(Arc::new(bytes)))
}

fn schema() -> Schema {
    let columns = vec![Column::new("id", ColumnType::UInt64), Column::new("version", ColumnType::UInt64)];
    Schema::with_key(columns, &["id"]).unwrap()
}

fn info() -> TableInfo {
    let mut encoded = Vec::new();
    schema().encode(&mut encoded);
    TableInfo { id: 7, name: "t".into(), schema: encoded, rows: 0, pages: 0, bytes: 0 }
}

/// Puts two rows and says what came of it.
fn put(liar: &Liar) -> Result<Applied, ClientError> {
    let (mut client, table) = liar.table();
    let mut batch = table.batch();
    for id in 0..2 {
        batch.push(&[ValueRef::UInt64(id), ValueRef::UInt64(1)]).unwrap();
    }
    client.put(&table, PutMode::Upsert, &batch)
}

fn applied(rows: u32, applied: u32, replaced: u32, failed: Vec<(u32, FaultCode)>) -> Reply {
    Reply::Applied(Applied { rows, applied, replaced, failed })
}

#[test]
fn a_batch_has_no_outcome_that_it_cannot_have() {
    let absurd: [Says; 6] = [
        |n| vec![wire::encode(n, &applied(3, 3, 0, vec![]))],
        |n| vec![wire::encode(n, &applied(u32::MAX, 2, 0, vec![]))],
        |n| vec![wire::encode(n, &applied(2, 3, 0, vec![]))],
        |n| vec![wire::encode(n, &applied(2, 1, 2, vec![]))],
        |n| vec![wire::encode(n, &applied(2, 1, 0, vec![(2, FaultCode::BadRow)]))],
        |n| vec![wire::encode(n, &applied(2, 1, 0, vec![(u32::MAX, FaultCode::BadRow)]))],
    ];
    for (which, says) in absurd.into_iter().enumerate() {
        let liar = Liar::start(says, false);
        let outcome = put(&liar);
        assert!(matches!(outcome, Err(ClientError::Unexpected(_))), "{which}: {outcome:?}");
        liar.ends();
    }
    let honest = Liar::start(|n| vec![wire::encode(n, &applied(2, 1, 1, vec![(1, FaultCode::BadRow)]))], false);
    assert_eq!(put(&honest).unwrap().failed, [(1, FaultCode::BadRow)]);
    honest.ends();
}

#[test]
fn only_the_answer_to_a_request_answers_it() {
    let strange: [Says; 8] = [
        |n| vec![wire::encode(n + 1, &Reply::Row(None))],
        |n| vec![wire::encode(n, &Reply::Dropped)],
        |_| vec![block(0, 0)],
        |_| vec![b"OVSC".to_vec()],
        |n| vec![[wire::encode(n, &Reply::Row(None)), vec![0]].concat()],
        |_| vec![part_of(ASSEMBLY_BYTES_MAX as u32 + 1, 0)],
        |_| vec![part_of(1000, 0), part_of(1000, 0)],
        |_| vec![part_of(0, 0)],
    ];
    for (which, says) in strange.into_iter().enumerate() {
        let liar = Liar::start(says, false);
        let (mut client, table) = liar.table();
        let row = client.get(&table, &[ValueRef::UInt64(1)]);
        assert!(matches!(row, Err(ClientError::Unexpected(_) | ClientError::Protocol(_))), "{which}: {row:?}");
        drop(client);
        liar.ends();
    }
}

/// A part of `total` bytes from `at` on, of which it has 100.
fn part_of(total: u32, at: u32) -> Vec<u8> {
    let words = [wire::PART_MAGIC, total, at, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).chain([1; 100]).collect()
}

/// A scan answer without a row.
fn block(scan: u32, sequence: u64) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(b"OSB1");
    bytes[4] = 1;
    bytes[8..12].copy_from_slice(&scan.to_le_bytes());
    bytes[16..24].copy_from_slice(&sequence.to_le_bytes());
    // Two columns of eight bytes; nothing lies behind the head.
    for (at, word) in [(28, 16u32), (32, 64), (48, 64)] {
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn scan(says: Says) -> Result<usize, ClientError> {
    let liar = Liar::start(says, false);
    let (mut client, table) = liar.table();
    let mut scan = client.scan(&table, &ScanOptions::default())?;
    let mut blocks = 0;
    while scan.next_block()?.is_some() {
        blocks += 1;
    }
    Ok(blocks)
}

#[test]
fn a_scan_ends_by_its_own_end_and_misses_and_repeats_nothing() {
    assert_eq!(scan(|n| vec![block(n, 0), block(n, 1), scan_end(n)]).unwrap(), 2, "as an honest server");
    let strange: [Says; 6] = [
        |n| vec![block(n, 0), block(n, 0), scan_end(n)],
        |n| vec![block(n, 1), scan_end(n)],
        |n| vec![block(n + 1, 0), scan_end(n)],
        |n| vec![block(n, 0), scan_end(n - 1)],
        |n| vec![block(n, 0), fault(n - 1)],
        |n| vec![block(n, 0), wire::encode(n, &Reply::Dropped)],
    ];
    for (which, says) in strange.into_iter().enumerate() {
        let outcome = scan(says);
        assert!(matches!(outcome, Err(ClientError::Unexpected(_))), "{which}: {outcome:?}");
    }
    assert!(matches!(scan(|n| vec![block(n, 0), fault(n)]), Err(ClientError::Refused { .. })));
}

fn scan_end(number: u32) -> Vec<u8> {
    wire::encode(number, &Reply::ScanEnd(ScanReply::default()))
}

fn fault(number: u32) -> Vec<u8> {
    let fault = wire::Fault { code: FaultCode::UnknownTable, text: "gone".into() };
    wire::encode(number, &Reply::Fault(fault))
}

/// Whoever gives up a scan is not kept by a server that goes on and on, nor by one that says nothing.
#[test]
fn a_scan_that_is_given_up_ends_in_time() {
    static SEQUENCE: AtomicU32 = AtomicU32::new(0);
    let ways: [(Says, bool); 2] = [
        // Number 3 is the scan; its blocks go on behind the cancellation.
        (|_| (0..50_000).map(|_| block(3, SEQUENCE.fetch_add(1, Ordering::Relaxed).into())).collect(), true),
        (|n| if n == 3 { vec![block(n, 0)] } else { vec![] }, false),
    ];
    for (says, on) in ways {
        let liar = Liar::start(says, on);
        let (mut client, table) = liar.table();
        let begun = {
            let mut scan = client.scan(&table, &ScanOptions::default()).unwrap();
            scan.next_block().unwrap();
            Instant::now()
        };
        assert!(begun.elapsed() < Duration::from_secs(20), "it waited {:?}", begun.elapsed());
        drop(client);
        liar.ends();
    }
}

fn opened(change: impl FnOnce(&mut Opened)) -> Reply {
    let mut opened = Opened {
        first: 1,
        blocks: vec![Some(64)],
        page_bytes: 16 << 10,
        prefix_len: 16,
        value_max: 1 << 20,
        key_max: 1 << 10,
        regions: vec![OpenRegion { at: 0, token: region(1 << 20) }],
        more: false,
    };
    change(&mut opened);
    Reply::Opened(opened)
}

/// Of a key that nobody has.
fn region(len: u64) -> [u8; 32] {
    RemoteToken { at: 0, len, rkey: 77 }.to_bytes()
}

#[test]
fn what_a_server_does_not_grant_is_an_error() {
    let strange: [(Says, &str); 9] = [
        (|n| vec![wire::encode(n, &opened(|_| {}))], "does not any more"),
        (|n| vec![wire::encode(n, &opened(|o| o.prefix_len = 8))], "another schema"),
        (|n| vec![wire::encode(n, &opened(|o| o.regions.clear()))], "outside of what the server granted"),
        (|n| vec![wire::encode(n, &opened(|o| o.regions[0].at = 1 << 30))], "outside of what the server granted"),
        (|n| vec![wire::encode(n, &opened(|o| o.regions.push(o.regions[0])))], "not in order"),
        (|n| vec![wire::encode(n, &opened(|o| o.regions[0].token = region(0)))], "not in order"),
        (|n| vec![wire::encode(n, &opened(|o| o.regions[0].at = u64::MAX))], "not in order"),
        (|n| vec![wire::encode(n, &opened(|o| o.blocks = vec![Some(u64::MAX - 7)]))], "outside of"),
        (|n| vec![wire::encode(n, &opened(|o| o.first = u32::MAX))], "outside of the mapping table"),
    ];
    for (which, (says, words)) in strange.into_iter().enumerate() {
        let liar = Liar::start(says, false);
        let (mut client, table) = liar.table();
        let rows = client.scan_one_sided(&table, &ScanOptions::default()).and_then(|mut scan| scan.next_block());
        let error = rows.map(|block| block.is_some()).unwrap_err();
        assert!(error.to_string().contains(words), "{which}: {error}");
        drop(client);
        liar.ends();
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
const RECEIVES: usize = 32;
const RECEIVE_BYTES: usize = 4096;
