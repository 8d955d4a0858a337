//! A process of a group is killed, and another one of it goes on: nothing that the first had sent comes after that.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use overside_memory::{Bytes, Segment};
use overside_service::Stepped;
use overside_volume::client::{Link, LinkOptions, Volume};
use overside_volume::{MemoryDevice, Request, Work, complete};

use super::*;

const ASKED: &str = "OVERSIDE_TEST_WRITER";

fn attach(name: &str) -> Volume {
    let options = LinkOptions { group: 7, registration: None, ..LinkOptions::default() };
    Link::attach(provider("shm"), name, "v", options).unwrap()
}

fn write(at: u64, value: u8) -> Work {
    let mut buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
    buffer.fill(value);
    Work::Write { at, from: Bytes::prefix(buffer, 4096), fua: false }
}

fn first_byte(link: &mut Volume) -> u8 {
    let into = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
    match complete(link, &SystemClock, Work::Read { at: 0, length: 4096, into }, PATIENCE) {
        (Some(Work::Read { into, .. }), Ok(())) => into[0],
        (_, result) => panic!("{result:?}"),
    }
}

/// Attaches the volume, writes its first bytes when its standard input says so, and never hears how that went.
pub fn second_process() {
    let Ok(name) = std::env::var(ASKED) else { return };
    let mut link = attach(&name);
    // The node knows its memory from then on.
    assert_eq!(complete(&mut link, &SystemClock, write(4096, 1), PATIENCE).1, Ok(()));
    println!("attached");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    link.submit(&mut [Request { tag: 1, work: write(0, 1) }].into());
    println!("sent");
    loop {
        std::thread::park();
    }
}

/// A node with two workers, each at an address of its own, of which one does nothing by itself.
struct Workers {
    _served: Served,
    name: String,
    slow: (String, Stepped<Node>),
}

impl Workers {
    fn start() -> Workers {
        let node = Node::new(SystemClock::handle(), NodeOptions::default()).unwrap();
        node.add("v", Box::new(MemoryDevice::new(1 << 20).unwrap())).unwrap();
        let [name, slow] = [(), ()].map(|()| fresh_name("shm"));
        let options = ServiceOptions { workers: 1, ..ServiceOptions::default() };
        let [own, other] = [&name, &slow].map(|name| Listening::open(provider("shm"), &[name]).unwrap());
        let served = node.serve(vec![own], options.clone()).unwrap();
        let stepped = Stepped::start(other, node, options).unwrap();
        Workers { _served: served, name, slow: (slow, stepped) }
    }

    fn step(&mut self) {
        self.slow.1.greet(Duration::from_millis(1));
        while self.slow.1.step() {}
    }

    /// A process whose WRITE lies in its connection to the slow one, and that is no more.
    fn killed_writer(&mut self) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["second_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(ASKED, &self.slow.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (says, said) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| says.send(line).unwrap_or(())));
        let is_said = |what: &str| {
            let line = said.recv_timeout(Duration::from_millis(1));
            line.is_ok_and(|line| line.contains(what))
        };
        let limit = Instant::now() + PATIENCE;
        while !is_said("attached") {
            assert!(Instant::now() < limit, "it does not attach the volume");
            self.step();
        }
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        while !is_said("sent") {
            assert!(Instant::now() < limit, "it sends nothing");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn what_a_killed_process_had_sent_does_not_come_after_what_its_parent_writes() {
    let mut node = Workers::start();
    let mut link = attach(&node.name);
    node.killed_writer();
    assert_eq!(complete(&mut link, &SystemClock, write(0, 2), PATIENCE).1, Ok(()));
    // Only now its worker looks at what it had sent.
    (0..10).for_each(|_| node.step());
    assert_eq!(first_byte(&mut link), 2);
}

#[test]
fn nor_after_another_process_has_begun() {
    let mut node = Workers::start();
    node.killed_writer();
    let mut link = attach(&node.name);
    assert_eq!(first_byte(&mut link), 0);
    (0..10).for_each(|_| node.step());
    assert_eq!(first_byte(&mut link), 0, "it has read what was there before");
}
