//! Messages between two programs: declare what to send, receive whole messages.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Pool, Segment};
use overside_planner::{Goal, Profile};
use overside_shape::Shape;
use overside_verbs::{
    Access, Capabilities, CompletionQueue, Link, Listener, Memory, MemoryRegion, Opcode, PortEvent, PortOptions,
    ProtectionDomain, Provider, QueuePair, Status, VerbsError, WorkCompletion, WorkRequest,
};

use crate::declared::{Declared, Way};
use crate::{Address, Error};

/// Waits for channels.
#[derive(Debug)]
pub struct Gate {
    provider: Arc<dyn Provider>,
    domain: ProtectionDomain,
    listener: Box<dyn Listener>,
    address: Address,
}

/// A connection that carries messages both ways.
#[derive(Debug)]
pub struct Channel {
    provider: Arc<dyn Provider>,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    queue_pair: QueuePair,
    capabilities: Capabilities,
    /// Calibrated when the first region is declared: who only receives needs no prices.
    profile: OnceLock<Profile>,
    regions: Vec<MemoryRegion>,
    /// Transmit buffers for what is copied; made with the first.
    transmit: Option<Pool>,
    arrived: VecDeque<Message>,
    done: Vec<WorkCompletion>,
    unsent: usize,
    ended: Option<Status>,
}

/// A received message; hand it back with [`Channel::recycle`] to receive into its buffer again.
#[derive(Debug)]
pub struct Message {
    buffer: Buffer,
    len: usize,
}

impl std::ops::Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl Gate {
    /// Listens at an address.
    ///
    /// # Errors
    /// When the address is malformed or taken.
    pub fn listen(address: &str) -> Result<Gate, Error> {
        let address: Address = address.parse()?;
        let provider = address.provider()?;
        let domain = provider.allocate_domain()?;
        let listener = provider.listen(&domain, address.name())?;
        Ok(Gate { provider, domain, listener, address })
    }

    /// The next channel.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`] when none comes within `timeout`.
    pub fn accept(&mut self, timeout: Duration) -> Result<Channel, Error> {
        let end = Instant::now() + timeout;
        while Instant::now() < end {
            if let Some(link) = self.listener.accept(end.saturating_duration_since(Instant::now()))? {
                return Channel::over(self.provider.clone(), self.domain.clone(), |_, _| Ok(link));
            }
        }
        Err(VerbsError::TimedOut(timeout).into())
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Channel {
    /// Connects to a gate.
    ///
    /// # Errors
    /// When the address is malformed or nobody listens there.
    pub fn connect(address: &str) -> Result<Channel, Error> {
        let address: Address = address.parse()?;
        let provider = address.provider()?;
        let domain = provider.allocate_domain()?;
        Channel::over(provider, domain, |provider, domain| provider.connect(domain, address.name(), CONNECT_TIMEOUT))
    }

    fn over(
        provider: Arc<dyn Provider>,
        domain: ProtectionDomain,
        link: impl FnOnce(&dyn Provider, &ProtectionDomain) -> Result<Link, VerbsError>,
    ) -> Result<Channel, Error> {
        let port = PortOptions { shared_receives: 0, ..PortOptions::default() };
        let mut queue = CompletionQueue::new(provider.open_port(&domain, port)?);
        let queue_pair = queue.attach(link(&*provider, &domain)?)?;
        let buffers = Segment::private(RECEIVE_BYTES * RECEIVES).map_err(VerbsError::from)?.carve(RECEIVE_BYTES);
        let received: Option<Memory> = buffers.first().map(|buffer| Memory::Segment(buffer.segment().clone()));
        let regions = received
            .iter()
            .map(|memory| provider.register(&domain, memory, Access::LOCAL))
            .collect::<Result<_, _>>()?;
        queue.post_receive(Some(queue_pair), &mut buffers.into_iter().map(|b| (0, b)).collect())?;
        let capabilities = provider.capabilities();
        Ok(Channel {
            provider,
            domain,
            queue,
            queue_pair,
            capabilities,
            profile: OnceLock::new(),
            regions,
            transmit: None,
            arrived: VecDeque::new(),
            done: Vec::new(),
            unsent: 0,
            ended: None,
        })
    }

    /// Registered memory to send from; zeroed.
    ///
    /// # Errors
    /// When the memory is not there.
    pub fn allocate(&mut self, bytes: usize) -> Result<Buffer, Error> {
        let mut buffers = Segment::shared(bytes).map_err(VerbsError::from)?.carve(bytes);
        let Some(buffer) = buffers.pop() else { return Err(VerbsError::Unsupported("an empty buffer").into()) };
        let memory = Memory::Segment(buffer.segment().clone());
        self.regions.push(self.provider.register(&self.domain, &memory, Access::LOCAL)?);
        Ok(buffer)
    }

    /// Plans the sending of a shape of `buffer`, at the prices of this device, which the first call measures.
    ///
    /// # Errors
    /// When the shape does not lie in the buffer, or there is no room to measure in.
    pub fn declare(&self, buffer: &Arc<Buffer>, shape: &Shape) -> Result<Declared, Error> {
        let profile = match self.profile.get() {
            Some(profile) => profile,
            None => {
                let measured = self.provider.calibrate()?;
                self.profile.get_or_init(|| measured)
            }
        };
        let declared = Declared::new(buffer, shape, &self.capabilities, profile, Goal::Throughput);
        Ok(declared.map_err(VerbsError::from)?)
    }

    /// Sends what was declared in the way that was planned. The memory stays untouched and held until the
    /// message has arrived; this call does not wait for that.
    ///
    /// # Errors
    /// When the connection has ended or the message is longer than [`RECEIVE_BYTES`].
    pub fn send(&mut self, declared: Declared) -> Result<(), Error> {
        let bytes = declared.view.bytes();
        if bytes > RECEIVE_BYTES as u64 {
            return Err(VerbsError::Limit { what: "a message", value: bytes, max: RECEIVE_BYTES as u64 }.into());
        }
        let request = match declared.way() {
            Way::Gather => WorkRequest::send(0, declared.view),
            Way::Inline => {
                let mut packed = vec![0; bytes as usize];
                declared.view.copy_to(&mut packed);
                WorkRequest::send_inline(0, &packed)
            }
            Way::Copy => {
                let (pool, mut buffer) = self.transmit_buffer()?;
                let len = declared.view.copy_to(&mut buffer);
                WorkRequest::send(0, pool.view(buffer, len))
            }
        };
        let mut batch = VecDeque::from([request]);
        loop {
            let posted = self.queue.post(self.queue_pair, &mut batch)?;
            self.unsent += posted;
            if batch.is_empty() {
                return Ok(());
            }
            self.progress(LOOK)?;
        }
    }

    /// Waits until everything sent has arrived at the peer's provider.
    ///
    /// # Errors
    /// When the connection ends first.
    pub fn flush(&mut self) -> Result<(), Error> {
        while self.unsent > 0 {
            self.progress(LOOK)?;
        }
        Ok(())
    }

    /// The next message.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`], or [`VerbsError::Closed`] when the connection has ended.
    pub fn receive(&mut self, timeout: Duration) -> Result<Message, Error> {
        let start = Instant::now();
        loop {
            if let Some(message) = self.arrived.pop_front() {
                return Ok(message);
            }
            if start.elapsed() >= timeout {
                return Err(VerbsError::TimedOut(timeout).into());
            }
            self.progress(timeout.saturating_sub(start.elapsed()).min(LOOK))?;
        }
    }

    /// Lets a message's buffer be received into again.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn recycle(&mut self, message: Message) -> Result<(), Error> {
        self.queue.post_receive(Some(self.queue_pair), &mut vec![(0, message.buffer)])?;
        Ok(())
    }

    /// A free transmit buffer; waits for one that is in flight.
    fn transmit_buffer(&mut self) -> Result<(Pool, Buffer), Error> {
        let pool = match &self.transmit {
            Some(pool) => pool.clone(),
            None => {
                let segment = Segment::shared(RECEIVE_BYTES * TRANSMITS).map_err(VerbsError::from)?;
                let pool = Pool::new(segment, RECEIVE_BYTES).map_err(VerbsError::from)?;
                let memory = Memory::Segment(pool.segment().clone());
                self.regions.push(self.provider.register(&self.domain, &memory, Access::LOCAL)?);
                self.transmit.insert(pool).clone()
            }
        };
        loop {
            if let Some(buffer) = pool.take() {
                return Ok((pool, buffer));
            }
            self.progress(LOOK)?;
        }
    }

    fn progress(&mut self, timeout: Duration) -> Result<(), Error> {
        if self.ended.is_some() {
            return Err(VerbsError::Closed.into());
        }
        self.queue.poll_wait(&mut self.done, Some(timeout))?;
        for done in self.done.drain(..) {
            match (done.opcode, done.buffer) {
                (Opcode::Receive, Some(buffer)) if done.status == Status::Success => {
                    self.arrived.push_back(Message { buffer, len: done.bytes as usize });
                }
                (Opcode::Send, _) if done.status == Status::Success => self.unsent = self.unsent.saturating_sub(1),
                _ => self.ended = Some(done.status),
            }
        }
        while let Some(PortEvent::Disconnected { status, .. }) = self.queue.next_event() {
            // What had arrived before the end is still delivered.
            if self.arrived.is_empty() {
                self.ended = Some(status);
            }
        }
        Ok(())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.queue.close(self.queue_pair);
        for region in self.regions.drain(..) {
            let _ = self.provider.deregister(region);
        }
    }
}

/// Longest message of a channel.
pub const RECEIVE_BYTES: usize = 1 << 20;
const RECEIVES: usize = 16;
const TRANSMITS: usize = 4;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(500);
