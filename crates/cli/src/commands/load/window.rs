//! Rows that come in no order, gathered and sorted before they are put.
//!
//! A server writes a page anew for all rows that come into it at once. The rows of one request, scattered over a
//! large table, hardly ever share a page; those of some hundred requests do.

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
    pub fn sorted(&mut self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
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
        self.order.iter().map(|(_, row)| batches[row.batch()].row(row.row()))
    }

    /// Empties it; where its rows were, for errors.
    pub fn take_places(&mut self) -> (Vec<RecordBatch>, Vec<Row>) {
        self.spare.append(&mut self.batches);
        self.bytes = 0;
        (std::mem::take(&mut self.columns), self.order.iter().map(|(_, row)| *row).collect())
    }
}

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

/// Keys and values that are sorted at once. A table of some hundred megabytes then gets several rows into each of its
/// pages at a time; more would gain little and cost memory.
const WINDOW_BYTES: usize = 24 << 20;
const ROW_BITS: u32 = 16;
const BATCHES_MAX: usize = 1 << (u32::BITS - ROW_BITS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_shared_bytes() {
        let keys = [&b"ab"[..], b"abc", b"abd", b"a"];
        assert_eq!(shared(keys.iter().copied()), 1);
        assert_eq!(shared(keys[..3].iter().copied()), 2);
        assert!(head(b"a") < head(b"b") && head(b"a") < head(b"ab") && head(b"") == 0);
    }
}
