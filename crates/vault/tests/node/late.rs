//! When requests and answers come: at once, after what they promise, never, or all together.

use overside_memory::{Bytes, Segment};
use overside_service::{Running, Stepped, SystemThreads, Threads};
use overside_vault::server::Writes;
use overside_verbs::VerbsError;
use overside_volume::client::{Link, LinkOptions, Volume};
use overside_volume::wire::Role;
use overside_volume::{Completion, Completions, MemoryDevice, Request, Waiter, Work, complete};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::ends::Gate;
use super::posted::Posted;
use super::*;

fn write(at: u64) -> Work {
    let buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
    Work::Write { at, from: Bytes::prefix(buffer, 512), fua: false }
}

/// By FUA, or by a FLUSH before the answer where a request has none.
#[test]
fn what_goes_through_is_answered_when_the_device_has_it_on_stable_storage() {
    let (through, back) = (&["write, fua", "zero", "flush"][..], &["write", "zero"][..]);
    let all = TRANSPORTS.map(|transport| [(transport, Writes::Through, through), (transport, Writes::Back, back)]);
    for (transport, writes, asked) in all.into_iter().flatten() {
        let ((gate, device), name) = (Gate::before_memory(), fresh_name(transport));
        gate.open();
        let _served = serve(transport, &name, Box::new(device), NodeOptions { writes, ..NodeOptions::default() });
        let mut client = Link::attach(provider(transport), &name, "v", LinkOptions::default()).unwrap();
        for work in [write(0), Work::Zero { at: 4096, length: 512 }] {
            assert_eq!(complete(&mut client, &SystemClock, work, PATIENCE).1, Ok(()));
        }
        assert_eq!(*gate.done.lock().unwrap(), asked, "{transport}, {writes:?}");
    }
}

#[test]
fn what_is_overdue_is_asked_again_over_another_connection_and_carried_out_once() {
    for transport in TRANSPORTS {
        let ((gate, device), name) = (Gate::before_memory(), fresh_name(transport));
        let _served = serve(transport, &name, Box::new(device), NodeOptions::default());
        let options = LinkOptions { deadline: Duration::from_secs(1), ..LinkOptions::default() };
        let mut client = Link::attach(provider(transport), &name, "v", options).unwrap();
        let (limit, mut done) = (Instant::now() + PATIENCE, Vec::new());
        client.submit(&mut [Request { tag: 7, work: write(0) }].into());
        // The connection is sound, and the node alive: only the answer is missing.
        while !client.handle().is_away() {
            assert!(Instant::now() < limit, "nobody misses the answer");
            assert_eq!(client.poll(&mut done), 0);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(gate.arrived(), 1);
        gate.open();
        while client.poll(&mut done) == 0 {
            assert!(Instant::now() < limit, "it is not asked again");
            let look = Some(Instant::now() + Duration::from_millis(20));
            overside_volume::wait(&mut client, &SystemClock, look).unwrap();
        }
        assert_eq!((done[0].tag, done[0].result, done.len()), (7, Ok(()), 1));
        assert!(client.handle().reconnects() > 0, "the answer came over the first connection");
        assert_eq!(*gate.done.lock().unwrap(), ["write, fua"], "{transport}: carried out once");
    }
}

/// Or the node would have nowhere to put them, and would end the connection.
#[test]
fn a_client_sends_what_it_has_credits_for_and_the_rest_when_answers_come() {
    const REQUESTS: usize = 200;
    // As many as the node takes, and no more than the client has receives for answers.
    let all = [(64, u64::from(NodeOptions::default().requests_max)), (8, 8)];
    for (transport, (receives, credits)) in TRANSPORTS.into_iter().flat_map(|one| all.map(|two| (one, two))) {
        let ((gate, device), name) = (Gate::before_memory(), fresh_name(transport));
        let _served = serve(transport, &name, Box::new(device), NodeOptions::default());
        let options = LinkOptions { receives, ..LinkOptions::default() };
        let mut client = Link::attach(provider(transport), &name, "v", options).unwrap();
        let (limit, mut done) = (Instant::now() + PATIENCE, Vec::new());
        client.submit(&mut (0..REQUESTS as u64).map(|tag| Request { tag, work: write(tag * 512) }).collect());
        // For a while after the last that may come.
        let mut quiet = 0;
        while quiet < 50 {
            assert!(Instant::now() < limit, "{} requests arrive, of {credits}", gate.arrived());
            client.poll(&mut done);
            std::thread::sleep(Duration::from_millis(2));
            quiet = if gate.arrived() < credits { 0 } else { quiet + 1 };
        }
        assert_eq!((gate.arrived(), done.len()), (credits, 0), "{transport}, {receives} receives");
        gate.open();
        while done.len() < REQUESTS {
            assert!(Instant::now() < limit, "{} of {REQUESTS} came back", done.len());
            overside_volume::wait(&mut client, &SystemClock, Some(limit)).unwrap();
            client.poll(&mut done);
        }
        assert!(done.iter().all(|one| one.result == Ok(())));
        assert_eq!(client.handle().reconnects(), 0, "{transport}: the node found it wrong");
    }
}

/// Longer requests are cut, and no piece waits for another one: all of them are at the device before any has ended, each by
/// itself.
#[test]
fn pieces_of_a_long_request_are_under_way_together_and_never_one_again() {
    const PIECE: usize = 64 << 10;
    let segment = || Segment::private(4 * PIECE).unwrap().carve(4 * PIECE).pop().unwrap();
    for transport in TRANSPORTS {
        let works = [
            Work::Read { at: 0, length: 4 * PIECE, into: segment() },
            Work::Write { at: 0, from: Bytes::from(segment()), fua: false },
        ];
        for work in works {
            let ((gate, device), name) = (Gate::before_memory(), fresh_name(transport));
            let _served = serve(transport, &name, Box::new(device), NodeOptions::default());
            let options = LinkOptions { request_bytes_max: PIECE as u32, ..LinkOptions::default() };
            let mut client = Link::attach(provider(transport), &name, "v", options).unwrap();
            client.submit(&mut [Request { tag: 1, work }].into());
            let (limit, mut done) = (Instant::now() + PATIENCE, Vec::new());
            while gate.arrived() < 4 {
                assert!(Instant::now() < limit, "{transport}: {} of 4 pieces are there", gate.arrived());
                client.poll(&mut done);
                std::thread::yield_now();
            }
            assert!(done.is_empty());
            gate.open();
            while client.poll(&mut done) == 0 {
                assert!(Instant::now() < limit, "{transport}: it does not end");
                overside_volume::wait(&mut client, &SystemClock, Some(limit)).unwrap();
            }
            assert_eq!((done[0].result, gate.done.lock().unwrap().len()), (Ok(()), 4), "{transport}");
        }
    }
}

/// One call, one post of as many messages, and as many back: no request of a batch waits for the client to come back.
#[test]
fn a_batch_of_writes_is_with_the_node_when_submit_returns() {
    const WRITES: u64 = 16;
    for transport in TRANSPORTS {
        let ((gate, device), name) = (Gate::before_memory(), fresh_name(transport));
        let [asking, answering] = [(), ()].map(|()| Posted::over(provider(transport)));
        let node = Node::new(SystemClock::handle(), NodeOptions::default()).unwrap();
        node.add("v", Box::new(device)).unwrap();
        // The volume's thread; connections are served here, step by step.
        let _served = node.serve(Vec::new(), ServiceOptions::default()).unwrap();
        let listening = Listening::open(answering.clone(), &[&name]).unwrap();
        let mut server = Stepped::start(listening, node, ServiceOptions::default()).unwrap();
        let of_client = asking.clone();
        let attaching =
            std::thread::spawn(move || Link::attach(of_client, &name, "v", LinkOptions::default()).unwrap());
        while !attaching.is_finished() {
            server.greet(Duration::from_millis(1));
            while server.step() {}
        }
        let mut client = attaching.join().unwrap();
        for before in [&asking, &answering] {
            before.take();
        }
        client.submit(&mut (0..WRITES).map(|tag| Request { tag, work: write(tag * 512) }).collect());
        assert_eq!(asking.take(), [WRITES as usize], "{transport}: one post");
        let limit = Instant::now() + PATIENCE;
        while gate.arrived() < WRITES {
            assert!(Instant::now() < limit, "{transport}: {} of {WRITES} are there", gate.arrived());
            server.step();
        }
        gate.open();
        let mut done = Vec::new();
        while done.len() < WRITES as usize {
            assert!(Instant::now() < limit, "{transport}: {} of {WRITES} are back", done.len());
            server.step();
            client.poll(&mut done);
        }
        assert_eq!(answering.take().iter().sum::<usize>(), WRITES as usize, "{transport}: a message each");
        assert_eq!(asking.take(), [0; 0], "{transport}: and none more");
    }
}

/// Who polls never sleeps, and makes no descriptor readable where the kernel does not carry the messages; who sleeps is woken.
#[test]
fn who_polls_is_not_woken_and_who_wants_to_be_sleeps() {
    const READS: u64 = 50;
    for transport in TRANSPORTS {
        let name = fresh_name(transport);
        let device = Box::new(MemoryDevice::new(1 << 20).unwrap());
        let _served = serve(transport, &name, device, NodeOptions::default());
        let mut client = client(transport, &name, Role::Reader);
        let limit = Instant::now() + PATIENCE;
        let sleeps = |client: &mut Volume, how| {
            let (mut waiter, before, mut done) = (Waiter::new(how), slept(), Vec::<Completion>::new());
            for tag in 0..READS {
                client.submit(&mut [Request { tag, work: read() }].into());
                while done.len() as u64 <= tag {
                    assert!(Instant::now() < limit, "{transport}, {how:?}: no answer comes");
                    waiter.poll(client, &SystemClock, Some(limit), &mut done).unwrap();
                }
            }
            assert!(done.iter().all(|one| one.result == Ok(())));
            slept() - before
        };
        // A busy host answers before one sleeps, or makes one wait elsewhere: now and then, not each time.
        let until = |client: &mut Volume, how, is_so: fn(u64) -> bool| {
            let mut tries = Vec::new();
            while !tries.last().is_some_and(|sleeps| is_so(*sleeps)) {
                assert!(Instant::now() < limit, "{transport}, {how:?}: {tries:?} sleeps of {READS} reads");
                tries.push(sleeps(client, how));
            }
        };
        until(&mut client, Completions::Interrupt, |sleeps| sleeps > READS / 2);
        until(&mut client, Completions::Poll, |sleeps| sleeps < READS / 4);
        // Once woken it is not woken for what it polls for. An answer that comes as it lies down leaves a bell that is still to ring.
        let mut is_silent = transport != "shm";
        while !is_silent {
            assert!(Instant::now() < limit, "who polls is woken");
            sleeps(&mut client, Completions::Interrupt);
            client.submit(&mut [Request { tag: 0, work: read() }].into());
            while client.poll(&mut Vec::new()) == 0 {
                assert!(Instant::now() < limit, "{transport}: no answer comes");
                std::thread::yield_now();
            }
            // A bell is rung after what it is rung for.
            std::thread::sleep(Duration::from_millis(20));
            let mut woken = [PollFd::from_borrowed_fd(client.fd().unwrap(), PollFlags::IN)];
            is_silent = rustix::event::poll(&mut woken, Some(&Timespec::default())).unwrap() == 0;
        }
    }
}

/// How often this thread has slept.
fn slept() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// A sleep for each would cost a wake-up for each. The client sleeps in the kernel when the first of them comes, and its thread's
/// own count says how often it slept.
#[test]
fn answers_that_come_together_are_taken_by_one_wake_up() {
    const REQUESTS: u64 = 32;
    for transport in TRANSPORTS {
        let ((gate, device), name) = (Gate::before_memory(), fresh_name(transport));
        let _served = serve(transport, &name, Box::new(device), NodeOptions::default());
        let mut client = Link::attach(provider(transport), &name, "v", LinkOptions::default()).unwrap();
        let limit = Instant::now() + PATIENCE;
        client.submit(&mut (0..REQUESTS).map(|tag| Request { tag, work: write(tag * 512) }).collect());
        while gate.arrived() < REQUESTS {
            assert!(Instant::now() < limit, "requests do not arrive");
            assert_eq!(client.poll(&mut Vec::new()), 0);
        }
        let own = Path::new("/proc").join(std::fs::read_link("/proc/thread-self").unwrap()).join("status");
        let of_thread = |name: &str| {
            let text = std::fs::read_to_string(&own).unwrap();
            text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
        };
        let (before, mut done) = (slept(), Vec::<Completion>::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !of_thread("State:").starts_with('S') {
                    std::thread::yield_now();
                }
                gate.open();
            });
            while done.len() < REQUESTS as usize {
                assert!(Instant::now() < limit, "answers do not come");
                overside_volume::wait(&mut client, &SystemClock, Some(limit)).unwrap();
                client.poll(&mut done);
            }
        });
        let sleeps = slept() - before;
        assert!((1..REQUESTS / 4).contains(&sleeps), "{transport}: {sleeps} sleeps for {REQUESTS} answers");
    }
}

/// All threads but those of volumes.
#[derive(Debug)]
struct WithoutVolumes;

impl Threads for WithoutVolumes {
    fn start(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> Result<Running, VerbsError> {
        if name.starts_with("volume-") { Ok(Running::new(|| ())) } else { SystemThreads.start(name, run) }
    }
}

fn client(transport: &str, name: &str, role: Role) -> Volume {
    Link::attach(provider(transport), name, "v", LinkOptions { role, ..LinkOptions::default() }).unwrap()
}

fn read() -> Work {
    Work::Read { at: 0, length: 512, into: Segment::private(4096).unwrap().carve(4096).pop().unwrap() }
}

/// Submits it, and waits until `arrived` requests are with the device.
fn ask(client: &mut Volume, gate: &Gate, arrived: u64) {
    client.submit(&mut [Request { tag: arrived, work: read() }].into());
    let limit = Instant::now() + PATIENCE;
    while gate.arrived() < arrived {
        assert!(Instant::now() < limit, "the request does not arrive");
        assert_eq!(client.poll(&mut Vec::new()), 0);
        std::thread::yield_now();
    }
}

fn answered(client: &mut Volume) {
    let (limit, mut done) = (Instant::now() + Duration::from_secs(10), Vec::new());
    while client.poll(&mut done) == 0 {
        assert!(Instant::now() < limit, "no answer comes");
        overside_volume::wait(client, &SystemClock, Some(limit)).unwrap();
    }
    assert_eq!(done[0].result, Ok(()));
}

/// Its worker has slept, and takes what the device has ended by itself.
#[test]
fn what_ends_later_is_answered_without_another_thread() {
    for transport in TRANSPORTS {
        let ((gate, device), name) = (Gate::before_memory(), fresh_name(transport));
        let node = Node::new(SystemClock::handle(), NodeOptions::default()).unwrap();
        node.add("v", Box::new(device)).unwrap();
        let listening = Listening::open(provider(transport), &[&name]).unwrap();
        let threads = Arc::new(WithoutVolumes);
        let options = ServiceOptions { workers: 1, threads, ..ServiceOptions::default() };
        let _served = node.serve(vec![listening], options).unwrap();
        let mut client = client(transport, &name, Role::Writer);
        ask(&mut client, &gate, 1);
        std::thread::sleep(Duration::from_millis(50));
        gate.open();
        answered(&mut client);
    }
}

/// Others go on with what the device still has.
#[test]
fn what_ends_after_the_client_that_asked_first_has_gone_is_answered() {
    for transport in TRANSPORTS {
        let ((gate, device), name) = (Gate::before_memory(), fresh_name(transport));
        let served = serve(transport, &name, Box::new(device), NodeOptions::default());
        let [mut first, mut second] = [(), ()].map(|()| client(transport, &name, Role::Reader));
        ask(&mut first, &gate, 1);
        // The volume's thread looks, and leaves the device to the worker from then on.
        gate.nudge();
        std::thread::sleep(Duration::from_millis(50));
        ask(&mut second, &gate, 2);
        drop(first);
        let limit = Instant::now() + PATIENCE;
        while served.service().connections > 1 {
            assert!(Instant::now() < limit, "its connection does not end");
            std::thread::yield_now();
        }
        gate.open();
        answered(&mut second);
    }
}
