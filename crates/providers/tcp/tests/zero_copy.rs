//! Payloads that the kernel sends from where they lie: they arrive as they were when they were posted, each is reported once, and
//! not before the kernel has given the memory back; also where it copies all the same (loopback does), and at the end of a connection.

mod ends;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ends::*;
use overside_memory::{Buffer, Segment, View};
use overside_shape::{Run, Shape};
use overside_verbs::*;

struct Pair {
    sender: End,
    to: QueuePair,
    receiver: End,
    from: QueuePair,
    source: Arc<Buffer>,
}

impl Pair {
    fn new(key: Option<&[u8]>) -> Self {
        let (mut sender, mut receiver) = (End::new(options(key)), End::new(options(key)));
        let name = fresh_name();
        let mut listener = receiver.provider.listen(&receiver.domain, &name).unwrap();
        let (to, from) = std::thread::scope(|scope| {
            let accepted = scope.spawn(|| listener.accept(PATIENCE).unwrap().unwrap());
            let to = sender.connect(&name).unwrap();
            (to, receiver.queue.attach(accepted.join().unwrap()).unwrap())
        });
        let mut source = Segment::shared(SOURCE_BYTES).unwrap().carve(SOURCE_BYTES).pop().unwrap();
        source.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 / 3) as u8);
        sender.provider.register(&sender.domain, &Memory::Segment(source.segment().clone()), Access::LOCAL).unwrap();
        Self { sender, to, receiver, from, source: Arc::new(source) }
    }

    /// Message `i`: of some length, from some place of the source.
    fn message(i: usize) -> (usize, usize) {
        let len = [64 << 10, 300_000, 20_000, 1 << 20][i % 4];
        (i * 61_001 % (SOURCE_BYTES - len), len)
    }

    fn send(&self, i: usize) -> WorkRequest {
        let (at, len) = Self::message(i);
        // Two stretches: a small one, which is copied, and a large one.
        let runs = [Run::new(at as u64, 100), Run::new(at as u64 + 100, len as u64 - 100)];
        WorkRequest::send(i as u64, View::of(&self.source, &Shape::list(&runs).unwrap()).unwrap())
    }
}

fn travels(key: Option<&[u8]>) {
    let mut pair = Pair::new(key);
    let buffers = Segment::private(4 << 20).unwrap().carve(1 << 20);
    let mut spare: Vec<(u64, Buffer)> = buffers.into_iter().map(|b| (0, b)).collect();
    let (mut batch, mut next, mut got, mut reported) = (VecDeque::new(), 0, 0, 0);
    let (mut done, end) = (Vec::new(), Instant::now() + PATIENCE);
    while got < MESSAGES || reported < MESSAGES {
        while next < MESSAGES && batch.len() < 4 {
            batch.push_back(pair.send(next));
            next += 1;
        }
        pair.sender.queue.post(pair.to, &mut batch).unwrap();
        pair.sender.queue.poll(&mut done);
        for done in done.drain(..) {
            assert_eq!((done.id, done.status), (reported as u64, Status::Success), "in order, once each");
            reported += 1;
        }
        pair.receiver.queue.post_receive(Some(pair.from), &mut spare).unwrap();
        pair.receiver.queue.poll(&mut done);
        for done in done.drain(..) {
            let (at, len) = Pair::message(got);
            let buffer = done.buffer.unwrap();
            assert!(buffer[..done.bytes as usize] == pair.source[at..at + len], "message {got} differs");
            got += 1;
            spare.push((0, buffer));
        }
        assert!(reported <= got, "reported before it was placed");
        assert!(Instant::now() < end, "{got} came, {reported} reported");
    }
}

#[test]
fn large_payloads_arrive_as_they_were_and_are_reported_once_in_order() {
    travels(None);
}

#[test]
fn so_they_do_with_tags() {
    travels(Some(SECRET));
}

/// Nobody takes them: whatever the kernel holds of them, the end of the connection gives everything back.
#[test]
fn a_connection_that_ends_gives_back_what_the_kernel_held() {
    for closes in [true, false] {
        let mut pair = Pair::new(None);
        let buffers = Segment::private(8 << 20).unwrap().carve(1 << 20);
        let mut spare: Vec<(u64, Buffer)> = buffers.into_iter().map(|b| (0, b)).collect();
        pair.receiver.queue.post_receive(Some(pair.from), &mut spare).unwrap();
        // Credits reach the sender; from here on the receiver looks at nothing but by its thread.
        let (mut done, mut batch) = (Vec::new(), VecDeque::from([pair.send(3), pair.send(7), pair.send(11)]));
        pair.receiver.queue.poll_wait(&mut done, Some(Duration::from_millis(50))).unwrap();
        pair.sender.queue.post(pair.to, &mut batch).unwrap();
        pair.sender.queue.poll(&mut done);
        if closes {
            pair.sender.queue.close(pair.to);
        } else {
            drop(pair.receiver);
        }
        let end = Instant::now() + PATIENCE;
        while pair.sender.queue.in_flight() > 0 {
            pair.sender.queue.poll_wait(&mut done, Some(Duration::from_millis(20))).unwrap();
            assert!(Instant::now() < end, "{} are never given back", pair.sender.queue.in_flight());
        }
        let mut ids: Vec<u64> = done.iter().filter(|c| c.opcode == Opcode::Send).map(|c| c.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [3, 7, 11], "each once");
        drop(pair.sender);
        assert_eq!(Arc::strong_count(&pair.source), 1, "something holds the source");
    }
}

const SOURCE_BYTES: usize = 4 << 20;
const MESSAGES: usize = 120;
