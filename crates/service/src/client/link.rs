//! The connection under a client: requests out, replies and other messages in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use overside_memory::{Buffer, Pool, View};
use overside_transfer::{Deadline, Ended, Endpoint, Ring, RingOptions};
use overside_verbs::{
    Clock, Opcode, PortOptions, Provider, QueuePair, Readable, Remote, Status, VerbsError, WorkCompletion, WorkRequest,
};

use overside_verbs::Loan;

use super::LinkError;
use super::receive::{Arrived, Received, Returned};
use crate::envelope::{self, MessageKind};
use crate::part::Assembly;

/// How a link is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// Bytes of each receive buffer; what is longer travels in parts.
    pub buffer_bytes: usize,
    /// Receive buffers.
    pub buffers: usize,
    /// Receives posted at once. Few, so that the same few buffers stay in the cache; a message that
    /// meets none waits.
    pub posted: usize,
    /// How long the server may take for the next message.
    pub timeout: Duration,
    /// Bytes of a transmit buffer. A longer request is sent from the heap, which a provider may
    /// copy.
    pub transmit_bytes: usize,
    /// Transmit buffers: requests in flight.
    pub transmits: usize,
    /// Whether messages that the server lends are taken as loans, for
    /// [`message_or_loan`](Link::message_or_loan).
    pub loans: bool,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            buffer_bytes: 36 << 10,
            buffers: 24,
            posted: 8,
            timeout: Duration::from_secs(30),
            transmit_bytes: 64 << 10,
            transmits: 6,
            loans: false,
        }
    }
}

/// One queue pair and its buffers.
#[derive(Debug)]
pub struct Link {
    endpoint: Endpoint,
    queue_pair: QueuePair,
    ring: Ring,
    returned: Returned,
    transmit: Pool,
    arrived: VecDeque<Arrived>,
    done: Vec<WorkCompletion>,
    assembly: Assembly,
    number: u32,
    options: LinkOptions,
    /// A READ that has ended.
    read: Option<(Status, Buffer)>,
    /// A receive failed, and nothing was heard of the connection's end.
    failed: Option<Ended>,
}

impl Link {
    /// Connects to the provider's part of an address.
    ///
    /// # Errors
    /// When nobody listens there, or the system has no room.
    pub fn connect(provider: Arc<dyn Provider>, name: &str, options: LinkOptions) -> Result<Link, LinkError> {
        let port = PortOptions { depth: options.buffers.max(32), shared_receives: 0, ..PortOptions::default() };
        let mut endpoint = Endpoint::builder(provider).port(port).batch(POLL_BATCH).open()?;
        let queue_pair = endpoint.connect(name, options.timeout)?;
        let transmit = endpoint.pool(options.transmit_bytes.max(1), options.transmits.max(1))?;
        let ring = endpoint.ring(RingOptions {
            queue_pair: Some(queue_pair),
            bytes: options.buffer_bytes.max(1),
            count: options.buffers.max(1),
            posted_max: options.posted,
            loans: options.loans,
            ..RingOptions::default()
        })?;
        Ok(Link {
            endpoint,
            queue_pair,
            ring,
            returned: Returned::new(options.buffers),
            transmit,
            arrived: VecDeque::new(),
            done: Vec::new(),
            assembly: Assembly::default(),
            number: 0,
            options,
            read: None,
            failed: None,
        })
    }

    /// How long a server may take.
    pub fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Where its time comes from.
    pub fn clock(&self) -> &dyn Clock {
        self.endpoint.clock()
    }

    /// Sends a request, whose body `body` appends; its number.
    ///
    /// # Errors
    /// When the connection has ended, or the server took nothing for too long.
    pub fn send(&mut self, body: impl FnOnce(&mut Vec<u8>)) -> Result<u32, LinkError> {
        self.number = self.number.wrapping_add(1);
        let view = self.transmittable(envelope::message(self.number, body))?;
        let mut batch = VecDeque::from([WorkRequest::send(0, view)]);
        let mut deadline = Deadline::within(self.options.timeout);
        loop {
            if let Err(error) = self.endpoint.queue().post(self.queue_pair, &mut batch) {
                // The end may have come unnoticed so far, and its reason with it.
                return Err(self.heard_end().unwrap_or(error.into()));
            }
            if batch.is_empty() {
                return Ok(self.number);
            }
            self.progress(&mut deadline)?;
        }
    }

    /// Fills `out` with the first bytes of what the server granted, by READ: the server's program
    /// takes no part.
    ///
    /// # Errors
    /// When the grant is shorter or has ended, the connection has ended, or nothing came in time.
    pub fn read(&mut self, remote: Remote<Readable>, out: &mut [u8]) -> Result<(), LinkError> {
        let mut deadline = Deadline::within(self.options.timeout);
        let mut done = 0;
        while done < out.len() {
            let len = (out.len() - done).min(self.transmit.buffer_bytes());
            let part = remote.part(done as u64, len as u64)?;
            let sink = loop {
                match self.transmit.take() {
                    Some(sink) => break sink,
                    None => self.progress(&mut deadline)?,
                }
            };
            let mut batch = VecDeque::from([WorkRequest::read(0, sink, part)]);
            self.read = None;
            let (status, sink) = loop {
                if !batch.is_empty()
                    && let Err(error) = self.endpoint.queue().post(self.queue_pair, &mut batch)
                {
                    return Err(self.heard_end().unwrap_or(error.into()));
                }
                self.progress(&mut deadline)?;
                if let Some(read) = self.read.take() {
                    break read;
                }
            };
            out[done..done + len].copy_from_slice(&sink[..len]);
            self.transmit.put(sink);
            if status == Status::RemoteAccess {
                return Err(VerbsError::RemoteAccess("the server granted this memory, and does not any more").into());
            }
            if status != Status::Success {
                let reason = "what was to be read was not".into();
                return Err(self.heard_end().unwrap_or(LinkError::Disconnected { status, reason }));
            }
            done += len;
        }
        Ok(())
    }

    /// The next message, which must be the reply to `number`. Its body is
    /// [`Received::body`].
    ///
    /// # Errors
    /// As [`message`](Self::message), and when it is anything else.
    pub fn reply(&mut self, number: u32) -> Result<Received, LinkError> {
        let message = self.message()?;
        if envelope::kind(message.as_ref()) != MessageKind::Control {
            return Err(LinkError::Unexpected("rows".into()));
        }
        let (answered, _) = envelope::open(message.as_ref())?;
        if answered != number {
            return Err(LinkError::Unexpected(format!("the reply to request {answered} instead of {number}")));
        }
        Ok(message)
    }

    /// The next message, whole.
    ///
    /// # Errors
    /// When the connection has ended, or nothing came in time.
    pub fn message(&mut self) -> Result<Received, LinkError> {
        let mut deadline = Deadline::within(self.options.timeout);
        loop {
            if let Some(message) = self.next_whole()? {
                return Ok(message);
            }
            self.progress(&mut deadline)?;
        }
    }

    /// The next message, whole, or where the server lent it, the loan. The next whole message is a
    /// copy for [`message`](Self::message).
    ///
    /// # Errors
    /// As [`message`](Self::message).
    pub fn message_or_loan(&mut self) -> Result<Arrived, LinkError> {
        let mut deadline = Deadline::within(self.options.timeout);
        loop {
            if let Some(Arrived::Lent(_)) = self.arrived.front()
                && let Some(lent) = self.arrived.pop_front()
            {
                if self.arrived.is_empty() && self.failed.is_none() {
                    self.post_receives();
                    self.endpoint.queue().poll_once(&mut self.done);
                    self.take_completions();
                }
                return Ok(lent);
            }
            if let Some(message) = self.next_whole()? {
                return Ok(Arrived::Copied(message));
            }
            self.progress(&mut deadline)?;
        }
    }

    /// The loan that comes next, if it is known by now.
    pub fn next_loan(&self) -> Option<&Loan> {
        match self.arrived.front() {
            Some(Arrived::Lent(lent)) => Some(lent.loan()),
            _ => None,
        }
    }

    /// The next message, if it is here.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn try_message(&mut self) -> Result<Option<Received>, LinkError> {
        if self.arrived.is_empty() {
            self.post_receives();
            self.endpoint.queue().poll(&mut self.done);
            self.take_completions();
            if self.arrived.is_empty() {
                return self.heard_end().map_or(Ok(None), Err);
            }
        }
        self.next_whole()
    }

    /// The next of the messages that have arrived, whole.
    fn next_whole(&mut self) -> Result<Option<Received>, LinkError> {
        while let Some(arrived) = self.arrived.pop_front() {
            let message = match arrived {
                Arrived::Copied(message) => message,
                Arrived::Lent(lent) => match lent.copied() {
                    Some(message) => message,
                    None => return Err(self.heard_end().unwrap_or_else(taken_back)),
                },
            };
            if envelope::kind(message.as_ref()) != MessageKind::Part {
                return Ok(Some(message));
            }
            if let Some(whole) = self.assembly.add(message.as_ref())? {
                return Ok(Some(Received::assembled(whole)));
            }
        }
        Ok(None)
    }

    /// Polls, and waits where nothing comes; an error past the deadline or the connection's end.
    fn progress(&mut self, deadline: &mut Deadline) -> Result<(), LinkError> {
        self.post_receives();
        let found = match self.endpoint.queue().poll_once(&mut self.done) {
            Some(found) => Ok(found),
            // Another thread may give buffers back meanwhile, and they are posted here.
            None => deadline
                .left(self.endpoint.clock())
                .and_then(|left| self.endpoint.queue().poll_wait(&mut self.done, Some(left.min(LOOK)))),
        };
        self.take_completions();
        // While messages come, nothing else is news.
        if found.as_ref().is_ok_and(|found| *found > 0) || !self.arrived.is_empty() {
            return Ok(());
        }
        if let Some(end) = self.heard_end() {
            return Err(end);
        }
        match found {
            Err(VerbsError::TimedOut(_)) if self.ring.posted() == 0 => Err(LinkError::BuffersHeld),
            Err(VerbsError::TimedOut(within)) => Err(LinkError::TimedOut(within)),
            found => Ok(found.map(drop)?),
        }
    }

    fn take_completions(&mut self) {
        let mut failed = None;
        for completion in self.done.drain(..) {
            let (opcode, Some(buffer)) = (completion.opcode, completion.buffer) else { continue };
            if opcode == Opcode::Read {
                self.read = Some((completion.status, buffer));
                continue;
            }
            self.ring.completed();
            match completion.status {
                Status::Success => self.arrived.push_back(match completion.loan {
                    Some(loan) => Arrived::Lent(self.returned.lent(buffer, loan)),
                    None => Arrived::Copied(self.returned.received(buffer, completion.bytes as usize)),
                }),
                status => {
                    self.ring.put(buffer);
                    failed = Some(status);
                }
            }
        }
        if let Some(status) = failed
            && self.heard_end().is_none()
        {
            let reason = "what was to be received was not".into();
            self.failed = Some(Ended { queue_pair: self.queue_pair, status, reason });
        }
    }

    /// That the connection has ended, and why, if that is known by now.
    fn heard_end(&mut self) -> Option<LinkError> {
        let Ended { status, reason, .. } = self.failed.as_ref().or(self.endpoint.ended(self.queue_pair))?;
        Some(LinkError::Disconnected { status: *status, reason: reason.clone() })
    }

    fn post_receives(&mut self) {
        while let Some(buffer) = self.returned.take() {
            self.ring.put(buffer);
        }
        // Where the connection has ended, that is reported by who waits for a message.
        let _ = self.ring.post(self.endpoint.queue());
    }

    fn transmittable(&mut self, bytes: Vec<u8>) -> Result<View, LinkError> {
        if bytes.len() > self.options.transmit_bytes {
            // One large value: rare, so the provider may copy it.
            return Ok(View::foreign(Arc::new(bytes)));
        }
        let mut deadline = Deadline::within(self.options.timeout);
        loop {
            if let Some(mut buffer) = self.transmit.take() {
                buffer[..bytes.len()].copy_from_slice(&bytes);
                return Ok(self.transmit.view(buffer, bytes.len()));
            }
            self.progress(&mut deadline)?;
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.endpoint.close(self.queue_pair);
    }
}

/// What was lent is not what it was, and the connection's end has not been heard of yet.
fn taken_back() -> LinkError {
    let reason = "it took back what it had lent".into();
    LinkError::Disconnected { status: Status::Flushed, reason }
}

/// Messages received before the first of them is looked at: few, so that it is still in the nearest
/// cache.
const POLL_BATCH: usize = 2;
/// How often a waiting client looks for buffers that came back.
const LOOK: Duration = Duration::from_millis(500);
