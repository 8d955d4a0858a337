//! Merging a page into its left neighbour, at any level, in steps that anybody can carry on:
//!
//! 1. *mark*: the parent's node says which child is going. The child is not the parent's first one,
//!    so its left neighbour (or a page split off from that) has the same parent. At most one child
//!    of a parent is going at a time, and a marked node neither splits nor freezes.
//! 2. *freeze*: a bit in the child's word; no compare-and-swap on it can succeed any more.
//! 3. *absorb*: the left neighbour is replaced by a page with the rows of both, ending where the
//!    child ended. Only then does the child's word become `GONE`, and only after that is what it
//!    named retired. A guard that comes to the child's number by what it read before (a side link,
//!    the parent as it was) would follow the word to memory that nothing keeps.
//! 4. *forget*: the parent's node is replaced by one without the child and without the mark. The
//!    child's number is retired.
//!
//! The parent holds the only reference to the child besides the left neighbour's side link, and
//! both are gone then; late helpers of the child's split cannot bring it back (see `post`).

use crate::alloc::Purpose;
use crate::consolidate::pieces_of;
use crate::core::{Core, ROOT};
use crate::epoch::{Guard, Retired};
use crate::inner::{Inner, Target};
use crate::options::Error;
use crate::page::{Fences, HEADER_BYTES, Layout, NO_PAGE};
#[cfg(all(test, not(shuttle)))]
use crate::stall::Step;
use crate::stats::Counter;
use crate::store::{FROZEN, GONE, LeafState, Node};
use crate::sync::Ordering;

impl Core {
    /// Page `pid` of `level`, which starts at `low`, has become small: merges it with a neighbour
    /// if they fit together.
    pub(crate) fn merge(&self, guard: &Guard<'_>, level: u32, pid: u32, low: &[u8]) {
        let (parent, node) = self.find_inner(guard, level + 1, Target::At(low));
        if node.merging != NO_PAGE {
            let _ = self.finish_merge(guard, parent);
            return;
        }
        let Some(at) = node.index_of(pid) else { return };
        let candidates = [at.checked_sub(1).map(|left| (left, at)), (at + 1 < node.len()).then_some((at, at + 1))];
        for (left, going) in candidates.into_iter().flatten() {
            if self.fit(guard, node.pid(left), node.pid(going)) {
                let mut marked = self.rebuilt(node, &node.entries());
                marked.merging = node.pid(going);
                if self.install_inner(guard, parent, node, marked) {
                    #[cfg(all(test, not(shuttle)))]
                    crate::stall::reached(Step::Mark, level);
                    let _ = self.finish_merge(guard, parent);
                }
                return;
            }
        }
    }

    /// Merges leaf `pid` of `page_len` bytes with a neighbour if it is worth it.
    #[inline]
    pub(crate) fn merge_if_small(&self, guard: &Guard<'_>, pid: u32, page_len: usize, low: &[u8]) {
        // The header is no content: without it small pages of small trees would never count as empty.
        if page_len < HEADER_BYTES + (self.options.page_bytes - HEADER_BYTES) / 4 {
            self.merge(guard, 0, pid, low);
        }
    }

    /// Whether `going` is `left`'s direct neighbour and both make one page with room to grow.
    fn fit(&self, guard: &Guard<'_>, left: u32, going: u32) -> bool {
        let (left, right) = (self.read(guard, left), self.read(guard, going));
        if left.frozen() || right.frozen() {
            return false;
        }
        match (left.node(&self.store), right.node(&self.store)) {
            (Node::Leaf(l), Node::Leaf(r)) => {
                let mut room = self.options.page_bytes * 3 / 4;
                if self.store.allocator.short() {
                    // The joint page, deltas included, must find its place in what the two give back.
                    room = room.min(self.store.piece_bytes(&l).max(self.store.piece_bytes(&r)) * 3 / 4);
                }
                let joint = l.leaf.bytes().len() + r.leaf.bytes().len() - HEADER_BYTES;
                l.leaf.right() == going && joint <= room
            }
            (Node::Inner(l), Node::Inner(r)) => l.right == going && l.len() + r.len() <= self.options.fan_out * 3 / 4,
            _ => false,
        }
    }

    /// Carries the merge that node `parent` is marked with to its end. Fails when there is no
    /// memory for the joint page; the child stays frozen then, can be read, and the next writer
    /// tries again.
    pub(crate) fn finish_merge(&self, guard: &Guard<'_>, parent: u32) -> Result<(), Error> {
        loop {
            let word = self.read(guard, parent);
            let Some(node) = word.inner() else { return Ok(()) };
            if word.frozen() || node.merging == NO_PAGE {
                return Ok(());
            }
            let Some(at) = node.index_of(node.merging) else { return Ok(()) };
            if !self.freeze(guard, node.merging)? {
                continue;
            }
            #[cfg(all(test, not(shuttle)))]
            crate::stall::reached(Step::Freeze, node.level - 1);
            if !self.absorb(guard, parent, node, at)? {
                continue;
            }
            #[cfg(all(test, not(shuttle)))]
            crate::stall::reached(Step::Absorb, node.level - 1);
            let mut entries = node.entries();
            entries.remove(at);
            let mut new = self.rebuilt(node, &entries);
            new.merging = NO_PAGE;
            let small = new.len() <= self.options.fan_out / 4;
            if self.install_inner(guard, parent, node, new) {
                self.retire(guard, Retired::Pid(node.merging), 0, size_of::<u64>());
                guard.count(Counter::Merges as usize, 1);
                if small && parent != ROOT {
                    self.merge(guard, node.level, parent, node.low());
                }
                return Ok(());
            }
        }
    }

    /// Step 2. False: look again. Fails when the child is an inner node under which a merge lacks
    /// memory; it is not frozen then.
    fn freeze(&self, guard: &Guard<'_>, pid: u32) -> Result<bool, Error> {
        let word = self.read(guard, pid);
        if word.frozen() {
            return Ok(true);
        }
        if let Some(inner) = word.inner()
            && inner.merging != NO_PAGE
        {
            self.finish_merge(guard, pid)?;
            return Ok(false);
        }
        Ok(self.install(pid, word.raw, word.raw | FROZEN))
    }

    /// Step 3. True when the left neighbour has the child's rows; false: the parent changed, look
    /// again.
    fn absorb(&self, guard: &Guard<'_>, parent: u32, node: &Inner, at: usize) -> Result<bool, Error> {
        let (going, low) = (node.pid(at), node.separator(at));
        let mut left = node.pid(at - 1);
        loop {
            let word = self.read(guard, left);
            let unchanged = self.read(guard, parent).inner().is_some_and(|now| std::ptr::eq(now, node));
            if !unchanged || word.frozen() {
                return Ok(false);
            }
            let (high, right) = match word.node(&self.store) {
                Node::Leaf(state) => (state.leaf.high_fence(), state.leaf.right()),
                Node::Inner(inner) => (inner.high.as_deref(), inner.right),
                Node::Gone => return Ok(false),
            };
            match high {
                Some(high) if high < low => left = right,
                Some(high) if high == low && right == going => {
                    let joined = match (word.node(&self.store), self.read(guard, going).node(&self.store)) {
                        (Node::Leaf(l), Node::Leaf(r)) => self.join_leaves(guard, (left, &l), (going, &r))?,
                        (Node::Inner(l), Node::Inner(r)) => self.join_inner(guard, (left, l), (going, r)),
                        _ => false,
                    };
                    if joined {
                        return Ok(true);
                    }
                }
                _ => return Ok(true),
            }
        }
    }

    fn join_leaves(
        &self,
        guard: &Guard<'_>,
        (pid, l): (u32, &LeafState<'_>),
        (going, r): (u32, &LeafState<'_>),
    ) -> Result<bool, Error> {
        let mut pieces = pieces_of(l, None);
        pieces.extend(pieces_of(r, None));
        let fences = Fences { low: l.leaf.low_fence(), high: r.leaf.high_fence() };
        let layout = Layout::of(&pieces, fences, self.options.prefix_len);
        let purpose = Purpose::Shrinking { from: self.store.piece_bytes(l).max(self.store.piece_bytes(r)) };
        let newest = self.newest(l).max(self.newest(r));
        let (word, fresh) = self.build_leaf(&pieces, &layout, fences, r.leaf.right(), purpose, newest)?;
        let reserved = fresh.reserved();
        if !self.install(pid, l.word, word) {
            self.store.discard(fresh);
            return Ok(false);
        }
        #[cfg(all(test, not(shuttle)))]
        crate::stall::reached(Step::Join, 0);
        self.shelter(reserved, fences.low);
        self.clear(going);
        self.store.came_or_went(going);
        self.retire_leaf(guard, pid, l);
        self.retire_leaf(guard, going, r);
        Ok(true)
    }

    fn join_inner(&self, guard: &Guard<'_>, (pid, l): (u32, &Inner), (going, r): (u32, &Inner)) -> bool {
        let mut entries = l.entries();
        entries.extend(r.entries());
        let new = Inner::new(self.epochs.now(), l.level, &entries, r.high.as_deref(), r.right, l.merging);
        if !self.install_inner(guard, pid, l, new) {
            return false;
        }
        #[cfg(all(test, not(shuttle)))]
        crate::stall::reached(Step::Join, l.level);
        self.clear(going);
        self.retire(guard, Retired::Inner(std::ptr::from_ref(r) as usize), r.birth, r.bytes());
        true
    }

    /// The page's rows are elsewhere. The caller's guard keeps its number from being given to
    /// another page.
    fn clear(&self, pid: u32) {
        self.store.map.entry(pid).word.store(GONE, Ordering::SeqCst);
    }
}
