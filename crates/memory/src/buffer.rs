//! An exclusive part of a segment.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::segment::{Segment, SegmentId};

/// Bytes that this owner alone writes and no peer can: `&[u8]` and `&mut [u8]` are sound.
///
/// Posting a receive moves the buffer into the completion queue, so using it before its
/// completion does not compile:
///
/// ```compile_fail,E0382
/// # let buffer = overside_memory::Segment::private(4096).unwrap().carve(4096).pop().unwrap();
/// fn post_receive(_: overside_memory::Buffer) {}
/// post_receive(buffer);
/// let _first = buffer[0]; // moved
/// ```
#[derive(Debug)]
pub struct Buffer {
    segment: Arc<Segment>,
    at: usize,
    len: usize,
}

impl Buffer {
    /// # Safety
    /// `at..at + len` lies within `segment` and belongs to no other buffer or view.
    pub(crate) unsafe fn new(segment: Arc<Segment>, at: usize, len: usize) -> Self {
        debug_assert!(at + len <= segment.len());
        Self { segment, at, len }
    }

    /// The segment it lies in.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The name of its segment, as an SGE carries it.
    pub fn segment_id(&self) -> SegmentId {
        self.segment.id()
    }

    /// Offset of its first byte in the segment.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// First byte, for whoever takes the buffer over: a provider between post and completion.
    pub fn address(&self) -> *mut u8 {
        self.segment.base().as_ptr().wrapping_add(self.at)
    }

    /// Splits it in two at `at`.
    ///
    /// # Panics
    /// When `at` is past the end.
    pub fn split_at(self, at: usize) -> (Buffer, Buffer) {
        assert!(at <= self.len, "split at {at} of a buffer of {} bytes", self.len);
        let rest = Buffer { segment: self.segment.clone(), at: self.at + at, len: self.len - at };
        (Buffer { len: at, ..self }, rest)
    }

    /// This buffer and the one that lies directly behind it, as one again: undoes
    /// [`split_at`](Self::split_at).
    ///
    /// # Errors
    /// Both come back where `behind` lies anywhere else.
    pub fn join(self, behind: Buffer) -> Result<Buffer, (Buffer, Buffer)> {
        if !Arc::ptr_eq(&self.segment, &behind.segment) || self.at + self.len != behind.at {
            return Err((self, behind));
        }
        Ok(Buffer { len: self.len + behind.len, ..self })
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: [buffer] exclusive, in bounds, and no peer can write it.
        unsafe { std::slice::from_raw_parts(self.segment.base().as_ptr().add(self.at), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: [buffer] exclusive, in bounds, and no peer can write it.
        unsafe { std::slice::from_raw_parts_mut(self.segment.base().as_ptr().add(self.at), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_join_in_their_order_alone() {
        let mut buffers = Segment::private(8192).unwrap().carve(4096);
        let (other, whole) = (buffers.pop().unwrap(), buffers.pop().unwrap());
        let start = whole.address();
        let (first, rest) = whole.split_at(100);
        let (second, third) = rest.split_at(28);
        let Err((third, first)) = third.join(first) else { panic!("joined backwards") };
        let Err((first, third)) = first.join(third) else { panic!("joined over a gap") };
        let whole = first.join(second).unwrap().join(third).unwrap();
        assert_eq!((whole.len(), whole.address()), (4096, start));
        assert_eq!(whole.join(other).unwrap().len(), 8192, "neighbours of one segment are one memory");
        let strange = || Segment::private(4096).unwrap().carve(4096).pop().unwrap();
        assert!(strange().join(strange()).is_err());
    }
}
