//! What may be touched: protection domains with their memory, and whom that concerns.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use overside_memory::{Segment, SegmentId};
use overside_verbs::watch::failed;
use overside_verbs::{Access, Memory, MemoryRegion, VerbsError, random};
use rustix::event::EventfdFlags;

use crate::channel::{Carried, Channel};
use crate::messages::Message;
use crate::provider::SEGMENTS_MAX;
use crate::send::limit;

/// All registrations of a provider.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    regions: HashMap<u128, Region>,
    domains: Vec<Domain>,
}

#[derive(Debug)]
struct Region {
    domain: u64,
    memory: Memory,
    access: Access,
}

#[derive(Debug, Default)]
struct Domain {
    /// Segments and how often each is registered.
    segments: HashMap<SegmentId, (Arc<Segment>, usize)>,
    /// Regions that peers are granted.
    granted: usize,
    channels: Vec<Weak<Channel>>,
    ports: Vec<Weak<Mail>>,
}

/// What a port is told by other threads: segments that are no longer registered.
#[derive(Debug)]
pub(crate) struct Mail {
    gone: Mutex<Vec<SegmentId>>,
    any: AtomicBool,
    /// Readable while there is something: a port that sleeps keeps memory which nobody uses.
    bell: OwnedFd,
}

impl Mail {
    fn new() -> Result<Self, VerbsError> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|errno| failed("eventfd", errno))?;
        Ok(Self { gone: Mutex::default(), any: AtomicBool::new(false), bell })
    }

    /// To be watched by the port.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Whether something has come in.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Takes what has come in; nothing, cheaply, as a rule.
    #[inline]
    pub(crate) fn take(&self) -> Vec<SegmentId> {
        if !self.any.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut gone)
    }

    fn put(&self, id: SegmentId) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.push(id);
        // Many deregistrations before the port looks wake it once.
        if !self.any.swap(true, Ordering::Relaxed) {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Registry {
    /// A new domain's number.
    pub(crate) fn allocate_domain(&self) -> u64 {
        let mut state = self.lock();
        state.domains.push(Domain::default());
        (state.domains.len() - 1) as u64
    }

    /// Registers; peers connected in the domain are granted what is remotely accessible at once.
    pub(crate) fn register(&self, domain: u64, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        check_access(memory, access)?;
        let rkey = u128::from_le_bytes(random()?);
        let mut state = self.lock();
        let State { regions, domains } = &mut *state;
        let place = domains.get_mut(domain as usize).ok_or(UNKNOWN_DOMAIN)?;
        let region = Region { domain, memory: memory.clone(), access };
        if let Some((message, carried)) = region.grant(rkey) {
            if place.connected().any(|channel| channel.made) {
                limit_grants(place.granted + 1)?;
            }
            place.granted += 1;
            place.connected().for_each(|channel| channel.send(&message, carried.clone()));
        }
        if let Memory::Segment(segment) = memory {
            place.segments.entry(segment.id()).or_insert_with(|| (segment.clone(), 0)).1 += 1;
        }
        regions.insert(rkey, region);
        Ok(MemoryRegion::new(memory.clone(), access, rkey))
    }

    /// Ends a registration. Ports forget the segment as they progress, woken if they sleep; peers the key at once.
    pub(crate) fn deregister(&self, region: &MemoryRegion) -> Result<(), VerbsError> {
        let rkey = region.token().rkey;
        let mut state = self.lock();
        let State { regions, domains } = &mut *state;
        let ended = regions.remove(&rkey).ok_or(VerbsError::Unsupported("deregistering another provider's region"))?;
        let place = domains.get_mut(ended.domain as usize).ok_or(UNKNOWN_DOMAIN)?;
        if ended.grant(rkey).is_some() {
            place.granted -= 1;
            place.connected().for_each(|channel| channel.send(&Message::Revoke { rkey }, Carried::Nothing));
        }
        if let Memory::Segment(segment) = &ended.memory
            && let Some((_, times)) = place.segments.get_mut(&segment.id())
        {
            *times -= 1;
            if *times == 0 {
                place.segments.remove(&segment.id());
                place.ports.retain(|port| port.upgrade().inspect(|mail| mail.put(segment.id())).is_some());
            }
        }
        Ok(())
    }

    /// The segment, if it is registered in the domain.
    pub(crate) fn segment(&self, domain: u64, id: SegmentId) -> Option<Arc<Segment>> {
        let state = self.lock();
        state.domains.get(domain as usize)?.segments.get(&id).map(|(segment, _)| segment.clone())
    }

    /// A connection becomes part of a domain: it is granted what is there, and what comes.
    pub(crate) fn join(&self, domain: u64, channel: &Arc<Channel>) -> Result<(), VerbsError> {
        let mut state = self.lock();
        let State { regions, domains } = &mut *state;
        let place = domains.get_mut(domain as usize).ok_or(UNKNOWN_DOMAIN)?;
        if channel.made {
            limit_grants(place.granted)?;
        }
        place.channels.retain(|known| known.strong_count() > 0);
        place.channels.push(Arc::downgrade(channel));
        for (rkey, region) in regions.iter().filter(|(_, region)| region.domain == domain) {
            if let Some((message, carried)) = region.grant(*rkey) {
                channel.send(&message, carried);
            }
        }
        Ok(())
    }

    /// A port hears of what is gone.
    pub(crate) fn open_port(&self, domain: u64) -> Result<Arc<Mail>, VerbsError> {
        let mut state = self.lock();
        let place = state.domains.get_mut(domain as usize).ok_or(UNKNOWN_DOMAIN)?;
        let mail = Arc::new(Mail::new()?);
        place.ports.retain(|port| port.strong_count() > 0);
        place.ports.push(Arc::downgrade(&mail));
        Ok(mail)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Domain {
    fn connected(&self) -> impl Iterator<Item = Arc<Channel>> + '_ {
        self.channels.iter().filter_map(Weak::upgrade)
    }
}

impl Region {
    /// What peers are told of it; nothing for what only its owner uses.
    fn grant(&self, rkey: u128) -> Option<(Message, Carried)> {
        if self.access.bits() & !Access::LOCAL.bits() == 0 {
            return None;
        }
        let writes = self.access.bits() & WRITES != 0;
        let carried = match &self.memory {
            Memory::Segment(segment) => Carried::Segment(segment.clone()),
            Memory::Window(window) => Carried::Window(window.clone(), writes),
        };
        let len = self.memory.len() as u64;
        Some((Message::Grant { rkey, access: self.access.bits(), window: writes, len }, carried))
    }
}

/// A peer that was connected to lets a connection grant so much and no more.
fn limit_grants(granted: usize) -> Result<(), VerbsError> {
    limit("the number of regions granted to a peer that was connected to", granted as u64, SEGMENTS_MAX as u64)
}

fn check_access(memory: &Memory, access: Access) -> Result<(), VerbsError> {
    let writes = access.bits() & WRITES != 0;
    match memory {
        Memory::Segment(_) if writes => {
            Err(VerbsError::Unsupported("remote writes to a segment, which peers map read-only; register a window"))
        }
        Memory::Segment(segment) if access.contains(Access::REMOTE_READ) && segment.fd().is_none() => {
            Err(VerbsError::Unsupported("remote reads of a private segment; make it with Segment::shared"))
        }
        Memory::Window(window) if !window.is_ours() => {
            Err(VerbsError::Unsupported("registering a peer's window; its owner grants it"))
        }
        // The descriptor is what a peer's right rests on, so it must not give more than was asked for.
        Memory::Window(window) if access.bits() & !Access::LOCAL.bits() != 0 => Ok(window.share(writes).map(drop)?),
        _ => Ok(()),
    }
}

/// Rights for which a peer maps the memory to be written.
const WRITES: u8 = Access::REMOTE_WRITE.bits() | Access::REMOTE_ATOMIC.bits();
const UNKNOWN_DOMAIN: VerbsError = VerbsError::Unsupported("a protection domain of another provider");
