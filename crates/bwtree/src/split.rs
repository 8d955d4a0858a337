//! The second half of a split: the parent learns of the new page. Inner nodes split in the same two
//! steps.

use crate::core::{Core, ROOT};
use crate::epoch::Guard;
use crate::inner::{Entries, Inner, Target};
use crate::page::NO_PAGE;
#[cfg(all(test, not(shuttle)))]
use crate::stall::Step;
use crate::stats::Counter;
use crate::store::{Node, inner_word};

impl Core {
    /// Tells level `level` that `child` starts at `separator`, as the side link of `left` says.
    /// Returns when the parent knows or `left` says otherwise by now.
    ///
    /// The order makes a late helper harmless: the parent is read first, then `left`. If `child` is
    /// taken out of the parent after the first step, the parent's word is another; if before,
    /// `left` links elsewhere already.
    pub(crate) fn post(&self, guard: &Guard<'_>, level: u32, separator: &[u8], child: u32, left: u32) {
        loop {
            let (pid, node) = self.find_inner(guard, level, Target::At(separator));
            let at = node.child(Target::At(separator));
            if node.separator(at) == separator || !self.links(guard, left, separator, child) {
                return;
            }
            let mut entries = node.entries();
            entries.insert(at + 1, (separator, child));
            if entries.len() <= self.options.fan_out
                || node.merging != NO_PAGE && self.finish_merge(guard, pid).is_err()
            {
                let new = self.rebuilt(node, &entries);
                if self.install_inner(guard, pid, node, new) {
                    return;
                }
            } else if node.merging == NO_PAGE {
                let done = if pid == ROOT {
                    self.split_root(guard, node, &entries)
                } else {
                    self.split_inner(guard, pid, node, &entries)
                };
                if done {
                    return;
                }
            }
        }
    }

    /// Tells the parents of leaves that `children` start at these separators, as the side links say
    /// that lead from `left` through all of them. A parent learns of as many at once as it has room
    /// for.
    ///
    /// Of each child it is the same as in [`post`](Self::post): the parent is read before the link
    /// to it.
    pub(crate) fn post_all(&self, guard: &Guard<'_>, mut children: &[(&[u8], u32)], mut left: u32) {
        while let [(separator, child), ..] = *children {
            let (pid, node) = self.find_inner(guard, 1, Target::At(separator));
            let at = node.child(Target::At(separator));
            let end = if at + 1 < node.len() { Some(node.separator(at + 1)) } else { node.high.as_deref() };
            let room = self.options.fan_out.saturating_sub(node.len());
            let mut links = std::iter::once(left).chain(children.iter().map(|(_, child)| *child));
            let together = children.iter().take(room).take_while(|(separator, child)| {
                let inside = node.separator(at) < *separator && end.is_none_or(|end| *separator < end);
                inside && links.next().is_some_and(|left| self.links(guard, left, separator, *child))
            });
            let told = match together.count() {
                0 | 1 => {
                    self.post(guard, 1, separator, child, left);
                    1
                }
                told => {
                    let mut entries = node.entries();
                    entries.splice(at + 1..at + 1, children[..told].iter().copied());
                    if !self.install_inner(guard, pid, node, self.rebuilt(node, &entries)) {
                        continue;
                    }
                    told
                }
            };
            left = children[told - 1].1;
            children = &children[told..];
        }
    }

    /// Whether page `left` is in use, ends at `separator` and links to `child`.
    fn links(&self, guard: &Guard<'_>, left: u32, separator: &[u8], child: u32) -> bool {
        let word = self.read(guard, left);
        let (high, right) = match word.node(&self.store) {
            Node::Leaf(state) => (state.leaf.high_fence(), state.leaf.right()),
            Node::Inner(inner) => (inner.high.as_deref(), inner.right),
            Node::Gone => return false,
        };
        !word.frozen() && high == Some(separator) && right == child
    }

    /// `node` with other children.
    pub(crate) fn rebuilt(&self, node: &Inner, entries: &Entries<'_>) -> Inner {
        Inner::new(self.epochs.now(), node.level, entries, node.high.as_deref(), node.right, node.merging)
    }

    fn split_inner(&self, guard: &Guard<'_>, pid: u32, node: &Inner, entries: &Entries<'_>) -> bool {
        let at = if node.high.is_none() { entries.len() * 7 / 8 } else { entries.len() / 2 };
        let (left, right) = (entries[..at].to_vec(), entries[at..].to_vec());
        let between = right[0].0;
        let now = self.epochs.now();
        let right_word = inner_word(Inner::new(now, node.level, &right, node.high.as_deref(), node.right, NO_PAGE));
        let right_pid = self.new_page(right_word);
        let left = Inner::new(now, node.level, &left, Some(between), right_pid, NO_PAGE);
        if !self.install_inner(guard, pid, node, left) {
            self.take_back(right_pid, right_word);
            return false;
        }
        guard.count(Counter::InnerSplits as usize, 1);
        #[cfg(all(test, not(shuttle)))]
        crate::stall::reached(Step::Split, node.level);
        self.post(guard, node.level + 1, between, right_pid, pid);
        true
    }

    /// The root keeps its number: its halves get new ones, and it grows a level.
    fn split_root(&self, guard: &Guard<'_>, node: &Inner, entries: &Entries<'_>) -> bool {
        let at = entries.len() / 2;
        let (left, right) = (entries[..at].to_vec(), entries[at..].to_vec());
        let between = right[0].0;
        let now = self.epochs.now();
        let right_word = inner_word(Inner::new(now, node.level, &right, None, NO_PAGE, NO_PAGE));
        let right_pid = self.new_page(right_word);
        let left_word = inner_word(Inner::new(now, node.level, &left, Some(between), right_pid, NO_PAGE));
        let left_pid = self.new_page(left_word);
        let children = vec![(&[][..], left_pid), (between, right_pid)];
        let root = Inner::new(now, node.level + 1, &children, None, NO_PAGE, NO_PAGE);
        if !self.install_inner(guard, ROOT, node, root) {
            self.take_back(right_pid, right_word);
            self.take_back(left_pid, left_word);
            return false;
        }
        guard.count(Counter::InnerSplits as usize, 1);
        true
    }

    /// Takes back a page that was never published.
    fn take_back(&self, pid: u32, word: u64) {
        self.store.map.give(pid);
        crate::core::discard_inner(word);
    }
}
