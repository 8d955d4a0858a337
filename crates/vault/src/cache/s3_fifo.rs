//! Three first-in first-out queues (Yang et al., SOSP 2023): most blocks come once, and leave by a
//! small queue; those that came again there, or are remembered, get into the main one.

use super::policy::{Access, Policy};
use super::queues::Queues;

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;
/// Accesses that are counted of a block.
const COUNTED: u8 = 3;
/// Accesses in the small queue that get a block into the main one.
const ENOUGH: u8 = 2;

#[derive(Debug)]
pub(super) struct S3Fifo {
    blocks: usize,
    small_max: usize,
    ghost_max: usize,
    queues: Queues<u8>,
}

impl S3Fifo {
    pub(super) fn new(blocks: usize) -> S3Fifo {
        let small_max = (blocks / 10).max(1);
        let ghost_max = (blocks - small_max.min(blocks)).max(1);
        S3Fifo { blocks, small_max, ghost_max, queues: Queues::new(3) }
    }

    fn evict(&mut self, may_go: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        // Each turn evicts, lowers a count or moves a block on; pinned blocks may make it walk in vain.
        let turns = (self.len() + 1) * (usize::from(COUNTED) + 2);
        for _ in 0..turns {
            let small = self.queues.len(SMALL);
            let queue = if small >= self.small_max || self.queues.len(MAIN) == 0 { SMALL } else { MAIN };
            let block = self.queues.front(queue)?;
            let count = self.queues.note(block).map_or(0, |count| *count);
            if queue == SMALL && count >= ENOUGH {
                self.set(block, 0);
                self.queues.append(block, MAIN);
            } else if queue == MAIN && count > 0 {
                self.set(block, count - 1);
                self.queues.append(block, MAIN);
            } else if !may_go(block) {
                self.queues.append(block, MAIN);
            } else if queue == SMALL {
                self.set(block, 0);
                self.queues.append(block, GHOST);
                if self.queues.len(GHOST) > self.ghost_max
                    && let Some(oldest) = self.queues.front(GHOST)
                {
                    self.queues.remove(oldest);
                }
                return Some(block);
            } else {
                self.queues.remove(block);
                return Some(block);
            }
        }
        None
    }

    fn set(&mut self, block: u64, count: u8) {
        if let Some(kept) = self.queues.note(block) {
            *kept = count;
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, block: u64, may_go: &mut dyn FnMut(u64) -> bool) -> Access {
        let before = self.queues.queue_of(block);
        if matches!(before, Some(SMALL | MAIN)) {
            let count = self.queues.note(block).map_or(0, |count| *count);
            self.set(block, (count + 1).min(COUNTED));
            return Access::HIT;
        }
        let known = before == Some(GHOST) && self.queues.remove(block).is_some();
        let has_room = self.len() < self.blocks;
        let mut evicted = None;
        if !has_room {
            evicted = self.evict(may_go);
            if evicted.is_none() {
                return Access::PASSED;
            }
        }
        // While there is room, main takes what the small queue cannot.
        let to_main = known || has_room && self.queues.len(SMALL) >= self.small_max;
        self.queues.push(if to_main { MAIN } else { SMALL }, block, 0);
        Access::miss(evicted)
    }

    fn remove(&mut self, block: u64) {
        if matches!(self.queues.queue_of(block), Some(SMALL | MAIN)) {
            self.queues.remove(block);
        }
    }

    fn len(&self) -> usize {
        self.queues.len(SMALL) + self.queues.len(MAIN)
    }
}
