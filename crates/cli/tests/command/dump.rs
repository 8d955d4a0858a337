//! `overside dump`: what is written is what was acknowledged, and the directory stays as it is.

use super::directory::content;
use super::durable::{Durable, Known, connect, schema};
use super::server::{Server, fixture, overside, told};
use rustix::process::Signal;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What `dump` prints on the standard output when it succeeds.
fn dumped(arguments: &[&str]) -> String {
    let output = overside(&[&["dump"], arguments].concat()).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The line that it fails with.
fn fails(arguments: &[&str]) -> String {
    let output = overside(&[&["dump"], arguments].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", told(&output));
    assert!(output.stdout.is_empty());
    let told = told(&output);
    assert!(told.starts_with("overside: ") && told.lines().count() == 1, "{told}");
    told
}

fn end(server: &mut Server) {
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn what_was_acknowledged_before_kill_9_is_in_the_file() {
    let durable = Durable::new(&[]);
    let mut server = durable.start();
    connect(&server).create_table("t", &schema()).unwrap();
    let mut known = Known::default();
    let acknowledged = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (connection, known) = (connect(&server), &mut known);
        scope.spawn(move || known.load(connection, 0, acknowledged));
        while acknowledged.load(Ordering::Acquire) < 60 {
            std::thread::sleep(Duration::from_micros(300));
        }
        server.child.kill().unwrap();
        server.child.wait().unwrap();
    });
    let out = server.path("t.csv");
    let before = content(Path::new(&durable.dir()));
    let line = dumped(&[&durable.dir(), "t", "--out", &out]);
    assert_eq!(content(Path::new(&durable.dir())), before);
    let text = std::fs::read_to_string(&out).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("id,version,text"));
    let found: BTreeMap<u64, u64> = lines
        .map(|line| {
            let mut fields = line.split(',');
            let [id, version] = [(); 2].map(|()| fields.next().unwrap().parse().unwrap());
            let length = if id % 97 == 3 { 20_000 } else { (id % 50) as usize };
            // The empty text is quoted: it is no null.
            assert_eq!(fields.next().map(|text| text.trim_matches('"').len()), Some(length), "row {id}");
            (id, version)
        })
        .collect();
    assert!(line.starts_with(&format!("{} rows in ", super::durable::grouped(found.len()))), "{line}");
    known.check(&found, 0);
    // A server that starts from the directory has the same.
    let server = durable.start();
    let mut client = connect(&server);
    let table = client.table("t").unwrap();
    assert_eq!(super::durable::rows(&mut client, &table), found);
}

/// Every type, nulls, rows longer than a page; partly from a checkpoint and partly from the log, in every format, and part of a table.
#[test]
fn a_dumped_table_is_loaded_as_it_was() {
    let durable = Durable::new(&[]);
    let mut server = durable.start();
    server.ok(&["load", "@", "t", &fixture("every_type.parquet")]);
    let long = |id: usize| if id.is_multiple_of(40) { "x".repeat(30_000 + id) } else { format!("row {id}") };
    let csv = |ids: std::ops::Range<usize>| {
        let rows = ids.map(|id| format!("{},{},{}\n", id / 100, id % 100, long(id)));
        server.file("part.csv", format!("a,b,text\n{}", rows.collect::<String>()))
    };
    server.ok(&["load", "@", "long", &csv(0..1500), "--key", "a,b"]);
    server.ok(&["checkpoint", "@"]);
    server.ok(&["load", "@", "long", &csv(1500..2000)]);
    server.ok(&["load", "@", "gone", &csv(0..10), "--key", "a,b"]);
    server.ok(&["delete", "@", "long", "0,40"]);
    server.ok(&["put", "@", "long", "0,80", "short now"]);
    let mut client = connect(&server);
    client.drop_table("gone").unwrap();
    drop(client);
    let scanned = |server: &Server, table: &str| {
        let all = server.json(&["scan", "@", table]);
        (all["columns"].clone(), all["rows"].clone())
    };
    let (typed, longs) = (scanned(&server, "t"), scanned(&server, "long"));
    assert_eq!(longs.1.as_array().unwrap().len(), 1999);
    end(&mut server);
    let dir = durable.dir();
    let before = content(Path::new(&dir));
    assert_eq!(dumped(&[&dir]).lines().filter(|line| line.contains("1,999") || line.contains(" 40 ")).count(), 2);
    let listed: Json = serde_json::from_str(&dumped(&[&dir, "--json"])).unwrap();
    let names: Vec<&Json> = listed["tables"].as_array().unwrap().iter().map(|table| &table["name"]).collect();
    assert_eq!(names, ["long", "t"], "{listed}");
    let other = Server::start();
    for extension in ["parquet", "arrow"] {
        for (table, key, was) in [("t", "id", &typed), ("long", "a,b", &longs)] {
            let out = other.path(&format!("{table}.{extension}"));
            let said: Json = serde_json::from_str(&dumped(&[&dir, table, "--out", &out, "--json"])).unwrap();
            let bytes = std::fs::metadata(&out).unwrap().len();
            let rows = was.1.as_array().unwrap().len();
            assert_eq!((&said["table"], &said["rows"], &said["bytes"]), (&json!(table), &json!(rows), &json!(bytes)));
            assert!(said["seconds"].as_f64().unwrap() > 0.0);
            let copy = format!("{table}_{extension}");
            other.ok(&["load", "@", &copy, &out, "--key", key]);
            assert_eq!(&scanned(&other, &copy), was, "{copy}");
        }
    }
    // A range, and columns in another order.
    let out = other.path("part.csv");
    dumped(&[&dir, "long", "--out", &out, "--from", "3", "--to", "3,1", "--columns", "text,b"]);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "text,b\nrow 300,0\nrow 301,1\n");
    assert_eq!(content(Path::new(&dir)), before);
}

#[test]
fn what_cannot_be_dumped_is_said_in_a_line_and_nothing_is_written() {
    let durable = Durable::new(&[]);
    let mut server = durable.start();
    let big: String = (0..30_000).map(|id| format!("{id},{}\n", "x".repeat(100))).collect();
    let big = server.file("big.csv", format!("id,text\n{big}"));
    let small = server.file("small.csv", "id,text\n1,one\n2,two\n");
    server.ok(&["load", "@", "big", &big]);
    server.ok(&["checkpoint", "@"]);
    server.ok(&["load", "@", "small", &small]);
    let dir = durable.dir();
    let out = server.path("out.csv");
    assert!(fails(&[&dir, "small", "--out", &out]).contains("is in use by another server"));
    end(&mut server);
    let before = content(Path::new(&dir));
    let there = fails(&[&dir, "smal", "--out", &out]);
    assert!(there.contains("there is no table \"smal\"; there are: big, small"), "{there}");
    let nowhere = durable.folder.path().join("nowhere");
    assert!(fails(&[nowhere.to_str().unwrap(), "t", "--out", &out]).contains("there is no directory"));
    assert!(!nowhere.exists());
    let empty = tempfile::tempdir().unwrap();
    assert!(fails(&[empty.path().to_str().unwrap()]).contains("is no data directory"));
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
    assert!(fails(&[&dir, "small", "--out", &server.path("out.txt")]).contains("`.txt` is no known format"));
    let inside = format!("{dir}/log/out.csv");
    assert!(fails(&[&dir, "small", "--out", &inside]).contains("lies in the data directory"));
    assert!(fails(&[&dir, "small", "--out", &server.path("no/out.csv")]).contains("out.csv"));
    assert!(fails(&[&dir, "small", "--out", &out, "--columns", "txt"]).contains("txt"));
    assert!(fails(&[&dir, "small", "--out", &out, "--from", "one"]).contains("--from"));
    // The other table alone needs more.
    let memory = fails(&[&dir, "big", "--out", &out, "--memory", "2M"]);
    assert!(memory.contains("\"big\"") && memory.contains("raise the limit (--memory)"), "{memory}");
    assert!(!Path::new(&out).exists() && !server.part());
    assert!(dumped(&[&dir, "small", "--out", &out, "--memory", "2M"]).starts_with("2 rows in "));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "id,text\n1,one\n2,two\n");
    for wrong in [&["small"][..], &["--out", &out], &["--columns", "id"], &["small", "--out", &out, "--memory", "0"]] {
        let output = overside(&[&["dump", &dir], wrong].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", told(&output));
    }
    // A table whose file is damaged: refused, or what is sound of it with a word on what is not. The other one is as it was.
    let pages = std::fs::read_dir(Path::new(&dir).join("checkpoint")).unwrap();
    let pages = pages.map(|entry| entry.unwrap().path()).find(|path| path.extension().is_some_and(|e| e == "pages"));
    let pages = pages.unwrap();
    let mut bytes = std::fs::read(&pages).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&pages, &bytes).unwrap();
    let damaged = content(Path::new(&dir));
    assert_ne!(damaged, before);
    let refusal = fails(&[&dir, "big", "--out", &out]);
    assert!(refusal.contains(".pages is damaged") && refusal.contains("--salvage"), "{refusal}");
    assert!(!refusal.contains("--memory"), "{refusal}");
    assert!(dumped(&[&dir, "small", "--out", &out]).starts_with("2 rows in "));
    let output = overside(&["dump", &dir, "big", "--out", &out, "--salvage", "--json"]).output().unwrap();
    let lost = told(&output);
    assert!(output.status.success() && lost.starts_with("lost: ") && lost.contains(".pages"), "{lost}");
    let said: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert!((1..30_000).contains(&said["rows"].as_u64().unwrap()), "{said}");
    assert_eq!(content(Path::new(&dir)), damaged);
}
