//! Tables that grow without moving, and numbers into them that are handed out and taken back without a lock.

#![allow(unsafe_code)]

use std::sync::OnceLock;

use crate::sync::{AtomicU64, Ordering};

/// A table entry; while its number is free the link holds the next free number.
pub(crate) trait Entry: Default + Send + Sync {
    fn link(&self) -> &AtomicU64;
}

/// Entries by number. Block `k` has `FIRST << k` of them, so nothing ever moves.
pub(crate) struct Slab<T> {
    blocks: [OnceLock<Box<[T]>>; BLOCKS],
    /// Top of the stack of free numbers: a counter against ABA, and the number plus one (0: none).
    free: AtomicU64,
    fresh: AtomicU64,
}

impl<T: Entry> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { blocks: [const { OnceLock::new() }; BLOCKS], free: AtomicU64::new(0), fresh: AtomicU64::new(0) }
    }

    /// The entry `id`, which must have been handed out.
    #[inline]
    pub(crate) fn entry(&self, id: u32) -> &T {
        let (block, at) = place(id);
        match self.blocks[block].get() {
            Some(entries) => &entries[at],
            None => unknown(id),
        }
    }

    /// A number that nobody uses.
    pub(crate) fn take(&self) -> u32 {
        loop {
            let top = self.free.load(Ordering::SeqCst);
            if top & ID == 0 {
                break;
            }
            let id = (top & ID) as u32 - 1;
            let next = self.entry(id).link().load(Ordering::SeqCst) & ID;
            let new = (top & !ID).wrapping_add(ID + 1) | next;
            if self.free.compare_exchange(top, new, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return id;
            }
        }
        let id = self.fresh.fetch_add(1, Ordering::SeqCst) as u32;
        let (block, _) = place(id);
        self.blocks[block].get_or_init(|| (0..FIRST << block).map(|_| T::default()).collect());
        id
    }

    /// Takes `id` back.
    pub(crate) fn give(&self, id: u32) {
        loop {
            let top = self.free.load(Ordering::SeqCst);
            self.entry(id).link().store(top & ID, Ordering::SeqCst);
            let new = (top & !ID).wrapping_add(ID + 1) | u64::from(id + 1);
            if self.free.compare_exchange(top, new, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return;
            }
        }
    }
}

#[inline]
fn place(id: u32) -> (usize, usize) {
    let n = id as usize + FIRST;
    let block = n.ilog2() as usize - FIRST.ilog2() as usize;
    (block, n - (FIRST << block))
}

#[cold]
fn unknown(id: u32) -> ! {
    panic!("entry {id} was never handed out")
}

const FIRST: usize = if cfg!(shuttle) { 16 } else { 64 };
const BLOCKS: usize = 26;
const ID: u64 = u32::MAX as u64;
