//! A window in front of a frequency filter (Einziger, Friedman and Manes, ACM ToS 2017): what
//! leaves the window stays only if it came more often than what it would replace.
//!
//! Below a database's own cache blocks come seldom, so this differs from the paper in three points:
//! - Counters are halved after a hundred accesses a block, not ten. After ten most hold 0 or 1.
//! - The access that brought a newcomer does not count: what it would replace still waits for its
//!   own. Without that, each halving gives up what is kept of a loop.
//! - The main part is queued by the logarithm of the count, as in MQ: the least frequent goes.

use super::policy::{Access, Policy};
use super::queues::Queues;

const WINDOW: usize = 0;
/// Queues of the main part: by the logarithm of a counter.
const CLASSES: usize = u8::BITS as usize;

#[derive(Debug)]
pub(super) struct WTinyLfu {
    blocks: usize,
    window_max: usize,
    queues: Queues<()>,
    sketch: Sketch,
    /// Whose first block is looked at next.
    looks: usize,
}

impl WTinyLfu {
    /// A hundredth for the window.
    pub(super) fn new(blocks: usize) -> WTinyLfu {
        let (queues, sketch) = (Queues::new(1 + CLASSES), Sketch::new(blocks));
        WTinyLfu { blocks, window_max: (blocks / 100).max(1), queues, sketch, looks: CLASSES }
    }

    fn class(&self, block: u64) -> usize {
        1 + self.sketch.count(block).max(1).ilog2() as usize
    }

    /// Appends a block to the queue of its class.
    fn file(&mut self, block: u64) {
        self.queues.append(block, self.class(block));
    }

    /// The first block of one class sinks if its counter was halved since it came.
    fn look(&mut self) {
        self.looks = if self.looks == CLASSES { 2 } else { self.looks + 1 };
        if let Some(first) = self.queues.front(self.looks)
            && self.class(first) < self.looks
        {
            self.file(first);
        }
    }

    fn evict(&mut self, may_go: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        let mut first = |queue: usize| self.queues.iter(queue).find(|block| may_go(*block));
        let newcomer = if self.queues.len(WINDOW) >= self.window_max { first(WINDOW) } else { None };
        let victim = (1..=CLASSES).find_map(&mut first);
        let goes = match (newcomer, victim) {
            (Some(newcomer), Some(victim)) if self.comes_more_often(newcomer, victim) => {
                self.file(newcomer);
                victim
            }
            (one, other) => one.or(other).or_else(|| first(WINDOW))?,
        };
        self.queues.remove(goes);
        Some(goes)
    }

    /// Even without the access that brought it.
    fn comes_more_often(&self, newcomer: u64, victim: u64) -> bool {
        self.sketch.count(newcomer) > self.sketch.count(victim).saturating_add(1)
    }
}

impl Policy for WTinyLfu {
    fn access(&mut self, block: u64, may_go: &mut dyn FnMut(u64) -> bool) -> Access {
        self.sketch.add(block);
        self.look();
        match self.queues.queue_of(block) {
            Some(WINDOW) => self.queues.append(block, WINDOW),
            Some(_) => self.file(block),
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
                    self.file(oldest);
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
        (0..=CLASSES).map(|queue| self.queues.len(queue)).sum()
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
/// Counters of a row, for each block of the cache: a loop is longer than the cache.
const WIDTH: usize = 8;
/// Accesses after which counters are halved, for each block of the cache.
const SAMPLE: usize = 100;

impl Sketch {
    fn new(blocks: usize) -> Sketch {
        let blocks = blocks.max(16);
        let width = (WIDTH * blocks).next_power_of_two();
        let counters = vec![0; width * ROWS as usize];
        Sketch { counters, mask: width as u64 - 1, added: 0, sample: SAMPLE * blocks }
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
            if *counter == least {
                *counter = counter.saturating_add(1);
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
    use std::collections::VecDeque;

    use super::*;
    use proptest::prelude::*;

    /// The rules as they are told, searched from the front.
    struct Naive {
        blocks: usize,
        window: VecDeque<u64>,
        classes: [VecDeque<u64>; CLASSES],
        sketch: Sketch,
        accesses: usize,
    }

    impl Naive {
        fn file(&mut self, block: u64) {
            let count = f64::from(self.sketch.count(block).max(1));
            self.classes[count.log2().floor() as usize].push_back(block);
        }

        fn take(queue: &mut VecDeque<u64>, block: u64) -> bool {
            let place = queue.iter().position(|one| *one == block);
            place.is_some_and(|place| queue.remove(place).is_some())
        }

        fn access(&mut self, block: u64) -> Access {
            self.sketch.add(block);
            // All but the lowest class have their turn.
            let turn = 1 + self.accesses % (CLASSES - 1);
            self.accesses += 1;
            if let Some(first) = self.classes[turn].front().copied()
                && usize::from(self.sketch.count(first)) < 1 << turn
            {
                self.classes[turn].pop_front();
                self.file(first);
            }
            if Naive::take(&mut self.window, block) {
                self.window.push_back(block);
                return Access::HIT;
            }
            if self.classes.iter_mut().any(|class| Naive::take(class, block)) {
                self.file(block);
                return Access::HIT;
            }
            let full = self.window.len() + self.classes.iter().map(VecDeque::len).sum::<usize>() >= self.blocks;
            let mut evicted = None;
            if self.window.len() >= (self.blocks / 100).max(1) {
                let newcomer = self.window.pop_front().unwrap();
                let victim = self.classes.iter_mut().find(|class| !class.is_empty());
                match victim {
                    _ if !full => self.file(newcomer),
                    Some(class) if self.sketch.count(newcomer) as u16 > self.sketch.count(class[0]) as u16 + 1 => {
                        evicted = class.pop_front();
                        self.file(newcomer);
                    }
                    _ => evicted = Some(newcomer),
                }
            }
            self.window.push_back(block);
            Access { hit: false, admitted: true, evicted }
        }
    }

    proptest! {
        #[test]
        fn it_is_what_is_told_access_by_access(
            blocks in 1usize..20,
            accesses in proptest::collection::vec((0u64..12, 0u64..40), 1..4000),
        ) {
            let (classes, sketch) = (Default::default(), Sketch::new(blocks));
            let mut naive = Naive { blocks, window: VecDeque::new(), classes, sketch, accesses: 0 };
            let mut policy = WTinyLfu::new(blocks);
            for (hot, cold) in accesses {
                // Few blocks often, many seldom.
                let block = if hot < 6 { hot } else { 100 + cold };
                prop_assert_eq!(policy.access(block, &mut |_| true), naive.access(block));
                prop_assert!(policy.queues.iter(WINDOW).eq(naive.window.iter().copied()));
                for (class, told) in naive.classes.iter().enumerate() {
                    prop_assert!(policy.queues.iter(1 + class).eq(told.iter().copied()), "class {}", class);
                }
            }
        }
    }

    #[test]
    fn the_sketch_counts_and_forgets() {
        let mut sketch = Sketch::new(100);
        (0..40).for_each(|_| sketch.add(7));
        assert!(sketch.count(7) >= 40 && sketch.count(8) <= 1);
        (0..20_000).for_each(|other| sketch.add(1000 + other));
        assert!(sketch.count(7) < 40, "what was long ago counts less");
        (0..300).for_each(|_| sketch.add(9));
        assert_eq!(sketch.count(9), u8::MAX, "a counter that is full stays so");
    }
}
