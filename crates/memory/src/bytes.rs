//! A part of a buffer that several share and nobody writes.

use std::ops::{Deref, Range};
use std::sync::Arc;

use overside_shape::Run;

use crate::buffer::Buffer;
use crate::view::View;

/// Bytes of a buffer, shared. Nobody writes them while any share is left, so they may be sent,
/// stored and read at the same time. A clone costs a count.
#[derive(Clone, Debug)]
pub struct Bytes {
    buffer: Arc<Buffer>,
    at: usize,
    len: usize,
}

impl Bytes {
    /// The first `len` bytes of a buffer; all of it when `len` is larger.
    pub fn prefix(buffer: Buffer, len: usize) -> Self {
        let len = len.min(buffer.len());
        Self { buffer: Arc::new(buffer), at: 0, len }
    }

    /// A part of them.
    ///
    /// # Panics
    /// When it ends past them.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        Bytes { buffer: self.buffer.clone(), at: self.at + range.start, len: range.len() }
    }

    /// The buffer that they are of, whole.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// To be sent from where they lie.
    pub fn view(&self) -> View {
        let run = Run::new(self.at as u64, self.len as u64);
        View::runs(&self.buffer, [run]).expect("a part of the buffer")
    }

    /// Becomes a copy of `parts`, one behind the other, in the same buffer. False, and as before:
    /// somebody else shares any of it, or it is shorter.
    #[must_use]
    pub fn refill<P: Deref<Target = [u8]>>(&mut self, parts: &[P]) -> bool {
        let len = parts.iter().map(|part| part.len()).sum();
        let Some(mut room) = Arc::get_mut(&mut self.buffer).and_then(|buffer| buffer.get_mut(..len)) else {
            return false;
        };
        for part in parts {
            let (into, rest) = room.split_at_mut(part.len());
            into.copy_from_slice(part);
            room = rest;
        }
        (self.at, self.len) = (0, len);
        true
    }

    /// The whole buffer, if nobody else shares any of it.
    ///
    /// # Errors
    /// The same bytes, where somebody does.
    pub fn into_buffer(self) -> Result<Buffer, Bytes> {
        let Bytes { buffer, at, len } = self;
        Arc::try_unwrap(buffer).map_err(|buffer| Bytes { buffer, at, len })
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Self {
        Self::prefix(buffer, usize::MAX)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.at..self.at + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;

    #[test]
    fn parts_are_shared_and_the_last_one_gives_the_buffer_back() {
        let mut buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
        buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        let all = Bytes::prefix(buffer, 200);
        let part = all.slice(50..60).slice(3..5);
        assert_eq!((&part[..], all.len()), (&[53, 54][..], 200));
        let mut sent = [0; 4];
        assert_eq!(part.view().copy_to(&mut sent), 2);
        assert_eq!(sent, [53, 54, 0, 0]);
        let all = all.into_buffer().unwrap_err();
        drop(part);
        assert_eq!(all.into_buffer().unwrap().len(), 4096, "whole, whatever part it was");
    }

    #[test]
    fn what_nobody_shares_is_filled_again() {
        let buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
        let mut all = Bytes::prefix(buffer, 10);
        assert!(all.refill(&[&b"oth"[..], b"", b"ers"]));
        let part = all.slice(1..3);
        assert!(!all.refill(&[&b"no"[..]]) && &all[..] == b"others");
        drop(part);
        assert!(!all.refill(&[&[0; 4096][..], b"1"]) && all.refill(&[&b"no"[..]]));
        assert_eq!(&all[..], b"no");
    }

    #[test]
    #[should_panic(expected = "0..11 of 10 bytes")]
    fn no_part_ends_past_the_whole() {
        let buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
        let _ = Bytes::prefix(buffer, 10).slice(0..11);
    }
}
