//! A node that ends completes what is under way, and leaves nothing unflushed.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use overside_vault::server::Writes;
use overside_verbs::watch::Signal;
use overside_volume::client::{Link, LinkOptions};
use overside_volume::{Completion, Geometry, MemoryDevice, Request, Work};

use super::*;

/// Memory behind a gate, and what was carried out, in order.
#[derive(Debug)]
pub struct Gated {
    memory: MemoryDevice,
    waiting: VecDeque<Request>,
    gate: Arc<Gate>,
}

#[derive(Debug)]
pub struct Gate {
    is_open: AtomicBool,
    signal: Signal,
    arrived: AtomicU64,
    pub done: Mutex<Vec<&'static str>>,
}

impl Gate {
    /// A closed one, and memory behind it.
    pub fn before_memory() -> (Arc<Gate>, Gated) {
        let gate = Arc::new(Gate {
            is_open: AtomicBool::new(false),
            signal: Signal::new().unwrap(),
            arrived: AtomicU64::new(0),
            done: Mutex::default(),
        });
        let memory = MemoryDevice::new(1 << 20).unwrap();
        (gate.clone(), Gated { memory, waiting: VecDeque::new(), gate })
    }

    pub fn open(&self) {
        self.is_open.store(true, Ordering::Release);
        self.signal.notify();
    }

    /// Says that there is something, while there is nothing.
    pub fn nudge(&self) {
        self.signal.notify();
    }

    /// Requests that have come to it.
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Acquire)
    }
}

impl Device for Gated {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.gate.arrived.fetch_add(batch.len() as u64, Ordering::AcqRel);
        self.waiting.append(batch);
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.gate.signal.drain();
        if !self.gate.is_open.load(Ordering::Acquire) {
            return 0;
        }
        let mut done = self.gate.done.lock().unwrap();
        done.extend(self.waiting.iter().map(|request| match request.work {
            Work::Write { fua: false, .. } => "write",
            Work::Write { .. } => "write, fua",
            Work::Zero { .. } => "zero",
            Work::Flush => "flush",
            _ => "other",
        }));
        self.memory.submit(&mut self.waiting);
        self.memory.poll(out)
    }
    fn arm(&mut self) -> bool {
        self.waiting.is_empty() || !self.gate.is_open.load(Ordering::Acquire)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.gate.signal.as_fd())
    }
}

#[test]
fn what_is_under_way_is_completed_and_flushed() {
    let (gate, device) = Gate::before_memory();
    let name = fresh_name("shm");
    let options = NodeOptions { writes: Writes::Back, ..NodeOptions::default() };
    let served = serve("shm", &name, Box::new(device), options);
    let mut client = Link::attach(provider("shm"), &name, "v", LinkOptions::default()).unwrap();
    let buffer = overside_memory::Segment::private(4096).unwrap().carve(4096).pop().unwrap();
    let work = Work::Write { at: 0, from: overside_memory::Bytes::prefix(buffer, 512), fua: false };
    client.submit(&mut [Request { tag: 0, work }].into());
    let limit = Instant::now() + PATIENCE;
    while gate.arrived() == 0 {
        assert!(Instant::now() < limit, "the write does not arrive");
        client.poll(&mut Vec::new());
        std::thread::yield_now();
    }
    let ended = std::thread::spawn(move || drop(served));
    // Its server ends first: the node waits for the write then.
    while !client.handle().is_away() {
        assert!(Instant::now() < limit, "the node does not end");
        client.poll(&mut Vec::new());
        std::thread::yield_now();
    }
    assert!(!ended.is_finished(), "a write is under way");
    gate.open();
    ended.join().unwrap();
    assert_eq!(*gate.done.lock().unwrap(), ["write", "flush", "other"]);
}
