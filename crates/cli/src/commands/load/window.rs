//! Rows that come in no order, gathered and sorted before they are put.
//!
//! A server writes a page anew for all rows that come into it at once. The rows of one request,
//! scattered over a large table, hardly ever share a page; those of some hundred requests do.

use arrow_array::RecordBatch;
use overside::table::arrow::EncodedRows;
use overside_files::BATCH_ROWS;

/// Encoded batches of one file, one after another.
#[derive(Default)]
pub struct Window {
    batches: Vec<EncodedRows>,
    /// Their keys' columns, for people.
    columns: Vec<RecordBatch>,
    /// Of each row the first bytes of its key, from where keys differ on, and its number.
    order: Vec<(u64, Row)>,
    bytes: usize,
    /// Memory of batches that were put.
    spare: Vec<EncodedRows>,
}

/// Batch and row in the batch, which compare as rows were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row(u32);

impl Row {
    fn new(batch: usize, row: usize) -> Row {
        const { assert!(BATCH_ROWS <= 1 << ROW_BITS) };
        Row((batch << ROW_BITS | row) as u32)
    }

    pub fn batch(self) -> usize {
        (self.0 >> ROW_BITS) as usize
    }

    pub fn row(self) -> usize {
        (self.0 & ((1 << ROW_BITS) - 1)) as usize
    }
}

impl Window {
    /// Memory for a batch to be encoded into.
    pub fn spare(&mut self) -> EncodedRows {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back a batch that was put.
    pub fn give_back(&mut self, batch: EncodedRows) {
        self.spare.push(batch);
    }

    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.bytes >= WINDOW_BYTES || self.batches.len() == BATCHES_MAX
    }

    /// Adds a batch, and the columns of its keys.
    pub fn add(&mut self, batch: EncodedRows, columns: RecordBatch) {
        self.bytes += batch.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        self.batches.push(batch);
        self.columns.push(columns);
    }

    /// The rows in the order of their keys, and of equal keys as they were read.
    pub fn sorted(&mut self) -> Sorted<'_> {
        let batches = &self.batches;
        let key = |row: Row| batches[row.batch()].row(row.row()).0;
        let shared = shared(batches.iter().flat_map(|batch| batch.iter().map(|(key, _)| key)));
        self.order.clear();
        for (at, batch) in batches.iter().enumerate() {
            let rows = batch.iter().enumerate();
            self.order.extend(rows.map(|(row, (key, _))| (head(&key[shared..]), Row::new(at, row))));
        }
        let whole = shared + size_of::<u64>();
        self.order.sort_unstable_by(|(head_a, a), (head_b, b)| {
            let ties =
                || key(*a).get(whole..).cmp(&key(*b).get(whole..)).then_with(|| key(*a).len().cmp(&key(*b).len()));
            head_a.cmp(head_b).then_with(ties).then(a.cmp(b))
        });
        Sorted { batches, order: self.order.iter(), ahead: Vec::with_capacity(AHEAD), given: 0 }
    }

    /// Empties it; where its rows were, for errors.
    pub fn take_places(&mut self) -> (Vec<RecordBatch>, Vec<Row>) {
        self.spare.append(&mut self.batches);
        self.bytes = 0;
        (std::mem::take(&mut self.columns), self.order.iter().map(|(_, row)| *row).collect())
    }
}

/// Keys and values in the order of keys.
///
/// They lie all over the window, which is larger than a processor's caches. Some rows are looked up
/// together: what each of them waits for from memory then comes at the same time.
pub struct Sorted<'w> {
    batches: &'w [EncodedRows],
    order: std::slice::Iter<'w, (u64, Row)>,
    ahead: Vec<(&'w [u8], &'w [u8])>,
    /// How many of those were given out.
    given: usize,
}

impl<'w> Sorted<'w> {
    fn look_up(&mut self) {
        self.ahead.clear();
        self.given = 0;
        let batches = self.batches;
        let rows = self.order.by_ref().take(AHEAD);
        self.ahead.extend(rows.map(|(_, row)| batches[row.batch()].row(row.row())));
        let ends = self.ahead.iter().map(|(_, value)| (value.first(), value.last()));
        let touch = ends.fold(0, |all, (first, last)| all ^ first.copied().unwrap_or(0) ^ last.copied().unwrap_or(0));
        std::hint::black_box(touch);
    }
}

impl<'w> Iterator for Sorted<'w> {
    type Item = (&'w [u8], &'w [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.given == self.ahead.len() {
            self.look_up();
        }
        let row = self.ahead.get(self.given).copied();
        self.given += usize::from(row.is_some());
        row
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.ahead.len() - self.given + self.order.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Sorted<'_> {}

/// Bytes that all keys begin with.
fn shared<'k>(mut keys: impl Iterator<Item = &'k [u8]>) -> usize {
    let Some(first) = keys.next() else { return 0 };
    keys.fold(first.len(), |shared, key| first[..shared].iter().zip(key).take_while(|(a, b)| a == b).count())
}

/// The first bytes of a key, padded, as a number that compares like them.
fn head(key: &[u8]) -> u64 {
    let mut head = [0; size_of::<u64>()];
    let len = key.len().min(head.len());
    head[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(head)
}

/// Keys and values that are sorted at once. A table of some hundred megabytes then gets several
/// rows into each of its pages at a time; more would gain little and cost memory.
const WINDOW_BYTES: usize = 24 << 20;
/// Rows that are looked up together.
const AHEAD: usize = 32;
const ROW_BITS: u32 = 16;
const BATCHES_MAX: usize = 1 << (u32::BITS - ROW_BITS);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::UInt64Array;
    use overside::table::arrow::{BatchEncoder, from_arrow};

    use super::*;

    #[test]
    fn rows_come_by_key_whichever_batch_they_are_in() {
        let ids = |batch: u64| (0..100).map(move |row| (batch * 100 + row) * 7919 % 1000);
        let mut window = Window::default();
        for batch in 0..10 {
            let column = Arc::new(UInt64Array::from_iter_values(ids(batch))) as _;
            let columns = RecordBatch::try_from_iter([("id", column)]).unwrap();
            let mut rows = window.spare();
            let schema = from_arrow(&columns.schema(), &["id"]).unwrap();
            BatchEncoder::new(&schema).encode(&columns, &mut rows).unwrap();
            window.add(rows, columns);
        }
        let mut sorted = window.sorted();
        for id in 0..1000u64 {
            assert_eq!(sorted.len() as u64, 1000 - id);
            let (key, value) = sorted.next().unwrap();
            assert!(key == id.to_be_bytes() && value[..8] == id.to_le_bytes(), "{id}: {key:?}, {value:?}");
        }
        assert!(sorted.next().is_none() && sorted.len() == 0);
        drop(sorted);
        let (columns, places) = window.take_places();
        let read =
            |row: &Row| columns[row.batch()].column(0).as_any().downcast_ref::<UInt64Array>().unwrap().value(row.row());
        assert!(places.iter().map(read).eq(0..1000));
    }

    #[test]
    fn heads_and_shared_bytes() {
        let keys = [&b"ab"[..], b"abc", b"abd", b"a"];
        assert_eq!(shared(keys.iter().copied()), 1);
        assert_eq!(shared(keys[..3].iter().copied()), 2);
        assert!(head(b"a") < head(b"b") && head(b"a") < head(b"ab") && head(b"") == 0);
    }
}
