//! The arena's allocator: equal slots in spans, spans in chunks; lowest address first, no lock but
//! for committing a chunk.
//!
//! A span belongs to one size class while any of its slots is used and to nobody otherwise. All
//! bookkeeping is private memory: nothing of it lies in the chunks. Taking the lowest free slot
//! draws the tree's pages together at the low end as they are rewritten, so that after mass
//! deletion the high chunks fall empty and go back to the arena. While little of what is committed
//! is used, a lower chunk's free span comes before a higher one's free slot, too.

mod chunk;
mod class;
mod reserve;

use std::sync::atomic::{AtomicU64 as Count, AtomicUsize};
use std::sync::{Arc, OnceLock, TryLockError};

use chunk::Chunk;
use class::Classes;

use crate::arena::{Arena, Exhausted};
use crate::sync::{AtomicU32, Mutex, Ordering};

/// A piece of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    /// Usable bytes, at least what was asked for.
    pub(crate) bytes: usize,
}

/// What a piece is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Something new, or something that may grow.
    Growth,
    /// A page with fewer rows than the one it replaces, which lies in a piece of `from` bytes. It
    /// is to be had from the reserve when there is nothing else: without that a full arena could
    /// not be emptied again.
    Shrinking {
        /// Bytes of the piece that will be given back for it.
        from: usize,
    },
    /// A page that leaves the reserve.
    Moving,
}

pub(crate) struct Allocator {
    arena: Arc<dyn Arena>,
    classes: Classes,
    /// Spans that only shrinking pages may use.
    reserved_spans: usize,
    /// 1: the reserve has been broken into.
    short: AtomicU32,
    chunks: Box<[OnceLock<Chunk>]>,
    /// Chunks below this have been used at some time.
    top: AtomicUsize,
    /// Per class: no chunk below is thought to have a free slot.
    lowest: Box<[AtomicUsize]>,
    committing: Mutex<()>,
    committed: AtomicUsize,
    committed_peak: AtomicUsize,
    used: Count,
    /// Chunks are never given back.
    keeps: bool,
}

impl Allocator {
    /// `page_bytes`: pieces of this size must be had last, when memory runs out.
    pub(crate) fn new(arena: Arc<dyn Arena>, page_bytes: usize) -> Allocator {
        let classes = Classes::new(arena.chunk_bytes(), page_bytes);
        let spans_a_page = page_bytes.div_ceil(classes.span_bytes());
        Allocator {
            chunks: (0..arena.chunks_max()).map(|_| OnceLock::new()).collect(),
            lowest: classes.slot_bytes().iter().map(|_| AtomicUsize::new(0)).collect(),
            reserved_spans: if classes.reserve().is_some() {
                RESERVED_SPANS
            } else {
                2 * RESERVED_SPANS * spans_a_page
            },
            short: AtomicU32::new(0),
            classes,
            arena,
            top: AtomicUsize::new(0),
            committing: Mutex::new(()),
            committed: AtomicUsize::new(0),
            committed_peak: AtomicUsize::new(0),
            used: Count::new(0),
            keeps: false,
        }
    }

    /// From now on, no chunk is given back.
    pub(crate) fn keep_chunks(&mut self) {
        self.keeps = true;
    }

    /// Bytes committed, now and at most so far.
    pub(crate) fn committed(&self) -> (u64, u64) {
        let bytes = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed) as u64;
        (bytes(&self.committed), bytes(&self.committed_peak))
    }

    /// Bytes of slots in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// A piece of at least `bytes` bytes, aligned to 64, and whether it is of the reserve.
    pub(crate) fn take(&self, bytes: usize, purpose: Purpose) -> Result<(Extent, bool), Exhausted> {
        let (extent, reserved) = match purpose {
            Purpose::Growth if self.short() => return Err(Exhausted),
            Purpose::Growth => (self.take_any(bytes)?, false),
            Purpose::Shrinking { from } => self.take_shrinking(bytes, from).ok_or(Exhausted)?,
            Purpose::Moving => (self.take_free(bytes)?, false),
        };
        self.used.fetch_add(extent.bytes as u64, Ordering::Relaxed);
        Ok((extent, reserved))
    }

    fn take_any(&self, bytes: usize) -> Result<Extent, Exhausted> {
        match self.classes.of(bytes) {
            Some(class) => {
                let larger = |full| self.take_free_slot(class + 1..self.classes.ordinary()).ok_or(full);
                self.take_slot(class).or_else(larger)
            }
            None => self.take_spans(bytes, self.reserved_spans),
        }
    }

    fn take_slot(&self, class: usize) -> Result<Extent, Exhausted> {
        loop {
            if self.used() < self.committed().0 / SPARSE
                && let Some(extent) = self.sink(class)
            {
                return Ok(extent);
            }
            let from = self.lowest[class].load(Ordering::SeqCst);
            if let Some((chunk, at)) = self.find(from, |c| c.take_slot(class, &self.classes)) {
                if chunk != from {
                    let _ = self.lowest[class].compare_exchange(from, chunk, Ordering::SeqCst, Ordering::SeqCst);
                }
                return Ok(self.slot(chunk, at, class));
            }
            // The hint may have overtaken a slot freed below it.
            if from > 0 && self.lowest[class].compare_exchange(from, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                continue;
            }
            let spare = self.free_spans() > self.reserved_spans;
            if spare && let Some((chunk, at)) = self.find(0, |c| c.open_span(class, &self.classes)) {
                self.lowest[class].fetch_min(chunk, Ordering::SeqCst);
                return Ok(self.slot(chunk, at, class));
            }
            self.commit_another()?;
        }
    }

    /// If a chunk could be given back besides the one kept empty: a slot in the lowest chunk that
    /// has one or a free span. Who always takes free slots of opened spans first never leaves a
    /// high chunk that holds one span of the class, however often its pages are rewritten.
    #[cold]
    fn sink(&self, class: usize) -> Option<Extent> {
        if self.free_spans() <= self.classes.spans() + self.reserved_spans {
            return None;
        }
        let opened = |c: &Chunk| c.open_span(class, &self.classes);
        let (chunk, at) = self.find(0, |c| c.take_slot(class, &self.classes).or_else(|| opened(c)))?;
        self.lowest[class].fetch_min(chunk, Ordering::SeqCst);
        Some(self.slot(chunk, at, class))
    }

    fn free_spans(&self) -> usize {
        let top = self.top.load(Ordering::SeqCst);
        self.chunks[..top].iter().filter_map(OnceLock::get).map(Chunk::free_spans).sum()
    }

    /// Whole spans, of which `spared` must stay free.
    fn take_spans(&self, bytes: usize, spared: usize) -> Result<Extent, Exhausted> {
        let spans = bytes.div_ceil(self.classes.span_bytes());
        if bytes > self.arena.chunk_bytes() {
            return Err(Exhausted);
        }
        loop {
            let spare = self.free_spans() >= spans + spared;
            if spare && let Some((chunk, span)) = self.find(0, |c| c.take_spans(spans)) {
                let at = span * self.classes.span_bytes();
                let offset = (chunk * self.arena.chunk_bytes() + at) as u64;
                return Ok(Extent { offset, bytes: spans * self.classes.span_bytes() });
            }
            self.commit_another()?;
        }
    }

    fn slot(&self, chunk: usize, at: usize, class: usize) -> Extent {
        let offset = (chunk * self.arena.chunk_bytes() + at) as u64;
        Extent { offset, bytes: self.classes.slot_bytes()[class] }
    }

    fn find<T>(&self, from: usize, take: impl Fn(&Chunk) -> Option<T>) -> Option<(usize, T)> {
        let top = self.top.load(Ordering::SeqCst);
        (from..top).find_map(|i| self.chunks[i].get().and_then(&take).map(|found| (i, found)))
    }

    /// Chunk, and byte in the chunk.
    fn place(&self, offset: u64) -> (usize, usize) {
        let chunk_bytes = self.arena.chunk_bytes() as u64;
        ((offset / chunk_bytes) as usize, (offset % chunk_bytes) as usize)
    }

    /// Gives a piece back. Any thread, no lock, constant time.
    pub(crate) fn give(&self, extent: Extent) {
        self.used.fetch_sub(extent.bytes as u64, Ordering::Relaxed);
        let (index, at) = self.place(extent.offset);
        let Some(chunk) = self.chunks[index].get() else { return };
        match chunk.class_at(at, &self.classes) {
            Some(class) => {
                if chunk.give_slot(at, class, &self.classes) {
                    self.lowest[class].fetch_min(index, Ordering::SeqCst);
                }
            }
            None => chunk.give_spans(at / self.classes.span_bytes(), extent.bytes.div_ceil(self.classes.span_bytes())),
        }
    }

    /// More spans: as many again of the chunk that is there in part, or another chunk.
    fn commit_another(&self) -> Result<(), Exhausted> {
        let seen = self.committed.load(Ordering::SeqCst);
        let _one = self.committing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let committed = self.committed.load(Ordering::SeqCst);
        if committed != seen {
            return Ok(());
        }
        let (spans, span_bytes) = (self.classes.spans(), self.classes.span_bytes());
        let top = self.top.load(Ordering::SeqCst);
        let opened = self.chunks[..top].iter().enumerate().filter_map(|(i, chunk)| Some((i, chunk.get()?)));
        let part = |(_, chunk): &(usize, &Chunk)| (1..spans).contains(&chunk.grown());
        if let Some((index, chunk)) = { opened }.find(part) {
            let (from, to) = (chunk.grown(), (2 * chunk.grown()).min(spans));
            self.arena.commit(index, from * span_bytes..to * span_bytes)?;
            self.note_committed((to - from) * span_bytes);
            chunk.grow(to);
            return Ok(());
        }
        let first = if committed == 0 { FIRST_SPANS.min(spans) } else { spans };
        let closed = |i: &usize| self.chunks[*i].get().is_none_or(|chunk| chunk.grown() == 0);
        // The arena may not have a place back yet though it was decommitted: the next one does as well.
        let mut places = (0..self.chunks.len()).filter(closed).take(COMMIT_TRIES);
        let commit = |index: &usize| self.arena.commit(*index, 0..first * span_bytes).is_ok();
        let index = places.find(commit).ok_or(Exhausted)?;
        let chunk = self.chunks[index].get_or_init(|| Chunk::new(&self.classes));
        self.note_committed(first * span_bytes);
        chunk.open(first);
        self.top.fetch_max(index + 1, Ordering::SeqCst);
        Ok(())
    }

    fn note_committed(&self, bytes: usize) {
        let committed = self.committed.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.committed_peak.fetch_max(committed, Ordering::Relaxed);
    }

    /// Gives empty chunks back to the arena, all but the lowest one. Skipped if somebody is at it.
    #[allow(unsafe_code)]
    pub(crate) fn trim(&self) {
        if self.keeps {
            return;
        }
        let _one = match self.committing.try_lock() {
            Ok(one) => one,
            // The arena panicked in the middle. What is committed is known by the chunks, one by
            // one.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let mut spare = 1;
        for index in 0..self.top.load(Ordering::SeqCst) {
            let Some(chunk) = self.chunks[index].get() else { continue };
            if !chunk.is_empty() {
                continue;
            }
            if spare > 0 {
                spare -= 1;
                continue;
            }
            let bytes = chunk.grown() * self.classes.span_bytes();
            if chunk.close() {
                self.committed.fetch_sub(bytes, Ordering::SeqCst);
                // SAFETY: [bwtree-chunk] `close` took every span of the chunk at once, so no slot of it is used and none
                // will be handed out before it is committed again, under the lock held here.
                unsafe { self.arena.decommit(index) };
            }
        }
    }
}

/// With less than this share of what is committed in use, pages are drawn down.
const SPARSE: u64 = 2;

/// Spans of a tree's first chunk that are committed at first.
const FIRST_SPANS: usize = 4;

/// Places tried before the arena counts as full.
const COMMIT_TRIES: usize = 8;

/// Spans kept for the reserve; four pages at least.
const RESERVED_SPANS: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::HeapArena;

    fn allocator(chunks: usize) -> Allocator {
        Allocator::new(Arc::new(HeapArena::with_chunks(1 << 20, chunks).unwrap()), 16 << 10)
    }

    #[test]
    fn pieces_do_not_overlap_and_come_back() {
        let a = allocator(8);
        let sizes = [64, 100, 256, 1000, 4096, 5000, 16384, 17000, 60000, 131072, 200_000, 500_000];
        let mut taken: Vec<Extent> = Vec::new();
        for round in 0..3 {
            for &size in &sizes {
                let extent = a.take(size + round, Purpose::Growth).unwrap().0;
                assert!(extent.bytes >= size + round && extent.offset.is_multiple_of(64));
                for t in &taken {
                    assert!(
                        extent.offset >= t.offset + t.bytes as u64 || extent.offset + extent.bytes as u64 <= t.offset
                    );
                }
                taken.push(extent);
            }
        }
        taken.into_iter().for_each(|t| a.give(t));
        assert_eq!(a.used(), 0);
        a.trim();
        assert_eq!(a.committed().0, 1 << 20);
    }

    #[test]
    fn the_first_chunk_grows_and_its_pieces_lie_in_one_part() {
        let a = Allocator::new(Arc::new(HeapArena::with_chunks(8 << 20, 3).unwrap()), 16 << 10);
        assert_eq!(a.committed(), (0, 0));
        a.take(100, Purpose::Growth).unwrap();
        assert_eq!(a.committed().0, 512 << 10);
        let part = |at: u64| (at / (512 << 10)).checked_ilog2();
        let mut sizes = Vec::new();
        for bytes in [300_000, 200_000, 700_000].into_iter().cycle().take(30) {
            let piece = a.take(bytes, Purpose::Growth).unwrap().0;
            let (from, to) = (piece.offset, piece.offset + piece.bytes as u64 - 1);
            assert!(from >= 8 << 20 || part(from) == part(to), "{piece:?} lies in two segments");
            sizes.push(a.committed().0);
        }
        sizes.dedup();
        let grown = [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];
        assert!(grown.iter().all(|bytes| sizes.contains(bytes)), "{sizes:?}");
        assert_eq!(a.committed().1, 16 << 20, "a large tree has as much as ever");
    }

    /// Tells somebody who panics of each chunk that it gives back.
    struct Watched(HeapArena);

    #[allow(unsafe_code)]
    // SAFETY: [bwtree-arena] all is the heap arena's own.
    unsafe impl Arena for Watched {
        fn base(&self) -> std::ptr::NonNull<u8> {
            self.0.base()
        }

        fn chunk_bytes(&self) -> usize {
            self.0.chunk_bytes()
        }

        fn chunks_max(&self) -> usize {
            self.0.chunks_max()
        }

        fn commit(&self, chunk: usize, part: std::ops::Range<usize>) -> Result<(), Exhausted> {
            self.0.commit(chunk, part)
        }

        unsafe fn decommit(&self, chunk: usize) {
            // SAFETY: [bwtree-arena] as the caller promises.
            unsafe { self.0.decommit(chunk) };
            panic!("planted");
        }
    }

    #[test]
    fn a_panic_of_the_arena_keeps_no_memory_for_ever() {
        let a = Allocator::new(Arc::new(Watched(HeapArena::with_chunks(1 << 20, 8).unwrap())), 16 << 10);
        let taken: Vec<Extent> = (0..300).map(|_| a.take(10_000, Purpose::Growth).unwrap().0).collect();
        taken.into_iter().for_each(|t| a.give(t));
        let mut panics = 0;
        while std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| a.trim())).is_err() {
            panics += 1;
        }
        assert!(panics > 1);
        assert_eq!(a.committed().0, 1 << 20, "and what was given back counts no longer");
    }

    #[test]
    fn exhaustion_is_an_error_and_passes() {
        let a = allocator(2);
        let mut taken = Vec::new();
        while let Ok((extent, _)) = a.take(10_000, Purpose::Growth) {
            taken.push(extent);
        }
        assert!(taken.len() > 165, "{}", taken.len());
        assert_eq!(a.take(10_000, Purpose::Growth), Err(Exhausted));
        let freed = taken.swap_remove(17);
        a.give(freed);
        assert_eq!(a.take(10_000, Purpose::Growth), Ok((freed, false)));
    }

    #[test]
    fn the_lowest_free_slot_is_taken() {
        let a = allocator(8);
        let taken: Vec<Extent> = (0..1000).map(|_| a.take(2000, Purpose::Growth).unwrap().0).collect();
        for &i in &[900, 500, 3, 700] {
            a.give(taken[i]);
        }
        assert_eq!(a.take(2000, Purpose::Growth).unwrap().0, taken[3]);
        assert_eq!(a.take(2000, Purpose::Growth).unwrap().0, taken[500]);
    }

    #[test]
    fn threads_take_and_give() {
        let a = allocator(64);
        std::thread::scope(|s| {
            for seed in 1..4u64 {
                let a = &a;
                s.spawn(move || {
                    let mut rng = seed;
                    let mut mine: Vec<Extent> = Vec::new();
                    for _ in 0..20_000 {
                        rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        if mine.len() > 100 || (rng >> 60 < 6 && !mine.is_empty()) {
                            let at = (rng >> 33) as usize % mine.len();
                            a.give(mine.swap_remove(at));
                        } else {
                            mine.push(a.take(64 + (rng >> 40) as usize % 20_000, Purpose::Growth).unwrap().0);
                        }
                        if rng >> 58 == 1 {
                            a.trim();
                        }
                    }
                    mine.into_iter().for_each(|m| a.give(m));
                });
            }
        });
        assert_eq!(a.used(), 0);
        a.trim();
        assert_eq!(a.committed().0, 1 << 20);
    }
}
