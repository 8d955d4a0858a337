//! The control side: `IbvProvider`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use overside_planner::{AtomicScope, Bends, Capabilities, ForeignMemory, Profile};
use overside_verbs::handshake::Key;
use overside_verbs::{
    Access, Link, Listener, Memory, MemoryRegion, Port, PortOptions, ProtectionDomain, Provider, VerbsError,
};

use crate::device::{self, Opened, gigabits};
use crate::endpoint::Endpoint;
use crate::limits::{Limits, Place};
use crate::port::IbvPort;
use crate::registry::Registry;
use crate::{handshake, listener};

/// The provider of an RDMA device.
#[derive(Debug)]
pub struct IbvProvider {
    shared: Arc<Shared>,
}

/// How a provider behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The device by name; the first with an active port when none is named.
    pub device: Option<String>,
    /// Requests in flight on one queue pair, at most; the device's own limit caps it.
    pub depth_max: usize,
    /// The pre-shared key. Without one nothing is proved: a listener must have a loopback address,
    /// and both ends take processes of this user only, as the kernel has it (the connector root's,
    /// too).
    pub key: Option<Key>,
    /// Without a key, take every user of this host, and connect to any: who can reach the port may
    /// do all that a peer may.
    pub anyone: bool,
    /// Whether what is said on side channels carries tags made with the key. What goes through the device never does.
    pub mac: bool,
    /// Queue pairs beyond which listeners take no more connections.
    pub connections_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { device: None, depth_max: 1024, key: None, anyone: false, mac: true, connections_max: 4096 }
    }
}

/// What provider, ports and listeners share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ours: Arc<Endpoint>,
    pub(crate) device: Opened,
    pub(crate) limits: Limits,
    pub(crate) place: Place,
    pub(crate) registry: Registry,
}

impl Shared {
    #[inline]
    pub(crate) fn check_fork(&self) -> Result<(), VerbsError> {
        self.device.context.fork.check()
    }

    #[inline]
    pub(crate) fn forked(&self) -> bool {
        self.device.context.fork.inherited()
    }
}

impl IbvProvider {
    /// Over the first device with an active port.
    ///
    /// # Errors
    /// When there is none; says what is missing and what to do.
    pub fn new() -> Result<Arc<Self>, VerbsError> {
        Self::with_options(Options::default())
    }

    /// Over a device of one's choice, with limits of one's own.
    ///
    /// # Errors
    /// When it is not there or cannot be opened; says what is missing and what to do.
    pub fn with_options(options: Options) -> Result<Arc<Self>, VerbsError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let device = device::open(options.device.as_deref())?;
        let limits = Limits::of(&device, options.depth_max)?;
        let place = Place::of(&device);
        let ours = Arc::new(Endpoint::new(NEXT.fetch_add(1, Ordering::Relaxed), &options)?);
        Ok(Arc::new(Self { shared: Arc::new(Shared { ours, device, limits, place, registry: Registry::default() }) }))
    }

    /// The device's name, as the system has it.
    pub fn device(&self) -> &str {
        &self.shared.device.name
    }
}

impl Provider for IbvProvider {
    fn capabilities(&self) -> Capabilities {
        let limits = &self.shared.limits;
        Capabilities {
            sge_max: limits.sge_max,
            inline_max: limits.inline_max,
            message_max: limits.message_max,
            depth_max: limits.depth_max,
            progress_by_itself: true,
            one_sided: true,
            // Never with the processor's, whatever a device says.
            atomics: if limits.atomics { AtomicScope::Device } else { AtomicScope::None },
            last_byte_last: limits.in_order,
            region_bytes_max: 0,
            foreign: ForeignMemory::Pushed,
            lends: false,
        }
    }

    fn profile(&self) -> Profile {
        default_profile(gigabits(&self.shared.device.port))
    }

    fn allocate_domain(&self) -> Result<ProtectionDomain, VerbsError> {
        self.shared.check_fork()?;
        Ok(ProtectionDomain::new(self.shared.registry.allocate_domain(&self.shared.device.context)?))
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
        Ok(Box::new(listener::bind(self.shared.ours.clone(), domain, name)?))
    }

    fn connect(&self, domain: &ProtectionDomain, name: &str, timeout: Duration) -> Result<Link, VerbsError> {
        self.shared.check_fork()?;
        handshake::connect(&self.shared.ours, domain, name, timeout)
    }

    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        self.shared.check_fork()?;
        Ok(Box::new(IbvPort::open(self.shared.clone(), domain, options)?))
    }
}

/// Before anything was measured: a NIC that reads the fragments itself, so their bytes cost neither processor anything, and
/// whose link takes its time for every byte (to-copy §5.1: an SGE costs the NIC tens of nanoseconds).
fn default_profile(gigabits: u32) -> Profile {
    Profile {
        send_request_ns: 150.0,
        send_fragment_ns: 15.0,
        send_byte_ns: 0.0,
        pack_byte_ns: 0.08,
        pack_piece_ns: 8.0,
        pack_request_ns: 200.0,
        row_ns: 4.0,
        receive_request_ns: 100.0,
        receive_fragment_ns: 0.0,
        receive_byte_ns: 0.0,
        wire_byte_ns: 8.0 / f64::from(gigabits),
        bends: Bends::default(),
        source: "default".to_owned(),
        elsewhere: None,
    }
}
