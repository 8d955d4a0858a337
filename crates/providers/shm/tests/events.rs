//! What a user sees of a connection from its first message to its end, as recorded streams of events.
//!
//! Accept a meant change with `INSTA_UPDATE=always cargo test -p overside-shm --test events`.

mod ends;

use std::fmt::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ends::{End, both, pair};
use overside_memory::{Segment, View};
use overside_verbs::*;

/// Completions of both ends, in the order in which each reports them.
struct Stream(String);

impl Stream {
    fn add(&mut self, who: &str, completions: &[WorkCompletion]) {
        for done in completions {
            let buffer = if done.buffer.is_some() { ", buffer back" } else { "" };
            let immediate = done.immediate.map_or(String::new(), |i| format!(", immediate {i}"));
            writeln!(
                self.0,
                "{who} #{} {:?} {:?} {} bytes{immediate}{buffer}",
                done.id, done.opcode, done.status, done.bytes
            )
            .expect("a string takes everything");
        }
    }

    fn event(&mut self, who: &str, end: &mut End) {
        let PortEvent::Disconnected { status, .. } = end.event();
        writeln!(self.0, "{who} disconnected: {status:?}").expect("a string takes everything");
    }
}

fn view(end: &End, len: usize) -> View {
    View::prefix(end.buffers(1, len.max(1)).pop().expect("one"), len)
}

#[test]
fn messages_of_every_kind_then_a_close_with_receives_waiting() {
    let (mut a, to_b, mut b, from_a) = pair();
    let mut stream = Stream(String::new());
    b.post_receives(Some(from_a), 6, 4096);
    let requests = vec![
        WorkRequest::send(1, view(&a, 100)),
        WorkRequest::send_inline(2, b"inline").with_immediate(7),
        WorkRequest::send(3, view(&a, 0)).unsignalled(),
        WorkRequest::send(4, view(&a, 4096)),
    ];
    a.post(to_b, requests);
    let (sent, received) = both(&mut a, 3, &mut b, 4);
    stream.add("a", &sent);
    stream.add("b", &received);
    a.queue.close(to_b);
    stream.add("b", &b.completions(2));
    stream.event("b", &mut b);
    insta::assert_snapshot!(stream.0);
}

#[test]
fn a_message_too_long_ends_both_sides() {
    let (mut a, to_b, mut b, from_a) = pair();
    let mut stream = Stream(String::new());
    b.post_receives(Some(from_a), 2, 64);
    a.post(
        to_b,
        vec![WorkRequest::send(1, view(&a, 64)), WorkRequest::send(2, view(&a, 65)), WorkRequest::send(3, view(&a, 1))],
    );
    let (sent, received) = both(&mut a, 3, &mut b, 2);
    stream.add("a", &sent);
    stream.add("b", &received);
    stream.event("a", &mut a);
    stream.event("b", &mut b);
    insta::assert_snapshot!(stream.0);
}

/// How often a memory is mapped into this process, which is both ends.
fn mappings(inode: u64) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode.to_string())).count()
}

#[test]
fn deregistered_memory_is_unmapped_by_both_ends_though_they_sleep() {
    let (mut a, to_b, mut b, from_a) = pair();
    let source = Segment::shared(4096).unwrap().carve(4096).pop().unwrap();
    let inode = rustix::fs::fstat(source.segment().fd().unwrap()).unwrap().st_ino;
    let memory = Memory::Segment(source.segment().clone());
    let region = a.provider.register(&a.domain, &memory, Access::LOCAL).unwrap();
    drop(memory);
    b.post_receives(Some(from_a), 1, 4096);
    a.post(to_b, vec![WorkRequest::send(1, View::prefix(source, 100))]);
    both(&mut a, 1, &mut b, 1);
    assert_eq!(mappings(inode), 2, "its owner's and its reader's");
    let (provider, stopped) = (a.provider.clone(), AtomicBool::new(false));
    let (stop, stops) = UnixStream::pair().unwrap();
    let sleep = |end: &mut End| {
        while !stopped.load(Ordering::Acquire) {
            end.queue.poll_wait_or(&mut Vec::new(), Some(SLEEP), Some(stops.as_fd())).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| sleep(&mut a));
        scope.spawn(|| sleep(&mut b));
        std::thread::sleep(Duration::from_millis(50)); // long enough to be asleep, as a rule
        provider.deregister(region).unwrap();
        let start = Instant::now();
        while mappings(inode) > 0 && start.elapsed() < SLEEP / 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        stopped.store(true, Ordering::Release);
        drop(stop);
        assert_eq!(mappings(inode), 0, "nobody uses it and somebody keeps it");
    });
}

/// How long a sleep is that nothing ends.
const SLEEP: Duration = Duration::from_secs(20);
