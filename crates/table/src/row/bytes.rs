//! Where the bytes of a row lie.

use overside_memory::{ForeignChunks, ForeignSlice};

/// Bytes of a row: one's own (`&[u8]`), or a peer's, which it may change at any moment
/// ([`ForeignSlice`]). Each method loads what it gives once. What is checked is checked in what was
/// loaded, so what holds for the second holds for the first.
pub trait Bytes: Copy + Default + sealed::Sealed {
    /// What [`chunks`](Self::chunks) gives.
    type Chunks: ExactSizeIterator<Item = Self>;

    /// Their number.
    fn len(self) -> usize;

    /// Whether there is none.
    fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// `len` bytes from `at` on; none when they are not all inside.
    fn part(self, at: usize, len: usize) -> Option<Self>;

    /// The `N` bytes from `at` on; none when they are not all inside.
    fn load<const N: usize>(self, at: usize) -> Option<[u8; N]>;

    /// Copies the first `out.len()` bytes; false, and nothing is copied, when there are fewer.
    fn copy_to(self, out: &mut [u8]) -> bool;

    /// The `N` bytes at `at`, `at + stride` and so on, as many as `out` has room for; false, and
    /// nothing is copied, when they are not all inside.
    fn strided<const N: usize>(self, at: usize, stride: usize, out: &mut [[u8; N]]) -> bool;

    /// Pieces of `width` bytes, one after another.
    ///
    /// # Panics
    /// May panic when `width` is 0.
    fn chunks(self, width: usize) -> Self::Chunks;

    /// Appends all of them to `out`.
    fn append_to(self, out: &mut Vec<u8>) {
        let before = out.len();
        out.resize(before + self.len(), 0);
        self.copy_to(&mut out[before..]);
    }
}

mod sealed {
    /// Parsers rely on what [`Bytes`](super::Bytes) promises.
    pub trait Sealed {}
    impl Sealed for &[u8] {}
    impl Sealed for overside_memory::ForeignSlice<'_> {}
}

impl<'a> Bytes for &'a [u8] {
    type Chunks = std::slice::ChunksExact<'a, u8>;

    #[inline(always)]
    fn len(self) -> usize {
        <[u8]>::len(self)
    }

    #[inline(always)]
    fn part(self, at: usize, len: usize) -> Option<Self> {
        self.get(at..at.checked_add(len)?)
    }

    #[inline(always)]
    fn load<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.get(at..)?.first_chunk().copied()
    }

    #[inline]
    fn copy_to(self, out: &mut [u8]) -> bool {
        self.get(..out.len()).map(|bytes| out.copy_from_slice(bytes)).is_some()
    }

    #[inline]
    fn strided<const N: usize>(self, at: usize, stride: usize, out: &mut [[u8; N]]) -> bool {
        let Some(last) = out.len().checked_sub(1) else { return true };
        let span = last.checked_mul(stride).and_then(|span| span.checked_add(N));
        let Some(bytes) = span.and_then(|span| self.part(at, span)) else { return false };
        for (index, value) in out.iter_mut().enumerate() {
            value.copy_from_slice(&bytes[index * stride..index * stride + N]);
        }
        true
    }

    #[inline(always)]
    fn chunks(self, width: usize) -> Self::Chunks {
        self.chunks_exact(width)
    }
}

impl<'a> Bytes for ForeignSlice<'a> {
    type Chunks = ForeignChunks<'a>;

    #[inline(always)]
    fn len(self) -> usize {
        ForeignSlice::len(self)
    }

    #[inline(always)]
    fn part(self, at: usize, len: usize) -> Option<Self> {
        ForeignSlice::part(self, at, len)
    }

    #[inline(always)]
    fn load<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        ForeignSlice::load(self, at)
    }

    #[inline]
    fn copy_to(self, out: &mut [u8]) -> bool {
        self.read(0, out).is_some()
    }

    #[inline]
    fn strided<const N: usize>(self, at: usize, stride: usize, out: &mut [[u8; N]]) -> bool {
        ForeignSlice::strided(self, at, stride, out).is_some()
    }

    #[inline(always)]
    fn chunks(self, width: usize) -> Self::Chunks {
        self.chunks_exact(width)
    }
}
