//! A peer that shakes hands properly and then does what no peer does. In every case it alone is disconnected, the reason says what it
//! did, and an honest client beside it goes on.
//!
//! Everything that a peer can say, what it releases, completes or makes this process keep, and when that is
//! true. Anything else ends the connection. The fuzz target `two_ends` says all of them at any moment.
//!
//! | word | what it does here | when | hostile test |
//! |---|---|---|---|
//! | acked, in any head | completes requests and gives their memory back | the request has left wholly, and the kernel does not send from that memory any more; never one that must be answered | `early`: both; `requests` (unit tests): `what_has_not_left_wholly_is_neither_acknowledged_nor_answered` |
//! | credits, in any head | lets so many posted messages leave | at once; they add up and are no memory | `greed`: `no_kind_of_frame_makes_this_process_keep_more_than_a_bound` |
//! | send | completes a receive, with its bytes | a receive was granted, has room, and all bytes and the tag are there | `main`: `lengths_and_counts_that_nobody_has_end_the_connection_that_names_them` |
//! | immediate data | is handed on | the user's to check | conformance: `immediate` |
//! | write, write more | change a window; the last part completes a receive where it has immediate data | each part: tag, key, range and right hold, and the region is registered at that moment | `main`: `forged_keys_foreign_ranges_and_missing_rights_reach_nothing`; `target` (unit tests): `a_write_in_parts_ends_where_its_memory_is_deregistered` |
//! | read | makes this side keep an answer, and copies memory into it as the peer takes it | each part: as a WRITE; 128 at a time, 1 MiB of bytes | `main`: `a_flood_of_requests_without_taking_an_answer_ends`; `late`: `a_reader_that_takes_its_time_sees_nothing_of_what_comes_after_the_registration` |
//! | fetch and add, compare and swap | change a word of a window, and keep an answer | as a READ | `main`: `forged_keys_foreign_ranges_and_missing_rights_reach_nothing` |
//! | data | fills the sink of a READ, and completes it with the last byte | the READ has left and is the oldest request that has not ended; no more bytes than it asked for | `main`: `what_was_not_asked_is_not_answered_nor_acknowledged_nor_given_back`; `parts::frames` |
//! | value | completes an atomic, or a READ of nothing | as data | the same |
//! | refused | ends a READ, WRITE or atomic as RemoteAccess | as data | the same |
//! | ack | nothing but its head; this side queues one only when none waits | at any time | `greed`: `no_kind_of_frame_makes_this_process_keep_more_than_a_bound` |
//! | want | keeps shared receives for the peer, at most as many as the pool has | while others wait, its part; it gives back when they do | `greed`: `receives_that_others_wait_for_are_not_kept_by_a_word` |
//! | recall | takes credits from this side, and makes it queue a return | the last return has left | `greed`: `recalls_are_answered_one_at_a_time` |
//! | return | makes receives everybody's again | its recall has left; it gives back all that no message used | `control` (unit tests): `nothing_is_given_back_before_it_was_asked_for`; `greed`: as want |
//! | bye | flushes what is pending; "too long" names a message | that message has left | `requests` (unit tests): `a_peer_calls_no_message_too_long_that_it_has_not_got` |
//! | part of a frame | keeps at most 21 KiB, or fills a receive or sink that stays posted | it grows by 4 KiB in 5 s | `main`: `a_frame_that_stops_in_its_middle_or_trickles_is_not_waited_for` |
//! | a tag | lets the bytes before it count | it is that of this frame at this place | `main`: `frames_without_the_key_place_nothing` |
//! | an end that is not followed by closing | keeps the connection's place | for 2 s; it counts among the open ones | `greed`: `connections_that_were_ended_count_until_they_are_closed` |
//! | reading nothing | keeps 1 MiB of answers, one ack, one return, and what was posted | as long as its host answers | `greed`: `no_kind_of_frame_makes_this_process_keep_more_than_a_bound`; `control` (unit tests) |

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
