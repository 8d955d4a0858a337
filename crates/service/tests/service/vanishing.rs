//! Clients whose process is killed in the middle of a request.

use std::process::{Child, Command, Stdio};

use super::system::Obedient;
use super::*;

/// A child of this test program that connects, asks and waits for an answer, until it is killed.
fn asking(transport: &str, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "vanishing::asks_and_waits", "--ignored", "--nocapture"])
        .env(ADDRESS, format!("{transport} {name}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

const ADDRESS: &str = "SERVICE_TEST_ADDRESS";

#[test]
#[ignore = "the child of the test below"]
fn asks_and_waits() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let (transport, name) = address.split_once(' ').unwrap();
    let options = LinkOptions { timeout: PATIENCE * 4, ..LinkOptions::default() };
    let mut link = Link::connect(provider(transport), name, options).unwrap();
    // A stream that is longer than the window, which nobody reads; and a request that nobody answers.
    send(&mut link, b"fk");
    send(&mut link, b"rl");
    send(&mut link, &[b's', 255]);
    std::thread::sleep(PATIENCE * 4);
}

#[test]
fn a_client_that_is_killed_is_forgotten_and_its_tickets_are_harmless() {
    for transport in TRANSPORTS {
        let system = Obedient::new();
        let bench = Bench::start(transport, &system, one_worker());
        let mut honest = bench.client();
        let mut child = asking(transport, &bench.name);
        let (kept, late) = (system.ticket(b'k'), system.ticket(b'l'));
        until("its stream is asked for", || system.carried_out.lock().unwrap().len() == 3);
        child.kill().unwrap();
        child.wait().unwrap();
        until("its session is told", || system.ended.lock().unwrap().len() == 1);
        until("its place is free", || bench.server.statistics().connections == 1);
        kept.complete(|body| body.push(b'k'));
        drop(late);
        assert_eq!(bench.server.statistics().unfinished, 0);
        assert_eq!(ask(&mut honest, b"nfine"), b"fine");
        assert_eq!(bench.server.statistics().closed_for_cause, 0, "dying is no cause");
    }
}

/// Tickets that outlive their server do nothing either.
#[test]
fn a_ticket_may_outlive_its_server() {
    let system = Obedient::new();
    let bench = Bench::start("shm", &system, one_worker());
    let mut link = bench.client();
    send(&mut link, b"fa");
    send(&mut link, b"fb");
    let (a, b) = (system.ticket(b'a'), system.ticket(b'b'));
    bench.server.shutdown();
    ended(&mut link);
    a.complete(|body| body.push(1));
    drop(b);
}
