//! The connection under a client: requests out, replies and other messages in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Pool, Segment, View};
use overside_verbs::{
    Access, Clock, CompletionQueue, Memory, MemoryRegion, Opcode, PortEvent, PortOptions, ProtectionDomain, Provider,
    QueuePair, Status, WorkCompletion, WorkRequest,
};

use super::LinkError;
use super::receive::{Received, Ring};
use crate::envelope::{self, Kind};
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
    /// Bytes of a transmit buffer. A longer request is sent from the heap, which a provider may copy.
    pub transmit_bytes: usize,
    /// Transmit buffers: requests in flight.
    pub transmits: usize,
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
        }
    }
}

/// One queue pair and its buffers.
#[derive(Debug)]
pub struct Link {
    provider: Arc<dyn Provider>,
    clock: Arc<dyn Clock>,
    queue: CompletionQueue,
    queue_pair: QueuePair,
    ring: Ring,
    spare: Vec<(u64, Buffer)>,
    /// The one about to be posted.
    next: Vec<(u64, Buffer)>,
    /// Buffers that are posted; none left means that the caller holds all.
    posted: usize,
    transmit: Pool,
    regions: Vec<MemoryRegion>,
    arrived: VecDeque<Received>,
    done: Vec<WorkCompletion>,
    assembly: Assembly,
    number: u32,
    options: LinkOptions,
    /// How it ended, and why.
    ended: Option<(Status, String)>,
}

impl Link {
    /// Connects to the provider's part of an address.
    ///
    /// # Errors
    /// When nobody listens there, or the system has no room.
    pub fn connect(provider: Arc<dyn Provider>, name: &str, options: LinkOptions) -> Result<Link, LinkError> {
        let domain = provider.allocate_domain()?;
        let port = PortOptions { depth: options.buffers.max(32), shared_receives: 0, ..PortOptions::default() };
        let mut queue = CompletionQueue::new(provider.open_port(&domain, port)?);
        queue.set_batch(POLL_BATCH);
        let link = provider.connect(&domain, name, options.timeout)?;
        let queue_pair = queue.attach(link)?;
        let bytes = options.transmit_bytes.next_multiple_of(64).max(64);
        let transmit = Segment::shared(bytes * options.transmits.max(1)).and_then(|s| Pool::new(s, bytes))?;
        let ring = Ring::new(options.buffers, options.buffer_bytes)?;
        let regions = [transmit.segment(), ring.segment()].map(|segment| register(&*provider, &domain, segment));
        let regions = regions.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(Link {
            clock: provider.clock(),
            provider,
            queue,
            queue_pair,
            ring,
            spare: Vec::new(),
            next: Vec::new(),
            posted: 0,
            transmit,
            regions,
            arrived: VecDeque::new(),
            done: Vec::new(),
            assembly: Assembly::default(),
            number: 0,
            options: LinkOptions { posted: options.posted.max(1), transmit_bytes: bytes, ..options },
            ended: None,
        })
    }

    /// How long a server may take.
    pub fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Where its time comes from.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Sends a request, whose body `body` appends; its number.
    ///
    /// # Errors
    /// When the connection has ended, or the server took nothing for too long.
    pub fn send(&mut self, body: impl FnOnce(&mut Vec<u8>)) -> Result<u32, LinkError> {
        self.number = self.number.wrapping_add(1);
        let view = self.transmittable(envelope::message(self.number, body))?;
        let mut batch = VecDeque::from([WorkRequest::send(0, view)]);
        let mut patience = Patience::default();
        loop {
            if let Err(error) = self.queue.post(self.queue_pair, &mut batch) {
                // The end may have come unnoticed so far, and its reason with it.
                return Err(self.heard_end().unwrap_or(error.into()));
            }
            if batch.is_empty() {
                return Ok(self.number);
            }
            self.progress(&mut patience)?;
        }
    }

    /// The next message, which must be the reply to `number`. Its body is
    /// [`Received::body`].
    ///
    /// # Errors
    /// As [`message`](Self::message), and when it is anything else.
    pub fn reply(&mut self, number: u32) -> Result<Received, LinkError> {
        let message = self.message()?;
        if envelope::kind(message.as_ref()) != Kind::Control {
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
        let mut patience = Patience::default();
        loop {
            if let Some(message) = self.arrived.pop_front() {
                if envelope::kind(message.as_ref()) != Kind::Part {
                    return Ok(message);
                }
                if let Some(whole) = self.assembly.add(message.as_ref())? {
                    return Ok(Received::assembled(whole));
                }
                continue;
            }
            self.progress(&mut patience)?;
        }
    }

    /// Polls, and waits where nothing comes; an error past the deadline or the connection's end.
    fn progress(&mut self, patience: &mut Patience) -> Result<(), LinkError> {
        self.post_receives();
        let mut found = self.queue.poll(&mut self.done);
        if found == 0 {
            let left = self.options.timeout.saturating_sub(patience.waited(&*self.clock));
            found = self.queue.poll_wait(&mut self.done, Some(left.min(LOOK)))?;
        }
        let mut failed = None;
        for completion in self.done.drain(..) {
            let (Opcode::Receive | Opcode::ReceiveImmediate, Some(buffer)) = (completion.opcode, completion.buffer)
            else {
                continue;
            };
            self.posted = self.posted.saturating_sub(1);
            match completion.status {
                Status::Success => self.arrived.push_back(self.ring.received(buffer, completion.bytes as usize)),
                status => {
                    drop(self.ring.received(buffer, 0));
                    failed = Some(status);
                }
            }
        }
        if let Some(status) = failed
            && self.heard_end().is_none()
        {
            self.ended = Some((status, "what was to be received was not".into()));
        }
        // While messages come, nothing else is news.
        if found > 0 || !self.arrived.is_empty() {
            return Ok(());
        }
        if let Some(end) = self.heard_end() {
            return Err(end);
        }
        if patience.waited(&*self.clock) >= self.options.timeout {
            let held = self.posted == 0;
            return Err(if held { LinkError::BuffersHeld } else { LinkError::TimedOut(self.options.timeout) });
        }
        Ok(())
    }

    /// That the connection has ended, and why, if that is known by now.
    fn heard_end(&mut self) -> Option<LinkError> {
        while let Some(PortEvent::Disconnected { status, reason, .. }) = self.queue.next_event() {
            self.ended.get_or_insert((status, reason));
        }
        self.ended.clone().map(|(status, reason)| LinkError::Disconnected { status, reason })
    }

    /// Posts what came back last first: it is still in the cache.
    fn post_receives(&mut self) {
        self.ring.collect(&mut self.spare);
        while self.posted < self.options.posted && self.ended.is_none() {
            let Some(last) = self.spare.pop() else { return };
            self.next.push(last);
            let posted = self.queue.post_receive(Some(self.queue_pair), &mut self.next).unwrap_or(0);
            self.posted += posted;
            if posted == 0 {
                self.spare.append(&mut self.next);
                return;
            }
        }
    }

    fn transmittable(&mut self, bytes: Vec<u8>) -> Result<View, LinkError> {
        if bytes.len() > self.options.transmit_bytes {
            // One large value: rare, so the provider may copy it.
            return Ok(View::foreign(Arc::new(bytes)));
        }
        let mut patience = Patience::default();
        loop {
            if let Some(mut buffer) = self.transmit.take() {
                buffer[..bytes.len()].copy_from_slice(&bytes);
                return Ok(self.transmit.view(buffer, bytes.len()));
            }
            self.progress(&mut patience)?;
        }
    }
}

/// Since when a call waits. A clock costs as much as a poll, so it is looked at only when there is
/// nothing to do.
#[derive(Debug, Default)]
struct Patience {
    start: Option<Instant>,
}

impl Patience {
    fn waited(&mut self, clock: &dyn Clock) -> Duration {
        let now = clock.now();
        now.saturating_duration_since(*self.start.get_or_insert(now))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.queue.close(self.queue_pair);
        for region in self.regions.drain(..) {
            let _ = self.provider.deregister(region);
        }
    }
}

fn register(
    provider: &dyn Provider,
    domain: &ProtectionDomain,
    segment: &Arc<Segment>,
) -> Result<MemoryRegion, LinkError> {
    Ok(provider.register(domain, &Memory::Segment(segment.clone()), Access::LOCAL)?)
}

/// Messages received before the first of them is looked at: few, so that it is still in the nearest
/// cache.
const POLL_BATCH: usize = 2;
/// How often a waiting client looks at its clock.
const LOOK: Duration = Duration::from_millis(500);
