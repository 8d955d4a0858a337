//! The way down: from the root to the leaf that holds a key, helping along what is met half done.
//!
//! - A page whose high fence is at or below the target split and its parent does not know yet. The
//!   parent is updated, which finishes the half done split, and the way goes on along the side
//!   link.
//! - A parent that says "this child is being merged": the merge is finished first. A frozen page on
//!   the way means that its parent changed since it was read: from the root again.

use crate::core::{Core, ROOT};
use crate::epoch::Guard;
use crate::inner::{Inner, Target};
use crate::options::Error;
use crate::page::{Leaf, NO_PAGE};
use crate::store::{LeafState, Node, Word};

/// A leaf that was found.
pub(crate) struct FoundLeaf<'g> {
    pub(crate) pid: u32,
    pub(crate) state: LeafState<'g>,
    /// It is frozen, and its merge lacks memory: it may be read as of now, but not changed.
    pub(crate) frozen: bool,
}

impl Core {
    pub(crate) fn read<'g>(&self, guard: &'g Guard<'_>, pid: u32) -> Word<'g> {
        Word::read(guard, self.store.map.entry(pid))
    }

    /// The leaf right of `leaf`, if it is not being merged. Asks for what a scan forward will read
    /// next: the header of the leaf after it, and, since its own header was asked for a leaf ago,
    /// its chain.
    pub(crate) fn next_leaf<'g>(&self, guard: &'g Guard<'_>, leaf: &Leaf<'_>) -> Option<LeafState<'g>> {
        if leaf.right() == NO_PAGE {
            return None;
        }
        let word = self.read(guard, leaf.right());
        let Node::Leaf(next) = word.node(&self.store) else { return None };
        self.store.prefetch_chain(&next);
        if next.leaf.right() != NO_PAGE {
            self.store.prefetch(self.read(guard, next.leaf.right()));
        }
        (!word.frozen()).then_some(next)
    }

    /// The leaf for `target`.
    pub(crate) fn find_leaf<'g>(&self, guard: &'g Guard<'_>, target: Target<'_>) -> FoundLeaf<'g> {
        loop {
            let (parent, node) = self.find_inner(guard, 1, target);
            let child = node.child(target);
            if node.merging != NO_PAGE && node.merging == node.pid(child) {
                match self.finish_merge(guard, parent) {
                    Ok(()) => continue,
                    Err(Error::Exhausted) => {
                        if let Some(found) = self.frozen_leaf(guard, node, child, target) {
                            return found;
                        }
                        continue;
                    }
                    Err(_) => continue,
                }
            }
            if let Some(found) = self.along_leaves(guard, node.pid(child), target) {
                return found;
            }
        }
    }

    /// From leaf `pid` to the right until the target is reached; `None`: start again.
    #[inline]
    fn along_leaves<'g>(&self, guard: &'g Guard<'_>, mut pid: u32, target: Target<'_>) -> Option<FoundLeaf<'g>> {
        loop {
            let word = self.read(guard, pid);
            if word.frozen() {
                return None;
            }
            let Node::Leaf(state) = word.node(&self.store) else { return None };
            if !state.leaf.beyond(target) {
                return Some(FoundLeaf { pid, state, frozen: false });
            }
            let high = state.leaf.high_fence()?;
            self.post(guard, 1, high, state.leaf.right(), pid);
            pid = state.leaf.right();
        }
    }

    /// The leaf as it froze, if no page has taken over its rows yet.
    fn frozen_leaf<'g>(
        &self,
        guard: &'g Guard<'_>,
        parent: &Inner,
        child: usize,
        target: Target<'_>,
    ) -> Option<FoundLeaf<'g>> {
        let pid = parent.pid(child);
        let word = self.read(guard, pid);
        let Node::Leaf(state) = word.node(&self.store) else { return None };
        if !word.frozen() {
            return None;
        }
        if state.leaf.beyond(target) {
            return self.along_leaves(guard, state.leaf.right(), target);
        }
        let mut left = parent.pid(child.checked_sub(1)?);
        loop {
            let Node::Leaf(neighbour) = self.read(guard, left).node(&self.store) else { return None };
            match neighbour.leaf.high_fence() {
                Some(high) if high < state.leaf.low_fence() => left = neighbour.leaf.right(),
                Some(high) if high == state.leaf.low_fence() && neighbour.leaf.right() == pid => {
                    return Some(FoundLeaf { pid, state, frozen: true });
                }
                _ => return None,
            }
        }
    }

    /// The inner node of `level` for `target`.
    #[inline]
    pub(crate) fn find_inner<'g>(&self, guard: &'g Guard<'_>, level: u32, target: Target<'_>) -> (u32, &'g Inner) {
        'restart: loop {
            let mut pid = ROOT;
            loop {
                let word = self.read(guard, pid);
                if word.frozen() {
                    continue 'restart;
                }
                let Some(node) = word.inner() else { continue 'restart };
                if node.beyond(target) {
                    if let Some(high) = node.high.as_deref() {
                        self.post(guard, node.level + 1, high, node.right, pid);
                    }
                    pid = node.right;
                    continue;
                }
                if node.level == level {
                    return (pid, node);
                }
                let child = node.pid(node.child(target));
                // Joining inner nodes needs no arena memory. If a merge further down does, the child is not frozen yet and leads
                // on as ever.
                if node.merging == child && node.level > 1 && self.finish_merge(guard, pid).is_ok() {
                    continue 'restart;
                }
                pid = child;
            }
        }
    }
}
