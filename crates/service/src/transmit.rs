//! Transmit buffers of a worker, registered once (to-copy §3 TC-M03), and what each connection may
//! have of them.
//!
//! A client may leave what it asked for untaken until its deadline, and its buffers stay with it as
//! long. So a connection may take only so many, and it gets a share in any case: where others have
//! taken all there are, some are added.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

use overside_memory::{Buffer, Pool, Segment, View};
use overside_verbs::{Access, Memory, MemoryRegion, ProtectionDomain, Provider, VerbsError, WorkRequest};

use crate::options::TransmitOptions;

/// Large buffers for what is packed, small ones for replies and for headers of what is gathered.
#[derive(Debug)]
pub(crate) struct Transmit {
    memory: Registering,
    large: Class,
    small: Class,
}

/// Where memory is registered.
#[derive(Debug)]
struct Registering {
    provider: Arc<dyn Provider>,
    domain: ProtectionDomain,
}

/// Buffers of one length.
#[derive(Debug)]
struct Class {
    size: Size,
    buffer_bytes: usize,
    /// That one connection may have.
    lent_max: usize,
    /// The first has as many as some connections need; each other was added for one that had less
    /// than its share.
    pools: RefCell<Vec<(Pool, MemoryRegion)>>,
}

/// Which buffers a message lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Large,
    Small,
    /// It lies on the heap, or wherever it was stored.
    None,
}

/// A transmit buffer that was taken.
#[derive(Debug)]
pub struct Taken {
    buffer: Buffer,
    size: Size,
    /// Which of its length's pools it is of.
    pool: usize,
}

impl Deref for Taken {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl DerefMut for Taken {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

/// A message, and the transmit buffer that it takes until it is sent.
#[derive(Debug)]
pub struct Message {
    view: View,
    size: Size,
    lendable: bool,
}

impl Message {
    /// Bytes that lie in registered memory, or on the heap; in no transmit buffer.
    pub fn new(view: View) -> Message {
        Message { view, size: Size::None, lendable: false }
    }

    /// With `body` behind it.
    #[must_use]
    pub fn then(self, body: View) -> Message {
        Message { view: self.view.then(body), ..self }
    }

    /// The peer may have its bytes as a loan, where it takes loans and the provider lends. Until
    /// the peer has returned it, the message counts in the window and keeps its transmit buffer. A
    /// peer that keeps it past the deadline loses its connection.
    #[must_use]
    pub fn lendable(self) -> Message {
        Message { lendable: true, ..self }
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.view.bytes()
    }

    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// Posts it under a number.
    pub(crate) fn into_request(self, number: u64) -> WorkRequest {
        let request = WorkRequest::send(number, self.view);
        if self.lendable { request.lendable().reporting_release() } else { request }
    }
}

/// What one connection's messages take: those that wait, those under way, those that are lent.
/// Messages are numbered as they are queued, and are posted in that order. They end in it, too, but
/// for those that are lent.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    messages: VecDeque<Queued>,
    /// The number of the first of them.
    first: u64,
    /// Of them, those that were posted.
    posted: usize,
    large: usize,
    small: usize,
}

/// A message that was queued.
#[derive(Debug)]
struct Queued {
    size: Size,
    bytes: u64,
    lendable: bool,
    /// When the peer accepted it as a loan, or copied it.
    accepted: Option<Instant>,
    ended: bool,
}

impl Lent {
    /// A message takes its buffer.
    pub(crate) fn lend(&mut self, size: Size) {
        if let Some(count) = self.count(size) {
            *count += 1;
        }
    }

    /// A message that [took](Self::lend) its buffer is queued: it is the last to be sent. Its
    /// number.
    pub(crate) fn queue(&mut self, message: &Message) -> u64 {
        let (size, bytes, lendable) = (message.size, message.bytes(), message.lendable);
        self.messages.push_back(Queued { size, bytes, lendable, accepted: None, ended: false });
        self.first + self.messages.len() as u64 - 1
    }

    /// The number of the next message that is queued.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.messages.len() as u64
    }

    /// All messages with a lower number were posted.
    pub(crate) fn posted(&self) -> u64 {
        self.first + self.posted as u64
    }

    /// The next `count` messages were posted; their bytes.
    pub(crate) fn post(&mut self, count: usize) -> u64 {
        let bytes = self.messages.iter().skip(self.posted).take(count).map(|queued| queued.bytes).sum();
        self.posted += count;
        bytes
    }

    /// The peer has taken a message; whether that is its end. One that may be lent ends with its
    /// [release](Self::end).
    pub(crate) fn taken(&mut self, number: u64, now: Instant) -> bool {
        match self.queued(number) {
            Some(queued) if queued.lendable => {
                queued.accepted = Some(now);
                false
            }
            _ => self.end(number),
        }
    }

    /// Nothing needs a message's bytes any more; whether that is news.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        let Some(queued) = self.queued(number).filter(|queued| !queued.ended) else { return false };
        queued.ended = true;
        let size = queued.size;
        if let Some(count) = self.count(size) {
            *count -= 1;
        }
        while self.messages.front().is_some_and(|queued| queued.ended) {
            self.messages.pop_front();
            self.first += 1;
            self.posted = self.posted.saturating_sub(1);
        }
        true
    }

    /// Since when the peer has kept the oldest of what it was lent.
    pub(crate) fn kept_since(&self) -> Option<Instant> {
        self.messages.front()?.accepted
    }

    fn queued(&mut self, number: u64) -> Option<&mut Queued> {
        self.messages.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn count(&mut self, size: Size) -> Option<&mut usize> {
        match size {
            Size::Large => Some(&mut self.large),
            Size::Small => Some(&mut self.small),
            Size::None => None,
        }
    }
}

impl Transmit {
    /// # Errors
    /// When the memory is not there or the provider has no room for two more regions.
    pub(crate) fn new(
        provider: Arc<dyn Provider>,
        domain: ProtectionDomain,
        options: TransmitOptions,
    ) -> Result<Self, VerbsError> {
        let memory = Registering { provider, domain };
        let TransmitOptions { large_bytes, large_count, small_bytes, small_count } = options;
        Ok(Self {
            large: Class::new(&memory, Size::Large, (large_bytes, large_count), large_count)?,
            small: Class::new(&memory, Size::Small, (small_bytes, small_count), (small_count / 2).max(1))?,
            memory,
        })
    }

    /// The smallest buffer of at least `len` bytes, for a connection with `lent`; none when it has
    /// its share, or none is so long.
    pub(crate) fn take(&self, len: usize, lent: &Lent) -> Option<Taken> {
        if len <= self.small.buffer_bytes {
            self.small.take(lent.small, &self.memory)
        } else if len <= self.large.buffer_bytes {
            self.large.take(lent.large, &self.memory)
        } else {
            None
        }
    }

    /// The first `len` bytes of a taken buffer, which comes back when they are sent.
    pub(crate) fn message(&self, Taken { buffer, size, pool }: Taken, len: usize) -> Message {
        Message { view: self.class(size).pools.borrow()[pool].0.view(buffer, len), size, lendable: false }
    }

    /// Gives an unused buffer back.
    pub(crate) fn put(&self, Taken { buffer, size, pool }: Taken) {
        self.class(size).pools.borrow()[pool].0.put(buffer);
    }

    /// `bytes` in a transmit buffer, or on the heap when the connection may have none or it is
    /// longer than any.
    pub(crate) fn packed(&self, bytes: Vec<u8>, lent: &Lent) -> Message {
        match self.take(bytes.len(), lent) {
            Some(mut taken) => {
                taken.buffer[..bytes.len()].copy_from_slice(&bytes);
                self.message(taken, bytes.len())
            }
            None => Message::new(View::foreign(Arc::new(bytes))),
        }
    }

    /// Gives back what was added for connections that are gone.
    pub(crate) fn trim(&self) {
        self.large.trim(&self.memory);
        self.small.trim(&self.memory);
    }

    fn class(&self, size: Size) -> &Class {
        if size == Size::Small { &self.small } else { &self.large }
    }
}

impl Drop for Transmit {
    /// Ends the registrations; what is in flight still completes.
    fn drop(&mut self) {
        let pools = [&mut self.large, &mut self.small].into_iter().flat_map(|class| class.pools.get_mut().drain(..));
        for (_, region) in pools {
            let _ = self.memory.provider.deregister(region);
        }
    }
}

impl Registering {
    fn register(&self, segment: &Arc<Segment>) -> Result<MemoryRegion, VerbsError> {
        self.provider.register(&self.domain, &Memory::Segment(segment.clone()), Access::LOCAL)
    }
}

impl Class {
    fn new(
        memory: &Registering,
        size: Size,
        (buffer_bytes, count): (usize, usize),
        lent_max: usize,
    ) -> Result<Self, VerbsError> {
        let class = Self { size, buffer_bytes, lent_max, pools: RefCell::default() };
        class.add(memory, count)?;
        Ok(class)
    }

    fn add(&self, memory: &Registering, count: usize) -> Result<(), VerbsError> {
        let pool = Pool::new(Segment::shared(self.buffer_bytes * count)?, self.buffer_bytes)?;
        let region = memory.register(pool.segment())?;
        self.pools.borrow_mut().push((pool, region));
        Ok(())
    }

    /// A buffer for a connection that has `lent` of them.
    fn take(&self, lent: usize, memory: &Registering) -> Option<Taken> {
        if lent >= self.lent_max {
            return None;
        }
        self.free_one().or_else(|| {
            let has_share = lent >= SHARE;
            // The system may have no room for more; then it waits.
            (!has_share && self.add(memory, ADDED).is_ok()).then(|| self.free_one()).flatten()
        })
    }

    fn free_one(&self) -> Option<Taken> {
        let pools = self.pools.borrow();
        let taken =
            |(pool, (buffers, _)): (usize, &(Pool, _))| Some(Taken { buffer: buffers.take()?, size: self.size, pool });
        pools.iter().enumerate().find_map(taken)
    }

    /// Gives the last pool back when nobody uses it and there is plenty without it.
    fn trim(&self, memory: &Registering) {
        let mut pools = self.pools.borrow_mut();
        let [(first, _), .., (last, _)] = pools.as_slice() else { return };
        if last.free() == last.capacity() && first.free() * 2 >= first.capacity() {
            let last = pools.pop();
            drop(pools);
            last.into_iter().for_each(|(_, region)| _ = memory.provider.deregister(region));
        }
    }
}

/// Buffers that a connection gets in any case: one that is copied, one that is next, and as many
/// again while the server learns of it.
const SHARE: usize = 4;
/// Buffers that are added at once, for as many connections as that is the share of.
const ADDED: usize = 16 * SHARE;
