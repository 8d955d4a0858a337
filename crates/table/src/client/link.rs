//! The connection under a client: requests out, replies and blocks in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Pool, Segment, View};
use overside_verbs::{
    Access, CompletionQueue, Memory, MemoryRegion, Opcode, PortEvent, PortOptions, ProtectionDomain, Provider,
    QueuePair, Status, WorkCompletion, WorkRequest,
};

use super::batch::RowBatch;
use super::receive::{Received, Ring};
use super::{ClientError, ClientOptions};
use crate::wire::{self, Applied, Assembly, FAILED_MAX, Kind, PutMode, Reply, Request};

/// One queue pair and its buffers.
#[derive(Debug)]
pub(crate) struct Link {
    provider: Arc<dyn Provider>,
    queue: CompletionQueue,
    queue_pair: QueuePair,
    ring: Ring,
    spare: Vec<(u64, overside_memory::Buffer)>,
    /// The one about to be posted.
    next: Vec<(u64, overside_memory::Buffer)>,
    /// Buffers that are posted; none left means that the caller holds all.
    posted: usize,
    posted_max: usize,
    transmit: Pool,
    regions: Vec<MemoryRegion>,
    arrived: VecDeque<Received>,
    done: Vec<WorkCompletion>,
    assembly: Assembly,
    number: u32,
    timeout: Duration,
    server_pid: u32,
    /// How it ended, and why.
    ended: Option<(Status, String)>,
}

impl Link {
    pub(crate) fn connect(
        provider: Arc<dyn Provider>,
        name: &str,
        options: ClientOptions,
    ) -> Result<Link, ClientError> {
        let domain = provider.allocate_domain()?;
        let port = PortOptions { depth: options.blocks.max(32), shared_receives: 0, ..PortOptions::default() };
        let mut queue = CompletionQueue::new(provider.open_port(&domain, port)?);
        queue.set_batch(POLL_BATCH);
        let link = provider.connect(&domain, name, options.timeout)?;
        let queue_pair = queue.attach(link)?;
        let transmit = Segment::shared(TRANSMIT_BYTES * TRANSMITS).and_then(|s| Pool::new(s, TRANSMIT_BYTES))?;
        let ring = Ring::new(options.blocks, options.block_bytes)?;
        let regions = [transmit.segment(), ring.segment()].map(|segment| register(&*provider, &domain, segment));
        let regions = regions.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut link = Link {
            provider,
            queue,
            queue_pair,
            ring,
            spare: Vec::new(),
            next: Vec::new(),
            posted: 0,
            posted_max: options.posted.unwrap_or(POSTED_MAX).max(1),
            transmit,
            regions,
            arrived: VecDeque::new(),
            done: Vec::new(),
            assembly: Assembly::default(),
            number: 0,
            timeout: options.timeout,
            server_pid: 0,
            ended: None,
        };
        let hello = Request::Hello { version: wire::VERSION, block_bytes: options.block_bytes as u32 };
        match link.call(&hello)? {
            Reply::Hello { version: wire::VERSION, pid, .. } => link.server_pid = pid,
            other => return Err(ClientError::unexpected(&other)),
        }
        Ok(link)
    }

    /// How long a server may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn server_pid(&self) -> u32 {
        self.server_pid
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn call(&mut self, request: &Request<'_>) -> Result<Reply, ClientError> {
        let number = self.send(request)?;
        self.reply(number)
    }

    /// Sends a request; its number.
    pub(crate) fn send(&mut self, request: &Request<'_>) -> Result<u32, ClientError> {
        self.number = self.number.wrapping_add(1);
        let bytes = wire::encode(self.number, request);
        let view = self.transmittable(bytes)?;
        let mut batch = VecDeque::from([WorkRequest::send(0, view)]);
        let mut patience = Patience::default();
        loop {
            if let Err(error) = self.queue.post(self.queue_pair, &mut batch) {
                // Who was told only now that it has ended has not heard why.
                return Err(self.heard_end().unwrap_or(error.into()));
            }
            if batch.is_empty() {
                return Ok(self.number);
            }
            self.progress(&mut patience)?;
        }
    }

    /// The next message, which must be the reply to `number`.
    pub(crate) fn reply(&mut self, number: u32) -> Result<Reply, ClientError> {
        let message = self.message()?;
        let bytes = message.as_ref();
        if wire::kind(bytes) != Kind::Control {
            return Err(ClientError::Unexpected("rows".into()));
        }
        let (answered, reply) = wire::decode::<Reply>(bytes)?;
        if answered != number {
            return Err(ClientError::Unexpected(format!("the reply to request {answered} instead of {number}")));
        }
        match reply {
            Reply::Fault(fault) => Err(ClientError::Refused { code: fault.code, text: fault.text }),
            reply => Ok(reply),
        }
    }

    /// The next message, whole.
    pub(crate) fn message(&mut self) -> Result<Received, ClientError> {
        let mut patience = Patience::default();
        loop {
            if let Some(message) = self.arrived.pop_front() {
                if wire::kind(message.as_ref()) != Kind::Part {
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

    /// Puts a batch, a few requests ahead of their replies.
    pub(crate) fn put(&mut self, table: u32, mode: PutMode, batch: &RowBatch) -> Result<Applied, ClientError> {
        let mut total = Applied::default();
        let mut waiting = VecDeque::new();
        let mut requests = batch.requests();
        loop {
            if waiting.len() < PUTS_AHEAD
                && let Some((rows, range)) = requests.next()
            {
                let sent = self.send(&Request::Put { table, mode, rows });
                waiting.push_back((sent.map_err(|e| partly(e, &total, batch))?, range));
                continue;
            }
            let Some((number, range)) = waiting.pop_front() else { return Ok(total) };
            match self.reply(number) {
                Ok(Reply::Applied(applied)) if is_of(&applied, range.end - range.start) => {
                    add(&mut total, applied, range.start);
                }
                Ok(other) => return Err(ClientError::unexpected(&other)),
                Err(error) => return Err(partly(error, &total, batch)),
            }
        }
    }

    /// Polls, and waits where nothing comes; an error past the deadline or the connection's end.
    fn progress(&mut self, patience: &mut Patience) -> Result<(), ClientError> {
        self.post_receives();
        let mut found = self.queue.poll(&mut self.done);
        if found == 0 {
            let left = self.timeout.saturating_sub(patience.waited());
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
        if patience.waited() >= self.timeout {
            return Err(if self.posted == 0 { ClientError::BlocksHeld } else { ClientError::TimedOut(self.timeout) });
        }
        Ok(())
    }

    /// That the connection has ended, and why, if that is known by now.
    fn heard_end(&mut self) -> Option<ClientError> {
        while let Some(PortEvent::Disconnected { status, reason, .. }) = self.queue.next_event() {
            self.ended.get_or_insert((status, reason));
        }
        self.ended.clone().map(|(status, reason)| ClientError::Disconnected { status, reason })
    }

    /// Posts what came back last first: it is still in the cache.
    fn post_receives(&mut self) {
        self.ring.collect(&mut self.spare);
        while self.posted < self.posted_max && self.ended.is_none() {
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

    fn transmittable(&mut self, bytes: Vec<u8>) -> Result<View, ClientError> {
        if bytes.len() > TRANSMIT_BYTES {
            // One large value: rare, so the provider may push it.
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

/// Since when somebody waits. A clock costs as much as a poll, so it is looked at only when there is nothing to do.
#[derive(Debug, Default)]
struct Patience {
    start: Option<Instant>,
}

impl Patience {
    fn waited(&mut self) -> Duration {
        self.start.get_or_insert_with(Instant::now).elapsed()
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
) -> Result<MemoryRegion, ClientError> {
    Ok(provider.register(domain, &Memory::Segment(segment.clone()), Access::LOCAL)?)
}

/// Whether a batch of so many rows can have had this outcome.
fn is_of(applied: &Applied, rows: u64) -> bool {
    let named = applied.failed.iter().all(|(at, _)| *at < applied.rows);
    u64::from(applied.rows) <= rows && applied.applied <= applied.rows && applied.replaced <= applied.applied && named
}

fn add(total: &mut Applied, part: Applied, first: u64) {
    total.rows += part.rows;
    total.applied += part.applied;
    total.replaced += part.replaced;
    let room = FAILED_MAX.saturating_sub(total.failed.len());
    total.failed.extend(part.failed.into_iter().take(room).map(|(at, code)| (first as u32 + at, code)));
}

fn partly(error: ClientError, total: &Applied, batch: &RowBatch) -> ClientError {
    match error {
        ClientError::Disconnected { .. } if total.rows > 0 => {
            ClientError::Partly { acknowledged: u64::from(total.rows), rows: batch.len() as u64 }
        }
        other => other,
    }
}

/// Requests of a batch that wait for their replies at once.
const PUTS_AHEAD: usize = 4;
/// Receives posted at once, unless the caller knows better. Few, so that the same few buffers stay in the cache.
const POSTED_MAX: usize = 8;
/// A transmit buffer holds a batch's request.
const TRANSMIT_BYTES: usize = 64 << 10;
const TRANSMITS: usize = 6;
/// Messages received before the first of them is looked at: few, so that it is still in the nearest cache.
const POLL_BATCH: usize = 2;
/// How often a waiting client looks at its clock.
const LOOK: Duration = Duration::from_millis(500);
