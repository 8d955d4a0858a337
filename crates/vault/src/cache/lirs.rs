//! Low inter-reference recency set (Jiang and Zhang, SIGMETRICS 2002): blocks whose last two
//! accesses lay close together stay; others have a hundredth of the cache.

use super::policy::{Access, Policy};
use super::queues::Queues;

/// What a block is that stands in the stack of recencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rank {
    /// Its accesses lie close together: it stays.
    Low,
    /// They do not; it is in the cache.
    #[default]
    High,
    /// They do not, and it is gone.
    Gone,
}

#[derive(Debug)]
pub(super) struct Lirs {
    low_max: usize,
    high_max: usize,
    stack_max: usize,
    low: usize,
    /// The stack: least recent first.
    stack: Queues<Rank>,
    /// Blocks of high recency that are in the cache, in the order in which they go.
    high: Queues<()>,
    /// Blocks of the stack that are gone, oldest first: the stack is bounded by forgetting them.
    gone: Queues<()>,
}

/// Numbers in the stack at most, for each block of the cache: scans would grow it without end.
const STACKED: usize = 2;

impl Lirs {
    pub(super) fn new(blocks: usize) -> Lirs {
        let high_max = (blocks / 100).max(1);
        let (stack, high, gone) = (Queues::new(1), Queues::new(1), Queues::new(1));
        let low_max = blocks - high_max.min(blocks);
        Lirs { low_max, high_max, stack_max: STACKED * blocks, low: 0, stack, high, gone }
    }

    /// The stack ends in a block of low recency.
    fn prune(&mut self) {
        while let Some(last) = self.stack.front(0) {
            match self.stack.note(last) {
                Some(Rank::Low) => return,
                Some(Rank::Gone) => drop(self.gone.remove(last)),
                _ => {}
            }
            self.stack.remove(last);
        }
    }

    /// The least recent block of low recency becomes one of high recency.
    fn demote(&mut self) {
        let Some(last) = self.stack.front(0) else { return };
        self.stack.remove(last);
        self.low -= 1;
        self.high.push(0, last, ());
        self.prune();
    }

    fn evict(&mut self, may_go: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        let high = self.high.iter(0).find(|block| may_go(*block));
        if let Some(victim) = high {
            self.high.remove(victim);
            if let Some(rank) = self.stack.note(victim) {
                *rank = Rank::Gone;
                self.gone.push(0, victim, ());
            }
            return Some(victim);
        }
        // All of those are pinned.
        let is_low = |stack: &mut Queues<Rank>, block| stack.note(block).is_some_and(|rank| *rank == Rank::Low);
        let all: Vec<u64> = self.stack.iter(0).collect();
        let victim = all.into_iter().find(|block| is_low(&mut self.stack, *block) && may_go(*block))?;
        self.stack.remove(victim);
        self.low -= 1;
        self.prune();
        Some(victim)
    }

    /// Puts a block on the stack, which forgets those that went first.
    fn stack(&mut self, block: u64, rank: Rank) {
        self.stack.push(0, block, rank);
        while self.stack.len(0) > self.stack_max
            && let Some(oldest) = self.gone.front(0)
        {
            self.gone.remove(oldest);
            self.stack.remove(oldest);
        }
    }
}

impl Policy for Lirs {
    fn access(&mut self, block: u64, may_go: &mut dyn FnMut(u64) -> bool) -> Access {
        let rank = self.stack.note(block).copied();
        if rank == Some(Rank::Low) {
            self.stack.append(block, 0);
            self.prune();
            return Access::HIT;
        }
        if self.high.queue_of(block).is_some() {
            if rank == Some(Rank::High) {
                // It came again sooner than the least recent of those that stay.
                self.high.remove(block);
                if let Some(rank) = self.stack.note(block) {
                    *rank = Rank::Low;
                }
                self.low += 1;
                self.stack.append(block, 0);
                if self.low > self.low_max {
                    self.demote();
                } else {
                    self.prune();
                }
            } else {
                self.high.append(block, 0);
                self.stack(block, Rank::High);
            }
            return Access::HIT;
        }
        let mut evicted = None;
        if self.len() >= self.low_max + self.high_max {
            evicted = self.evict(may_go);
            if evicted.is_none() {
                return Access::PASSED;
            }
        }
        let was_gone = self.stack.note(block).is_some_and(|rank| *rank == Rank::Gone);
        if was_gone {
            self.gone.remove(block);
            self.stack.remove(block);
        }
        if was_gone || self.low < self.low_max {
            self.stack(block, Rank::Low);
            self.low += 1;
            if self.low > self.low_max {
                self.demote();
            }
        } else {
            self.stack(block, Rank::High);
            self.high.push(0, block, ());
        }
        if self.low == 0 {
            self.prune();
        }
        Access::miss(evicted)
    }

    fn remove(&mut self, block: u64) {
        if self.high.remove(block).is_some() {
            self.stack.remove(block);
        } else if self.stack.note(block).is_some_and(|rank| *rank == Rank::Low) {
            self.stack.remove(block);
            self.low -= 1;
        }
        self.prune();
    }

    fn len(&self) -> usize {
        self.low + self.high.len(0)
    }
}
