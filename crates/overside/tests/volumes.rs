//! A volume, from a node's folder to a client, by addresses alone.

use std::time::Duration;

use overside::memory::{Bytes, Segment};
use overside::vault::home::{Creation, Home, LayoutKind, MemberSpec};
use overside::vault::server::{Node, NodeOptions};
use overside::verbs::SystemClock;
use overside::volume::client::LinkOptions;
use overside::volume::{Work, complete};

const PATIENCE: Duration = Duration::from_secs(60);

fn page() -> overside::memory::Buffer {
    Segment::private(8192).unwrap().carve(8192).pop().unwrap()
}

#[test]
fn a_volume_is_made_served_and_attached_and_keeps_its_bytes() {
    let folder = std::env::temp_dir().join(format!("overside-volumes-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let home = Home::open(&folder.join("home")).unwrap();
    let members = ["a", "b", "c"].map(|name| MemberSpec::File(folder.join(name))).to_vec();
    let (name, layout) = ("pg".to_owned(), LayoutKind::Stripes);
    let clock = SystemClock::handle();
    let creation = Creation { name, bytes: 6 << 20, members, layout, stripe: 65536, id: [7; 16], files: None };
    home.create(&creation, &clock).unwrap();
    let address = format!("shm:volumes-{}", std::process::id());
    for written in [false, true] {
        let node = Node::new(SystemClock::handle(), NodeOptions::default()).unwrap();
        node.add("pg", home.device("pg", &clock).unwrap()).unwrap();
        let served = overside::at(&address).node(&node, Default::default()).unwrap();
        let mut volume = overside::at(&address).volume("pg", LinkOptions::default()).unwrap();
        let read = Work::Read { at: 4 << 20, length: 8192, into: page() };
        let (work, result) = complete(&mut volume, &SystemClock, read, PATIENCE);
        assert_eq!(result, Ok(()));
        let expected = if written { 9 } else { 0 };
        assert!(matches!(work, Some(Work::Read { into, .. }) if into.iter().all(|byte| *byte == expected)));
        let mut bytes = page();
        bytes.fill(9);
        let write = Work::Write { at: 4 << 20, from: Bytes::from(bytes), fua: false };
        assert_eq!(complete(&mut volume, &SystemClock, write, PATIENCE).1, Ok(()));
        drop(volume);
        drop(served);
    }
    assert!(overside::at(&address).volume("pg", LinkOptions::default()).is_err(), "nobody serves there any more");
    std::fs::remove_dir_all(&folder).unwrap();
}
