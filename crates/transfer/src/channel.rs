//! Messages between two programs: declare what to send, receive whole messages.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::time::Duration;

use overside_memory::Buffer;
use overside_shape::Shape;
use overside_verbs::declared::{Bundle, Region};
use overside_verbs::{Link, Peer, ProtectionDomain, Provider, VerbsError};

use crate::deadline::Deadline;
use crate::declared::Declared;
use crate::error::{DeclareError, Error};
use crate::options::{Buffers, Options};
use crate::ring::{Ring, RingOptions};
use crate::send::DeclaredSend;
use crate::sending::{Rest, Sending};

/// A connection that carries messages both ways.
#[derive(Debug)]
pub struct Channel {
    sending: Sending,
    ring: Ring,
    peer: Peer,
    /// The oldest first.
    arrived: VecDeque<Arrived>,
}

/// A received message; hand it back with [`Channel::recycle`] to receive into its buffer again.
#[derive(Debug)]
pub struct Message {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

/// Messages that arrived together, to be looked at one after another without a step for each; hand
/// them back with [`Channel::recycle_batch`].
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

impl Channel {
    /// Connects to whoever listens at the provider's part of an address.
    ///
    /// # Errors
    /// When nobody listens there or the peer is not who it must be; [`VerbsError::TimedOut`] at the
    /// deadline; [`Error::Field`] for buffers that cannot be.
    pub fn connect(
        provider: Arc<dyn Provider>,
        name: &str,
        options: &Options,
        within: Duration,
    ) -> Result<Channel, Error> {
        let domain = provider.allocate_domain()?;
        let buffers = Channel::buffers(&*provider, options)?;
        let link = provider.connect(&domain, name, within)?;
        Channel::over(provider, domain, link, options, buffers)
    }

    pub(crate) fn buffers(provider: &dyn Provider, options: &Options) -> Result<Buffers, Error> {
        options.buffers.unwrap_or(Buffers::CHANNEL).check(&provider.capabilities())
    }

    pub(crate) fn over(
        provider: Arc<dyn Provider>,
        domain: ProtectionDomain,
        link: Link,
        options: &Options,
        buffers: Buffers,
    ) -> Result<Channel, Error> {
        let peer = link.peer.clone();
        let mut sending = Sending::open(provider, Some(domain), options, buffers)?;
        let queue_pair = sending.endpoint.attach(link)?;
        sending.add(queue_pair);
        let Buffers { message_bytes: bytes, receives: count, .. } = buffers;
        let ring = RingOptions { queue_pair: Some(queue_pair), bytes, count, ..RingOptions::default() };
        let ring = sending.endpoint.ring(ring)?;
        Ok(Channel { sending, ring, peer, arrived: VecDeque::new() })
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Plans the sending of a shape of `buffer`, whose messages arrive one by one. Where prices are
    /// known of two distances, it goes by how far the peer's processor was found to be while
    /// something was sent. A shape that is declared again and again keeps its plan, and is known at
    /// once when it is the same `Arc`.
    ///
    /// # Errors
    /// When the shape does not lie in the buffer, when a message is longer than a buffer, or when
    /// the forced way cannot carry the shape.
    pub fn declare(&self, buffer: &Arc<Buffer>, shape: &Arc<Shape>) -> Result<Declared, Error> {
        let escapes = |error| DeclareError::Escapes { field: "the region".into(), error };
        let region = Region::new(buffer, shape).map_err(escapes)?;
        let plan = self.sending.plan(shape)?;
        let request_bytes_max = self.sending.terms().request_bytes_max;
        Ok(Declared { region, plan, request_bytes_max, prices: self.sending.prices().clone() })
    }

    /// Sends what was declared in the way that was planned. The memory stays untouched and held
    /// until its messages have arrived; this call waits only for room.
    ///
    /// # Errors
    /// When the connection has ended. At the deadline [`Error::Unsent`] when not all of it found
    /// room, and [`Error::Untaken`] when something that was sent before still waits for room.
    pub fn send(&mut self, declared: &Declared, within: Duration) -> Result<(), Error> {
        let Declared { region, plan, request_bytes_max, .. } = declared;
        let mut deadline = Deadline::within(within);
        self.sending.make_way(&mut deadline)?;
        let capabilities = self.sending.endpoint.capabilities();
        let send = DeclaredSend::new(0, region.clone(), Some(plan), capabilities, *request_bytes_max)?;
        self.sending.look_how_far();
        // A region without messages posts nothing, so nothing of it is reported.
        let to = (region.shape().messages().count() > 0).then_some(0);
        self.sending.send(Rest::One(send), to, &mut deadline)
    }

    /// The next message.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`], or [`VerbsError::Ended`] when the connection has ended or the peer
    /// does not keep to the format of [declared messages](overside_verbs::declared::bundle).
    pub fn receive(&mut self, within: Duration) -> Result<Message, Error> {
        let mut deadline = Deadline::within(within);
        loop {
            self.fill(&mut deadline)?;
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
    /// As [`receive`](Self::receive); and when single ones of them were taken already: take the
    /// others likewise.
    pub fn receive_batch(&mut self, within: Duration) -> Result<Batch, Error> {
        self.fill(&mut Deadline::within(within))?;
        match self.arrived.pop_front() {
            Some(Arrived::Whole(batch)) => Ok(batch),
            opened => {
                self.arrived.extend(opened);
                self.arrived.rotate_right(1);
                Err(VerbsError::Unsupported("receiving a batch of which single messages were taken").into())
            }
        }
    }

    /// Lets a message's buffer be received into again, once all messages that lie in it are handed
    /// back.
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
        self.ring.put(buffer);
        Ok(self.ring.post(self.sending.endpoint.queue())?)
    }

    /// Waits until there is a bundle.
    fn fill(&mut self, deadline: &mut Deadline) -> Result<(), Error> {
        while self.arrived.is_empty() {
            if self.sending.received.is_empty() {
                self.sending.progress(deadline)?;
            }
            let mut malformed = false;
            for done in self.sending.received.drain(..) {
                self.ring.completed();
                let Some(buffer) = done.buffer else { continue };
                let batch = Batch { buffer, len: done.bytes as usize, immediate: done.immediate };
                malformed |= Bundle::new(batch.bytes(), batch.immediate).is_err();
                if !malformed {
                    self.arrived.push_back(Arrived::Whole(batch));
                }
            }
            if malformed {
                return Err(self.sending.condemn(0));
            }
        }
        Ok(())
    }
}

impl Deref for Channel {
    type Target = Sending;

    fn deref(&self) -> &Sending {
        &self.sending
    }
}

impl DerefMut for Channel {
    fn deref_mut(&mut self) -> &mut Sending {
        &mut self.sending
    }
}
