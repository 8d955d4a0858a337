//! A node that is back and does not let its client in again.

use overside_service::SystemThreads;
use overside_vault::members::RemoteMember;
use overside_vault::server::Access;
use overside_verbs::handshake::Key;
use overside_volume::client::{Link, LinkOptions};
use overside_volume::{DeviceError, MemoryDevice, Work, complete};

use super::*;

const OURS: &[u8] = b"119fce30161ed0c74f1cba86b353bb0579c9106270eb5a65c72e2976ca18f87c";
const OTHER: &[u8] = b"57aad11420a85d014b567557d391c37f26e12da4cad8c06d00ee8ed0f6bc7e01";
/// Short, so that the tests are.
const DEADLINE: Duration = Duration::from_secs(2);

fn key(text: &[u8]) -> Key {
    Key::from_bytes(text).unwrap()
}

fn behind(text: &[u8]) -> NodeOptions {
    let mut access = Access::default();
    access.allow("v", true, key(text));
    NodeOptions { access: Some(access), ..NodeOptions::default() }
}

fn serve_memory(transport: &str, name: &str, (volume, bytes): (&str, u64), options: NodeOptions) -> Served {
    let node = Node::new(SystemClock::handle(), options).unwrap();
    node.add(volume, Box::new(MemoryDevice::new(bytes).unwrap())).unwrap();
    let listening = Listening::open(provider(transport), &[name]).unwrap();
    node.serve(vec![listening], ServiceOptions { workers: 1, ..ServiceOptions::default() }).unwrap()
}

fn options(text: Option<&[u8]>) -> LinkOptions {
    LinkOptions { deadline: DEADLINE, key: text.map(key), ..LinkOptions::default() }
}

fn flushed(device: &mut dyn Device) -> Result<(), DeviceError> {
    complete(device, &SystemClock, Work::Flush, PATIENCE).1
}

/// What has changed, the key that the client has, and the node before and after.
#[test]
fn who_is_let_in_no_more_hears_it_once_every_try_for_long_was_refused() {
    let open = NodeOptions::default;
    let short = || NodeOptions { request_bytes_max: 64 << 10, ..open() };
    type Life = ((&'static str, u64), NodeOptions);
    let ways: [(&str, Option<&[u8]>, Life, Life); 5] = [
        ("the key", Some(OURS), (("v", 1 << 20), behind(OURS)), (("v", 1 << 20), behind(OTHER))),
        ("a key is asked for", None, (("v", 1 << 20), open()), (("v", 1 << 20), behind(OURS))),
        ("it is gone", None, (("v", 1 << 20), open()), (("w", 1 << 20), open())),
        ("its length", None, (("v", 1 << 20), open()), (("v", 2 << 20), open())),
        ("the longest request", None, (("v", 1 << 20), open()), (("v", 1 << 20), short())),
    ];
    for (number, (what, text, before, after)) in ways.into_iter().enumerate() {
        let transport = TRANSPORTS[number % 2];
        let name = fresh_name(transport);
        let served = serve_memory(transport, &name, before.0, before.1);
        let mut volume = Link::attach(provider(transport), &name, "v", options(text)).unwrap();
        assert_eq!(flushed(&mut volume), Ok(()), "{what}");
        drop(served);
        let _served = serve_memory(transport, &name, after.0, after.1);
        let since = Instant::now();
        assert_eq!((flushed(&mut volume), volume.handle().is_refused()), (Err(DeviceError::Refused), true), "{what}");
        assert!(since.elapsed() >= DEADLINE, "{what}: after {:?}", since.elapsed());
        assert_eq!(flushed(&mut volume), Err(DeviceError::Refused), "{what}");
        assert!(since.elapsed() < PATIENCE / 2, "{what}");
        volume.close(PATIENCE);
    }
}

#[test]
fn a_stranger_in_the_nodes_place_for_a_moment_ends_nothing() {
    for transport in TRANSPORTS {
        let (name, at) = (fresh_name(transport), ("v", 1 << 20));
        let served = serve_memory(transport, &name, at, behind(OURS));
        let mut volume = Link::attach(provider(transport), &name, "v", options(Some(OURS))).unwrap();
        drop(served);
        let waits = std::thread::spawn(move || flushed(&mut volume));
        // Together they are there for longer than a client waits. On a busy machine it may miss that one has gone, not that two have.
        for _ in 0..5 {
            let stranger = serve_memory(transport, &name, at, behind(OTHER));
            std::thread::sleep(DEADLINE / 4);
            drop(stranger);
            // Nobody is there: what was refused before is no more.
            std::thread::sleep(DEADLINE / 4);
        }
        assert!(!waits.is_finished());
        let _served = serve_memory(transport, &name, at, behind(OURS));
        assert_eq!(waits.join().unwrap(), Ok(()), "{transport}");
    }
}

/// Others do without it meanwhile.
#[test]
fn one_of_several_members_waits_for_a_node_that_lets_it_in() {
    let (name, at) = (fresh_name("shm"), ("v", 1 << 20));
    let served = serve_memory("shm", &name, at, behind(OURS));
    let give_up = Some(DEADLINE / 4);
    let member = LinkOptions { returns: true, give_up, ..options(Some(OURS)) };
    let mut volume = Link::attach(provider("shm"), &name, "v", member).unwrap();
    drop(served);
    let stranger = serve_memory("shm", &name, at, behind(OTHER));
    let since = Instant::now();
    while since.elapsed() < DEADLINE * 2 {
        assert_eq!(flushed(&mut volume), Err(DeviceError::Unreachable));
        std::thread::sleep(DEADLINE / 50);
    }
    drop(stranger);
    let _served = serve_memory("shm", &name, at, behind(OURS));
    let is_back = |volume: &mut dyn Device| {
        (0..1000).any(|_| {
            std::thread::sleep(DEADLINE / 50);
            flushed(volume) == Ok(())
        })
    };
    assert!(is_back(&mut volume) && !volume.handle().is_refused());
}

/// A member that the others cannot do without fails meanwhile, and is there again by itself.
#[test]
fn an_only_member_is_attached_anew_once_its_node_lets_it_in() {
    let (name, at) = (fresh_name("shm"), ("v", 1 << 20));
    let served = serve_memory("shm", &name, at, behind(OURS));
    let far = name.clone();
    let attach = move || Link::attach(provider("shm"), &far, "v", options(Some(OURS))).ok();
    let first = attach();
    let (clock, threads) = (SystemClock::handle(), SystemThreads);
    let mut member = RemoteMember::new(first, Box::new(attach), (0, 1 << 20), clock, &threads).unwrap();
    assert_eq!(flushed(&mut member), Ok(()));
    drop(served);
    let stranger = serve_memory("shm", &name, at, behind(OTHER));
    assert_eq!(flushed(&mut member), Err(DeviceError::Refused));
    assert_eq!(flushed(&mut member), Err(DeviceError::Unreachable));
    drop(stranger);
    let _served = serve_memory("shm", &name, at, behind(OURS));
    let is_back = (0..1000).any(|_| {
        std::thread::sleep(DEADLINE / 50);
        flushed(&mut member) == Ok(())
    });
    assert!(is_back);
}
