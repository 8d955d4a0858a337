//! Values out of consecutive prefixes: one load and one store each.

use arrow_buffer::ArrowNativeType;

use super::store::Store;

/// Prefixes of rows, one after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefixes<'a> {
    pub(super) bytes: &'a [u8],
    /// Bytes of each.
    pub(super) stride: usize,
    pub(super) rows: usize,
}

impl<'a> Prefixes<'a> {
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
        for (value, prefix) in values.iter_mut().zip(self.bytes.chunks_exact(self.stride)) {
            let mut bytes = [0; WIDTH];
            bytes.copy_from_slice(&prefix[offset..offset + WIDTH]);
            *value = read(bytes);
        }
        store.advance(self.rows);
    }

    /// The same for a width known at run time only.
    pub(super) fn gather_bytes(&self, offset: usize, width: usize, store: &mut Store<u8>) {
        if width == 0 {
            return;
        }
        let values = store.room(self.rows * width);
        for (value, prefix) in values.chunks_exact_mut(width).zip(self.bytes.chunks_exact(self.stride)) {
            value.copy_from_slice(&prefix[offset..offset + width]);
        }
        store.advance(self.rows * width);
    }

    /// One byte of every prefix.
    #[inline]
    pub(super) fn bytes_at(&self, offset: usize) -> impl ExactSizeIterator<Item = u8> + 'a {
        assert!(offset < self.stride, "a byte of the prefix");
        self.bytes.chunks_exact(self.stride).map(move |prefix| prefix[offset])
    }
}
