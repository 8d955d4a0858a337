//! Pages of the table of sums that are in memory.

use std::collections::BTreeMap;

use super::{BLOCK, SUMS_OF_PAGE};

/// Those that were needed lately.
#[derive(Debug, Default)]
pub(super) struct Table {
    pages: BTreeMap<u64, Page>,
    /// Where the next victim is looked for.
    hand: u64,
}

#[derive(Debug)]
struct Page {
    content: Content,
    /// Requests that need it.
    users: usize,
    /// Newer than on the disk.
    dirty: bool,
    /// It was needed since the hand came by.
    recent: bool,
}

#[derive(Debug)]
enum Content {
    /// It is being read for these requests.
    Comes(Vec<u64>),
    Here(Box<[u32; SUMS_OF_PAGE]>),
    /// It could not be read.
    Failed,
}

/// What a request that needs a page finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageState {
    Here,
    /// It must be read, and then the request goes on.
    Absent,
    /// Another request reads it.
    Comes,
    Failed,
}

impl Table {
    /// A request needs a page until it [lets go](Self::release) of it.
    pub(super) fn take(&mut self, number: u64, request: u64) -> PageState {
        if !self.pages.contains_key(&number) {
            self.make_room();
            let content = Content::Comes(vec![request]);
            self.pages.insert(number, Page { content, users: 1, dirty: false, recent: true });
            return PageState::Absent;
        }
        let Some(page) = self.pages.get_mut(&number) else { return PageState::Failed };
        page.users += 1;
        page.recent = true;
        match &mut page.content {
            Content::Comes(waiting) => {
                waiting.push(request);
                PageState::Comes
            }
            Content::Here(_) => PageState::Here,
            Content::Failed => PageState::Failed,
        }
    }

    pub(super) fn release(&mut self, number: u64) {
        let Some(page) = self.pages.get_mut(&number) else { return };
        page.users -= 1;
        // The next one tries again.
        if page.users == 0 && matches!(page.content, Content::Failed) {
            self.pages.remove(&number);
        }
    }

    /// A page has been read, or could not be; who waits for it.
    pub(super) fn came(&mut self, number: u64, bytes: Option<&[u8]>) -> Vec<u64> {
        let Some(page) = self.pages.get_mut(&number) else { return Vec::new() };
        let content = match bytes {
            Some(bytes) => {
                let mut sums = Box::new([0; SUMS_OF_PAGE]);
                for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *sum = u32::from_le_bytes(*bytes);
                }
                Content::Here(sums)
            }
            None => Content::Failed,
        };
        match std::mem::replace(&mut page.content, content) {
            Content::Comes(waiting) => waiting,
            Content::Here(_) | Content::Failed => Vec::new(),
        }
    }

    /// The sum of a block, whose page is here.
    pub(super) fn sum(&self, block: u64) -> Option<u32> {
        match &self.pages.get(&(block / SUMS_OF_PAGE as u64))?.content {
            Content::Here(sums) => Some(sums[block as usize % SUMS_OF_PAGE]),
            Content::Comes(_) | Content::Failed => None,
        }
    }

    pub(super) fn set(&mut self, block: u64, sum: u32) {
        if let Some(Page { content: Content::Here(sums), dirty, .. }) =
            self.pages.get_mut(&(block / SUMS_OF_PAGE as u64))
        {
            let place = &mut sums[block as usize % SUMS_OF_PAGE];
            *dirty |= *place != sum;
            *place = sum;
        }
    }

    /// Pages among these that are newer than on the disk.
    pub(super) fn dirty(&self, pages: std::ops::Range<u64>) -> Vec<u64> {
        self.pages.range(pages).filter(|(_, page)| page.dirty).map(|(number, _)| *number).collect()
    }

    /// A page's bytes, which go to the disk.
    pub(super) fn bytes(&mut self, number: u64, into: &mut [u8]) {
        if let Some(Page { content: Content::Here(sums), dirty, .. }) = self.pages.get_mut(&number) {
            for (place, sum) in into[..BLOCK].as_chunks_mut::<4>().0.iter_mut().zip(sums.iter()) {
                *place = sum.to_le_bytes();
            }
            *dirty = false;
        }
    }

    /// They did not get there.
    pub(super) fn not_written(&mut self, number: u64) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.dirty = true;
        }
    }

    /// Lets go of a page that was not needed lately. Those that are newer than on the disk stay
    /// until they are written.
    fn make_room(&mut self) {
        let mut looks = LOOKS_MAX;
        while self.pages.len() >= PAGES_MAX && looks > 0 {
            looks -= 1;
            let next = self.pages.range_mut(self.hand..).next();
            let Some((number, page)) = next else {
                self.hand = 0;
                continue;
            };
            let number = *number;
            self.hand = number + 1;
            let may_go = page.users == 0 && !page.dirty && !page.recent;
            page.recent = false;
            if may_go {
                self.pages.remove(&number);
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.pages.len()
    }
}

/// Pages in memory, for 16 GiB of blocks; more only while they are needed or not written yet.
const PAGES_MAX: usize = 4096;
const LOOKS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_once_for_all_who_need_it() {
        let mut table = Table::default();
        assert_eq!(
            (table.take(3, 1), table.take(3, 2), table.take(4, 3)),
            (PageState::Absent, PageState::Comes, PageState::Absent)
        );
        let mut page = [0; BLOCK];
        page[4..8].copy_from_slice(&77u32.to_le_bytes());
        assert_eq!(table.came(3, Some(&page)), [1, 2]);
        assert_eq!(table.came(4, None), [3]);
        assert_eq!((table.take(3, 5), table.take(4, 5)), (PageState::Here, PageState::Failed));
        let first = 3 * SUMS_OF_PAGE as u64;
        assert_eq!((table.sum(first), table.sum(first + 1), table.sum(4 * first)), (Some(0), Some(77), None));
        // It is tried again once nobody waits for what failed.
        table.release(4);
        table.release(4);
        assert_eq!(table.take(4, 6), PageState::Absent);
        table.set(first + 1, 77);
        assert!(table.dirty(0..9).is_empty());
        table.set(first + 2, 5);
        assert_eq!(table.dirty(0..9), [3]);
        let mut out = [0; BLOCK];
        table.bytes(3, &mut out);
        page[8..12].copy_from_slice(&5u32.to_le_bytes());
        assert!(out == page && table.dirty(0..9).is_empty());
        table.not_written(3);
        assert_eq!(table.dirty(0..9), [3]);
    }

    #[test]
    fn pages_that_are_needed_or_not_written_stay_and_others_go() {
        let mut table = Table::default();
        let read = |number: u64, table: &mut Table| {
            assert_eq!(table.take(number, 0), PageState::Absent);
            table.came(number, Some(&[0; BLOCK]));
        };
        read(0, &mut table);
        read(1, &mut table);
        table.set(SUMS_OF_PAGE as u64, 9);
        table.release(1);
        for number in 2..3 * PAGES_MAX as u64 {
            read(number, &mut table);
            table.release(number);
        }
        assert!(table.len() < 2 * PAGES_MAX, "{}", table.len());
        assert_eq!((table.sum(0), table.sum(SUMS_OF_PAGE as u64)), (Some(0), Some(9)));
    }
}
