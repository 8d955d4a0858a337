//! Stamps: in which order changes of several trees took place, for a log that is written beside
//! them.
//!
//! A log must replay the changes of a key in the order in which the tree took them, though two
//! threads made them at once and appended them in any order. So each change bears a stamp, a number
//! of a counter that all trees of a server share. The log sorts by it.
//!
//! # Stamps of one key ascend as the tree took its changes
//!
//! A change reads its leaf's word, draws its stamp, and installs a new word by compare-and-swap.
//! Take a change B that was installed, and any change A of the same key that was installed before.
//!
//! - *A's word comes before B's read.* Each install of a leaf, and each freeze, changes the leaf's
//!   word. Words do not repeat under a guard: a word names a unit, a delta in it, and the chain's
//!   length. The guard under which it was read keeps the unit from being given out again, and
//!   within a unit claimed room only grows. So B's compare-and-swap succeeded because nothing was
//!   installed between B's read and B's install. A was installed before B, hence before B's read.
//! - *This holds across splits and merges.* A split is an install on the left page's word, and the
//!   right pages are reached through that word alone (or through a parent told later). So who reads
//!   the right page's word reads it after the split, and all that went into the left page before is
//!   older. A merge freezes the going page, after which no install on it succeeds, then installs
//!   the joint page on the left one. Who changes a row of the joint page has read the left page's
//!   word after that, and all changes of the going page came before the freeze.
//! - *The counter ascends.* A drew its stamp before its install, B after its read, and the read
//!   came after that install. So A's draw comes before B's in the counter's order, and A's stamp is
//!   smaller.
//!
//! A change that loses its compare-and-swap draws anew, since it has to read again. Rows that one
//! new page takes in together share a stamp; of two such rows of one key the later one alone is in
//! the page, and both are told the same stamp.
//!
//! # The newest stamp of a leaf
//!
//! A unit's entry in private memory holds a number that no installed change of its leaf exceeds. A
//! change raises it before its install. A page that is made with a change begins with that one's
//! stamp, which by the above is the largest so far. A page made without (a merge, a move) begins
//! with the maximum of those it replaces. So who reads the word first and the number next has a
//! bound of all that the word shows. It may be too high, because of a change that lost its
//! compare-and-swap: a reader waits a little longer than it must.
//!
//! # The floor
//!
//! A change is in the tree before it is in the log. [`Stamps::floor`] says up to where that gap is
//! closed: every stamp below was appended, or never will be, since nothing was changed under it.
//!
//! A writer begins by publishing a bound, the counter as it then stood, in a slot of its own, and
//! clears the slot when it has appended. All its stamps are at or above the bound, because the
//! counter never falls. The floor is made of the counter, read first, and of all slots, read next;
//! it is the smallest of these. Let `s` be a stamp below it, and look at the writer who drew `s`:
//!
//! - The counter was read above `s`, so the draw came before that read, in the single order of
//!   sequentially consistent operations. The writer had published its bound before it drew, so the
//!   slot's later read sees that bound, or what came after.
//! - It was not the bound, for then the floor would be at most the bound, which is at most `s`. So
//!   the slot was cleared, and the append came before that.
//!
//! In the other order (slots first) a writer could publish, draw and install between the two reads,
//! and the floor would pass it. What once was a floor stays one, so the largest is remembered, and
//! floors never fall.

use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, thread_hint};

/// A counter that orders the changes of all trees that share it, and who is between a change and
/// its record in a log.
pub struct Stamps {
    next: CachePadded<AtomicU64>,
    /// The largest floor so far.
    floor: AtomicU64,
    writers: [OnceLock<Block>; BLOCKS],
}

/// Slots of writers: [`IDLE`], or a bound that none of the writer's stamps is below.
type Block = Box<[CachePadded<AtomicU64>]>;

impl Stamps {
    /// Stamps from `first` on (1 at least). They must never go back: a server that comes up again
    /// passes the first one that no record bears.
    pub fn new(first: u64) -> Arc<Stamps> {
        let first = first.max(1);
        Arc::new(Stamps {
            next: CachePadded::new(AtomicU64::new(first)),
            floor: AtomicU64::new(first),
            writers: [const { OnceLock::new() }; BLOCKS],
        })
    }

    /// To be called before anything is changed, and kept until the change's record was appended:
    /// the [floor](Self::floor) stays at or below all that is drawn meanwhile.
    #[inline]
    pub fn begin(&self) -> Writing<'_> {
        let hint = thread_hint();
        for block in 0.. {
            let slots = self.writers[block].get_or_init(|| new_block(block));
            for i in 0..slots.len() {
                let slot = &*slots[(hint + i) & (slots.len() - 1)];
                if slot.load(Ordering::Relaxed) == IDLE {
                    let bound = self.next();
                    if slot.compare_exchange(IDLE, bound, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                        return Writing { stamps: self, slot };
                    }
                }
            }
        }
        unreachable!("more slots than writers can exist")
    }

    /// Every stamp below was appended, or never will be. It never falls, and with no writer under
    /// way it is [`next`](Self::next).
    pub fn floor(&self) -> u64 {
        // The fault: of the writers' bounds, read first, and of the counter, read next.
        #[cfg(mutants)]
        let early = crate::mutants::mutant("floor-slots-first").then(|| self.bounds());
        let next = self.next();
        #[cfg(not(mutants))]
        let bounds = self.bounds();
        #[cfg(mutants)]
        let bounds = early.unwrap_or_else(|| self.bounds());
        let floor = bounds.min(next);
        self.floor.fetch_max(floor, Ordering::SeqCst).max(floor)
    }

    /// The smallest bound of those who write.
    fn bounds(&self) -> u64 {
        let slots = self.writers.iter().map_while(OnceLock::get).flat_map(|block| block.iter());
        let bounds = slots.map(|slot| slot.load(Ordering::SeqCst)).filter(|bound| *bound != IDLE);
        bounds.min().unwrap_or(u64::MAX)
    }

    /// The stamp that is drawn next.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// Leaves out the stamps below `first`. For a server that learns while it comes up which ones
    /// are taken.
    pub fn advance(&self, first: u64) {
        self.next.fetch_max(first, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn draw(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }
}

impl std::fmt::Debug for Stamps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stamps").field("next", &self.next()).field("floor", &self.floor()).finish()
    }
}

/// Between a change and its record: see [`Stamps::begin`]. Dropped once everything that was drawn
/// meanwhile is appended.
///
/// Dropped by a panic it is never cleared: what was changed is perhaps in no log, and no floor may
/// pass it.
#[must_use = "the floor stays below only while this lives"]
pub struct Writing<'s> {
    stamps: &'s Stamps,
    slot: &'s AtomicU64,
}

impl<'s> Writing<'s> {
    /// A stamp for what is no change of a tree, such as that there is a new one.
    pub fn draw(&self) -> u64 {
        self.stamps.draw()
    }

    /// Of which stamps.
    #[inline]
    pub fn stamps(&self) -> &'s Stamps {
        self.stamps
    }
}

impl Drop for Writing<'_> {
    #[inline]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.slot.store(IDLE, Ordering::SeqCst);
        }
    }
}

impl std::fmt::Debug for Writing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writing").field("bound", &self.slot.load(Ordering::SeqCst)).finish()
    }
}

fn new_block(block: usize) -> Block {
    (0..FIRST_BLOCK << block).map(|_| CachePadded::new(AtomicU64::new(IDLE))).collect()
}

/// No stamp is 0.
const IDLE: u64 = 0;
const BLOCKS: usize = 16;
const FIRST_BLOCK: usize = if cfg!(shuttle) { 2 } else { 32 };

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_floor_stays_below_who_writes() {
        let stamps = Stamps::new(0);
        assert_eq!((stamps.next(), stamps.floor()), (1, 1), "0 says that there is no stamp");
        let first = stamps.begin();
        assert_eq!(first.draw(), 1);
        let second = stamps.begin();
        assert_eq!(second.draw(), 2);
        assert_eq!(stamps.floor(), 1);
        drop(first);
        assert_eq!(stamps.floor(), 2);
        stamps.advance(100);
        assert_eq!((stamps.floor(), second.draw()), (2, 100));
        drop(second);
        assert_eq!((stamps.floor(), stamps.next()), (101, 101));
        stamps.advance(50);
        assert_eq!(stamps.next(), 101, "stamps never go back");
    }

    /// More writers at once than the first block has slots: each has one, and the floor looks at
    /// all of them.
    #[test]
    fn there_is_a_slot_for_every_writer() {
        let stamps = Stamps::new(7);
        let mut writers: Vec<Writing<'_>> = (0..3 * FIRST_BLOCK).map(|_| stamps.begin()).collect();
        writers.iter().for_each(|writer| assert!(writer.draw() >= 7));
        let last = writers.pop().unwrap();
        drop(writers);
        assert_eq!(stamps.floor(), 7);
        drop(last);
        assert_eq!(stamps.floor(), 7 + 3 * FIRST_BLOCK as u64);
    }

    #[test]
    fn a_panic_keeps_the_floor() {
        let stamps = Stamps::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let writing = stamps.begin();
            let _ = writing.draw();
            panic!("between the change and its record");
        }));
        assert!(panicked.is_err());
        drop(stamps.begin());
        assert_eq!(stamps.floor(), 1);
    }
}
