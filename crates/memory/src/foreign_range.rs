//! A part of a peer's memory, read in place.

use crate::foreign_slice::ForeignSlice;
use crate::racing::Racing;
use crate::{MemoryError, kernels};

/// Bytes of a [`Foreign`](crate::Foreign), which stay mapped as long as this does.
///
/// The peer may change them at any moment. So each value is loaded once, into memory of the
/// reader's own, and checked there; there is never a `&[u8]` over them.
#[derive(Clone, Debug)]
pub struct ForeignRange {
    mapped: Racing,
    start: *const u8,
    len: usize,
}

// SAFETY: [foreign] as the mapping: only racing copies and volatile loads reach the bytes.
unsafe impl Send for ForeignRange {}
// SAFETY: [foreign] as above.
unsafe impl Sync for ForeignRange {}

impl ForeignRange {
    pub(crate) fn new(mapped: Racing, at: u64, len: usize) -> Result<Self, MemoryError> {
        let start = mapped.checked(at, len)?.cast_const();
        Ok(Self { mapped, start, len })
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes of it from `at` on.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`].
    pub fn part(&self, at: usize, len: usize) -> Result<Self, MemoryError> {
        let start = self.checked(at, len).ok_or_else(|| self.escapes(at, len))?;
        Ok(Self { mapped: self.mapped.clone(), start, len })
    }

    /// All of it, borrowed.
    #[inline]
    pub fn slice(&self) -> ForeignSlice<'_> {
        ForeignSlice::new(self, self.start, self.len)
    }

    /// Copies `out.len()` bytes from `at` on.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`]; nothing is copied then.
    #[inline]
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<(), MemoryError> {
        self.slice().read(at, out).ok_or_else(|| self.escapes(at, out.len()))
    }

    /// The byte at `at`; none when it is outside.
    #[inline]
    pub fn load_u8(&self, at: usize) -> Option<u8> {
        self.slice().load_u8(at)
    }

    /// The two bytes from `at` on as a little-endian number, at any alignment; none when they are
    /// not all inside.
    #[inline]
    pub fn load_u16(&self, at: usize) -> Option<u16> {
        self.slice().load(at).map(u16::from_le_bytes)
    }

    /// As [`load_u16`](Self::load_u16), of four bytes.
    #[inline]
    pub fn load_u32(&self, at: usize) -> Option<u32> {
        self.slice().load(at).map(u32::from_le_bytes)
    }

    /// As [`load_u16`](Self::load_u16), of eight bytes.
    #[inline]
    pub fn load_u64(&self, at: usize) -> Option<u64> {
        self.slice().load(at).map(u64::from_le_bytes)
    }

    /// The cache lines that it lies in, to be asked for.
    pub fn lines(&self) -> Lines {
        Lines { at: self.start, left: self.len.div_ceil(LINE_BYTES) }
    }

    /// Asks the processor for the line at `at`; nothing happens for a bad offset.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        if let Some(place) = self.checked(at, 1) {
            kernels::prefetch(place);
        }
    }

    #[inline]
    fn checked(&self, at: usize, len: usize) -> Option<*const u8> {
        let inside = at <= self.len && len <= self.len - at;
        inside.then(|| self.start.wrapping_add(at))
    }

    #[cold]
    fn escapes(&self, at: usize, len: usize) -> MemoryError {
        MemoryError::Escapes { at: at as u64, len: len as u64, of: self.len as u64 }
    }
}

/// Cache lines that are read soon. They can be asked for, and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    at: *const u8,
    left: usize,
}

// SAFETY: [foreign] nothing is ever read there: asking for a line is allowed at any address.
unsafe impl Send for Lines {}
// SAFETY: [foreign] as above.
unsafe impl Sync for Lines {}

impl Default for Lines {
    fn default() -> Self {
        Self { at: std::ptr::null(), left: 0 }
    }
}

impl Lines {
    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// No more than the first `count`.
    pub fn first(self, count: usize) -> Self {
        Self { left: self.left.min(count), ..self }
    }

    /// Asks the processor for the next line; whether there was one.
    #[inline(always)]
    pub fn ask(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        kernels::prefetch_far(self.at);
        self.at = self.at.wrapping_add(LINE_BYTES);
        self.left -= 1;
        true
    }
}

const LINE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use crate::{Foreign, Segment};

    #[test]
    fn loads_are_of_any_alignment_and_within_bounds() {
        let segment = Segment::shared(4096).unwrap();
        let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
        let foreign = Foreign::map(fd, 4096).unwrap();
        let mut buffer = segment.carve(4096).pop().unwrap();
        buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        let range = foreign.range(4080, 16).unwrap();
        assert_eq!((range.load_u8(15), range.load_u8(16)), (Some(0xff), None));
        assert_eq!((range.load_u16(1), range.load_u16(15)), (Some(0xf2f1), None));
        assert_eq!((range.load_u32(12), range.load_u32(13)), (Some(0xfffe_fdfc), None));
        assert_eq!((range.load_u64(8), range.load_u64(9)), (Some(0xfffe_fdfc_fbfa_f9f8), None));
        assert_eq!((range.load_u64(usize::MAX), range.load_u8(usize::MAX)), (None, None));
        let part = range.part(3, 4).unwrap();
        let mut out = [0; 4];
        part.read(0, &mut out).unwrap();
        assert_eq!((out, part.len(), part.is_empty()), ([0xf3, 0xf4, 0xf5, 0xf6], 4, false));
        assert!(part.read(1, &mut out).is_err() && part.load_u8(4).is_none(), "not what lies behind it");
        assert!(range.part(13, 4).is_err() && range.part(usize::MAX, 2).is_err());
        assert!(foreign.range(4081, 16).is_err() && foreign.range(u64::MAX, 2).is_err());
        assert!(range.part(16, 0).unwrap().is_empty());
    }
}
