//! Multi-queue (Zhou, Philbin and Li, USENIX 2001; vi-attached-storage §2.2), for a cache below
//! another one: what the upper cache keeps is never asked for here, and what it evicts comes back
//! late. So blocks are ordered by how often they came, and keep their frequency for a while after
//! they have left. Warm blocks stay; hot ones the upper cache has, and cold ones nobody wants.

use super::policy::{Access, Policy};
use super::queues::Queues;

/// Queues by the logarithm of the frequency.
const QUEUES: usize = 8;
/// Numbers that are remembered, for each block of the cache.
const REMEMBERED: usize = 4;
/// Behind the queues of blocks.
const OUT: usize = QUEUES;
/// Logarithms of a distance between two accesses.
const DISTANCES: usize = 64;

#[derive(Debug)]
pub(super) struct Mq {
    blocks: usize,
    queues: Queues<Note>,
    /// Accesses so far.
    now: u64,
    life_time: LifeTime,
}

#[derive(Clone, Copy, Debug, Default)]
struct Note {
    frequency: u64,
    /// When it drops by one queue.
    expires: u64,
    last: u64,
}

/// How long a block keeps its queue: the distance between accesses to one block that is seen most.
#[derive(Debug)]
struct LifeTime {
    accesses: u64,
    seen: [u64; DISTANCES],
    since: u64,
    /// Accesses between two looks at what was seen.
    every: u64,
}

impl LifeTime {
    fn new(blocks: usize) -> LifeTime {
        let blocks = blocks as u64;
        LifeTime { accesses: blocks, seen: [0; DISTANCES], since: 0, every: blocks.max(64) }
    }

    fn see(&mut self, distance: u64) {
        self.seen[distance.max(1).ilog2() as usize] += 1;
    }

    /// After each access.
    fn look(&mut self) {
        self.since += 1;
        if self.since < self.every {
            return;
        }
        self.since = 0;
        let peak = (0..DISTANCES).max_by_key(|place| (self.seen[*place], *place)).filter(|place| self.seen[*place] > 0);
        if let Some(peak) = peak {
            self.accesses = 2u64.saturating_pow(peak as u32 + 1);
        }
        // What was long ago counts less.
        self.seen.iter_mut().for_each(|count| *count /= 2);
    }
}

impl Mq {
    pub(super) fn new(blocks: usize) -> Mq {
        Mq { blocks, queues: Queues::new(QUEUES + 1), now: 0, life_time: LifeTime::new(blocks) }
    }

    fn queue(frequency: u64) -> usize {
        (frequency.max(1).ilog2() as usize).min(QUEUES - 1)
    }

    fn evict(&mut self, may_go: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        let victim = (0..QUEUES).find_map(|queue| self.queues.iter(queue).find(|block| may_go(*block)))?;
        self.queues.append(victim, OUT);
        if self.queues.len(OUT) > REMEMBERED * self.blocks
            && let Some(oldest) = self.queues.front(OUT)
        {
            self.queues.remove(oldest);
        }
        Some(victim)
    }

    /// The head of each queue that has not come for a life time drops by one.
    fn adjust(&mut self) {
        for queue in 1..QUEUES {
            let Some(head) = self.queues.front(queue) else { continue };
            let (now, life_time) = (self.now, self.life_time.accesses);
            let Some(note) = self.queues.note(head) else { continue };
            if note.expires < now {
                note.expires = now + life_time;
                self.queues.append(head, queue - 1);
            }
        }
    }
}

impl Policy for Mq {
    fn access(&mut self, block: u64, may_go: &mut dyn FnMut(u64) -> bool) -> Access {
        self.now += 1;
        let before = self.queues.queue_of(block);
        let remembered = match before {
            Some(OUT) => self.queues.remove(block),
            Some(_) => self.queues.note(block).copied(),
            None => None,
        };
        if let Some(note) = remembered {
            self.life_time.see(self.now - note.last);
        }
        self.life_time.look();
        let frequency = remembered.map_or(0, |note| note.frequency) + 1;
        let note = Note { frequency, expires: self.now + self.life_time.accesses, last: self.now };
        let access = if before.is_some_and(|queue| queue < QUEUES) {
            if let Some(kept) = self.queues.note(block) {
                *kept = note;
            }
            self.queues.append(block, Mq::queue(frequency));
            Access::HIT
        } else {
            let evicted = if self.len() >= self.blocks { self.evict(may_go) } else { None };
            if evicted.is_none() && self.len() >= self.blocks {
                if remembered.is_some() {
                    self.queues.push(OUT, block, note);
                }
                return Access::PASSED;
            }
            self.queues.push(Mq::queue(frequency), block, note);
            Access::miss(evicted)
        };
        self.adjust();
        access
    }

    fn remove(&mut self, block: u64) {
        if self.queues.queue_of(block).is_some_and(|queue| queue < QUEUES) {
            self.queues.remove(block);
        }
    }

    fn len(&self) -> usize {
        (0..QUEUES).map(|queue| self.queues.len(queue)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use proptest::prelude::*;

    /// What the paper, its source for MQ and this file's head say, taken literally: searched from
    /// the front.
    struct Naive {
        blocks: usize,
        queues: Vec<VecDeque<(u64, Note)>>,
        out: VecDeque<(u64, Note)>,
        now: u64,
        life_time: LifeTime,
    }

    impl Naive {
        fn take(queue: &mut VecDeque<(u64, Note)>, block: u64) -> Option<Note> {
            let place = queue.iter().position(|(one, _)| *one == block)?;
            queue.remove(place).map(|(_, note)| note)
        }

        /// The first of the lowest queue that has one which may go.
        fn victim(&mut self, may_go: &dyn Fn(u64) -> bool) -> Option<(u64, Note)> {
            self.queues.iter_mut().find_map(|queue| {
                let place = queue.iter().position(|(block, _)| may_go(*block))?;
                queue.remove(place)
            })
        }

        fn access(&mut self, block: u64, may_go: &dyn Fn(u64) -> bool) -> Access {
            self.now += 1;
            let cached = self.queues.iter_mut().find_map(|queue| Naive::take(queue, block));
            let known = cached.or_else(|| Naive::take(&mut self.out, block));
            if let Some(note) = known {
                self.life_time.see(self.now - note.last);
            }
            self.life_time.look();
            let frequency = known.map_or(1, |note| note.frequency + 1);
            let note = Note { frequency, expires: self.now + self.life_time.accesses, last: self.now };
            let mut evicted = None;
            let full = self.queues.iter().map(VecDeque::len).sum::<usize>() >= self.blocks;
            if cached.is_none() && full {
                let Some(victim) = self.victim(may_go) else {
                    self.out.extend(known.map(|_| (block, note)));
                    return Access::PASSED;
                };
                evicted = Some(victim.0);
                self.out.push_back(victim);
                if self.out.len() > 4 * self.blocks {
                    self.out.pop_front();
                }
            }
            let queue = (frequency as f64).log2().floor().min(7.0) as usize;
            self.queues[queue].push_back((block, note));
            for queue in 1..8 {
                if self.queues[queue].front().is_some_and(|(_, note)| note.expires < self.now) {
                    let (block, mut note) = self.queues[queue].pop_front().unwrap();
                    note.expires = self.now + self.life_time.accesses;
                    self.queues[queue - 1].push_back((block, note));
                }
            }
            Access { hit: cached.is_some(), admitted: true, evicted }
        }
    }

    proptest! {
        #[test]
        fn it_is_the_papers_access_by_access(
            blocks in 1usize..20,
            accesses in proptest::collection::vec((0u64..12, 0u64..40, 0u64..16), 1..1500),
        ) {
            let queues = vec![VecDeque::new(); 8];
            let life_time = LifeTime::new(blocks);
            let mut naive = Naive { blocks, queues, out: VecDeque::new(), now: 0, life_time };
            let mut mq = Mq::new(blocks);
            for (hot, cold, pins) in accesses {
                // Few blocks often, many seldom.
                let block = if hot < 6 { hot } else { 100 + cold };
                if pins == 1 {
                    mq.remove(block);
                    naive.queues.iter_mut().for_each(|queue| _ = Naive::take(queue, block));
                }
                // Now and then none may go, or only some.
                let may_go = |block: u64| pins > 3 || (pins > 0 && block % 4 >= pins);
                prop_assert_eq!(mq.access(block, &mut |block| may_go(block)), naive.access(block, &may_go));
                for (queue, blocks) in naive.queues.iter().chain([&naive.out]).enumerate() {
                    prop_assert!(mq.queues.iter(queue).eq(blocks.iter().map(|(block, _)| *block)));
                }
            }
        }
    }

    #[test]
    fn a_queue_is_the_logarithm_of_a_frequency_and_the_last_has_all_higher() {
        for (times, queue) in [(1, 0), (2, 1), (3, 1), (4, 2), (7, 2), (8, 3), (127, 6), (128, 7), (300, 7)] {
            // It knows of no lifetime yet, and the first one is of as many accesses as it has blocks.
            let mut mq = Mq::new(1000);
            (0..times).for_each(|_| _ = mq.access(1, &mut |_| true));
            assert_eq!(mq.queues.queue_of(1), Some(queue), "{times}");
        }
    }

    /// By hand: the power of two above the distance between two accesses to a block.
    #[test]
    fn a_block_keeps_its_queue_for_the_distance_that_is_seen_most() {
        for (blocks, life) in [(4, 8), (10, 16), (40, 64)] {
            let mut mq = Mq::new(64);
            let mut access = |block| _ = mq.access(block, &mut |_| true);
            // In turn: the first one comes 32 times.
            (0..32 * blocks).for_each(|number| access(number % blocks));
            let mut fresh = 1000..;
            let mut queue_after = |accesses: u64| {
                (0..accesses).for_each(|_| _ = mq.access(fresh.next().unwrap(), &mut |_| true));
                mq.queues.queue_of(0)
            };
            assert_eq!(queue_after(life - (blocks - 1)), Some(5), "{blocks}: it came that long ago");
            assert_eq!(queue_after(1), Some(4), "{blocks}");
            assert_eq!(queue_after(life), Some(4), "{blocks}: it has another life in each queue");
            assert_eq!(queue_after(1), Some(3), "{blocks}");
        }
    }

    #[test]
    fn who_is_evicted_has_its_frequency_again_while_four_times_the_blocks_have_not_followed() {
        // Of eight blocks one came eight times, and goes because no other one may.
        let evicted = || {
            let mut mq = Mq::new(8);
            (0..8).for_each(|_| _ = mq.access(1, &mut |_| true));
            (100..107).for_each(|block| _ = mq.access(block, &mut |_| true));
            assert_eq!(mq.access(107, &mut |block| block == 1), Access::miss(Some(1)));
            mq
        };
        for (followed, queue) in [(0, 3), (4 * 8 - 1, 3), (4 * 8, 0)] {
            let mut mq = evicted();
            (0..followed).for_each(|block| assert!(mq.access(200 + block, &mut |_| true).evicted.is_some()));
            assert!(!mq.access(1, &mut |_| true).hit);
            assert_eq!(mq.queues.queue_of(1), Some(queue), "{followed}");
        }
        let mut mq = evicted();
        assert_eq!(mq.access(1, &mut |_| false), Access::PASSED, "it returns while none may go");
        mq.access(1, &mut |_| true);
        assert_eq!(mq.queues.queue_of(1), Some(3), "and loses nothing by that");
    }

    #[test]
    fn a_block_that_comes_often_outlives_many_that_come_once_and_is_remembered() {
        let mut mq = Mq::new(4);
        let mut access = |block| mq.access(block, &mut |_| true);
        for _ in 0..8 {
            access(1);
        }
        for block in 100..108 {
            access(block);
        }
        assert!(access(1).hit, "eight accesses beat one");
        // Until its queue is the lowest one, it is passed over.
        let mut gone = false;
        for block in 200..2000 {
            gone |= access(block).evicted == Some(1);
        }
        assert!(gone, "what has not come for long sinks and goes");
    }
}
