//! Who pins how much: an account per client, so that a stalled one can be told from the others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::core::Core;

/// Pins taken on behalf of one party. Made by [`Tree::pin_account`](crate::Tree::pin_account).
pub struct PinAccount {
    core: Arc<Core>,
    blocks: [OnceLock<Box<[Place]>>; BLOCKS],
}

/// One pin's entry.
#[derive(Default)]
struct Place {
    /// The unit's number plus one; 0: free.
    unit: AtomicU64,
    bytes: AtomicU64,
}

impl PinAccount {
    pub(crate) fn new(core: Arc<Core>) -> PinAccount {
        PinAccount { core, blocks: [const { OnceLock::new() }; BLOCKS] }
    }

    /// Bytes of all pages pinned through this account, their overflow extents included. A page pinned twice counts twice.
    pub fn pinned_bytes(&self) -> u64 {
        self.places().filter(|p| p.unit.load(Ordering::Acquire) != 0).map(|p| p.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Bytes of pages that the tree has replaced and that stay in memory because they are pinned through this account.
    pub fn held_bytes(&self) -> u64 {
        let held = self.places().filter(|p| match p.unit.load(Ordering::Acquire) {
            0 => false,
            unit => self.core.store.units.entry(unit as u32 - 1).unlinked(),
        });
        held.map(|p| p.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Pins taken through this account and not released.
    pub fn pins(&self) -> usize {
        self.places().filter(|p| p.unit.load(Ordering::Acquire) != 0).count()
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        self.blocks.iter().map_while(OnceLock::get).flatten()
    }

    /// Enters a pin; its place.
    pub(crate) fn enter(&self, unit: u32, bytes: u64) -> u32 {
        let mut first = 0;
        for (block, places) in self.blocks.iter().enumerate() {
            let places = places.get_or_init(|| (0..FIRST << block).map(|_| Place::default()).collect());
            for (i, place) in places.iter().enumerate() {
                let free = place.unit.load(Ordering::Relaxed) == 0;
                if free
                    && place.unit.compare_exchange(0, u64::from(unit) + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                {
                    place.bytes.store(bytes, Ordering::Relaxed);
                    return first + i as u32;
                }
            }
            first += places.len() as u32;
        }
        unreachable!("more pins than pages can exist")
    }

    pub(crate) fn leave(&self, at: u32) {
        let n = at as usize + FIRST;
        let block = (n.ilog2() - FIRST.ilog2()) as usize;
        if let Some(place) = self.blocks[block].get().and_then(|places| places.get(n - (FIRST << block))) {
            place.unit.store(0, Ordering::Release);
        }
    }
}

impl std::fmt::Debug for PinAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinAccount").field("pins", &self.pins()).field("held_bytes", &self.held_bytes()).finish()
    }
}

const FIRST: usize = 16;
const BLOCKS: usize = 24;
