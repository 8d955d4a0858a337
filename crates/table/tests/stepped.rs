//! The shipped server and client over the reference provider, in time that the test steps by hand:
//! nothing here waits for a clock on a wall, however long the deadline.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use overside_reference::{SteppedClock, World};
use overside_table::client::{Client, ClientOptions, ScanOptions};
use overside_table::row::ValueRef;
use overside_table::schema::{Column, ColumnType, Schema};
use overside_table::server::{Server, ServerOptions};
use overside_table::wire::{self, Mode, PutMode, Request};
use overside_verbs::{CompletionQueue, PortEvent, PortOptions, Provider, QueuePair, WorkRequest};

/// A server whose time stands still unless it is stepped.
struct Stage {
    clock: Arc<SteppedClock>,
    world: World,
    server: Option<Server>,
}

impl Stage {
    fn new(options: ServerOptions) -> Stage {
        let clock = SteppedClock::new(7);
        let world = World::by(clock.clone());
        let server = Server::start(Arc::new(world.provider()), &["tables"], options).unwrap();
        Stage { clock, world, server: Some(server) }
    }

    fn client(&self) -> Client {
        self.client_with(ClientOptions::default())
    }

    fn client_with(&self, options: ClientOptions) -> Client {
        Client::connect_with(self.provider(), "tables", options).unwrap()
    }

    fn provider(&self) -> Arc<dyn Provider> {
        Arc::new(self.world.provider())
    }

    /// Steps until something holds; the virtual time that took.
    fn step_until(&self, what: &str, by: Duration, most: Duration, mut so: impl FnMut() -> bool) -> Duration {
        let begun = self.clock.passed();
        while !so() {
            let took = self.clock.passed() - begun;
            assert!(took < most, "{what}: not within {took:?} of stepped time");
            self.clock.step(by);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.clock.passed() - begun
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Threads that wait for a time look whether to stop once it has come.
        let (server, stopped) = (self.server.take(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(server);
                stopped.store(true, Ordering::Release);
            });
            while !stopped.load(Ordering::Acquire) {
                self.clock.step(Duration::from_millis(100));
                std::thread::yield_now();
            }
        });
    }
}

fn schema() -> Schema {
    let columns = vec![Column::new("id", ColumnType::UInt64), Column::new("text", ColumnType::Utf8)];
    Schema::with_key(columns, &["id"]).unwrap()
}

fn fill(client: &mut Client, rows: u64) -> overside_table::client::RemoteTable {
    let table = client.create_table("t", &schema()).unwrap();
    let mut batch = table.batch();
    (0..rows).for_each(|id| batch.push(&[ValueRef::UInt64(id), ValueRef::Utf8(&"x".repeat(90))]).unwrap());
    assert_eq!(client.put(&table, PutMode::Insert, &batch).unwrap().applied, rows as u32);
    table
}

/// A connection that says what a test says, and takes nothing unless it is told to.
struct Raw {
    provider: Arc<dyn Provider>,
    queue: CompletionQueue,
    queue_pair: QueuePair,
}

impl Raw {
    fn connect(stage: &Stage) -> Raw {
        let provider = stage.provider();
        let domain = provider.allocate_domain().unwrap();
        let mut queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
        let link = provider.connect(&domain, "tables", Duration::from_secs(1)).unwrap();
        let queue_pair = queue.attach(link).unwrap();
        Raw { provider, queue, queue_pair }
    }

    fn send(&mut self, number: u32, request: &Request<'_>) {
        let bytes = overside_memory::View::foreign(Arc::new(wire::encode(number, request)));
        let mut batch = VecDeque::from([WorkRequest::send(0, bytes)]);
        assert_eq!(self.queue.post(self.queue_pair, &mut batch).unwrap(), 1);
    }

    fn has_ended(&mut self) -> bool {
        self.queue.poll(&mut Vec::new());
        matches!(self.queue.next_event(), Some(PortEvent::Disconnected { .. }))
    }
}

/// Everything that has no deadline happens without time.
#[test]
fn tables_are_served_while_time_stands_still() {
    let stage = Stage::new(ServerOptions::default());
    let mut client = stage.client();
    let table = fill(&mut client, 5000);
    for mode in [Mode::Copy, Mode::Gather, Mode::Delta, Mode::Auto] {
        let mut scan = client.scan(&table, &ScanOptions { mode, ..ScanOptions::default() }).unwrap();
        let mut rows = 0;
        while let Some(block) = scan.next_block().unwrap() {
            rows += block.rows().count();
            // A worker that dozes over a full window looks up when its time has come.
            stage.clock.step(Duration::from_millis(1));
        }
        assert_eq!(rows, 5000, "{mode:?}");
    }
    assert!(client.delete(&table, &[ValueRef::UInt64(7)]).unwrap());
    assert!(client.get(&table, &[ValueRef::UInt64(7)]).unwrap().is_none());
    assert!(stage.clock.passed() < Duration::from_secs(5), "{:?}", stage.clock.passed());
}

/// Who never says Hello is closed at the deadline of an hour, and not before.
#[test]
fn who_never_introduces_himself_is_closed_at_the_deadline() {
    let deadline = Duration::from_secs(3600);
    let stage = Stage::new(ServerOptions { deadline, ..ServerOptions::default() });
    let mut client = stage.client();
    let mut silent = Raw::connect(&stage);
    stage.step_until("it is connected", Duration::from_millis(10), Duration::from_secs(60), || {
        client.stats().unwrap().connections == 2
    });
    let took = stage.step_until("it is closed", Duration::from_secs(60), 2 * deadline, || silent.has_ended());
    assert!(took >= deadline - Duration::from_secs(120), "after {took:?}");
    assert_eq!(client.stats().unwrap().closed_for_cause, 1);
    assert!(client.tables().unwrap().is_empty(), "nobody else is harmed");
}

/// A client that asks for a scan and takes nothing of it holds its pages for the deadline, and loses
/// its connection then.
#[test]
fn who_takes_nothing_is_closed_at_the_deadline() {
    let deadline = Duration::from_secs(600);
    let stage = Stage::new(ServerOptions { deadline, ..ServerOptions::default() });
    let mut client = stage.client();
    let table = fill(&mut client, 20_000);
    let mut greedy = Raw::connect(&stage);
    greedy.send(1, &Request::Hello { version: wire::VERSION, block_bytes: 36 << 10, features: wire::Features::ALL });
    let scan = overside_table::wire::ScanRequest {
        table: table.info().id,
        columns: None,
        bounds: overside_table::wire::Bounds { from: None, to: None },
        mode: Mode::Gather,
        rows_max: None,
    };
    greedy.send(2, &Request::Scan(scan));
    let took = stage.step_until("it is closed", Duration::from_secs(10), 2 * deadline, || greedy.has_ended());
    assert!(took >= deadline - Duration::from_secs(20), "after {took:?}");
    let stats = client.stats().unwrap();
    assert_eq!((stats.closed_for_cause, stats.bytes_pinned), (1, 0), "{stats:?}");
    drop(greedy.provider);
}

/// A client waits for a server that says nothing as long as its own time-out says, in that time.
#[test]
fn a_client_gives_up_at_its_timeout() {
    let clock = SteppedClock::new(1);
    let world = World::by(clock.clone());
    let silent = world.provider();
    let domain = silent.allocate_domain().unwrap();
    let mut listener = silent.listen(&domain, "silent").unwrap();
    let provider: Arc<dyn Provider> = Arc::new(world.provider());
    let timeout = Duration::from_secs(24 * 3600);
    let connecting = std::thread::spawn(move || {
        Client::connect_with(provider, "silent", ClientOptions { timeout, ..ClientOptions::default() })
    });
    let link = listener.accept(Duration::from_secs(3600)).unwrap().unwrap();
    let mut queue = CompletionQueue::new(silent.open_port(&domain, PortOptions::default()).unwrap());
    queue.attach(link).unwrap();
    // A busy machine may keep the client's thread from looking for long; what it waits for is stepped time alone.
    for _ in 0..60_000 {
        if connecting.is_finished() {
            break;
        }
        clock.step(Duration::from_secs(600));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(connecting.is_finished(), "it waits on after {:?}", clock.passed());
    let error = connecting.join().unwrap().unwrap_err().to_string();
    assert!(clock.passed() >= timeout && error.contains("86400"), "{:?}: {error}", clock.passed());
}
