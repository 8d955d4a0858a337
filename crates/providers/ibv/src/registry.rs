//! Registered memory, by protection domain, and who must hear when it goes.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use overside_memory::SegmentId;
use overside_verbs::watch::failed;
use overside_verbs::{Access, Memory, MemoryRegion, VerbsError, random};
use rustix::event::EventfdFlags;

use crate::ffi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE};
use crate::objects::{Context, Domain, Region};
use crate::status::Fate;
use crate::token;

/// All domains of a provider.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    regions: HashMap<u128, Entry>,
    domains: Vec<Place>,
}

#[derive(Debug)]
struct Entry {
    domain: u64,
    region: Arc<Region>,
    segment: Option<SegmentId>,
}

#[derive(Debug)]
struct Place {
    domain: Arc<Domain>,
    segments: HashMap<SegmentId, Vec<Arc<Region>>>,
    ports: Vec<Weak<Mail>>,
}

/// What a port is told by other threads.
#[derive(Debug)]
pub(crate) struct Mail {
    letters: Mutex<Letters>,
    any: AtomicBool,
    bell: OwnedFd,
}

/// Segments that are no longer registered, and what the device says has failed.
#[derive(Debug, Default)]
pub(crate) struct Letters {
    pub(crate) gone: Vec<SegmentId>,
    pub(crate) failed: Vec<Failed>,
}

/// What the device says has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The queue pair of this number, and why.
    Pair(u32, Fate),
    /// The completion queue or shared receive queue that lies there.
    Queue(usize),
    /// Itself.
    Device,
}

impl Mail {
    fn new() -> Result<Self, VerbsError> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| failed("eventfd", e))?;
        Ok(Self { letters: Mutex::default(), any: AtomicBool::new(false), bell })
    }

    /// Takes what has come in; nothing, cheaply, as a rule.
    #[inline]
    pub(crate) fn take(&self) -> Option<Letters> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        Some(std::mem::take(&mut letters))
    }

    /// Writes, and wakes the port: one that sleeps keeps memory which nobody uses.
    fn put(&self, write: impl FnOnce(&mut Letters)) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        write(&mut letters);
        self.any.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Readable while there is a letter.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Registry {
    /// A new domain's number.
    pub(crate) fn allocate_domain(&self, context: &Arc<Context>) -> Result<u64, VerbsError> {
        let domain = Arc::new(Domain::new(context)?);
        let mut state = self.lock();
        state.domains.push(Place { domain, segments: HashMap::new(), ports: Vec::new() });
        Ok((state.domains.len() - 1) as u64)
    }

    /// Registers, at a place of the device's address space that nobody guesses.
    pub(crate) fn register(&self, domain: u64, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        check_access(memory, access)?;
        let mut state = self.lock();
        let State { regions, domains } = &mut *state;
        let place = domains.get_mut(domain as usize).ok_or(UNKNOWN_DOMAIN)?;
        let region = Arc::new(place.domain.register(memory, random_place(memory)?, device_access(access))?);
        let segment = match memory {
            Memory::Segment(segment) => {
                place.segments.entry(segment.id()).or_default().push(region.clone());
                Some(segment.id())
            }
            Memory::Window(_) => None,
        };
        let key = token::pack(region.rkey, region.iova);
        regions.insert(key, Entry { domain, region, segment });
        Ok(MemoryRegion::new(memory.clone(), access, key))
    }

    /// Ends a registration: for a window at once, for a segment when no port has requests in flight that name it.
    pub(crate) fn deregister(&self, region: &MemoryRegion) -> Result<(), VerbsError> {
        let mut state = self.lock();
        let State { regions, domains } = &mut *state;
        let ended = regions
            .remove(&region.token().rkey)
            .ok_or(VerbsError::Unsupported("deregistering another provider's region"))?;
        let place = domains.get_mut(ended.domain as usize).ok_or(UNKNOWN_DOMAIN)?;
        if let Some(id) = ended.segment {
            if let Some(known) = place.segments.get_mut(&id) {
                known.retain(|region| !Arc::ptr_eq(region, &ended.region));
                if known.is_empty() {
                    place.segments.remove(&id);
                }
            }
            place.ports.retain(|port| port.upgrade().inspect(|mail| mail.put(|l| l.gone.push(id))).is_some());
        }
        Ok(())
    }

    /// A registration of the segment in the domain, if there is one.
    pub(crate) fn region(&self, domain: u64, id: SegmentId) -> Option<Arc<Region>> {
        self.lock().domains.get(domain as usize)?.segments.get(&id)?.last().cloned()
    }

    /// The domain itself; its ports hear of what is gone by the mail.
    pub(crate) fn open_port(&self, domain: u64) -> Result<(Arc<Domain>, Arc<Mail>), VerbsError> {
        let mut state = self.lock();
        let place = state.domains.get_mut(domain as usize).ok_or(UNKNOWN_DOMAIN)?;
        let mail = Arc::new(Mail::new()?);
        place.ports.retain(|port| port.strong_count() > 0);
        place.ports.push(Arc::downgrade(&mail));
        Ok((place.domain.clone(), mail))
    }

    /// Tells every port of what the device said.
    pub(crate) fn announce(&self, failed: Failed) {
        let state = self.lock();
        for mail in state.domains.iter().flat_map(|place| &place.ports).filter_map(Weak::upgrade) {
            mail.put(|letters| letters.failed.push(failed));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_access(memory: &Memory, access: Access) -> Result<(), VerbsError> {
    let writes = access.bits() & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).bits() != 0;
    match memory {
        Memory::Segment(_) if writes => Err(VerbsError::Unsupported(
            "remote writes to a segment, whose bytes are lent as slices; register a window",
        )),
        Memory::Window(window) if !window.is_ours() => {
            Err(VerbsError::Unsupported("registering a peer's window; its owner grants it"))
        }
        _ => Ok(()),
    }
}

fn device_access(access: Access) -> u32 {
    let bit = |right, bit| if access.contains(right) { bit } else { 0 };
    IBV_ACCESS_LOCAL_WRITE
        | bit(Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ)
        | bit(Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE)
        | bit(Access::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC)
}

/// Where the memory begins for the device: at random, but placed in huge pages as it is for the processor.
fn random_place(memory: &Memory) -> Result<u64, VerbsError> {
    let address = crate::objects::place(memory)?.0 as u64;
    let random = u64::from_le_bytes(random()?);
    Ok((random & PLACES | HUGE_PAGE) + (address & (HUGE_PAGE - 1)))
}

const UNKNOWN_DOMAIN: VerbsError = VerbsError::Unsupported("a protection domain of another provider");
const HUGE_PAGE: u64 = 2 << 20;
/// Whole huge pages below 2^46, which every device can address.
const PLACES: u64 = (1 << 46) - HUGE_PAGE;
