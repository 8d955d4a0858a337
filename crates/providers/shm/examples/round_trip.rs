//! What a small message costs in software: both ends in one thread, so that nothing is waited for and no cache line changes its
//! processor. `cargo run --release -p overside-shm --example round_trip [bytes [messages]]`

use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment};
use overside_shm::ShmProvider;
use overside_verbs::*;

struct End {
    queue: CompletionQueue,
    pair: QueuePair,
    free: Vec<(u64, Buffer)>,
    done: Vec<WorkCompletion>,
}

impl End {
    fn new(mut queue: CompletionQueue, link: Link) -> End {
        let pair = queue.attach(link).unwrap();
        let buffers = Segment::private(RECEIVES * 512).unwrap().carve(512);
        let mut free: Vec<(u64, Buffer)> = buffers.into_iter().map(|buffer| (0, buffer)).collect();
        queue.post_receive(Some(pair), &mut free).unwrap();
        End { queue, pair, free, done: Vec::new() }
    }

    fn send(&mut self, message: &[u8]) {
        assert!(self.queue.post_inline(self.pair, 0, message, None, false).unwrap());
        if self.free.len() >= RECEIVES / 2 {
            self.queue.post_receive(Some(self.pair), &mut self.free).unwrap();
        }
    }

    fn receive(&mut self, bytes: usize) {
        while self.done.is_empty() {
            self.queue.poll(&mut self.done);
        }
        for done in self.done.drain(..) {
            assert_eq!((done.status, done.bytes), (Status::Success, bytes as u64));
            self.free.extend(done.buffer.map(|buffer| (0, buffer)));
        }
    }
}

fn main() {
    let number = |i: usize, default: usize| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (bytes, messages) = (number(1, 64), number(2, 1_000_000));
    let (a, b) = (ShmProvider::new().unwrap(), ShmProvider::new().unwrap());
    let domains = [a.allocate_domain().unwrap(), b.allocate_domain().unwrap()];
    let name = format!("round-trip-{}", std::process::id());
    let mut listener = a.listen(&domains[0], &name).unwrap();
    let connecting = std::thread::spawn({
        let (b, domain) = (b.clone(), domains[1].clone());
        move || b.connect(&domain, &name, Duration::from_secs(5)).unwrap()
    });
    let accepted = listener.accept(Duration::from_secs(5)).unwrap().unwrap();
    let open = |provider: &ShmProvider, domain| {
        CompletionQueue::new(provider.open_port(domain, PortOptions::default()).unwrap())
    };
    let mut ends =
        [End::new(open(&a, &domains[0]), accepted), End::new(open(&b, &domains[1]), connecting.join().unwrap())];
    for _ in 0..1000 {
        measured(&mut ends, bytes, 2);
    }
    let start = Instant::now();
    measured(&mut ends, bytes, messages);
    println!("{bytes} B: {:.1} ns a message", start.elapsed().as_nanos() as f64 / messages as f64);
}

/// Messages there and back in turn.
#[inline(never)]
fn measured(ends: &mut [End; 2], bytes: usize, messages: usize) {
    let message = vec![7; bytes];
    let [a, b] = ends;
    for _ in 0..messages / 2 {
        a.send(&message);
        b.receive(bytes);
        b.send(&message);
        a.receive(bytes);
    }
}

const RECEIVES: usize = 16;
