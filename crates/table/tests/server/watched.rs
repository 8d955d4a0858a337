//! A provider under a server, or a client: its ports come to an end, its lists are short, and it
//! counts what is registered with it.

use std::sync::atomic::AtomicUsize;

use overside_reference::{Change, Changed};
use overside_verbs::{Access, Capabilities, Memory, MemoryRegion, Port, PortOptions, ProtectionDomain, VerbsError};

use super::*;

#[derive(Debug)]
pub struct Watched {
    provider: Arc<dyn Provider>,
    ports_left: AtomicUsize,
    registered: AtomicUsize,
    /// Of them, those that a peer may READ or WRITE.
    reachable: AtomicUsize,
    /// What it says of gather lists.
    sge_max: usize,
}

impl Watched {
    pub fn new(ports: usize) -> Arc<Changed<Watched>> {
        Watched::of(ports, ShmProvider::new().unwrap().capabilities().sge_max)
    }

    /// With lists of so many entries.
    pub fn with_lists(sge_max: usize) -> Arc<Changed<Watched>> {
        Watched::of(usize::MAX, sge_max)
    }

    fn of(ports: usize, sge_max: usize) -> Arc<Changed<Watched>> {
        let (ports_left, registered, reachable) = (AtomicUsize::new(ports), AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Changed(Watched { provider: ShmProvider::new().unwrap(), ports_left, registered, reachable, sge_max }))
    }

    /// Memories that were registered so far.
    pub fn registered(&self) -> usize {
        self.registered.load(Ordering::Acquire)
    }

    /// Of them, those that a peer may READ or WRITE.
    pub fn reachable(&self) -> usize {
        self.reachable.load(Ordering::Acquire)
    }
}

impl Change for Watched {
    fn provider(&self) -> &dyn Provider {
        &*self.provider
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { sge_max: self.sge_max, ..self.provider.capabilities() }
    }
    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.registered.fetch_add(1, Ordering::AcqRel);
        self.reachable.fetch_add(usize::from(access != Access::LOCAL), Ordering::AcqRel);
        self.provider.register(domain, memory, access)
    }
    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        let left = self.ports_left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        left.map_err(|_| VerbsError::Unsupported("another port"))?;
        self.provider.open_port(domain, options)
    }
}
