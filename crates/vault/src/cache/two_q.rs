//! Two queues (Johnson and Shasha, VLDB 1994): blocks come into a short first-in first-out queue,
//! and into the main one when they come again after they have left it.

use super::policy::{Access, Policy};
use super::queues::Queues;

const IN: usize = 0;
const MAIN: usize = 1;
/// Left the first queue, remembered.
const OUT: usize = 2;

#[derive(Debug)]
pub(super) struct TwoQ {
    blocks: usize,
    in_max: usize,
    out_max: usize,
    queues: Queues<()>,
}

impl TwoQ {
    /// A quarter for the first queue, and half as many numbers remembered as there are
    /// blocks, as its authors say.
    pub(super) fn new(blocks: usize) -> TwoQ {
        TwoQ { blocks, in_max: (blocks / 4).max(1), out_max: (blocks / 2).max(1), queues: Queues::new(3) }
    }

    fn reclaim(&mut self, may_go: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        let from_in = self.queues.len(IN) > self.in_max || self.queues.len(MAIN) == 0;
        let order = if from_in { [IN, MAIN] } else { [MAIN, IN] };
        let victim = order.iter().find_map(|queue| self.queues.iter(*queue).find(|block| may_go(*block)))?;
        if self.queues.queue_of(victim) == Some(IN) {
            self.queues.append(victim, OUT);
            if self.queues.len(OUT) > self.out_max
                && let Some(oldest) = self.queues.front(OUT)
            {
                self.queues.remove(oldest);
            }
        } else {
            self.queues.remove(victim);
        }
        Some(victim)
    }
}

impl Policy for TwoQ {
    fn access(&mut self, block: u64, may_go: &mut dyn FnMut(u64) -> bool) -> Access {
        let before = self.queues.queue_of(block);
        match before {
            Some(MAIN) => self.queues.append(block, MAIN),
            // It is as good as new.
            Some(IN) => {}
            Some(_) | None => {
                // It must not be forgotten by what makes room for it.
                let known = before == Some(OUT) && self.queues.remove(block).is_some();
                let mut evicted = None;
                if self.len() >= self.blocks {
                    evicted = self.reclaim(may_go);
                    if evicted.is_none() {
                        return Access::PASSED;
                    }
                }
                self.queues.push(if known { MAIN } else { IN }, block, ());
                return Access::miss(evicted);
            }
        }
        Access::HIT
    }

    fn remove(&mut self, block: u64) {
        if matches!(self.queues.queue_of(block), Some(IN | MAIN)) {
            self.queues.remove(block);
        }
    }

    fn len(&self) -> usize {
        self.queues.len(IN) + self.queues.len(MAIN)
    }
}
