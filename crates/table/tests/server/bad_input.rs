//! What is wrong gets a clear answer, and nobody else is disturbed.

use std::collections::VecDeque;
use std::process::Command;
use std::time::{Duration, Instant};

use overside_table::client::ClientError;
use overside_table::row::{RowBuilder, RowLayout};
use overside_table::wire::{self, FaultCode, Request};
use overside_verbs::{CompletionQueue, PortEvent, PortOptions, QueuePair, WorkRequest};

use super::*;

pub(super) fn refused(result: Result<impl Sized, ClientError>) -> (FaultCode, String) {
    match result.err() {
        Some(ClientError::Refused { code, text }) => (code, text),
        other => panic!("refused, not {other:?}"),
    }
}

#[test]
fn refusals_say_what_is_there() {
    let bench = Bench::new();
    let mut client = bench.client();
    assert_eq!(refused(client.table("t")).0, FaultCode::UnknownTable);
    let table = client.create_table("t", &schema()).unwrap();
    assert_eq!(refused(client.create_table("t", &schema())).0, FaultCode::TableExists);
    assert_eq!(refused(client.create_table("", &schema())).0, FaultCode::BadRequest);
    let (code, text) = refused(client.table("u"));
    assert!(code == FaultCode::UnknownTable && text.contains("there are: t"), "{text}");
    let wrong_type = client.get(&table, &[ValueRef::Utf8("x")]);
    assert!(matches!(wrong_type, Err(ClientError::Key(_))));
    let missing_column = ScanOptions { columns: Some(&[9]), ..ScanOptions::default() };
    assert!(matches!(client.scan(&table, &missing_column), Err(ClientError::Projection(_))));
    client.drop_table("t").unwrap();
    assert_eq!(refused(client.get(&table, &[ValueRef::UInt64(1)])).0, FaultCode::UnknownTable);
}

#[test]
fn a_batch_names_the_rows_that_failed() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, [3, 5].into_iter(), 1, 10);
    let mut batch = table.batch();
    for id in 1..=6u64 {
        batch.push(&[ValueRef::UInt64(id), ValueRef::UInt64(2), ValueRef::Null]).unwrap();
    }
    batch.push_encoded(b"broken");
    let applied = client.put(&table, PutMode::Insert, &batch).unwrap();
    assert_eq!((applied.rows, applied.applied), (7, 4));
    let failed = [(2, FaultCode::Duplicate), (4, FaultCode::Duplicate), (6, FaultCode::BadRow)];
    assert_eq!(applied.failed, failed);
    let updated = client.put(&table, PutMode::Update, &batch).unwrap();
    assert_eq!((updated.applied, updated.replaced), (6, 6));
    assert_eq!(client.table("t").unwrap().info().rows, 6);
}

/// The client library refuses such rows and keys itself; the server leans on nobody.
#[test]
fn what_only_a_hostile_client_says_is_refused_row_by_row() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    let layout = Arc::new(RowLayout::new(&schema()));
    let (mut builder, rest) = (RowBuilder::new(layout.clone()), layout.prefix_len());
    let mut encoded = |id: u64| {
        builder.encode(&[ValueRef::UInt64(id), ValueRef::UInt64(1), ValueRef::Utf8("text")]).unwrap().to_vec()
    };
    let mut large = encoded(2);
    large.resize((1 << 20) + 1, b'x');
    let text_end = (large.len() - rest - 4) as u32;
    large[rest..rest + 4].copy_from_slice(&text_end.to_le_bytes());
    let mut batch = table.batch();
    let mut not_text = encoded(4);
    *not_text.last_mut().unwrap() = 0xFF;
    [&encoded(1)[..], &large, &encoded(3), &not_text, &encoded(5)[..4]].iter().for_each(|row| batch.push_encoded(row));
    let applied = client.put(&table, PutMode::Insert, &batch).unwrap();
    let failed = [(1, FaultCode::TooLarge), (3, FaultCode::BadRow), (4, FaultCode::BadRow)];
    assert_eq!((applied.rows, applied.applied, &applied.failed[..]), (5, 2, &failed[..]));
    assert_eq!(collect_ids(&mut client, &table), [1, 3]);
}

#[test]
fn exhausted_memory_is_told_and_survived() {
    // Two segments for one table, the 512 KiB that a small one has at first, and not as much again.
    let options = ServerOptions { memory_max: (16 << 20) + (768 << 10), ..ServerOptions::default() };
    let bench = Bench::with(options);
    let (mut client, mut other) = (bench.client(), bench.client());
    let second = other.create_table("u", &schema()).unwrap();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut other, &table, 0..10, 1, 100);
    let text = text(0, 0, 4000);
    let mut failed = None;
    for round in 0..40u64 {
        let mut batch = table.batch();
        for id in round * 1000..(round + 1) * 1000 {
            batch.push(&[ValueRef::UInt64(id + 100), ValueRef::UInt64(0), ValueRef::Utf8(&text)]).unwrap();
        }
        let applied = client.put(&table, PutMode::Upsert, &batch).unwrap();
        failed = applied.failed.first().copied();
        if failed.is_some() {
            break;
        }
    }
    assert_eq!(failed.map(|f| f.1), Some(FaultCode::Exhausted));
    assert_eq!(other.get(&table, &[ValueRef::UInt64(5)]).unwrap().unwrap().view().u64(0), Some(5));
    let rows = collect_ids(&mut other, &table);
    assert_eq!(rows.len() as u64, other.table("t").unwrap().info().rows, "nothing half-visible");
    // Another table keeps what it has, a new one finds nothing left, and deleting makes room again.
    put(&mut other, &second, 0..10, 1, 100);
    let (code, text) = refused(other.create_table("v", &schema()));
    assert!(code == FaultCode::Exhausted && text.contains("raise the limit (--memory), or drop a table"), "{text}");
    for id in &rows {
        other.delete(&table, &[ValueRef::UInt64(*id)]).unwrap();
    }
    // The first writes find pages that could not be merged while there was no room; trying again is what a caller does.
    let text = super::text(0, 3, 1000);
    let mut batch = table.batch();
    for id in 0..1000u64 {
        batch.push(&[ValueRef::UInt64(id), ValueRef::UInt64(3), ValueRef::Utf8(&text)]).unwrap();
    }
    let tried = (0..5).position(|_| client.put(&table, PutMode::Upsert, &batch).unwrap().applied == 1000);
    assert!(tried.is_some(), "deleting makes room");
}

fn collect_ids(client: &mut Client, table: &RemoteTable) -> Vec<u64> {
    let mut ids = Vec::new();
    let mut scan = client.scan(table, &ScanOptions::default()).unwrap();
    while let Some(block) = scan.next_block().unwrap() {
        block.rows().for_each(|row| ids.push(row.u64(0).unwrap()));
    }
    ids
}

/// A client that sends whatever bytes it likes.
pub(super) struct Raw {
    pub(super) queue: CompletionQueue,
    queue_pair: QueuePair,
}

impl Raw {
    pub(super) fn new(bench: &Bench) -> Raw {
        let provider = &bench.provider;
        let domain = provider.allocate_domain().unwrap();
        let mut queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
        let link = provider.connect(&domain, &bench.name, Duration::from_secs(5)).unwrap();
        let queue_pair = queue.attach(link).unwrap();
        Raw { queue, queue_pair }
    }

    /// How many there was room for: one or none.
    pub(super) fn send(&mut self, bytes: &[u8]) -> usize {
        let view = overside_memory::View::foreign(Arc::new(bytes.to_vec()));
        self.queue.post(self.queue_pair, &mut VecDeque::from([WorkRequest::send(0, view)])).unwrap_or(0)
    }

    /// Lets it send what it was told to; true, so that it can stand in conditions that are looked at again and again.
    pub(super) fn sent(&mut self) -> bool {
        self.queue.poll(&mut Vec::new());
        true
    }

    /// The next message.
    pub(super) fn answer(&mut self) -> Vec<u8> {
        let bytes = wire::BLOCK_BYTES;
        let buffer = overside_memory::Segment::private(bytes).unwrap().carve(bytes).pop().unwrap();
        self.queue.post_receive(Some(self.queue_pair), &mut vec![(1, buffer)]).unwrap();
        let (start, mut done) = (Instant::now(), Vec::new());
        loop {
            self.queue.poll_wait(&mut done, Some(Duration::from_millis(20))).unwrap();
            if let Some(received) = done.drain(..).find(|done| done.id == 1) {
                return received.buffer.unwrap()[..received.bytes as usize].to_vec();
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no answer");
        }
    }

    pub(super) fn disconnected(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            let _ = self.queue.poll_wait(&mut Vec::new(), Some(Duration::from_millis(20)));
            if let Some(PortEvent::Disconnected { .. }) = self.queue.next_event() {
                return true;
            }
        }
        false
    }
}

#[test]
fn hostile_messages_close_their_connection_only() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..100, 1, 10);
    let hello =
        wire::encode(1, &Request::Hello { version: wire::VERSION, block_bytes: 4096, features: wire::Features::ALL });
    let messages: Vec<Vec<Vec<u8>>> = vec![
        vec![b"garbage".to_vec()],
        vec![vec![]],
        vec![vec![0xFF; 100_000]],
        vec![wire::encode(1, &Request::List { after: "" })],
        vec![wire::encode(
            1,
            &Request::Hello { version: wire::VERSION, block_bytes: 1, features: wire::Features::ALL },
        )],
        vec![wire::encode(
            1,
            &Request::Hello { version: wire::VERSION, block_bytes: u32::MAX, features: wire::Features::ALL },
        )],
        vec![hello.clone(), hello.clone()],
        vec![hello.clone(), hello[..hello.len() - 1].to_vec()],
    ];
    for sequence in messages {
        let mut raw = Raw::new(&bench);
        for message in &sequence {
            raw.send(message);
        }
        assert!(raw.disconnected(), "{sequence:.60?}");
        assert_eq!(client.get(&table, &[ValueRef::UInt64(5)]).unwrap().unwrap().view().u64(0), Some(5));
    }
    assert_eq!(client.stats().unwrap().closed_for_cause, 8);
}

/// Who asks and asks and takes no answer is cut off before it fills the server's memory.
#[test]
fn a_client_that_takes_no_answers_is_cut_off() {
    // Nobody is cut off for being slow meanwhile.
    let bench = Bench::with(ServerOptions { deadline: Duration::from_secs(600), ..ServerOptions::default() });
    let mut client = bench.client();
    let mut raw = Raw::new(&bench);
    raw.send(&wire::encode(
        1,
        &Request::Hello { version: wire::VERSION, block_bytes: 4096, features: wire::Features::ALL },
    ));
    let list = wire::encode(2, &Request::List { after: "" });
    // Twice as many as may wait, with room for what a loaded machine does in between.
    let mut asked = 0;
    let start = Instant::now();
    while client.stats().unwrap().closed_for_cause == 0 && start.elapsed() < Duration::from_secs(120) {
        if asked < 16_384 {
            asked += (0..100).map(|_| raw.send(&list)).sum::<usize>();
        }
        let _ = raw.queue.poll_wait(&mut Vec::new(), Some(Duration::from_millis(1)));
    }
    assert_eq!(client.stats().unwrap().closed_for_cause, 1, "{asked} answers wait in the server");
    assert!(raw.disconnected());
    assert!(client.tables().unwrap().is_empty());
}

/// The same with answers that are long: it is their bytes that fill the memory, long before their number would.
#[test]
fn a_client_that_takes_no_long_answers_is_cut_off() {
    let bench = Bench::with(ServerOptions { deadline: Duration::from_secs(600), ..ServerOptions::default() });
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..1, 1, 1_000_000);
    let mut raw = Raw::new(&bench);
    raw.send(&wire::encode(
        1,
        &Request::Hello { version: wire::VERSION, block_bytes: 2 << 20, features: wire::Features::ALL },
    ));
    let get = wire::encode(2, &Request::Get { table: table.info().id, key: &0u64.to_be_bytes() });
    // As many as are under way at once, and as many again as may wait, with room for what a loaded machine does in between.
    let mut asked = 0;
    let start = Instant::now();
    while client.stats().unwrap().closed_for_cause == 0 && start.elapsed() < Duration::from_secs(60) {
        if asked < 400 {
            raw.send(&get);
            asked += 1;
        }
        let _ = raw.queue.poll_wait(&mut Vec::new(), Some(Duration::from_millis(1)));
    }
    assert_eq!(client.stats().unwrap().closed_for_cause, 1, "{asked} answers of a million bytes wait in the server");
    assert!(raw.disconnected());
}

/// Nor may many clients do together what none may do alone.
#[test]
fn clients_that_take_no_answers_have_one_limit_together() {
    let options = ServerOptions { workers: 1, deadline: Duration::from_secs(600), ..ServerOptions::default() };
    let bench = Bench::with(options);
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..1, 1, 1_000_000);
    let get = wire::encode(2, &Request::Get { table: table.info().id, key: &0u64.to_be_bytes() });
    let hello = wire::encode(
        1,
        &Request::Hello { version: wire::VERSION, block_bytes: 2 << 20, features: wire::Features::ALL },
    );
    // Each leaves less than it may.
    let mut idle: Vec<Raw> = (0..10).map(|_| Raw::new(&bench)).collect();
    idle.iter_mut().for_each(|raw| _ = raw.send(&hello));
    let mut asked = [0; 10];
    let start = Instant::now();
    while client.stats().unwrap().closed_for_cause == 0 {
        assert!(start.elapsed() < Duration::from_secs(120), "half a GB of answers waits in the server: {asked:?}");
        for (raw, asked) in idle.iter_mut().zip(&mut asked) {
            if *asked < 55 {
                *asked += raw.send(&get);
            }
            raw.sent();
        }
    }
    // Who takes its answers is served on.
    assert!(client.get(&table, &[ValueRef::UInt64(0)]).unwrap().is_some());
}

/// Whether this test has a process of its own, where no other test has tables; if not, it is run in one.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", &format!("bad_input::{test}")]).env(ALONE, "1").output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    false
}

const ALONE: &str = "BAD_INPUT_TEST_ALONE";

/// Mappings of tables' segments: the server's own, or clients', by their rights.
fn segments(rights: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(rights) && line.contains("overside-arena")).count()
}

/// A connection that stays while tables come and go keeps none of their segments mapped, neither in the server nor in the client.
#[test]
fn a_long_connection_keeps_nothing_of_dropped_tables() {
    if !is_alone("a_long_connection_keeps_nothing_of_dropped_tables") {
        return;
    }
    let bench = Bench::with(ServerOptions::default());
    let (mut owner, mut stays) = (bench.client(), bench.client());
    let mut most = 0;
    for generation in 0..12 {
        let table = owner.create_table("t", &schema()).unwrap();
        put(&mut owner, &table, 0..1000, generation, 100);
        for mode in [Mode::Gather, Mode::Delta] {
            let options = ScanOptions { mode, ..ScanOptions::default() };
            assert_eq!(collect(&mut stays, &table, &options, 100).len(), 1000);
        }
        most = most.max(segments("r--s"));
        owner.drop_table("t").unwrap();
    }
    assert!((1..=4).contains(&most), "{most} segments of tables mapped by a client at once");
    let start = Instant::now();
    while segments("rw-s") + segments("r--s") > 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "a connection keeps the memory of dropped tables");
        stays.stats().unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(stays.stats().unwrap().bytes_committed, 0);
}

/// Whoever used a table that another dropped is told so; and that others used it keeps none of its memory.
#[test]
fn a_dropped_table_is_gone_for_all_who_used_it() {
    if !is_alone("a_dropped_table_is_gone_for_all_who_used_it") {
        return;
    }
    let segments = || segments("rw-s");
    let bench = Bench::with(ServerOptions::default());
    let mut users = [bench.client(), bench.client(), bench.client()];
    let table = users[0].create_table("t", &schema()).unwrap();
    put(&mut users[0], &table, 0..1000, 1, 100);
    for user in &mut users {
        assert_eq!(collect(user, &table, &ScanOptions::default(), 100).len(), 1000);
    }
    assert!(segments() > 0);
    users[0].drop_table("t").unwrap();
    let start = Instant::now();
    while segments() > 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "idle connections keep the memory of a dropped table");
        std::thread::sleep(Duration::from_millis(10));
    }
    let again = users[0].create_table("t", &schema()).unwrap();
    put(&mut users[0], &again, 0..10, 2, 100);
    for user in &mut users {
        assert_eq!(refused(user.get(&table, &[ValueRef::UInt64(1)])).0, FaultCode::UnknownTable);
    }
}
