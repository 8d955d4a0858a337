//! The control side: what may block.

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use overside_planner::{Capabilities, Profile};

use crate::VerbsError;
use crate::acceptor::Refused;
use crate::clock::{Clock, SystemClock};
use crate::port::Port;
use crate::region::{Access, Memory, MemoryRegion};

/// A way for bytes to move: shared memory, TCP, a NIC.
///
/// Everything here may block and may be called from any thread.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Limits and promises.
    fn capabilities(&self) -> Capabilities;

    /// What things cost before anything was measured; calibrating is for whoever has two ports to
    /// measure with.
    fn profile(&self) -> Profile;

    /// Told what things were found to cost: for what a provider decides by itself below its ports
    /// (sentence **learn** of [`port`](crate::port)). Whether there is any such thing, hence
    /// whether it is worth measuring. Ports that are open heed it too.
    fn learn(&self, _prices: &Profile) -> bool {
        false
    }

    /// Where its ports, and whatever stands on it, take time, sleep and chance from: the system's
    /// clock unless the provider says otherwise.
    fn clock(&self) -> Arc<dyn Clock> {
        SystemClock::handle()
    }

    /// A new protection domain: regions and queue pairs of different domains do not mix.
    ///
    /// # Errors
    /// When the device has no more of them.
    fn allocate_domain(&self) -> Result<ProtectionDomain, VerbsError>;

    /// Makes memory usable in `domain` until [`deregister`](Self::deregister). The region keeps the
    /// memory.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] for an access that this memory or provider does not allow.
    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError>;

    /// Ends a registration. Deferred and batched: what is in flight still completes, ports and
    /// peers forget the memory as they progress, and those that sleep are woken for it. Dropping a
    /// region without this leaves it registered.
    ///
    /// # Errors
    /// When the region is not this provider's.
    fn deregister(&self, region: MemoryRegion) -> Result<(), VerbsError>;

    /// Listens at the provider's part of an address (`NAME` of `shm:NAME`).
    ///
    /// # Errors
    /// [`VerbsError::Address`] when the name is taken or malformed.
    fn listen(&self, domain: &ProtectionDomain, name: &str) -> Result<Box<dyn Listener>, VerbsError>;

    /// Connects and shakes hands; the queue pair is made by attaching the link to a completion
    /// queue.
    ///
    /// # Errors
    /// [`VerbsError::Unreachable`], [`VerbsError::Handshake`], [`VerbsError::TimedOut`].
    fn connect(&self, domain: &ProtectionDomain, name: &str, timeout: Duration) -> Result<Link, VerbsError>;

    /// Opens the data side: one completion queue with its queue pairs.
    ///
    /// # Errors
    /// When the system has no descriptors or memory left.
    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError>;
}

/// Accepts connections. Half-open ones progress side by side, each with a deadline, so that a
/// peer which says nothing holds up nobody.
pub trait Listener: Send + fmt::Debug {
    /// The next finished connection, or none within `timeout`.
    ///
    /// # Errors
    /// When the listening socket itself fails; a peer's fault only drops that peer.
    fn accept(&mut self, timeout: Duration) -> Result<Option<Link>, VerbsError>;

    /// Readable when calling [`accept`](Self::accept) makes sense.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Connections turned away since the last call, if any: for whoever keeps a log.
    fn refused(&mut self) -> Option<Refused> {
        None
    }
}

/// A connection that has shaken hands and belongs to no port yet.
pub struct Link {
    /// Who is at the other end.
    pub peer: Peer,
    pub(crate) provider: u64,
    pub(crate) domain: u64,
    pub(crate) inner: Box<dyn Any + Send>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Who is at the other end, as far as the system vouches for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id, where the peer is on this host.
    pub pid: Option<u32>,
    /// User id, where the system vouches for it.
    pub uid: Option<u32>,
    /// For people.
    pub description: String,
}

/// Separates regions and queue pairs that must not mix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProtectionDomain {
    id: u64,
}

impl ProtectionDomain {
    /// A domain with the provider's own number.
    pub const fn new(id: u64) -> Self {
        Self { id }
    }

    /// The provider's own number.
    pub const fn id(&self) -> u64 {
        self.id
    }
}

/// How large a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// Requests in flight on one queue pair, each direction; the provider's limit caps it.
    pub depth: usize,
    /// Gather entries in flight on one queue pair.
    pub sges: usize,
    /// Receives in the shared receive queue.
    pub shared_receives: usize,
    /// Completed sends wake a sleeper once they are half of those that a queue pair had in flight,
    /// instead of at the first. Of lent ones those count that are back. For a sender that keeps
    /// many in flight and has nothing to do before. A hint: a provider may wake earlier, and
    /// everything else wakes at once (sentence **half** of [`port`](crate::port)).
    pub wake_at_half: bool,
    /// Peers may send regions ([`RawWork::SendRegion`](crate::port::RawWork)): this end carries out
    /// what they describe. Unless it is said, a peer that sends one is disconnected: a protocol
    /// that has none need not vouch for what they cost.
    pub regions: bool,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self { depth: 128, sges: 1024, shared_receives: 1024, wake_at_half: false, regions: false }
    }
}
