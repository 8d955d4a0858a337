//! Messages between two programs: declare what to send, receive whole messages.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::{Buffer, Segment};
use overside_planner::{Profile, Terms};
use overside_shape::Shape;
use overside_transfer::{Bundle, DeclaredSend, Region};
use overside_verbs::{Link, Listener, QueuePair, Status, VerbsError};

use crate::declared::Declared;
use crate::endpoint::{Endpoint, LOOK};
use crate::{Address, Error};

/// Waits for channels.
#[derive(Debug)]
pub struct Gate {
    provider: Arc<dyn overside_verbs::Provider>,
    domain: overside_verbs::ProtectionDomain,
    listener: Box<dyn Listener>,
    address: Address,
}

/// A connection that carries messages both ways.
#[derive(Debug)]
pub struct Channel {
    endpoint: Endpoint,
    queue_pair: QueuePair,
    /// The oldest first.
    arrived: VecDeque<Arrived>,
}

/// A received message; hand it back with [`Channel::recycle`] to receive into its buffer again.
#[derive(Debug)]
pub struct Message {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

/// Messages that arrived together, to be looked at one after another without a step for each; hand them back with
/// [`Channel::recycle_batch`].
#[derive(Debug)]
pub struct Batch {
    buffer: Buffer,
    len: usize,
    immediate: Option<u32>,
}

/// What arrived and was not given out.
#[derive(Debug)]
enum Arrived {
    /// Untouched.
    Whole(Batch),
    /// Its messages are taken one by one; what is left of them, the next one first.
    Opened(Arc<Buffer>, VecDeque<Range<usize>>),
}

impl std::ops::Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl Batch {
    /// The messages, in order.
    pub fn messages(&self) -> Bundle<'_> {
        // Checked when it arrived.
        Bundle::new(self.bytes(), self.immediate).unwrap_or_default()
    }

    fn borders(&self) -> VecDeque<Range<usize>> {
        let start = self.buffer.as_ptr() as usize;
        let place = |message: &[u8]| {
            let at = message.as_ptr() as usize - start;
            at..at + message.len()
        };
        self.messages().map(place).collect()
    }

    /// Their bytes as they arrived: of messages that are all of one length, one after another.
    pub fn bytes(&self) -> &[u8] {
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
                let (provider, domain) = (self.provider.clone(), self.domain.clone());
                return Channel::over(Endpoint::over(provider, domain, self.address.transport_name(), TRANSMIT)?, link);
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
        let endpoint = Endpoint::open(&address, TRANSMIT)?;
        let link = endpoint.provider.connect(&endpoint.domain, address.name(), CONNECT_TIMEOUT)?;
        Channel::over(endpoint, link)
    }

    fn over(mut endpoint: Endpoint, link: Link) -> Result<Channel, Error> {
        let queue_pair = endpoint.queue.attach(link)?;
        let buffers = Segment::private(RECEIVE_BYTES * RECEIVES).map_err(VerbsError::from)?.carve(RECEIVE_BYTES);
        if let Some(first) = buffers.first() {
            endpoint.register(first.segment())?;
        }
        endpoint.queue.post_receive(Some(queue_pair), &mut buffers.into_iter().map(|b| (0, b)).collect())?;
        Ok(Channel { endpoint, queue_pair, arrived: VecDeque::new() })
    }

    /// Registered memory to send from; zeroed.
    ///
    /// # Errors
    /// When the memory is not there.
    pub fn allocate(&mut self, bytes: usize) -> Result<Buffer, Error> {
        self.endpoint.allocate(bytes)
    }

    /// The prices that plans are made with: the profile that `overside calibrate` stored for this device, or figures
    /// measured by the first call of this or of [`declare`](Self::declare).
    ///
    /// # Errors
    /// When there is no room to measure in.
    pub fn profile(&self) -> Result<&Profile, Error> {
        Ok(self.endpoint.planner()?.profile())
    }

    /// Plans the sending of a shape of `buffer`, whose messages arrive one by one, at the prices of this device, and where they are
    /// known of two distances, of how far the peer's processor was found to be while something was sent.
    ///
    /// # Errors
    /// When the shape does not lie in the buffer, a message is longer than [`RECEIVE_BYTES`], or there is no room
    /// to measure in.
    pub fn declare(&self, buffer: &Arc<Buffer>, shape: &Shape) -> Result<Declared, Error> {
        self.declare_with(buffer, &Arc::new(shape.clone()), &Terms::default())
    }

    /// As [`declare`](Self::declare), for another goal or in a way of the caller's choice. A shape that is declared
    /// again and again keeps its plan, and is known at once when it is the same `Arc`.
    ///
    /// # Errors
    /// As [`declare`](Self::declare); and when the forced way cannot carry the shape.
    pub fn declare_with(&self, buffer: &Arc<Buffer>, shape: &Arc<Shape>, terms: &Terms) -> Result<Declared, Error> {
        let request_bytes_max = terms.request_bytes_max.min(RECEIVE_BYTES as u64);
        let terms = Terms { request_bytes_max, ..*terms };
        let region = Region::new(buffer, shape).map_err(VerbsError::from)?;
        Ok(Declared { plan: self.endpoint.plan(shape, &terms)?, region, terms })
    }

    /// Sends what was declared in the way that was planned. The memory stays untouched and held until its
    /// messages have arrived; this call does not wait for that.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn send(&mut self, declared: Declared) -> Result<(), Error> {
        let Declared { region, plan, terms } = declared;
        let any = region.shape().messages().count() > 0;
        let mut send = DeclaredSend::new(0, region, Some(&plan), &self.endpoint.capabilities, terms.request_bytes_max)
            .map_err(VerbsError::from)?;
        let pool = self.endpoint.pool()?;
        self.endpoint.look_how_far(self.queue_pair);
        self.endpoint.unsent += usize::from(any);
        loop {
            match send.post(&mut self.endpoint.queue, self.queue_pair, &pool) {
                Ok(true) => return Ok(()),
                Ok(false) => self.endpoint.progress(LOOK)?,
                Err(error) => return Err(self.endpoint.refused(error)),
            }
        }
    }

    /// Waits until everything sent has arrived at the peer's provider.
    ///
    /// # Errors
    /// When the connection ends first.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.endpoint.flush()
    }

    /// The next message.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`], or [`VerbsError::Ended`] when the connection has ended or the peer does not keep to
    /// the format of [declared messages](overside_verbs::declared::bundle).
    pub fn receive(&mut self, timeout: Duration) -> Result<Message, Error> {
        loop {
            self.fill(timeout)?;
            let (buffer, mut left) = match self.arrived.pop_front() {
                Some(Arrived::Opened(buffer, left)) => (buffer, left),
                Some(Arrived::Whole(batch)) => {
                    let borders = batch.borders();
                    if borders.is_empty() {
                        self.recycle_batch(batch)?;
                        continue;
                    }
                    (Arc::new(batch.buffer), borders)
                }
                None => continue,
            };
            let Some(range) = left.pop_front() else { continue };
            if !left.is_empty() {
                self.arrived.push_front(Arrived::Opened(buffer.clone(), left));
            }
            return Ok(Message { buffer, range });
        }
    }

    /// The messages that arrived together next.
    ///
    /// # Errors
    /// As [`receive`](Self::receive); and when single ones of them were taken already: take the others likewise.
    pub fn receive_batch(&mut self, timeout: Duration) -> Result<Batch, Error> {
        self.fill(timeout)?;
        match self.arrived.pop_front() {
            Some(Arrived::Whole(batch)) => Ok(batch),
            opened => {
                self.arrived.extend(opened);
                self.arrived.rotate_right(1);
                Err(VerbsError::Unsupported("receiving a batch of which single messages were taken").into())
            }
        }
    }

    /// Lets a message's buffer be received into again, once all messages that lie in it are handed back.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn recycle(&mut self, message: Message) -> Result<(), Error> {
        match Arc::try_unwrap(message.buffer) {
            Ok(buffer) => self.repost(buffer),
            Err(_) => Ok(()),
        }
    }

    /// Lets a batch's buffer be received into again.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn recycle_batch(&mut self, batch: Batch) -> Result<(), Error> {
        self.repost(batch.buffer)
    }

    fn repost(&mut self, buffer: Buffer) -> Result<(), Error> {
        self.endpoint.queue.post_receive(Some(self.queue_pair), &mut vec![(0, buffer)])?;
        Ok(())
    }

    /// Waits until there is a bundle.
    fn fill(&mut self, timeout: Duration) -> Result<(), Error> {
        let start = Instant::now();
        while self.arrived.is_empty() {
            if self.endpoint.received.is_empty() {
                if start.elapsed() >= timeout {
                    return Err(VerbsError::TimedOut(timeout).into());
                }
                self.endpoint.progress(timeout.saturating_sub(start.elapsed()).min(LOOK))?;
            }
            for done in self.endpoint.received.drain(..) {
                let Some(buffer) = done.buffer else { continue };
                let batch = Batch { buffer, len: done.bytes as usize, immediate: done.immediate };
                if Bundle::new(batch.bytes(), batch.immediate).is_err() {
                    self.endpoint.queue.close(self.queue_pair);
                    self.endpoint.ended = Some(Status::Malformed);
                    return Err(VerbsError::ended(Status::Malformed).into());
                }
                self.arrived.push_back(Arrived::Whole(batch));
            }
        }
        Ok(())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.endpoint.queue.close(self.queue_pair);
    }
}

/// Longest message of a channel.
pub const RECEIVE_BYTES: usize = 1 << 20;
const RECEIVES: usize = 16;
/// Bytes of a transmit buffer, and how many there are.
const TRANSMIT: (usize, usize) = (RECEIVE_BYTES, 4);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
