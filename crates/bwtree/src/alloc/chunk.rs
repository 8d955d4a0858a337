//! One chunk: which spans are free, and which slots of the others.

use super::class::Classes;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

pub(crate) struct Chunk {
    /// Bit per span: it belongs to nobody. All zero while the chunk is not committed.
    free: AtomicU64,
    /// Bits of the spans that are committed. Changes under the allocator's lock.
    grown: AtomicU64,
    /// Spans of the part that was committed first; of a chunk that came whole all of them. Each
    /// part behind it is as long as all in front of it.
    first: AtomicU32,
    spans: Box<[Span]>,
    /// Per class, bit per span: it is of the class and has a free slot (a hint; the span decides).
    hints: Box<[AtomicU64]>,
}

struct Span {
    /// Class in the upper 12 bits (NOBODY: free, or part of a large piece), used slots in the lower
    /// 20.
    state: AtomicU32,
    /// Bit per slot: free. Never fewer ones than slots that are not counted as used.
    slots: Box<[AtomicU64]>,
}

impl Chunk {
    pub(crate) fn new(classes: &Classes) -> Chunk {
        let count = classes.slot_bytes().len();
        let words = (0..count).map(|class| classes.slots(class)).max().unwrap_or(1).div_ceil(64);
        let spans = classes.spans();
        let span = || Span { state: AtomicU32::new(NOBODY), slots: (0..words).map(|_| AtomicU64::new(0)).collect() };
        Chunk {
            free: AtomicU64::new(0),
            grown: AtomicU64::new(0),
            first: AtomicU32::new(spans as u32),
            spans: (0..spans).map(|_| span()).collect(),
            hints: (0..count).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The first spans of the chunk are committed, and nothing of it was before.
    pub(crate) fn open(&self, spans: usize) {
        self.first.store(spans as u32, Ordering::SeqCst);
        self.grow(spans);
    }

    /// So many spans of it are committed by now, and those that are new can be had.
    pub(crate) fn grow(&self, spans: usize) {
        let grown = u64::MAX >> (64 - spans);
        let before = self.grown.swap(grown, Ordering::SeqCst);
        self.free.fetch_or(grown & !before, Ordering::SeqCst);
    }

    /// Spans that are committed; 0 of a chunk that is not.
    pub(crate) fn grown(&self) -> usize {
        self.grown.load(Ordering::SeqCst).count_ones() as usize
    }

    pub(crate) fn free_spans(&self) -> usize {
        self.free.load(Ordering::SeqCst).count_ones() as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        let grown = self.grown.load(Ordering::SeqCst);
        grown != 0 && self.free.load(Ordering::SeqCst) == grown
    }

    /// Takes all spans at once, if all are free: the chunk may be decommitted.
    pub(crate) fn close(&self) -> bool {
        let grown = self.grown.load(Ordering::SeqCst);
        let closed = grown != 0 && self.free.compare_exchange(grown, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if closed {
            self.grown.store(0, Ordering::SeqCst);
        }
        closed
    }

    /// The lowest free slot of a span of the class; byte offset in the chunk.
    pub(crate) fn take_slot(&self, class: usize, classes: &Classes) -> Option<usize> {
        let mut spans = self.hints[class].load(Ordering::SeqCst);
        while spans != 0 {
            let span = spans.trailing_zeros() as usize;
            spans &= spans - 1;
            let slots = classes.slots(class);
            if let Some((slot, full)) = self.spans[span].take(class, slots) {
                if full {
                    self.forget(span, class, slots);
                }
                return Some(span * classes.span_bytes() + slot * classes.slot_bytes()[class]);
            }
            self.forget(span, class, slots);
        }
        None
    }

    /// Clears the hint, and sets it again if it was cleared wrongly.
    fn forget(&self, span: usize, class: usize, slots: usize) {
        self.hints[class].fetch_and(!(1 << span), Ordering::SeqCst);
        let state = self.spans[span].state.load(Ordering::SeqCst);
        if (state >> CLASS_SHIFT) as usize == class && ((state & USED) as usize) < slots {
            self.hints[class].fetch_or(1 << span, Ordering::SeqCst);
        }
    }

    /// Gives a free span to the class and takes its first slot.
    pub(crate) fn open_span(&self, class: usize, classes: &Classes) -> Option<usize> {
        let span = self.take_spans(1)?;
        let slots = classes.slots(class);
        for (i, word) in self.spans[span].slots.iter().enumerate() {
            let n = slots.saturating_sub(64 * i).min(64);
            let ones = if n == 64 { u64::MAX } else { (1 << n) - 1 };
            word.store(if i == 0 { ones & !1 } else { ones }, Ordering::SeqCst);
        }
        self.spans[span].state.store((class as u32) << CLASS_SHIFT | 1, Ordering::SeqCst);
        if slots > 1 {
            self.hints[class].fetch_or(1 << span, Ordering::SeqCst);
        }
        Some(span * classes.span_bytes())
    }

    /// Whether these spans were committed together: who sends from a piece names one segment.
    fn together(&self, span: usize, count: usize) -> bool {
        let first = self.first.load(Ordering::SeqCst) as usize;
        let part = |span: usize| (span / first).checked_ilog2();
        part(span) == part(span + count - 1)
    }

    /// The lowest `count` free spans in a row.
    pub(crate) fn take_spans(&self, count: usize) -> Option<usize> {
        loop {
            let free = self.free.load(Ordering::SeqCst);
            let run = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
            let fits = |s: &usize| free & (run << s) == run << s && (count == 1 || self.together(*s, count));
            let span = (0..=self.spans.len().checked_sub(count)?).find(fits)?;
            let left = free & !(run << span);
            if self.free.compare_exchange(free, left, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Some(span);
            }
        }
    }

    /// The class of the used slot at byte `at`; `None`: a piece of whole spans.
    pub(crate) fn class_at(&self, at: usize, classes: &Classes) -> Option<usize> {
        let state = self.spans[at / classes.span_bytes()].state.load(Ordering::SeqCst);
        (state & NOBODY != NOBODY).then_some((state >> CLASS_SHIFT) as usize)
    }

    /// Gives a slot back; true when the class should look here again.
    pub(crate) fn give_slot(&self, at: usize, class: usize, classes: &Classes) -> bool {
        let (index, slot) = (at / classes.span_bytes(), at % classes.span_bytes() / classes.slot_bytes()[class]);
        let span = &self.spans[index];
        span.slots[slot / 64].fetch_or(1 << (slot % 64), Ordering::SeqCst);
        let used = (span.state.fetch_sub(1, Ordering::SeqCst) & USED) - 1;
        if used > 0 {
            if self.hints[class].load(Ordering::SeqCst) & (1 << index) == 0 {
                self.hints[class].fetch_or(1 << index, Ordering::SeqCst);
            }
            return true;
        }
        self.hints[class].fetch_and(!(1 << index), Ordering::SeqCst);
        let empty = (class as u32) << CLASS_SHIFT;
        if span.state.compare_exchange(empty, NOBODY, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.free.fetch_or(1 << index, Ordering::SeqCst);
            return false;
        }
        self.hints[class].fetch_or(1 << index, Ordering::SeqCst);
        true
    }

    pub(crate) fn give_spans(&self, span: usize, count: usize) {
        let run = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
        self.free.fetch_or(run << span, Ordering::SeqCst);
    }
}

impl Span {
    /// The lowest free slot, and whether it was the last one.
    fn take(&self, class: usize, slots: usize) -> Option<(usize, bool)> {
        let mut state = self.state.load(Ordering::SeqCst);
        loop {
            if (state >> CLASS_SHIFT) as usize != class || (state & USED) as usize >= slots {
                return None;
            }
            match self.state.compare_exchange(state, state + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        let full = (state & USED) as usize + 1 == slots;
        // Counted in, so a free bit is there: who gives a slot back sets its bit before it counts it out.
        loop {
            for (i, word) in self.slots.iter().enumerate() {
                let mut bits = word.load(Ordering::SeqCst);
                while bits != 0 {
                    let bit = bits & bits.wrapping_neg();
                    if word.fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
                        return Some((64 * i + bit.trailing_zeros() as usize, full));
                    }
                    bits = word.load(Ordering::SeqCst);
                }
            }
        }
    }
}

const CLASS_SHIFT: u32 = 20;
const USED: u32 = (1 << CLASS_SHIFT) - 1;
const NOBODY: u32 = u32::MAX << CLASS_SHIFT;
