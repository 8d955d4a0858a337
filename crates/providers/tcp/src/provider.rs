//! The control side: `TcpProvider`.

use std::sync::Arc;
use std::time::Duration;

use overside_planner::{AtomicScope, Capabilities, ForeignMemory, Profile};
use overside_verbs::handshake::Party;
use overside_verbs::{
    Access, ForkMark, Instance, Link, Listener, Memory, MemoryRegion, Port, PortOptions, ProtectionDomain, Provider,
    VerbsError,
};

use crate::address;
use crate::frame::MESSAGE_MAX;
use crate::handshake::{Wire, terms};
use crate::options::Options;
use crate::port::TcpPort;
use crate::prices::{Prices, default_profile};
use crate::registry::{self, Registry};

/// The TCP provider of this process.
#[derive(Debug)]
pub struct TcpProvider {
    shared: Arc<Shared>,
}

/// What provider, ports and listeners share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) party: Arc<Party>,
    pub(crate) registry: Registry,
    pub(crate) options: Options,
    pub(crate) prices: Arc<Prices>,
}

impl Shared {
    pub(crate) fn instance(&self) -> &Arc<Instance> {
        self.party.instance()
    }
}

impl TcpProvider {
    /// Without a key: for loopback.
    pub fn new() -> Arc<Self> {
        Self::with_options(Options::default())
    }

    /// With a key, or other limits.
    pub fn with_options(options: Options) -> Arc<Self> {
        let instance = Instance::new(ForkMark::new().ok());
        let registry = Registry::new(instance.clone());
        let party = Party::new(instance, terms(&options), options.anyone, options.connections_max);
        Arc::new(Self { shared: Arc::new(Shared { party, registry, options, prices: Arc::default() }) })
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
        self.shared.registry.allocate_domain(())
    }

    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        registry::register(&self.shared.registry, domain, memory, access)
    }

    fn deregister(&self, region: MemoryRegion) -> Result<(), VerbsError> {
        registry::deregister(&self.shared.registry, &region)
    }

    fn listen(&self, domain: &ProtectionDomain, name: &str) -> Result<Box<dyn Listener>, VerbsError> {
        self.shared.party.listen(domain, (name, &address::resolve(name)?), Wire::new)
    }

    fn connect(&self, domain: &ProtectionDomain, name: &str, timeout: Duration) -> Result<Link, VerbsError> {
        self.shared.party.connect(domain, (name, &address::resolve(name)?), timeout, Wire::new)
    }

    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        Ok(self.shared.instance().guard(TcpPort::open(self.shared.clone(), domain, options)?))
    }
}

/// Gather entries of a request: an iovec has 1,024, of which head and tags take up to three.
pub(crate) const SGE_MAX: usize = 1020;
/// Inline bytes are copied next to their head.
pub(crate) const INLINE_MAX: usize = 2048;
/// Requests in flight on a queue pair.
pub(crate) const DEPTH_MAX: usize = 4096;
