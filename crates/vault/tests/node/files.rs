//! Files on a node's volume: several processes of one group, and kill -9 of the node.

use overside_vault::server::Writes;
use overside_verbs::VerbsError;
use overside_verbs::handshake::Key;
use overside_volume::client::{Files, Link, LinkError, LinkOptions};
use overside_volume::files::{Command, PIECE_BYTES, Preset};
use overside_volume::wire::{Role, Status};
use overside_volume::{DeviceError, MemoryDevice};

use super::killed::Killed;
use super::*;

fn attach(transport: &str, name: &str, group: u64) -> Result<Files, LinkError> {
    Files::attach(provider(transport), name, "v", LinkOptions { group, ..LinkOptions::default() })
}

fn serve_files(transport: &str, name: &str) -> Served {
    let device = Box::new(MemoryDevice::new(8 << 20).unwrap());
    let about = About { files: Some(Preset::Sqlite), ..About::default() };
    serve_as(
        transport,
        name,
        (device, None),
        about,
        NodeOptions { writes: Writes::Back, cache: small_cache(), ..NodeOptions::default() },
    )
}

#[test]
fn a_group_writes_together_and_others_wait_or_take_over() {
    for transport in TRANSPORTS {
        let name = fresh_name(transport);
        let _served = serve_files(transport, &name);
        let (mut one, mut other) = (attach(transport, &name, 7).unwrap(), attach(transport, &name, 7).unwrap());
        for group in [0, 8] {
            assert!(matches!(attach(transport, &name, group), Err(LinkError::Refused(Status::Busy))), "{group}");
        }
        let blocks = Link::attach(provider(transport), &name, "v", LinkOptions::default());
        assert!(matches!(blocks, Err(LinkError::Refused(Status::Kind))));

        // One truth for both.
        let id = one.create(5).unwrap();
        assert_ne!(other.create(6).unwrap(), id);
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES as u32 + 77).map(|at| (at % 251) as u8).collect();
        assert_eq!(one.write(id, 1000, &bytes).unwrap(), bytes.len());
        let mut found = vec![9; bytes.len() + 5000];
        let read = other.read((id, 5), 0, &mut found).unwrap();
        assert_eq!(read, bytes.len() + 1000);
        assert!(
            found[..1000].iter().all(|byte| *byte == 0)
                && found[1000..read] == bytes
                && found[read..].iter().all(|byte| *byte == 9)
        );
        assert_eq!(other.read((id, 6), 0, &mut found), Err(DeviceError::Invalid), "another file of this id");
        other.command(id, Command::Resize(1001), 5).unwrap();
        assert_eq!(one.read((id, 5), 999, &mut found), Ok(2));
        assert_eq!(one.attributes(id).unwrap().size, 1001);
        one.flush().unwrap();

        // Who leaves leaves the others, and who takes over fences all of them.
        one.close(PATIENCE);
        other.write(id, 0, b"on").unwrap();
        let mut one = attach(transport, &name, 7).unwrap();
        let taken = LinkOptions { group: 9, role: Role::TakeOver, ..LinkOptions::default() };
        let mut third = Files::attach(provider(transport), &name, "v", taken).unwrap();
        for fenced in [&mut one, &mut other] {
            assert_eq!(fenced.write(id, 0, b"no"), Err(DeviceError::Fenced));
        }
        let mut two = [0; 2];
        assert_eq!((third.read((id, 5), 0, &mut two), &two), (Ok(2), b"on"));
        third.close(PATIENCE);
        attach(transport, &name, 10).unwrap().close(PATIENCE);
    }
}

/// As many as the node has room for are killed; those that come then need their places, and get them after a while.
#[test]
fn places_of_killed_processes_are_given_to_others() {
    for (transport, group) in [("shm", 7), ("tcp", 0)] {
        let (name, places) = (fresh_name(transport), 3);
        let linger = Duration::from_millis(300);
        let node =
            Node::new(SystemClock::handle(), NodeOptions { sessions_max: places, linger, ..NodeOptions::default() });
        let node = node.unwrap();
        for volume in 0..places {
            let about = About { files: Some(Preset::Sqlite), ..About::default() };
            let device = Box::new(MemoryDevice::new(8 << 20).unwrap());
            node.add_described(&format!("v{volume}"), device, about, None).unwrap();
        }
        let listening = Listening::open(provider(transport), &[&*name]).unwrap();
        let served = node.serve(vec![listening], ServiceOptions { workers: 1, ..ServiceOptions::default() }).unwrap();
        // Of a group all write one volume; else each has its own.
        let attach = |volume: usize| {
            let volume = format!("v{}", if group == 0 { volume } else { 0 });
            Files::attach(provider(transport), &name, &volume, LinkOptions { group, ..LinkOptions::default() })
        };
        let killed: Vec<Files> = (0..places).map(|volume| attach(volume).unwrap()).collect();
        assert!(matches!(attach(0), Err(LinkError::Refused(Status::Full))));
        drop(killed);
        let limit = Instant::now() + PATIENCE;
        let mut found = loop {
            match attach(1) {
                Ok(found) => break found,
                Err(error) => assert!(Instant::now() < limit, "{transport}: no place is free: {error}"),
            }
        };
        found.create(5).unwrap();
        drop(served);
    }
}

/// Two processes of a group write files of their own and read the other's, while the node is killed again and again.
#[test]
fn files_outlive_kills_of_the_node() {
    for (transport, how) in [("shm", "files"), ("tcp", "files cached back")] {
        let folder = tempfile::tempdir().unwrap();
        let (path, name) = (folder.path().join("disk"), fresh_name(transport));
        let mut node = Some(Killed::start(transport, &name, &path, how));
        let mut clients = [attach(transport, &name, 3).unwrap(), attach(transport, &name, 3).unwrap()];
        let ids = [clients[0].create(11).unwrap(), clients[1].create(12).unwrap()];
        let mut models = [Vec::new(), Vec::new()];
        let mut chance = 1u64;
        for round in 0..400u64 {
            chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let (who, at, length) =
                ((chance >> 60) as usize % 2, (chance >> 40) as usize % 300_000, 1 + (chance >> 20) as usize % 9000);
            let model = &mut models[who];
            match round % 7 {
                6 => {
                    let size = at / 2;
                    clients[who].command(ids[who], Command::Resize(size as u64), 11 + who as u64).unwrap();
                    model.resize(size, 0);
                }
                _ => {
                    let bytes = vec![round as u8 | 1; length];
                    assert_eq!(clients[who].write(ids[who], at as u64, &bytes).unwrap(), length);
                    model.resize(model.len().max(at + length), 0);
                    model[at..at + length].copy_from_slice(&bytes);
                }
            }
            if round % 80 == 79 {
                drop(node.take());
                node = Some(Killed::start(transport, &name, &path, how));
            }
            let mut found = vec![0; model.len() + 1];
            let read = clients[1 - who].read((ids[who], 11 + who as u64), 0, &mut found).unwrap();
            assert!(found[..read] == model[..], "round {round}");
        }
    }
}

/// A node with another key is not away: a call that waited fails, and so do all after it.
#[test]
fn a_key_that_the_node_takes_no_more_ends_the_session() {
    const OURS: &[u8] = b"119fce30161ed0c74f1cba86b353bb0579c9106270eb5a65c72e2976ca18f87c";
    const OTHER: &[u8] = b"57aad11420a85d014b567557d391c37f26e12da4cad8c06d00ee8ed0f6bc7e01";
    let with = |key: &[u8]| -> Arc<dyn Provider> {
        let key = Some(Key::from_bytes(key).unwrap());
        TcpProvider::with_options(overside_tcp::Options { key, ..Default::default() })
    };
    let name = fresh_name("tcp");
    let serve = |key: &[u8]| {
        let node = Node::new(SystemClock::handle(), NodeOptions::default()).unwrap();
        let about = About { files: Some(Preset::Sqlite), ..About::default() };
        node.add_described("v", Box::new(MemoryDevice::new(8 << 20).unwrap()), about, None).unwrap();
        let listening = Listening::open(with(key), &[&*name]).unwrap();
        node.serve(vec![listening], ServiceOptions { workers: 1, ..ServiceOptions::default() }).unwrap()
    };
    // Else a session that is not ended would wait for ever.
    let deadline = Duration::from_secs(2);
    let options = LinkOptions { give_up: Some(PATIENCE), deadline, ..LinkOptions::default() };
    let attach = |key: &[u8]| Files::attach(with(key), &name, "v", options.clone());
    let served = serve(OURS);
    let mut files = attach(OURS).unwrap();
    let id = files.create(5).unwrap();
    drop(served);
    let waits = std::thread::spawn(move || {
        let first = files.write(id, 0, b"waits");
        (first, files.about().map(drop), files)
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waits.is_finished(), "it does not wait for a node");
    let served = serve(OTHER);
    std::thread::sleep(deadline / 4);
    assert!(!waits.is_finished(), "a stranger in the node's place for a moment ended it");
    drop(served);
    let served = serve(OURS);
    // A node without that file answers.
    let (first, _, mut files) = waits.join().unwrap();
    assert_ne!(first, Err(DeviceError::Refused));
    let id = files.create(5).unwrap();
    drop(served);
    let _served = serve(OTHER);
    let (first, second) = (files.write(id, 0, b"waits"), files.about().map(drop));
    let fails = Err(DeviceError::Refused);
    assert_eq!((first, second, files.is_refused()), (fails.map(|()| 0), fails, true));
    assert!(matches!(attach(OURS), Err(LinkError::Verbs(VerbsError::Key(_)))));
    let none = Files::attach(provider("tcp"), &name, "v", LinkOptions::default());
    assert!(matches!(none, Err(LinkError::Verbs(VerbsError::Key(_)))));
    assert!(!attach(OTHER).unwrap().is_refused());
}
