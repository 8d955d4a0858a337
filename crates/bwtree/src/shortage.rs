//! A full arena: how a delete gets its memory all the same.
//!
//! When a chain is full, its delete needs a page for what is left before the old page can go. If
//! there is no memory, that page is made in the allocator's reserve and noted here. What it
//! replaced is free as soon as no thread reads it any more, and the next thread moves the page
//! there. Until all have moved, only deletes get memory.

use crate::alloc::Purpose;
use crate::consolidate::pieces_of;
use crate::core::Core;
use crate::epoch::Guard;
use crate::inner::Target;
use crate::page::{Fences, Layout};
use crate::sync::Mutex;

/// Pages in the reserve: where they lie, and their low fences.
#[derive(Default)]
pub(crate) struct Sheltered(Mutex<Vec<(u64, Vec<u8>)>>);

impl Sheltered {
    fn with<T>(&self, what: impl FnOnce(&mut Vec<(u64, Vec<u8>)>) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl Core {
    /// Notes a page just published, if it lies in the reserve.
    #[inline]
    pub(crate) fn shelter(&self, reserved: Option<u64>, low: &[u8]) {
        if let Some(offset) = reserved {
            self.sheltered.with(|pages| pages.push((offset, low.to_vec())));
        }
    }

    /// If memory is short: lets go what can be, and moves pages out of the reserve. The caller's
    /// guard holds back what it came in for, so it takes a few calls under guards of their own.
    pub(crate) fn relieve(&self, guard: &Guard<'_>) {
        if !self.store.allocator.short() {
            return;
        }
        self.collect(guard, true);
        let pages = self.sheltered.with(std::mem::take);
        let stay: Vec<_> = pages.into_iter().filter(|(offset, low)| !self.moved(guard, *offset, low)).collect();
        self.sheltered.with(|pages| pages.extend(stay));
    }

    /// Whether the page at `offset` that starts at `low` has left the reserve by now.
    fn moved(&self, guard: &Guard<'_>, offset: u64, low: &[u8]) -> bool {
        let found = self.find_leaf(guard, Target::At(low));
        let state = &found.state;
        if state.base_offset() != offset {
            return true;
        }
        if found.frozen {
            return false;
        }
        let pieces = pieces_of(state, None);
        let fences = Fences { low: state.leaf.low_fence(), high: state.leaf.high_fence() };
        let layout = Layout::of(&pieces, fences, self.options.prefix_len);
        let (right, newest) = (state.leaf.right(), self.newest(state));
        let Ok((word, fresh)) = self.build_leaf(&pieces, &layout, fences, right, Purpose::Moving, newest) else {
            return false;
        };
        if !self.install(found.pid, state.word, word) {
            self.store.discard(fresh);
            return false;
        }
        self.retire_leaf(guard, found.pid, state);
        self.merge_if_small(guard, found.pid, layout.page_len, fences.low);
        true
    }
}
