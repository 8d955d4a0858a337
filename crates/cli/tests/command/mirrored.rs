//! Volumes whose members are volumes of other nodes.

use super::volumes::{ANOTHER, KEY, Node, ended, one_line, until};
use overside::memory::Segment;
use overside::verbs::SystemClock;
use overside::volume::client::LinkOptions;
use overside::volume::{Work, complete};
use std::path::Path;
use std::time::{Duration, Instant};

/// A node with one volume, `m`.
fn far(transport: &str, options: &[String]) -> Node {
    let mut node = Node::new(transport);
    let member = node.path("disk");
    node.ok(&["create", "m", "--size", "6M", "--on", &member, "--home", &node.home()]);
    node.options = options.to_vec();
    node.start();
    node
}

fn member(node: &Node) -> String {
    format!("{}/m", node.address)
}

/// Requests are begun after this, and end.
fn go_on(node: &Node) {
    let writes = || node.status()["writes_done"].as_u64().unwrap();
    let before = writes();
    until("I/O goes on", || writes() > before + 100);
}

#[test]
fn a_mirror_over_two_nodes_goes_on_without_either_and_gives_back_what_was_missed() {
    let (mut first, mut second, mut near) = (far("tcp", &[]), far("shm", &[]), Node::new("shm"));
    let (members, home) = ([member(&first), member(&second)].join(","), near.home());
    near.ok(&["create", "pg", "--size", "4M", "--on", &members, "--layout", "raid1", "--home", &home]);
    near.start();
    let client = near.bench(&["--rw", "randrw", "--verify"]);
    go_on(&near);
    for node in [&mut first, &mut second] {
        node.kill();
        go_on(&near);
        until("the volume is degraded", || near.status()["state"] == "degraded");
        go_on(&near);
        node.start();
        until("the member has what it has missed", || near.status()["state"] == "ok");
        go_on(&near);
    }
    // Without both, I/O waits for the one that has everything.
    first.kill();
    until("the volume is degraded", || near.status()["state"] == "degraded");
    second.kill();
    until("requests wait", || near.status()["sessions"][0]["waiting_us"].as_u64() > Some(2_000_000));
    first.start();
    second.start();
    go_on(&near);
    until("the member has what it has missed", || near.status()["state"] == "ok");
    // Whoever else would write a member is refused, and the array's own node gets them back at once.
    let used = near.fails(&["bench", &member(&second), "--rw", "randwrite", "--time", "1"]);
    assert!(used.contains("another client writes the volume"), "{used}");
    for command in ["delete", "repair"] {
        let used = near.fails(&[command, "pg", "--home", &home]);
        assert!(used.contains("another node serves"), "{used}");
    }
    go_on(&near);
    near.kill();
    near.start();
    go_on(&near);
    let found = ended(client);
    assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
    // One that is not there when the array's node starts is a member that missed writes.
    near.end();
    first.kill();
    near.start();
    let status = near.status();
    assert_eq!((&status["state"], &status["members"][0]["stale"]), (&"degraded".into(), &true.into()), "{status}");
    let found = near.json(&["bench", &near.volume(), "--rw", "randrw", "--verify", "--time", "1"]);
    assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
    first.start();
    until("the member has what it has missed", || near.status()["state"] == "ok");
    assert_eq!(near.json(&["check", &near.volume()])["left"], 0);
}

/// Measured from the kill until the first request has ended that was submitted behind it, and of each after that alone.
/// A member is given up after a second; that goes once for each.
#[test]
fn a_mirror_goes_on_within_two_seconds_when_one_of_its_nodes_is_killed() {
    let (mut first, mut second, mut near) = (far("tcp", &[]), far("shm", &[]), Node::new("shm"));
    let (members, home) = ([member(&first), member(&second)].join(","), near.home());
    near.ok(&["create", "pg", "--size", "4M", "--on", &members, "--layout", "raid1", "--home", &home]);
    near.start();
    let mut volume = overside::at(&near.address).volume("pg", LinkOptions::default()).unwrap();
    let mut request = |number: u64| {
        let (at, into) = (number % 512 * 8192, Segment::private(8192).unwrap().carve(8192).pop().unwrap());
        let write = number.is_multiple_of(2);
        let work = if write {
            Work::Write { at, from: into.into(), fua: false }
        } else {
            Work::Read { at, length: 8192, into }
        };
        assert_eq!(complete(&mut volume, &SystemClock, work, Duration::from_secs(60)).1, Ok(()), "{number}");
    };
    for (name, node) in [("over tcp", &mut first), ("over shm", &mut second)] {
        (0..64).for_each(&mut request);
        let (mut since, mut longest) = (Instant::now(), Duration::ZERO);
        node.kill();
        for number in 0..512 {
            request(number);
            longest = longest.max(since.elapsed());
            since = Instant::now();
        }
        println!("one of two nodes killed, {name}: the longest wait of 512 requests is {longest:?}");
        assert!(longest < Duration::from_secs(2), "{name}: {longest:?}");
        let status = near.status();
        assert_eq!((&status["state"], &status["failed"]), (&"degraded".into(), &0.into()), "{status}");
        node.start();
        until("the member has what it has missed", || near.status()["state"] == "ok");
    }
}

#[test]
fn members_on_other_nodes_are_asked_for_by_their_keys_and_half_a_volume_leaves_nothing() {
    let mut near = Node::new("shm");
    let home = near.home();
    let (key, other) = (near.key("key", KEY), near.key("other", ANOTHER));
    let access = near.path("access");
    std::fs::write(&access, "m rw other\n").unwrap();
    let keys = ["--key-file", &key, "--access", &access].map(str::to_owned);
    let (first, mut second) = (far("tcp", &keys), far("shm", &[]));
    let (of_first, of_second) = (member(&first), member(&second));
    let create = |near: &Node, on: &[&str], options: &[&str]| {
        let on = on.join(",");
        near.output(&[&["create", "pg", "--size", "4M", "--on", &on, "--home", &home], options].concat())
    };
    let refused = |near: &Node, on: &[&str], options: &[&str]| one_line(&create(near, on, options));
    let mirror = ["--layout", "raid1"];
    let told = refused(&near, &[&of_second, &of_first], &mirror);
    assert!(told.contains("key"), "{told}");
    let told = refused(&near, &[&of_second, &of_first], &[&mirror[..], &["--key-file", &key]].concat());
    assert!(told.contains("--access-key"), "{told}");
    let told =
        refused(&near, &[&of_second, &of_first], &[&mirror[..], &["--key-file", &key, "--access-key", &key]].concat());
    assert!(told.contains("the key is another one"), "{told}");
    let both = [&mirror[..], &["--key-file", &key, "--access-key", &other]].concat();
    let large = ["create", "large", "--size", "6M", "--on", &of_second, "--home", &home];
    let told = near.fails(&large);
    assert!(told.contains("make it larger"), "{told}");
    // The first member of each was free again. Now it is one.
    let made = create(&near, &[&of_second, &of_first], &both);
    assert!(made.status.success(), "{made:?}");
    let told = near.fails(&["create", "other", "--size", "4M", "--on", &of_second, "--home", &home]);
    assert!(told.contains("is a member of the volume pg already"), "{told}");
    near.start();
    let found = near.json(&["bench", &near.volume(), "--rw", "randrw", "--verify", "--time", "1"]);
    assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
    let told = near.fails(&["create", "other", "--size", "4M", "--on", &of_second, "--home", &home]);
    assert!(told.contains("another client writes the volume"), "{told}");
    near.end();
    // Without the node that a member lies on there is no volume that needs it.
    near.ok(&["delete", "pg", "--home", &home]);
    second.kill();
    let told = refused(&near, &[&of_second], &[]);
    assert!(told.contains("nobody listens"), "{told}");
    second.start();
    assert!(create(&near, &[&of_second], &[]).status.success(), "a deleted volume's members are free");
}

/// As one leaves it that is killed before it has written down that there is a volume.
#[test]
fn a_member_on_another_node_that_a_killed_creation_made_is_free_again() {
    let (mut far, near) = (far("shm", &[]), Node::new("shm"));
    let (home, [own, other]) = (near.home(), ["a", "b"].map(|name| near.path(name)));
    let create = |name: &'static str, own: &str| {
        let on = format!("{own},{}", member(&far));
        ["create", name, "--size", "4M", "--layout", "raid1", "--home", &home, "--on", &on].map(str::to_owned)
    };
    let [killed, next] = [create("pg", &own), create("next", &other)];
    let [killed, next] = [&killed, &next].map(|words| words.each_ref().map(String::as_str));
    near.ok(&killed);
    let written = std::fs::read_to_string(format!("{home}/pg.volume")).unwrap();
    let id = written.lines().find_map(|line| line.strip_prefix("id ")).unwrap();
    let members = written.lines().filter(|line| line.starts_with("file ") || line.starts_with("remote "));
    let members: String = members.enumerate().map(|(number, line)| format!("{number} {line}\n")).collect();
    std::fs::write(format!("{home}/pg.making"), format!("{id}\n{members}end\n")).unwrap();
    std::fs::remove_file(format!("{home}/pg.volume")).unwrap();
    // While its node is away nobody knows what it is.
    far.kill();
    let told = near.fails(&killed);
    assert!(told.contains("a killed process left"), "{told}");
    far.start();
    near.ok(&next);
    assert!(!Path::new(&own).exists() && Path::new(&other).exists());
    assert!(!Path::new(&format!("{home}/pg.making")).exists());
}

/// Members on other nodes grow first, or it is said which one does not, and by how much it is too small.
#[test]
fn a_volume_grows_with_its_members_on_other_nodes() {
    let mut near = Node::new("shm");
    let (home, key) = (near.home(), near.key("key", KEY));
    let (first, second) = (far("shm", &[]), far("tcp", &["--key-file", &key].map(str::to_owned)));
    let on = [member(&first), member(&second)].join(",");
    near.ok(&["create", "pg", "--size", "4M", "--on", &on, "--layout", "raid1", "--key-file", &key, "--home", &home]);
    near.start();
    let verified = |near: &Node, rw: &str| {
        let found = near.json(&["bench", &near.volume(), "--rw", rw, "--verify", "--time", "1"]);
        assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
    };
    verified(&near, "randwrite");
    near.ok(&["resize", &near.volume(), "--size", "12M"]);
    let status = near.status();
    assert!(status["bytes"].as_u64() >= Some(12 << 20) && status["state"] == "ok", "{status}");
    for (far, keys) in [(&first, &[][..]), (&second, &["--key-file", &key])] {
        let report = far.json(&[&["status", &member(far)], keys].concat());
        assert!(report["volumes"][0]["bytes"].as_u64() > Some(12 << 20), "{report}");
    }
    verified(&near, "randread");
    verified(&near, "randrw");
    near.kill();
    near.start();
    verified(&near, "randrw");
    assert_eq!(near.json(&["check", &near.volume()])["left"], 0);
    // The room that there is is enough.
    near.ok(&["resize", &near.volume(), "--size", &((12 << 20) + 4096).to_string()]);
    near.end();
    // One that cannot grow keeps all as they are.
    let mut third = Node::new("shm");
    third.ok(&["create", "m", "--size", "4M", "--on", "memory", "--home", &third.home()]);
    third.start();
    near.ok(&[
        "create",
        "last",
        "--size",
        "2M",
        "--on",
        &format!("{},{}", near.path("x"), member(&third)),
        "--home",
        &home,
    ]);
    let told = near.fails(&["resize", "last", "--size", "16M", "--home", &home]);
    assert!(told.contains(&member(&third)) && told.contains("would need") && told.contains("lies on memory"), "{told}");
    near.ok(&["resize", "last", "--size", "3M", "--home", &home]);
}

/// Two nodes that ask for different keys, and volumes that do.
#[test]
fn each_member_may_have_keys_of_its_own() {
    let mut near = Node::new("shm");
    let home = near.home();
    let [one, two, three] = [("one", KEY), ("two", ANOTHER), ("three", THIRD)].map(|(name, key)| near.key(name, key));
    let access = near.path("access");
    std::fs::write(&access, "m rw three\n").unwrap();
    let first = far("tcp", &["--key-file", &one].map(str::to_owned));
    let second = far("tcp", &["--key-file", &two, "--access", &access].map(str::to_owned));
    let spare = far("tcp", &["--key-file", &two].map(str::to_owned));
    let (of_first, of_second, of_spare) = (member(&first), member(&second), member(&spare));
    let create = |on: &str, key_file: &str| {
        let given = ["create", "pg", "--size", "4M", "--on", on, "--layout", "raid1", "--home", &home];
        near.output(&[&given[..], &["--key-file", key_file]].concat())
    };
    let told = one_line(&create(&format!("{of_first},{of_second},access-key={three}"), &one));
    assert!(told.contains("key"), "the second one has another key: {told}");
    let told = one_line(&create(&format!("key-file={two},{of_first}"), &one));
    assert!(told.contains("follows no volume of another node"), "{told}");
    let told = one_line(&create(&format!("{of_first},key-file="), &one));
    assert!(told.contains("is no key of a member"), "{told}");
    let made = create(&format!("{of_first},{of_second},key-file={two},access-key={three}"), &one);
    assert!(made.status.success(), "{made:?}");
    let written = std::fs::read_to_string(format!("{home}/pg.volume")).unwrap();
    for line in [&one, &two].map(|key| format!("key-file {key}")).iter().chain(&[format!("access-key {three}")]) {
        assert_eq!(written.lines().filter(|found| found == line).count(), 1, "by its path, and once: {written}");
    }
    assert!([KEY, ANOTHER, THIRD].iter().all(|key| !written.contains(key.trim())), "a key is never written down");
    near.start();
    let verified = |near: &Node| {
        let found = near.json(&["bench", &near.volume(), "--rw", "randrw", "--verify", "--time", "1"]);
        assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
    };
    verified(&near);
    // One whose key is another one takes the place of the first: of files that are keys already, and of no others.
    let strange = near.path("strange");
    let by = |key: &str| near.output(&["replace", &near.volume(), &of_first, &format!("{of_spare},key-file={key}")]);
    let told = one_line(&by(&strange));
    assert!(told.contains("no member with the key"), "{told}");
    let done = by(&two);
    assert!(done.status.success(), "{done:?}");
    until("the new member has what the other has", || near.status()["state"] == "ok");
    drop(first);
    verified(&near);
    near.end();
    near.start();
    verified(&near);
}

const THIRD: &str = "5e0f6b1d9a47c3825b6e1f08d7a94c3be2f1706d58b9a4c0371e6f82d5c9ba47";
