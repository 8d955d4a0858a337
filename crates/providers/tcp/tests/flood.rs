//! Thousands of connections: what they take of memory is bounded, and an honest client gets in and goes on. The only test of its
//! process, whose memory it measures.

mod ends;

use std::time::{Duration, Instant};

use ends::*;
use overside_tcp::Options;
use overside_verbs::{Provider, VerbsError};

#[test]
fn thousands_of_connections_take_bounded_memory_and_nobodys_place() {
    let room = descriptors();
    let server = Server::start(&fresh_name(), Options { connections_max: 300, ..options(None) });
    let bystander = Bystander::start(&server.name, options(None));
    bystander.goes_on();
    let before = resident_bytes();

    // They connect and say nothing, or begin to: nobody waits for them, and the oldest make room.
    let mut silent = Vec::new();
    for i in 0..3000.min(room) {
        let mut raw = Raw::dial(&server.name);
        if i % 2 == 0 {
            raw.say(ACK, 0, &[], b"");
        }
        silent.push(raw);
        if i % 500 == 0 {
            bystander.goes_on();
        }
    }
    let mut honest = End::new(options(None));
    let qp = honest.connect(&server.name).unwrap();
    honest.echo(qp, b"among thousands");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < SILENT_BYTES_MAX, "3000 silent connections took {grown} bytes");
    drop(silent);

    // They shake hands, as many as are taken; whoever comes too many is told so.
    let (mut known, told, end) = (Vec::new(), Instant::now(), Instant::now() + PATIENCE);
    let refused = loop {
        match honest.provider.connect(&honest.domain, &server.name, Duration::from_secs(20)) {
            Ok(link) => known.push(link),
            Err(refused) => break refused,
        }
        assert!(known.len() < 2000 && Instant::now() < end, "{} after {:?}", known.len(), told.elapsed());
    };
    let full = matches!(&refused, VerbsError::Handshake(why) if why.contains("no more connections"));
    assert!(full, "{refused}");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < KNOWN_BYTES_MAX, "{} connections took {grown} bytes", known.len());
    bystander.goes_on();

    // Their end makes room.
    drop(known);
    let end = Instant::now() + PATIENCE;
    while let Err(error) = honest.connect(&server.name) {
        assert!(Instant::now() < end, "no room after they have gone: {error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    honest.echo(qp, b"all is well");
    drop(bystander);
}

/// How many connections of both ends may be open here.
fn descriptors() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.map_or(3000, |now| now.saturating_sub(1200) as usize / 2)
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

/// 256 half-open ones at a time and the test's own list.
const SILENT_BYTES_MAX: usize = 4 << 20;
/// Some 300 connections, both ends' stages and queues.
const KNOWN_BYTES_MAX: usize = 32 << 20;
