//! A bug in the server costs as few as possible, and nobody looks for it in vain.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use overside_table::server::{Notices, OnFailure};

use super::bad_input::Raw;
use super::watched::Watched;
use super::*;

type Lines = Arc<Mutex<Vec<String>>>;

/// Notices whose taker has a bug: it panics in the middle of the first connection's end, on the worker's thread.
fn panicking(lines: &Lines) -> Notices {
    let lines = lines.clone();
    Notices::new(move |line| {
        let first = lines.lock().unwrap().is_empty();
        lines.lock().unwrap().push(line.to_owned());
        assert!(!(first && line.contains("ended")), "planted");
    })
}

fn wait_for(lines: &Lines, part: &str) {
    let start = Instant::now();
    while !lines.lock().unwrap().iter().any(|line| line.contains(part)) {
        assert!(start.elapsed() < Duration::from_secs(60), "{part:?}: {lines:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_worker_that_panics_loses_its_clients_and_serves_on() {
    let lines = Lines::default();
    let notices = Some(panicking(&lines));
    let bench = Bench::with(ServerOptions { workers: 1, notices, ..ServerOptions::default() });
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..100, 1, 10);
    let mut raw = Raw::new(&bench);
    raw.send(b"garbage");
    wait_for(&lines, "a bug ended the thread worker-0 (planted)");
    assert!(client.tables().is_err(), "its connection went with the worker");
    let mut again = bench.client();
    let table = again.table("t").unwrap();
    assert_eq!(collect(&mut again, &table, &ScanOptions::default(), 10).len(), 100);
    put(&mut again, &table, 100..200, 1, 10);
    assert_eq!(again.stats().unwrap().connections, 1);
}

#[test]
fn a_worker_that_cannot_begin_again_ends_the_server() {
    let (lines, failures) = (Lines::default(), Lines::default());
    let on_failure = {
        let failures = failures.clone();
        Some(OnFailure::new(move |why| failures.lock().unwrap().push(why.to_owned())))
    };
    let notices = Some(panicking(&lines));
    let provider = Watched::new(1);
    let name = format!("table-test-scarce-{}", std::process::id());
    let options = ServerOptions { workers: 1, notices, on_failure, ..ServerOptions::default() };
    let server = Server::start(provider, &[&name], options).unwrap();
    let bench = Bench { server: Some(server), provider: ShmProvider::new().unwrap(), name };
    let mut raw = Raw::new(&bench);
    raw.send(b"garbage");
    wait_for(&failures, "the thread worker-0 cannot begin again");
}
