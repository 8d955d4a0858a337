//! WRITEs whose bytes the node reads from the client's memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use overside_memory::{Buffer, Bytes, Segment, View};
use overside_service::Notices;
use overside_verbs::{
    Access, CompletionQueue, Loan, Memory, MemoryRegion, Opcode, PortOptions, ProtectionDomain, QueuePair, RemoteToken,
    Status as Ended, WorkRequest,
};
use overside_volume::client::{Link, LinkOptions, Registration};
use overside_volume::wire::{GRANTS, Hello, Operation, Reply, RequestHeader, Role, Status, Welcome};
use overside_volume::{Completion, DeviceError, MemoryDevice, Request, Work, complete, wait};

use super::ends::Gate;
use super::*;

const VOLUME_BYTES: u64 = 1 << 20;
/// Bytes of a receive.
const RECEIVE: usize = 32 << 10;

fn memory() -> Box<dyn Device> {
    Box::new(MemoryDevice::new(VOLUME_BYTES).unwrap())
}

fn shared(bytes: usize, fill: u8) -> Buffer {
    let mut buffer = Segment::shared(bytes).unwrap().carve(bytes).pop().unwrap();
    buffer.fill(fill);
    buffer
}

/// A client whose every word the test says.
pub struct Raw {
    provider: Arc<dyn Provider>,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    queue_pair: QueuePair,
    next: u64,
    session: u64,
}

impl Raw {
    /// Connects and greets the node.
    pub fn greeted(name: &str, role: Role) -> Raw {
        let mut raw = Raw::connected(name);
        // No answer to a WRITE is longer than its header.
        let (name, buffer_bytes) = ("v".to_owned(), 129 << 10);
        let (features, number) = (GRANTS, 0);
        let (session, incarnation, generation, process, group) = (0, 0, 1, 0, 5);
        let hello =
            Hello { number, name, role, session, incarnation, generation, buffer_bytes, features, process, group };
        raw.say(&hello.bytes());
        let welcome = Welcome::parse(&raw.heard().expect("a welcome")).unwrap();
        assert_eq!((welcome.status, welcome.features), (Status::Done, GRANTS));
        raw.session = welcome.session;
        raw
    }

    fn connected(name: &str) -> Raw {
        let provider = provider("shm");
        let domain = provider.allocate_domain().unwrap();
        let mut queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
        let queue_pair = queue.attach(provider.connect(&domain, name, PATIENCE).unwrap()).unwrap();
        let segment = Segment::private(64 * RECEIVE).unwrap().carve(RECEIVE);
        provider.register(&domain, &Memory::Segment(segment[0].segment().clone()), Access::LOCAL).unwrap();
        let mut receives: Vec<(u64, Buffer)> = (0..).zip(segment).collect();
        queue.post_receive_or_loan(Some(queue_pair), &mut receives).unwrap();
        Raw { provider, domain, queue, queue_pair, next: 1, session: 0 }
    }

    fn grant(&self, buffer: &Buffer) -> MemoryRegion {
        let memory = Memory::Segment(buffer.segment().clone());
        self.provider.register(&self.domain, &memory, Access::REMOTE_READ).unwrap()
    }

    fn say(&mut self, message: &[u8]) {
        let message = WorkRequest::send(0, View::foreign(Arc::new(message.to_vec()))).unsignalled();
        // Whoever was disconnected says nothing more.
        let _ = self.queue.post(self.queue_pair, &mut VecDeque::from([message]));
    }

    /// A message; none where the connection has ended.
    fn heard(&mut self) -> Option<Vec<u8>> {
        let (buffer, bytes, loan) = self.received()?;
        assert!(loan.is_none(), "an answer without bytes is lent");
        Some(buffer[..bytes].to_vec())
    }

    /// What is lent of a READ's answer.
    pub fn read(&mut self, lba: u64, length: u32) -> Loan {
        let request = RequestHeader { operation: Operation::Read, ..self.request(lba, length) };
        self.say(&request.bytes());
        self.received().and_then(|(_, _, loan)| loan).expect("a loan")
    }

    fn received(&mut self) -> Option<(Buffer, usize, Option<Loan>)> {
        let (mut done, end) = (Vec::new(), Instant::now() + PATIENCE);
        while Instant::now() < end {
            self.queue.poll_wait(&mut done, Some(Duration::from_millis(20))).unwrap();
            for completion in done.drain(..) {
                if completion.opcode == Opcode::Receive {
                    let buffer = completion.buffer.filter(|_| completion.status == Ended::Success)?;
                    return Some((buffer, completion.bytes as usize, completion.loan));
                }
            }
        }
        panic!("the node says nothing and goes on");
    }

    fn request(&mut self, lba: u64, length: u32) -> RequestHeader {
        self.next += 1;
        let operation = Operation::WriteGranted { fua: false };
        let (session, number) = (self.session, self.next);
        RequestHeader { operation, session, generation: 1, number, lowest: number.saturating_sub(8), lba, length }
    }

    fn write(&mut self, request: RequestHeader, token: RemoteToken) {
        self.say(&[&request.bytes()[..], &token.to_bytes()].concat());
    }

    fn status(&mut self) -> Option<Status> {
        self.heard().map(|message| Reply::parse(&message).unwrap().0.status)
    }
}

fn token(region: &MemoryRegion, at: u64, len: u64) -> RemoteToken {
    RemoteToken { at, len, ..region.token() }
}

fn read(link: &mut dyn Device, at: u64, length: usize) -> Vec<u8> {
    let into = Segment::private(length).unwrap().carve(length).pop().unwrap();
    match complete(link, &SystemClock, Work::Read { at, length, into }, PATIENCE) {
        (Some(Work::Read { into, .. }), Ok(())) => into[..length].to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Writes blocks of these lengths, many at a time, and writes over their memory as soon as each has ended.
fn write_and_scribble(link: &mut dyn Device, length: usize, buffers: usize, last: u8) {
    let (mut free, mut batch, mut done) = (Vec::new(), VecDeque::new(), Vec::new());
    free.extend((0..buffers).map(|_| shared(length, 0)));
    let places = VOLUME_BYTES / length as u64;
    let mut left: VecDeque<(u64, u8)> =
        (1..=last).flat_map(|fill| (0..places).map(move |place| (place, fill))).collect();
    let mut under_way = 0;
    while !left.is_empty() || under_way > 0 {
        while let Some((place, fill)) = left.front().copied()
            && let Some(mut buffer) = free.pop()
        {
            left.pop_front();
            buffer.fill(fill);
            let work = Work::Write { at: place * length as u64, from: Bytes::from(buffer), fua: false };
            batch.push_back(Request { tag: place, work });
            under_way += 1;
        }
        link.submit(&mut batch);
        if link.poll(&mut done) == 0 {
            wait(link, &SystemClock, Some(Instant::now() + PATIENCE)).unwrap();
        }
        for Completion { work, result, .. } in done.drain(..) {
            assert_eq!(result, Ok(()));
            let Work::Write { from, .. } = work else { panic!("{work:?}") };
            let mut buffer = from.into_buffer().expect("nobody shares what has been written");
            buffer.fill(0xee);
            free.push(buffer);
            under_way -= 1;
        }
    }
}

/// In every way of registering it, over providers that read by themselves and over those that do not.
#[test]
fn what_is_written_is_read_from_the_callers_memory_which_is_its_own_again_after() {
    for transport in TRANSPORTS {
        let ways = [1, 3, 1000, u32::MAX]
            .map(|writes| Some(Registration { writes, bytes_max: 1 << 20, ..Registration::default() }));
        for registration in ways.into_iter().chain([None]) {
            let name = fresh_name(transport);
            // Fewer buffers than there are WRITEs at a time.
            let _served = serve(transport, &name, memory(), NodeOptions { blocks: 3, ..NodeOptions::default() });
            let options = LinkOptions { registration, ..LinkOptions::default() };
            let mut link = Link::attach(provider(transport), &name, "v", options).unwrap();
            for length in [4096, 64 << 10, 256 << 10] {
                write_and_scribble(&mut link, length, 7, 3);
                let places = 0..VOLUME_BYTES / length as u64;
                places.for_each(|place| assert_eq!(read(&mut link, place * length as u64, length), vec![3; length]));
            }
            let granted = link.handle().granted();
            assert_eq!(granted > 0, transport == "shm" && registration.is_some(), "{transport} {granted}");
        }
    }
}

#[test]
fn memory_that_cannot_be_registered_and_short_writes_are_copied() {
    let name = fresh_name("shm");
    let _served = serve("shm", &name, memory(), NodeOptions::default());
    let mut link = Link::attach(provider("shm"), &name, "v", LinkOptions::default()).unwrap();
    let mut private = Segment::private(8192).unwrap().carve(8192).pop().unwrap();
    private.fill(7);
    for (at, from) in [(0, private), (8192, shared(512, 7))] {
        let length = from.len();
        let work = Work::Write { at, from: Bytes::from(from), fua: true };
        assert_eq!(complete(&mut link, &SystemClock, work, PATIENCE).1, Ok(()));
        assert_eq!(read(&mut link, at, length), vec![7; length]);
    }
    assert_eq!(link.handle().granted(), 0);
}

/// Each loses its connection, nothing is written, others go on, and the node has its buffers back.
#[test]
fn who_grants_what_it_does_not_have_loses_its_connection_alone() {
    let name = fresh_name("shm");
    let _served = serve("shm", &name, memory(), NodeOptions { blocks: 4, ..NodeOptions::default() });
    let mut other =
        Link::attach(provider("shm"), &name, "v", LinkOptions { group: 5, ..LinkOptions::default() }).unwrap();
    write_and_scribble(&mut other, 8192, 2, 1);
    type Bad = fn(&mut Raw, &MemoryRegion);
    let bad: BTreeMap<&str, Bad> = BTreeMap::from([
        (
            "an unknown key",
            (|raw, region| {
                let request = raw.request(0, 8192);
                raw.write(request, RemoteToken { rkey: region.token().rkey ^ 1, ..token(region, 0, 8192) });
            }) as Bad,
        ),
        ("past its end", |raw, region| {
            let request = raw.request(0, 8192);
            raw.write(request, token(region, 8192 + 1, 8192));
        }),
        ("far past its end", |raw, region| {
            let request = raw.request(0, 8192);
            raw.write(request, token(region, u64::MAX - 100, 8192));
        }),
        ("of another length", |raw, region| {
            let request = raw.request(0, 8192);
            raw.write(request, token(region, 0, 4096));
        }),
        ("of no bytes", |raw, region| {
            let request = raw.request(0, 0);
            raw.write(request, token(region, 0, 0));
        }),
        ("longer than a request", |raw, region| {
            let request = raw.request(0, 256 << 10);
            raw.write(request, token(region, 0, 256 << 10));
        }),
        ("half a grant", |raw, region| {
            let request = raw.request(0, 8192);
            raw.say(&[&request.bytes()[..], &token(region, 0, 8192).to_bytes()[..16]].concat());
        }),
        ("no grant", |raw, _| {
            let request = raw.request(0, 8192);
            raw.say(&request.bytes());
        }),
        ("of another session", |raw, region| {
            let request = RequestHeader { session: raw.session + 1, ..raw.request(0, 8192) };
            raw.write(request, token(region, 0, 8192));
        }),
        ("of another generation", |raw, region| {
            let request = RequestHeader { generation: 2, ..raw.request(0, 8192) };
            raw.write(request, token(region, 0, 8192));
        }),
        ("of memory that is granted no more", |raw, region| {
            let memory = region.memory.clone();
            let gone = raw.provider.register(&raw.domain, &memory, Access::REMOTE_READ).unwrap();
            let last = gone.token();
            raw.provider.deregister(gone).unwrap();
            let request = raw.request(0, 8192);
            raw.write(request, RemoteToken { len: 8192, ..last });
        }),
    ]);
    for (what, says) in &bad {
        // More often than there are buffers.
        for _ in 0..6 {
            let mut raw = Raw::greeted(&name, Role::Writer);
            let memory = shared(16 << 10, 9);
            let region = raw.grant(&memory);
            says(&mut raw, &region);
            assert_eq!(raw.heard(), None, "{what}");
        }
        assert_eq!(complete(&mut other, &SystemClock, Work::Flush, PATIENCE).1, Ok(()), "{what}: others go on");
    }
    let mut early = Raw::connected(&name);
    let memory = shared(8192, 9);
    let region = early.grant(&memory);
    let request = early.request(0, 8192);
    early.write(request, token(&region, 0, 8192));
    assert_eq!(early.heard(), None, "before a greeting");
    assert_eq!(read(&mut other, 0, 8192), vec![1; 8192], "nothing of all that was written");
    write_and_scribble(&mut other, 8192, 8, 2);
}

#[test]
fn a_granted_write_is_refused_as_any_other() {
    let name = fresh_name("shm");
    let _served = serve("shm", &name, memory(), NodeOptions { blocks: 4, ..NodeOptions::default() });
    let mut reader = Raw::greeted(&name, Role::Reader);
    let (memory, mut others) = (shared(8192, 9), shared(8192, 0));
    let region = reader.grant(&memory);
    for _ in 0..6 {
        let request = reader.request(0, 8192);
        // Its memory is not even looked at, so it takes no buffer.
        reader.write(request, RemoteToken { rkey: region.token().rkey ^ 1, ..token(&region, 0, 8192) });
        assert_eq!(reader.status(), Some(Status::Device(DeviceError::ReadOnly)));
    }
    let mut writer = Raw::greeted(&name, Role::Writer);
    let region = writer.grant(&memory);
    for (lba, expected) in [(VOLUME_BYTES / 512, DeviceError::Invalid), (u64::MAX, DeviceError::Invalid)] {
        for _ in 0..6 {
            let request = writer.request(lba, 8192);
            writer.write(request, token(&region, 0, 8192));
            assert_eq!(writer.status(), Some(Status::Device(expected)));
        }
    }
    // A part of what is granted, and the same request again with other bytes.
    let request = writer.request(0, 512);
    writer.write(request, token(&region, 4096, 512));
    assert_eq!(writer.status(), Some(Status::Done));
    others.fill(8);
    let region = writer.grant(&others);
    for _ in 0..6 {
        writer.write(request, token(&region, 0, 512));
        assert_eq!(writer.status(), Some(Status::Done));
    }
    let mut link =
        Link::attach(provider("shm"), &name, "v", LinkOptions { group: 5, ..LinkOptions::default() }).unwrap();
    assert_eq!(read(&mut link, 0, 1024), [[9; 512], [0; 512]].concat());
    // Who takes over fences it off.
    let mut taker = Raw::greeted(&name, Role::TakeOver);
    drop(link);
    let request = taker.request(0, 512);
    let region = taker.grant(&memory);
    taker.write(request, token(&region, 0, 512));
    assert_eq!(taker.status(), Some(Status::Done));
}

/// With buffers to read into, and with few. The operator reads a line, and the one too many reaches no disk.
#[test]
fn who_grants_more_writes_than_it_has_credits_for_is_cut_off_with_a_line() {
    const CREDITS: u64 = 8;
    for blocks in [64, 4] {
        let ((gate, device), name) = (Gate::before_memory(), fresh_name("shm"));
        let options = NodeOptions { blocks, requests_max: CREDITS as u16, ..NodeOptions::default() };
        let node = Node::new(SystemClock::handle(), options).unwrap();
        node.add("v", Box::new(device)).unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let also = said.clone();
        let notices = Notices::new(move |line| also.lock().unwrap().push(line.to_owned()));
        let options = ServiceOptions { workers: 1, notices: Some(notices), ..ServiceOptions::default() };
        let served = node.serve(vec![Listening::open(provider("shm"), &[&name]).unwrap()], options).unwrap();
        let mut raw = Raw::greeted(&name, Role::Writer);
        let memory = shared(8192, 9);
        let region = raw.grant(&memory);
        let mut write = |place: u64| {
            let request = raw.request(place * 16, 8192);
            raw.write(request, token(&region, 0, 8192));
        };
        (0..CREDITS).for_each(&mut write);
        let limit = Instant::now() + PATIENCE;
        while gate.arrived() < CREDITS {
            assert!(Instant::now() < limit, "{blocks}: {} of {CREDITS} arrive", gate.arrived());
            std::thread::yield_now();
        }
        assert_eq!((served.service().connections, said.lock().unwrap().len()), (1, 0), "{blocks}");
        write(CREDITS);
        assert_eq!(raw.heard(), None, "{blocks}");
        let told = said.lock().unwrap().clone();
        let [line] = &told[..] else { panic!("{told:?}") };
        assert!(line.contains("more requests in flight than there are credits"), "{line}");
        assert_eq!(gate.arrived(), CREDITS, "{blocks}");
        gate.open();
    }
}

/// One of two segments is registered as long as its WRITE is under way. The other finds no room, and its bytes go along.
#[test]
fn a_write_whose_memory_finds_no_room_is_copied() {
    let ((gate, device), name) = (Gate::before_memory(), fresh_name("shm"));
    let _served = serve("shm", &name, Box::new(device), NodeOptions::default());
    let registration = Registration { bytes_max: 8192, by_price: false, ..Registration::default() };
    let options = LinkOptions { registration: Some(registration), ..LinkOptions::default() };
    let mut link = Link::attach(provider("shm"), &name, "v", options).unwrap();
    let write = |place: u64| {
        let from = Bytes::from(shared(8192, place as u8));
        Request { tag: place, work: Work::Write { at: place * 8192, from, fua: false } }
    };
    link.submit(&mut [write(1), write(2)].into());
    let (limit, mut done) = (Instant::now() + PATIENCE, Vec::new());
    while gate.arrived() < 2 {
        assert!(Instant::now() < limit, "{} of 2 arrive", gate.arrived());
        link.poll(&mut done);
        std::thread::yield_now();
    }
    assert_eq!((link.handle().granted(), done.len()), (1, 0));
    gate.open();
    while done.len() < 2 {
        assert!(Instant::now() < limit, "{} of 2 end", done.len());
        wait(&mut link, &SystemClock, Some(limit)).unwrap();
        link.poll(&mut done);
    }
    assert!(done.iter().all(|one| one.result == Ok(())));
    assert_eq!(read(&mut link, 8192, 16384), [[1; 8192], [2; 8192]].concat());
}

/// A WRITE finds the only buffer in use by another client's, and is all that its own client asks.
#[test]
fn a_granted_write_that_waits_for_a_buffer_gets_the_first_that_is_free() {
    let name = fresh_name("shm");
    let options = NodeOptions { blocks: 1, ..NodeOptions::default() };
    let _served = serve("shm", &name, memory(), options);
    let memory = [shared(8192, 7), shared(8192, 9)];
    let greet = || (Raw::greeted(&name, Role::Writer), Raw::greeted(&name, Role::Writer));
    let (mut busy, mut waits) = greet();
    for round in 0..40 {
        // Each has receives for so many answers.
        if round % 5 == 0 {
            (busy, waits) = greet();
        }
        let regions = (busy.grant(&memory[0]), waits.grant(&memory[1]));
        for place in 0..8 {
            let request = busy.request(place * 16, 8192);
            busy.write(request, token(&regions.0, 0, 8192));
        }
        let request = waits.request(256, 8192);
        waits.write(request, token(&regions.1, 0, 8192));
        (0..8).for_each(|_| assert_eq!(busy.status(), Some(Status::Done)));
        assert_eq!(waits.status(), Some(Status::Done));
    }
}
