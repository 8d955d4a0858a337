//! Sending from a page: a view of what a pin holds, for a provider to gather.

#![allow(unsafe_code)]

use overside_memory::{Fragment, View};

use crate::page::{OverflowRef, Rest};
use crate::pinned::PinnedPage;

impl PinnedPage {
    /// Bytes of the arena as one message, each `(offset, length)`, in that order. The view holds
    /// the pin.
    ///
    /// None when a range is not wholly of this page: of its base page, of its delta records
    /// (records that touch may be one range), or one of its overflow extents. Nothing else of the
    /// arena is known to stay. A range without bytes names nothing, wherever it is.
    pub fn view(&self, ranges: impl IntoIterator<Item = (u64, u64)>) -> Option<View> {
        let page = self.offset_of(self.base());
        let page = page..page + self.base().len() as u64;
        let mut fragments = smallvec::SmallVec::<[Fragment; 4]>::new();
        for (at, len) in ranges.into_iter().filter(|(_, len)| *len > 0) {
            let end = at.checked_add(len)?;
            let of_page = page.start <= at && end <= page.end;
            if !of_page && !self.covers_records(at, end) && !self.covers_extent(at, len) {
                return None;
            }
            let (address, segment) = self.located(at);
            fragments.push(Fragment { address, len: u32::try_from(len).ok()?, segment });
        }
        // SAFETY: [bwtree-pin] every fragment lies in memory that the pin keeps unchanged; the hold is the pin.
        Some(unsafe { View::pinned(fragments, self.hold()) })
    }

    /// Whether `at..end` is covered by delta records, one behind the other.
    fn covers_records(&self, mut at: u64, end: u64) -> bool {
        while at < end {
            let covering = self.deltas().find_map(|delta| {
                let from = self.offset_of(delta.record());
                let to = from + delta.record().len() as u64;
                (from <= at && at < to).then_some(to)
            });
            match covering {
                Some(to) => at = to,
                None => return false,
            }
        }
        true
    }

    /// Whether it is an extent that a row or a delta refers to.
    fn covers_extent(&self, at: u64, len: u64) -> bool {
        let refers = |rest: Rest<'_>| matches!(rest, Rest::Overflow(OverflowRef { offset, len: extent, .. }) if offset == at && u64::from(extent) == len);
        let leaf = self.leaf();
        self.deltas().any(|delta| refers(delta.rest()))
            || (leaf.has_overflow() && self.rows().any(|row| refers(leaf.rest(row))))
    }
}
