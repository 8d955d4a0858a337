//! One side of connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use overside_memory::{Buffer, Pool, Segment};
use overside_planner::Capabilities;
use overside_verbs::{
    Access, Clock, CompletionQueue, Link, Listener, Memory, MemoryRegion, Peer, PortEvent, PortOptions,
    ProtectionDomain, Provider, QueuePair, RemoteToken, Status, VerbsError, WorkCompletion, WorkRequest,
};

use crate::deadline::Deadline;
use crate::ring::{Ring, RingOptions};

/// One side of connections: a protection domain, a completion queue with its queue pairs, and the
/// memory that is registered for them.
///
/// Registrations end with the endpoint. What is in flight then is the completion queue's affair,
/// which never frees early.
#[derive(Debug)]
pub struct Endpoint {
    provider: Arc<dyn Provider>,
    domain: ProtectionDomain,
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    queue: CompletionQueue,
    registered: Vec<MemoryRegion>,
    /// Of connections that have ended and were not closed here, in the order of the reports.
    ends: VecDeque<Ended>,
}

/// How an [`Endpoint`] is to be; each field has a default.
#[derive(Debug)]
pub struct Builder {
    provider: Arc<dyn Provider>,
    domain: Option<ProtectionDomain>,
    port: PortOptions,
    batch: Option<usize>,
    spin: Option<Duration>,
    signal_every: Option<usize>,
}

/// How a connection ended, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which one.
    pub queue_pair: QueuePair,
    /// Why, as a status.
    pub status: Status,
    /// Why, in the provider's words.
    pub reason: String,
}

impl From<&Ended> for VerbsError {
    fn from(ended: &Ended) -> VerbsError {
        VerbsError::Ended { status: ended.status, reason: ended.reason.clone() }
    }
}

impl Builder {
    /// The protection domain, where others are in it too; a new one unless said otherwise.
    #[must_use]
    pub fn domain(self, domain: ProtectionDomain) -> Self {
        Self { domain: Some(domain), ..self }
    }

    /// How large the completion queue and its queue pairs are. No shared receives unless said
    /// otherwise.
    #[must_use]
    pub fn port(self, port: PortOptions) -> Self {
        Self { port, ..self }
    }

    /// Completions that one poll takes at most: [`CompletionQueue::set_batch`].
    #[must_use]
    pub fn batch(self, completions: usize) -> Self {
        Self { batch: Some(completions), ..self }
    }

    /// How long a wait polls before it sleeps: [`CompletionQueue::set_spin`].
    #[must_use]
    pub fn spin(self, spin: Duration) -> Self {
        Self { spin: Some(spin), ..self }
    }

    /// How often unsignalled requests are reported: [`CompletionQueue::set_signal_every`].
    #[must_use]
    pub fn signal_every(self, requests: usize) -> Self {
        Self { signal_every: Some(requests), ..self }
    }

    /// Opens it.
    ///
    /// # Errors
    /// When the device has no domain, descriptors or memory left.
    pub fn open(self) -> Result<Endpoint, VerbsError> {
        let Self { provider, domain, port, batch, spin, signal_every } = self;
        let domain = domain.map_or_else(|| provider.allocate_domain(), Ok)?;
        let mut queue = CompletionQueue::new(provider.open_port(&domain, port)?);
        batch.into_iter().for_each(|completions| queue.set_batch(completions));
        spin.into_iter().for_each(|spin| queue.set_spin(spin));
        signal_every.into_iter().for_each(|requests| queue.set_signal_every(requests));
        let (clock, capabilities) = (provider.clock(), provider.capabilities());
        let (registered, ends) = (Vec::new(), VecDeque::new());
        Ok(Endpoint { provider, domain, clock, capabilities, queue, registered, ends })
    }
}

impl Endpoint {
    /// An endpoint of this provider.
    pub fn builder(provider: Arc<dyn Provider>) -> Builder {
        let port = PortOptions { shared_receives: 0, ..PortOptions::default() };
        Builder { provider, domain: None, port, batch: None, spin: None, signal_every: None }
    }

    /// The provider.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    /// The protection domain.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Limits and promises of the provider.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Where time comes from.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// The completion queue. Its events are the endpoint's: ask [`ended`](Self::ended) or
    /// [`next_end`](Self::next_end).
    #[inline]
    pub fn queue(&mut self) -> &mut CompletionQueue {
        &mut self.queue
    }

    /// Registers memory in the domain until the endpoint ends. What a peer needs to use it.
    ///
    /// # Errors
    /// When the provider does not allow this access to this memory, or has no room.
    pub fn register(&mut self, memory: Memory, access: Access) -> Result<RemoteToken, VerbsError> {
        let region = self.provider.register(&self.domain, &memory, access)?;
        let token = region.token();
        self.registered.push(region);
        Ok(token)
    }

    /// Ends the registrations of a memory now.
    ///
    /// # Errors
    /// When the provider refuses.
    pub fn deregister(&mut self, memory: &Memory) -> Result<(), VerbsError> {
        let of = |region: &mut MemoryRegion| is_same(&region.memory, memory);
        let ending: Vec<MemoryRegion> = self.registered.extract_if(.., of).collect();
        ending.into_iter().try_for_each(|region| self.provider.deregister(region))
    }

    /// Memory to send from: zeroed, registered, and readable by peers where providers work so.
    ///
    /// # Errors
    /// When the memory is not there.
    pub fn allocate(&mut self, bytes: usize) -> Result<Buffer, VerbsError> {
        let mut buffers = Segment::shared(length(bytes, 1)?)?.carve(bytes);
        let Some(buffer) = buffers.pop() else { return Err(EMPTY) };
        self.register(Memory::Segment(buffer.segment().clone()), Access::LOCAL)?;
        Ok(buffer)
    }

    /// At least `count` transmit buffers of `bytes` each.
    ///
    /// # Errors
    /// When the memory is not there.
    pub fn pool(&mut self, bytes: usize, count: usize) -> Result<Pool, VerbsError> {
        let pool = Pool::new(Segment::shared(length(bytes, count)?)?, bytes)?;
        self.register(Memory::Segment(pool.segment().clone()), Access::LOCAL)?;
        Ok(pool)
    }

    /// Receive buffers, posted to one queue pair or to the shared receive queue.
    ///
    /// # Errors
    /// When the memory is not there, or the queue pair is closed.
    pub fn ring(&mut self, options: RingOptions) -> Result<Ring, VerbsError> {
        let buffers = Segment::private(length(options.bytes, options.count)?)?.carve(options.bytes);
        let Some(memory) = buffers.first().map(|first| first.segment().clone()) else { return Err(EMPTY) };
        self.register(Memory::Segment(memory.clone()), Access::LOCAL)?;
        let mut ring = Ring::new(memory, buffers, options);
        ring.post_all(&mut self.queue)?;
        Ok(ring)
    }

    /// Listens at the provider's part of an address.
    ///
    /// # Errors
    /// When the name is taken or malformed.
    pub fn listen(&self, name: &str) -> Result<Box<dyn Listener>, VerbsError> {
        self.provider.listen(&self.domain, name)
    }

    /// The next connection of a listener in this domain.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`] at the deadline; when the listener fails or the port takes no more.
    pub fn accept(&mut self, listener: &mut dyn Listener, within: Duration) -> Result<(QueuePair, Peer), VerbsError> {
        let link = accept(listener, &mut Deadline::within(within), &*self.clock)?;
        let peer = link.peer.clone();
        Ok((self.attach(link)?, peer))
    }

    /// Connects to whoever listens there.
    ///
    /// # Errors
    /// [`VerbsError::Unreachable`], [`VerbsError::Handshake`], [`VerbsError::TimedOut`].
    pub fn connect(&mut self, name: &str, within: Duration) -> Result<QueuePair, VerbsError> {
        let link = self.provider.connect(&self.domain, name, within)?;
        self.attach(link)
    }

    /// Makes a queue pair of a connection.
    ///
    /// # Errors
    /// When the port refuses the link or has no room.
    pub fn attach(&mut self, link: Link) -> Result<QueuePair, VerbsError> {
        self.queue.attach(link)
    }

    /// Closes a queue pair; what is pending on it completes in later polls. How it ended is
    /// forgotten.
    pub fn close(&mut self, queue_pair: QueuePair) {
        self.queue.close(queue_pair);
        self.ends.retain(|ended| ended.queue_pair != queue_pair);
    }

    /// Appends what has completed to `done`. Where nothing has, it waits until something happens:
    /// a completion, room to post, or the end of a connection. Returns how many completed.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`] at the deadline; when the system refuses to wait.
    pub fn progress(&mut self, done: &mut Vec<WorkCompletion>, deadline: &mut Deadline) -> Result<usize, VerbsError> {
        if let Some(found) = self.queue.poll_once(done) {
            return Ok(found);
        }
        let left = deadline.left(&*self.clock)?;
        self.queue.poll_wait(done, Some(left))
    }

    /// Posts all of `batch`, in order; waits for room where there is none. What completes meanwhile
    /// is appended to `done`.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`] at the deadline, [`VerbsError::Ended`] where the connection has
    /// ended, or what the provider has against the request that is then the first of `batch`.
    pub fn post(
        &mut self,
        queue_pair: QueuePair,
        batch: &mut VecDeque<WorkRequest>,
        done: &mut Vec<WorkCompletion>,
        deadline: &mut Deadline,
    ) -> Result<(), VerbsError> {
        loop {
            if let Err(error) = self.queue.post(queue_pair, batch) {
                return Err(self.explain(queue_pair, error));
            }
            if batch.is_empty() {
                return Ok(());
            }
            self.progress(done, deadline)?;
        }
    }

    /// How a connection ended, if it has.
    pub fn ended(&mut self, queue_pair: QueuePair) -> Option<&Ended> {
        self.hear();
        self.ends.iter().find(|ended| ended.queue_pair == queue_pair)
    }

    /// The next connection that ended: for who has many, and closes each.
    pub fn next_end(&mut self) -> Option<Ended> {
        self.hear();
        self.ends.pop_front()
    }

    /// What to report of a request that was refused: where its connection has ended, why it did.
    pub fn explain(&mut self, queue_pair: QueuePair, error: VerbsError) -> VerbsError {
        match error {
            VerbsError::Closed => self.ended(queue_pair).map_or(error, VerbsError::from),
            error => error,
        }
    }

    fn hear(&mut self) {
        while let Some(PortEvent::Disconnected { queue_pair, status, reason }) = self.queue.next_event() {
            self.ends.push_back(Ended { queue_pair, status, reason });
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        for region in self.registered.drain(..) {
            // A provider that refuses leaves it registered, no more.
            let _ = self.provider.deregister(region);
        }
    }
}

/// The next connection of a listener.
///
/// # Errors
/// [`VerbsError::TimedOut`] at the deadline; when the listener fails.
pub(crate) fn accept(
    listener: &mut dyn Listener,
    deadline: &mut Deadline,
    clock: &dyn Clock,
) -> Result<Link, VerbsError> {
    loop {
        if let Some(link) = listener.accept(deadline.left(clock)?)? {
            return Ok(link);
        }
    }
}

fn is_same(a: &Memory, b: &Memory) -> bool {
    match (a, b) {
        (Memory::Segment(a), Memory::Segment(b)) => Arc::ptr_eq(a, b),
        (Memory::Window(a), Memory::Window(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}

/// Bytes of a segment with so many buffers.
fn length(bytes: usize, count: usize) -> Result<usize, VerbsError> {
    if bytes == 0 || count == 0 {
        return Err(EMPTY);
    }
    // What is too much to be named is too much to be had: the system says so.
    Ok(bytes.checked_next_multiple_of(SLOT).and_then(|slot| slot.checked_mul(count)).unwrap_or(usize::MAX))
}

const EMPTY: VerbsError = VerbsError::Unsupported("buffers without a byte, or none of them");
/// As [`Segment::carve`] aligns.
const SLOT: usize = 64;
