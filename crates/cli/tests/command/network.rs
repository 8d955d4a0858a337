//! The same commands over `tcp:`, beside `shm:` on one server, with a key and without.

use crate::server::{Server, overside, told};
use overside::Address;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

const TRIPS: &str = "id,city,fare\n1,Ulm,10.5\n2,Köln,11.5\n3,Bern,12.5\n";

fn address(what: &str) -> String {
    Address::here("tcp", &format!("cli-network-{what}-{}", std::process::id())).unwrap().to_string()
}

fn said(arguments: &[&str]) -> String {
    let done = overside(arguments).output().unwrap();
    assert!(done.status.success(), "{}", told(&done));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn devices_are_shown_and_their_absence_explained() {
    let shown = said(&["devices"]);
    assert!(shown.contains("shm") && shown.contains("rdma"), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&said(&["devices", "--json"])).unwrap();
    let (found, why) = (json["rdma"].as_array().unwrap(), json["why_none"].as_str());
    // One of both, and an explanation that says what to do.
    assert_eq!(
        found.is_empty(),
        why.is_some_and(|why| why.contains("apt install") || why.contains("modprobe")),
        "{json}"
    );
}

/// Before anything is generated, measured or started.
#[test]
fn an_rdma_device_that_is_not_there_is_named_beside_those_that_are() {
    let json: serde_json::Value = serde_json::from_str(&said(&["devices", "--json"])).unwrap();
    let there: Vec<&str> =
        json["rdma"].as_array().unwrap().iter().filter_map(|device| device["name"].as_str()).collect();
    let expected = match json["why_none"].as_str() {
        Some(why) => why.to_owned(),
        None => format!("there is no none0, only {}", there.join(", ")),
    };
    let folder = tempfile::tempdir().unwrap();
    for command in [&["demo"][..], &["bench", "delta"]] {
        let arguments = [command, &["--over", "rdma", "--rdma-device", "none0"]].concat();
        let output = overside(&arguments).current_dir(folder.path()).output().unwrap();
        let told = told(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(&expected) && told.lines().count() == 1, "{told}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

fn key(server: &Server, name: &str, content: &str, mode: u32) -> String {
    let path = server.file(name, content);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// The key that a server is to be started with, and the folder in which it lies as long as that is kept.
fn key_of_the_server() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, "the key of this very test").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn one_server_answers_over_shared_memory_and_tcp() {
    let tcp = address("both");
    let server = Server::with(&["--listen", &tcp]);
    let trips = server.file("trips.csv", TRIPS);
    server.ok(&["load", &tcp, "trips", &trips, "--key", "id"]);
    for mode in ["auto", "copy", "gather", "delta"] {
        let (over_tcp, over_shm) = (["scan", &tcp, "trips", "--mode", mode], ["scan", "@", "trips", "--mode", mode]);
        let rows = server.ok(&over_tcp);
        assert!(rows.contains("Köln"), "{mode}: {rows}");
        assert_eq!(rows, server.ok(&over_shm), "{mode}");
    }
    server.ok(&["put", &tcp, "trips", "4", "Wien,13.5"]);
    assert!(server.ok(&["get", "@", "trips", "4"]).contains("Wien"));
    server.ok(&["delete", "@", "trips", "1"]);
    assert!(server.fails(&["get", &tcp, "trips", "1"]).contains('1'));
}

#[test]
fn only_the_key_opens_and_only_if_nobody_else_can_read_it() {
    let tcp = address("key");
    let (_folder, good) = key_of_the_server();
    let good = good.as_str();
    let server = Server::with(&["--listen", &tcp, "--key-file", good]);
    let trips = server.file("trips.csv", TRIPS);
    server.ok(&["load", &tcp, "trips", &trips, "--key", "id", "--key-file", good]);
    assert!(server.ok(&["scan", &tcp, "trips", "--key-file", good]).contains("Bern"));
    let scan = |key: &[&str]| server.fails(&[&["scan", &tcp, "trips"], key].concat());
    assert!(scan(&[]).contains("--key-file"));
    assert!(scan(&["--key-file", &key(&server, "other", "another key altogether", 0o600)]).contains("another"));
    assert!(scan(&["--key-file", &key(&server, "open", "the key of this very test", 0o644)]).contains("chmod 600"));
    assert!(scan(&["--key-file", &key(&server, "short", "short", 0o600)]).contains("16 to 4096"));
    assert!(scan(&["--key-file", good, "--no-mac"]).contains("--no-mac"));
}

#[test]
fn what_other_hosts_can_reach_needs_a_key() {
    let output = overside(&["serve", "--listen", "tcp:0.0.0.0:17999"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("--key-file"), "{}", told(&output));
}

/// Whoever is turned away or misbehaves is a line for the operator, and a flood of them a few.
#[test]
fn the_server_says_whom_it_turned_away_and_why() {
    let tcp = address("told");
    let (_folder, good) = key_of_the_server();
    let good = good.as_str();
    let server = Server::with(&["--listen", &tcp, "--key-file", good]);
    let dial = || TcpStream::connect(tcp.strip_prefix("tcp:").unwrap()).unwrap();
    let mut stranger = dial();
    stranger.write_all(&[b'x'; 200]).unwrap();
    server.says(&["refused", &stranger.local_addr().unwrap().to_string()]);
    // Longer than a handshake may take.
    let silent = dial();
    server.says(&["refused", "in time"]);
    drop(silent);
    server.fails(&["scan", &tcp, "trips", "--key-file", &key(&server, "other", "another key altogether", 0o600)]);
    server.says(&["refused", "key"]);
    for _ in 0..300 {
        drop(dial());
    }
    let trips = server.file("trips.csv", TRIPS);
    server.ok(&["load", &tcp, "trips", &trips, "--key", "id", "--key-file", good]);
    assert!(server.log().lines().count() < 60, "{}", server.log());
    assert!(!server.log().contains("goodbye") && !server.log().contains("ended"), "{}", server.log());
}
