//! A connection whose peer writes into its own memory what it likes, for the fuzz target and the
//! replay of its corpus. Not for users.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use overside_memory::{Buffer, Segment, View};
use overside_shape::Shape;
use overside_verbs::{
    Access, CompletionQueue, Loan, Memory, Peer, PortEvent, PortOptions, Provider, QueuePair, Status, VerbsError,
    WorkCompletion, WorkRequest,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::PidfdFlags;

use crate::channel::{Carried, Channel, Incoming};
use crate::control::{OwnControl, PeerControl};
use crate::doorbell::{OwnRing, OwnWords, PeerWords};
use crate::handshake::Wire;
use crate::messages::Message;
use crate::producer::Producer;
use crate::provider::ShmProvider;
use crate::ring::{Descriptor, Geometry, INLINE_MAX, Sge, Task, Word};
use crate::socket::Connected;

/// Steps of both ends, a peer's scribbling into any word of its control memory among them. True:
/// the connection stands at the end.
///
/// # Panics
/// When a byte outside of what was posted changes, a message is not what an honest peer sent, a
/// request is reported twice, or not at all once the connection is closed.
pub fn ring(bytes: &[u8]) -> bool {
    let Ok(mut scene) = Scene::new() else { return false };
    let mut steps = Steps(&bytes[..bytes.len().min(INPUT_BYTES_MAX)]);
    while let Some(step) = steps.byte() {
        if scene.step(step, &mut steps).is_none() {
            break;
        }
    }
    (0..4).for_each(|_| scene.poll());
    scene.finish()
}

/// What is left of an input.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        (0..bytes).try_fold(0, |number, i| Some(number | u64::from(self.byte()?) << (8 * i)))
    }
}

/// A victim, and the peer's half of its connection.
struct Scene {
    queue: CompletionQueue,
    pair: QueuePair,
    /// Between and behind the buffers that are posted.
    untouched: Vec<Buffer>,
    free: Vec<(u64, Buffer)>,
    posted: usize,
    back: usize,
    sends: u64,
    sends_done: u64,
    closed: bool,
    done: Vec<WorkCompletion>,
    // The peer.
    own: OwnControl,
    producer: Producer,
    channel: Channel,
    /// The victim's control memory, once the peer has heard of it.
    victim: Option<PeerControl>,
    /// What it sent, how much of that the victim said it consumed, and how much came.
    sent: Vec<Descriptor>,
    freed: usize,
    came: usize,
    /// It has written where no honest peer does.
    scribbled: bool,
    /// Returns it has written.
    returned: u64,
    /// What the victim lends, and keeps as loans.
    lent: Arc<Buffer>,
    loans: Vec<Loan>,
}

impl Scene {
    fn new() -> Result<Self, VerbsError> {
        let provider = ShmProvider::new()?;
        let domain = provider.allocate_domain()?;
        let failed = |_| VerbsError::Closed;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)?;
        let pidfd: OwnedFd =
            rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).map_err(failed)?;
        let wire = Wire { socket: Connected::new(socket), made: false, pidfd };
        let peer = Peer { pid: None, uid: None, description: "the fuzzer".to_owned() };
        let options = PortOptions { depth: 32, sges: 256, ..PortOptions::default() };
        let mut queue = CompletionQueue::new(provider.open_port(&domain, options)?);
        let pair = queue.attach(provider.instance().link(domain.id(), peer, wire))?;
        let geometry = Geometry::for_options(0, 0);
        let (own, channel) = (OwnControl::new(geometry)?, Channel::new(Connected::new(theirs), true));
        channel.send(&Message::Attach(geometry), Carried::Segment(own.segment().clone()));
        let data = Segment::shared(DATA_BYTES as usize)?.carve(DATA_BYTES as usize).pop().map(|mut data| {
            data.iter_mut().zip(0..).for_each(|(byte, at)| *byte = pattern(at));
            data
        });
        if let Some(data) = &data {
            let message = Message::Segment { id: SEGMENT, len: DATA_BYTES };
            channel.send(&message, Carried::Segment(data.segment().clone()));
        }
        let mut ground = Segment::private(2 * RECEIVES * ROOM)?.carve(ROOM);
        ground.iter_mut().for_each(|buffer| buffer.fill(CANARY));
        let (mut free, mut untouched) = (Vec::new(), Vec::new());
        for (i, buffer) in ground.into_iter().take(2 * RECEIVES).enumerate() {
            if i % 2 == 0 { free.push((i as u64, buffer)) } else { untouched.push(buffer) }
        }
        let producer = Producer::new(geometry);
        let lent = Segment::shared(ROOM)?.carve(ROOM).pop().ok_or(VerbsError::Closed)?;
        provider.register(&domain, &Memory::Segment(lent.segment().clone()), Access::LOCAL)?;
        let lent = Arc::new(lent);
        let mut scene = Self {
            queue,
            pair,
            untouched,
            free,
            posted: 0,
            back: 0,
            sends: 0,
            sends_done: 0,
            closed: false,
            done: Vec::new(),
            own,
            producer,
            channel,
            victim: None,
            sent: Vec::new(),
            freed: 0,
            came: 0,
            scribbled: false,
            returned: 0,
            lent,
            loans: Vec::new(),
        };
        scene.poll();
        Ok(scene)
    }

    /// Takes a step; none at the input's end.
    fn step(&mut self, step: u8, steps: &mut Steps<'_>) -> Option<()> {
        match step % STEPS {
            STORE => {
                let (word, value) = (steps.number(2)? as usize, steps.number(8)?);
                self.own.scribble(word, |_| value);
                self.scribbled = true;
            }
            FLIP => {
                let (word, bit) = (steps.number(2)? as usize, steps.byte()?);
                self.own.scribble(word, |was| was ^ 1 << (bit % 64));
                self.scribbled = true;
            }
            INLINE => {
                let len = steps.number(2)? as usize % (INLINE_MAX + 1);
                let bytes: Vec<u8> = (0..len as u64).map(pattern).collect();
                let descriptor =
                    Descriptor { task: Task::Inline, immediate: None, len: len as u64, report: len % 2 == 1 };
                if self.room(descriptor) {
                    self.producer.inline(&self.own, descriptor, &bytes);
                    self.publish(descriptor);
                }
            }
            GATHER | LEND => self.gather(steps, step % STEPS == LEND)?,
            POST => self.post(WorkRequest::send_inline(SEND, b"to the enemy")),
            POST_LENT => {
                let view = View::of(&self.lent, &Shape::contiguous(0, ROOM as u64).ok()?).ok()?;
                self.post(WorkRequest::send(SEND, view).lendable());
            }
            RETURN => {
                self.own.put_return(self.returned, u32::from(steps.byte()?));
                self.returned += 1;
                self.scribbled = true;
            }
            DROP => {
                let which = usize::from(steps.byte()?);
                if !self.loans.is_empty() {
                    self.loans.swap_remove(which % self.loans.len());
                }
            }
            RECEIVE | RECEIVE_LOAN => {
                let last = self.free.pop();
                let mut one: Vec<(u64, Buffer)> = last.into_iter().collect();
                let posted = if step % STEPS == RECEIVE {
                    self.queue.post_receive(Some(self.pair), &mut one)
                } else {
                    self.queue.post_receive_or_loan(Some(self.pair), &mut one)
                };
                self.posted += posted.unwrap_or(0);
                self.free.append(&mut one);
            }
            ARM => _ = self.queue.arm(),
            CONSUME => self.own.store(Word::Consumed, self.sends),
            BELL => self.channel.send(&Message::Doorbell, Carried::Nothing),
            _ => self.poll(),
        }
        Some(())
    }

    /// Sends pieces of the data, or offers them as a loan.
    fn gather(&mut self, steps: &mut Steps<'_>, lends: bool) -> Option<()> {
        let pieces = steps.byte()? as usize % 9;
        let mut sges = Vec::new();
        // The pieces of a message follow on each other, so that its bytes are a pattern too.
        let mut offset = 0;
        for _ in 0..pieces {
            let len = u32::from(steps.byte()?) % 200;
            sges.push(Sge { segment: SEGMENT, len, offset });
            offset += u64::from(len);
        }
        let task = if lends && pieces > 0 { Task::Lend(pieces) } else { Task::Gather(pieces) };
        let descriptor = Descriptor { task, immediate: Some(7), len: offset, report: false };
        if self.room(descriptor) {
            self.producer.gather(&self.own, descriptor, &sges);
            self.publish(descriptor);
        }
        Some(())
    }

    fn room(&mut self, descriptor: Descriptor) -> bool {
        while let Incoming::Message(message, fd) = self.channel.receive() {
            if let (Message::Attach(geometry), Some(fd)) = (message, fd) {
                self.victim = fd.memory().and_then(|fd| PeerControl::map(fd, geometry).ok());
            }
        }
        let consumed = self.victim.as_ref().map_or(0, |victim| victim.load(Word::Consumed));
        // A victim that was shown what the producer did not write may have come further than that.
        let Some(done) = self.producer.observe(consumed) else {
            assert!(self.scribbled, "the victim consumed what was not published");
            return false;
        };
        let done = done as usize;
        for descriptor in &self.sent[self.freed..self.freed + done] {
            self.producer.free_cells(descriptor.cells() as u32);
        }
        self.freed += done;
        descriptor.len <= ROOM as u64 && self.producer.room(descriptor.cells())
    }

    fn publish(&mut self, descriptor: Descriptor) {
        self.producer.publish(&self.own);
        self.sent.push(descriptor);
    }

    fn post(&mut self, request: WorkRequest) {
        if let Ok(accepted) = self.queue.post(self.pair, &mut [request].into()) {
            self.sends += accepted as u64;
        }
    }

    fn poll(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.queue.poll(&mut done);
        while let Some(PortEvent::Disconnected { .. }) = self.queue.next_event() {
            self.closed = true;
        }
        for completion in done.drain(..) {
            match completion.buffer {
                Some(buffer) => {
                    self.take(completion.id, completion.status, completion.bytes as usize, buffer, completion.loan);
                }
                None => self.sends_done += 1,
            }
        }
        self.done = done;
    }

    fn take(&mut self, id: u64, status: Status, len: usize, mut buffer: Buffer, loan: Option<Loan>) {
        self.back += 1;
        if status == Status::Success {
            assert!(len <= buffer.len());
            if let Some(loan) = loan {
                assert!(buffer.iter().all(|byte| *byte == CANARY), "bytes of a buffer whose message was lent");
                assert_eq!(loan.bytes(), len as u64);
                assert!(loan.read(0, &mut buffer[..len]).is_ok());
                self.loans.push(loan);
            }
            assert!(buffer[len..].iter().all(|byte| *byte == CANARY), "bytes behind a message");
            if !self.scribbled {
                let sent = self.sent.get(self.came).map(|descriptor| descriptor.len);
                assert_eq!(sent, Some(len as u64), "a message that was sent, in its turn");
                assert!(buffer[..len].iter().zip(0..).all(|(byte, at)| *byte == pattern(at)));
            }
            self.came += 1;
        }
        buffer.fill(CANARY);
        self.free.push((id, buffer));
    }

    /// Closes; whether the peer had not been thrown out before.
    fn finish(mut self) -> bool {
        let stood = !self.closed;
        self.queue.close(self.pair);
        (0..4).for_each(|_| self.poll());
        assert_eq!(self.back, self.posted, "each receive comes back once");
        assert_eq!(self.sends_done, self.sends, "each send is reported once");
        assert_eq!(self.queue.in_flight(), 0, "nothing is lent to nobody");
        assert_eq!(Arc::strong_count(&self.lent), 1, "each hold has ended");
        let mut out = [0; ROOM];
        assert!(self.loans.iter().all(|loan| loan.read(0, &mut out[..loan.bytes() as usize]).is_ok()));
        assert!(self.untouched.iter().all(|buffer| buffer.iter().all(|byte| *byte == CANARY)), "bytes of nobody's");
        stood
    }
}

fn pattern(at: u64) -> u8 {
    (at * 31 + (at >> 8) + 1) as u8
}

/// What the target starts from: inputs after which the connection stands.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let receive = [RECEIVE; 4];
    let quiet = [&[ARM, POLL][..], &receive, &[ARM]].concat();
    let messages = [
        &receive[..],
        &[INLINE, 5, 0, INLINE, 64, 0, POLL, INLINE, 200, 0, GATHER, 2, 8, 16, POLL],
        &[GATHER, 5, 1, 2, 3, 4, 5, POLL, RECEIVE, ARM, GATHER, 0, POLL],
    ]
    .concat();
    let both =
        [&[POST, POST, POLL, CONSUME, POLL][..], &receive, &[INLINE, 48, 0, BELL, ARM, POLL, POST, CONSUME, ARM]];
    let waits = [&[INLINE, 9, 0, INLINE, 9, 0, POLL, ARM][..], &receive, &[POLL]];
    // The same value that is there: an honest word.
    let honest =
        [&[STORE, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &receive, &[INLINE, 7, 0, FLIP, 9, 0, 3, FLIP, 9, 0, 3, POLL]];
    // More than once around the ring.
    let laps = [INLINE, 60, 0, RECEIVE, POLL].repeat(70);
    // Lent and copied, kept and returned, by either side: the first SENDs are numbers 0 and 1.
    let loans = [
        &[RECEIVE_LOAN, RECEIVE_LOAN, RECEIVE, LEND, 2, 8, 16, LEND, 5, 1, 2, 3, 4, 5, POLL, LEND, 1, 9, POLL, ARM][..],
        &[DROP, 0, RECEIVE_LOAN, INLINE, 9, 0, POLL, POST_LENT, POST_LENT, POLL, CONSUME, POLL, DROP, 0, ARM],
        &[RETURN, 1, POLL, POST_LENT, RETURN, 0, POLL],
    ]
    .concat();
    [quiet, messages, both.concat(), waits.concat(), honest.concat(), laps, loans].map(|seed| ("ring", seed)).into()
}

const STORE: u8 = 0;
const FLIP: u8 = 1;
const INLINE: u8 = 2;
const GATHER: u8 = 3;
const POST: u8 = 4;
const RECEIVE: u8 = 5;
const ARM: u8 = 6;
const CONSUME: u8 = 7;
const BELL: u8 = 8;
const POLL: u8 = 9;
const LEND: u8 = 10;
const RECEIVE_LOAN: u8 = 11;
const POST_LENT: u8 = 12;
const RETURN: u8 = 13;
const DROP: u8 = 14;
const STEPS: u8 = 15;

const INPUT_BYTES_MAX: usize = 4096;
const SEGMENT: u32 = 7;
const DATA_BYTES: u64 = 4096;
/// Receives there are at most.
const RECEIVES: usize = 8;
/// Bytes of each.
const ROOM: usize = 512;
const CANARY: u8 = 0xa5;
const SEND: u64 = 1 << 32;
