//! Who pins how much: an account per client, so that a stalled one can be told from the others.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::core::Core;

/// Pins taken on behalf of one party. Made by [`Tree::pin_account`](crate::Tree::pin_account).
pub struct PinAccount {
    core: Arc<Core>,
    blocks: [OnceLock<Box<[PinEntry]>>; BLOCKS],
    /// Of all entries.
    bytes: AtomicU64,
    /// Where to look for a free place first: behind the last one taken, since pins mostly end in
    /// the order in which they began.
    next: AtomicUsize,
}

/// One pin's entry.
#[derive(Default)]
struct PinEntry {
    /// The unit's number plus one; 0: free.
    unit: AtomicU64,
    bytes: AtomicU64,
}

impl PinAccount {
    pub(crate) fn new(core: Arc<Core>) -> PinAccount {
        PinAccount {
            core,
            blocks: [const { OnceLock::new() }; BLOCKS],
            bytes: AtomicU64::new(0),
            next: AtomicUsize::new(0),
        }
    }

    /// Whether it is this tree's.
    pub(crate) fn is_of(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }

    /// Bytes of all pages pinned through this account, their overflow extents included. A page
    /// pinned twice counts twice.
    pub fn pinned_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of pages that the tree has replaced and that stay in memory because they are pinned
    /// through this account. Looks at every pin; [`pinned_bytes`](Self::pinned_bytes) is never less
    /// and looks at none.
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

    fn places(&self) -> impl Iterator<Item = &PinEntry> {
        self.blocks.iter().map_while(OnceLock::get).flatten()
    }

    /// Counts the bytes of pins that were entered.
    pub(crate) fn charge(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// And of such as have left.
    pub(crate) fn refund(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Enters a pin; its place.
    pub(crate) fn enter(&self, unit: u32, bytes: u64) -> u32 {
        let mut start = self.next.load(Ordering::Relaxed);
        for block in 0..BLOCKS {
            let there = (FIRST << block) - FIRST;
            if self.blocks[block].get().is_some() && block + 1 < BLOCKS {
                continue;
            }
            // All blocks before this one exist: round them once, then take a new one.
            for at in (0..there).map(|step| (start + step) % there) {
                if self.take(at, unit, bytes) {
                    return at as u32;
                }
            }
            self.blocks[block].get_or_init(|| (0..FIRST << block).map(|_| PinEntry::default()).collect());
            start = there;
            if let Some(at) = (start..there + (FIRST << block)).find(|at| self.take(*at, unit, bytes)) {
                return at as u32;
            }
        }
        unreachable!("more pins than pages can exist")
    }

    /// Takes a place if it is free.
    fn take(&self, at: usize, unit: u32, bytes: u64) -> bool {
        let Some(place) = self.place(at) else { return false };
        let free = place.unit.load(Ordering::Relaxed) == 0;
        if !free || place.unit.compare_exchange(0, u64::from(unit) + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        place.bytes.store(bytes, Ordering::Relaxed);
        self.next.store(at + 1, Ordering::Relaxed);
        true
    }

    fn place(&self, at: usize) -> Option<&PinEntry> {
        let n = at + FIRST;
        let block = (n.ilog2() - FIRST.ilog2()) as usize;
        self.blocks.get(block)?.get()?.get(n - (FIRST << block))
    }

    pub(crate) fn leave(&self, at: u32) {
        if let Some(place) = self.place(at as usize) {
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
