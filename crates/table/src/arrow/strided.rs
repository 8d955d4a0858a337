//! Values out of consecutive prefixes: one load and one store each.

use arrow_buffer::ArrowNativeType;

use super::store::Store;
use crate::row::Bytes;

/// Prefixes of rows, one after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefixes<P> {
    pub(super) bytes: P,
    /// Bytes of each.
    pub(super) stride: usize,
    pub(super) rows: usize,
}

impl<P: Bytes> Prefixes<P> {
    /// Adds the `WIDTH` bytes at `offset` of every prefix to `store`.
    #[inline(never)]
    pub(super) fn gather<T: ArrowNativeType, const WIDTH: usize>(
        &self,
        offset: usize,
        store: &mut Store<T>,
        read: impl Fn([u8; WIDTH]) -> T,
    ) {
        // Said once, so that nothing is checked in the loop.
        assert!(offset + WIDTH <= self.stride, "a column ends within the prefix");
        let values = store.room(self.rows);
        for (value, prefix) in values.iter_mut().zip(self.bytes.chunks(self.stride)) {
            *value = read(prefix.load(offset).unwrap_or([0; WIDTH]));
        }
        store.advance(self.rows);
    }

    /// The same for a width known at run time only.
    pub(super) fn gather_bytes(&self, offset: usize, width: usize, store: &mut Store<u8>) {
        if width == 0 {
            return;
        }
        let values = store.room(self.rows * width);
        for (value, prefix) in values.chunks_exact_mut(width).zip(self.bytes.chunks(self.stride)) {
            prefix.part(offset, width).unwrap_or_default().copy_to(value);
        }
        store.advance(self.rows * width);
    }

    /// One byte of every prefix.
    #[inline]
    pub(super) fn bytes_at(&self, offset: usize) -> impl ExactSizeIterator<Item = u8> + use<P> {
        assert!(offset < self.stride, "a byte of the prefix");
        self.bytes.chunks(self.stride).map(move |prefix| prefix.load(offset).map_or(0, |[byte]| byte))
    }
}
