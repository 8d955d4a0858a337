//! How processes end: by signals, in the middle of things, and what that leaves.

use super::server::{Server, numbered, overside, send, told};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Waits for a child, at most so long.
fn ended(child: &mut Child, within: Duration) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(start.elapsed() < within, "still running after {within:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A server with a table `t` of this many rows.
fn with_rows(rows: usize) -> Server {
    let server = Server::start();
    let path = server.file("t.csv", numbered(rows));
    server.ok(&["load", "@", "t", &path]);
    server
}

#[test]
fn a_server_ends_cleanly_on_either_signal() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut server = with_rows(1000);
        server.signal(signal);
        assert!(ended(&mut server.child, PATIENCE).success());
        let mut rest = String::new();
        server.output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "ended; the tables are gone\n");
        let told = server.fails(&["scan", "@", "t"]);
        assert!(told.contains(&server.address), "{told}");
        // The address is free again at once.
        let mut again = overside(&["serve", "--listen", &server.address, "--json"]);
        let mut again = again.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(again.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let listening: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(listening["listening"][0], server.address);
        assert_eq!(listening["pid"], again.id());
        send(&again, Signal::TERM);
        assert!(ended(&mut again, PATIENCE).success());
    }
}

#[test]
fn a_scan_that_is_no_longer_read_ends_without_an_error() {
    let server = with_rows(50_000);
    let mut scan = server.command(&["scan", "@", "t"]);
    let mut scan = scan.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(scan.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with(" id  name"), "{line:?}");
    let output = scan.wait_with_output().unwrap();
    assert!(output.status.success() && told(&output).is_empty(), "{}", told(&output));
}

#[test]
fn a_scan_whose_reader_pauses_holds_nobody_up_and_goes_on() {
    let server = with_rows(200_000);
    let mut paused = server.command(&["scan", "@", "t", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    assert_eq!(server.json(&["scan", "@", "t", "--out", &server.path("all.arrow")])["row_count"], 200_000);
    server.ok(&["put", "@", "t", "7", "changed,1"]);
    assert_eq!(server.json(&["get", "@", "t", "7"])["name"], "changed");
    // A server that waited for it would wait for ten seconds.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // Longer than a server waits for a client that takes nothing.
    std::thread::sleep(Duration::from_secs(12));
    assert!(paused.try_wait().unwrap().is_none());
    let mut text = String::new();
    paused.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(ended(&mut paused, PATIENCE).success());
    let scanned: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(scanned["row_count"], 200_000);
}

#[test]
fn a_stopped_client_holds_nobody_up_and_is_told_why_it_was_left() {
    let server = with_rows(200_000);
    let mut stopped = server.command(&["scan", "@", "t", "--out", &server.path("out.csv")]);
    let stopped = stopped.stderr(Stdio::piped()).spawn().unwrap();
    while !server.exports(&stopped) {}
    send(&stopped, Signal::STOP);
    let start = Instant::now();
    server.ok(&["load", "@", "u", &server.path("t.csv")]);
    assert_eq!(server.json(&["scan", "@", "t", "--out", &server.path("all.arrow")])["row_count"], 200_000);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    std::thread::sleep(Duration::from_secs(12));
    send(&stopped, Signal::CONT);
    let output = stopped.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(told(&output).contains("connection") && told(&output).lines().count() == 1, "{}", told(&output));
    assert!(!server.part());
}

#[test]
fn a_client_killed_while_it_loads_leaves_whole_rows_and_a_working_server() {
    let server = Server::start();
    let path = server.file("t.csv", numbered(400_000));
    let mut load = server.command(&["load", "@", "t", &path]).stdout(Stdio::null()).spawn().unwrap();
    let rows = |server: &Server| {
        let scan = server.command(&["scan", "@", "t", "--json", "--limit", "1"]).output().unwrap();
        scan.status.success() && scan.stdout.windows(4).any(|part| part == b"name")
    };
    let start = Instant::now();
    while !rows(&server) {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing was loaded");
    }
    load.kill().unwrap();
    load.wait().unwrap();
    let out = server.path("kept.csv");
    let kept = server.json(&["scan", "@", "t", "--out", &out])["row_count"].as_u64().unwrap();
    let text = std::fs::read_to_string(&out).unwrap();
    assert_eq!(text.lines().count() as u64, kept + 1);
    // What is there is the file's beginning, whole: batches are put in order.
    assert!(numbered(400_000).starts_with(&text));
    server.ok(&["load", "@", "t", &path, "--replace"]);
    assert_eq!(server.json(&["scan", "@", "t", "--out", &out])["row_count"], 400_000);
}

#[test]
fn an_interrupted_load_says_what_stays_and_exits_with_130() {
    let server = Server::start();
    let path = server.file("t.csv", numbered(400_000));
    let mut load = server.command(&["load", "@", "t", &path]);
    let load = load.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while !server.command(&["scan", "@", "t", "--limit", "1"]).output().unwrap().status.success() {
        assert!(start.elapsed() < Duration::from_secs(20), "the table was not created");
    }
    send(&load, Signal::INT);
    let output = load.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", told(&output));
    assert!(told(&output).contains("interrupted"), "{}", told(&output));
    assert!(output.stdout.is_empty());
}

#[test]
fn an_interrupted_export_leaves_no_file() {
    let server = with_rows(200_000);
    let out = server.path("out.csv");
    let mut scan = server.command(&["scan", "@", "t", "--out", &out]);
    let mut scan = scan.stderr(Stdio::piped()).spawn().unwrap();
    while !server.exports(&scan) && scan.try_wait().unwrap().is_none() {}
    send(&scan, Signal::INT);
    let output = scan.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", told(&output));
    assert!(!server.part() && !std::path::Path::new(&out).exists());
}

#[test]
fn an_export_that_is_killed_leaves_no_file_and_the_one_before_as_it_was() {
    let server = with_rows(200_000);
    let out = server.path("out.csv");
    std::fs::write(&out, "before").unwrap();
    let mut scan = server.command(&["scan", "@", "t", "--out", &out]).spawn().unwrap();
    while !server.exports(&scan) {}
    scan.kill().unwrap();
    scan.wait().unwrap();
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "before");
    // Where files without names are unknown, one lies there until the next export.
    server.ok(&["scan", "@", "t", "--out", &out]);
    assert!(!server.part());
    assert_eq!(std::fs::read_to_string(&out).unwrap(), numbered(200_000));
}

#[test]
fn a_server_that_is_killed_in_mid_scan_is_an_error_at_once() {
    let mut server = with_rows(200_000);
    let mut scan = server.command(&["scan", "@", "t", "--out", &server.path("out.csv")]);
    let scan = scan.stderr(Stdio::piped()).spawn().unwrap();
    while !server.exports(&scan) {}
    // Stopped, so that it is in mid-scan for certain when the server dies.
    send(&scan, Signal::STOP);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let start = Instant::now();
    send(&scan, Signal::CONT);
    let output = scan.wait_with_output().unwrap();
    // Within a second where the machine has time for it; a client waits for half a minute.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(told(&output).contains("ended") && told(&output).lines().count() == 1, "{}", told(&output));
    assert!(!server.part());
}

/// On a machine with other things to do.
const PATIENCE: Duration = Duration::from_secs(60);
