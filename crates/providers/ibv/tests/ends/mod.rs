//! One end of a connection, as tests on a device drive it.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_ibv::{IbvProvider, Options, devices};
use overside_memory::{Buffer, Segment, View};
use overside_verbs::{
    Access, CompletionQueue, Link, Listener, Memory, Opcode, PortEvent, PortOptions, ProtectionDomain, Provider,
    QueuePair, Status, VerbsError, WorkCompletion, WorkRequest,
};

/// Everything in the guest is emulated and shares one processor.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const RECEIVE_BYTES: usize = 64 << 10;

/// Whether there is a device; where one is expected, there must be.
pub fn device() -> bool {
    let Err(why) = devices() else { return true };
    assert!(std::env::var_os("OVERSIDE_DEVICE_EXPECTED").is_none(), "there must be a device here: {why}");
    eprintln!("skipped, {why}");
    false
}

/// An address of this process alone.
pub fn address(which: u16) -> String {
    let process = std::process::id();
    format!("127.{}.{}.1:{}", 1 + (process >> 8 & 0x7f), process & 0xff, 20_000 + which)
}

/// One end: a provider with its domain and completion queue.
pub struct End {
    pub provider: Arc<IbvProvider>,
    pub domain: ProtectionDomain,
    pub queue: CompletionQueue,
    pub done: VecDeque<WorkCompletion>,
}

impl End {
    pub fn new(options: Options) -> Self {
        let provider = IbvProvider::with_options(options).unwrap();
        let domain = provider.allocate_domain().unwrap();
        let options = PortOptions { depth: 64, shared_receives: 64, ..PortOptions::default() };
        let queue = CompletionQueue::new(provider.open_port(&domain, options).unwrap());
        Self { provider, domain, queue, done: VecDeque::new() }
    }

    pub fn listen(&self, address: &str) -> Box<dyn Listener> {
        self.provider.listen(&self.domain, address).unwrap()
    }

    pub fn accept(&mut self, listener: &mut dyn Listener) -> QueuePair {
        let link = listener.accept(PATIENCE).unwrap().expect("a connection");
        self.queue.attach(link).unwrap()
    }

    /// Until somebody listens.
    pub fn connect(&mut self, address: &str) -> QueuePair {
        let end = Instant::now() + PATIENCE;
        let link: Link = loop {
            match self.provider.connect(&self.domain, address, PATIENCE) {
                Ok(link) => break link,
                Err(VerbsError::Unreachable { reason, .. }) => {
                    assert!(Instant::now() < end, "nobody listens on {address}: {reason}");
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => panic!("{error}"),
            }
        };
        self.queue.attach(link).unwrap()
    }

    /// Memory that a peer may read.
    pub fn memory(&self, len: usize) -> Buffer {
        let buffer = Segment::shared(len.next_multiple_of(4096)).unwrap().carve(len).remove(0);
        let memory = Memory::Segment(buffer.segment().clone());
        self.provider.register(&self.domain, &memory, Access::LOCAL | Access::REMOTE_READ).unwrap();
        buffer
    }

    /// A view of the seed's bytes in as many fragments.
    pub fn view(&self, seed: u64, lens: &[usize]) -> View {
        let whole = pattern(seed, lens.iter().sum());
        let (mut rest, mut view) = (&whole[..], None::<View>);
        for len in lens {
            let mut buffer = self.memory(*len);
            buffer[..*len].copy_from_slice(&rest[..*len]);
            rest = &rest[*len..];
            let part = View::prefix(buffer, *len);
            view = Some(match view {
                Some(view) => view.then(part),
                None => part,
            });
        }
        view.unwrap()
    }

    pub fn receives(&mut self, qp: Option<QueuePair>, count: usize) {
        let segment = Segment::private(count * RECEIVE_BYTES).unwrap();
        let buffers = segment.carve(RECEIVE_BYTES);
        let memory = Memory::Segment(buffers[0].segment().clone());
        self.provider.register(&self.domain, &memory, Access::LOCAL).unwrap();
        let mut numbered: Vec<(u64, Buffer)> = buffers.into_iter().map(|buffer| (0, buffer)).collect();
        assert_eq!(self.queue.post_receive(qp, &mut numbered).unwrap(), count);
    }

    pub fn post(&mut self, qp: QueuePair, request: WorkRequest) {
        let (mut batch, end) = (VecDeque::from([request]), Instant::now() + PATIENCE);
        loop {
            match self.queue.post(qp, &mut batch) {
                Ok(0) => {}
                Ok(_) => return,
                Err(error) => {
                    let events: Vec<PortEvent<QueuePair>> = std::iter::from_fn(|| self.queue.next_event()).collect();
                    panic!("{error}; what happened: {events:?}");
                }
            }
            self.wait(Duration::from_millis(100));
            assert!(Instant::now() < end, "no room to post");
        }
    }

    pub fn wait(&mut self, timeout: Duration) {
        let mut out = Vec::new();
        self.queue.poll_wait(&mut out, Some(timeout)).unwrap();
        self.done.extend(out);
    }

    /// A completion of that kind that is there.
    pub fn take(&mut self, opcode: Opcode) -> Option<WorkCompletion> {
        let at = self.done.iter().position(|done| done.opcode == opcode)?;
        self.done.remove(at)
    }

    /// The next completion of that kind.
    pub fn next(&mut self, opcode: Opcode) -> WorkCompletion {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(done) = self.take(opcode) {
                return done;
            }
            self.wait(Duration::from_millis(100));
            assert!(Instant::now() < end, "no {opcode:?}; there are {:?}", self.done);
        }
    }

    pub fn succeeded(&mut self, opcode: Opcode) -> WorkCompletion {
        let done = self.next(opcode);
        assert_eq!(done.status, Status::Success, "{done:?}");
        done
    }

    /// A message, whose receive is posted again.
    pub fn message(&mut self, qp: QueuePair) -> (Vec<u8>, Option<u32>) {
        let done = self.succeeded(Opcode::Receive);
        let buffer = done.buffer.unwrap();
        let bytes = buffer[..done.bytes as usize].to_vec();
        self.queue.post_receive(Some(qp), &mut vec![(0, buffer)]).unwrap();
        (bytes, done.immediate)
    }

    /// Which connection ended, and how.
    pub fn ended(&mut self) -> (QueuePair, Status) {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(PortEvent::Disconnected { queue_pair, status, .. }) = self.queue.next_event() {
                return (queue_pair, status);
            }
            self.wait(Duration::from_millis(100));
            assert!(Instant::now() < end, "no connection ends");
        }
    }

    pub fn disconnected(&mut self) -> Status {
        self.ended().1
    }
}

/// Bytes that no other seed has.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i * 31 + i / 251 + seed * 97) % 253) as u8).collect()
}
