//! Numbers for segments, each of one living segment at most.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::MemoryError;

/// A segment's number, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Name(u32);

impl Name {
    /// # Errors
    /// [`MemoryError::Exhausted`] when segments are alive in every block of numbers.
    pub(crate) fn new() -> Result<Self, MemoryError> {
        let none_left = MemoryError::Exhausted { bytes: 0, source: Errno::OVERFLOW };
        NAMES.take().map(Name).ok_or(none_left)
    }

    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.0
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        NAMES.give(self.0);
    }
}

/// Numbers 1 to 2^32 - 1, round and round.
///
/// A process that lives long comes round, while segments of the first round are still in use and
/// known to peers by their numbers. So numbers are given out by blocks, and a block is begun only
/// while no segment has a number of it. There is no lock: a child that was forked while another
/// thread held one could never make or drop a segment.
struct Names {
    next: AtomicU32,
    /// How many segments of each block are alive.
    alive: [AtomicU32; BLOCKS],
}

impl Names {
    const fn from(first: u32) -> Self {
        Self { next: AtomicU32::new(first), alive: [const { AtomicU32::new(0) }; BLOCKS] }
    }

    fn take(&self) -> Option<u32> {
        let mut blocks_passed = 0;
        while blocks_passed <= BLOCKS {
            let number = self.next.load(Ordering::Relaxed);
            let alive = &self.alive[(number / BLOCK) as usize];
            // Counted first: whoever begins the block in the meantime sees it.
            let others = alive.fetch_add(1, Ordering::SeqCst);
            let in_use = number.is_multiple_of(BLOCK) && others > 0;
            let after = number.wrapping_add(if in_use { BLOCK } else { 1 });
            let taken = self.next.compare_exchange(number, after, Ordering::SeqCst, Ordering::Relaxed).is_ok();
            // 0 is nobody's.
            if taken && !in_use && number != 0 {
                return Some(number);
            }
            alive.fetch_sub(1, Ordering::SeqCst);
            blocks_passed += usize::from(taken && in_use);
        }
        None
    }

    fn give(&self, number: u32) {
        self.alive[(number / BLOCK) as usize].fetch_sub(1, Ordering::SeqCst);
    }
}

static NAMES: Names = Names::from(1);

/// Goes on with `number`, as after that many segments.
#[cfg(test)]
pub(crate) fn go_on_with(number: u32) {
    NAMES.next.store(number, Ordering::SeqCst);
}

/// Numbers of a block. One segment that lives for ever keeps a block from its second round on.
const BLOCK: u32 = 1 << 16;
/// More than a process can have mappings, by the system's default: segments in all blocks at once
/// are not met.
const BLOCKS: usize = (u32::MAX / BLOCK) as usize + 1;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_living_segments_number_is_not_given_again() {
        let names = Names::from(u32::MAX - 2);
        for number in [5, BLOCK, 3 * BLOCK - 1] {
            names.alive[(number / BLOCK) as usize].store(1, Ordering::SeqCst);
        }
        // Over the end: blocks 0, 1 and 2 have a segment of an earlier round each.
        let after: Vec<u32> = (0..5).map(|_| names.take().unwrap()).collect();
        assert_eq!(after, [u32::MAX - 2, u32::MAX - 1, u32::MAX, 3 * BLOCK, 3 * BLOCK + 1]);
        // Block 0 is free again, so its numbers come again in the next round; 0 is nobody's.
        names.give(5);
        names.next.store(0, Ordering::SeqCst);
        assert_eq!([names.take(), names.take()], [Some(1), Some(2)]);
    }

    #[test]
    fn where_every_block_is_in_use_there_is_no_number() {
        let names = Names::from(BLOCK);
        names.alive.iter().for_each(|block| block.store(1, Ordering::SeqCst));
        assert_eq!(names.take(), None);
        names.alive[77].store(0, Ordering::SeqCst);
        assert_eq!(names.take(), Some(77 * BLOCK));
    }

    #[test]
    fn threads_never_share_a_number() {
        let names = Names::from((7 * BLOCK).wrapping_sub(500));
        let taken = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..5000).filter_map(|_| names.take()).collect::<Vec<_>>())).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!((taken.len(), taken.iter().collect::<HashSet<_>>().len()), (20_000, 20_000));
        let alive: u32 = names.alive.iter().map(|block| block.load(Ordering::SeqCst)).sum();
        assert_eq!(alive, 20_000);
    }
}
