//! The control side: `TcpProvider`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use overside_planner::{AtomicScope, Capabilities, ForeignMemory, Profile};
use overside_verbs::{
    Access, ForkMark, Link, Listener, Memory, MemoryRegion, Port, PortOptions, ProtectionDomain, Provider, VerbsError,
};

use crate::frame::MESSAGE_MAX;
use crate::options::Options;
use crate::port::TcpPort;
use crate::prices::{Prices, default_profile};
use crate::registry::Registry;
use crate::{handshake, listener};

/// The TCP provider of this process.
#[derive(Debug)]
pub struct TcpProvider {
    shared: Arc<Shared>,
}

/// What provider, ports and listeners share.
#[derive(Debug)]
pub(crate) struct Shared {
    id: u64,
    /// None where the system has no page for it: then a system call tells.
    fork: Option<ForkMark>,
    process: u32,
    pub(crate) registry: Registry,
    pub(crate) options: Options,
    pub(crate) prices: Arc<Prices>,
    /// Queue pairs of all ports.
    pub(crate) open: AtomicUsize,
}

impl Shared {
    /// Tells this provider's links from another's.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether this process is a child that inherited the provider: its locks may be held by threads that it does not have.
    pub(crate) fn inherited(&self) -> bool {
        self.fork.as_ref().map_or_else(|| self.process != std::process::id(), ForkMark::inherited)
    }

    /// `Err(Forked)` in a child.
    pub(crate) fn check_fork(&self) -> Result<(), VerbsError> {
        if self.inherited() { Err(VerbsError::Forked) } else { Ok(()) }
    }

    pub(crate) fn connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl TcpProvider {
    /// Without a key: for loopback.
    pub fn new() -> Arc<Self> {
        Self::with_options(Options::default())
    }

    /// With a key, or other limits.
    pub fn with_options(options: Options) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let shared = Arc::new(Shared {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            fork: ForkMark::new().ok(),
            process: std::process::id(),
            registry: Registry::default(),
            options,
            prices: Arc::default(),
            open: AtomicUsize::new(0),
        });
        Arc::new(Self { shared })
    }
}

impl TcpProvider {
    #[cfg(any(test, fuzzing))]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Provider for TcpProvider {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sge_max: SGE_MAX,
            inline_max: INLINE_MAX,
            message_max: MESSAGE_MAX,
            depth_max: DEPTH_MAX,
            progress_by_itself: self.shared.options.progress,
            one_sided: true,
            atomics: AtomicScope::Cpu,
            last_byte_last: true,
            region_bytes_max: 0,
            foreign: ForeignMemory::Direct,
            lends: false,
        }
    }

    fn profile(&self) -> Profile {
        default_profile(self.shared.options.tags())
    }

    fn learn(&self, prices: &Profile) -> bool {
        self.shared.prices.learn(prices, self.shared.options.tags());
        true
    }

    fn allocate_domain(&self) -> Result<ProtectionDomain, VerbsError> {
        self.shared.check_fork()?;
        Ok(ProtectionDomain::new(self.shared.registry.allocate_domain()))
    }

    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.shared.check_fork()?;
        self.shared.registry.register(domain.id(), memory, access)
    }

    fn deregister(&self, region: MemoryRegion) -> Result<(), VerbsError> {
        self.shared.check_fork()?;
        self.shared.registry.deregister(&region)
    }

    fn listen(&self, domain: &ProtectionDomain, name: &str) -> Result<Box<dyn Listener>, VerbsError> {
        self.shared.check_fork()?;
        Ok(Box::new(listener::bind(self.shared.clone(), domain, name)?))
    }

    fn connect(&self, domain: &ProtectionDomain, name: &str, timeout: Duration) -> Result<Link, VerbsError> {
        self.shared.check_fork()?;
        handshake::connect(self.shared.id(), &self.shared.options, domain, name, timeout)
    }

    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        self.shared.check_fork()?;
        Ok(Box::new(TcpPort::open(self.shared.clone(), domain, options)?))
    }
}

/// Gather entries of a request: an iovec has 1,024, of which head and tags take up to three.
pub(crate) const SGE_MAX: usize = 1020;
/// Inline bytes are copied next to their head.
pub(crate) const INLINE_MAX: usize = 2048;
/// Requests in flight on a queue pair.
pub(crate) const DEPTH_MAX: usize = 4096;
