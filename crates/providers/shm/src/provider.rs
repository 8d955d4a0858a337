//! The control side: `ShmProvider`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use overside_planner::{AtomicScope, Bends, Capabilities, ForeignMemory, Profile};
use overside_verbs::{
    Access, ForkMark, Link, Listener, Memory, MemoryRegion, Port, PortOptions, ProtectionDomain, Provider, VerbsError,
};

use crate::mappings::Limits;
use crate::port::ShmPort;
use crate::registry::Registry;
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
    id: u64,
    pub(crate) fork: ForkMark,
    pub(crate) registry: Registry,
    options: Options,
}

impl Shared {
    /// Tells this provider's links from another's.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

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
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let shared = Arc::new(Shared {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            fork: ForkMark::new()?,
            registry: Registry::default(),
            options,
        });
        Ok(Arc::new(Self { shared }))
    }

    /// Tells this provider's links from another's.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn id(&self) -> u64 {
        self.shared.id()
    }

    fn check_fork(&self) -> Result<(), VerbsError> {
        self.shared.fork.check()
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
        self.check_fork()?;
        Ok(ProtectionDomain::new(self.shared.registry.allocate_domain()))
    }

    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.check_fork()?;
        self.shared.registry.register(domain.id(), memory, access)
    }

    fn deregister(&self, region: MemoryRegion) -> Result<(), VerbsError> {
        self.check_fork()?;
        self.shared.registry.deregister(&region)
    }

    fn listen(&self, domain: &ProtectionDomain, name: &str) -> Result<Box<dyn Listener>, VerbsError> {
        self.check_fork()?;
        Ok(Box::new(listener::bind(self.shared.clone(), domain, name)?))
    }

    fn connect(&self, domain: &ProtectionDomain, name: &str, timeout: Duration) -> Result<Link, VerbsError> {
        self.check_fork()?;
        handshake::connect(self.shared.id(), domain, name, timeout)
    }

    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        self.check_fork()?;
        Ok(Box::new(ShmPort::open(self.shared.clone(), domain, options)?))
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
