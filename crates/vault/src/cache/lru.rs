//! Least recently used.

use super::policy::{Access, Policy};
use super::queues::Queues;

#[derive(Debug)]
pub(super) struct Lru {
    blocks: usize,
    queue: Queues<()>,
}

impl Lru {
    pub(super) fn new(blocks: usize) -> Lru {
        Lru { blocks, queue: Queues::new(1) }
    }
}

impl Policy for Lru {
    fn access(&mut self, block: u64, may_go: &mut dyn FnMut(u64) -> bool) -> Access {
        if self.queue.queue_of(block).is_some() {
            self.queue.append(block, 0);
            return Access::HIT;
        }
        let mut evicted = None;
        if self.queue.len(0) >= self.blocks {
            evicted = self.queue.iter(0).find(|block| may_go(*block));
            let Some(victim) = evicted else { return Access::PASSED };
            self.queue.remove(victim);
        }
        self.queue.push(0, block, ());
        Access::miss(evicted)
    }

    fn remove(&mut self, block: u64) {
        self.queue.remove(block);
    }

    fn len(&self) -> usize {
        self.queue.len(0)
    }
}
