//! A killed process: its connections end with it, and nobody waits for a silence to be long enough.

mod ends;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use ends::*;
use overside_verbs::{Status, WorkRequest};

#[test]
fn a_killed_peer_is_noticed_by_the_end_of_its_connection() {
    if let Ok(name) = std::env::var(CHILD) {
        return child(&name);
    }
    let server = Server::start(&fresh_name(), options(None));
    let bystander = Bystander::start(&server.name, options(None));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_peer_is_noticed_by_the_end_of_its_connection", "--nocapture"])
        .env(CHILD, &server.name)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(READY)), "the child ended early");
    server.numbers(1);
    child.kill().unwrap();
    child.wait().unwrap();
    // By its end, or by the reset that the system sends where something was unread; never by "no longer answers".
    server.ended_one_way(&[(Status::PeerDied, "without a word"), (Status::PeerDied, "was lost")]);
    bystander.goes_on();
}

/// Says a number and takes no answer, so that something is pending on the other side.
fn child(name: &str) {
    let mut end = End::new(options(None));
    let qp = end.connect(name).unwrap();
    let mut batch = [WorkRequest::send_inline(0, &7u64.to_le_bytes())].into();
    assert_eq!(end.queue.post(qp, &mut batch).unwrap(), 1);
    println!("{READY}");
    loop {
        end.queue.poll_wait(&mut Vec::new(), None).unwrap();
    }
}

const CHILD: &str = "OVERSIDE_DEATH_AT";
const READY: &str = "the child is ready";
