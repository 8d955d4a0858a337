//! What a client and a node say to each other. docs/reference/wire.md has the rules of all formats.
//!
//! Every message begins with 64 bytes, little-endian, of which the first 8 are the envelope of
//! every service: `OVSC`, and the low half of the request's number. Bytes that mean nothing are
//! zero, and a message in which they are not is refused, so that they can mean something one day.
//!
//! # Version 1
//!
//! Every message is a header of 64 bytes, and a payload where the table says so. The first 8 bytes
//! are the service's envelope. Bytes that have no meaning are zero, and a message in which they are
//! not is refused.
//!
//! The client's first message on each connection is a greeting; the node answers it once everything
//! is done that it has to wait for.
//!
//! | at | bytes | greeting | answer to it |
//! |---|---|---|---|
//! | 0 | 4 | `OVSC` | the same |
//! | 4 | 4 | number | the greeting's |
//! | 8 | 1 | 0 | 0 |
//! | 9 | 1 | version, 1 | status |
//! | 10 | 1 | role: 0 reads, 1 writes, 2 takes over | version, 1 |
//! | 11 | 1 | bytes of the volume's name, 1 to 64 | 1: it can only be read |
//! | 12 | 4 | bytes of the client's receive buffers | bytes of a request at most |
//! | 16 | 8 | session; 0 begins one | session |
//! | 24 | 4 | generation | the same |
//! | 28 | 4 | zero | unit in bytes |
//! | 32 | 8 | features; 1: it keeps what no FLUSH has covered; 2: it wants a volume of files; 4: its WRITEs may be grants | those that both use. 1: writes are acknowledged before they are safe; 2: the volume keeps files; 4: grants |
//! | 40 | 4 | the client's process, for people | incarnation of the node, 8 bytes |
//! | 44 | 4 | zero | |
//! | 48 | 8 | incarnation that gave the session, or 0 | length of the volume in bytes |
//! | 56 | 8 | group: sessions of one write together; 0: none | requests in flight at most, 2 bytes, then zeros |
//! | 64 | | the name, UTF-8 | |
//!
//! To status 13 the client answers with a proof: operation 10, version, zeros, and 32 bytes. These
//! are blake3, keyed by the volume's key, over the role `overside volume attach 1`, the greeting
//! and the node's answer. The node then answers the greeting again. Who has no key, another key, or
//! a volume that is not there is told 9.
//!
//! Afterwards the client asks and the node answers, in any order.
//!
//! | at | bytes | request | answer |
//! |---|---|---|---|
//! | 0 | 4 | `OVSC` | the same |
//! | 4 | 4 | low half of the number | the same |
//! | 8 | 1 | operation | 1 |
//! | 9 | 1 | of a WRITE: 1 is FUA, 2 a grant; of a CHECK: 1 mends | status |
//! | 10 | 1 | of a HINT: which | zero |
//! | 11 | 1 | zero | zero |
//! | 12 | 4 | length in bytes | bytes of the payload |
//! | 16 | 8 | session | the same |
//! | 24 | 4 | generation | the same |
//! | 28 | 4 | zero | zero |
//! | 32 | 8 | number | the same |
//! | 40 | 8 | lowest number that is unanswered | incarnation |
//! | 48 | 8 | LBA, in sectors of 512 bytes | of a CHECK: members that had some of it wrong, as bits |
//! | 56 | 8 | zero | zero |
//! | 64 | | what a WRITE writes, or grants | what a READ read |
//!
//! A grant names memory of the client's from which the node reads what it writes: place (u64),
//! length (u64, the request's), key (16 bytes). Until that is read the request has not come, so
//! later ones may come before it.
//!
//! | operation | 1 READ | 2 WRITE | 3 FLUSH | 4 DISCARD | 5 ZERO | 6 HINT | 7 goodbye | 9 CHECK |
//! |---|---|---|---|---|---|---|---|---|
//!
//! | hint | 1 will need | 2 do not need | 3 sequential | 4 random |
//! |---|---|---|---|---|
//!
//! | status | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 to 8 | the device's error: invalid, read-only, no space, failed, corrupt, fenced, unreachable, no memory |
//! | 9 | no such volume, or another key |
//! | 10 | another session writes the volume |
//! | 11 | another version |
//! | 12 | no room for another session |
//! | 13 | prove the volume's key: session and length of the volume are a nonce |
//! | 14 | a change is refused |
//! | 15 | of a greeting: the volume keeps files, and the client wants blocks, or the other way |
//!
//! Of a volume of files the unit is 1, and LBAs count bytes. Which place is what:
//! `crates/volume/src/files.rs`.
//!
//! Who wants to know how a node does asks without a session, as first message or later.
//!
//! | at | bytes | inquiry | answer to it |
//! |---|---|---|---|
//! | 0 | 4 | `OVSC` | the same |
//! | 4 | 4 | number | the inquiry's |
//! | 8 | 1 | 8 | 8 |
//! | 9 | 1 | version, 1 | status |
//! | 10 | 1 | zero | version, 1 |
//! | 11 | 1 | bytes of the volume's name, 0 to 64; 0: all volumes | zero |
//! | 12 | 4 | zero | bytes of the report |
//! | 16 | 4 | zero | the node's process |
//! | 20 | 20 | zero | zero |
//! | 40 | 8 | zero | incarnation of the node |
//! | 48 | 16 | zero | zero |
//! | 64 | | the name, UTF-8 | the report |
//!
//! A report's fields follow each other as `report.rs` writes them. A text is its length (u16, at
//! most 4,096) and UTF-8; a list is its length (u32) and its entries; yes and no are 1 and 0.
//!
//! ```text
//! report  = cpu µs u64 | time served µs u64 | list of volumes
//! volume  = name text | state u8 (0 ok, 1 degraded, 2 failed) | reason text | layout text | writes back u8 | bytes u64
//!         | reads, writes, others, failed, bytes read, bytes written, bytes of the cache, hits, misses: u64 each
//!         | list of members | list of sessions
//! member  = place text | bytes u64 | stale u8 | has checksums u8
//! session = session u64 | process u32 | role u8 (0 reads, 1 writes, 2 fenced) | connections u32 | requests in flight u32
//!         | waits u8 | for so many µs u64 | requests u64 | bytes u64
//! ```
//!
//! A change to a volume that nobody uses is asked for without a session, too. To status 13 the
//! client answers with a proof, over the change and that answer; the node then answers the proof.
//!
//! | at | bytes | change | answer to it |
//! |---|---|---|---|
//! | 0 | 4 | `OVSC` | the same |
//! | 4 | 4 | number | the change's, or the proof's |
//! | 8 | 1 | 11 | 11 |
//! | 9 | 1 | version, 1 | status; 14: the text says why not |
//! | 10 | 1 | 1 resize, 2 delete, 3 replace a member | version, 1 |
//! | 11 | 1 | bytes of the volume's name, 1 to 64 | zero |
//! | 12 | 4 | bytes behind the name | bytes of the text |
//! | 16 | 8 | of a resize: length in bytes | with status 13 a nonce of 16 bytes |
//! | 24 | 40 | zero | zero |
//! | 64 | | the name; of a replace the length of the old member's text (u16), it, and the new one's | text for people |
//!
//! What each word of a client does to the node:
//!
//! | word | the node |
//! |---|---|
//! | a number twice in one generation, a lowest that falls, numbers that run 16,384 ahead of it | disconnects |
//! | more requests or bytes in flight than it gave credits for | disconnects |
//! | another session, another generation, a second greeting, a request before the welcome | disconnects |
//! | a grant of memory that it cannot read, of another length, or of more than a request's bytes | disconnects |
//! | a number that has ended | answers as before, and carries nothing out |
//! | a change of a volume that is in use, or that the home folder does not allow | answers 14, and changes nothing |
//! | an LBA past the end or past 64 bits, a length that is 0, not whole units or longer than a request | answers invalid |
//!
//! What each word of a node does to the client. An answer to nothing, one of another generation or
//! of another length ends the connection. What is unanswered is asked again over the next one.
//! Where each greeting is refused for as long as a request may take, all requests fail; 10 and 12
//! are no refusals, for others may go.

use overside_verbs::RemoteToken;

mod change;
mod hello;
mod reply;
mod report;
mod request;

pub use change::{Alteration, Change, Changed, NONCE_BYTES};
pub use hello::{FEATURES, FILES, GRANTS, Hello, KEEPS, NAME_BYTES_MAX, PROOF_BYTES, Proof, Role, Welcome};
pub use reply::{Reply, Status};
pub use report::{Counts, Inquiry, MemberReport, Report, SessionReport, SessionRole, VolumeReport, VolumeState};
pub use request::{Operation, RequestHeader};

/// Bytes before a payload.
pub const HEADER: usize = 64;
/// The one that both must speak.
pub const VERSION: u8 = 1;
/// Longest payload of a message, in bytes, whatever a node offers.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 30;

/// A message that is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of a volume's protocol is malformed: {0}; are both sides of the same version?")]
pub struct Malformed(pub &'static str);

/// The first 64 bytes of a message, and the rest.
fn header(message: &[u8]) -> Result<(&[u8; HEADER], &[u8]), Malformed> {
    let (header, payload) = message.split_first_chunk::<HEADER>().ok_or(Malformed("shorter than its header"))?;
    if header[..4] != MAGIC { Err(Malformed("wrong magic")) } else { Ok((header, payload)) }
}

/// A message as a service hands it on: its number, and what follows the envelope. As the header and
/// the rest.
///
/// # Errors
/// [`Malformed`] when it is shorter than a header.
pub fn enveloped(number: u32, body: &[u8]) -> Result<([u8; HEADER], &[u8]), Malformed> {
    let (rest, payload) = body.split_at_checked(HEADER - 8).ok_or(Malformed("shorter than its header"))?;
    let mut bytes = begin(u64::from(number));
    put(&mut bytes, 8, rest);
    Ok((bytes, payload))
}

fn begin(number: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&MAGIC);
    put(&mut bytes, 4, &(number as u32).to_le_bytes());
    bytes
}

fn put(bytes: &mut [u8; HEADER], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

fn u32_at(bytes: &[u8; HEADER], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8; HEADER], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn zeros(bytes: &[u8]) -> Result<(), Malformed> {
    if bytes.iter().any(|byte| *byte != 0) { Err(Malformed("bytes that mean nothing are not zero")) } else { Ok(()) }
}

const MAGIC: [u8; 4] = *b"OVSC";

/// Messages that a node takes, for fuzzing.
#[doc(hidden)]
pub fn seeds_to_node() -> Vec<Vec<u8>> {
    let request = |operation, lba, length| RequestHeader {
        operation,
        session: 3,
        generation: 2,
        number: 7,
        lowest: 5,
        lba,
        length,
    };
    let hello = Hello {
        number: 4,
        name: "pg".into(),
        role: Role::Writer,
        session: 0,
        incarnation: 0,
        generation: 1,
        buffer_bytes: 8256,
        features: 0,
        process: 71,
        group: 0,
    };
    let granted = RemoteToken { at: 512, len: 1 << 20, rkey: 7 << 90 };
    let change = |what| Change { number: 5, volume: "pg".into(), what }.bytes();
    vec![
        request(Operation::Read, 8, 8192).bytes().to_vec(),
        [&request(Operation::Write { fua: true }, 1 << 40, 512).bytes()[..], &[7; 512]].concat(),
        [&request(Operation::WriteGranted { fua: true }, 3, 1 << 20).bytes()[..], &granted.to_bytes()].concat(),
        request(Operation::Flush, 0, 0).bytes().to_vec(),
        request(Operation::Hint(crate::Hint::WillNeed), 0, 512).bytes().to_vec(),
        request(Operation::Check { mend: true }, 8, 65536).bytes().to_vec(),
        hello.bytes(),
        Inquiry { number: 5, volume: String::new() }.bytes(),
        Inquiry { number: 6, volume: "pg".into() }.bytes(),
        Proof { number: 4, proof: [7; PROOF_BYTES] }.bytes(),
        change(Alteration::Resize { bytes: 4 << 30 }),
        change(Alteration::Delete),
        change(Alteration::Replace { old: "/srv/a.img".into(), new: "tcp:10.0.0.2:7071/m".into() }),
    ]
}

/// Messages that a client takes.
#[doc(hidden)]
pub fn seeds_to_client() -> Vec<Vec<u8>> {
    let reply =
        Reply { status: Status::Done, session: 3, generation: 2, number: 7, incarnation: 11, length: 16, wrong: 0 };
    let failed = Reply { status: Status::Device(crate::DeviceError::NoSpace), length: 0, wrong: 5, ..reply };
    let welcome = Welcome {
        number: 4,
        status: Status::Done,
        session: 3,
        generation: 2,
        incarnation: 11,
        bytes: 1 << 31,
        unit_bytes: 512,
        read_only: false,
        requests_max: 64,
        request_bytes_max: 128 << 10,
        features: 0,
    };
    let report = Report { number: 5, incarnation: 11, ..report::example() };
    let unknown = Report { status: Status::Unknown, volumes: Vec::new(), ..report.clone() };
    vec![
        [&reply.bytes()[..], &[7; 16]].concat(),
        failed.bytes().to_vec(),
        welcome.bytes().to_vec(),
        report.bytes(),
        unknown.bytes(),
        Changed { number: 5, status: Status::Refused, nonce: [0; NONCE_BYTES], text: "it is in use".into() }.bytes(),
        Changed { number: 5, status: Status::Prove, nonce: [9; NONCE_BYTES], text: String::new() }.bytes(),
    ]
}

/// Parses a message as a node does, and holds what it says against its own bytes. Whether it was
/// taken.
#[doc(hidden)]
pub fn fuzz_to_node(message: &[u8]) -> bool {
    if let Ok(hello) = Hello::parse(message) {
        assert_eq!(hello.bytes(), message, "a hello says itself again");
        assert!(RequestHeader::parse(message).is_err(), "a hello is no request");
        return true;
    }
    if let Ok(inquiry) = Inquiry::parse(message) {
        assert_eq!(inquiry.bytes(), message, "an inquiry says itself again");
        assert!(RequestHeader::parse(message).is_err(), "an inquiry is no request");
        return true;
    }
    if let Ok(change) = Change::parse(message) {
        assert_eq!(change.bytes(), message, "a change says itself again");
        assert!(RequestHeader::parse(message).is_err(), "a change is no request");
        return true;
    }
    if let Ok(proof) = Proof::parse(message) {
        assert_eq!(proof.bytes(), message, "a proof says itself again");
        assert!(RequestHeader::parse(message).is_err(), "a proof is no request");
        return true;
    }
    let Ok((request, payload)) = RequestHeader::parse(message) else { return false };
    assert_eq!([&request.bytes()[..], payload].concat(), message, "a request says itself again");
    assert_eq!(payload.len(), request.payload());
    true
}

/// The same as a client does.
#[doc(hidden)]
pub fn fuzz_to_client(message: &[u8]) -> bool {
    if let Ok(welcome) = Welcome::parse(message) {
        assert_eq!(&welcome.bytes()[..], message, "a welcome says itself again");
        return true;
    }
    if let Ok(report) = Report::parse(message) {
        assert_eq!(report.bytes(), message, "a report says itself again");
        assert!(Reply::parse(message).is_err(), "a report is no reply");
        return true;
    }
    if let Ok(changed) = Changed::parse(message) {
        assert_eq!(changed.bytes(), message, "an answer to a change says itself again");
        assert!(Reply::parse(message).is_err(), "an answer to a change is no reply");
        return true;
    }
    let Ok((reply, payload)) = Reply::parse(message) else { return false };
    assert_eq!([&reply.bytes()[..], payload].concat(), message, "a reply says itself again");
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn operations() -> impl Strategy<Value = Operation> {
        prop_oneof![
            Just(Operation::Read),
            any::<bool>().prop_map(|fua| Operation::Write { fua }),
            any::<bool>().prop_map(|fua| Operation::WriteGranted { fua }),
            Just(Operation::Flush),
            Just(Operation::Discard),
            Just(Operation::Zero),
            Just(Operation::Hint(crate::Hint::Random)),
            any::<bool>().prop_map(|mend| Operation::Check { mend }),
            Just(Operation::Goodbye),
        ]
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(
            operation in operations(), session: u64, generation: u32, number: u64, lowest: u64, lba: u64, sectors in 0u32..64,
        ) {
            let moves = !matches!(operation, Operation::Flush | Operation::Goodbye);
            let (lba, length) = if moves { (lba, sectors * 512) } else { (0, 0) };
            let lowest = lowest.min(number);
            let request = RequestHeader { operation, session, generation, number, lowest, lba, length };
            let granted = RemoteToken { at: session, len: u64::from(length), rkey: 9 };
            let payload = match operation {
                Operation::WriteGranted { .. } => granted.to_bytes().to_vec(),
                _ => vec![9; request.payload()],
            };
            let message = [&request.bytes()[..], &payload].concat();
            prop_assert_eq!(request.granted(&payload), matches!(operation, Operation::WriteGranted { .. }).then_some(granted));
            let (again, payload) = RequestHeader::parse(&message).unwrap();
            prop_assert_eq!(again, request);
            prop_assert_eq!(payload.len(), request.payload());
            prop_assert!(RequestHeader::parse(&message[..message.len() - 1]).is_err());
            prop_assert!(RequestHeader::parse(&[&message[..], &[0]].concat()).is_err());
        }

        #[test]
        fn greetings_and_replies_survive_the_wire(
            name in "[a-z0-9-]{1,64}", session: u64, generation: u32, number: u64, incarnation: u64, code in 0u8..16, bytes: u64,
        ) {
            let hello = Hello { number: 9, name, role: Role::TakeOver, session, incarnation, generation, buffer_bytes: 4096, features: 0, process: generation, group: bytes };
            prop_assert_eq!(Hello::parse(&hello.bytes()).unwrap(), hello);
            let welcome = Welcome {
                number: generation,
                status: Status::parse(code).unwrap_or(Status::Done), session, generation, incarnation, bytes,
                unit_bytes: 512, read_only: generation % 2 == 0, requests_max: 7, request_bytes_max: 4096, features: 0,
            };
            prop_assert_eq!(Welcome::parse(&welcome.bytes()).unwrap(), welcome);
            let reply = Reply { status: welcome.status, session, generation, number, incarnation, length: 3, wrong: bytes };
            let message = [&reply.bytes()[..], b"abc"].concat();
            prop_assert_eq!(Reply::parse(&message).unwrap(), (reply, &b"abc"[..]));
        }

        #[test]
        fn anything_is_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            for _ in 0..2 {
                fuzz_to_node(&bytes);
                fuzz_to_client(&bytes);
                if bytes.len() >= 4 { bytes[..4].copy_from_slice(&MAGIC); }
            }
        }
    }

    #[test]
    fn seeds_are_taken_and_near_them_nothing_panics() {
        for seed in seeds_to_node().into_iter().chain(seeds_to_client()) {
            assert!(fuzz_to_node(&seed) || fuzz_to_client(&seed), "{seed:?}");
            for at in 0..seed.len().min(HEADER) {
                for change in [1, 0x80, 0xff] {
                    let mut near = seed.clone();
                    near[at] ^= change;
                    fuzz_to_node(&near);
                    fuzz_to_client(&near);
                }
            }
        }
    }
}
