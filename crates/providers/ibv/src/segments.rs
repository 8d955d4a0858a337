//! Segments of our own, as a port finds them by the name in a fragment, and keeps them while
//! requests in flight name them.

use std::sync::Arc;

use overside_memory::{MemoryError, SegmentId};
use overside_verbs::{ByNumber, VerbsError};

use crate::ffi::ibv_sge;
use crate::objects::Region;
use crate::registry::{self, Registry};

/// Registrations that were used, kept until they are ended and nothing in flight names them.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    index: ByNumber<u32>,
    slots: Vec<Option<Local>>,
    free: Vec<u32>,
    last: (u32, u32),
    ending: usize,
}

#[derive(Debug)]
struct Local {
    region: Arc<Region>,
    /// Receives posted that name it.
    receives: usize,
    /// Ended before the send of this number was posted.
    ended: Option<u64>,
}

impl Segments {
    /// Bytes of a segment in the device's words, and the segment's place here.
    #[inline]
    pub(crate) fn find(
        &mut self,
        (id, address, len): (SegmentId, *const u8, usize),
        registry: &Registry,
        domain: u64,
    ) -> Result<(ibv_sge, u32), VerbsError> {
        let number = id.get();
        let slot = if self.last.0 == number && number != 0 { self.last.1 } else { self.slot(id, registry, domain)? };
        let Some(local) = &self.slots[slot as usize] else { return Err(VerbsError::NotRegistered(number)) };
        match local.region.device_address(address, len) {
            Some(addr) => Ok((ibv_sge { addr, length: len as u32, lkey: local.region.lkey }, slot)),
            None => {
                Err(MemoryError::Escapes { at: address as u64, len: len as u64, of: local.region.len() as u64 }.into())
            }
        }
    }

    fn slot(&mut self, id: SegmentId, registry: &Registry, domain: u64) -> Result<u32, VerbsError> {
        let slot = match self.index.get(&id.get()) {
            Some(slot) => *slot,
            None => {
                let region = registry::region(registry, domain, id).ok_or(VerbsError::NotRegistered(id.get()))?;
                let slot = self.free.pop().unwrap_or_else(|| {
                    self.slots.push(None);
                    (self.slots.len() - 1) as u32
                });
                self.slots[slot as usize] = Some(Local { region, receives: 0, ended: None });
                self.index.insert(id.get(), slot);
                slot
            }
        };
        self.last = (id.get(), slot);
        Ok(slot)
    }

    /// A receive that names the segment was posted.
    pub(crate) fn posted(&mut self, slot: u32) {
        if let Some(Some(local)) = self.slots.get_mut(slot as usize) {
            local.receives += 1;
        }
    }

    /// It has completed.
    pub(crate) fn returned(&mut self, slot: u32) {
        if let Some(Some(local)) = self.slots.get_mut(slot as usize) {
            local.receives = local.receives.saturating_sub(1);
        }
    }

    /// A registration of the segment was ended; sends from number `next` on do not use it.
    pub(crate) fn end(&mut self, id: SegmentId, next: u64) {
        let Some(slot) = self.index.remove(&id.get()) else { return };
        if let Some(Some(local)) = self.slots.get_mut(slot as usize) {
            local.ended = Some(next);
            self.ending += 1;
        }
        self.last = (0, 0);
    }

    /// Whether some wait to be let go.
    #[inline]
    pub(crate) fn ending(&self) -> bool {
        self.ending > 0
    }

    /// Lets go of what was ended and is no longer named: all sends before number `oldest` have
    /// completed.
    pub(crate) fn let_go(&mut self, oldest: u64) {
        for (i, place) in self.slots.iter_mut().enumerate() {
            if place.as_ref().is_some_and(|l| l.receives == 0 && l.ended.is_some_and(|next| next <= oldest)) {
                *place = None;
                self.free.push(i as u32);
                self.ending -= 1;
            }
        }
    }
}
