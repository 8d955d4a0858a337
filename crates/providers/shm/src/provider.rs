//! The control side: `ShmProvider`.

use std::sync::Arc;
use std::time::Duration;

use overside_planner::{AtomicScope, Bends, Capabilities, ForeignMemory, Profile};
use overside_verbs::{
    Access, ForkMark, Instance, Link, Listener, Memory, MemoryRegion, Port, PortOptions, ProtectionDomain, Provider,
    VerbsError,
};

use crate::mappings::Limits;
use crate::port::ShmPort;
use crate::registry::{self, Peers, Registry};
use crate::ring::{DEPTH_MAX, DESCRIPTION_MAX, INLINE_MAX, MESSAGE_MAX, SGE_MAX};
use crate::{handshake, listener};

/// The shared-memory provider of this process.
#[derive(Debug)]
pub struct ShmProvider {
    shared: Arc<Shared>,
}

/// How much a peer may make this process map, on one connection. All peers together are bounded
/// besides: those that connected to this process by a quarter of the mappings that the system lets
/// a process have (`vm.max_map_count`), those that it connected to by three quarters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Segments, and as many granted regions, of a peer that connected to this process. One that
    /// this process connected to was chosen by it, and may be a server whose tables are thousands
    /// of segments.
    pub peer_segments_max: usize,
    /// Bytes of segments, and as many of granted regions, of any peer.
    pub peer_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { peer_segments_max: SEGMENTS_MAX, peer_bytes_max: 1 << 40 }
    }
}

/// What provider, ports and listeners share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) instance: Arc<Instance>,
    pub(crate) registry: Registry,
    options: Options,
}

impl Shared {
    pub(crate) fn limits(&self, chosen: bool) -> Limits {
        Limits { segments: self.options.peer_segments_max, bytes: self.options.peer_bytes_max, chosen }
    }
}

impl ShmProvider {
    /// With the default limits.
    ///
    /// # Errors
    /// When the system has no page left.
    pub fn new() -> Result<Arc<Self>, VerbsError> {
        Self::with_options(Options::default())
    }

    /// With limits of one's own.
    ///
    /// # Errors
    /// When the system has no page left.
    pub fn with_options(options: Options) -> Result<Arc<Self>, VerbsError> {
        let instance = Instance::new(Some(ForkMark::new()?));
        let registry = Registry::new(instance.clone());
        Ok(Arc::new(Self { shared: Arc::new(Shared { instance, registry, options }) }))
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn instance(&self) -> &Instance {
        &self.shared.instance
    }
}

impl Provider for ShmProvider {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sge_max: SGE_MAX,
            inline_max: INLINE_MAX,
            message_max: MESSAGE_MAX,
            depth_max: DEPTH_MAX,
            progress_by_itself: true,
            one_sided: true,
            atomics: AtomicScope::Cpu,
            last_byte_last: true,
            region_bytes_max: DESCRIPTION_MAX,
            foreign: ForeignMemory::Pushed,
            lends: true,
        }
    }

    fn profile(&self) -> Profile {
        default_profile()
    }

    fn allocate_domain(&self) -> Result<ProtectionDomain, VerbsError> {
        self.shared.registry.allocate_domain(Peers::default())
    }

    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        registry::register(&self.shared.registry, domain, memory, access)
    }

    fn deregister(&self, region: MemoryRegion) -> Result<(), VerbsError> {
        registry::deregister(&self.shared.registry, &region)
    }

    fn listen(&self, domain: &ProtectionDomain, name: &str) -> Result<Box<dyn Listener>, VerbsError> {
        listener::bind(&self.shared.instance, domain, name)
    }

    fn connect(&self, domain: &ProtectionDomain, name: &str, timeout: Duration) -> Result<Link, VerbsError> {
        handshake::connect(&self.shared.instance, domain, name, timeout)
    }

    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        Ok(self.shared.instance.guard(ShmPort::open(self.shared.clone(), domain, options)?))
    }
}

/// Segments and regions of a peer that was let in: far more than a client has, and few enough for
/// thousands of clients.
pub(crate) const SEGMENTS_MAX: usize = 1024;

/// Before anything was measured: figures of a two-core server of 2024.
fn default_profile() -> Profile {
    Profile {
        send_request_ns: 550.0,
        send_fragment_ns: 20.0,
        send_byte_ns: 0.0,
        pack_byte_ns: 0.09,
        pack_piece_ns: 12.0,
        pack_request_ns: 280.0,
        row_ns: 4.0,
        receive_request_ns: 500.0,
        receive_fragment_ns: 24.0,
        receive_byte_ns: 0.055,
        wire_byte_ns: 0.0,
        bends: Bends::default(),
        source: "default".to_owned(),
        elsewhere: None,
    }
}
