//! What may be touched: protection domains with their memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use overside_memory::{Fragment, MemoryError, SegmentId};
use overside_verbs::{Access, Memory, MemoryRegion, VerbsError, random};

/// All registrations of a provider.
#[derive(Debug, Default)]
pub struct Registry {
    state: Mutex<State>,
    /// Raised by every deregistration: what a port remembers is void then.
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    regions: HashMap<u128, Region>,
    /// Segments of each domain: where they lie and how often each is registered.
    domains: Vec<HashMap<SegmentId, (Range, usize)>>,
}

#[derive(Debug)]
struct Region {
    domain: u64,
    reach: Reach,
    len: u64,
    access: Access,
}

/// A region's memory, until it is deregistered: a request that was let through before that touches nothing after.
#[derive(Clone, Debug)]
pub(crate) struct Reach(Arc<RwLock<Option<Memory>>>);

impl Reach {
    fn new(memory: Memory) -> Self {
        Self(Arc::new(RwLock::new(Some(memory))))
    }

    /// The memory, if it is still registered; it remains so while the guard is held.
    pub(crate) fn memory(&self) -> RwLockReadGuard<'_, Option<Memory>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody reaches it any more; waits for whoever touches it now.
    fn end(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Addresses of a segment.
#[derive(Clone, Copy, Debug)]
struct Range {
    base: usize,
    len: usize,
}

impl Registry {
    /// A new domain's number.
    pub fn allocate_domain(&self) -> u64 {
        let mut state = self.lock();
        state.domains.push(HashMap::new());
        (state.domains.len() - 1) as u64
    }

    /// Registers.
    ///
    /// # Errors
    /// When the access is one that this memory does not allow.
    pub fn register(&self, domain: u64, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        let writes = access.bits() & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).bits() != 0;
        if matches!(memory, Memory::Segment(_)) && writes {
            let what = "remote writes to a segment, whose bytes are its owner's to borrow; register a window";
            return Err(VerbsError::Unsupported(what));
        }
        let rkey = u128::from_le_bytes(random()?);
        let mut state = self.lock();
        let State { regions, domains } = &mut *state;
        let place = domains.get_mut(domain as usize).ok_or(UNKNOWN_DOMAIN)?;
        if let Memory::Segment(segment) = memory {
            let range = Range { base: segment.base().as_ptr() as usize, len: segment.len() };
            place.entry(segment.id()).or_insert((range, 0)).1 += 1;
        }
        let reach = Reach::new(memory.clone());
        regions.insert(rkey, Region { domain, reach, len: memory.len() as u64, access });
        Ok(MemoryRegion::new(memory.clone(), access, rkey))
    }

    /// Ends a registration. After it no request of a peer touches the memory, even one that is under way.
    pub(crate) fn deregister(&self, region: &MemoryRegion) -> Result<(), VerbsError> {
        let rkey = region.token().rkey;
        let mut state = self.lock();
        let State { regions, domains } = &mut *state;
        let ended = regions.remove(&rkey).ok_or(VerbsError::Unsupported("deregistering another provider's region"))?;
        let place = domains.get_mut(ended.domain as usize).ok_or(UNKNOWN_DOMAIN)?;
        if let Memory::Segment(segment) = &region.memory
            && let Some((_, times)) = place.get_mut(&segment.id())
        {
            *times -= 1;
            if *times == 0 {
                place.remove(&segment.id());
                self.generation.fetch_add(1, Ordering::Release);
            }
        }
        drop(state);
        ended.reach.end();
        Ok(())
    }

    /// What a peer connected in `domain` may do `right` to at `at..at + len` by this key; nothing, when key, right or range is wrong.
    pub(crate) fn reach(&self, domain: u64, rkey: u128, right: Access, at: u64, len: u64) -> Option<Reach> {
        let state = self.lock();
        let region = state.regions.get(&rkey)?;
        let inside = at.checked_add(len).is_some_and(|end| end <= region.len);
        (region.domain == domain && region.access.contains(right) && inside).then(|| region.reach.clone())
    }

    fn segment(&self, domain: u64, id: SegmentId) -> Option<Range> {
        self.lock().domains.get(domain as usize)?.get(&id).map(|(range, _)| *range)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a port remembers of its domain's segments.
#[derive(Debug, Default)]
pub(crate) struct Known {
    generation: u64,
    ranges: HashMap<SegmentId, Range>,
    last: Option<(SegmentId, Range)>,
}

impl Known {
    /// Checks that a fragment lies in a registered segment, where it says (or on a heap, which needs no registration).
    #[inline]
    pub(crate) fn check(&mut self, registry: &Registry, domain: u64, fragment: &Fragment) -> Result<(), VerbsError> {
        if fragment.segment == SegmentId::FOREIGN {
            return Ok(());
        }
        let range = match self.last {
            Some((id, range)) if id == fragment.segment => range,
            _ => self.find(registry, domain, fragment.segment)?,
        };
        let at = (fragment.address as usize).wrapping_sub(range.base);
        if at > range.len || fragment.len as usize > range.len - at {
            let (at, len) = (at as u64, u64::from(fragment.len));
            return Err(MemoryError::Escapes { at, len, of: range.len as u64 }.into());
        }
        Ok(())
    }

    /// Forgets what was deregistered since; before a batch.
    pub(crate) fn refresh(&mut self, registry: &Registry) {
        let generation = registry.generation.load(Ordering::Acquire);
        if generation != self.generation {
            *self = Self { generation, ..Self::default() };
        }
    }

    fn find(&mut self, registry: &Registry, domain: u64, id: SegmentId) -> Result<Range, VerbsError> {
        let range = match self.ranges.get(&id) {
            Some(range) => *range,
            None => {
                let range = registry.segment(domain, id).ok_or(VerbsError::NotRegistered(id.get()))?;
                self.ranges.insert(id, range);
                range
            }
        };
        self.last = Some((id, range));
        Ok(range)
    }
}

const UNKNOWN_DOMAIN: VerbsError = VerbsError::Unsupported("a protection domain of another provider");
