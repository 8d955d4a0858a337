//! Memory of batches, used again once its batch is gone.
//!
//! A batch of a few thousand rows takes more memory than an allocator keeps. Taken anew for each
//! batch, it is mapped, zeroed and faulted in page by page, which costs as much as filling it. So
//! what a finished array held comes back when the last owner of the array drops it, from whatever
//! thread, and the next batch is written there.

use std::sync::Arc;

use arrow_buffer::{ArrowNativeType, Buffer, ToByteSlice};
use bytes::Bytes;
use crossbeam_queue::ArrayQueue;

/// Values of one width being collected.
#[derive(Debug)]
pub(super) struct Store<T: ArrowNativeType> {
    /// Initialised to its end, whatever is in it: room costs nothing then.
    values: Vec<T>,
    len: usize,
    /// What arrays have given back.
    returned: Arc<ArrayQueue<Vec<T>>>,
}

impl<T: ArrowNativeType> Store<T> {
    pub(super) fn new() -> Store<T> {
        Store { values: Vec::new(), len: 0, returned: Arc::new(ArrayQueue::new(RETURNED_MAX)) }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The next `count` values, to be written. They count once [`Store::advance`] says so.
    #[inline]
    pub(super) fn room(&mut self, count: usize) -> &mut [T] {
        let end = self.len + count;
        if end > self.values.len() {
            self.grow(end);
        }
        &mut self.values[self.len..end]
    }

    /// Takes `count` values of the room as written.
    pub(super) fn advance(&mut self, count: usize) {
        self.len = (self.len + count).min(self.values.len());
    }

    pub(super) fn push(&mut self, value: T) {
        self.room(1)[0] = value;
        self.len += 1;
    }

    /// Adds a value `count` times.
    pub(super) fn fill(&mut self, value: T, count: usize) {
        self.room(count).fill(value);
        self.len += count;
    }

    /// The values so far.
    pub(super) fn written(&mut self) -> &mut [T] {
        &mut self.values[..self.len]
    }

    /// The values so far, and all room behind them.
    pub(super) fn all(&mut self) -> &mut [T] {
        &mut self.values
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// The values since the last time.
    pub(super) fn finish(&mut self) -> Buffer {
        let values = std::mem::take(&mut self.values);
        let lent = Lent { values, len: self.len, home: self.returned.clone() };
        self.len = 0;
        Buffer::from(Bytes::from_owner(lent))
    }

    #[cold]
    fn grow(&mut self, end: usize) {
        if self.values.is_empty() {
            // The first of a batch: what the last one gave back is likely long enough.
            self.values = self.returned.pop().unwrap_or_default();
        }
        if end > self.values.len() {
            self.values.resize(end.next_power_of_two().max(VALUES_MIN), T::default());
        }
    }
}

/// Values that an array reads.
struct Lent<T: ArrowNativeType> {
    values: Vec<T>,
    len: usize,
    home: Arc<ArrayQueue<Vec<T>>>,
}

impl<T: ArrowNativeType> AsRef<[u8]> for Lent<T> {
    fn as_ref(&self) -> &[u8] {
        self.values[..self.len].to_byte_slice()
    }
}

impl<T: ArrowNativeType> Drop for Lent<T> {
    fn drop(&mut self) {
        // A consumer that kept many batches gives more back than is worth keeping.
        let _ = self.home.push(std::mem::take(&mut self.values));
    }
}

/// Given back and not yet used again, of one column: a consumer drops a batch or two behind.
const RETURNED_MAX: usize = 4;
const VALUES_MIN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(store: &mut Store<u32>, values: std::ops::Range<u32>) -> Buffer {
        for value in values {
            store.push(value);
        }
        store.finish()
    }

    #[test]
    fn memory_comes_back_when_the_last_owner_drops_it() {
        let mut store = Store::new();
        let first = batch(&mut store, 0..1000);
        let (place, other) = (first.as_ptr(), first.clone());
        drop(first);
        let second = batch(&mut store, 1000..2000);
        assert_ne!(second.as_ptr(), place, "somebody still reads it");
        std::thread::spawn(move || drop(other)).join().unwrap();
        let third = batch(&mut store, 0..500);
        assert_eq!(third.as_ptr(), place);
        assert_eq!(third.typed_data::<u32>(), (0..500).collect::<Vec<_>>());
        assert_eq!(second.typed_data::<u32>(), (1000..2000).collect::<Vec<_>>());
    }

    #[test]
    fn a_consumer_that_keeps_batches_keeps_them_whole_and_outlives_the_store() {
        let mut store = Store::new();
        let kept: Vec<Buffer> = (0..10).map(|at| batch(&mut store, at * 100..at * 100 + 100)).collect();
        drop(store);
        for (at, buffer) in (0..).zip(&kept) {
            assert_eq!(buffer.typed_data::<u32>(), (at * 100..at * 100 + 100).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_was_written_before_does_not_show() {
        let mut store = Store::new();
        drop(batch(&mut store, 7..107));
        store.room(50)[..3].copy_from_slice(&[1, 2, 3]);
        store.advance(3);
        store.fill(9, 2);
        assert_eq!(store.finish().typed_data::<u32>(), [1, 2, 3, 9, 9]);
        assert_eq!(store.finish().len(), 0);
    }
}
