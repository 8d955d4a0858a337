//! A peer that shakes hands properly and then does what no peer does. In every case it alone is disconnected, the reason says what it
//! did, and an honest client beside it goes on.

#[path = "../ends/mod.rs"]
mod ends;

mod early;
mod greed;
mod late;

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ends::*;
use overside_verbs::Status;

fn scene() -> (Server, Bystander) {
    let server = Server::start(&fresh_name(), options(None));
    let bystander = Bystander::start(&server.name, options(None));
    bystander.goes_on();
    (server, bystander)
}

fn words(token: overside_verbs::RemoteToken, at: u64, last: &[u64]) -> Vec<u64> {
    [&[token.rkey as u64, (token.rkey >> 64) as u64, at], last].concat()
}

#[test]
fn a_raw_peer_is_understood_as_long_as_it_behaves() {
    let (server, bystander) = scene();
    let mut raw = Raw::shake(&server.name);
    raw.say(WRITE, 3, &words(server.writable, 16, &[3]), b"abc");
    raw.say(READ, 0, &words(server.readable, 15, &[5]), b"");
    assert_eq!(raw.frame(), (DATA, vec![], b"\0abc\0".to_vec()));
    raw.say(FETCH_ADD, 0, &words(server.atomic, 64, &[9]), b"");
    raw.say(COMPARE_SWAP, 0, &words(server.atomic, 64, &[9, 11]), b"");
    assert_eq!((raw.frame().1, raw.frame().1), (vec![0], vec![9]));
    assert_eq!(server.window.word(64).unwrap().load(Ordering::Acquire), 11);
    bystander.goes_on();
}

#[test]
fn lengths_and_counts_that_nobody_has_end_the_connection_that_names_them() {
    let (server, bystander) = scene();
    let key = |len: u64| words(server.writable, 0, &[len]);
    let cases: [(u8, u32, Vec<u64>, &str); 10] = [
        (SEND, u32::MAX, vec![], "absurd length"),
        (SEND, (1 << 30) + 1, vec![], "absurd length"),
        (WRITE, 16, key(u64::MAX), "absurd length"),
        (WRITE, 17, key(16), "absurd length"),
        (WRITE, (16 << 10) + 1, key(1 << 20), "absurd length"),
        (WRITE_MORE, u32::MAX, vec![], "absurd length"),
        (READ, 0, words(server.readable, 0, &[1 << 40]), "absurd length"),
        (DATA, 4096, vec![], "no READ"),
        (WANT, 0, vec![1 << 32], "a count that is absurd"),
        (77, 0, vec![], "unknown kind"),
    ];
    for (kind, len, words, reason) in cases {
        let mut raw = Raw::shake(&server.name);
        raw.say(kind, len, &words, &[5; 2048][..(len as usize).min(2048)]);
        server.ended(Status::Malformed, reason);
        raw.is_hung_up_on();
        bystander.goes_on();
    }
    // A length that there is, and no receive for it: depending on what the server has granted by then.
    Raw::shake(&server.name).say(SEND, 1 << 30, &[], &[5; 2048]);
    let ways = [(Status::Malformed, "no receive was granted"), (Status::TooLong, "longer than the receive it met")];
    server.ended_one_way(&ways);
    bystander.goes_on();
}

#[test]
fn what_was_not_asked_is_not_answered_nor_acknowledged_nor_given_back() {
    let (server, bystander) = scene();
    let acknowledges = |acked: u64| {
        let mut head = head(ACK, 0, &[]);
        head[16..24].copy_from_slice(&acked.to_le_bytes());
        head
    };
    for (bytes, reason) in [
        (acknowledges(u64::MAX), "acknowledges what was not asked"),
        (head(VALUE, 0, &[1]), "answer to nothing"),
        (head(REFUSED, 0, &[]), "answer to nothing"),
        (head(RETURN, 0, &[u64::from(u32::MAX)]), "gives back what it never had"),
        (head(WRITE_MORE, 1, &[]), "absurd length"),
        (vec![SEND, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "unknown flags"),
    ] {
        let mut raw = Raw::shake(&server.name);
        let reason = if bytes[0] == WRITE_MORE { "parts of a WRITE out of place" } else { reason };
        raw.stream.write_all(&[&bytes[..], &[0][..usize::from(bytes[0] == WRITE_MORE)]].concat()).unwrap();
        server.ended(Status::Malformed, reason);
        bystander.goes_on();
    }
}

/// A request that key, range or right do not allow is refused; it changes nothing, and the connection lives.
#[test]
fn forged_keys_foreign_ranges_and_missing_rights_reach_nothing() {
    let (server, bystander) = scene();
    server.window.write(0, &[0xAB; WINDOW_BYTES]).unwrap();
    let mut forged = server.writable;
    forged.rkey ^= 1 << 77;
    let (readable, writable, atomic) = (server.readable, server.writable, server.atomic);
    let end = WINDOW_BYTES as u64;
    let mut raw = Raw::shake(&server.name);
    for (token, at, len) in [
        (forged, 0, 16),
        (readable, 0, 16),
        (atomic, 0, 16),
        (writable, end, 16),
        (writable, end - 15, 16),
        (writable, u64::MAX - 3, 16),
        (writable, u64::MAX, 16),
    ] {
        raw.say(WRITE, len, &words(token, at, &[u64::from(len)]), &[1; 16]);
        assert_eq!(raw.frame().0, REFUSED, "WRITE at {at}");
    }
    for (token, at, len) in [
        (forged, 0, 8),
        (writable, 0, 8),
        (readable, 0, end + 1),
        (readable, u64::MAX, 2),
        (readable, 1 << 63, 1 << 30),
    ] {
        raw.say(READ, 0, &words(token, at, &[len]), b"");
        assert_eq!(raw.frame().0, REFUSED, "READ at {at}");
    }
    for (token, at) in [(forged, 0), (writable, 0), (readable, 0), (atomic, end), (atomic, end - 4), (atomic, 3)] {
        raw.say(FETCH_ADD, 0, &words(token, at, &[1]), b"");
        assert_eq!(raw.frame().0, REFUSED, "FETCH_ADD at {at}");
        raw.say(COMPARE_SWAP, 0, &words(token, at, &[0, 1]), b"");
        assert_eq!(raw.frame().0, REFUSED, "CMP_SWAP at {at}");
    }
    let mut all = vec![0; WINDOW_BYTES];
    server.window.read(0, &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 0xAB), "something was written");
    // Still connected, and still served.
    raw.say(READ, 0, &words(readable, 8, &[4]), b"");
    assert_eq!(raw.frame(), (DATA, vec![], vec![0xAB; 4]));
    bystander.goes_on();
}

#[test]
fn a_flood_of_requests_without_taking_an_answer_ends() {
    let (server, bystander) = scene();
    let mut raw = Raw::shake(&server.name);
    let read = head(READ, 0, &words(server.readable, 0, &[64]));
    raw.stream.write_all(&read.repeat(129)).unwrap();
    // Answers make room as they leave, so 129 may be taken; a peer that lets none leave is not.
    let megabytes = head(READ, 0, &words(server.readable, 0, &[WINDOW_BYTES as u64])).repeat(4096);
    let deaf = raw.stream.try_clone().unwrap();
    let talking = std::thread::spawn(move || {
        let mut deaf = deaf;
        while deaf.write_all(&megabytes).is_ok() {}
    });
    server.ended(Status::Malformed, "more requests under way");
    _ = raw.stream.shutdown(Shutdown::Both);
    talking.join().unwrap();
    bystander.goes_on();
}

#[test]
fn a_frame_that_stops_in_its_middle_or_trickles_is_not_waited_for() {
    let (server, bystander) = scene();
    let started = Instant::now();
    // One stops in a head, one in a payload; one sends a byte a second, one begins a handshake so.
    let mut stopped = Raw::shake(&server.name);
    stopped.stream.write_all(&head(SEND, 16, &[])[..11]).unwrap();
    let mut half = Raw::shake(&server.name);
    half.say(WRITE, 16 << 10, &words(server.writable, 0, &[16 << 10]), &[1; 5000]);
    let mut slow = Raw::shake(&server.name);
    let mut unknown = Raw::dial(&server.name);
    let (frame, greeting) = (head(WANT, 0, &[1]), greeting(0));
    for at in 0..10 {
        // Either may be hung up on from some time on.
        _ = slow.stream.write_all(&frame[at..=at]);
        _ = unknown.stream.write_all(&greeting[at..=at]);
        bystander.goes_on();
        std::thread::sleep(Duration::from_secs(1));
    }
    for _ in 0..3 {
        server.ended(Status::Malformed, "stopped in the middle of a frame");
    }
    for raw in [&mut stopped, &mut half, &mut slow, &mut unknown] {
        raw.is_hung_up_on();
    }
    assert!(started.elapsed() >= Duration::from_secs(5), "a slow network gets no time");
}

/// A tag that is wrong ends the connection before a byte of what it covers is placed.
#[test]
fn frames_without_the_key_place_nothing() {
    let server = Server::start(&fresh_name(), options(Some(SECRET)));
    let bystander = Bystander::start(&server.name, options(Some(SECRET)));
    let mut raw = Raw::shake_with(&server.name, SECRET);
    raw.say(WRITE, 3, &words(server.writable, 16, &[3]), &[&b"abc"[..], &[0; 16]].concat());
    server.ended(Status::Malformed, "tag is wrong");
    let mut there = [0; 32];
    server.window.read(0, &mut there).unwrap();
    assert_eq!(there, [0; 32]);
    bystander.goes_on();
}
