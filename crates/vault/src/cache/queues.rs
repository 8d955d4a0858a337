//! Blocks in queues, found by number: what every policy is made of.

use std::collections::BTreeMap;

/// Several queues of blocks; a block is in one of them at most. An operation looks one block up.
#[derive(Debug)]
pub(super) struct Queues<M> {
    nodes: Vec<Node<M>>,
    free: Vec<u32>,
    /// Looked up by number, never walked.
    index: BTreeMap<u64, u32>,
    ends: Vec<Ends>,
}

#[derive(Debug)]
struct Node<M> {
    block: u64,
    queue: usize,
    before: u32,
    behind: u32,
    note: M,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    front: u32,
    back: u32,
    len: usize,
}

/// No node's number.
const NONE: u32 = u32::MAX;

impl<M> Queues<M> {
    /// So many empty queues.
    pub(super) fn new(queues: usize) -> Queues<M> {
        let ends = vec![Ends { front: NONE, back: NONE, len: 0 }; queues];
        Queues { nodes: Vec::new(), free: Vec::new(), index: BTreeMap::new(), ends }
    }

    /// Which queue a block is in.
    pub(super) fn queue_of(&self, block: u64) -> Option<usize> {
        self.index.get(&block).map(|node| self.nodes[*node as usize].queue)
    }

    /// Blocks in a queue.
    pub(super) fn len(&self, queue: usize) -> usize {
        self.ends[queue].len
    }

    /// What is noted of a block.
    pub(super) fn note(&mut self, block: u64) -> Option<&mut M> {
        let node = *self.index.get(&block)?;
        Some(&mut self.nodes[node as usize].note)
    }

    /// The first block of a queue: the one that came in first.
    pub(super) fn front(&self, queue: usize) -> Option<u64> {
        let front = self.ends[queue].front;
        (front != NONE).then(|| self.nodes[front as usize].block)
    }

    /// The blocks of a queue, the first one first.
    pub(super) fn iter(&self, queue: usize) -> impl Iterator<Item = u64> + '_ {
        let mut next = self.ends[queue].front;
        std::iter::from_fn(move || {
            let node = self.nodes.get(next as usize)?;
            next = node.behind;
            Some(node.block)
        })
    }

    /// Appends a block that is in no queue.
    pub(super) fn push(&mut self, queue: usize, block: u64, note: M) {
        debug_assert!(!self.index.contains_key(&block), "a block is in one queue");
        let node = Node { block, queue, before: NONE, behind: NONE, note };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.index.insert(block, place);
        self.link(place, queue);
    }

    /// Takes a block out of its queue: what was noted of it.
    pub(super) fn remove(&mut self, block: u64) -> Option<M>
    where
        M: Default,
    {
        let place = self.index.remove(&block)?;
        self.unlink(place);
        self.free.push(place);
        Some(std::mem::take(&mut self.nodes[place as usize].note))
    }

    /// Moves a block to the back of a queue, its own or another one.
    pub(super) fn append(&mut self, block: u64, queue: usize) {
        if let Some(place) = self.index.get(&block).copied() {
            self.unlink(place);
            self.link(place, queue);
        }
    }

    fn link(&mut self, place: u32, queue: usize) {
        let back = self.ends[queue].back;
        let node = &mut self.nodes[place as usize];
        (node.queue, node.before, node.behind) = (queue, back, NONE);
        match back {
            NONE => self.ends[queue].front = place,
            back => self.nodes[back as usize].behind = place,
        }
        self.ends[queue].back = place;
        self.ends[queue].len += 1;
    }

    fn unlink(&mut self, place: u32) {
        let Node { queue, before, behind, .. } = self.nodes[place as usize];
        match before {
            NONE => self.ends[queue].front = behind,
            before => self.nodes[before as usize].behind = behind,
        }
        match behind {
            NONE => self.ends[queue].back = before,
            behind => self.nodes[behind as usize].before = before,
        }
        self.ends[queue].len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    proptest! {
        /// Held against queues that are searched from the front.
        #[test]
        fn queues_are_queues(steps in proptest::collection::vec((0u8..3, 0usize..3, 0u64..12), 0..200)) {
            let (mut queues, mut naive) = (Queues::new(3), vec![VecDeque::new(); 3]);
            for (step, queue, block) in steps {
                let there = naive.iter().position(|one| one.contains(&block));
                prop_assert_eq!(queues.queue_of(block), there);
                if let Some(there) = there {
                    if step > 0 {
                        naive[there].retain(|one| *one != block);
                    }
                    match step {
                        0 => prop_assert_eq!(queues.note(block), Some(&mut block.wrapping_mul(7))),
                        1 => prop_assert_eq!(queues.remove(block), Some(block.wrapping_mul(7))),
                        _ => {
                            queues.append(block, queue);
                            naive[queue].push_back(block);
                        }
                    }
                } else {
                    prop_assert_eq!(queues.remove(block), None);
                    queues.push(queue, block, block.wrapping_mul(7));
                    naive[queue].push_back(block);
                }
                for (queue, naive) in naive.iter().enumerate() {
                    prop_assert!(queues.iter(queue).eq(naive.iter().copied()));
                    prop_assert_eq!((queues.len(queue), queues.front(queue)), (naive.len(), naive.front().copied()));
                }
            }
        }
    }
}
