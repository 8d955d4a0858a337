//! Channels and scatters: what is declared arrives as single messages, whatever way was planned; what
//! cannot be waited for any longer is said.

mod ends;

use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment};
use overside_planner::{Force, Goal, Method, Profile, Terms};
use overside_shape::{Bitmap, Column, Mask, Order, Run, Shape};
use overside_transfer::{Buffers, Channel, Error, Listener, Options, Scatter, Sharing};
use overside_verbs::VerbsError;

use ends::{PATIENCE, TRANSPORTS, fresh_name, provider};

fn pair(transport: &str) -> (Channel, Channel) {
    pair_with(transport, &Options::default())
}

fn pair_with(transport: &str, options: &Options) -> (Channel, Channel) {
    let name = fresh_name(transport);
    let mut listener = Listener::listen(provider(transport), &name, options.clone()).unwrap();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| Channel::connect(provider(transport), &name, options, PATIENCE).unwrap());
        let there = listener.accept(PATIENCE).unwrap();
        (connecting.join().unwrap(), there)
    })
}

/// A scatter and its receivers.
fn scattered(transport: &str, destinations: usize) -> (Scatter, Vec<Channel>) {
    let names: Vec<String> = (0..destinations).map(|_| fresh_name(transport)).collect();
    let listen = |name: &String| Listener::listen(provider(transport), name, Options::default()).unwrap();
    let mut listeners: Vec<Listener> = names.iter().map(listen).collect();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listeners.iter_mut().map(|l| l.accept(PATIENCE).unwrap()).collect());
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let scatter = Scatter::connect(provider(transport), &names, &Options::default(), PATIENCE).unwrap();
        (scatter, accepting.join().unwrap())
    })
}

fn patterned(mut buffer: Buffer) -> Arc<Buffer> {
    buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + (i >> 8)) as u8);
    Arc::new(buffer)
}

fn messages(memory: &[u8], shape: &Shape) -> Vec<Vec<u8>> {
    let messages = shape.messages();
    let bytes = |run: Run| &memory[run.at as usize..][..run.len as usize];
    (0..messages.count()).map(|i| messages.message(i).flat_map(bytes).copied().collect()).collect()
}

fn shapes() -> Vec<Shape> {
    let columns = [0, 8192, 16384].map(|at| Shape::column(at, 4, 1000).unwrap());
    let bits = Bitmap::of(1000, |row| row % 3 != 1);
    vec![
        Shape::contiguous(100, 5000).unwrap(),
        Shape::strided(0, 64, 100, &[Run::new(0, 8), Run::new(24, 4)]).unwrap(),
        Shape::set(columns.to_vec(), Mask::Rows).unwrap(),
        Shape::bitmapped(&[Column::dense(0, 4), Column::dense(8192, 8)], &bits, Order::Rows).unwrap(),
        Shape::mapped(vec![300u64, 20_000, 64, 7000], &[Run::new(0, 16), Run::new(40, 3)]).unwrap(),
        Shape::variable(500, vec![0u64, 10, 10, 3000, 3001, 9000], None).unwrap(),
        Shape::list(&[Run::new(0, 20_000), Run::new(25_000, 3), Run::new(25_010, 3)]).unwrap(),
    ]
}

#[test]
fn messages_of_every_kind_of_region_arrive_one_by_one() {
    for transport in TRANSPORTS {
        let (mut here, mut there) = pair(transport);
        let memory = patterned(here.allocate(32 << 10).unwrap());
        for shape in shapes().into_iter().map(Arc::new) {
            let ways = [None, Some(Force::Method(Method::Copy)), Some(Force::Threshold(64)), Some(Force::Threshold(1))];
            for force in ways {
                here.set_terms(Terms { force, ..Terms::default() });
                let declared = here.declare(&memory, &shape).unwrap();
                // The receiver moves the bytes: it must be at work while more is sent than a queue holds.
                std::thread::scope(|scope| {
                    scope.spawn(|| here.send(&declared, PATIENCE).and_then(|()| here.flush(PATIENCE)).unwrap());
                    for expected in messages(&memory, &shape) {
                        let message = there.receive(PATIENCE).unwrap();
                        assert!(message[..] == expected[..], "{transport}: {shape:?} by {force:?}");
                        there.recycle(message).unwrap();
                    }
                    // One more look: a receiver that takes nothing more has told of all it took.
                    assert!(there.receive(Duration::from_millis(1)).unwrap_err().is_overdue());
                });
            }
            assert!(there.receive(Duration::ZERO).is_err(), "and no others");
        }
    }
}

#[test]
fn messages_that_arrive_together_are_a_batch() {
    let (mut here, mut there) = pair("shm");
    let memory = patterned(here.allocate(32 << 10).unwrap());
    let shape = Arc::new(Shape::strided(0, 16, 2000, &[Run::new(0, 4)]).unwrap());
    let declared = here.declare(&memory, &shape).unwrap();
    here.send(&declared, PATIENCE).unwrap();
    let mut came = Vec::new();
    while came.len() < 2000 {
        let batch = there.receive_batch(PATIENCE).unwrap();
        assert_eq!(batch.messages().len() * 4, batch.bytes().len());
        came.extend(batch.messages().map(<[u8]>::to_vec));
        there.recycle_batch(batch).unwrap();
    }
    assert!(came == messages(&memory, &shape));
}

/// What it has taken has arrived: whoever sent it need not wait for its next call. A thread that slept beside its owner missed
/// that the owner came and went.
#[test]
fn a_receiver_that_stops_polling_has_acknowledged_what_it_took() {
    let (mut here, mut there) = pair("tcp");
    let memory = patterned(here.allocate(4096).unwrap());
    let declared = here.declare(&memory, &Arc::new(Shape::contiguous(0, 100).unwrap())).unwrap();
    for round in 0..40 {
        here.send(&declared, PATIENCE).unwrap();
        let message = there.receive(PATIENCE).unwrap();
        here.flush(Duration::from_secs(3)).unwrap_or_else(|error| panic!("round {round}: {error}"));
        there.recycle(message).unwrap();
    }
}

#[test]
fn a_region_that_leaves_its_memory_is_refused() {
    let (mut here, _there) = pair("shm");
    let memory = Arc::new(here.allocate(4096).unwrap());
    let outside = Arc::new(Shape::contiguous(4000, 97).unwrap());
    let error = here.declare(&memory, &outside).unwrap_err().to_string();
    assert_eq!(
        error,
        "the region: bytes 4000..4000+97 escape from a memory of 4096 bytes; declare it over the memory it lies in"
    );
}

#[test]
fn a_scatter_brings_each_destination_its_rows() {
    let (mut scatter, mut there) = scattered("shm", 3);
    let memory = patterned(scatter.allocate(2 * 4 * 30_000).unwrap());
    let shapes = thirds();
    assert_eq!(scatter.send(&memory, &shapes, PATIENCE).unwrap().len(), 3);
    for (channel, shape) in there.iter_mut().zip(&shapes) {
        for expected in messages(&memory, shape) {
            let message = channel.receive(PATIENCE).unwrap();
            assert!(message[..] == expected[..]);
            channel.recycle(message).unwrap();
        }
    }
    scatter.flush(PATIENCE).unwrap();
    let twice = [shapes[0].clone(), shapes[1].clone(), shapes[0].clone()];
    let error = scatter.send(&memory, &twice, PATIENCE).unwrap_err().to_string();
    assert!(error.starts_with("destinations 0 and 2 overlap"), "{error}");
    assert!(error.ends_with("allow overlaps"), "{error}");
    let error = scatter.send(&memory, &shapes[..2], PATIENCE).unwrap_err().to_string();
    assert!(error.starts_with("shapes: 2 for 3 destinations; give one for each"), "{error}");
    assert!(there[0].receive(Duration::ZERO).is_err(), "nothing was sent");
    // What was refused is not waited for.
    scatter.flush(Duration::ZERO).unwrap();
}

#[test]
fn a_scatter_brings_several_the_same_rows_where_that_is_allowed() {
    let (mut scatter, mut there) = scattered("shm", 3);
    let memory = patterned(scatter.allocate(2 * 4 * 30_000).unwrap());
    let thirds = thirds();
    let shapes = [thirds[0].clone(), thirds[1].clone(), thirds[0].clone()];
    scatter.set_sharing(Sharing::Allowed);
    assert_eq!(scatter.send(&memory, &shapes, PATIENCE).unwrap().len(), 3);
    for (channel, shape) in there.iter_mut().zip(&shapes) {
        for expected in messages(&memory, shape) {
            let message = channel.receive(PATIENCE).unwrap();
            assert!(message[..] == expected[..]);
            channel.recycle(message).unwrap();
        }
    }
    scatter.flush(PATIENCE).unwrap();
}

/// Two columns of 30,000 values, of which row i goes to destination i % 3.
fn thirds() -> Vec<Arc<Shape>> {
    let rows_of = |to: u64| {
        let column = |at: u64| Shape::strided(at + to * 4, 12, 10_000, &[Run::new(0, 4)]).unwrap();
        Arc::new(Shape::set(vec![column(0), column(120_000)], Mask::Rows).unwrap())
    };
    (0..3).map(rows_of).collect()
}

/// As many messages of a mebibyte as no ring holds.
fn long_messages() -> Arc<Shape> {
    Arc::new(Shape::mapped(vec![0u64; 40], &[Run::new(0, 1 << 20)]).unwrap())
}

#[test]
fn a_flush_ends_at_its_deadline_with_what_is_missing() {
    for transport in TRANSPORTS {
        let (mut here, mut there) = pair(transport);
        let memory = patterned(here.allocate(1 << 20).unwrap());
        let shape = long_messages();
        let declared = here.declare(&memory, &shape).unwrap();
        let (within, start) = (Duration::from_millis(300), Instant::now());
        // Nobody receives.
        let sent = here.send(&declared, within);
        let Err(Error::Unflushed { missing, .. }) = here.flush(within) else { panic!("{transport}: flushed") };
        assert!(start.elapsed() >= within && start.elapsed() < PATIENCE, "{transport}");
        assert_eq!((missing.sends, missing.destinations), (vec![(0, 1)], 1), "{transport}");
        let text = here.flush(Duration::ZERO).unwrap_err().to_string();
        assert!(text.contains("1 send has not arrived") && text.contains("flush again"), "{transport}: {text}");
        match sent {
            Ok(()) => assert_eq!(missing.messages, 0, "{transport}"),
            Err(Error::Unsent { .. }) => assert!((1..40).contains(&missing.messages), "{transport}: {text}"),
            Err(error) => panic!("{transport}: {error}"),
        }
        // All of it comes once, in order, when somebody does.
        std::thread::scope(|scope| {
            scope.spawn(|| here.flush(PATIENCE).unwrap());
            for _ in 0..40 {
                let message = there.receive(PATIENCE).unwrap();
                assert!(message[..] == memory[..], "{transport}");
                there.recycle(message).unwrap();
            }
            assert!(there.receive(Duration::from_millis(100)).unwrap_err().is_overdue(), "{transport}");
        });
        here.flush(Duration::ZERO).unwrap();
    }
}

/// Over tcp: that waited for ever, often, since the receiver's last word came with its next look.
#[test]
fn a_flush_to_a_receiver_that_has_taken_all_and_looks_no_more_returns() {
    for transport in TRANSPORTS {
        for _ in 0..3 {
            let (mut here, mut there) = pair(transport);
            let memory = patterned(here.allocate(64 * 100).unwrap());
            let shape = Arc::new(Shape::strided(0, 64, 100, &[Run::new(0, 8), Run::new(24, 4)]).unwrap());
            let declared = here.declare(&memory, &shape).unwrap();
            here.send(&declared, PATIENCE).unwrap();
            for _ in 0..100 {
                let message = there.receive(PATIENCE).unwrap();
                there.recycle(message).unwrap();
            }
            let (start, within) = (Instant::now(), Duration::from_millis(500));
            let flushed = here.flush(within);
            assert!(start.elapsed() < PATIENCE, "{transport}");
            match flushed {
                Ok(()) => {}
                Err(Error::Unflushed { within: told, missing }) => {
                    assert_eq!((told, missing.sends, missing.messages), (within, vec![(0, 1)], 0), "{transport}");
                    // Its next look tells.
                    assert!(there.receive(Duration::ZERO).is_err());
                    here.flush(PATIENCE).unwrap();
                }
                Err(error) => panic!("{transport}: {error}"),
            }
        }
    }
}

#[test]
fn a_send_without_room_is_kept_and_the_next_is_refused_whole() {
    for transport in TRANSPORTS {
        let (mut here, mut there) = pair(transport);
        let memory = patterned(here.allocate(1 << 20).unwrap());
        // Packed into four transmit buffers, so there is no room for more.
        here.set_terms(Terms { force: Some(Force::Method(Method::Copy)), ..Terms::default() });
        let within = Duration::from_millis(100);
        let declared = here.declare(&memory, &long_messages()).unwrap();
        let Err(Error::Unsent { missing, .. }) = here.send(&declared, within) else { panic!("{transport}: sent") };
        assert!(missing.messages > 0 && missing.sends == [(0, 1)], "{transport}: {missing:?}");
        let other = here.declare(&memory, &Arc::new(Shape::contiguous(0, 10).unwrap())).unwrap();
        let error = here.send(&other, within).unwrap_err();
        assert!(matches!(&error, Error::Untaken { .. }) && error.is_overdue(), "{transport}: {error}");
        assert!(error.to_string().contains("nothing of this was sent"), "{transport}: {error}");
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| here.send(&other, PATIENCE).and_then(|()| here.flush(PATIENCE)));
            for _ in 0..40 {
                let message = there.receive(PATIENCE).unwrap();
                assert!(message[..] == memory[..], "{transport}");
                there.recycle(message).unwrap();
            }
            assert!(there.receive(PATIENCE).unwrap()[..] == memory[..10], "once, and behind the other");
            assert!(there.receive(Duration::from_millis(100)).is_err(), "{transport}: and nothing else");
            sending.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_scatter_says_which_destinations_are_missing() {
    for transport in TRANSPORTS {
        let (mut scatter, mut there) = scattered(transport, 3);
        let memory = patterned(scatter.allocate(2 * 4 * 30_000).unwrap());
        let shapes = thirds();
        // More than all that takes bytes by itself: only the first and the last receiver look.
        let within = Duration::from_millis(200);
        let (mut sends, mut error) = (0, None);
        while error.is_none() && sends < 2000 {
            match scatter.send(&memory, &shapes, within) {
                Ok(_) => sends += 1,
                Err(overdue) => error = Some(overdue),
            }
            for at in [0, 2] {
                while let Ok(batch) = there[at].receive_batch(Duration::ZERO) {
                    there[at].recycle_batch(batch).unwrap();
                }
            }
        }
        let error = error.expect("a destination that takes nothing holds up the others");
        assert!(matches!(error, Error::Unsent { .. }), "{transport}: {error}");
        let Err(Error::Unflushed { missing, .. }) = scatter.flush(within) else { panic!("{transport}: flushed") };
        assert_eq!(missing.destinations, 3);
        assert!(missing.sends.iter().any(|(destination, count)| *destination == 1 && *count > 0), "{missing:?}");
        assert!(missing.to_string().contains("destination"), "{missing}");
    }
}

#[test]
fn every_other_call_that_waits_ends_at_its_deadline() {
    let within = Duration::from_millis(80);
    for transport in TRANSPORTS {
        let (mut here, _there) = pair(transport);
        let name = fresh_name(transport);
        let mut listener = Listener::listen(provider(transport), &name, Options::default()).unwrap();
        let start = Instant::now();
        assert!(matches!(here.receive(within), Err(Error::Verbs(VerbsError::TimedOut(t))) if t == within));
        assert!(here.receive_batch(within).unwrap_err().is_overdue());
        assert!(listener.accept(within).unwrap_err().is_overdue());
        assert!(start.elapsed() >= 3 * within && start.elapsed() < PATIENCE);
        let connected = Scatter::connect(provider(transport), &[&name, "x:1"], &Options::default(), Duration::ZERO);
        assert!(matches!(connected, Err(Error::Destination { destination: 0, .. })), "{transport}");
    }
    // Somebody listens there who never shakes hands.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (name, start) = (mute.local_addr().unwrap().to_string(), Instant::now());
    let error = Channel::connect(provider("tcp"), &name, &Options::default(), within).unwrap_err();
    assert!(error.is_overdue() && start.elapsed() < PATIENCE, "{error}");
}

#[test]
fn a_connection_that_ended_says_why_whatever_is_asked_of_it() {
    for transport in TRANSPORTS {
        let (mut here, mut there) = pair(transport);
        let memory = patterned(there.allocate(4096).unwrap());
        let last = there.declare(&memory, &Arc::new(Shape::contiguous(0, 100).unwrap())).unwrap();
        there.send(&last, PATIENCE).unwrap();
        // The receiver moves the bytes: it must have them before the sender goes.
        let message = here.receive(PATIENCE).unwrap();
        assert_eq!(message[..], memory[..100], "what was sent before the end still arrives");
        drop(there);
        let mine = patterned(here.allocate(4096).unwrap());
        let declared = here.declare(&mine, &Arc::new(Shape::contiguous(0, 4096).unwrap())).unwrap();
        let told = "the connection ended: the peer closed the connection";
        let error = here.receive(PATIENCE).unwrap_err().to_string();
        assert!(error.starts_with(told), "{transport}: {error}");
        for error in [here.send(&declared, PATIENCE), here.receive(PATIENCE).map(drop)] {
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(told), "{transport}: {error}");
        }

        let (mut scatter, mut there) = scattered(transport, 3);
        let memory = patterned(scatter.allocate(2 * 4 * 30_000).unwrap());
        drop(there.remove(1));
        let sent = scatter.send(&memory, &thirds(), PATIENCE).and_then(|_| scatter.flush(PATIENCE));
        let error = sent.unwrap_err().to_string();
        assert!(error.starts_with(&format!("destination 1: {told}")), "{transport}: {error}");
    }
}

#[test]
fn a_channel_that_is_dropped_in_mid_flight_gives_its_memory_back() {
    for transport in TRANSPORTS {
        let (mut here, there) = pair(transport);
        let memory = patterned(here.allocate(1 << 20).unwrap());
        for force in [Some(Force::Method(Method::Copy)), None] {
            here.set_terms(Terms { force, ..Terms::default() });
            let declared = here.declare(&memory, &long_messages()).unwrap();
            let sent = here.send(&declared, Duration::from_millis(50));
            assert!(sent.is_ok() || sent.unwrap_err().is_overdue(), "{transport}");
        }
        let start = Instant::now();
        drop(here);
        // The queue waits a second at most for what its peer does not take.
        assert!(start.elapsed() < Duration::from_secs(10), "{transport}: {:?}", start.elapsed());
        drop(there);
        assert_eq!(Arc::strong_count(&memory), 1, "{transport}: nothing holds it");
    }
}

#[test]
fn memory_of_somebody_else_is_refused_and_not_waited_for() {
    let (mut here, mut there) = pair("shm");
    let strange = Arc::new(Segment::shared(4096).unwrap().carve(4096).pop().unwrap());
    here.set_terms(Terms { force: Some(Force::Method(Method::Gather)), ..Terms::default() });
    let shape = Arc::new(Shape::list(&[Run::new(0, 2000), Run::new(2048, 2000)]).unwrap());
    let declared = here.declare(&strange, &shape).unwrap();
    let error = here.send(&declared, PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Verbs(VerbsError::NotRegistered(_))), "{error}");
    here.flush(Duration::ZERO).expect("nothing was sent");
    let own = patterned(here.allocate(4096).unwrap());
    let declared = here.declare(&own, &shape).unwrap();
    here.send(&declared, PATIENCE).expect("the channel goes on");
    assert!(there.receive(PATIENCE).unwrap()[..] == [&own[..2000], &own[2048..4048]].concat());
}

#[test]
fn a_plan_says_whose_prices_it_goes_by() {
    let shape = Arc::new(Shape::contiguous(0, 4096).unwrap());
    let measured = Profile { source: "measured in a test".into(), ..provider("shm").profile() };
    for (profile, says) in
        [(None, "; prices: the provider's own, not measured here"), (Some(measured), "; prices: measured in a test")]
    {
        let (mut here, _there) = pair_with("shm", &Options { profile, ..Options::default() });
        let memory = Arc::new(here.allocate(4096).unwrap());
        let declared = here.declare(&memory, &shape).unwrap();
        assert!(declared.to_string().ends_with(says), "{declared}");
    }
    let goal = Goal::SenderCpu;
    let (here, _there) = pair_with("shm", &Options { goal, ..Options::default() });
    assert_eq!(here.terms().goal, goal);
}

#[test]
fn buffers_that_cannot_be_are_refused_by_name() {
    let sizes = |message_bytes, receives, transmits| Some(Buffers { message_bytes, receives, transmits });
    for (buffers, field) in [
        (sizes(0, 1, 1), "message_bytes"),
        (sizes(usize::MAX, 1, 1), "message_bytes"),
        (sizes(100, 0, 1), "receives"),
        (sizes(100, 5000, 1), "receives"),
        (sizes(1 << 30, 2000, 1), "receives"),
        (sizes(100, 1, 0), "transmits"),
        (sizes(100, 1, usize::MAX), "transmits"),
    ] {
        let options = Options { buffers, ..Options::default() };
        let name = fresh_name("shm");
        let listened = Listener::listen(provider("shm"), &name, options.clone()).map(drop);
        let connected = Channel::connect(provider("shm"), &name, &options, PATIENCE).map(drop);
        for error in [listened.unwrap_err(), connected.unwrap_err()] {
            assert!(matches!(&error, Error::Field { field: told, .. } if *told == field), "{buffers:?}: {error}");
        }
    }
    let none = Scatter::connect(provider("shm"), &[], &Options::default(), PATIENCE).unwrap_err();
    assert!(matches!(none, Error::Field { field: "addresses", .. }), "{none}");
    let small = Buffers { message_bytes: 128, receives: 2, transmits: 1 };
    let (mut here, mut there) = pair_with("shm", &Options { buffers: Some(small), ..Options::default() });
    let memory = patterned(here.allocate(4096).unwrap());
    let long = here.declare(&memory, &Arc::new(Shape::contiguous(0, 129).unwrap()));
    assert!(matches!(long, Err(Error::Plan(_))), "{long:?}");
    let short = here.declare(&memory, &Arc::new(Shape::contiguous(0, 128).unwrap())).unwrap();
    for _ in 0..5 {
        here.send(&short, PATIENCE).unwrap();
        let message = there.receive(PATIENCE).unwrap();
        assert_eq!(message[..], memory[..128]);
        there.recycle(message).unwrap();
    }
}
