//! Volumes that are made larger, given another member and deleted by the node that serves them.

use super::server::overside;
use super::volumes::{ANOTHER, KEY, Node, ended, until};
use serde_json::Value as Json;
use std::path::Path;
use std::process::Stdio;

fn verified(node: &Node, rw: &str) {
    let found = node.json(&["bench", &node.volume(), "--rw", rw, "--verify", "--time", "1"]);
    assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
}

/// A command is refused while a client has the volume, and says which.
fn refused_in_use(node: &Node, command: &[&str]) {
    let client = node.bench(&["--rw", "randwrite"]);
    until("the client is there", || node.status()["sessions"][0]["pid"] == client.id());
    let told = node.fails(command);
    assert!(told.contains(&format!("pg is in use by process {}", client.id())), "{told}");
    let found = ended(client);
    assert_eq!(found["errors"], 0, "{found}");
}

#[test]
fn a_volume_grows_while_its_node_serves_others() {
    let mut node = Node::with("shm", "4M", &["a", "b", "c"], "raid5");
    let (volume, home) = (node.volume(), node.home());
    verified(&node, "randwrite");
    refused_in_use(&node, &["resize", &volume, "--size", "8M"]);
    verified(&node, "randwrite");
    let told = node.fails(&["resize", &volume, "--size", "1M"]);
    assert!(told.contains("does not become smaller"), "{told}");
    let told = node.fails(&["resize", &volume, "--size", "64G"]);
    assert!(told.contains("no room for so many checksums"), "{told}");
    assert!(node.status()["bytes"].as_u64() < Some(5 << 20));
    let done = node.json(&["resize", &volume, "--size", "8M"]);
    assert_eq!(done["volume"], "pg", "{done}");
    assert!(node.status()["bytes"].as_u64() >= Some(8 << 20), "{}", node.status());
    verified(&node, "randread");
    verified(&node, "randrw");
    assert_eq!(node.json(&["check", &volume])["faults"], Json::Array(Vec::new()));
    // A crash and the loss of a member at once may lose what was written last.
    node.end();
    std::fs::remove_file(node.path("b")).unwrap();
    node.start();
    verified(&node, "randrw");
    let told = node.fails(&["resize", &volume, "--size", "16M"]);
    assert!(told.contains("missed writes"), "{told}");
    assert_eq!(node.status()["state"], "degraded", "it is served as before");
    let told = node.fails(&["resize", "pg", "--size", "16M", "--home", &home]);
    assert!(told.contains("another node serves"), "{told}");
    node.ok(&["create", "scratch", "--size", "1M", "--on", "memory", "--home", &home]);
    let scratch = format!("{}/scratch", node.address);
    until("the new volume is served", || node.output(&["status", &scratch]).status.success());
    assert!(node.fails(&["resize", &scratch, "--size", "2M"]).contains("lies on memory"));
    assert!(node.fails(&["resize", &format!("{}/nope", node.address), "--size", "2M"]).contains("no volume nope"));
}

#[test]
fn another_member_takes_the_place_of_one_and_gets_what_the_others_have() {
    let mut node = Node::with("shm", "4M", &["a", "b"], "raid1");
    let (volume, [a, b, c]) = (node.volume(), ["a", "b", "c"].map(|name| node.path(name)));
    verified(&node, "randwrite");
    assert!(!Path::new(&c).exists());
    assert!(node.fails(&["replace", &volume, "x", &c]).contains("has no member x; it has"));
    assert!(node.fails(&["replace", &volume, &a, &b]).contains("is there already"));
    let elsewhere = node.path("home/c");
    let told = node.fails(&["replace", &volume, &a, &elsewhere]);
    assert!(told.contains("the node has no member in") && !Path::new(&elsewhere).exists(), "{told}");
    assert_eq!(node.status()["state"], "ok", "it is served as before");
    node.kill();
    std::fs::remove_file(&a).unwrap();
    node.start();
    node.ok(&["replace", &volume, &a, &c]);
    until("the new member is up to date", || node.status()["state"] == "ok");
    assert_eq!(node.status()["members"][0]["place"], Json::from(c));
    node.kill();
    std::fs::remove_file(&b).unwrap();
    node.start();
    verified(&node, "randread");
    verified(&node, "randrw");
}

/// Every byte that the client reads is right, and no request fails, though the node is killed before the new member has all.
#[test]
fn a_member_is_replaced_while_a_client_uses_the_volume() {
    let mut node = Node::with("shm", "48M", &["a", "b", "c"], "raid5");
    let (volume, [a, b, d, e]) = (node.volume(), ["a", "b", "d", "e"].map(|name| node.path(name)));
    let client = node.bench(&["--rw", "randrw", "--verify"]);
    let is_there = |node: &Node| node.status()["sessions"][0]["pid"] == client.id();
    until("the client is there", || is_there(&node));
    assert!(node.fails(&["replace", &volume, "x", &d]).contains("has no member x; it has"));
    assert!(node.fails(&["replace", &volume, &a, &b]).contains("is there already"));
    assert!(is_there(&node) && node.status()["state"] == "ok", "it is served as before: {}", node.status());
    let done = node.json(&["replace", &volume, &a, &d]);
    assert!(done["done"].as_str().unwrap().contains("in the place of"), "{done}");
    assert_eq!(node.status()["members"][0]["place"], Json::from(d.clone()));
    assert!(is_there(&node));
    node.kill();
    node.start();
    until("the new member is up to date", || node.status()["state"] == "ok");
    // And one whose file is gone.
    std::fs::remove_file(&b).unwrap();
    node.ok(&["replace", &volume, &b, &e]);
    until("the other new member is up to date", || node.status()["state"] == "ok");
    until("the client is there again", || is_there(&node));
    let found = ended(client);
    assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
    assert!(found["reads"].as_u64() > Some(0) || found["iops"].as_f64() > Some(0.0), "{found}");
    assert_eq!(node.json(&["check", &volume])["faults"], Json::Array(Vec::new()));
    node.end();
    std::fs::remove_file(node.path("c")).unwrap();
    node.start();
    verified(&node, "randread");
}

#[test]
fn a_node_deletes_a_volume_that_nobody_uses_for_who_has_its_key() {
    let mut node = Node::with("shm", "4M", &["a"], "concat");
    let (volume, home) = (node.volume(), node.home());
    refused_in_use(&node, &["delete", &volume]);
    assert!(node.fails(&["delete", &format!("{}/nope", node.address)]).contains("no volume nope"));
    let [writes, reads] = [("rw", KEY), ("ro", ANOTHER)].map(|(name, key)| node.key(name, key));
    let access = node.path("access");
    std::fs::write(&access, "pg rw rw\npg ro ro\n").unwrap();
    node.end();
    node.options = vec!["--access".into(), access];
    node.start();
    assert!(node.fails(&["delete", &volume]).contains("--access-key"));
    assert!(node.fails(&["delete", &volume, "--access-key", &reads]).contains("allows to read alone"));
    assert!(Path::new(&node.path("a")).exists());
    let done = node.json(&["delete", &volume, "--access-key", &writes]);
    assert!(done["done"].as_str().unwrap().contains("pg is deleted, and 1 files with it"), "{done}");
    assert!(!Path::new(&node.path("a")).exists());
    assert_eq!(node.json(&["list", &node.address])["volumes"], Json::Array(Vec::new()));
    // The name and the file are free, and the node serves what comes.
    node.ok(&["create", "pg", "--size", "1M", "--on", &node.path("a"), "--home", &home]);
    until("the new volume is served", || node.output(&["status", &volume]).status.success());
}

/// Killed as soon as the first file is there; by then it has not written down what comes of it. A machine that is slow to kill
/// has some tries.
#[test]
fn what_a_killed_creation_or_replacement_leaves_is_in_nobodys_way() {
    let node = Node::new("shm");
    let home = node.home();
    // Whether the command was killed before it was done: what it would have written down is not there.
    let killed = |arguments: &[&str], first: &str, is_written: &dyn Fn() -> bool| {
        let mut child = overside(&[&["volume"], arguments].concat()).stdout(Stdio::null()).spawn().unwrap();
        while !Path::new(first).exists() && child.try_wait().unwrap().is_none() {}
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Path::new(first).exists(), "{arguments:?} makes no file");
        !is_written()
    };
    let tried = (0..50).find(|attempt| {
        let (name, [a, b, c]) =
            (format!("pg{attempt}"), ["a", "b", "c"].map(|member| node.path(&format!("{member}{attempt}"))));
        let on = [&a[..], &b, &c].join(",");
        let create = ["create", &name, "--size", "4M", "--on", &on, "--layout", "raid5", "--home", &home];
        let was_killed = killed(&create, &a, &|| Path::new(&format!("{home}/{name}.volume")).exists());
        if was_killed {
            node.ok(&create);
        }
        node.ok(&["delete", &name, "--home", &home]);
        assert!([&a, &b, &c].iter().all(|member| !Path::new(member).exists()));
        was_killed
    });
    assert!(tried.is_some(), "it was never killed in the middle");
    let mut old = node.path("old");
    node.ok(&[
        "create",
        "pg",
        "--size",
        "4M",
        "--on",
        &format!("{old},{}", node.path("other")),
        "--layout",
        "raid1",
        "--home",
        &home,
    ]);
    let tried = (0..50).find(|attempt| {
        let new = node.path(&format!("new{attempt}"));
        let place = format!("volatile:1:{new}");
        let replace = ["replace", "pg", &old, &place, "--home", &home];
        let is_written = || std::fs::read_to_string(format!("{home}/pg.volume")).unwrap().contains(&new);
        let was_killed = killed(&replace, &new, &is_written);
        if was_killed {
            assert!(Path::new(&new).exists(), "or there is nothing to see");
            node.ok(&replace);
        }
        assert!(Path::new(old.trim_start_matches("volatile:1:")).exists(), "the old one stays its user's");
        old = place;
        was_killed
    });
    assert!(tried.is_some(), "it was never killed in the middle");
    let notes = std::fs::read_dir(&home)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "making"));
    assert_eq!(notes.count(), 0);
}
