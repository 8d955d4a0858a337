//! What a worker keeps of a connection, apart from its session: what waits for the peer.

use std::collections::VecDeque;
use std::time::Instant;

use overside_verbs::{Peer, WorkRequest};

use crate::hold::Hold;
use crate::ordered::{HeldReply, Ordered, Parcel};
use crate::part::{Assembly, cut};
use crate::state::Permit;
use crate::ticket::{ConnectionId, Turn};
use crate::transmit::{Lent, Message, Transmit};

/// A connection, apart from its session.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) id: ConnectionId,
    pub(crate) peer: Peer,
    /// None on a connection that this side opened.
    pub(crate) permit: Option<Permit>,
    /// Bytes of the peer's receive buffers.
    pub(crate) buffer_bytes: usize,
    /// The peer has introduced itself.
    pub(crate) admitted: bool,
    pub(crate) since: Instant,
    /// Messages that the queue pair had no room for yet.
    pub(crate) outbox: VecDeque<WorkRequest>,
    /// Messages that wait for a watermark, and all that came behind them.
    held: VecDeque<(Hold, WorkRequest)>,
    /// The bytes of both.
    outbox_bytes: u64,
    /// READs of the peer's memory that are not posted.
    pub(crate) reads: VecDeque<WorkRequest>,
    /// Since when those are that were posted and have not ended, in their order.
    pub(crate) reading: VecDeque<Instant>,
    /// Messages that were posted and have not ended: loans that were not returned, too.
    pub(crate) in_flight: usize,
    /// Transmit buffers of what waits and what is in flight.
    pub(crate) lent: Lent,
    /// When the peer last took something that was sent, or had nothing to take.
    pub(crate) progressed: Instant,
    pub(crate) ordered: Ordered,
    /// Requests that are not finished.
    pub(crate) unfinished: usize,
    /// The unfinished request that holds up later ones, and those.
    pub(crate) barrier: Option<u64>,
    behind: VecDeque<Vec<u8>>,
    behind_bytes: u64,
    pub(crate) stream: Option<Stream>,
    /// Requests whose replies are not posted, where that is measured: the number of the last
    /// message of each reply, and when the request arrived.
    arrived: VecDeque<(u64, Instant)>,
    /// Of parts that the peer sends, on a connection that this side opened.
    pub(crate) assembly: Assembly,
    /// When the session is to be woken.
    pub(crate) due: Option<Instant>,
    /// Its worker has it among those with something to send, with a time, and with messages that
    /// wait for a watermark.
    pub(crate) is_busy: bool,
    /// Its stream found no transmit buffer when it was last to produce.
    pub(crate) starved: bool,
    pub(crate) is_timed: bool,
    pub(crate) is_holding: bool,
}

/// A stream that a session has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// It waits for this entry of [`Ordered`] and those before it.
    pub(crate) behind: Option<u64>,
}

impl Outgoing {
    pub(crate) fn new(id: ConnectionId, peer: Peer, permit: Option<Permit>, buffer_bytes: usize, now: Instant) -> Self {
        Self {
            id,
            peer,
            admitted: permit.is_none(),
            permit,
            buffer_bytes,
            since: now,
            outbox: VecDeque::new(),
            held: VecDeque::new(),
            outbox_bytes: 0,
            reads: VecDeque::new(),
            reading: VecDeque::new(),
            in_flight: 0,
            lent: Lent::default(),
            progressed: now,
            ordered: Ordered::default(),
            unfinished: 0,
            barrier: None,
            behind: VecDeque::new(),
            behind_bytes: 0,
            stream: None,
            arrived: VecDeque::new(),
            assembly: Assembly::default(),
            due: None,
            is_busy: false,
            starved: false,
            is_timed: false,
            is_holding: false,
        }
    }

    /// Queues bytes as one message, or in parts where they are longer than the peer's buffers.
    pub(crate) fn queue_bytes(&mut self, bytes: Vec<u8>, hold: Hold, transmit: &Transmit) {
        if bytes.len() <= self.buffer_bytes {
            let message = transmit.packed(bytes, &self.lent);
            return self.queue(message, hold);
        }
        for (header, range) in cut(bytes.len(), self.buffer_bytes) {
            let part = [&header[..], &bytes[range]].concat();
            let message = transmit.packed(part, &self.lent);
            self.queue(message, hold);
        }
    }

    /// Queues one message.
    #[inline]
    pub(crate) fn queue(&mut self, message: Message, hold: Hold) {
        self.lent.lend(message.size());
        self.queue_lent(message, hold);
    }

    fn queue_lent(&mut self, message: Message, hold: Hold) {
        let number = self.lent.queue(&message);
        self.outbox_bytes += message.bytes();
        let request = message.into_request(number);
        if hold == Hold::NONE && self.held.is_empty() {
            self.outbox.push_back(request);
        } else {
            self.held.push_back((hold, request));
        }
    }

    /// Queues a message behind an entry, which may have left.
    pub(crate) fn queue_behind(&mut self, entry: Option<u64>, held: HeldReply, transmit: &Transmit) {
        match entry.filter(|_| self.ordered.keeps(entry)) {
            None => match held.what {
                Parcel::Bytes(bytes) => self.queue_bytes(bytes, held.hold, transmit),
                Parcel::Message(message) => self.queue(message, held.hold),
            },
            Some(entry) => {
                if let Parcel::Message(message) = &held.what {
                    self.lent.lend(message.size());
                }
                self.ordered.hold(entry, held);
            }
        }
    }

    /// An unfinished request is answered.
    pub(crate) fn finish(&mut self, place: Turn, reply: Parcel, hold: Hold, transmit: &Transmit) {
        self.unfinished = self.unfinished.saturating_sub(1);
        let reply = HeldReply { what: reply, hold };
        let entry = match place {
            Turn::Behind(entry) => return self.queue_behind(entry, reply, transmit),
            Turn::Entry(entry) => entry,
        };
        if let Parcel::Message(message) = &reply.what {
            self.lent.lend(message.size());
        }
        let mut released = Vec::new();
        self.ordered.finish(entry, reply, |held| released.push(held));
        for held in released {
            match held.what {
                Parcel::Bytes(bytes) => self.queue_bytes(bytes, held.hold, transmit),
                Parcel::Message(message) => self.queue_lent(message, held.hold),
            }
        }
        if self.barrier == Some(entry) {
            self.barrier = None;
        }
    }

    /// Whether messages wait for a watermark.
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// The watermarks stand at `reached`: what waited for no more may be sent.
    pub(crate) fn release(&mut self, reached: Hold) {
        while self.held.front().is_some_and(|(hold, _)| hold.is_met(reached)) {
            self.outbox.extend(self.held.pop_front().map(|(_, request)| request));
        }
    }

    /// Messages that wait for the window or for a watermark.
    pub(crate) fn queued(&self) -> usize {
        self.outbox.len() + self.held.len()
    }

    /// The first `count` messages of the outbox were posted.
    pub(crate) fn posted(&mut self, count: usize) {
        self.outbox_bytes -= self.lent.post(count);
        self.in_flight += count;
    }

    /// A request that arrived at `at` was answered by the messages from `first` on, if by any.
    pub(crate) fn answered(&mut self, first: u64, at: Instant) {
        let next = self.lent.next();
        if next > first {
            self.arrived.push_back((next - 1, at));
        }
    }

    /// Whether there are such requests.
    pub(crate) fn is_measured(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Tells when those requests arrived whose replies were posted since the last call.
    pub(crate) fn take_posted(&mut self) -> impl Iterator<Item = Instant> {
        let posted = self.lent.posted();
        let count = self.arrived.iter().take_while(|(last, _)| *last < posted).count();
        self.arrived.drain(..count).map(|(_, at)| at)
    }

    /// Keeps a request until nothing holds it up any more.
    pub(crate) fn hold_up(&mut self, request: &[u8]) {
        self.behind_bytes += request.len() as u64;
        self.behind.push_back(request.to_vec());
    }

    /// The next of those, if it may be carried out.
    pub(crate) fn held_up(&mut self) -> Option<Vec<u8>> {
        if self.behind.is_empty() || self.barrier.is_some() || self.overflows() {
            return None;
        }
        let request = self.behind.pop_front()?;
        self.behind_bytes -= request.len() as u64;
        Some(request)
    }

    /// A message is sent, or never will be. One that may be lent stays in flight until it is
    /// released.
    pub(crate) fn sent(&mut self, number: u64, now: Instant) {
        self.in_flight -= usize::from(self.lent.taken(number, now)).min(self.in_flight);
        self.progressed = now;
    }

    /// What a message that may be lent holds is released.
    pub(crate) fn released(&mut self, number: u64, now: Instant) {
        self.in_flight -= usize::from(self.lent.end(number)).min(self.in_flight);
        self.progressed = now;
    }

    /// Messages that may be in flight: as many bytes, however long the peer's buffers are. What is
    /// lent lies in none of them, and counts as a message of any length.
    pub(crate) fn window(&self, window: usize, usual_bytes: usize) -> usize {
        let of_its_length = window.saturating_mul(usual_bytes) / self.buffer_bytes.max(1);
        of_its_length.clamp(WINDOW_MIN.min(window), window)
    }

    /// Whether its stream may produce now.
    pub(crate) fn streams(&self) -> bool {
        self.stream.is_some_and(|stream| !self.ordered.keeps(stream.behind))
    }

    /// Whether more waits for the peer than it may leave untaken, by number or by bytes.
    pub(crate) fn overflows(&self) -> bool {
        let waiting = self.queued() + self.behind.len() + self.ordered.held() + self.unfinished;
        waiting > OUTBOX_MAX || self.waiting_bytes() > OUTBOX_BYTES_MAX
    }

    /// Bytes that wait for the peer, for a watermark, or for an unfinished request of its.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.behind_bytes + self.ordered.held_bytes() + self.outbox_bytes
    }
}

/// One that is copied, one that is next, and as many again while the server learns of it.
const WINDOW_MIN: usize = 4;
/// Messages that wait for one client, and requests of it that are unfinished. Parts of the longest
/// message for the smallest buffers stay below; a client that asks on and takes no answer does not.
const OUTBOX_MAX: usize = 8192;
/// Bytes of them: several times what a stream produces ahead and the longest reply.
const OUTBOX_BYTES_MAX: u64 = 64 << 20;
