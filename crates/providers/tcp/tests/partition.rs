//! Two hosts, played by two network namespaces and a cable between them that can be pulled. Needs root and the `ip` command; where
//! there is neither, each test says so and passes.

mod ends;

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use ends::*;
use overside_verbs::*;
use rustix::net::sockopt;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Two namespaces with a cable between them.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// None where they cannot be made.
    fn new(what: &str) -> Option<Self> {
        let name = |host: &str| format!("overside-{what}-{host}-{}", std::process::id());
        let hosts = Self { names: [name("a"), name("b")] };
        let [a, b] = &hosts.names;
        let made = ip(&["netns", "add", a])
            .and_then(|()| ip(&["netns", "add", b]))
            .and_then(|()| ip(&["-n", a, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", b]))
            .and_then(|()| ip(&["-n", a, "address", "add", &format!("{A}/24"), "dev", "cable"]))
            .and_then(|()| ip(&["-n", b, "address", "add", "10.87.1.2/24", "dev", "cable"]));
        if let Err(why) = made {
            eprintln!("SKIPPED: network namespaces cannot be made here ({why}); run as root with iproute2 installed");
            return None;
        }
        hosts.cable(0, true);
        hosts.cable(1, true);
        Some(hosts)
    }

    /// Plugs a host's end of the cable in, or pulls it.
    fn cable(&self, host: usize, plugged: bool) {
        ip(&["-n", &self.names[host], "link", "set", "cable", if plugged { "up" } else { "down" }]).unwrap();
    }

    /// What `what` gives on that host; sockets that it makes are the host's.
    fn on<T: Send>(&self, host: usize, what: impl FnOnce() -> T + Send) -> T {
        let place = File::open(format!("/run/netns/{}", self.names[host])).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                what()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| _ = ip(&["netns", "delete", name]));
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let done = Command::new("ip").args(arguments).output().map_err(|e| format!("ip: {e}"))?;
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()) }
}

/// Both ends notice; what was pending fails, says what is known of it, and was delivered once or not at all.
#[test]
fn a_pulled_cable_is_noticed_and_what_was_pending_fails_once() {
    let Some(hosts) = Hosts::new("pulled") else { return };
    let server = hosts.on(0, || Server::start(&format!("{A}:4100"), options(Some(SECRET))));
    let mut idle = End::new(options(Some(SECRET)));
    let quiet = hosts.on(1, || idle.connect(&server.name)).unwrap();
    idle.echo(quiet, b"nothing follows");
    let mut client = Counting::start(|end| hosts.on(1, || end.connect(&server.name)), Some(SECRET));
    client.run(|client| client.arrived.len() > 100);
    hosts.cable(1, false);
    let pulled = Instant::now();
    client.run(|client| client.ended.is_some());
    let noticed = pulled.elapsed();
    let (status, reason) = client.ended.clone().unwrap();
    assert_eq!(status, Status::PeerDied, "{reason}");
    assert!(reason.contains("no longer answers") && reason.contains("may have taken effect"), "{reason}");
    // The server, which had answers to give, and a connection on which nothing was said.
    server.ended(Status::PeerDied, "no longer answers");
    server.ended(Status::PeerDied, "no longer answers");
    println!("noticed after {noticed:?}, by everybody after {:?}", pulled.elapsed());
    client.accounts_for_all(&server, Status::PeerDied);
    // With the cable back, they find each other again.
    hosts.cable(1, true);
    let mut again = End::new(options(Some(SECRET)));
    let qp = hosts.on(1, || again.connect(&server.name)).unwrap();
    again.echo(qp, b"back");
}

/// Nothing was under way but the question whether there is room again, which nobody answers any more.
#[test]
fn a_cable_pulled_beside_a_full_socket_is_noticed() {
    let Some(hosts) = Hosts::new("full") else { return };
    let name = format!("{A}:4103");
    let mut flood =
        hosts.on(0, || Flood::start(&name, Some(SECRET), |end| hosts.on(1, || end.connect(&name).unwrap())));
    let begun = Instant::now();
    // The kernel's own limit would be over by then.
    while begun.elapsed() < Duration::from_secs(6) {
        flood.look();
        assert_eq!(flood.ended, None, "after {:?}", begun.elapsed());
    }
    hosts.cable(0, false);
    let pulled = Instant::now();
    while flood.ended.is_none() {
        flood.look();
        // The kernel asks ever more rarely.
        assert!(pulled.elapsed() < Duration::from_secs(120), "not noticed");
    }
    let (status, reason) = flood.ended.clone().unwrap();
    assert!(status == Status::PeerDied && reason.contains("no longer answers"), "{reason}");
    println!("noticed after {:?}", pulled.elapsed());
}

/// A pause of the network is no end: everything arrives, in order, once.
#[test]
fn a_cable_that_is_out_for_a_moment_costs_time_alone() {
    let Some(hosts) = Hosts::new("moment") else { return };
    let server = hosts.on(0, || Server::start(&format!("{A}:4101"), options(Some(SECRET))));
    for attempt in 0.. {
        let mut client = Counting::start(|end| hosts.on(1, || end.connect(&server.name)), Some(SECRET));
        let before = server.numbers(0).len();
        client.run(|client| client.arrived.len() > 100);
        let pulled = Instant::now();
        hosts.cable(1, false);
        client.run(|_| pulled.elapsed() > Duration::from_millis(700));
        hosts.cable(1, true);
        let out = pulled.elapsed();
        // A machine that was busy elsewhere meanwhile has made a partition of it.
        if out > Duration::from_millis(1500) && attempt < 5 {
            continue;
        }
        client.run(|client| client.arrived.len() as u64 == NUMBERS || client.ended.is_some());
        assert_eq!(client.ended, None, "out for {out:?}");
        let numbers = server.numbers(before + NUMBERS as usize);
        assert!(numbers[before..].iter().copied().eq(0..NUMBERS), "once each, in order");
        return;
    }
}

/// A host that came back without its connections resets them: pending requests fail at once, not after a silence.
#[test]
fn a_host_that_forgot_its_connections_resets_them() {
    let Some(hosts) = Hosts::new("reset") else { return };
    let server = hosts.on(0, || Server::start(&format!("{A}:4102"), options(Some(SECRET))));
    let raw = hosts.on(1, || Raw::shake_with(&server.name, SECRET));
    hosts.cable(1, false);
    // Its reset reaches nobody.
    sockopt::set_socket_linger(&raw.stream, Some(Duration::ZERO)).unwrap();
    drop(raw);
    hosts.cable(1, true);
    server.ended(Status::PeerDied, "lost");
    let mut again = End::new(options(Some(SECRET)));
    let qp = hosts.on(1, || again.connect(&server.name)).unwrap();
    again.echo(qp, b"back");
}

const A: &str = "10.87.1.1";
