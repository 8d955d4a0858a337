//! A tree that is open to peers: its mapping table where they can read it, with a version for each
//! page.
//!
//! A block of the table is one piece of the arena: the words, then as many versions. The version of
//! a page is odd while a leaf of that number is in the tree. It goes up by one when the leaf comes
//! and when it goes, and by two when its base page is replaced: after the word was, and before the
//! old page is retired. A reader therefore loads the version, the word, what the word names, and
//! the version again. As long as that is odd and the same, what it read was never freed in between,
//! and is the leaf's state at the instant of the word.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::slab::{self, BLOCKS};
use crate::store::{Mapped, Store};
use crate::sync::{AtomicU64, Ordering, fence};

/// Where the mapping table of an open tree lies.
#[derive(Default)]
pub(crate) struct Open {
    blocks: [OnceLock<Placed>; BLOCKS],
}

/// A block's place in the arena, and its versions.
struct Placed {
    offset: u64,
    versions: NonNull<AtomicU64>,
}

// SAFETY: [bwtree-fresh] the versions are atomics that stay as long as the arena.
unsafe impl Send for Placed {}
// SAFETY: [bwtree-fresh] as above.
unsafe impl Sync for Placed {}

/// What a [`Walk`](crate::Walk) has to know of an open tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The number of the leftmost leaf, which never changes.
    pub first: u32,
    /// Where each block of the mapping table lies in the arena: 64 pages, then twice as many each;
    /// none where a block is not there, or found no room in the arena.
    pub blocks: Vec<Option<u64>>,
    /// Bytes of a page, about.
    pub page_bytes: usize,
    /// Bytes of each value's prefix.
    pub prefix_len: usize,
    /// Longest value.
    pub value_max: usize,
    /// Longest key.
    pub key_max: usize,
}

impl Opening {
    /// Where the word and the version of a page lie.
    pub(crate) fn place(&self, pid: u32) -> Option<(u64, u64)> {
        let (block, nth) = slab::at(pid);
        let words = (*self.blocks.get(block)?)?;
        let word = words.checked_add(8 * nth as u64)?;
        Some((word, word.checked_add(8 * (slab::FIRST << block) as u64)?))
    }
}

impl Open {
    /// Room for a block of the table, and for its versions behind it, if the arena has any.
    pub(crate) fn place(&self, block: usize, len: usize, store: &Store) -> Option<NonNull<Mapped>> {
        // Under shuttle they are more than words, and no peer reads them.
        if size_of::<Mapped>() != 8 || size_of::<AtomicU64>() != 8 {
            return None;
        }
        let (offset, room) = store.keep_piece(2 * 8 * len)?;
        let words = room.cast::<Mapped>();
        // SAFETY: [bwtree-fresh] the piece, which is aligned to 64 bytes, has room for as many versions behind the words.
        let versions = unsafe { words.add(len).cast::<AtomicU64>() };
        // SAFETY: [bwtree-fresh] as above, and nobody knows of them yet.
        (0..len).for_each(|at| unsafe { versions.add(at).write(AtomicU64::new(0)) });
        self.blocks[block].get_or_init(|| Placed { offset, versions });
        Some(words)
    }

    /// Raises the version of a page.
    #[cold]
    pub(crate) fn turn(&self, pid: u32, by: u64) {
        let (block, nth) = slab::at(pid);
        let Some(placed) = self.blocks[block].get() else { return };
        // SAFETY: [bwtree-fresh] a block has a version for each of its pages.
        unsafe { placed.versions.add(nth).as_ref() }.fetch_add(by, Ordering::SeqCst);
        // Whoever sees what is written into the old page afterwards sees the version, too.
        fence(Ordering::SeqCst);
    }

    /// Where the blocks lie.
    pub(crate) fn offsets(&self) -> Vec<Option<u64>> {
        let there = self.blocks.iter().rposition(|block| block.get().is_some()).map_or(0, |last| last + 1);
        self.blocks[..there].iter().map(|block| block.get().map(|placed| placed.offset)).collect()
    }
}

/// The first number behind the root's: the leaf that a tree begins with. Splits leave it the left
/// half, and a merge never takes the leftmost leaf away.
pub(crate) const FIRST_LEAF: u32 = 1;
