//! A part of a peer's memory, borrowed: what a reader in place goes by.

use std::marker::PhantomData;

use crate::foreign_range::ForeignRange;
use crate::kernels;
use crate::pack::load::{fixed, word};

/// Bytes of a [`ForeignRange`], borrowed from it.
///
/// As with a range, the peer may change them at any moment: each method loads what it gives once,
/// and gives it by value or copies it out. Two loads of the same bytes may differ. So whoever
/// checks a value checks what was loaded, and goes by that.
#[derive(Clone, Copy, Debug)]
pub struct ForeignSlice<'a> {
    start: *const u8,
    len: usize,
    kept: PhantomData<&'a ForeignRange>,
}

// SAFETY: [foreign] as the range: only racing copies and volatile loads reach the bytes.
unsafe impl Send for ForeignSlice<'_> {}
// SAFETY: [foreign] as above.
unsafe impl Sync for ForeignSlice<'_> {}

impl Default for ForeignSlice<'_> {
    /// No byte.
    fn default() -> Self {
        Self { start: std::ptr::null(), len: 0, kept: PhantomData }
    }
}

impl<'a> ForeignSlice<'a> {
    /// `len` bytes from `start` on, which the range that is borrowed keeps mapped.
    #[inline]
    pub(crate) fn new(_: &'a ForeignRange, start: *const u8, len: usize) -> Self {
        Self { start, len, kept: PhantomData }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it has no byte.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `len` bytes of it from `at` on; none when they are not all inside.
    #[inline]
    pub fn part(self, at: usize, len: usize) -> Option<Self> {
        self.checked(at, len).map(|start| Self { start, len, kept: PhantomData })
    }

    /// Pieces of `width` bytes, one after another; what is left at the end is no piece. None at all
    /// when `width` is 0.
    #[inline]
    pub fn chunks_exact(self, width: usize) -> ForeignChunks<'a> {
        ForeignChunks { start: self.start, width, left: self.len.checked_div(width).unwrap_or(0), kept: PhantomData }
    }

    /// Copies `out.len()` bytes from `at` on; none, and nothing is copied, when they are not all
    /// inside.
    #[inline]
    pub fn read(self, at: usize, out: &mut [u8]) -> Option<()> {
        let source = self.checked(at, out.len()).filter(|_| !out.is_empty());
        let Some(source) = source else { return (out.is_empty() && at <= self.len).then_some(()) };
        // SAFETY: [foreign] in bounds of the mapping, which the borrowed range keeps; `out` is ours.
        unsafe { kernels::copy_racing(out.as_mut_ptr(), source, out.len()) };
        Some(())
    }

    /// `N` bytes from `at` on, at any alignment; none when they are not all inside.
    #[inline(always)]
    pub fn load<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        let source = self.checked(at, N)?;
        let mut out = [0; N];
        // SAFETY: [foreign] in bounds; volatile loads or the racing copy, into memory of our own.
        unsafe {
            if N <= 16 {
                fixed::<N>(out.as_mut_ptr(), source);
            } else {
                (0..N / 16).for_each(|at| fixed::<16>(out.as_mut_ptr().add(16 * at), source.add(16 * at)));
                (N / 16 * 16..N).for_each(|at| fixed::<1>(out.as_mut_ptr().add(at), source.add(at)));
            }
        }
        Some(out)
    }

    /// As [`load`](Self::load), of one byte.
    #[inline(always)]
    pub fn load_u8(self, at: usize) -> Option<u8> {
        // SAFETY: [foreign] in bounds; one volatile load.
        self.checked(at, 1).map(|place| unsafe { word(place) })
    }

    /// Copies the `N` bytes at `at`, at `at + stride`, and so on, as many as `out` has room for;
    /// none, and nothing is copied, when they are not all inside.
    #[inline]
    pub fn strided<const N: usize>(self, at: usize, stride: usize, out: &mut [[u8; N]]) -> Option<()> {
        let Some(last) = out.len().checked_sub(1) else { return Some(()) };
        let span = last.checked_mul(stride)?.checked_add(N)?;
        let mut place = self.checked(at, span)?;
        for value in out {
            // SAFETY: [foreign] the last value ends in bounds, so each does; volatile loads into memory of our own.
            unsafe { fixed::<N>(value.as_mut_ptr(), place) };
            place = place.wrapping_add(stride);
        }
        Some(())
    }

    #[inline(always)]
    fn checked(self, at: usize, len: usize) -> Option<*const u8> {
        (at <= self.len && len <= self.len - at).then(|| self.start.wrapping_add(at))
    }
}

/// What [`ForeignSlice::chunks_exact`] gives.
#[derive(Clone, Debug)]
pub struct ForeignChunks<'a> {
    start: *const u8,
    width: usize,
    left: usize,
    kept: PhantomData<&'a ForeignRange>,
}

impl<'a> Iterator for ForeignChunks<'a> {
    type Item = ForeignSlice<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<ForeignSlice<'a>> {
        self.left = self.left.checked_sub(1)?;
        let chunk = ForeignSlice { start: self.start, len: self.width, kept: PhantomData };
        self.start = self.start.wrapping_add(self.width);
        Some(chunk)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ForeignChunks<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Foreign, Segment};

    #[test]
    fn every_load_is_of_its_own_bytes_and_within_bounds() {
        let segment = Segment::shared(4096).unwrap();
        let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
        let foreign = Foreign::map(fd, 4096).unwrap();
        let mut buffer = segment.carve(4096).pop().unwrap();
        buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        // The mapping's very end: what reads on would fault.
        let range = foreign.range(4096 - 64, 64).unwrap();
        let slice = range.slice();
        assert_eq!((slice.len(), slice.is_empty(), ForeignSlice::default().is_empty()), (64, false, true));
        assert_eq!(slice.load::<3>(61), Some([253, 254, 255]));
        assert_eq!((slice.load::<3>(62), slice.load::<1>(usize::MAX), slice.load_u8(64)), (None, None, None));
        assert_eq!(slice.load::<24>(40).unwrap()[23], 255);
        assert_eq!(slice.load::<64>(0).unwrap().map(usize::from), std::array::from_fn(|i| 192 + i));
        let part = slice.part(10, 20).unwrap();
        assert_eq!((part.load_u8(0), part.load_u8(19), part.load_u8(20)), (Some(202), Some(221), None));
        assert!(part.part(20, 0).is_some() && part.part(20, 1).is_none() && part.part(1, usize::MAX).is_none());
        let mut out = [0; 20];
        part.read(0, &mut out).unwrap();
        assert_eq!(out[19], 221);
        assert!(part.read(1, &mut out).is_none());
        let chunks: Vec<_> = part.chunks_exact(6).map(|chunk| (chunk.len(), chunk.load_u8(0).unwrap())).collect();
        assert_eq!(chunks, [(6, 202), (6, 208), (6, 214)]);
        assert_eq!((part.chunks_exact(6).len(), part.chunks_exact(0).len()), (3, 0));
        let mut values = [[0; 2]; 3];
        part.strided(0, 9, &mut values).unwrap();
        assert_eq!(values, [[202, 203], [211, 212], [220, 221]]);
        assert!(part.strided(1, 9, &mut values).is_none() && part.strided(0, usize::MAX, &mut values).is_none());
        assert!(part.strided(99, 9, &mut [[0; 2]; 0]).is_some());
    }
}
