//! A window in front of a frequency filter (Einziger, Friedman and Manes, ACM ToS 2017): what
//! leaves the window stays only if it came more often than what it would replace.

use super::policy::{Access, Policy};
use super::queues::Queues;

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

#[derive(Debug)]
pub(super) struct WTinyLfu {
    blocks: usize,
    window_max: usize,
    protected_max: usize,
    queues: Queues<()>,
    sketch: Sketch,
}

impl WTinyLfu {
    /// A hundredth for the window, and four fifths of the rest for what came again.
    pub(super) fn new(blocks: usize) -> WTinyLfu {
        let window_max = (blocks / 100).max(1);
        let main = blocks - window_max.min(blocks);
        let (queues, sketch) = (Queues::new(3), Sketch::new(blocks));
        WTinyLfu { blocks, window_max, protected_max: main * 4 / 5, queues, sketch }
    }

    fn evict(&mut self, may_go: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        let mut first = |queue: usize| self.queues.iter(queue).find(|block| may_go(*block));
        let candidate = if self.queues.len(WINDOW) >= self.window_max { first(WINDOW) } else { None };
        let victim = first(PROBATION).or_else(|| first(PROTECTED));
        match (candidate, victim) {
            (Some(candidate), Some(victim)) => {
                let stays = self.sketch.count(candidate) > self.sketch.count(victim);
                let goes = if stays { victim } else { candidate };
                self.queues.remove(goes);
                if stays {
                    self.queues.append(candidate, PROBATION);
                }
                Some(goes)
            }
            (None, None) => {
                let goes = self.queues.iter(WINDOW).find(|block| may_go(*block))?;
                self.queues.remove(goes);
                Some(goes)
            }
            (one, other) => {
                let goes = one.or(other)?;
                self.queues.remove(goes);
                Some(goes)
            }
        }
    }
}

impl Policy for WTinyLfu {
    fn access(&mut self, block: u64, may_go: &mut dyn FnMut(u64) -> bool) -> Access {
        self.sketch.add(block);
        match self.queues.queue_of(block) {
            Some(WINDOW) => self.queues.append(block, WINDOW),
            Some(_) => {
                self.queues.append(block, PROTECTED);
                if self.queues.len(PROTECTED) > self.protected_max
                    && let Some(oldest) = self.queues.front(PROTECTED)
                {
                    self.queues.append(oldest, PROBATION);
                }
            }
            None => {
                let mut evicted = None;
                if self.len() >= self.blocks {
                    evicted = self.evict(may_go);
                    if evicted.is_none() {
                        return Access::PASSED;
                    }
                } else if self.queues.len(WINDOW) >= self.window_max
                    && let Some(oldest) = self.queues.front(WINDOW)
                {
                    // There is room yet.
                    self.queues.append(oldest, PROBATION);
                }
                self.queues.push(WINDOW, block, ());
                return Access::miss(evicted);
            }
        }
        Access::HIT
    }

    fn remove(&mut self, block: u64) {
        self.queues.remove(block);
    }

    fn len(&self) -> usize {
        self.queues.len(WINDOW) + self.queues.len(PROBATION) + self.queues.len(PROTECTED)
    }
}

/// How often blocks came, roughly: four rows of small counters, of which the least counts. All are
/// halved now and then, so that what was long ago counts less.
#[derive(Debug)]
struct Sketch {
    counters: Vec<u8>,
    mask: u64,
    added: usize,
    sample: usize,
}

const ROWS: u64 = 4;
/// What a counter counts to.
const COUNTED: u8 = 15;

impl Sketch {
    fn new(blocks: usize) -> Sketch {
        let width = blocks.max(16).next_power_of_two();
        let counters = vec![0; width * ROWS as usize];
        Sketch { counters, mask: width as u64 - 1, added: 0, sample: 10 * blocks.max(16) }
    }

    fn place(&self, block: u64, row: u64) -> usize {
        let mixed = (block ^ (row + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (row * (self.mask + 1) + ((mixed ^ (mixed >> 29)) & self.mask)) as usize
    }

    fn count(&self, block: u64) -> u8 {
        (0..ROWS).map(|row| self.counters[self.place(block, row)]).min().unwrap_or(0)
    }

    fn add(&mut self, block: u64) {
        let least = self.count(block);
        for row in 0..ROWS {
            let place = self.place(block, row);
            let counter = &mut self.counters[place];
            // Only those that are least: the others are another block's already.
            if *counter == least && *counter < COUNTED {
                *counter += 1;
            }
        }
        self.added += 1;
        if self.added >= self.sample {
            self.added /= 2;
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sketch_counts_and_forgets() {
        let mut sketch = Sketch::new(100);
        (0..9).for_each(|_| sketch.add(7));
        assert!(sketch.count(7) >= 9 && sketch.count(8) <= 1);
        (0..2000).for_each(|other| sketch.add(1000 + other));
        assert!(sketch.count(7) < 9, "what was long ago counts less");
    }
}
