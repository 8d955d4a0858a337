//! What a tree tells about itself.

use crate::core::Core;
use crate::epoch::Stall;

/// Counters kept per epoch slot.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counter {
    Deltas,
    Consolidations,
    Splits,
    InnerSplits,
    Merges,
    Retries,
    Collections,
    Pages,
    Waits,
}

/// Figures of a tree. Counts are since its creation; none of them stops anybody while it is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Delta records put on chains.
    pub deltas: u64,
    /// Base pages rewritten with their chains.
    pub consolidations: u64,
    /// Leaves split. A tree made of leaves that were written down counts all of those but one.
    pub splits: u64,
    /// Inner nodes split.
    pub inner_splits: u64,
    /// Pages merged into their left neighbours, inner nodes included.
    pub merges: u64,
    /// Attempts lost to a faster writer.
    pub retries: u64,
    /// Times that somebody gave up the processor for memory that others hold back: deletes in a
    /// full arena, nobody else.
    pub waits: u64,
    /// Pages given to cursors, and read by readers.
    pub pages_scanned: u64,
    /// Bytes of chunks committed in the arena.
    pub committed_bytes: u64,
    /// The most that `committed_bytes` has been.
    pub committed_bytes_peak: u64,
    /// Bytes of the arena in use: live pages, their room for deltas, overflow extents, and what is
    /// held below.
    pub used_bytes: u64,
    /// Bytes replaced by newer pages, kept because threads were inside the tree (let go by later
    /// writes or [`Tree::reclaim`](crate::Tree::reclaim)).
    pub held_by_epochs_bytes: u64,
    /// Bytes replaced by newer pages, kept by pins alone.
    pub held_by_pins_bytes: u64,
    /// Pins, on current and replaced pages.
    pub pins: u64,
    /// The thread that has been inside the tree longest, if any is seen to lag. What it holds back
    /// was alive when it last looked at the tree; nothing born later is held.
    pub stall: Option<Stall>,
}

impl Core {
    pub(crate) fn stats(&self) -> Stats {
        let count = |counter: Counter| self.epochs.counter(counter as usize);
        let (committed_bytes, committed_bytes_peak) = self.store.allocator.committed();
        let load =
            |c: &std::sync::atomic::AtomicU64| (c.load(std::sync::atomic::Ordering::Relaxed) as i64).max(0) as u64;
        Stats {
            deltas: count(Counter::Deltas),
            consolidations: count(Counter::Consolidations),
            splits: count(Counter::Splits),
            inner_splits: count(Counter::InnerSplits),
            merges: count(Counter::Merges),
            retries: count(Counter::Retries),
            waits: count(Counter::Waits),
            pages_scanned: count(Counter::Pages),
            committed_bytes,
            committed_bytes_peak,
            used_bytes: self.store.allocator.used(),
            held_by_epochs_bytes: self.epochs.pending_bytes(),
            held_by_pins_bytes: load(&self.store.limbo),
            pins: load(&self.store.pinned),
            stall: self.epochs.stall(),
        }
    }
}
