//! Damaged directories that are served from what is sound: they are sound afterwards, and what was damaged is kept apart.

use super::durable::{Durable, connect, put, refused, rows, schema, until};
use super::server::{Server, overside, told};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A directory whose table nobody has changed since the checkpoint.
fn left() -> Durable {
    let durable = Durable::new(&[]);
    let server = durable.start();
    let mut client = connect(&server);
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..2000, 1).unwrap();
    client.checkpoint().unwrap();
    drop(client);
    end(server);
    durable
}

/// The file of the table's pages.
fn pages(durable: &Durable) -> PathBuf {
    let files = fs::read_dir(Path::new(&durable.dir()).join("checkpoint")).unwrap();
    let mut files = files.map(|entry| entry.unwrap().path());
    files.find(|path| path.extension().is_some_and(|end| end == "pages")).unwrap()
}

fn end(mut server: Server) {
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success(), "{}", server.log());
}

/// Refused, then salvaged; then served, checked and changed as any other. Gives the rows that were sound.
fn healed(durable: &Durable) -> BTreeMap<u64, u64> {
    let dir = durable.dir();
    let refusal = refused(&["--data", &dir]);
    assert!(refusal.contains(".pages is damaged") && refusal.contains("start with --salvage"), "{refusal}");
    let server = Server::with(&["--data", &dir, "--salvage"]);
    let log = server.log();
    let losses: Vec<&str> = log.lines().filter(|line| line.starts_with("lost: ")).collect();
    assert!(losses.len() == 1 && losses[0].contains(".pages is damaged"), "{log}");
    assert!(!losses[0].contains("start with --salvage"), "it was: {log}");
    let mut client = connect(&server);
    let table = client.table("t").unwrap();
    let sound = rows(&mut client, &table);
    until("what is sound is in a checkpoint", || client.status().unwrap().unwrap().checkpoints > 0);
    drop(client);
    end(server);
    let server = durable.start();
    let mut client = connect(&server);
    let table = client.table("t").unwrap();
    assert_eq!(rows(&mut client, &table), sound);
    put(&mut client, &table, 1000..1001, 1).unwrap();
    client.checkpoint().unwrap();
    drop(client);
    end(server);
    let checked = overside(&["check", &dir]).output().unwrap();
    assert!(checked.status.success(), "{}", told(&checked));
    sound
}

#[test]
fn a_damaged_checkpoint_is_healed_and_its_file_kept_apart() {
    let durable = left();
    let damaged = pages(&durable);
    let mut bytes = fs::read(&damaged).unwrap();
    let at = bytes.len() / 4 * 3;
    (bytes[at], bytes[at + 1]) = (!bytes[at], !bytes[at + 1]);
    fs::write(&damaged, &bytes).unwrap();
    let sound = healed(&durable);
    assert!((1..2000).contains(&sound.len()), "{} rows", sound.len());
    let apart = Path::new(&durable.dir()).join("salvaged").join(damaged.file_name().unwrap());
    assert!(fs::read(apart).unwrap() == bytes, "it is no more what it was");
}

#[test]
fn a_checkpoint_without_a_tables_file_is_healed() {
    let durable = left();
    fs::remove_file(pages(&durable)).unwrap();
    let sound = healed(&durable);
    assert_eq!(sound, BTreeMap::new());
}
