//! Another provider, of which a test changes a few calls.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use overside_planner::{Capabilities, Profile};
use overside_verbs::port::Port;
use overside_verbs::{
    Access, Clock, Link, Listener, Memory, MemoryRegion, PortOptions, ProtectionDomain, Provider, VerbsError,
};

/// What a test changes of a provider: whatever is not written here goes to it as it is.
pub trait Change: Debug + Send + Sync {
    /// The provider.
    fn provider(&self) -> &dyn Provider;

    /// As of a [`Provider`].
    fn capabilities(&self) -> Capabilities {
        self.provider().capabilities()
    }

    /// As of a [`Provider`].
    ///
    /// # Errors
    /// As there.
    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.provider().register(domain, memory, access)
    }

    /// As of a [`Provider`].
    ///
    /// # Errors
    /// As there.
    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        self.provider().open_port(domain, options)
    }
}

/// A provider that is another one but for this [`Change`].
#[derive(Debug)]
pub struct Changed<C>(pub C);

impl<C> Deref for Changed<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0
    }
}

impl<C: Change> Provider for Changed<C> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn profile(&self) -> Profile {
        self.provider().profile()
    }

    fn learn(&self, prices: &Profile) -> bool {
        self.provider().learn(prices)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.provider().clock()
    }

    fn allocate_domain(&self) -> Result<ProtectionDomain, VerbsError> {
        self.provider().allocate_domain()
    }

    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.0.register(domain, memory, access)
    }

    fn deregister(&self, region: MemoryRegion) -> Result<(), VerbsError> {
        self.provider().deregister(region)
    }

    fn listen(&self, domain: &ProtectionDomain, name: &str) -> Result<Box<dyn Listener>, VerbsError> {
        self.provider().listen(domain, name)
    }

    fn connect(&self, domain: &ProtectionDomain, name: &str, timeout: Duration) -> Result<Link, VerbsError> {
        self.provider().connect(domain, name, timeout)
    }

    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        self.0.open_port(domain, options)
    }
}
