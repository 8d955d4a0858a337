//! One connection to a node: messages out, messages in.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Bytes};
use overside_transfer::{Endpoint, Ring, RingOptions};
use overside_verbs::{
    Loan, Opcode, PortOptions, Provider, QueuePair, Status, VerbsError, WorkCompletion, WorkRequest, watch::Watch,
};

use super::registered::Registered;
use crate::wire::{HEADER, Operation, RequestHeader};

#[derive(Debug)]
pub(super) struct Connection {
    /// Memory of callers that the node may read. Ends before the endpoint.
    registered: Option<Registered>,
    was_read: bool,
    endpoint: Endpoint,
    queue_pair: QueuePair,
    ring: Ring,
    /// The one that was sent first is the first to be free again.
    transmit: VecDeque<Bytes>,
    /// Bytes that may ride in a request.
    inline_max: usize,
    /// What the queue pair had no room for yet.
    outbox: VecDeque<WorkRequest>,
    done: Vec<WorkCompletion>,
    /// The node has welcomed this side.
    pub(super) welcomed: bool,
    pub(super) since: Instant,
}

/// A message as it came.
#[derive(Debug)]
pub(super) enum Message {
    Copied(Buffer, usize),
    /// The buffer that it met is unused.
    Lent(Loan, Buffer),
}

impl Connection {
    pub(super) fn open(
        provider: &Arc<dyn Provider>,
        name: &str,
        patience: Duration,
        (bytes, count): (usize, usize),
        registered: Option<Registered>,
    ) -> Result<Connection, VerbsError> {
        let port = PortOptions { depth: (count * 2).max(64), shared_receives: 0, ..PortOptions::default() };
        let mut endpoint = Endpoint::builder(provider.clone()).port(port).open()?;
        let queue_pair = endpoint.connect(name, patience)?;
        let ring = RingOptions { queue_pair: Some(queue_pair), bytes, count, loans: true, ..RingOptions::default() };
        let ring = endpoint.ring(ring)?;
        let pool = endpoint.pool(bytes, count.min(TRANSMITS_MAX))?;
        let transmit = std::iter::from_fn(|| pool.take()).map(Bytes::from).collect();
        let since = endpoint.clock().now();
        Ok(Connection {
            registered,
            was_read: false,
            endpoint,
            queue_pair,
            ring,
            transmit,
            inline_max: provider.capabilities().inline_max,
            outbox: VecDeque::new(),
            done: Vec::new(),
            welcomed: false,
            since,
        })
    }

    pub(super) fn watched_by(&mut self, watch: &Watch, watched: bool) -> Result<(), VerbsError> {
        match watched {
            true => watch.add(self.endpoint.queue().fd(), 0),
            false => {
                watch.remove(self.endpoint.queue().fd().as_fd());
                Ok(())
            }
        }
    }

    /// Queues a message without a payload.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        if bytes.len() <= self.inline_max || !self.send_parts(&[bytes]) {
            self.outbox.push_back(WorkRequest::send_inline(0, bytes).unsignalled());
        }
    }

    /// Queues a message with a payload; false where there is no room for it yet.
    pub(super) fn send_with(&mut self, header: &[u8; HEADER], payload: &[u8]) -> bool {
        self.send_parts(&[header, payload])
    }

    /// The node does not read memory of this side.
    pub(super) fn grants_nothing(&mut self) {
        self.registered = None;
    }

    /// Queues a WRITE, whose payload the node reads from where it lies, if it can. The region of
    /// memory that [`written`](Self::written) is called with when the WRITE has ended; none where
    /// the payload is to be sent.
    pub(super) fn grant(&mut self, request: &RequestHeader, payload: &Bytes) -> Option<u64> {
        let registered = self.registered.as_mut()?;
        let (token, region) = registered.begin(self.endpoint.domain(), payload)?;
        let Operation::Write { fua } = request.operation else { return None };
        let header = RequestHeader { operation: Operation::WriteGranted { fua }, ..*request }.bytes();
        let message = [&header[..], &token.to_bytes()].concat();
        if message.len() <= self.inline_max {
            self.outbox.push_back(WorkRequest::send_inline(0, &message).unsignalled());
        } else if !self.send_parts(&[&message]) {
            if let Some(registered) = &mut self.registered {
                registered.end(region);
            }
            return None;
        }
        Some(region)
    }

    /// A WRITE has ended whose payload lies in this region.
    pub(super) fn written(&mut self, region: u64) {
        self.was_read = true;
        if let Some(registered) = &mut self.registered {
            registered.end(region);
        }
    }

    /// Whether a WRITE has ended whose payload lay in a region.
    pub(super) fn was_read(&self) -> bool {
        self.was_read
    }

    fn send_parts(&mut self, parts: &[&[u8]]) -> bool {
        let Some(bytes) = self.transmit.front_mut() else { return false };
        if !bytes.refill(parts) {
            return false;
        }
        self.outbox.push_back(WorkRequest::send(0, bytes.view()).prompt());
        self.transmit.rotate_left(1);
        true
    }

    /// Posts what is queued.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn post(&mut self) -> Result<(), VerbsError> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        self.endpoint.queue().post(self.queue_pair, &mut self.outbox).map(drop)
    }

    /// Takes what has come. Whether the connection is still there.
    pub(super) fn receive(&mut self, messages: &mut Vec<Message>) -> bool {
        let _ = self.ring.post(self.endpoint.queue());
        self.endpoint.queue().poll(&mut self.done);
        let mut lives = true;
        for completion in self.done.drain(..) {
            let (Opcode::Receive, Some(buffer)) = (completion.opcode, completion.buffer) else {
                lives &= completion.status == Status::Success;
                continue;
            };
            self.ring.completed();
            match (completion.status, completion.loan) {
                (Status::Success, Some(loan)) => messages.push(Message::Lent(loan, buffer)),
                (Status::Success, None) => messages.push(Message::Copied(buffer, completion.bytes as usize)),
                _ => {
                    self.ring.put(buffer);
                    lives = false;
                }
            }
        }
        lives && (!messages.is_empty() || self.endpoint.ended(self.queue_pair).is_none())
    }

    /// Lets a message's buffer be received into again.
    pub(super) fn put(&mut self, buffer: Buffer) {
        self.ring.put(buffer);
    }

    /// False: something has come, or the connection has ended.
    pub(super) fn arm(&mut self) -> bool {
        self.endpoint.ended(self.queue_pair).is_none() && self.endpoint.queue().arm().unwrap_or(false)
    }
}

impl Message {
    /// Its header; none where it is shorter.
    pub(super) fn header(&self) -> Option<[u8; HEADER]> {
        let mut header = [0; HEADER];
        match self {
            Message::Copied(buffer, len) => header.copy_from_slice(buffer[..*len].get(..HEADER)?),
            Message::Lent(loan, _) => loan.read(0, &mut header).ok().filter(|()| loan.is_valid())?,
        }
        Some(header)
    }

    /// Bytes behind the header.
    pub(super) fn payload(&self) -> u64 {
        let whole = match self {
            Message::Copied(_, len) => *len as u64,
            Message::Lent(loan, _) => loan.bytes(),
        };
        whole.saturating_sub(HEADER as u64)
    }

    /// Copies the payload, which is as long as `into`. False: the node took it back meanwhile.
    pub(super) fn copy(&self, into: &mut [u8]) -> bool {
        match self {
            Message::Copied(buffer, _) => {
                into.copy_from_slice(&buffer[HEADER..HEADER + into.len()]);
                true
            }
            Message::Lent(loan, _) => loan.read(HEADER as u64, into).is_ok() && loan.is_valid(),
        }
    }

    /// The buffer that it met.
    pub(super) fn into_buffer(self) -> Buffer {
        match self {
            Message::Copied(buffer, _) | Message::Lent(_, buffer) => buffer,
        }
    }
}

/// Buffers for WRITEs on their way; more wait.
const TRANSMITS_MAX: usize = 32;
