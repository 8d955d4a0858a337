//! A scan's way through an index to the rows.

use std::ops::{Bound, Range};
use std::sync::Arc;

use overside_bwtree::{Direction, PinAccount, PinnedPage, Reader};
use overside_disk::mutant;

use super::{Index, VALUE_BYTES};
use crate::row::RowView;
use crate::server::store::Table;

/// The rows that the entries of a range lead to, one page with one row after another, in the
/// index's order.
pub(crate) struct Through {
    table: Arc<Table>,
    index: Arc<Index>,
    pins: Arc<PinAccount>,
    reader: Reader,
    /// Entries that were found and not looked up yet: the keys of some rows of the index, one after
    /// another.
    keys: Vec<u8>,
    /// Of each where its values lie, and where its primary key ends.
    found: Vec<(Range<usize>, usize)>,
    next: usize,
    newest: u64,
}

impl Through {
    pub(crate) fn new(
        table: Arc<Table>,
        index: Arc<Index>,
        pins: Arc<PinAccount>,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Through {
        let mut reader = index.tree.reader();
        reader.seek(from, to, usize::MAX);
        // That there is this index is shown by the scan as well.
        let newest = index.since();
        Through { table, index, pins, reader, keys: Vec::new(), found: Vec::new(), next: 0, newest }
    }

    /// No change that its rows so far, or their absence, shows has a larger stamp.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// The next row, which has the values of its entry.
    pub(crate) fn next(&mut self) -> Option<PinnedPage> {
        loop {
            let Some((values, end)) = self.found.get(self.next).cloned() else {
                if !self.find_more() {
                    return None;
                }
                continue;
            };
            self.next += 1;
            let (values, key) = (&self.keys[values.clone()], &self.keys[values.end..end]);
            let bounds = (Bound::Included(key), Bound::Included(key));
            let mut pages = self.table.tree.pages(bounds.0, bounds.1, Direction::Forward).on_account(self.pins.clone());
            let page = pages.next();
            self.newest = self.newest.max(pages.newest());
            let Some(page) = page else { continue };
            self.newest = self.newest.max(page.newest());
            if self.has(&page, values) || mutant("index-not-checked") {
                return Some(page);
            }
        }
    }

    /// Whether the page's row is there and has these values.
    fn has(&self, page: &PinnedPage, values: &[u8]) -> bool {
        let Some(row) = page.merged().next() else { return false };
        let row = RowView::trusted(row.prefix, page.rest_bytes(row.rest), &self.table.layout);
        let mut now = Vec::with_capacity(values.len());
        // A row that cannot be read is given, so that the scan reports it.
        self.index.codec.encode_row(&row, &mut now).map_or(true, |()| now == values)
    }

    /// Finds the entries of the index's next leaf.
    fn find_more(&mut self) -> bool {
        self.keys.clear();
        self.found.clear();
        self.next = 0;
        let rows = self.reader.next_rows();
        let some = rows.is_some();
        for row in rows.iter().flat_map(|rows| rows.rows()) {
            let from = self.keys.len();
            row.key.append_to(&mut self.keys);
            let value = row.prefix.first_chunk::<VALUE_BYTES>().copied().unwrap_or_default();
            let end = self.keys.len();
            let values_end = (from + usize::from(u16::from_le_bytes(value))).min(end);
            self.found.push((from..values_end, end));
        }
        self.newest = self.newest.max(self.reader.newest());
        some
    }
}

impl std::fmt::Debug for Through {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Through").field("index", &self.index.columns).finish_non_exhaustive()
    }
}
