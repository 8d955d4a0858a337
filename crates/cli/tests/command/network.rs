//! The same commands over `tcp:`, beside `shm:` on one server, with a key and without.

use crate::server::{Server, overside, told};
use overside::Address;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

/// As `openssl rand -hex 32` makes them.
const KEY: &str = "f552cc5023d8319aea1181f76f3adcbdc189941acf780de956fe5d1483d7a598\n";
const ANOTHER: &str = "ac5d960c71f2731a0ce76f67ca8980aab6ae4bc13d2a43a6ada270691286d33c\n";
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
    std::fs::write(&path, KEY).unwrap();
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
    for mode in ["auto", "copy", "gather", "delta", "in-place"] {
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
    assert!(scan(&["--key-file", &key(&server, "other", ANOTHER, 0o600)]).contains("another"));
    assert!(scan(&["--key-file", &key(&server, "open", KEY, 0o644)]).contains("chmod 600"));
    for (weak, why) in
        [("short", "too short"), ("the key of this very test, which anybody could guess\n", "looks like text")]
    {
        let said = scan(&["--key-file", &key(&server, "weak", weak, 0o600)]);
        assert!(said.contains(why) && said.contains("head -c 32 /dev/urandom > "), "{said}");
    }
    assert!(scan(&["--key-file", good, "--no-mac"]).contains("--no-mac"));
}

#[test]
fn what_other_hosts_can_reach_needs_a_key() {
    let output = overside(&["serve", "--listen", "tcp:0.0.0.0:17999"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("--key-file"), "{}", told(&output));
}

/// One command makes a good key, and the help, the README and the error that refuses a bad one name
/// it.
#[test]
fn help_readme_and_error_name_the_same_command_for_a_key() {
    const MAKES: &str = "head -c 32 /dev/urandom > key; chmod 600 key";
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    assert!(readme.contains(MAKES), "README.md");
    assert!(said(&["help"]).contains(MAKES), "overside help");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), "correct horse battery staple").unwrap();
    std::fs::set_permissions(folder.path().join("key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let run = |command: &str| {
        std::process::Command::new("sh").args(["-c", command]).current_dir(folder.path()).status().unwrap();
        overside(&["get", "tcp:127.0.0.1:1", "t", "1", "--key-file", "key"])
            .current_dir(folder.path())
            .output()
            .unwrap()
    };
    assert!(told(&run("true")).contains(MAKES), "{}", told(&run("true")));
    // What it makes is a key: now the server is missing.
    assert!(told(&run(MAKES)).contains("is the server running"), "{}", told(&run(MAKES)));
}

/// What a process of another user hears of a server: how many bytes within a while, or nothing at
/// all.
fn stranger_is_hung_up_on(tcp: &str) -> bool {
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            let user = rustix::process::Uid::from_raw(54_001);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            let mut stream = TcpStream::connect(tcp.strip_prefix("tcp:").unwrap()).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            !stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        });
        stranger.join().unwrap()
    })
}

#[test]
fn without_a_key_other_users_need_anyone_and_the_server_says_so() {
    let (own, all) = (address("own"), address("anyone"));
    let mine = Server::with(&["--listen", &own]);
    let everybodys = Server::with(&["--listen", &all, "--anyone"]);
    everybodys.says(&["every user of this host", &all, "--anyone"]);
    assert!(!mine.log().contains("every user"), "{}", mine.log());
    let both = overside(&["scan", &own, "t", "--anyone", "--key-file", "key"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2), "{}", told(&both));
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can be another user for a while; run as root");
        return;
    }
    assert!(stranger_is_hung_up_on(&own));
    mine.says(&["refused", "belongs to user 54001", "--anyone"]);
    assert!(!stranger_is_hung_up_on(&all));
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
    server.fails(&["scan", &tcp, "trips", "--key-file", &key(&server, "other", ANOTHER, 0o600)]);
    server.says(&["refused", "key"]);
    for _ in 0..300 {
        drop(dial());
    }
    let trips = server.file("trips.csv", TRIPS);
    server.ok(&["load", &tcp, "trips", &trips, "--key", "id", "--key-file", good]);
    assert!(server.log().lines().count() < 60, "{}", server.log());
    assert!(!server.log().contains("goodbye") && !server.log().contains("ended"), "{}", server.log());
}
