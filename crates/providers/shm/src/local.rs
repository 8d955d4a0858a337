//! Segments of our own, as a port finds them by the name in a fragment.

use std::sync::Arc;

use overside_memory::{Fragment, Segment, SegmentId};
use overside_verbs::{ByNumber, VerbsError};

use crate::registry::{self, Registry};

/// Registered segments that were sent from, cached until they are deregistered.
#[derive(Debug, Default)]
pub(crate) struct LocalSegments {
    index: ByNumber<u32>,
    slots: Vec<Option<Local>>,
    free: Vec<u32>,
    /// Found of late, by the name's low bits.
    recent: [(u32, u32); RECENT],
}

#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) segment: Arc<Segment>,
    base: usize,
    len: usize,
}

/// Where a fragment lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Location {
    /// In a shared segment: slot in the table, offset.
    Shared(u32, u64),
    /// Where no peer can map it.
    Hidden,
}

impl LocalSegments {
    /// Finds a fragment, and checks that it lies where it says.
    #[inline]
    pub(crate) fn place(
        &mut self,
        fragment: &Fragment,
        registry: &Registry,
        domain: u64,
    ) -> Result<Location, VerbsError> {
        self.place_of(fragment.segment, fragment.address, fragment.len as usize, registry, domain)
    }

    /// As [`place`](Self::place), for memory of any length.
    #[inline]
    pub(crate) fn place_of(
        &mut self,
        segment: SegmentId,
        address: *const u8,
        len: usize,
        registry: &Registry,
        domain: u64,
    ) -> Result<Location, VerbsError> {
        if segment == SegmentId::FOREIGN {
            return Ok(Location::Hidden);
        }
        let id = segment.get();
        let slot = match self.recent[id as usize % RECENT] {
            (recent, slot) if recent == id => slot,
            _ => self.find(segment, registry, domain)?,
        };
        let Some(local) = &self.slots[slot as usize] else { return Err(VerbsError::NotRegistered(id)) };
        let at = (address as usize).wrapping_sub(local.base);
        if at > local.len || len > local.len - at {
            let memory = overside_memory::MemoryError::Escapes { at: at as u64, len: len as u64, of: local.len as u64 };
            return Err(memory.into());
        }
        Ok(if local.segment.fd().is_some() { Location::Shared(slot, at as u64) } else { Location::Hidden })
    }

    fn find(&mut self, id: SegmentId, registry: &Registry, domain: u64) -> Result<u32, VerbsError> {
        let slot = match self.index.get(&id.get()) {
            Some(slot) => *slot,
            None => {
                let segment = registry::segment(registry, domain, id).ok_or(VerbsError::NotRegistered(id.get()))?;
                let slot = self.free.pop().unwrap_or_else(|| {
                    self.slots.push(None);
                    (self.slots.len() - 1) as u32
                });
                let (base, len) = (segment.base().as_ptr() as usize, segment.len());
                self.slots[slot as usize] = Some(Local { segment, base, len });
                self.index.insert(id.get(), slot);
                slot
            }
        };
        self.recent[id.get() as usize % RECENT] = (id.get(), slot);
        Ok(slot)
    }

    pub(crate) fn segment(&self, slot: u32) -> Option<&Arc<Segment>> {
        self.slots.get(slot as usize)?.as_ref().map(|local| &local.segment)
    }

    /// Drops a segment that is no longer registered; its slot, if it had one.
    pub(crate) fn remove(&mut self, id: SegmentId) -> Option<u32> {
        let slot = self.index.remove(&id.get())?;
        self.slots[slot as usize] = None;
        self.free.push(slot);
        self.recent[id.get() as usize % RECENT] = (0, 0);
        Some(slot)
    }
}

const RECENT: usize = 8;
