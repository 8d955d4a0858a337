//! A provider within one process, as simple as the sentences allow: one lock, and each caller
//! carries out whatever can be carried out.
//!
//! It takes time from any [`Clock`], such as one that is [stepped by hand](SteppedClock). It can be
//! asked to break one of its promises, so that the conformance suite is tested itself. Nothing
//! ships it: it is for tests.
#![deny(unsafe_op_in_unsafe_fn)]

mod around;
mod clock;
mod courier;
mod fabric;
mod loans;
mod port;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overside_planner::{AtomicScope, Bends, Capabilities, ForeignMemory, Profile};
use overside_verbs::port::Port;
use overside_verbs::watch::Signal;
use overside_verbs::{
    Access, Clock, Instance, Link, Listener, Memory, MemoryRegion, Peer, PortOptions, ProtectionDomain, Provider,
    SystemClock, VerbsError,
};

pub use around::{Change, Changed};
pub use clock::SteppedClock;
pub use courier::Courier;
use fabric::{Fabric, Listening};
use port::ReferencePort;

/// A promise that the reference breaks when told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Takes requests beyond the depth, and says that it did not.
    TouchesRefused,
    /// Gives messages to the youngest receive.
    LastReceiveFirst,
    /// Sends fragments by address.
    SortsFragments,
    /// Reads inline bytes and lists when it sends.
    KeepsPointers,
    /// Fails a message that meets no receive.
    NeedsReceives,
    /// Writes all of a message that is too long.
    WritesPastTheEnd,
    /// Writes the last word first.
    LastWordFirst,
    /// Lets a short WRITE overtake a long one.
    WritesOvertake,
    /// READs late, whatever is fenced.
    IgnoresFences,
    /// Adds by load and store.
    LoadsThenStores,
    /// Takes any key for any right.
    IgnoresKeys,
    /// Needs the target to call in.
    NeedsTheTarget,
    /// Throws the shared receives away with a queue pair.
    FlushesShared,
    /// Does not notice a death.
    MissesDeath,
    /// Completes a region after the first of its SENDs.
    RegionsOfOne,
    /// One peer's mistake closes every queue pair of the port.
    ClosesAll,
    /// Wakes for completed sends when none is in flight any more.
    WakesForTheLast,
    /// Lets memory go at the next poll, and wakes nobody for that.
    HoardsMemory,
    /// Tells nobody that there is room again.
    ForgetsRoom,
    /// Says nothing of what ended silently before the end.
    LeavesSilence,
    /// Lends to receives that take no loan.
    LendsToAnyone,
    /// Copies everything, and says that it lends.
    NeverLends,
    /// Copies what it lends, too.
    LendsAndCopies,
    /// Reports a loan as returned as soon as it is lent.
    ReturnsAtOnce,
    /// Does not report that a loan has ended.
    ForgetsReturns,
    /// Reports the end of a loan twice.
    ReturnsTwice,
    /// Reports the end of a loan, and wakes nobody for it.
    SleepsThroughReturns,
    /// Lets go of what it lent, and vouches for it.
    StaysValid,
    /// Does not report loans that end with their queue pair.
    KeepsRevoked,
    /// Sends fragments by address once it was told a price.
    SortsWhenTold,
}

/// What the network does to requests on their way, by the chance of the world's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// How long a request is under way at most; those of one connection stay in order. Where it is
    /// not zero, a [`Courier`] must run.
    pub delay_max: Duration,
    /// One request in so many ends its connection, before or after it was carried out; none where
    /// it is 0.
    pub cut_one_in: u64,
}

/// One fabric, whose providers reach each other by name.
#[derive(Clone, Debug)]
pub struct World {
    fabric: Arc<Mutex<Fabric>>,
    clock: Arc<dyn Clock>,
    wrap: fn(Box<dyn Port>) -> Box<dyn Port>,
}

impl World {
    /// A sound one, in the system's time.
    pub fn new() -> Self {
        Self::by(SystemClock::handle())
    }

    /// A sound one, in the time of `clock`.
    pub fn by(clock: Arc<dyn Clock>) -> Self {
        Self::under(clock, Weather::default())
    }

    /// A sound one, in the time of `clock`, with delays and cuts.
    pub fn under(clock: Arc<dyn Clock>, weather: Weather) -> Self {
        Self { fabric: Fabric::shared(None, clock.clone(), weather), clock, wrap: |port| port }
    }

    /// What brings requests to their ends when their time has come; for a thread of its own.
    ///
    /// # Errors
    /// When the system has no descriptor for it.
    pub fn courier(&self) -> Result<Courier, VerbsError> {
        Courier::new(&self.fabric, self.clock.clone())
    }

    /// One that breaks a promise, and puts something in front of its ports.
    pub fn broken(fault: Option<Fault>, wrap: fn(Box<dyn Port>) -> Box<dyn Port>) -> Self {
        let clock = SystemClock::handle();
        Self { fabric: Fabric::shared(fault, clock.clone(), Weather::default()), clock, wrap }
    }

    /// A provider of a process of its own, as far as the others can tell.
    pub fn provider(&self) -> Reference {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let owner = NEXT.fetch_add(1, Ordering::Relaxed);
        let (instance, fabric, clock) = (Instance::new(None), self.fabric.clone(), self.clock.clone());
        Reference { instance, fabric, clock, owner, wrap: self.wrap }
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

/// A provider of a [`World`].
#[derive(Debug)]
pub struct Reference {
    instance: Arc<Instance>,
    fabric: Arc<Mutex<Fabric>>,
    clock: Arc<dyn Clock>,
    owner: u64,
    wrap: fn(Box<dyn Port>) -> Box<dyn Port>,
}

impl Reference {
    /// Ends it as a killed process ends: its peers hear of it, it says nothing itself.
    pub fn kill(&self) {
        lock(&self.fabric).kill(self.owner);
    }
}

impl Provider for Reference {
    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sge_max: 16,
            inline_max: 64,
            message_max: 1 << 20,
            depth_max: 128,
            progress_by_itself: true,
            one_sided: true,
            atomics: AtomicScope::Cpu,
            last_byte_last: true,
            region_bytes_max: 1 << 20,
            foreign: ForeignMemory::Direct,
            lends: true,
        }
    }

    fn profile(&self) -> Profile {
        // Nobody prices anything here.
        Profile {
            send_request_ns: 1.0,
            send_fragment_ns: 1.0,
            send_byte_ns: 1.0,
            pack_byte_ns: 1.0,
            pack_piece_ns: 1.0,
            pack_request_ns: 10.0,
            row_ns: 1.0,
            receive_request_ns: 1.0,
            receive_fragment_ns: 1.0,
            receive_byte_ns: 1.0,
            wire_byte_ns: 0.0,
            bends: Bends::default(),
            source: "none".into(),
            elsewhere: None,
        }
    }

    fn learn(&self, _prices: &Profile) -> bool {
        let mut fabric = lock(&self.fabric);
        if fabric.fault == Some(Fault::SortsWhenTold) {
            fabric.fault = Some(Fault::SortsFragments);
        }
        false
    }

    fn allocate_domain(&self) -> Result<ProtectionDomain, VerbsError> {
        lock(&self.fabric).registry.allocate_domain(())
    }

    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        let mut fabric = lock(&self.fabric);
        let key = u128::from(fabric.number()) << 64 | 0x5EED_0000;
        fabric.registry.register(domain, memory, access, |()| Ok((key, ())))
    }

    fn deregister(&self, region: MemoryRegion) -> Result<(), VerbsError> {
        let mut fabric = lock(&self.fabric);
        let ended = fabric.registry.deregister(&region, |(), _, _| ())?;
        if fabric.fault == Some(Fault::HoardsMemory) {
            fabric.hoard.push(ended);
        }
        Ok(())
    }

    fn listen(&self, domain: &ProtectionDomain, name: &str) -> Result<Box<dyn Listener>, VerbsError> {
        let wake = Arc::new(Signal::new()?);
        let mut fabric = lock(&self.fabric);
        if fabric.listening.contains_key(name) {
            return Err(VerbsError::Address { address: name.into(), reason: "the name is taken".into() });
        }
        let listening = Listening { owner: self.owner, waiting: VecDeque::new(), wake: wake.clone() };
        fabric.listening.insert(name.into(), listening);
        drop(fabric);
        let (instance, fabric, clock) = (self.instance.clone(), self.fabric.clone(), self.clock.clone());
        let (name, owner) = (name.into(), self.owner);
        Ok(Box::new(Waiting { instance, domain: domain.id(), fabric, clock, name, owner, wake }))
    }

    fn connect(&self, domain: &ProtectionDomain, name: &str, _timeout: Duration) -> Result<Link, VerbsError> {
        let mut fabric = lock(&self.fabric);
        let Some(listening) = fabric.listening.get(name) else {
            return Err(VerbsError::Unreachable { address: name.into(), reason: "nobody has that name".into() });
        };
        let to = listening.owner;
        let (ours, theirs) = fabric.connection(self.owner, to);
        if let Some(listening) = fabric.listening.get_mut(name) {
            listening.waiting.push_back(theirs);
            listening.wake.notify();
        }
        Ok(link(&self.instance, domain.id(), ours))
    }

    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        let port = ReferencePort::open(self, domain.id(), options.depth.min(128))?;
        Ok((self.wrap)(self.instance.guard(port)))
    }
}

fn link(instance: &Instance, domain: u64, end: usize) -> Link {
    instance.link(domain, Peer { pid: Some(std::process::id()), uid: None, description: "this process".into() }, end)
}

#[derive(Debug)]
struct Waiting {
    instance: Arc<Instance>,
    domain: u64,
    fabric: Arc<Mutex<Fabric>>,
    clock: Arc<dyn Clock>,
    name: String,
    owner: u64,
    wake: Arc<Signal>,
}

impl Listener for Waiting {
    fn accept(&mut self, timeout: Duration) -> Result<Option<Link>, VerbsError> {
        let until = self.clock.now() + timeout;
        loop {
            self.wake.drain();
            let next = lock(&self.fabric).listening.get_mut(&self.name).and_then(|l| l.waiting.pop_front());
            if let Some(end) = next {
                return Ok(Some(link(&self.instance, self.domain, end)));
            }
            if self.clock.now() >= until {
                return Ok(None);
            }
            self.clock.wait(&[self.wake.as_fd()], Some(until))?;
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.fabric).stop_listening(&self.name, self.owner);
    }
}

/// A panic of a test leaves the fabric as it was between two of its calls.
fn lock(fabric: &Mutex<Fabric>) -> MutexGuard<'_, Fabric> {
    fabric.lock().unwrap_or_else(PoisonError::into_inner)
}
