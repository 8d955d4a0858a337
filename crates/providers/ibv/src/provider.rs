//! The control side: `IbvProvider`.

use std::sync::Arc;
use std::time::Duration;

use overside_planner::{AtomicScope, Bends, Capabilities, ForeignMemory, Profile};
use overside_verbs::handshake::{Key, Party};
use overside_verbs::{
    Access, ForkMark, Instance, Link, Listener, Memory, MemoryRegion, Port, PortOptions, ProtectionDomain, Provider,
    VerbsError,
};

use crate::address;
use crate::device::{self, Opened, gigabits};
use crate::handshake::{Wire, party};
use crate::limits::{Limits, PortAddress};
use crate::port::IbvPort;
use crate::process::Process;
use crate::registry::{self, Registry};

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
    /// Whether what is said on side channels carries tags made with the key. What goes through the
    /// device never does.
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
    pub(crate) party: Arc<Party>,
    /// Whose end peers of this host watch.
    pub(crate) process: Option<Process>,
    pub(crate) device: Opened,
    pub(crate) limits: Limits,
    pub(crate) place: PortAddress,
    pub(crate) registry: Registry,
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
        let device = device::open(options.device.as_deref())?;
        let limits = Limits::of(&device, options.depth_max)?;
        let place = PortAddress::of(&device);
        let instance = Instance::new(Some(ForkMark::new()?));
        let (registry, process) = (Registry::new(instance.clone()), Process::this());
        let party = party(instance, &options);
        Ok(Arc::new(Self { shared: Arc::new(Shared { party, process, device, limits, place, registry }) }))
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
        registry::allocate_domain(&self.shared.registry, &self.shared.device.context)
    }

    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        registry::register(&self.shared.registry, domain, memory, access)
    }

    fn deregister(&self, region: MemoryRegion) -> Result<(), VerbsError> {
        registry::deregister(&self.shared.registry, &region)
    }

    fn listen(&self, domain: &ProtectionDomain, name: &str) -> Result<Box<dyn Listener>, VerbsError> {
        self.shared.party.listen(domain, (name, &[address::resolve(name)?]), Wire::new)
    }

    fn connect(&self, domain: &ProtectionDomain, name: &str, timeout: Duration) -> Result<Link, VerbsError> {
        self.shared.party.connect(domain, (name, &[address::resolve(name)?]), timeout, Wire::new)
    }

    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        Ok(self.shared.party.instance().guard(IbvPort::open(self.shared.clone(), domain, options)?))
    }
}

/// Before anything was measured: a NIC that reads the fragments itself, so their bytes cost
/// neither processor anything. Its link takes its time for every byte (to-copy §5.1: an SGE costs
/// the NIC tens of nanoseconds).
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
