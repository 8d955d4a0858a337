//! What may be touched: protection domains with their memory.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use overside_memory::{Fragment, MemoryError, SegmentId};
use overside_verbs::registry::{self, random_key};
use overside_verbs::{Access, Memory, MemoryRegion, ProtectionDomain, VerbsError};

/// All registrations of a provider.
pub(crate) type Registry = registry::Registry<(), Reach>;

/// Registers.
pub(crate) fn register(
    registry: &Registry,
    domain: &ProtectionDomain,
    memory: &Memory,
    access: Access,
) -> Result<MemoryRegion, VerbsError> {
    registry.register(domain, memory, access, |()| Ok((random_key()?, Reach::new(memory.clone()))))
}

/// Ends a registration. After it no request of a peer touches the memory, even one that is under
/// way.
pub(crate) fn deregister(registry: &Registry, region: &MemoryRegion) -> Result<(), VerbsError> {
    registry.deregister(region, |(), _, _| ()).map(|ended| ended.own.end())
}

/// What a peer connected in `domain` may do `right` to at `at..at + len` by this key; nothing, when
/// key, right or range is wrong.
pub(crate) fn reach(registry: &Registry, domain: u64, key: u128, right: Access, at: u64, len: u64) -> Option<Reach> {
    registry.granted(domain, key, right, (at, len), |region| region.own.clone())
}

/// A region's memory, until it is deregistered: a request that was let through before that touches
/// nothing after.
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

/// What a port remembers of its domain's segments.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Registrations that had ended by then.
    ended: u64,
    ranges: HashMap<SegmentId, Range>,
    last: Option<(SegmentId, Range)>,
}

impl Known {
    /// Checks that a fragment lies in a registered segment, where it says (or on a heap, which
    /// needs no registration).
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
        let ended = registry.ended();
        if ended != self.ended {
            *self = Self { ended, ..Self::default() };
        }
    }

    fn find(&mut self, registry: &Registry, domain: u64, id: SegmentId) -> Result<Range, VerbsError> {
        let range = match self.ranges.get(&id) {
            Some(range) => *range,
            None => {
                let range = |memory: &Memory| match memory {
                    Memory::Segment(segment) => {
                        Some(Range { base: segment.base().as_ptr() as usize, len: segment.len() })
                    }
                    Memory::Window(_) => None,
                };
                let range = registry.segment(domain, id, |region| range(&region.memory)).flatten();
                let range = range.ok_or(VerbsError::NotRegistered(id.get()))?;
                self.ranges.insert(id, range);
                range
            }
        };
        self.last = Some((id, range));
        Ok(range)
    }
}
