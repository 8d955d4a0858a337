//! What is to be at an address: what cannot be is refused by the field's name before anything is opened.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use overside::planner::{Goal, Profile};
use overside::shape::Shape;
use overside::table::client::ClientOptions;
use overside::table::server::ServerOptions;
use overside::{Address, Buffers, Builder, Error, Network, at, at_each, transfer};
use tempfile::TempDir;

/// A key file of its own for a test.
fn key_file(folder: &TempDir, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

fn random_key(folder: &TempDir, name: &str) -> PathBuf {
    let mut bytes = [0; 32];
    overside::verbs::SystemClock::handle().fill(&mut bytes).unwrap();
    key_file(folder, name, &bytes, 0o600)
}

/// The field that is named, and the message.
fn refused<T>(made: Result<T, Error>) -> (&'static str, String) {
    match made.map(drop) {
        Err(Error::Transfer(error @ transfer::Error::Field { field, .. })) => (field, error.to_string()),
        Err(error) => panic!("no field is named: {error}"),
        Ok(()) => panic!("it is not refused"),
    }
}

#[test]
fn a_field_that_cannot_be_is_refused_by_name_whatever_is_made() {
    let folder = TempDir::new().unwrap();
    let key = random_key(&folder, "whatever");
    let small = Buffers { message_bytes: 0, ..Buffers::CHANNEL };
    let cases: Vec<(Builder, &str, &str)> = vec![
        (at("shm:x").key_file(&key), "key_file", "leave it out"),
        (at("shm:x").tags(false), "tags", "leave it out"),
        (at("shm:x").anyone(true), "anyone", "leave it out"),
        (at("tcp:127.0.0.1:7001").key_file(&key).anyone(true), "anyone", "a key says who may connect"),
        (at("shm:x").rdma_device("mlx5_0"), "rdma_device", "shm:x goes over no such device"),
        (at("tcp:127.0.0.1:7001").rdma_device("mlx5_0"), "rdma_device", "leave it out"),
        (at("tcp:127.0.0.1:7001").key_file("/no/such/key"), "key_file", "cannot be read"),
        (
            at("tcp:127.0.0.1:7001").key_file(key_file(&folder, "weak", b"password password password password", 0o600)),
            "key_file",
            "make one with",
        ),
        (at("tcp:127.0.0.1:7001").key_file(key_file(&folder, "open", &[7; 32], 0o644)), "key_file", "chmod"),
    ];
    for (builder, field, says) in cases {
        let tried = [
            refused(builder.clone().connect(WITHIN)),
            refused(builder.clone().listen()),
            refused(builder.clone().scatter(WITHIN)),
            refused(builder.clone().serve(ServerOptions::default())),
            refused(builder.clone().client(ClientOptions::default())),
        ];
        for (told, text) in tried {
            assert!(
                told == field && text.starts_with(&format!("{field}: ")) && text.contains(says),
                "{builder:?}: {text}"
            );
        }
    }
    for builder in [at("shm:x").buffers(small), at("tcp:127.0.0.1:7001").buffers(small)] {
        for (field, text) in [refused(builder.clone().connect(WITHIN)), refused(builder.clone().listen())] {
            assert_eq!(field, "message_bytes", "{text}");
        }
    }
    let profile: Profile = Address::here("shm", "x").unwrap().provider(&Network::default()).unwrap().profile();
    for (builder, field) in [
        (at("shm:x").goal(Goal::Latency), "goal"),
        (at("shm:x").buffers(Buffers::CHANNEL), "buffers"),
        (at("shm:x").profile(profile), "profile"),
    ] {
        assert_eq!(refused(builder.clone().serve(ServerOptions::default())).0, field);
        assert_eq!(refused(builder.client(ClientOptions::default())).0, field);
    }
}

#[test]
fn other_hosts_reach_only_a_listener_with_a_key() {
    for address in ["tcp:0.0.0.0:7002", "tcp:[::]:7002", "rdma:0.0.0.0:7002"] {
        for (field, text) in [refused(at(address).listen()), refused(at(address).serve(ServerOptions::default()))] {
            assert!(field == "key_file" && text.contains("needs a key"), "{address}: {text}");
        }
    }
    // Of several addresses the one that is open counts; a key serves it, and shm: needs none.
    let two = || at_each(["shm:builder-open", "tcp:0.0.0.0:7003"]);
    assert_eq!(refused(two().serve(ServerOptions::default())).0, "key_file");
    // Connecting from elsewhere is the listener's to refuse.
    assert!(!matches!(
        at("tcp:127.0.0.1:9").connect(WITHIN).unwrap_err(),
        Error::Transfer(transfer::Error::Field { .. })
    ));
    let folder = TempDir::new().unwrap();
    let key = random_key(&folder, "open");
    drop(at("tcp:0.0.0.0:17003").key_file(&key).listen().expect("a listener with a key"));
}

#[test]
fn as_many_addresses_as_make_sense() {
    let none = || at_each(Vec::<String>::new());
    assert_eq!(refused(none().connect(WITHIN)).0, "addresses");
    assert_eq!(refused(none().serve(ServerOptions::default())).0, "addresses");
    let two = || at_each(["shm:a", "tcp:127.0.0.1:7004"]);
    assert_eq!(refused(two().connect(WITHIN)).0, "addresses");
    assert_eq!(refused(two().listen()).0, "addresses");
    let (field, text) = refused(two().scatter(WITHIN));
    assert!(field == "addresses" && text.contains("two transports"), "{text}");
    let error = at("nowhere").connect(WITHIN).unwrap_err().to_string();
    assert!(error.contains("write shm:NAME"), "{error}");
}

#[test]
fn channels_with_one_key_meet_and_with_two_do_not() {
    let folder = TempDir::new().unwrap();
    let (key, other) = (random_key(&folder, "one"), random_key(&folder, "two"));
    let address = Address::here("tcp", &format!("builder-{}", std::process::id())).unwrap().to_string();
    let mut listener = at(&address).key_file(&key).goal(Goal::Latency).listen().unwrap();
    let (mut here, mut there) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(WITHIN).unwrap());
        let error = at(&address).key_file(&other).connect(WITHIN).unwrap_err().to_string();
        assert!(error.contains("another one"), "{error}");
        assert!(at(&address).connect(WITHIN).is_err(), "without a key");
        let here = at(&address).key_file(&key).connect(WITHIN).unwrap();
        (here, accepting.join().unwrap())
    });
    assert_eq!((here.terms().goal, there.terms().goal), (Goal::default(), Goal::Latency));
    let memory = Arc::new(here.allocate(100).unwrap());
    let declared = here.declare(&memory, &Arc::new(Shape::contiguous(0, 100).unwrap())).unwrap();
    here.send(&declared, WITHIN).unwrap();
    assert_eq!(there.receive(WITHIN).unwrap().len(), 100);
}

/// Neither end measures: of a device that nobody has calibrated the plan says so.
#[test]
fn nothing_is_measured_behind_the_callers_back() {
    let folder = TempDir::new().unwrap();
    let store = folder.path().join("data");
    // In a process of its own, whose store is empty.
    let said = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "prints_a_plan", "--nocapture", "--ignored"])
        .env("XDG_DATA_HOME", &store)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("prices: default; no profile is stored"), "{said}");
    assert!(!store.exists(), "nothing is stored either");
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn prints_a_plan() {
    let address = format!("shm:builder-{}", std::process::id());
    let mut listener = at(&address).listen().unwrap();
    let connecting = std::thread::spawn(move || at(&address).connect(WITHIN).unwrap());
    let _there = listener.accept(WITHIN).unwrap();
    let mut here = connecting.join().unwrap();
    let memory = Arc::new(here.allocate(100).unwrap());
    println!("{}", here.declare(&memory, &Arc::new(Shape::contiguous(0, 100).unwrap())).unwrap());
}

const WITHIN: Duration = Duration::from_secs(20);
