//! How long chains of deltas grow, by how a table's pages travel (to-copy §5.4, TC-M32).
//!
//! A page that is copied out is merged each time it is read, so that a short chain pays while more
//! pages are read than rows are changed. One that travels as it lies costs its sender hardly more
//! for its deltas: consolidating it is what costs then, and chains are as long as they may be. So
//! they are without scans, too.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use overside_bwtree::Tree;

use super::answer;
use crate::wire::{Choices, Mode, WAYS};

/// What a table's scans sent, and whether its chains are short for it.
#[derive(Debug)]
pub(crate) struct Chains {
    /// The owner of the server has chosen the limit: nothing changes it.
    pinned: bool,
    /// Pages sent, by way.
    pages: [AtomicU64; WAYS],
    /// Pages sent since the limit was last thought over, and those of them that were copied.
    sent: AtomicU64,
    copied: AtomicU64,
    /// Rows changed since then.
    changed: AtomicU64,
    short: AtomicBool,
}

impl Chains {
    pub(crate) fn new(pinned: bool) -> Chains {
        Chains {
            pinned,
            pages: Default::default(),
            sent: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            short: AtomicBool::new(false),
        }
    }

    /// A page travelled this way.
    #[inline]
    pub(crate) fn sent(&self, way: Mode, tree: &Tree) {
        self.pages[answer::index(way)].fetch_add(1, Ordering::Relaxed);
        if self.pinned {
            return;
        }
        if way == Mode::Copy {
            self.copied.fetch_add(1, Ordering::Relaxed);
        }
        if self.sent.fetch_add(1, Ordering::Relaxed) + 1 == WINDOW {
            self.think_over(tree);
        }
    }

    /// Rows were changed.
    #[inline]
    pub(crate) fn changed(&self, rows: u64, tree: &Tree) {
        if self.pinned {
            return;
        }
        // Scans may have ended for good, and nobody else would think it over.
        let before = self.changed.fetch_add(rows, Ordering::Relaxed);
        if before <= WINDOW && before + rows > WINDOW {
            self.think_over(tree);
        }
    }

    /// What [`Choices`] has.
    pub(crate) fn choices(&self, tree: &Tree) -> Choices {
        Choices {
            pages: self.pages.each_ref().map(|pages| pages.load(Ordering::Relaxed)),
            chain_max: tree.chain_max() as u32,
        }
    }

    /// Whose page or row is the window's last does it, so that nobody else finds the counts at 0.
    #[cold]
    fn think_over(&self, tree: &Tree) {
        let [sent, copied, changed] = [&self.sent, &self.copied, &self.changed].map(|n| n.swap(0, Ordering::Relaxed));
        let short = is_short(sent, copied, changed);
        if self.short.swap(short, Ordering::Relaxed) != short {
            tree.set_chain_max(if short { SHORT } else { tree.options().chain_max });
        }
    }
}

/// Whether chains are to be short after a window of so many pages.
fn is_short(sent: u64, copied: u64, changed: u64) -> bool {
    copied * 2 > sent && sent > changed
}

/// The paper's working point (TC-M31).
const SHORT: usize = 4;
/// Pages between two thoughts, 4 MiB of them, unless more rows are changed before.
const WINDOW: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use overside_bwtree::{HeapArena, Options};
    use std::sync::Arc;

    fn tree(chain_max: usize) -> Tree {
        let arena = HeapArena::new(16 << 20).unwrap();
        Tree::new(Arc::new(arena), Options { chain_max, ..Options::default() }).unwrap()
    }

    fn send(chains: &Chains, tree: &Tree, way: Mode, pages: u64) {
        (0..pages).for_each(|_| chains.sent(way, tree));
    }

    #[test]
    fn chains_follow_how_pages_travel() {
        let (tree, chains) = (tree(8), Chains::new(false));
        let limit = || chains.choices(&tree).chain_max;
        send(&chains, &tree, Mode::Copy, WINDOW - 1);
        assert_eq!(limit(), 8, "too few to say");
        send(&chains, &tree, Mode::Copy, 1);
        assert_eq!(limit(), 4, "copied pages are merged each time");
        send(&chains, &tree, Mode::Gather, WINDOW);
        assert_eq!(limit(), 8, "what travels as it lies is not worth consolidating");
        send(&chains, &tree, Mode::Copy, WINDOW);
        send(&chains, &tree, Mode::Delta, WINDOW / 2);
        send(&chains, &tree, Mode::Copy, WINDOW / 2);
        assert_eq!(limit(), 8, "half of them are no majority");
        assert_eq!(chains.choices(&tree).pages, [2 * WINDOW + WINDOW / 2, WINDOW, WINDOW / 2, 0]);
    }

    #[test]
    fn chains_are_long_where_more_is_changed_than_read() {
        let (tree, chains) = (tree(8), Chains::new(false));
        let limit = || chains.choices(&tree).chain_max;
        send(&chains, &tree, Mode::Copy, WINDOW);
        chains.changed(WINDOW, &tree);
        assert_eq!(limit(), 4, "as much as was read");
        send(&chains, &tree, Mode::Copy, WINDOW);
        assert_eq!(limit(), 8, "no fewer changes than pages");
        send(&chains, &tree, Mode::Copy, WINDOW);
        assert_eq!(limit(), 4);
        chains.changed(WINDOW + 1, &tree);
        assert_eq!(limit(), 8, "nobody scans any more");
    }

    /// Also while chains are long, or they would be short half of the time.
    #[test]
    fn chains_stay_long_while_two_rows_are_changed_for_each_page_copied() {
        let (tree, chains) = (tree(8), Chains::new(false));
        for page in 0..8 * WINDOW {
            send(&chains, &tree, Mode::Copy, 1);
            chains.changed(2, &tree);
            assert_eq!(chains.choices(&tree).chain_max, 8, "after {page} pages");
        }
        for _ in 0..2 * WINDOW {
            send(&chains, &tree, Mode::Copy, 2);
            chains.changed(1, &tree);
        }
        assert_eq!(chains.choices(&tree).chain_max, 4, "two pages for each row that is changed");
    }

    #[test]
    fn a_limit_that_was_chosen_stays_and_none_is_longer_than_its_tree_allows() {
        let (pinned, own) = (tree(3), Chains::new(true));
        send(&own, &pinned, Mode::Copy, 2 * WINDOW);
        assert_eq!(own.choices(&pinned).chain_max, 3);
        let (small, chains) = (tree(2), Chains::new(false));
        send(&chains, &small, Mode::Copy, WINDOW);
        assert_eq!(chains.choices(&small).chain_max, 2, "its pages have room for two");
    }
}
