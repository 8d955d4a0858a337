//! The tree's parts together, and what all protocols need: publish, retire, count.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::alloc::Purpose;
use crate::epoch::{Epochs, Guard, Retired};
use crate::inner::{self, Inner, Target};
use crate::options::{Error, Options};
use crate::page::{Fences, Layout, NO_PAGE, Piece, set_link, write_page};
use crate::shortage::Sheltered;
use crate::stamps::Stamps;
use crate::stats::Counter;
use crate::store::{LeafState, Store, drop_inner, inner_word};
use crate::sync::Ordering;
use crate::waits::Waits;

pub(crate) struct Core {
    pub(crate) store: Store,
    pub(crate) epochs: Epochs,
    pub(crate) options: Options,
    /// Deltas on a page before the next change consolidates it, at most those of the options. Any
    /// value will do for a change that is under way, so this orders nothing.
    chain_max: AtomicUsize,
    pub(crate) sheltered: Sheltered,
    pub(crate) stamps: Option<Arc<Stamps>>,
}

/// The root's number: its content changes, its number never does. It is an inner node always.
pub(crate) const ROOT: u32 = 0;

impl Core {
    pub(crate) fn new(
        store: Store,
        options: Options,
        waits: &'static dyn Waits,
        stamps: Option<Arc<Stamps>>,
    ) -> Result<Core, Error> {
        let core = Core::bare(store, options, waits, stamps);
        let fences = Fences { low: &[], high: None };
        let word =
            core.build_leaf(&[], &Layout::of(&[], fences, options.prefix_len), fences, NO_PAGE, Purpose::Growth, 0)?.0;
        let leaf = core.new_page(word);
        core.store.came_or_went(leaf);
        core.set_root(inner_word(inner::root(core.epochs.now(), leaf)));
        Ok(core)
    }

    /// All parts, without a page: nobody may come in before there is a [root](Self::set_root).
    pub(crate) fn bare(store: Store, options: Options, waits: &'static dyn Waits, stamps: Option<Arc<Stamps>>) -> Core {
        let root = store.take_page();
        debug_assert_eq!(root, ROOT);
        let chain_max = AtomicUsize::new(options.chain_max);
        Core { store, epochs: Epochs::new(waits), options, chain_max, sheltered: Sheltered::default(), stamps }
    }

    /// The first root.
    pub(crate) fn set_root(&self, word: u64) {
        self.store.map.entry(ROOT).word.store(word, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn chain_max(&self) -> usize {
        self.chain_max.load(Ordering::Relaxed)
    }

    /// Pages have room for no more deltas than the options say.
    pub(crate) fn set_chain_max(&self, chain_max: usize) {
        self.chain_max.store(chain_max.clamp(1, self.options.chain_max), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn enter(&self) -> Guard<'_> {
        self.epochs.enter()
    }

    #[inline]
    pub(crate) fn stamps(&self) -> Option<&Arc<Stamps>> {
        if cfg!(feature = "unstamped") { None } else { self.stamps.as_ref() }
    }

    /// A stamp for a change whose leaf's word was read under `guard`; 0 in a tree without stamps.
    #[inline]
    pub(crate) fn draw(&self, guard: &Guard<'_>) -> u64 {
        let Some(stamps) = self.stamps() else { return 0 };
        #[cfg(mutants)]
        if let early @ 1.. = guard.early.take() {
            return early;
        }
        let _ = guard;
        stamps.draw()
    }

    /// The planted fault: a stamp for what is read next.
    #[cfg(mutants)]
    pub(crate) fn draw_early(&self, guard: &Guard<'_>) {
        if let Some(stamps) = &self.stamps
            && crate::mutants::mutant("stamp-before-word")
        {
            guard.early.set(stamps.draw());
        }
    }

    /// No change that `state`'s word shows has a larger stamp; 0 in a tree without stamps.
    #[inline]
    pub(crate) fn newest(&self, state: &LeafState<'_>) -> u64 {
        if self.stamps().is_some() { self.store.stamp(state) } else { 0 }
    }

    /// A change with this stamp is about to be installed in the leaf's unit.
    #[inline]
    pub(crate) fn raise(&self, state: &LeafState<'_>, stamp: u64) {
        if stamp != 0 {
            self.store.raise(state, stamp);
        }
    }

    /// Replaces a page's word; false if somebody was faster.
    #[inline]
    pub(crate) fn install(&self, pid: u32, old: u64, new: u64) -> bool {
        self.store.map.entry(pid).word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Makes a sealed leaf of `pieces`, unpublished: its word, and what to discard if it stays so.
    /// `newest`: the newest stamp of what it replaces and changes.
    pub(crate) fn build_leaf(
        &self,
        pieces: &[Piece<'_>],
        layout: &Layout,
        fences: Fences<'_>,
        right: u32,
        purpose: Purpose,
        newest: u64,
    ) -> Result<(u64, crate::store::Fresh), Error> {
        let room = self.room(pieces, layout);
        let mut fresh = self.store.fresh(layout.page_len, room, self.epochs.now(), purpose, newest)?;
        let unit = fresh.unit;
        let page = self.store.fresh_page(&mut fresh, layout.page_len);
        write_page(page, layout, fences, pieces);
        set_link(page, right, unit);
        Ok((self.store.seal(&fresh), fresh))
    }

    /// Bytes to keep free for deltas behind a page: a full chain of average records, at most a
    /// quarter of a page.
    pub(crate) fn room(&self, pieces: &[Piece<'_>], layout: &Layout) -> usize {
        let row = match layout.count {
            0 => 32 + self.options.prefix_len,
            count => layout.page_len / count,
        };
        let newest = pieces.iter().filter_map(|p| match p {
            Piece::Row { key, .. } if key.len() > 8 => Some(key.len() - 8),
            _ => None,
        });
        let record = (row + 16 + newest.max().unwrap_or(0)).next_multiple_of(8);
        (record * self.options.chain_max).min(self.options.page_bytes / 4)
    }

    /// Replaces an inner node; the old one is retired if it worked.
    pub(crate) fn install_inner(&self, guard: &Guard<'_>, pid: u32, old: &Inner, new: Inner) -> bool {
        let bytes = old.bytes();
        let (old_word, new_word) = (std::ptr::from_ref(old) as u64, inner_word(new));
        // The word is the node's address and the mark of inner nodes, which the new word shows.
        let mark = new_word & 7;
        if self.install(pid, old_word | mark, new_word) {
            self.retire(guard, Retired::Inner(old_word as usize), old.birth, bytes);
            return true;
        }
        // SAFETY: [bwtree-word] it was never published.
        unsafe { drop_inner(new_word) };
        false
    }

    /// The old base page and chain of leaf `pid` are replaced: nobody finds them any more.
    pub(crate) fn retire_leaf(&self, guard: &Guard<'_>, pid: u32, state: &LeafState<'_>) {
        self.store.replaced(pid);
        let unit = self.store.unlink(state);
        let meta = self.store.units.entry(unit);
        self.retire(guard, Retired::Unit(unit), meta.birth(), meta.bytes());
    }

    pub(crate) fn retire(&self, guard: &Guard<'_>, what: Retired, birth: u64, bytes: usize) {
        if guard.retire(what, birth, bytes) {
            self.collect(guard, false);
        }
    }

    /// Lets go what nobody can see any more, and gives empty chunks back.
    pub(crate) fn collect(&self, guard: &Guard<'_>, all: bool) {
        guard.count(Counter::Collections as usize, 1);
        let often = guard.counted(Counter::Collections as usize).is_multiple_of(16);
        guard.collect(all || often, |what| self.free(what));
        if all || often {
            self.store.allocator.trim();
        }
    }

    fn free(&self, what: Retired) {
        match what {
            Retired::Unit(unit) => self.store.release(unit),
            Retired::Pid(pid) => self.store.map.give(pid),
            // SAFETY: [bwtree-word] retired once, and no guard can see it any more.
            Retired::Inner(address) => unsafe { drop_inner(address as u64) },
        }
    }

    /// A number for a page that is not published yet.
    pub(crate) fn new_page(&self, word: u64) -> u32 {
        let pid = self.store.take_page();
        self.store.map.entry(pid).word.store(word, Ordering::SeqCst);
        pid
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        for what in self.epochs.drain() {
            if let Retired::Inner(address) = what {
                // SAFETY: [bwtree-word] nobody is inside, the tree is going.
                unsafe { drop_inner(address as u64) };
            }
        }
        // Pages lie in the arena, which goes as a whole; inner nodes are freed one by one, from the left end of each level.
        let guard = self.epochs.enter();
        let mut nodes = Vec::new();
        let mut first = Some(ROOT);
        while let Some(pid) = first.take() {
            let mut at = pid;
            while let Some(node) = self.read(&guard, at).inner() {
                nodes.push(std::ptr::from_ref(node) as u64);
                if at == pid && node.level > 1 {
                    first = Some(node.pid(node.child(Target::At(&[]))));
                }
                if node.right == NO_PAGE {
                    break;
                }
                at = node.right;
            }
        }
        drop(guard);
        // SAFETY: [bwtree-word] each live node was met once on its level, and nobody else is left.
        nodes.into_iter().for_each(|node| unsafe { drop_inner(node) });
    }
}

/// Frees a node whose word was never published.
pub(crate) fn discard_inner(word: u64) {
    // SAFETY: [bwtree-word] the caller made it and nobody else has seen it.
    unsafe { drop_inner(word) };
}
