//! Reclamation: when is what was unlinked seen by nobody any more?
//!
//! A thread inside the tree holds a slot with an interval of epochs, from the one in which it came
//! in to the last one in which it read a word of the mapping table. Every object knows the epoch of
//! its birth and the one in which it was retired. An object may go once its life overlaps no
//! thread's interval. So a thread that is descheduled inside the tree holds back what lived when it
//! last looked, never what is born later. That is at most about the tree's size at that moment,
//! however long it sleeps (plain epochs would hold back everything retired since). Nobody waits for
//! it.
//!
//! The interval's end is raised by [`Guard::protect`]: read the word, read the epoch, and if the
//! epoch is not the published end, publish it and read the word again.

#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32 as Count32, AtomicU64 as Count};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, fence, thread_hint, thread_id};
use crate::waits::Waits;

/// What is retired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retired {
    /// A leaf's base page with its deltas.
    Unit(u32),
    /// An inner node, by address.
    Inner(usize),
    /// A number of the mapping table.
    Pid(u32),
}

struct Waiting {
    what: Retired,
    birth: u64,
    retired: u64,
    bytes: usize,
}

/// One thread's place while it is inside.
pub(crate) struct Slot {
    /// 0: free. Else first epoch << LIFE_BITS | (last epoch - first epoch), saturating.
    interval: AtomicU64,
    /// What this slot's users retired. Only who holds the slot touches it.
    limbo: UnsafeCell<Vec<Waiting>>,
    /// Length of limbo at which to look for what may go.
    collect_at: Cell<usize>,
    pending: Count,
    pending_bytes: Count,
    thread: Count32,
    /// First epoch of the user seen to lag, and when that was first seen (ns since
    /// `Epochs::start`).
    lag_epoch: Count,
    lag_since: Count,
    /// Counters of the tree's statistics, written by the slot's holder only.
    pub(crate) counters: [Count; COUNTERS],
}

// SAFETY: [bwtree-epoch-slot] limbo and collect_at are touched only by the thread that changed `interval` from 0.
unsafe impl Sync for Slot {}

type Block = Box<[CachePadded<Slot>]>;

pub(crate) struct Epochs {
    now: CachePadded<AtomicU64>,
    blocks: [OnceLock<Block>; BLOCKS],
    pub(crate) waits: &'static dyn Waits,
}

/// The longest stay inside the tree that is being seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// The kernel's id of the thread.
    pub thread: u32,
    /// It has been inside for at least this long.
    pub at_least: Duration,
}

/// Being inside the tree: nothing read through [`protect`](Guard::protect) goes away before the
/// guard does.
pub(crate) struct Guard<'a> {
    epochs: &'a Epochs,
    slot: &'a Slot,
    first: u64,
    last: Cell<u64>,
    /// A stamp that was drawn too early, by a planted fault.
    #[cfg(mutants)]
    pub(crate) early: Cell<u64>,
}

impl Epochs {
    pub(crate) fn new(waits: &'static dyn Waits) -> Epochs {
        Epochs { now: CachePadded::new(AtomicU64::new(1)), blocks: [const { OnceLock::new() }; BLOCKS], waits }
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    /// Comes in. Never waits: if all slots are taken there will be more of them.
    #[inline]
    pub(crate) fn enter(&self) -> Guard<'_> {
        let hint = thread_hint();
        for block in 0.. {
            let slots = self.blocks[block].get_or_init(|| new_block(block));
            for i in 0..slots.len() {
                let slot = &*slots[(hint + i) & (slots.len() - 1)];
                if slot.interval.load(Ordering::Relaxed) == 0 {
                    let now = self.now();
                    if slot.interval.compare_exchange(0, now << LIFE_BITS, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                        slot.thread.store(thread_id(), Ordering::Relaxed);
                        return Guard {
                            epochs: self,
                            slot,
                            first: now,
                            last: Cell::new(now),
                            #[cfg(mutants)]
                            early: Cell::new(0),
                        };
                    }
                }
            }
        }
        unreachable!("more slots than threads can exist")
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.blocks.iter().map_while(OnceLock::get).flat_map(|block| block.iter().map(|slot| &**slot))
    }

    /// Bytes retired and not yet let go because threads were inside.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.slots().map(|slot| slot.pending_bytes.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn counter(&self, i: usize) -> u64 {
        self.slots().map(|slot| slot.counters[i].load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    /// Looks who is inside, and reports the longest stay.
    pub(crate) fn stall(&self) -> Option<Stall> {
        self.intervals(&mut Vec::new());
        let now = self.waits.now();
        let lagging = self.slots().filter_map(|slot| {
            let first = slot.interval.load(Ordering::SeqCst) >> LIFE_BITS;
            if first == 0 || slot.lag_epoch.load(Ordering::Relaxed) != first {
                return None;
            }
            let since = Duration::from_nanos(slot.lag_since.load(Ordering::Relaxed));
            Some(Stall { thread: slot.thread.load(Ordering::Relaxed), at_least: now.saturating_sub(since) })
        });
        lagging.max_by_key(|stall| stall.at_least)
    }

    /// Everybody's interval, as (first, last). Notes who has been inside since an earlier epoch.
    fn intervals(&self, out: &mut Vec<(u64, u64)>) {
        fence(Ordering::SeqCst);
        let now = self.now();
        for slot in self.slots() {
            let interval = slot.interval.load(Ordering::SeqCst);
            if interval == 0 {
                continue;
            }
            let (first, life) = (interval >> LIFE_BITS, interval & LIFE_MAX);
            if first + LAG < now && slot.lag_epoch.load(Ordering::Relaxed) != first {
                slot.lag_since.store(self.waits.now().as_nanos() as u64, Ordering::Relaxed);
                slot.lag_epoch.store(first, Ordering::Relaxed);
            }
            out.push((first, if life == LIFE_MAX { u64::MAX } else { first + life }));
        }
    }

    /// Everything retired, for a tree that is being dropped.
    pub(crate) fn drain(&mut self) -> Vec<Retired> {
        let blocks = self.blocks.iter_mut().filter_map(OnceLock::get_mut);
        blocks.flatten().flat_map(|slot| slot.limbo.get_mut().drain(..).map(|w| w.what)).collect()
    }
}

impl<'a> Guard<'a> {
    /// Reads a word such that what it refers to stays as long as this guard.
    #[inline]
    pub(crate) fn protect(&self, word: &AtomicU64) -> u64 {
        loop {
            let value = word.load(Ordering::SeqCst);
            let now = self.epochs.now();
            if now == self.last.get() {
                return value;
            }
            self.raise(now);
        }
    }

    #[cold]
    fn raise(&self, now: u64) {
        let life = (now - self.first).min(LIFE_MAX);
        self.slot.interval.swap(self.first << LIFE_BITS | life, Ordering::SeqCst);
        self.last.set(now);
    }

    #[inline]
    pub(crate) fn count(&self, counter: usize, by: u64) {
        let counter = &self.slot.counters[counter];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    pub(crate) fn counted(&self, counter: usize) -> u64 {
        self.slot.counters[counter].load(Ordering::Relaxed)
    }

    /// Puts what was just unlinked (and was born in epoch `birth`) aside. True: time to
    /// [`collect`](Guard::collect).
    pub(crate) fn retire(&self, what: Retired, birth: u64, bytes: usize) -> bool {
        let retired = self.epochs.now();
        // SAFETY: [bwtree-epoch-slot] this guard holds the slot.
        let limbo = unsafe { &mut *self.slot.limbo.get() };
        limbo.push(Waiting { what, birth, retired, bytes });
        self.slot.pending.store(limbo.len() as u64, Ordering::Relaxed);
        let pending = self.slot.pending_bytes.load(Ordering::Relaxed) + bytes as u64;
        self.slot.pending_bytes.store(pending, Ordering::Relaxed);
        limbo.len() >= self.slot.collect_at.get()
    }

    /// Starts a new epoch and lets go what nobody can see; `all` looks into other threads' idle
    /// slots as well.
    pub(crate) fn collect(&self, all: bool, mut free: impl FnMut(Retired)) {
        let begun = self.epochs.now.fetch_add(1, Ordering::SeqCst) + 1;
        let mut intervals = Vec::new();
        self.epochs.intervals(&mut intervals);
        sweep(self.slot, begun, &intervals, &mut free);
        if !all {
            return;
        }
        for slot in self.epochs.slots() {
            let idle = slot.pending.load(Ordering::Relaxed) > 0 && slot.interval.load(Ordering::Relaxed) == 0;
            let mine = self.epochs.now() << LIFE_BITS;
            if idle && slot.interval.compare_exchange(0, mine, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                sweep(slot, begun, &intervals, &mut free);
                slot.interval.store(0, Ordering::SeqCst);
            }
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.interval.store(0, Ordering::Release);
    }
}

/// Lets go what of the slot's limbo lived in none of the intervals. The caller holds the slot.
///
/// The intervals were looked at in epoch `begun` or later. What was retired from then on stays:
/// another thread may have come in, read it and seen it retired into this slot after the look.
fn sweep(slot: &Slot, begun: u64, intervals: &[(u64, u64)], free: &mut impl FnMut(Retired)) {
    // SAFETY: [bwtree-epoch-slot] the caller holds the slot, and `free` does not come back here.
    let limbo = unsafe { &mut *slot.limbo.get() };
    let mut bytes = 0;
    limbo.retain(|w| {
        let seen = w.retired >= begun || intervals.iter().any(|&(first, last)| first <= w.retired && w.birth <= last);
        if seen {
            bytes += w.bytes as u64;
        } else {
            free(w.what);
        }
        seen
    });
    slot.pending.store(limbo.len() as u64, Ordering::Relaxed);
    slot.pending_bytes.store(bytes, Ordering::Relaxed);
    slot.collect_at.set(limbo.len() + COLLECT_EVERY);
}

fn new_block(block: usize) -> Block {
    let slot = || Slot {
        interval: AtomicU64::new(0),
        limbo: UnsafeCell::new(Vec::new()),
        collect_at: Cell::new(COLLECT_EVERY),
        pending: Count::new(0),
        pending_bytes: Count::new(0),
        thread: Count32::new(0),
        lag_epoch: Count::new(0),
        lag_since: Count::new(0),
        counters: [const { Count::new(0) }; COUNTERS],
    };
    (0..FIRST_BLOCK << block).map(|_| CachePadded::new(slot())).collect()
}

/// Statistics kept per slot.
pub(crate) const COUNTERS: usize = 9;
const BLOCKS: usize = 16;
const FIRST_BLOCK: usize = if cfg!(shuttle) { 4 } else { 64 };
/// Retired objects after which a thread starts an epoch and lets go what it can.
const COLLECT_EVERY: usize = if cfg!(shuttle) { 1 } else { 32 };
/// A stay of this many epochs is worth a note.
const LAG: u64 = 2;
const LIFE_BITS: u32 = 20;
const LIFE_MAX: u64 = (1 << LIFE_BITS) - 1;

/// Run by `.ci/shuttle`: this module's code as it ships, with nothing around it, so that few
/// schedules come to the rare ones.
#[cfg(all(test, shuttle))]
mod under_shuttle {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64 as Freed;

    use super::*;
    use shuttle::thread;

    /// One looks who is inside, and then goes through what a thread that has left retired. In
    /// between a reader may have come in, and a writer may have replaced what it reads and left:
    /// the look is older than what it is held against.
    fn nothing_goes_under_a_reader() {
        let (epochs, word, freed) =
            (Arc::new(Epochs::new(&crate::waits::System)), Arc::new(AtomicU64::new(1)), Arc::new(Freed::new(0)));
        let run = |work: fn(&Epochs, &AtomicU64, &Freed)| {
            let (epochs, word, freed) = (epochs.clone(), word.clone(), freed.clone());
            thread::spawn(move || work(&epochs, &word, &freed))
        };
        let threads = [
            run(|epochs, _, freed| epochs.enter().collect(true, |what| note(freed, what))),
            run(|epochs, word, freed| {
                let mut birth = 1;
                for new in 2..4 {
                    let guard = epochs.enter();
                    let born = epochs.now();
                    let old = word.swap(new, Ordering::SeqCst);
                    if guard.retire(Retired::Pid(old as u32), std::mem::replace(&mut birth, born), 8) {
                        guard.collect(false, |what| note(freed, what));
                    }
                }
            }),
            run(|epochs, word, freed| {
                let guard = epochs.enter();
                let read = guard.protect(word);
                // Long enough for a writer to come, go, and be swept.
                (0..3).for_each(|_| thread::yield_now());
                assert_eq!(freed.load(Ordering::Relaxed) & 1 << read, 0, "{read} was let go while it was read");
            }),
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    fn note(freed: &Freed, what: Retired) {
        if let Retired::Pid(pid) = what {
            freed.fetch_or(1 << pid, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_retired_after_the_look_stays() {
        shuttle::check_random(nothing_goes_under_a_reader, 100_000);
        shuttle::check_pct(nothing_goes_under_a_reader, 200_000, 4);
    }
}
