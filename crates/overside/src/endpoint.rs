//! What a channel and a fan have in common: a domain with its queue, its prices and its transmit buffers.

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use overside_memory::{Buffer, Pool, Segment};
use overside_planner::{Capabilities, PlanCache, Planner, Terms, ViewPlan};
use overside_shape::Shape;
use overside_verbs::{
    Access, CompletionQueue, Memory, MemoryRegion, Opcode, PortEvent, PortOptions, ProtectionDomain, Provider,
    QueuePair, Status, VerbsError, WorkCompletion,
};

use crate::{Address, Error};

/// One side of connections.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: CompletionQueue,
    pub(crate) capabilities: Capabilities,
    transport: &'static str,
    /// Asked for when the first region is declared: who only receives needs no prices.
    planner: OnceCell<Planner>,
    plans: RefCell<PlanCache>,
    regions: Vec<MemoryRegion>,
    /// Transmit buffers for what is packed; made with the first.
    transmit: Option<Pool>,
    transmit_bytes: (usize, usize),
    pub(crate) received: Vec<WorkCompletion>,
    done: Vec<WorkCompletion>,
    /// Declared sends that have not been reported.
    pub(crate) unsent: usize,
    pub(crate) ended: Option<Status>,
    /// Why, in the provider's words.
    reason: Option<String>,
    /// How long a line took to come from the peer's processor, as last heard.
    pub(crate) line_ns: Option<f64>,
    /// Sends until that is asked again.
    until_asked: u32,
}

impl Endpoint {
    /// `transmit_bytes`: bytes of a transmit buffer, and how many there are.
    pub(crate) fn open(address: &Address, transmit_bytes: (usize, usize)) -> Result<Endpoint, Error> {
        let provider = address.provider()?;
        let domain = provider.allocate_domain()?;
        Endpoint::over(provider, domain, address.transport_name(), transmit_bytes)
    }

    pub(crate) fn over(
        provider: Arc<dyn Provider>,
        domain: ProtectionDomain,
        transport: &'static str,
        transmit_bytes: (usize, usize),
    ) -> Result<Endpoint, Error> {
        let port = PortOptions { shared_receives: 0, regions: true, ..PortOptions::default() };
        let queue = CompletionQueue::new(provider.open_port(&domain, port)?);
        let capabilities = provider.capabilities();
        Ok(Endpoint {
            provider,
            domain,
            queue,
            capabilities,
            transport,
            planner: OnceCell::new(),
            plans: RefCell::default(),
            regions: Vec::new(),
            transmit: None,
            transmit_bytes,
            received: Vec::new(),
            done: Vec::new(),
            unsent: 0,
            ended: None,
            reason: None,
            line_ns: None,
            until_asked: 0,
        })
    }

    /// Asks every now and then how far the peer's processor is, by which plans are priced; before each send to it.
    #[inline]
    pub(crate) fn look_how_far(&mut self, peer: QueuePair) {
        match self.until_asked.checked_sub(1) {
            Some(left) => self.until_asked = left,
            None => {
                self.until_asked = ASKED_EVERY;
                self.line_ns = self.queue.line_ns(peer).or(self.line_ns);
            }
        }
    }

    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<Buffer, Error> {
        let mut buffers = Segment::shared(bytes).map_err(VerbsError::from)?.carve(bytes);
        let Some(buffer) = buffers.pop() else { return Err(VerbsError::Unsupported("an empty buffer").into()) };
        self.register(buffer.segment())?;
        Ok(buffer)
    }

    pub(crate) fn register(&mut self, segment: &Arc<Segment>) -> Result<(), VerbsError> {
        let memory = Memory::Segment(segment.clone());
        self.regions.push(self.provider.register(&self.domain, &memory, Access::LOCAL)?);
        Ok(())
    }

    /// The device's prices: the user's stored profile, or the provider's own.
    pub(crate) fn planner(&self) -> Result<&Planner, Error> {
        if let Some(planner) = self.planner.get() {
            return Ok(planner);
        }
        let profile = overside_calibrate::known(self.transport, &self.provider);
        Ok(self.planner.get_or_init(|| Planner::new(self.capabilities.clone(), profile)))
    }

    pub(crate) fn plan(&self, shape: &Arc<Shape>, terms: &Terms) -> Result<ViewPlan, Error> {
        let planner = self.planner()?.at(self.line_ns);
        Ok(self.plans.borrow_mut().plan(planner, shape, terms)?.clone())
    }

    pub(crate) fn pool(&mut self) -> Result<Pool, Error> {
        if let Some(pool) = &self.transmit {
            return Ok(pool.clone());
        }
        let (bytes, count) = self.transmit_bytes;
        let segment = Segment::shared(bytes * count).map_err(VerbsError::from)?;
        let pool = Pool::new(segment, bytes).map_err(VerbsError::from)?;
        self.register(pool.segment())?;
        Ok(self.transmit.insert(pool).clone())
    }

    /// Takes in what completed; waits for something until `timeout`.
    pub(crate) fn progress(&mut self, timeout: Duration) -> Result<(), Error> {
        if let Some(status) = self.ended {
            return Err(self.end(status));
        }
        self.queue.poll_wait(&mut self.done, Some(timeout))?;
        for done in self.done.drain(..) {
            match done.opcode {
                Opcode::Receive if done.status == Status::Success => self.received.push(done),
                Opcode::Send if done.status == Status::Success => self.unsent = self.unsent.saturating_sub(1),
                _ => self.ended = Some(done.status),
            }
        }
        while let Some(PortEvent::Disconnected { status, reason, .. }) = self.queue.next_event() {
            self.reason.get_or_insert(reason);
            // What had arrived before the end is still delivered.
            if self.received.is_empty() {
                self.ended = Some(status);
            }
        }
        Ok(())
    }

    /// What to say of a request that was not taken: where the connection has ended meanwhile, why.
    pub(crate) fn refused(&mut self, error: VerbsError) -> Error {
        if !matches!(error, VerbsError::Closed) {
            return error.into();
        }
        while let Some(PortEvent::Disconnected { status, reason, .. }) = self.queue.next_event() {
            self.reason.get_or_insert(reason);
            self.ended.get_or_insert(status);
        }
        self.ended.map_or(error.into(), |status| self.end(status))
    }

    fn end(&self, status: Status) -> Error {
        let reason = self.reason.clone().unwrap_or_else(|| status.to_string());
        VerbsError::Ended { status, reason }.into()
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        while self.unsent > 0 {
            self.progress(LOOK)?;
        }
        Ok(())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        for region in self.regions.drain(..) {
            let _ = self.provider.deregister(region);
        }
    }
}

/// Sends between two questions how far the peer is: one reads the clock for some tens of polls, and what moves is moved every few seconds.
const ASKED_EVERY: u32 = 63;
/// The longest that a wait goes without a look around.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
