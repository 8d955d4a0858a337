//! Real servers, killed at random and started again, several times over: three rounds here, and many at night (`.ci/nightly kill`).

use super::durable::{Durable, connect};
use super::history::{CLIENTS, Client, all, mixed, schema};
use super::server::{Server, overside};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Rounds of each test; more where `OVERSIDE_KILL_ROUNDS` says so.
fn rounds() -> u64 {
    std::env::var("OVERSIDE_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3)
}

/// Other moments at every run; said, so that a failure has them.
fn seed() -> u64 {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    eprintln!("seed {seed}");
    seed
}

/// Killed so long after it has come to its log: in its recovery, or soon after it.
fn killed_at_once(durable: &Durable, after: Duration) {
    let mut child = overside(&["serve", "--listen", &format!("shm:cli-killed-{}", std::process::id()), "--data"])
        .arg(durable.dir())
        .args(&durable.options)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // What transfers cost may be measured before.
    let log = std::path::Path::new(&durable.dir()).join("log");
    let open = format!("/proc/{}/fd", child.id());
    let files = || std::fs::read_dir(&open).into_iter().flatten().flatten();
    while !files().any(|file| std::fs::read_link(file.path()).is_ok_and(|file| file.starts_with(&log))) {
        assert!(child.try_wait().unwrap().is_none(), "it has ended by itself");
        std::thread::sleep(Duration::from_micros(200));
    }
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Lets clients change rows, and kills the server in the middle of it. Where a crash loses what no checkpoint has, checkpoints are asked for.
fn until_killed(server: &mut Server, clients: &mut [Client], chance: u64, checkpoints: bool) {
    let pid = rustix::process::Pid::from_child(&server.child);
    let before: Vec<u64> = clients.iter().map(|client| client.acknowledged.load(Ordering::Acquire)).collect();
    let (wanted, address) = (chance % 120, server.address.clone());
    let progress: Vec<_> = before.iter().map(|at| std::sync::atomic::AtomicU64::new(*at)).collect();
    let mut marks = None;
    std::thread::scope(|scope| {
        let loading: Vec<_> = clients
            .iter_mut()
            .zip(&progress)
            .map(|(client, progress)| {
                let mut connection = overside::connect(&address).unwrap();
                // Before the server may be killed.
                let table = connection.table("t").unwrap();
                scope.spawn(move || {
                    client.load(&mut connection, &table, |number| progress.store(number, Ordering::Release));
                })
            })
            .collect();
        let now = || -> Vec<u64> { progress.iter().map(|at| at.load(Ordering::Acquire)).collect() };
        let made = || now().iter().sum::<u64>() - before.iter().sum::<u64>();
        // A client that fails its own checks ends as well.
        let until = |count: u64| {
            while made() < count && !loading.iter().any(|client| client.is_finished()) {
                std::thread::sleep(Duration::from_micros(200));
            }
        };
        let mut asking = None;
        if checkpoints {
            until(wanted);
            let begun = now();
            let mut connection = overside::connect(&address).unwrap();
            if connection.checkpoint().is_ok() {
                marks = Some(begun);
            }
            // Another one, which the kill may cut short.
            asking = Some(scope.spawn(move || connection.checkpoint().is_ok()));
        }
        until(made() + wanted);
        std::thread::sleep(Duration::from_micros(chance >> 20 & 0xfff));
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        drop(asking);
    });
    server.child.wait().unwrap();
    if checkpoints {
        let marks = marks.unwrap_or(before);
        clients.iter_mut().zip(marks).for_each(|(client, mark)| client.lost_from = Some(mark));
    }
}

/// Rounds of it with one directory.
fn again_and_again(options: &[&'static str]) {
    let (durable, seed) = (Durable::new(options), seed());
    let (none, sync) = (options.contains(&"none"), !options.contains(&"--durability"));
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::after(number, 0)).collect();
    let mut all_made = 0;
    for round in 0..=rounds() {
        let chance = mixed(seed ^ round);
        for early in 0..(chance >> 40) % 3 {
            killed_at_once(&durable, Duration::from_micros(mixed(chance ^ early) % 60_000));
        }
        let mut server = durable.start();
        let mut connection = connect(&server);
        let table = match connection.table("t") {
            Ok(table) => table,
            Err(error) if round > 0 => panic!("round {round}: {error}"),
            Err(_) => {
                let table = connection.create_table("t", &schema()).unwrap();
                // Without a log a table is there for good when a checkpoint has it.
                if none {
                    connection.checkpoint().unwrap();
                }
                table
            }
        };
        let found = all(&mut connection, &table);
        for client in &mut clients {
            client.check(&found);
            if sync {
                client.check_shown(&found);
            }
            all_made += client.acknowledged.load(Ordering::Acquire);
            client.go_on(&found);
        }
        assert!(found.keys().all(|client| *client < CLIENTS), "rows of nobody");
        drop((connection, table));
        if round < rounds() {
            until_killed(&mut server, &mut clients, chance, none);
        }
    }
    assert!(all_made > 10 * rounds(), "{all_made} changes in all: nothing was tested");
}

#[test]
fn killed_in_sync() {
    again_and_again(&["--workers", "2"]);
}

#[test]
fn killed_in_group() {
    again_and_again(&["--workers", "2", "--durability", "group", "--group-ms", "1000"]);
}

#[test]
fn killed_in_none() {
    again_and_again(&["--workers", "2", "--durability", "none"]);
}
