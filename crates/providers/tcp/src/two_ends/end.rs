//! One of the two ends: what was posted, what was reported, and what the memory of either has to
//! hold.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use overside_memory::{Buffer, Segment, View, Window};
use overside_verbs::{
    Access, Atomic, CompletionQueue, Memory, MemoryRegion, Opcode, Peer, PortEvent, PortOptions, ProtectionDomain,
    Provider, QueuePair, Readable, Remote, RemoteToken, Status, WorkCompletion, WorkRequest, Writable,
};
use rustix::net::sockopt;

use super::stranger::{PostedRequest, Stranger};
use super::{
    ADD, ARM, CLOSE, FITTING, FORGET, HANG_UP, HEAR, LENGTHS, POISON, POLL, READ, RECEIVE_BYTES, RECEIVES, SAY,
    SAY_BYTES, SAY_OFTEN, SEND, SHARE, Script, WRITE,
};
use crate::conn::OUT_ROOM;
use crate::frame::READ_CHUNK;
use crate::handshake::Wire;
use crate::options::Options;
use crate::port::{Inner, TcpPort};
use crate::provider::TcpProvider;

/// The two connections of an end.
pub(super) const HONEST: usize = 0;
pub(super) const STRANGER: usize = 1;

pub(super) struct End {
    provider: Arc<TcpProvider>,
    queue: CompletionQueue,
    inner: Arc<Inner>,
    pairs: [QueuePair; 2],
    open: [bool; 2],
    posted: [VecDeque<Posted>; 2],
    posted_count: u64,
    /// Receives and sinks that are this end's own, full of poison.
    spare: Vec<Buffer>,
    /// Sources that were reported, full of poison.
    retired: Vec<Vec<u8>>,
    /// Read, written, counted in.
    windows: [Arc<Window>; 3],
    regions: [Option<MemoryRegion>; 3],
    /// What the other end may reach.
    tokens: [RemoteToken; 3],
    stranger: Stranger,
    /// Messages to the other end that it does not know of, and those that it is to send here.
    said: Vec<(u8, usize)>,
    expected: VecDeque<(u8, usize)>,
    /// The stranger was not accused of anything.
    content: bool,
}

/// A request that is not reported.
struct Posted {
    id: u64,
    sources: Vec<Arc<Vec<u8>>>,
}

/// The byte of a source at a place.
pub(super) fn pattern(mark: u8, at: usize) -> u8 {
    mark.wrapping_add((at * 7) as u8)
}

impl End {
    /// Two, connected. None where the system refuses.
    pub(super) fn two() -> Option<[Self; 2]> {
        let (a, b) = UnixStream::pair().ok()?;
        let (mut a, mut b) = (Self::new(a)?, Self::new(b)?);
        std::mem::swap(&mut a.tokens, &mut b.tokens);
        Some([a, b])
    }

    fn new(honest: UnixStream) -> Option<Self> {
        let provider = TcpProvider::with_options(Options { progress: false, ..Options::default() });
        let domain = provider.allocate_domain().ok()?;
        let options = PortOptions { depth: DEPTH, sges: 64, shared_receives: 8, ..PortOptions::default() };
        let port = TcpPort::open(provider.shared().clone(), &domain, options).ok()?;
        let inner = port.inner().clone();
        let mut queue = CompletionQueue::new(Box::new(port));
        let (ours, theirs) = UnixStream::pair().ok()?;
        let mut attach = |socket: UnixStream| {
            socket.set_nonblocking(true).ok()?;
            // Little is taken at a time, so much waits half sent.
            sockopt::set_socket_send_buffer_size(&socket, 4096).ok()?;
            let peer = Peer { pid: None, uid: None, description: "the script's".to_owned() };
            let wire = Wire::new(socket.into(), None);
            queue.attach(provider.shared().instance().link(domain.id(), peer, wire)).ok()
        };
        let pairs = [attach(honest)?, attach(ours)?];
        let mut spare = Segment::private(SPARE * RECEIVE_BYTES).ok()?.carve(RECEIVE_BYTES);
        spare.iter_mut().for_each(|buffer| buffer.fill(POISON));
        let windows = [window()?, window()?, window()?];
        let regions = Self::register(&provider, &domain, &windows)?;
        let tokens = [0, 1, 2].map(|i: usize| regions[i].token());
        let stranger = Stranger::new(theirs, tokens.map(|token| token.rkey))?;
        let posted = [VecDeque::new(), VecDeque::new()];
        let (said, expected, regions) = (Vec::new(), VecDeque::new(), regions.map(Some));
        Some(Self {
            provider,
            queue,
            inner,
            pairs,
            open: [true; 2],
            posted,
            posted_count: 0,
            spare,
            retired: Vec::new(),
            windows,
            regions,
            tokens,
            stranger,
            said,
            expected,
            content: true,
        })
    }

    fn register(
        provider: &TcpProvider,
        domain: &ProtectionDomain,
        windows: &[Arc<Window>; 3],
    ) -> Option<[MemoryRegion; 3]> {
        let one = |i: usize, access| provider.register(domain, &Memory::Window(windows[i].clone()), access).ok();
        Some([one(0, Access::REMOTE_READ)?, one(1, Access::REMOTE_WRITE)?, one(2, Access::REMOTE_ATOMIC)?])
    }

    pub(super) fn is_open(&self, pair: usize) -> bool {
        self.open[pair]
    }

    pub(super) fn has_said_all(&self) -> bool {
        self.posted[HONEST].is_empty()
    }

    /// What was said to the other end since this was asked.
    pub(super) fn take_said(&mut self) -> Vec<(u8, usize)> {
        std::mem::take(&mut self.said)
    }

    pub(super) fn expects(&mut self, said: Vec<(u8, usize)>) {
        self.expected.extend(said);
    }

    pub(super) fn step(&mut self, step: u8, script: &mut Script<'_>) {
        let pair = usize::from(step >> 6 & 1);
        match step & 0x3f {
            SEND => {
                let at = usize::from(script.number());
                let most = if pair == HONEST { FITTING } else { LENGTHS.len() };
                self.send(pair, LENGTHS[at % most]);
            }
            WRITE => {
                let (token, len) = (self.tokens[usize::from(script.number() % 3)], script.length());
                self.write(pair, token, len);
            }
            READ => {
                let (token, len) = (self.tokens[usize::from(script.number() % 3)], script.length().min(RECEIVE_BYTES));
                self.read(pair, token, len as u64);
            }
            ADD => self.add(pair, self.tokens[usize::from(script.number() % 3)]),
            RECEIVES => self.receives(Some(pair), usize::from(script.number() % 8)),
            SHARE => self.receives(None, usize::from(script.number() % 8)),
            POLL => self.looks(),
            // Whoever goes to sleep tells its peers all that they do not know.
            ARM => _ = self.queue.arm(),
            CLOSE => self.close(pair),
            HEAR => self.stranger.hears(64 * usize::from(script.number())),
            SAY => self.stranger.says(script, 1),
            SAY_OFTEN => {
                let times = usize::from(script.number());
                self.stranger.says(script, times);
            }
            SAY_BYTES => self.stranger.says_bytes(script),
            HANG_UP => self.stranger.hangs_up(),
            FORGET => self.forget(usize::from(script.number() % 3)),
            _ => {}
        }
    }

    fn send(&mut self, pair: usize, len: usize) {
        let mark = self.next_mark();
        let sources = sources(mark, len);
        let mut views = sources.iter().cloned().map(View::foreign);
        let Some(first) = views.next() else { return };
        let view = views.fold(first, View::then);
        if self.post(pair, WorkRequest::send(self.posted_count, view), sources, PostedRequest::Send(mark, len))
            && pair == HONEST
        {
            self.said.push((mark, len));
        }
    }

    fn write(&mut self, pair: usize, token: RemoteToken, len: usize) {
        let mark = self.next_mark();
        let sources = sources(mark, len);
        let mut views = sources.iter().cloned().map(View::foreign);
        let Some(first) = views.next() else { return };
        let remote = Remote::<Writable>::new(RemoteToken { len: len as u64, ..token });
        let request = WorkRequest::write(self.posted_count, views.fold(first, View::then), remote);
        self.post(pair, request, sources, PostedRequest::Write(mark, len, 0));
    }

    fn read(&mut self, pair: usize, token: RemoteToken, len: u64) {
        // A sink that is not taken would be lost, and receives for the other end must be left.
        let has_room = self.open[pair] && self.queue.sends_in_flight(self.pairs[pair]) < DEPTH;
        let Some(sink) = self.spare.pop_if(|_| has_room) else { return };
        let remote = Remote::<Readable>::new(RemoteToken { len, ..token });
        self.post(pair, WorkRequest::read(self.posted_count, sink, remote), Vec::new(), PostedRequest::Other);
    }

    fn add(&mut self, pair: usize, token: RemoteToken) {
        let remote = Remote::<Atomic>::new(RemoteToken { len: 8, ..token });
        self.post(pair, WorkRequest::fetch_add(self.posted_count, remote, 1), Vec::new(), PostedRequest::Other);
    }

    /// Posts one request, if there is room for it.
    fn post(&mut self, pair: usize, request: WorkRequest, sources: Vec<Arc<Vec<u8>>>, asked: PostedRequest) -> bool {
        let accepted = self.queue.post(self.pairs[pair], &mut VecDeque::from([request]));
        let taken = matches!(accepted, Ok(1));
        if taken {
            self.posted[pair].push_back(Posted { id: self.posted_count, sources });
            if pair == STRANGER {
                self.stranger.is_asked(asked);
            }
            self.posted_count += 1;
        }
        taken
    }

    fn next_mark(&self) -> u8 {
        (self.posted_count as u8).wrapping_mul(37).wrapping_add(1)
    }

    fn receives(&mut self, pair: Option<usize>, count: usize) {
        let pair = pair.map(|pair| self.pairs[pair]);
        let mut buffers: Vec<(u64, Buffer)> = Vec::new();
        for _ in 0..count {
            let Some(buffer) = self.spare.pop() else { break };
            assert!(buffer.iter().all(|byte| *byte == POISON), "written after it was given back");
            buffers.push((0, buffer));
        }
        // What there is no room for, or no connection, comes back.
        _ = self.queue.post_receive(pair, &mut buffers);
        self.spare.extend(buffers.into_iter().map(|(_, buffer)| buffer));
    }

    /// A region is no longer anybody's to reach: its owner uses the memory for something else.
    fn forget(&mut self, which: usize) {
        let Some(region) = self.regions[which].take() else { return };
        if self.provider.deregister(region).is_ok() {
            _ = self.windows[which].write(0, &[POISON; WINDOW_BYTES]);
        }
    }

    pub(super) fn close(&mut self, pair: usize) {
        self.queue.close(self.pairs[pair]);
        self.open[pair] = false;
    }

    /// As an honest program does: posts all receives it has, polls, sleeps.
    pub(super) fn goes_on(&mut self) {
        self.receives(None, 4);
        if self.open[HONEST] {
            self.receives(Some(HONEST), 4);
        }
        self.looks();
        _ = self.queue.arm();
    }

    /// Polls, and checks all that comes.
    pub(super) fn looks(&mut self) {
        let mut done = Vec::new();
        while self.queue.poll(&mut done) > 0 {}
        done.into_iter().for_each(|done| self.takes(done));
        while let Some(PortEvent::Disconnected { queue_pair, status, reason }) = self.queue.next_event() {
            let honest = queue_pair == self.pairs[HONEST];
            assert!(!honest || status == Status::Flushed, "the other end is accused: {reason}");
            self.content &= status != Status::Malformed;
            self.close(if honest { HONEST } else { STRANGER });
        }
        let waiting = self.inner.waiting();
        assert!(waiting <= WAITING_MAX, "{waiting} bytes wait for a peer");
    }

    fn takes(&mut self, done: WorkCompletion) {
        let WorkCompletion { queue_pair, id, opcode, status, bytes, buffer, .. } = done;
        if matches!(opcode, Opcode::Receive | Opcode::ReceiveImmediate) {
            let mut buffer = buffer.expect("a receive's buffer comes back");
            if queue_pair == Some(self.pairs[HONEST]) && status == Status::Success && opcode == Opcode::Receive {
                let (mark, len) = self.expected.pop_front().expect("a message that nobody sent");
                assert_eq!(bytes, len as u64, "a message of another length");
                let whole = buffer[..len].iter().enumerate().all(|(at, byte)| *byte == pattern(mark, at));
                assert!(whole, "a message came with other bytes");
            }
            buffer.fill(POISON);
            self.spare.push(buffer);
            return;
        }
        let pair = usize::from(queue_pair != Some(self.pairs[HONEST]));
        let posted = self.posted[pair].pop_front().expect("a report of nothing");
        assert_eq!(posted.id, id, "reported out of order");
        for source in posted.sources {
            let mut source = Arc::try_unwrap(source).expect("reported while it is held");
            // Every other one is freed: a sanitizer sees whoever still reads it.
            if id % 2 == 0 {
                source.fill(POISON);
                self.retired.push(source);
            }
        }
        self.spare.extend(buffer.map(|mut sink| {
            sink.fill(POISON);
            sink
        }));
    }

    /// The end of the script, after all was closed.
    pub(super) fn ends(mut self) -> bool {
        self.looks();
        self.stranger.hears(usize::MAX);
        assert!(self.posted.iter().all(VecDeque::is_empty), "something is not reported");
        let kept = |bytes: &[u8]| bytes.iter().all(|byte| *byte == POISON);
        assert!(self.retired.iter().all(|source| kept(source)), "a source was written after it was given back");
        assert!(self.spare.iter().all(|buffer| kept(buffer)), "a receive was written after it was given back");
        for (window, region) in self.windows.iter().zip(&self.regions) {
            let mut there = [0; WINDOW_BYTES];
            _ = window.read(0, &mut there);
            assert!(region.is_some() || kept(&there), "memory was written after it was deregistered");
        }
        self.content
    }
}

fn window() -> Option<Arc<Window>> {
    Window::new(WINDOW_BYTES).ok().map(Arc::new)
}

/// One or two stretches with the pattern of their mark.
fn sources(mark: u8, len: usize) -> Vec<Arc<Vec<u8>>> {
    let bytes: Vec<u8> = (0..len).map(|at| pattern(mark, at)).collect();
    let (head, tail) = bytes.split_at(len / 3);
    match mark % 2 {
        0 => vec![Arc::new(head.to_vec()), Arc::new(tail.to_vec())],
        _ => vec![Arc::new(bytes)],
    }
}

/// Zeros, which only a peer changes.
const WINDOW_BYTES: usize = 4096;
/// More than there may be READs.
const SPARE: usize = 2 * DEPTH + 24;
const DEPTH: usize = 32;
/// Requests and answers up to the room there is, and the longest of either behind them.
const WAITING_MAX: u64 = OUT_ROOM + READ_CHUNK as u64 + 100_000;
