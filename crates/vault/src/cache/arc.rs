//! Adaptive replacement (Megiddo and Modha, FAST 2003): blocks seen once and blocks seen again,
//! each with a memory of those that have left, whose returns move the border between the two.

use super::policy::{Access, Policy};
use super::queues::Queues;

/// Seen once; seen again; and the same, gone.
const ONCE: usize = 0;
const AGAIN: usize = 1;
const ONCE_GONE: usize = 2;
const AGAIN_GONE: usize = 3;

#[derive(Debug)]
pub(super) struct Arc {
    blocks: usize,
    /// What the queue of those seen once may hold; it moves by fractions of a block.
    target: f64,
    queues: Queues<()>,
}

impl Arc {
    pub(super) fn new(blocks: usize) -> Arc {
        Arc { blocks, target: 0.0, queues: Queues::new(4) }
    }

    /// Takes a block out and remembers it. `favours_again`: the block that comes was seen again
    /// before.
    fn replace(&mut self, favours_again: bool, may_go: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        let once = self.queues.len(ONCE);
        let over = once as f64 - self.target;
        let takes_once = once > 0 && (over > 0.0 || (favours_again && over == 0.0));
        let order = if takes_once { [ONCE, AGAIN] } else { [AGAIN, ONCE] };
        let victim = order.iter().find_map(|queue| self.queues.iter(*queue).find(|block| may_go(*block)))?;
        let gone = if self.queues.queue_of(victim) == Some(ONCE) { ONCE_GONE } else { AGAIN_GONE };
        self.queues.append(victim, gone);
        Some(victim)
    }

    fn forget(&mut self, queue: usize) {
        if let Some(oldest) = self.queues.front(queue) {
            self.queues.remove(oldest);
        }
    }

    fn is_full(&self) -> bool {
        self.len() >= self.blocks
    }
}

impl Policy for Arc {
    fn access(&mut self, block: u64, may_go: &mut dyn FnMut(u64) -> bool) -> Access {
        let len = |queue: usize| self.queues.len(queue);
        let (once_gone, again_gone) = (len(ONCE_GONE), len(AGAIN_GONE));
        match self.queues.queue_of(block) {
            Some(ONCE | AGAIN) => {
                self.queues.append(block, AGAIN);
                Access::HIT
            }
            Some(gone) => {
                let share = again_gone as f64 / once_gone as f64;
                self.target = if gone == ONCE_GONE {
                    (self.target + share.max(1.0)).min(self.blocks as f64)
                } else {
                    (self.target - share.recip().max(1.0)).max(0.0)
                };
                let mut evicted = None;
                if self.is_full() {
                    evicted = self.replace(gone == AGAIN_GONE, may_go);
                    if evicted.is_none() {
                        return Access::PASSED;
                    }
                }
                self.queues.append(block, AGAIN);
                Access::miss(evicted)
            }
            None => {
                let mut evicted = None;
                if len(ONCE) + once_gone >= self.blocks {
                    if len(ONCE) < self.blocks {
                        self.forget(ONCE_GONE);
                    } else {
                        // The oldest of those seen once goes, and is not remembered.
                        evicted = self.queues.iter(ONCE).find(|block| may_go(*block));
                        let Some(victim) = evicted else { return Access::PASSED };
                        self.queues.remove(victim);
                    }
                } else if self.len() + once_gone + again_gone >= 2 * self.blocks {
                    self.forget(AGAIN_GONE);
                }
                if evicted.is_none() && self.is_full() {
                    evicted = self.replace(false, may_go);
                    if evicted.is_none() {
                        return Access::PASSED;
                    }
                }
                self.queues.push(ONCE, block, ());
                Access::miss(evicted)
            }
        }
    }

    fn remove(&mut self, block: u64) {
        if matches!(self.queues.queue_of(block), Some(ONCE | AGAIN)) {
            self.queues.remove(block);
        }
    }

    fn len(&self) -> usize {
        self.queues.len(ONCE) + self.queues.len(AGAIN)
    }
}
