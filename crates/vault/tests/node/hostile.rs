//! Clients that lie, and clients that meet each other.

use overside_service::client::{Link as Raw, LinkError as RawError, LinkOptions as RawOptions};
use overside_volume::client::{Link, LinkError, LinkOptions};
use overside_volume::wire::{Asked, Hello, Operation, Reply, Role, Status, Welcome};
use overside_volume::{DeviceError, MemoryDevice, Work, complete};

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

fn hello(session: u64, generation: u32, role: Role) -> Vec<u8> {
    let name = "v".to_owned();
    Hello { name, role, session, generation, buffer_bytes: 129 << 10, features: 0 }.bytes()
}

/// The service's link numbers messages itself; the node takes a number from the body alone where it is one of 32 bits.
fn say(link: &mut Raw, message: &[u8]) {
    link.send(|out| out.extend_from_slice(&message[BODY..])).unwrap();
}

/// The whole next message.
fn heard(link: &mut Raw) -> Result<Vec<u8>, RawError> {
    link.message().map(|message| message.as_ref().to_vec())
}

fn asked(operation: Operation, number: u64, lba: u64, length: u32) -> Asked {
    Asked { operation, session: 0, generation: 1, number, lowest: 1, lba, length }
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

/// Each is disconnected, and everybody else is served on.
#[test]
fn who_breaks_the_protocol_loses_its_connection_alone() {
    let name = fresh_name("shm");
    let _served = serve("shm", &name, memory(), NodeOptions { requests_max: 2, ..NodeOptions::default() });
    let mut other = Link::attach(provider("shm"), &name, "v", LinkOptions::default()).unwrap();
    let bad: Vec<Vec<Vec<u8>>> = vec![
        vec![vec![0xff; 64]],
        vec![vec![0; 9]],
        // A request before a greeting.
        vec![asked(Operation::Flush, 1, 0, 0).bytes().to_vec()],
        // Two greetings.
        vec![hello(0, 1, Role::Reader), hello(0, 1, Role::Reader)],
        // A new session with a generation.
        vec![hello(0, 7, Role::Reader)],
        // Another session's request.
        vec![hello(0, 1, Role::Reader), Asked { session: 1, ..asked(Operation::Flush, 1, 0, 0) }.bytes().to_vec()],
    ];
    for messages in bad {
        let mut link = raw("shm", &name);
        // Numbers of the envelope count from 1, and a greeting's is 0, so some of these are wrong in that too.
        messages.iter().for_each(|message| say(&mut link, message));
        while heard(&mut link).is_ok() {}
        let flush = complete(&mut other, &SystemClock, Work::Flush, PATIENCE).1;
        assert_eq!(flush, Ok(()), "others are served on");
    }
}

#[test]
fn welcome_and_replies_are_whole_messages() {
    let reply = Reply { status: Status::Busy, session: 1, generation: 1, number: 1 << 40, incarnation: 9, length: 0 };
    assert_eq!(Reply::parse(&reply.bytes()).unwrap().0, reply);
    assert!(Welcome::parse(&reply.bytes()).is_err());
}
