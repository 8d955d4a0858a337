//! What a session can do: answer now, later or in many messages.

use std::sync::Arc;
use std::time::Instant;

use overside_memory::Buffer;
use overside_verbs::{Clock, Readable, Remote, WorkRequest};

use crate::attended::{Attended, Attends};
use crate::connection::{Outgoing, Stream};
use crate::envelope::{BadMessage, message};
use crate::hold::Hold;
use crate::options::ServiceOptions;
use crate::ordered::{HeldReply, Parcel};
use crate::state::{State, Statistics};
use crate::ticket::{Mailbox, RequestOrder, SessionWaker, Ticket, Turn};
use crate::transmit::{Message, Taken, Transmit};

/// What a worker lends to each of its sessions.
#[derive(Debug)]
pub(crate) struct Lends {
    pub(crate) state: Arc<State>,
    pub(crate) options: Arc<ServiceOptions>,
    pub(crate) transmit: Transmit,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) attends: Attends,
    pub(crate) clock: Arc<dyn Clock>,
}

/// A session's connection and its worker, for the time of one call.
#[derive(Debug)]
pub struct Context<'a> {
    out: &'a mut Outgoing,
    worker: &'a Lends,
    /// What is sent waits behind this entry.
    behind: Option<u64>,
    /// And until the watermarks have come so far.
    hold: Hold,
}

impl<'a> Context<'a> {
    /// For a call that answers a request.
    #[inline]
    pub(crate) fn new(out: &'a mut Outgoing, worker: &'a Lends) -> Self {
        let behind = out.ordered.newest();
        Self { out, worker, behind, hold: Hold::NONE }
    }

    /// For a stream whose turn it is: what it sends waits for nothing.
    #[inline]
    pub(crate) fn of_stream(out: &'a mut Outgoing, worker: &'a Lends) -> Self {
        Self { out, worker, behind: None, hold: Hold::NONE }
    }

    /// What is sent in the rest of this call waits until the watermarks have come so far
    /// ([`ServiceOptions::watermarks`]). Later requests of the connection are carried out
    /// meanwhile, and their replies follow in order.
    #[inline]
    pub fn hold(&mut self, hold: Hold) {
        if self.worker.options.watermarks.as_ref().is_some_and(|marks| !hold.is_met(marks.reached())) {
            self.hold = self.hold.and(hold);
        }
    }

    /// Answers a request: `body` appends the reply's body. A reply that is longer than the peer's
    /// buffers travels in parts. On a connection that this side opened, this sends a request.
    pub fn reply(&mut self, number: u32, body: impl FnOnce(&mut Vec<u8>)) {
        self.send_bytes(message(number, body));
    }

    /// Answers a request later.
    pub fn later(&mut self, number: u32, order: RequestOrder) -> Ticket {
        self.out.unfinished += 1;
        let place = if order == RequestOrder::Free {
            Turn::Behind(self.behind)
        } else {
            let entry = self.out.ordered.open();
            self.behind = Some(entry);
            Turn::Entry(entry)
        };
        if let (RequestOrder::Requests, Turn::Entry(entry)) = (order, place) {
            self.out.barrier = Some(entry);
        }
        Ticket::new(&self.worker.mailbox, self.out.id, number, place)
    }

    /// Uses a ticket on its worker's own thread.
    pub fn complete(&mut self, mut ticket: Ticket, body: impl FnOnce(&mut Vec<u8>)) {
        if ticket.to != self.out.id {
            return ticket.complete(body);
        }
        self.finish(ticket.place, Parcel::Bytes(message(ticket.number, body)));
        ticket.used();
    }

    /// The same with a message from where it lies ([`Ticket::answer`]).
    pub fn answer(&mut self, mut ticket: Ticket, reply: Message) {
        if ticket.to != self.out.id {
            return ticket.answer(reply);
        }
        self.finish(ticket.place, Parcel::Message(reply));
        ticket.used();
    }

    /// Begins a stream: [`Session::produce`](crate::Session::produce) is called as long as the
    /// window has room. A session has one at a time; its messages may be those of several requests.
    pub fn stream(&mut self) {
        self.out.stream = Some(Stream { behind: self.behind });
    }

    /// Sends bytes as one message, or in parts where they are longer than the peer's buffers. They
    /// are copied into a transmit buffer where the connection may have one.
    pub fn send_bytes(&mut self, bytes: Vec<u8>) {
        match self.behind {
            None => self.out.queue_bytes(bytes, self.hold, &self.worker.transmit),
            behind => {
                let held = HeldReply { what: Parcel::Bytes(bytes), hold: self.hold };
                self.out.queue_behind(behind, held, &self.worker.transmit);
            }
        }
    }

    /// Sends a message from where it lies. It is no longer than the peer's buffers.
    #[inline]
    pub fn send(&mut self, message: Message) {
        match self.behind {
            None => self.out.queue(message, self.hold),
            behind => {
                let held = HeldReply { what: Parcel::Message(message), hold: self.hold };
                self.out.queue_behind(behind, held, &self.worker.transmit);
            }
        }
    }

    /// The smallest transmit buffer of at least `len` bytes; none when this connection has as many
    /// as it may, or none is so long.
    pub fn take(&self, len: usize) -> Option<Taken> {
        self.worker.transmit.take(len, &self.out.lent)
    }

    /// The first `len` bytes of a transmit buffer, which comes back when they are sent.
    pub fn message(&self, taken: Taken, len: usize) -> Message {
        self.worker.transmit.message(taken, len)
    }

    /// Gives an unused transmit buffer back.
    pub fn put(&self, taken: Taken) {
        self.worker.transmit.put(taken);
    }

    /// READs memory that the peer grants, into a buffer that is registered:
    /// [`Session::read`](crate::Session::read) has it with this number. How many may be under way,
    /// and of how many bytes, is for the session to bound.
    pub fn read(&mut self, id: u64, into: Buffer, remote: Remote<Readable>) {
        self.out.reads.push_back(WorkRequest::read(id, into, remote));
    }

    /// Wakes the session at `when`, in the place of any time set before.
    pub fn wake_at(&mut self, when: Instant) {
        self.out.due = Some(when);
    }

    /// From now on the worker goes on with what ends requests later, until its connection ends or
    /// it is [over](crate::Going::Over).
    pub fn attend(&mut self, what: Arc<dyn Attended>) {
        self.worker.attends.add(self.out.id.queue_pair, what);
    }

    /// Wakes the session from any thread.
    pub fn waker(&self) -> SessionWaker {
        SessionWaker { mailbox: self.worker.mailbox.clone(), to: self.out.id }
    }

    /// Whether this connection is one too many: the session may say so, and does not
    /// [admit](Self::admit) it.
    pub fn is_turned_away(&self) -> bool {
        self.out.permit.as_ref().is_some_and(crate::state::Permit::is_turned_away)
    }

    /// The peer's receive buffers have this length. Unless said, they have the usual one
    /// ([`ServiceOptions::buffer_bytes`](crate::ServiceOptions::buffer_bytes)).
    pub fn set_buffer_bytes(&mut self, bytes: usize) {
        self.out.buffer_bytes = bytes.max(crate::part::PART_HEADER + 1);
    }

    /// Bytes of the peer's receive buffers.
    pub fn buffer_bytes(&self) -> usize {
        self.out.buffer_bytes
    }

    /// The peer has introduced itself. A connection that is not admitted within the deadline is
    /// closed.
    pub fn admit(&mut self) {
        self.out.admitted = true;
    }

    /// The peer's process, where it is on this host and the system vouches for it.
    pub fn peer_process(&self) -> Option<u32> {
        self.out.peer.pid
    }

    /// The worker's clock.
    pub fn clock(&self) -> &'a dyn Clock {
        &*self.worker.clock
    }

    /// How the server does.
    pub fn statistics(&self) -> Statistics {
        self.worker.state.statistics()
    }

    /// Calls `heard`, which hears a request that arrived at `at`, and notes that it was answered.
    pub(crate) fn timed<T>(&mut self, at: Instant, heard: impl FnOnce(&mut Self) -> T) -> T {
        let first = self.out.lent.next();
        let outcome = heard(self);
        self.out.answered(first, at);
        outcome
    }

    /// Whether the peer opened the connection.
    pub(crate) fn is_accepted(&self) -> bool {
        self.out.permit.is_some()
    }

    /// The whole that a part completes, if it does.
    pub(crate) fn assemble(&mut self, part: &[u8]) -> Result<Option<Vec<u8>>, BadMessage> {
        self.out.assembly.add(part)
    }

    /// An unfinished request is answered.
    pub(crate) fn finish(&mut self, place: Turn, reply: Parcel) {
        self.out.finish(place, reply, self.hold, &self.worker.transmit);
        self.behind = self.out.ordered.newest();
    }
}
