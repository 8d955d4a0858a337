//! Tables that grow without moving, and numbers into them that are handed out and taken back
//! without a lock.

#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::sync::{AtomicU64, Ordering};

/// A table entry; while its number is free the link holds the next free number.
pub(crate) trait Entry: Default + Send + Sync {
    fn link(&self) -> &AtomicU64;
}

/// Entries by number. Block `k` has `FIRST << k` of them, so nothing ever moves.
pub(crate) struct Slab<T> {
    blocks: [OnceLock<Block<T>>; BLOCKS],
    /// Top of the stack of free numbers: a counter against ABA, and the number plus one (0: none).
    free: AtomicU64,
    fresh: AtomicU64,
}

/// Entries in memory of the slab's own, or where its owner wants them.
struct Block<T> {
    entries: NonNull<[T]>,
    boxed: bool,
}

// SAFETY: [bwtree-fresh] it is no more than the entries, whose memory nobody else uses.
unsafe impl<T: Send + Sync> Send for Block<T> {}
// SAFETY: [bwtree-fresh] as above.
unsafe impl<T: Send + Sync> Sync for Block<T> {}

impl<T> Deref for Block<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: [bwtree-fresh] the entries were written when the block was made, and stay as long as it.
        unsafe { self.entries.as_ref() }
    }
}

impl<T: Default> Block<T> {
    fn boxed(len: usize) -> Block<T> {
        let entries: Box<[T]> = (0..len).map(|_| T::default()).collect();
        Block { entries: NonNull::from(Box::leak(entries)), boxed: true }
    }

    /// # Safety
    ///
    /// Room for `len` entries is at `place`, aligned for them, of which nobody else knows, and
    /// stays as long as the slab.
    unsafe fn placed(place: NonNull<T>, len: usize) -> Block<T> {
        // SAFETY: [bwtree-fresh] the caller's promise.
        (0..len).for_each(|at| unsafe { place.add(at).write(T::default()) });
        Block { entries: NonNull::slice_from_raw_parts(place, len), boxed: false }
    }
}

impl<T> Drop for Block<T> {
    fn drop(&mut self) {
        if self.boxed {
            // SAFETY: [bwtree-fresh] it was leaked when the block was made, and goes once.
            drop(unsafe { Box::from_raw(self.entries.as_ptr()) });
        }
    }
}

impl<T: Entry> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { blocks: [const { OnceLock::new() }; BLOCKS], free: AtomicU64::new(0), fresh: AtomicU64::new(0) }
    }

    /// The entry `id`, which must have been handed out.
    #[inline]
    pub(crate) fn entry(&self, id: u32) -> &T {
        let (block, nth) = at(id);
        match self.blocks[block].get() {
            Some(entries) => &entries[nth],
            None => unknown(id),
        }
    }

    /// A number that nobody uses.
    pub(crate) fn take(&self) -> u32 {
        // SAFETY: [bwtree-fresh] no place is given.
        unsafe { self.take_in(|_, _| None) }
    }

    /// The same. `place` has room for a block of the table, by its number and its entries, where
    /// the table has to grow; else that room is the slab's own.
    ///
    /// # Safety
    ///
    /// What `place` gives nobody else uses; it is aligned for entries, and stays as long as the
    /// slab.
    pub(crate) unsafe fn take_in(&self, place: impl FnOnce(usize, usize) -> Option<NonNull<T>>) -> u32 {
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
        let (block, _) = at(id);
        self.blocks[block].get_or_init(|| match place(block, FIRST << block) {
            // SAFETY: [bwtree-fresh] the caller's promise.
            Some(room) => unsafe { Block::placed(room, FIRST << block) },
            None => Block::boxed(FIRST << block),
        });
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

/// The block that an entry lies in, and which of its entries it is.
#[inline]
pub(crate) fn at(id: u32) -> (usize, usize) {
    let n = id as usize + FIRST;
    let block = n.ilog2() as usize - FIRST.ilog2() as usize;
    (block, n - (FIRST << block))
}

#[cold]
fn unknown(id: u32) -> ! {
    panic!("entry {id} was never handed out")
}

/// Entries of the first block; each further one has twice as many.
pub(crate) const FIRST: usize = if cfg!(shuttle) { 16 } else { 64 };
/// Blocks that a table can have.
pub(crate) const BLOCKS: usize = 26;
const ID: u64 = u32::MAX as u64;
