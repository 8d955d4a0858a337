//! Clients that lie, and clients that meet each other.

use std::sync::Mutex;

use overside_service::Notices;
use overside_service::client::{Link as Raw, LinkError as RawError, LinkOptions as RawOptions};
use overside_vault::server::{About, Access, Keeper, LastWriter, Reopened, WriterRecord};
use overside_verbs::handshake::Key;
use overside_volume::client::{Link, LinkError, LinkOptions};
use overside_volume::wire::{
    Alteration, Change, Changed, Hello, Inquiry, Operation, PROOF_BYTES, Proof, Reply, Report, RequestHeader, Role,
    SessionRole, Status, Welcome,
};
use overside_volume::{DeviceError, MemoryDevice, Work, complete};

use super::ends::Gate;
use super::*;

const BODY: usize = overside_service::CONTROL_HEADER;

fn memory() -> Box<dyn Device> {
    Box::new(MemoryDevice::new(1 << 20).unwrap())
}

fn raw(transport: &str, name: &str) -> Raw {
    let options =
        RawOptions { timeout: PATIENCE, buffer_bytes: 129 << 10, transmit_bytes: 129 << 10, ..RawOptions::default() };
    Raw::connect(provider(transport), name, options).unwrap()
}

/// Says a greeting; its number is the link's.
fn greet(link: &mut Raw, session: u64, generation: u32, role: Role) -> Result<Welcome, RawError> {
    say(link, &hello(session, generation, role));
    heard(link).map(|message| Welcome::parse(&message).unwrap())
}

fn hello(session: u64, generation: u32, role: Role) -> Vec<u8> {
    hello_of(session, 0, generation, role)
}

fn hello_of(session: u64, incarnation: u64, generation: u32, role: Role) -> Vec<u8> {
    let name = "v".to_owned();
    let buffer_bytes = 129 << 10;
    Hello { number: 0, name, role, session, incarnation, generation, buffer_bytes, features: 0, process: 0, group: 0 }
        .bytes()
}

/// The service's link numbers messages itself, from 1.
fn say(link: &mut Raw, message: &[u8]) {
    let _ = link.send(|out| out.extend_from_slice(message.get(BODY..).unwrap_or_default()));
}

fn heard(link: &mut Raw) -> Result<Vec<u8>, RawError> {
    link.message().map(|message| message.as_ref().to_vec())
}

/// Asks, and takes the answer's status.
fn ask(link: &mut Raw, request: RequestHeader, payload: &[u8]) -> Result<Status, RawError> {
    say(link, &[&request.bytes()[..], payload].concat());
    heard(link).map(|message| Reply::parse(&message).unwrap().0.status)
}

/// The link's second message.
fn request(session: u64, operation: Operation, lba: u64, length: u32) -> RequestHeader {
    RequestHeader { operation, session, generation: 1, number: 2, lowest: 1, lba, length }
}

#[test]
fn a_second_writer_is_refused_or_takes_over_and_the_first_is_fenced() {
    for transport in TRANSPORTS {
        let name = fresh_name(transport);
        let _served = serve(transport, &name, memory(), NodeOptions::default());
        let attach =
            |role| Link::attach(provider(transport), &name, "v", LinkOptions { role, ..LinkOptions::default() });
        let mut first = attach(Role::Writer).unwrap();
        let zero = || Work::Zero { at: 0, length: 512 };
        assert_eq!(complete(&mut first, &SystemClock, zero(), PATIENCE).1, Ok(()));
        let refused = attach(Role::Writer).map(drop);
        assert!(matches!(refused, Err(LinkError::Refused(Status::Busy))), "{refused:?}");
        let mut reader = attach(Role::Reader).unwrap();
        assert_eq!(complete(&mut reader, &SystemClock, zero(), PATIENCE).1, Err(DeviceError::ReadOnly));
        let mut second = attach(Role::TakeOver).unwrap();
        assert_eq!(complete(&mut second, &SystemClock, zero(), PATIENCE).1, Ok(()));
        assert_eq!(complete(&mut first, &SystemClock, zero(), PATIENCE).1, Err(DeviceError::Fenced));
        assert_eq!(complete(&mut second, &SystemClock, zero(), PATIENCE).1, Ok(()));
    }
}

#[test]
fn who_was_replaced_while_it_was_away_is_not_let_in_again() {
    for transport in TRANSPORTS {
        let name = fresh_name(transport);
        // Whoever vanishes loses its place at once.
        let options = NodeOptions { linger: Duration::ZERO, ..NodeOptions::default() };
        let _served = serve(transport, &name, memory(), options);
        let mut first = raw(transport, &name);
        let Welcome { session, incarnation, .. } = greet(&mut first, 0, 1, Role::Writer).unwrap();
        drop(first);
        // Another writes, and leaves in order: the place is free.
        let end = Instant::now() + PATIENCE;
        let options = LinkOptions { role: Role::Writer, ..LinkOptions::default() };
        let mut second = loop {
            match Link::attach(provider(transport), &name, "v", options.clone()) {
                Err(LinkError::Refused(Status::Busy)) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5))
                }
                attached => break attached.unwrap(),
            }
        };
        assert_eq!(complete(&mut second, &SystemClock, Work::Zero { at: 0, length: 512 }, PATIENCE).1, Ok(()));
        drop(second);
        // The first returns, with writes that nobody answered it.
        for role in [Role::Writer, Role::TakeOver] {
            let mut late = raw(transport, &name);
            say(&mut late, &hello_of(session, incarnation, 2, role));
            let told = Welcome::parse(&heard(&mut late).unwrap()).unwrap();
            assert_eq!(told.status, Status::Device(DeviceError::Fenced), "{transport}");
        }
        // A reader has nothing that it could write again.
        let mut reader = raw(transport, &name);
        say(&mut reader, &hello_of(session, incarnation, 2, Role::Reader));
        assert_eq!(Welcome::parse(&heard(&mut reader).unwrap()).unwrap().status, Status::Done);
        // Of another life of the node it is not known what became of it.
        let mut other = raw(transport, &name);
        say(&mut other, &hello_of(session, incarnation ^ 1, 2, Role::TakeOver));
        assert_eq!(Welcome::parse(&heard(&mut other).unwrap()).unwrap().status, Status::Done);
    }
}

/// A node's life, with what the lives before know of the writer.
fn live(name: &str, known: &Arc<Mutex<Option<LastWriter>>>) -> Served {
    let node = Node::new(SystemClock::handle(), NodeOptions::default()).unwrap();
    let (last, known) = (*known.lock().unwrap(), known.clone());
    let record = WriterRecord::new(last, move |last| {
        *known.lock().unwrap() = Some(last);
        true
    });
    node.add_described("v", memory(), About::default(), Some(record)).unwrap();
    let listening = Listening::open(provider("shm"), &[name]).unwrap();
    node.serve(vec![listening], ServiceOptions { workers: 1, ..ServiceOptions::default() }).unwrap()
}

#[test]
fn who_was_replaced_is_not_let_in_by_the_nodes_next_life_either() {
    let (name, known) = (fresh_name("shm"), Arc::default());
    let served = live(&name, &known);
    let (mut first, mut second) = (raw("shm", &name), raw("shm", &name));
    let old = greet(&mut first, 0, 1, Role::Writer).unwrap();
    let new = greet(&mut second, 0, 1, Role::TakeOver).unwrap();
    // Neither says that it is over.
    drop((first, second, served));
    let _served = live(&name, &known);
    let returns = |of: &Welcome, role| {
        let mut link = raw("shm", &name);
        say(&mut link, &hello_of(of.session, of.incarnation, 2, role));
        let told = Welcome::parse(&heard(&mut link).unwrap()).unwrap();
        (link, told)
    };
    for role in [Role::Writer, Role::TakeOver] {
        assert_eq!(returns(&old, role).1.status, Status::Device(DeviceError::Fenced), "{role:?}");
    }
    // The other's place is kept, and it goes on with its session.
    assert_eq!(greet(&mut raw("shm", &name), 0, 1, Role::Writer).unwrap().status, Status::Busy);
    let (mut second, told) = returns(&new, Role::Writer);
    assert_eq!((told.status, told.session), (Status::Done, new.session));
    let goodbye = RequestHeader { generation: 2, ..request(new.session, Operation::Goodbye, 0, 0) };
    assert_eq!(ask(&mut second, goodbye, &[]).unwrap(), Status::Done);
    assert_eq!(returns(&new, Role::TakeOver).1.status, Status::Device(DeviceError::Fenced), "it is over");
    assert_eq!(greet(&mut raw("shm", &name), 0, 1, Role::Writer).unwrap().status, Status::Done);
}

#[test]
fn a_session_does_not_tell_the_next_one() {
    let name = fresh_name("shm");
    let _served = serve("shm", &name, memory(), NodeOptions::default());
    let mut links: Vec<_> = (0..8).map(|_| raw("shm", &name)).collect();
    let mut sessions: Vec<_> = links.iter_mut().map(|link| greet(link, 0, 1, Role::Reader).unwrap().session).collect();
    sessions.sort_unstable();
    assert!(sessions.windows(2).all(|two| two[1] - two[0] > 1 << 20), "{sessions:?}");
}

#[test]
fn an_unknown_volume_and_a_dead_address_are_told() {
    let name = fresh_name("shm");
    let _served = serve("shm", &name, memory(), NodeOptions::default());
    let unknown = Link::connect(provider("shm"), &name, "w", LinkOptions::default()).map(drop);
    assert!(matches!(unknown, Err(LinkError::Refused(Status::Unknown))), "{unknown:?}");
    let nobody = Link::connect(provider("shm"), &fresh_name("shm"), "v", LinkOptions::default()).map(drop);
    assert!(matches!(nobody, Err(LinkError::Verbs(_))), "{nobody:?}");
}

#[test]
fn a_writer_that_says_goodbye_leaves_its_place() {
    let name = fresh_name("tcp");
    let served = serve("tcp", &name, memory(), NodeOptions::default());
    for _ in 0..3 {
        let link = Link::connect(provider("tcp"), &name, "v", LinkOptions::default()).unwrap();
        link.close(PATIENCE);
    }
    drop(served);
}

fn bad_message(what: &str, session: u64) -> Vec<u8> {
    let flush = request(session, Operation::Flush, 0, 0);
    match what {
        "noise" => vec![0xff; 64],
        "half a header" => vec![0; 40],
        "a second greeting" => hello(0, 1, Role::Reader),
        "another session" => RequestHeader { session: session + 1, ..flush }.bytes().to_vec(),
        "an unasked proof" => Proof { number: 1, proof: [7; PROOF_BYTES] }.bytes(),
        "another generation" => RequestHeader { generation: 2, ..flush }.bytes().to_vec(),
        "a cut payload" => request(session, Operation::Write { fua: false }, 0, 512).bytes().to_vec(),
        other => panic!("{other}"),
    }
}

/// Each is disconnected, and everybody else is served on.
#[test]
fn who_breaks_the_protocol_loses_its_connection_alone() {
    let name = fresh_name("shm");
    let _served = serve("shm", &name, memory(), NodeOptions::default());
    let mut other = Link::attach(provider("shm"), &name, "v", LinkOptions::default()).unwrap();
    let flush = |session| request(session, Operation::Flush, 0, 0);
    let bad = [
        "noise",
        "half a header",
        "a second greeting",
        "another session",
        "an unasked proof",
        "another generation",
        "a cut payload",
    ];
    let greeted = || {
        let mut link = raw("shm", &name);
        let session = greet(&mut link, 0, 1, Role::Reader).unwrap().session;
        (link, session)
    };
    for what in bad {
        let (mut link, session) = greeted();
        say(&mut link, &bad_message(what, session));
        assert!(heard(&mut link).is_err(), "{what}");
        assert_eq!(complete(&mut other, &SystemClock, Work::Flush, PATIENCE).1, Ok(()), "{what}: others are served on");
    }
    let (mut link, session) = greeted();
    let far = RequestHeader { number: 2 + (1 << 32), ..flush(session) };
    assert!(ask(&mut link, far, &[]).is_err(), "numbers without a bound");
    let mut link = raw("shm", &name);
    assert!(ask(&mut link, RequestHeader { number: 1, ..flush(0) }, &[]).is_err(), "a request before a greeting");
    let mut link = raw("shm", &name);
    assert!(greet(&mut link, 0, 7, Role::Reader).is_err(), "a new session in the middle of its life");
}

/// In requests, or in bytes. The operator reads a line, and the one request too many reaches no disk.
#[test]
fn who_overdraws_its_credits_is_cut_off_with_a_line_and_others_go_on() {
    let limits = NodeOptions::default();
    let (requests, each) = (u64::from(limits.requests_max), limits.request_bytes_max);
    // As many as there may be and one more; and few, with one that is longer than all that there may be.
    let all = [(requests, 512), (4, requests as u32 * each)];
    for (transport, (within, too_much)) in TRANSPORTS.into_iter().flat_map(|one| all.map(|two| (one, two))) {
        let ((gate, device), name) = (Gate::before_memory(), fresh_name(transport));
        let node = Node::new(SystemClock::handle(), NodeOptions::default()).unwrap();
        node.add("v", Box::new(device)).unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let also = said.clone();
        let notices = Notices::new(move |line| also.lock().unwrap().push(line.to_owned()));
        let options = ServiceOptions { workers: 1, notices: Some(notices), ..ServiceOptions::default() };
        let listening = Listening::open(provider(transport), &[&name]).unwrap();
        let served = node.serve(vec![listening], options).unwrap();
        let reader = LinkOptions { role: Role::Reader, ..LinkOptions::default() };
        let mut other = Link::attach(provider(transport), &name, "v", reader).unwrap();
        let mut link = raw(transport, &name);
        let session = greet(&mut link, 0, 1, Role::Writer).unwrap().session;
        let read = |number, length| RequestHeader { number, ..request(session, Operation::Read, 0, length) }.bytes();
        (2..2 + within).for_each(|number| say(&mut link, &read(number, 512)));
        let limit = Instant::now() + PATIENCE;
        while gate.arrived() < within {
            assert!(Instant::now() < limit, "{transport}: {} of {within} arrive", gate.arrived());
            std::thread::yield_now();
        }
        assert_eq!((served.service().connections, said.lock().unwrap().len()), (2, 0), "{transport}, {within}");
        say(&mut link, &read(2 + within, too_much));
        assert!(heard(&mut link).is_err(), "{transport}: no answer");
        let told = said.lock().unwrap().clone();
        let [line] = &told[..] else { panic!("{told:?}") };
        assert!(line.contains("more requests in flight than there are credits"), "{line}");
        assert_eq!(gate.arrived(), within, "{transport}");
        gate.open();
        assert_eq!(complete(&mut other, &SystemClock, Work::Flush, PATIENCE).1, Ok(()));
    }
}

#[test]
fn requests_that_there_cannot_be_are_refused_and_the_connection_stays() {
    // A cache looks before the device does.
    for cache in [NodeOptions::default().cache, small_cache()] {
        let name = fresh_name("tcp");
        let _served = serve("tcp", &name, memory(), NodeOptions { cache, ..NodeOptions::default() });
        let mut link = raw("tcp", &name);
        let session = greet(&mut link, 0, 1, Role::Reader).unwrap().session;
        let absurd = [(u64::MAX, 512), (1 << 55, 512), (2048, 512), (2047, 1024), (0, 0), (0, 100), (0, 256 << 10)];
        assert_eq!(ask(&mut link, request(session, Operation::Read, 0, 8192), &[]).unwrap(), Status::Done);
        for (number, (lba, length)) in (3..).zip(absurd) {
            let request = RequestHeader { number, ..request(session, Operation::Read, lba, length) };
            let status = ask(&mut link, request, &[]).unwrap();
            assert_eq!(status, Status::Device(DeviceError::Invalid), "{lba} {length}");
        }
        let write = RequestHeader { number: 10, ..request(session, Operation::Write { fua: false }, 0, 512) };
        assert_eq!(ask(&mut link, write, &[1; 512]).unwrap(), Status::Device(DeviceError::ReadOnly));
    }
}

/// What was carried out is answered from memory, over whichever connection it is asked again.
#[test]
fn a_request_that_comes_again_is_not_carried_out_again() {
    let name = fresh_name("shm");
    let _served = serve("shm", &name, memory(), NodeOptions::default());
    let mut first = raw("shm", &name);
    let session = greet(&mut first, 0, 1, Role::Writer).unwrap().session;
    let write = request(session, Operation::Write { fua: false }, 0, 512);
    assert_eq!(ask(&mut first, write, &[1; 512]).unwrap(), Status::Done);
    let mut second = raw("shm", &name);
    let again = greet(&mut second, session, 2, Role::Writer).unwrap();
    assert_eq!((again.status, again.session), (Status::Done, session));
    // The same number with other bytes: only the first was carried out.
    let replay = RequestHeader { generation: 2, ..write };
    assert_eq!(ask(&mut second, replay, &[2; 512]).unwrap(), Status::Done);
    let read = RequestHeader { generation: 2, number: 3, lowest: 2, ..request(session, Operation::Read, 0, 512) };
    say(&mut second, &read.bytes());
    let message = heard(&mut second).unwrap();
    assert_eq!(Reply::parse(&message).unwrap().1, [1; 512]);
    // The connection of the older generation is of no use any more.
    assert!(ask(&mut first, RequestHeader { number: 3, ..write }, &[3; 512]).is_err());
}

/// It needs no session, and does not disturb one.
#[test]
fn an_inquiry_is_answered_at_any_time_and_a_bad_one_ends_its_connection_alone() {
    for transport in TRANSPORTS {
        let name = fresh_name(transport);
        let _served = serve(transport, &name, memory(), NodeOptions::default());
        let mut link = raw(transport, &name);
        let ask = |link: &mut Raw, volume: &str| {
            say(link, &Inquiry { number: 0, volume: volume.to_owned() }.bytes());
            Report::parse(&heard(link).unwrap()).unwrap()
        };
        assert_eq!((ask(&mut link, "w").status, ask(&mut link, "").volumes[0].sessions.len()), (Status::Unknown, 0));
        say(&mut link, &Hello { process: 77, ..Hello::parse(&hello(0, 1, Role::Writer)).unwrap() }.bytes());
        let session = Welcome::parse(&heard(&mut link).unwrap()).unwrap().session;
        let flush = RequestHeader { number: 4, ..request(session, Operation::Flush, 0, 0) };
        assert_eq!(self::ask(&mut link, flush, &[]).unwrap(), Status::Done);
        let report = ask(&mut link, "v");
        let [volume] = &report.volumes[..] else { panic!("{report:?}") };
        let [client] = volume.sessions[..] else { panic!("{report:?}") };
        assert_eq!((client.session, client.process, client.role), (session, 77, SessionRole::Writer));
        assert_eq!((client.requests, client.in_flight, client.waiting_us), (1, 0, None));
        assert_eq!((volume.counts.others, volume.counts.failed, volume.bytes), (1, 0, 1 << 20));
        let inquiry = Inquiry { number: 0, volume: "v".to_owned() }.bytes();
        let cut = &inquiry[..inquiry.len() - 1];
        let long = [&inquiry[..], &[b'v'; 100]].concat();
        let mut version = inquiry.clone();
        version[9] = 9;
        for bad in [cut, &long, &version] {
            let mut link = raw(transport, &name);
            say(&mut link, bad);
            assert!(heard(&mut link).is_err(), "{bad:?}");
        }
        assert_eq!(ask(&mut link, "v").status, Status::Done, "others are answered on");
    }
}

/// Changes nothing, and has the volume served again.
#[derive(Debug, Default)]
struct Counting(Mutex<Vec<String>>);

impl Keeper for Counting {
    fn allows(&self, _: &str, what: &Alteration) -> Result<(), String> {
        if *what == (Alteration::Resize { bytes: 1 }) { Err("not so".to_owned()) } else { Ok(()) }
    }

    fn change(&self, node: &Arc<Node>, volume: &str, what: &Alteration) -> Result<String, String> {
        self.0.lock().unwrap().push(format!("{volume}: {what:?}"));
        assert!(node.serves(volume) && !node.names().contains(&volume.to_owned()), "it is the keeper's alone");
        node.add(volume, memory()).map_err(|error| error.to_string())?;
        if *what == Alteration::Delete { Err("no".to_owned()) } else { Ok("done".to_owned()) }
    }

    fn replace(&self, volume: &str, old: &str, new: &str) -> (Result<String, String>, Reopened) {
        self.0.lock().unwrap().push(format!("{volume}: {old} by {new}"));
        // A volume that is another one, or that is gone, is no volume of these clients.
        let reopened = if old == "gone" { Err("it is gone".to_owned()) } else { Ok((memory(), About::default())) };
        (if new == "no" { Err("no".to_owned()) } else { Ok("done".to_owned()) }, reopened)
    }
}

fn change(number: u32, what: Alteration) -> Vec<u8> {
    Change { number, volume: "v".to_owned(), what }.bytes()
}

fn changed(link: &mut Raw, message: &[u8]) -> Result<Changed, RawError> {
    say(link, message);
    heard(link).map(|message| Changed::parse(&message).unwrap())
}

#[test]
fn a_volume_is_changed_while_nobody_uses_it_and_served_again() {
    for transport in TRANSPORTS {
        let (name, keeper) = (fresh_name(transport), Arc::new(Counting::default()));
        let options = NodeOptions { keeper: Some(keeper.clone()), cache: small_cache(), ..NodeOptions::default() };
        let _served = serve(transport, &name, memory(), options);
        let mut link = raw(transport, &name);
        let resize = || change(0, Alteration::Resize { bytes: 2 << 20 });
        let client =
            Link::attach(provider(transport), &name, "v", LinkOptions { process: 77, ..LinkOptions::default() });
        let refused = changed(&mut link, &resize()).unwrap();
        assert_eq!(refused.status, Status::Refused);
        assert!(refused.text.contains("v is in use by process 77"), "{}", refused.text);
        client.unwrap().close(PATIENCE);
        for _ in 0..2 {
            let done = changed(&mut link, &resize()).unwrap();
            assert_eq!((done.status, done.text.as_str()), (Status::Done, "done"));
        }
        let why = changed(&mut link, &change(0, Alteration::Resize { bytes: 1 })).unwrap();
        assert_eq!((why.status, why.text.as_str()), (Status::Refused, "not so"));
        let why = changed(&mut link, &change(0, Alteration::Delete)).unwrap();
        assert_eq!((why.status, why.text.as_str()), (Status::Refused, "no"));
        let unknown = Change { number: 0, volume: "w".to_owned(), what: Alteration::Delete };
        assert_eq!(changed(&mut link, &unknown.bytes()).unwrap().status, Status::Unknown);
        assert_eq!(keeper.0.lock().unwrap().len(), 3);
        // It is served as before, to whoever comes.
        let mut client = Link::attach(provider(transport), &name, "v", LinkOptions::default()).unwrap();
        assert_eq!(complete(&mut client, &SystemClock, Work::Flush, PATIENCE).1, Ok(()));
    }
}

/// What cannot be opened again fails its clients, and others hear why.
#[test]
fn a_volume_that_does_not_come_back_from_a_change_ends_for_its_clients() {
    let (name, keeper) = (fresh_name("shm"), Arc::new(Counting::default()));
    let _served = serve("shm", &name, memory(), NodeOptions { keeper: Some(keeper), ..NodeOptions::default() });
    let mut link = raw("shm", &name);
    let replace = |old: &str, new: &str| change(0, Alteration::Replace { old: old.to_owned(), new: new.to_owned() });
    let mut client = Link::attach(provider("shm"), &name, "v", LinkOptions::default()).unwrap();
    let mut flushed = || complete(&mut client, &SystemClock, Work::Flush, PATIENCE).1;
    let why = changed(&mut link, &replace("a", "no")).unwrap();
    assert_eq!((why.status, why.text.as_str(), flushed()), (Status::Refused, "no", Ok(())));
    let why = changed(&mut link, &replace("gone", "b")).unwrap();
    assert_eq!(why.status, Status::Refused);
    assert!(why.text.contains("cannot be served: it is gone"), "{}", why.text);
    assert!(flushed().is_err());
    assert!(Link::attach(provider("shm"), &name, "v", LinkOptions::default()).is_err());
    let report = overside_vault::server::status(provider("shm"), &name, "v", PATIENCE).unwrap();
    assert_eq!((report.volumes.len(), report.volumes[0].reason.as_str()), (1, "it is gone"));
}

#[test]
fn a_node_without_a_keeper_changes_nothing_and_a_bad_change_ends_its_connection_alone() {
    let name = fresh_name("shm");
    let _served = serve("shm", &name, memory(), NodeOptions::default());
    let mut link = raw("shm", &name);
    assert_eq!(changed(&mut link, &change(0, Alteration::Delete)).unwrap().status, Status::Refused);
    let sound = change(0, Alteration::Replace { old: "a".to_owned(), new: "b".to_owned() });
    let (cut, long) = (&sound[..sound.len() - 1], [&sound[..], b"x"].concat());
    let (mut version, mut kind, mut strange) = (sound.clone(), sound.clone(), sound.clone());
    (version[9], kind[10], strange[40]) = (9, 4, 1);
    for bad in [cut, &long, &version, &kind, &strange] {
        let mut link = raw("shm", &name);
        assert!(changed(&mut link, bad).is_err(), "{bad:?}");
    }
    assert_eq!(changed(&mut link, &sound).unwrap().status, Status::Refused, "others are answered on");
}

/// The key of a volume lets its holder change it, and a key that reads does not.
#[test]
fn who_has_no_key_of_a_volume_does_not_change_it() {
    let folder = tempfile::tempdir().unwrap();
    let key = |name: &str, hex: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.path().join(name);
        std::fs::write(&path, hex).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Key::from_file(&path).unwrap()
    };
    let (writes, reads, other) = (
        key("rw", "7d0c1b7fa9c1a5a0c1be5f1b0c3be9217f5f4e0a9f5f8dc2b0b1f9f0c7d6a351"),
        key("ro", "ac5d960c71f2731a0ce76f67ca8980aab6ae4bc13d2a43a6ada270691286d33c"),
        key("other", "2f9e51c3d7a84b06e1a9f3c58d27b4609e6c1fd08ab35742c9d0e8f1a6b37c54"),
    );
    let mut access = Access::default();
    access.allow("v", true, writes.clone());
    access.allow("v", false, reads.clone());
    access.allow("w", true, other.clone());
    let (name, keeper) = (fresh_name("shm"), Arc::new(Counting::default()));
    let options = NodeOptions { keeper: Some(keeper.clone()), access: Some(access), ..NodeOptions::default() };
    let _served = serve("shm", &name, memory(), options);
    let asks = |volume: &str, key: &Key, tampers: bool| {
        let mut link = raw("shm", &name);
        let change = Change { number: 0, volume: volume.to_owned(), what: Alteration::Resize { bytes: 2 << 20 } };
        let challenge = changed(&mut link, &change.bytes()).unwrap();
        assert_eq!(challenge.status, Status::Prove, "nothing is said before");
        let mut proven = Change { number: challenge.number, ..change };
        if tampers {
            proven.what = Alteration::Delete;
        }
        let proof = Proof::over(key, 0, &proven.bytes(), &challenge.bytes());
        changed(&mut link, &proof.bytes()).unwrap().status
    };
    assert_eq!(asks("v", &other, false), Status::Unknown);
    assert_eq!(asks("absent", &writes, false), Status::Unknown);
    assert_eq!(asks("v", &writes, true), Status::Unknown, "the proof is of another change");
    assert_eq!(asks("v", &reads, false), Status::Device(DeviceError::ReadOnly));
    assert!(keeper.0.lock().unwrap().is_empty());
    assert_eq!(asks("v", &writes, false), Status::Done);
    // A second question before a proof, and a proof of nothing.
    let mut link = raw("shm", &name);
    changed(&mut link, &change(0, Alteration::Delete)).unwrap();
    assert!(changed(&mut link, &change(0, Alteration::Delete)).is_err());
    let mut link = raw("shm", &name);
    assert!(changed(&mut link, &Proof { number: 0, proof: [7; PROOF_BYTES] }.bytes()).is_err());
    assert_eq!(keeper.0.lock().unwrap().len(), 1);
}
