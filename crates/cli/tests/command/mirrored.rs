//! Volumes whose members are volumes of other nodes.

use super::volumes::{ANOTHER, KEY, Node, ended, one_line, until};

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
