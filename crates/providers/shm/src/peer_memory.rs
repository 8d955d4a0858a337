//! The peer's segments, mapped read-only here.

use overside_verbs::ByNumber;
use std::os::fd::OwnedFd;

use overside_memory::Foreign;

use crate::fate::Fate;
use crate::mappings::{Counted, Limits};

/// Segments that the peer has passed and not taken back.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    index: ByNumber<u32>,
    slots: Vec<Option<Foreign>>,
    free: Vec<u32>,
    /// Found of late, by the name's low bits: a message's head and its pages lie in different
    /// segments.
    recent: [(u32, u32); RECENT],
    bytes: u64,
    limits: Limits,
}

impl PeerMemory {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            index: ByNumber::default(),
            slots: Vec::new(),
            free: Vec::new(),
            recent: [(0, 0); RECENT],
            bytes: 0,
            limits,
        }
    }

    /// Verifies and maps.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn add(&mut self, id: u32, len: u64, fd: OwnedFd) -> Result<(), Fate> {
        if id == 0 {
            return Err(Fate::Malformed("the peer's segment has no name"));
        }
        if self.index.contains_key(&id) {
            return Err(Fate::Malformed("the peer gives two segments one name"));
        }
        let held = self.index.len();
        if !self.limits.allow(held, self.bytes, len) {
            return Err(Fate::Malformed("the peer shares more memory than this process allows one connection"));
        }
        let counted = Counted::claim(&self.limits, held, len)?;
        // Counted as long as anything keeps it, a loan for instance.
        let mapped = Foreign::map_keeping(fd, len, counted);
        let foreign = mapped.map_err(|error| Fate::unmapped(error, "the peer's memory cannot be mapped"))?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = Some(foreign);
        self.index.insert(id, slot);
        self.bytes += len;
        Ok(())
    }

    /// Unmaps, unless a loan keeps it.
    pub(crate) fn forget(&mut self, id: u32) {
        if let Some(slot) = self.index.remove(&id)
            && let Some(gone) = self.slots[slot as usize].take()
        {
            self.bytes -= gone.len() as u64;
            self.free.push(slot);
            self.recent[id as usize % RECENT] = (0, 0);
        }
    }

    /// The segment of that name, if it was passed.
    #[inline]
    pub(crate) fn find(&mut self, id: u32) -> Option<&Foreign> {
        let recent = &mut self.recent[id as usize % RECENT];
        if recent.0 != id || id == 0 {
            *recent = (id, *self.index.get(&id)?);
        }
        self.slots.get(recent.1 as usize)?.as_ref()
    }
}

const RECENT: usize = 8;
