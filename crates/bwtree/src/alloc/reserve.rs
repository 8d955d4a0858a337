//! The last spans: what they are for, and how they come back.
//!
//! A delete can need a new page, for its page's smaller version, before the old one is given back.
//! So some spans are kept for pages that shrink. While a page lies in one of them nothing else gets
//! memory. So what such pages gave back is still there when they move on. A page that shrinks needs
//! no more than the piece it came from, and pieces are handed out best fit first, so each page in
//! the reserve finds one.

use std::ops::Range;

use super::{Allocator, Extent};
use crate::arena::Exhausted;
use crate::sync::Ordering;

impl Allocator {
    /// Whether the reserve is broken into: only pages that shrink are served.
    pub(crate) fn short(&self) -> bool {
        self.short.load(Ordering::SeqCst) != 0 && !self.recovered()
    }

    #[cold]
    fn recovered(&self) -> bool {
        let whole = || self.free_spans() >= self.reserved_spans;
        if !whole() && (self.commit_another().is_err() || !whole()) {
            return false;
        }
        self.short.store(0, Ordering::SeqCst);
        // Somebody may have taken of it meanwhile.
        if !whole() {
            self.short.store(1, Ordering::SeqCst);
        }
        whole()
    }

    /// Whether the piece in use at `offset` is a slot of the reserve.
    pub(crate) fn is_reserved(&self, offset: u64) -> bool {
        let (chunk, at) = self.place(offset);
        let class = self.chunks[chunk].get().and_then(|chunk| chunk.class_at(at, &self.classes));
        class.is_some() && class == self.classes.reserve()
    }

    /// A free slot no larger than what will be given back for it, else one of the reserve.
    pub(super) fn take_shrinking(&self, bytes: usize, from: usize) -> Option<(Extent, bool)> {
        let last = self.classes.of(from).map_or(self.classes.ordinary(), |class| class + 1);
        let free = self.classes.of(bytes).and_then(|class| self.take_free_slot(class..last));
        if let Some(extent) = free {
            return Some((extent, false));
        }
        let reserved = match self.classes.reserve() {
            Some(class) if bytes <= self.classes.slot_bytes()[class] => {
                let slot = || self.find(0, |chunk| chunk.take_slot(class, &self.classes));
                let (chunk, at) = slot().or_else(|| self.find(0, |chunk| chunk.open_span(class, &self.classes)))?;
                self.slot(chunk, at, class)
            }
            _ => self.take_spans(bytes, 0).ok()?,
        };
        self.short.store(1, Ordering::SeqCst);
        Some((reserved, true))
    }

    /// The smallest free slot that fits, or one of a span that the reserve does not need.
    pub(super) fn take_free(&self, bytes: usize) -> Result<Extent, Exhausted> {
        let Some(class) = self.classes.of(bytes) else { return self.take_spans(bytes, self.reserved_spans) };
        if let Some(extent) = self.take_free_slot(class..self.classes.ordinary()) {
            return Ok(extent);
        }
        let spare = self.free_spans() > self.reserved_spans;
        let opened = if spare { self.find(0, |chunk| chunk.open_span(class, &self.classes)) } else { None };
        let (chunk, at) = opened.ok_or(Exhausted)?;
        self.lowest[class].fetch_min(chunk, Ordering::SeqCst);
        Ok(self.slot(chunk, at, class))
    }

    /// A free slot of the first of these classes that has one.
    pub(super) fn take_free_slot(&self, mut classes: Range<usize>) -> Option<Extent> {
        classes.find_map(|class| {
            let (chunk, at) = self.find(0, |chunk| chunk.take_slot(class, &self.classes))?;
            Some(self.slot(chunk, at, class))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Purpose::{Growth, Moving, Shrinking};
    use super::*;
    use crate::arena::HeapArena;

    #[test]
    fn the_reserve_serves_what_shrinks_until_it_is_whole_again() {
        let a = Allocator::new(Arc::new(HeapArena::with_chunks(1 << 20, 2).unwrap()), 16 << 10);
        let mut taken = Vec::new();
        while let Ok((extent, reserved)) = a.take(10_000, Growth) {
            assert!(!reserved);
            taken.push(extent);
        }
        assert!(!a.short());
        let (page, reserved) = a.take(9_000, Shrinking { from: 10_000 }).unwrap();
        assert!(reserved && page.bytes >= 16 << 10 && a.short());
        // What it gives back is kept for it: nobody else gets it.
        a.give(taken.swap_remove(17));
        assert_eq!(a.take(100, Growth), Err(Exhausted));
        // A second one takes the smallest that fits, but none larger than what it gives back.
        let (second, reserved) = a.take(4_000, Shrinking { from: 5_000 }).unwrap();
        assert!(reserved);
        let (moved, reserved) = a.take(9_000, Moving).unwrap();
        assert!(!reserved && moved.bytes < 16 << 10);
        a.give(page);
        assert!(a.short());
        a.give(second);
        assert!(!a.short());
        a.give(moved);
        assert!(a.take(10_000, Growth).is_ok());
    }

    #[test]
    fn pages_of_whole_spans_have_a_reserve_too() {
        let a = Allocator::new(Arc::new(HeapArena::with_chunks(2 << 20, 1).unwrap()), 160 << 10);
        let mut taken = Vec::new();
        while let Ok((extent, _)) = a.take(160 << 10, Growth) {
            taken.push(extent);
        }
        assert!(a.take(150 << 10, Shrinking { from: 160 << 10 }).is_ok_and(|(_, reserved)| reserved));
        assert!(taken.len() >= 3);
    }
}
