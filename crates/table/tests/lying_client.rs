//! A client that says what is well formed, and not its turn: its words change nothing, and nobody else's connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment, View};
use overside_shm::ShmProvider;
use overside_table::client::Client;
use overside_table::row::ValueRef;
use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::server::{Server, ServerOptions};
use overside_table::wire::{
    self, Bounds, FaultCode, Features, MessageKind, Mode, PutMode, Reply, Request, ScanRequest,
};
use overside_verbs::{CompletionQueue, Opcode, PortEvent, PortOptions, Provider, QueuePair, Status, WorkRequest};

/// A client that speaks the protocol by hand.
struct Raw {
    queue: CompletionQueue,
    qp: QueuePair,
    spare: Vec<(u64, Buffer)>,
    arrived: VecDeque<Vec<u8>>,
    ended: bool,
}

impl Raw {
    fn connect(name: &str) -> Self {
        let provider = ShmProvider::new().unwrap();
        let domain = provider.allocate_domain().unwrap();
        let mut queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
        let qp = queue.attach(provider.connect(&domain, name, PATIENCE).unwrap()).unwrap();
        let buffers = Segment::private(RECEIVES * BLOCK_BYTES).unwrap().carve(BLOCK_BYTES);
        let spare = buffers.into_iter().map(|buffer| (0, buffer)).collect();
        Self { queue, qp, spare, arrived: VecDeque::new(), ended: false }
    }

    fn says(&mut self, number: u32, request: &Request<'_>) {
        self.sends(wire::encode(number, request));
    }

    fn sends(&mut self, bytes: Vec<u8>) {
        // Whoever is closed meanwhile says nothing.
        _ = self.queue.post(self.qp, &mut VecDeque::from([WorkRequest::send(0, View::foreign(Arc::new(bytes)))]));
    }

    fn look(&mut self) {
        _ = self.queue.post_receive(Some(self.qp), &mut self.spare);
        let mut done = Vec::new();
        self.queue.poll_wait(&mut done, Some(Duration::from_millis(20))).unwrap();
        for done in done {
            let (Opcode::Receive, Some(buffer)) = (done.opcode, done.buffer) else { continue };
            if done.status == Status::Success {
                self.arrived.push_back(buffer[..done.bytes as usize].to_vec());
            }
            self.spare.push((0, buffer));
        }
        while let Some(PortEvent::Disconnected { .. }) = self.queue.next_event() {
            self.ended = true;
        }
    }

    /// The next reply; what is not one (rows) is passed over.
    fn reply(&mut self) -> (u32, Reply) {
        let end = Instant::now() + PATIENCE;
        loop {
            while let Some(message) = self.arrived.pop_front() {
                if wire::kind(&message) == MessageKind::Control {
                    return wire::decode(&message).unwrap();
                }
            }
            assert!(!self.ended && Instant::now() < end, "no reply");
            self.look();
        }
    }

    /// It is closed, and nothing more is answered.
    fn is_closed(&mut self) {
        let end = Instant::now() + PATIENCE;
        while !self.ended {
            assert!(Instant::now() < end, "it is still connected");
            self.look();
        }
        assert!(self.arrived.is_empty(), "it is answered: {:?}", self.arrived);
    }
}

fn server(name: &str) -> (String, Server) {
    let name = format!("lying-client-{name}-{}", std::process::id());
    let server = Server::start(ShmProvider::new().unwrap(), &[&name], ServerOptions::default()).unwrap();
    (name, server)
}

fn hello(version: u16) -> Request<'static> {
    Request::Hello { version, block_bytes: BLOCK_BYTES as u32, features: Features(u64::MAX) }
}

/// Another version is refused, and what follows it is not carried out.
#[test]
fn a_client_of_another_version_is_served_nothing() {
    let (name, server) = server("version");
    let mut raw = Raw::connect(&name);
    raw.says(1, &hello(wire::VERSION + 1));
    let (number, refused) = raw.reply();
    assert!(matches!(&refused, Reply::Fault(fault) if number == 1 && fault.text.contains("version")), "{refused:?}");
    raw.says(2, &Request::Create { name: "mine", schema: b"" });
    raw.is_closed();
    let mut honest = Client::connect(ShmProvider::new().unwrap(), &name).unwrap();
    assert!(honest.tables().unwrap().is_empty());
    drop(honest);
    server.shutdown();
}

/// So are the versions before and after, whatever else their Hello has to say. Features that this
/// server does not know mean nothing to it: `hello` has all bits.
#[test]
fn a_hello_of_another_form_is_refused_by_its_version() {
    let (name, server) = server("forms");
    for (version, rest) in [(3u8, &[0x80, 0xa0, 2][..]), (5, &[0x80, 0xa0, 2, 0, 1, 2, 3])] {
        let mut raw = Raw::connect(&name);
        raw.sends([b"OVSC\x09\0\0\0\0", &[version][..], rest].concat());
        let (number, refused) = raw.reply();
        let named = format!("the client {version};");
        assert!(matches!(&refused, Reply::Fault(fault) if number == 9 && fault.text.contains(&named)), "{refused:?}");
    }
    let mut raw = Raw::connect(&name);
    raw.says(1, &hello(wire::VERSION));
    assert!(matches!(raw.reply(), (1, Reply::Hello { features: Features::ALL, .. })));
    drop(raw);
    server.shutdown();
}

/// One scan at a time; a cancellation without one, and of one that has ended, is nothing.
#[test]
fn a_second_scan_is_refused_and_a_cancellation_of_nothing_is_nothing() {
    let (name, server) = server("scans");
    let mut honest = Client::connect(ShmProvider::new().unwrap(), &name).unwrap();
    let columns = vec![Column::new("id", ColumnType::UInt64), Column::new("text", ColumnType::Utf8)];
    let table = honest.create_table("t", &Schema::with_key(columns, &["id"]).unwrap()).unwrap();
    let (mut batch, text) = (table.batch(), "x".repeat(1000));
    for id in 0..2000 {
        batch.push(&[ValueRef::UInt64(id), ValueRef::Utf8(&text)]).unwrap();
    }
    honest.put(&table, PutMode::Upsert, &batch).unwrap();
    let mut raw = Raw::connect(&name);
    raw.says(1, &hello(wire::VERSION));
    raw.says(2, &Request::Cancel);
    assert!(matches!(raw.reply(), (1, Reply::Hello { .. })));
    let scan = || {
        let id = table.info().id;
        Request::Scan(ScanRequest {
            table: id,
            bounds: Bounds::default(),
            columns: None,
            mode: Mode::Copy,
            rows_max: None,
        })
    };
    raw.says(3, &scan());
    raw.says(4, &scan());
    let mut replies = [raw.reply(), raw.reply()];
    replies.sort_by_key(|(number, _)| *number);
    let refused = |reply: &Reply| matches!(reply, Reply::Fault(fault) if fault.code == FaultCode::BadRequest);
    assert!(matches!(replies[0], (3, Reply::ScanEnd(_))) && replies[1].0 == 4 && refused(&replies[1].1), "{replies:?}");
    raw.says(5, &Request::Cancel);
    raw.says(6, &scan());
    assert!(matches!(raw.reply(), (6, Reply::ScanEnd(end)) if !end.cancelled), "a cancellation came late");
    drop((raw, honest));
    server.shutdown();
}

const PATIENCE: Duration = Duration::from_secs(60);
const RECEIVES: usize = 16;
const BLOCK_BYTES: usize = 36 << 10;
