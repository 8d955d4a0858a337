//! Two connected completion queues, and processes that are one end each.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment};
use overside_shm::ShmProvider;
use overside_verbs::*;

pub fn fresh_name(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// One end: a provider with its domain and completion queue.
pub struct End {
    pub provider: Arc<ShmProvider>,
    pub domain: ProtectionDomain,
    pub queue: CompletionQueue,
    /// What completed while posting.
    pub early: Vec<WorkCompletion>,
}

impl End {
    pub fn new() -> Self {
        Self::with(PortOptions { regions: true, ..PortOptions::default() })
    }

    pub fn with(options: PortOptions) -> Self {
        let provider = ShmProvider::new().unwrap();
        let domain = provider.allocate_domain().unwrap();
        let queue = CompletionQueue::new(provider.open_port(&domain, options).unwrap());
        Self { provider, domain, queue, early: Vec::new() }
    }

    pub fn listen(&self, name: &str) -> Box<dyn Listener> {
        self.provider.listen(&self.domain, name).unwrap()
    }

    pub fn accept(&mut self, listener: &mut dyn Listener) -> QueuePair {
        let link = listener.accept(Duration::from_secs(5)).unwrap().expect("a connection within 5 s");
        self.queue.attach(link).unwrap()
    }

    pub fn connect(&mut self, name: &str) -> QueuePair {
        let link = self.provider.connect(&self.domain, name, Duration::from_secs(5)).unwrap();
        self.queue.attach(link).unwrap()
    }

    /// Registered shared buffers of `size` bytes.
    pub fn buffers(&self, count: usize, size: usize) -> Vec<Buffer> {
        let buffers = Segment::shared(count * size.next_multiple_of(64)).unwrap().carve(size);
        let memory = Memory::Segment(buffers[0].segment().clone());
        self.provider.register(&self.domain, &memory, Access::LOCAL).unwrap();
        buffers.into_iter().take(count).collect()
    }

    pub fn post(&mut self, qp: QueuePair, requests: Vec<WorkRequest>) {
        let mut batch = VecDeque::from(requests);
        while self.queue.post(qp, &mut batch).unwrap() == 0 || !batch.is_empty() {
            self.queue.poll(&mut self.early);
        }
    }

    pub fn post_receives(&mut self, qp: Option<QueuePair>, count: usize, size: usize) {
        assert_eq!(self.queue.post_receive(qp, &mut numbered(count, size)).unwrap(), count);
    }

    pub fn post_receives_or_loans(&mut self, qp: Option<QueuePair>, count: usize, size: usize) {
        assert_eq!(self.queue.post_receive_or_loan(qp, &mut numbered(count, size)).unwrap(), count);
    }

    /// Polls until `count` completions arrived.
    pub fn completions(&mut self, count: usize) -> Vec<WorkCompletion> {
        let mut out = std::mem::take(&mut self.early);
        let end = Instant::now() + Duration::from_secs(10);
        while out.len() < count {
            self.queue.poll_wait(&mut out, Some(Duration::from_millis(100))).unwrap();
            assert!(Instant::now() < end, "only {} of {count} completions: {out:?}", out.len());
        }
        out
    }

    /// Waits for the next event.
    pub fn event(&mut self) -> PortEvent<QueuePair> {
        let end = Instant::now() + Duration::from_secs(10);
        let mut out = Vec::new();
        loop {
            if let Some(event) = self.queue.next_event() {
                return event;
            }
            self.queue.poll_wait(&mut out, Some(Duration::from_millis(100))).unwrap();
            assert!(Instant::now() < end, "no event");
        }
    }
}

fn numbered(count: usize, size: usize) -> Vec<(u64, Buffer)> {
    let buffers = Segment::private(count * size.next_multiple_of(64)).unwrap().carve(size);
    buffers.into_iter().take(count).enumerate().map(|(i, b)| (i as u64, b)).rev().collect()
}

/// Two ends in one process, connected.
pub fn pair() -> (End, QueuePair, End, QueuePair) {
    pair_with(PortOptions::default())
}

pub fn pair_with(options: PortOptions) -> (End, QueuePair, End, QueuePair) {
    let (mut server, mut client) = (End::with(options), End::with(options));
    let name = fresh_name("pair");
    let mut listener = server.listen(&name);
    let accepting = std::thread::spawn(move || listener.accept(Duration::from_secs(5)).unwrap().unwrap());
    let theirs = client.connect(&name);
    let ours = server.queue.attach(accepting.join().unwrap()).unwrap();
    (server, ours, client, theirs)
}

/// Alternates two ends until both have what they wait for.
pub fn both(a: &mut End, a_count: usize, b: &mut End, b_count: usize) -> (Vec<WorkCompletion>, Vec<WorkCompletion>) {
    let (mut a_out, mut b_out) = (std::mem::take(&mut a.early), std::mem::take(&mut b.early));
    let end = Instant::now() + Duration::from_secs(10);
    while a_out.len() < a_count || b_out.len() < b_count {
        a.queue.poll(&mut a_out);
        b.queue.poll(&mut b_out);
        assert!(Instant::now() < end, "have {a_out:?} and {b_out:?}, want {a_count} and {b_count}");
    }
    (a_out, b_out)
}

/// Runs this test binary again as another process: the test `role` with the given variables.
pub fn process(role: &str, variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", role, "--nocapture", "--ignored"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.envs(variables.iter().copied());
    command.spawn().unwrap()
}
