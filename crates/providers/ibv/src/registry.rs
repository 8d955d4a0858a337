//! Registered memory, by protection domain, and who must hear when it goes.

use std::sync::Arc;

use overside_memory::SegmentId;
use overside_verbs::registry;
use overside_verbs::{Access, Memory, MemoryRegion, ProtectionDomain, VerbsError, random};

use crate::ffi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE};
use crate::objects::{Context, Domain, Region};
use crate::status::Fate;
use crate::token;

/// All registrations of a provider.
pub(crate) type Registry = registry::Registry<Arc<Domain>, Arc<Region>, Letter>;
/// Where a port hears what other threads tell it.
pub(crate) type Mailbox = registry::Mailbox<Letter>;

/// What a port is told by other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Letter {
    /// A registration of the segment has ended.
    Gone(SegmentId),
    /// The queue pair of this number has failed, and why.
    Pair(u32, Fate),
    /// So has the completion queue or shared receive queue that lies there.
    Queue(usize),
    /// So has the device.
    Device,
}

impl From<SegmentId> for Letter {
    fn from(id: SegmentId) -> Self {
        Letter::Gone(id)
    }
}

/// A new domain.
pub(crate) fn allocate_domain(registry: &Registry, context: &Arc<Context>) -> Result<ProtectionDomain, VerbsError> {
    registry.instance().check()?;
    registry.allocate_domain(Arc::new(Domain::new(context)?))
}

/// Registers, at a place of the device's address space that nobody guesses.
pub(crate) fn register(
    registry: &Registry,
    domain: &ProtectionDomain,
    memory: &Memory,
    access: Access,
) -> Result<MemoryRegion, VerbsError> {
    registry.register(domain, memory, access, |domain| {
        let region = Arc::new(domain.register(memory, random_place(memory)?, device_access(access))?);
        Ok((token::pack(region.rkey, region.iova), region))
    })
}

/// Ends a registration: for a window at once, for a segment when no port has requests in flight
/// that name it.
pub(crate) fn deregister(registry: &Registry, region: &MemoryRegion) -> Result<(), VerbsError> {
    registry.deregister(region, |_, _, _| ()).map(drop)
}

/// A registration of the segment in the domain, if there is one.
pub(crate) fn region(registry: &Registry, domain: u64, id: SegmentId) -> Option<Arc<Region>> {
    registry.segment(domain, id, |region| region.own.clone())
}

fn device_access(access: Access) -> u32 {
    let bit = |right, bit| if access.contains(right) { bit } else { 0 };
    IBV_ACCESS_LOCAL_WRITE
        | bit(Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ)
        | bit(Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE)
        | bit(Access::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC)
}

/// Where the memory begins for the device: at random, but placed in huge pages as it is for the
/// processor.
fn random_place(memory: &Memory) -> Result<u64, VerbsError> {
    let address = crate::objects::place(memory)?.0 as u64;
    let random = u64::from_le_bytes(random()?);
    Ok((random & PLACES | HUGE_PAGE) + (address & (HUGE_PAGE - 1)))
}

const HUGE_PAGE: u64 = 2 << 20;
/// Whole huge pages below 2^46, which every device can address.
const PLACES: u64 = (1 << 46) - HUGE_PAGE;
