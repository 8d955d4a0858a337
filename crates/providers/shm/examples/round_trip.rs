//! What a small message costs in software: both ends in one thread, so that nothing is waited for and no cache line changes its
//! processor; then an end on each processor, in turn with a bare ring of the same bytes.
//! `cargo run --release -p overside-shm --example round_trip [bytes [messages [rounds]]]`

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment};
use overside_shm::ShmProvider;
use overside_verbs::*;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// In cache lines of its own, as its heap is by being made in a thread of its own: the other end is another process as a rule.
#[repr(align(128))]
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
        // Looked at where they lie, as they were written just now.
        for done in &mut self.done {
            assert_eq!((done.status, done.bytes), (Status::Success, bytes as u64));
            self.free.extend(done.buffer.take().map(|buffer| (0, buffer)));
        }
        self.done.clear();
    }
}

fn main() {
    let number = |i: usize, default: usize| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (bytes, messages) = (number(1, 64), number(2, 1_000_000));
    let (a, b) = (ShmProvider::new().unwrap(), ShmProvider::new().unwrap());
    let domains = [a.allocate_domain().unwrap(), b.allocate_domain().unwrap()];
    let name = format!("round-trip-{}", std::process::id());
    let mut listener = a.listen(&domains[0], &name).unwrap();
    let open = |provider: &ShmProvider, domain: &ProtectionDomain| {
        CompletionQueue::new(provider.open_port(domain, PortOptions::default()).unwrap())
    };
    let connecting = std::thread::spawn({
        let (b, domain) = (b.clone(), domains[1].clone());
        move || {
            let link = b.connect(&domain, &name, Duration::from_secs(5)).unwrap();
            End::new(open(&b, &domain), link)
        }
    });
    let accepted = listener.accept(Duration::from_secs(5)).unwrap().unwrap();
    let mut ends = [End::new(open(&a, &domains[0]), accepted), connecting.join().unwrap()];
    for _ in 0..1000 {
        measured(&mut ends, bytes, 2);
    }
    let start = Instant::now();
    measured(&mut ends, bytes, messages);
    println!("{bytes} B: {:.1} ns a message", start.elapsed().as_nanos() as f64 / messages as f64);
    let ring = Ring::default();
    let processors = processors();
    let rounds = number(3, 0);
    let pairs: Vec<[f64; 2]> = (0..rounds)
        .map(|_| [ring.apart(processors, bytes, messages), apart(processors, &mut ends, bytes, messages)])
        .collect();
    let quarter = |side: usize| {
        let mut all: Vec<f64> = pairs.iter().map(|pair| pair[side]).collect();
        all.sort_by(f64::total_cmp);
        all.get(rounds / 4).copied().unwrap_or(f64::NAN)
    };
    if rounds > 0 {
        // Whatever else runs here makes rounds longer and never shorter: so the first quartile.
        let (bare, ours) = (quarter(0), quarter(1));
        println!("apart: bare ring {bare:.1} ns a message, {ours:.1} over shm, {:.3} of its rate", bare / ours);
    }
}

/// The first and the last of the processors that there are.
fn processors() -> [CpuSet; 2] {
    let all = sched_getaffinity(None).unwrap();
    let only = |cpu| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    };
    let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
    let first = allowed.next().unwrap();
    [only(first), only(allowed.next_back().unwrap_or(first))]
}

/// Takes a processor, and waits until the other end has its own.
fn sit(on: &CpuSet, seated: &AtomicU64) {
    sched_setaffinity(None, on).unwrap();
    seated.fetch_add(1, Ordering::SeqCst);
    // Without a sleep, whose end would count.
    while seated.load(Ordering::SeqCst) < 2 {
        std::thread::yield_now();
    }
}

/// Nanoseconds a message, one end a thread of its own, each on a processor of its own.
fn apart(on: [CpuSet; 2], [a, b]: &mut [End; 2], bytes: usize, messages: usize) -> f64 {
    let message = vec![7; bytes];
    let seated = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sit(&on[1], &seated);
            for _ in 0..messages / 2 {
                b.receive(bytes);
                b.send(&message);
            }
        });
        sit(&on[0], &seated);
        let start = Instant::now();
        for _ in 0..messages / 2 {
            a.send(&message);
            a.receive(bytes);
        }
        start.elapsed().as_nanos() as f64 / messages as f64
    })
}

/// Slots of a message and its number, in each direction.
struct Ring([Vec<Slot>; 2]);

#[derive(Default)]
#[repr(align(64))]
struct Slot {
    words: [AtomicU64; 16],
    number: Number,
}

#[derive(Default)]
#[repr(align(64))]
struct Number(AtomicU64);

impl Default for Ring {
    fn default() -> Ring {
        Ring([(); 2].map(|()| (0..32).map(|_| Slot::default()).collect()))
    }
}

impl Ring {
    fn apart(&self, on: [CpuSet; 2], bytes: usize, messages: usize) -> f64 {
        let words = (bytes / 8).min(16);
        let send = |way: usize, number: u64| {
            let slot = &self.0[way][number as usize % 32];
            slot.words[..words].iter().for_each(|word| word.store(number, Ordering::Relaxed));
            slot.number.0.store(number, Ordering::Release);
        };
        let receive = |way: usize, number: u64| {
            let slot = &self.0[way][number as usize % 32];
            while slot.number.0.load(Ordering::Acquire) != number {
                spin_loop();
            }
            assert!(slot.words[..words].iter().all(|word| word.load(Ordering::Relaxed) == number));
        };
        self.0.iter().flatten().for_each(|slot| slot.number.0.store(0, Ordering::Relaxed));
        let seated = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sit(&on[1], &seated);
                for number in 1..=messages as u64 / 2 {
                    receive(0, number);
                    send(1, number);
                }
            });
            sit(&on[0], &seated);
            let start = Instant::now();
            for number in 1..=messages as u64 / 2 {
                send(0, number);
                receive(1, number);
            }
            start.elapsed().as_nanos() as f64 / messages as f64
        })
    }
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
