//! Transmit buffers that come back when their transmission completes.

use std::ops::Range;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use crate::buffer::Buffer;
use crate::hold::Hold;
use crate::view::{Fragment, View};
use crate::{MemoryError, Segment};

/// A fixed number of buffers of one size. Taking and returning are lock-free, from any thread.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    free: ArrayQueue<Buffer>,
    buffer_bytes: usize,
    segment: Arc<Segment>,
}

struct Lent {
    pool: Pool,
    buffer: Option<Buffer>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.put(buffer);
        }
    }
}

impl Pool {
    /// Cuts `segment` into buffers of `buffer_bytes`.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when not even one buffer fits.
    pub fn new(segment: Segment, buffer_bytes: usize) -> Result<Self, MemoryError> {
        let len = segment.len() as u64;
        let buffers = segment.carve(buffer_bytes);
        let Some(first) = buffers.first() else {
            return Err(MemoryError::Escapes { at: 0, len: buffer_bytes as u64, of: len });
        };
        let (segment, buffer_bytes) = (first.segment().clone(), first.len());
        let free = ArrayQueue::new(buffers.len());
        for buffer in buffers {
            let _ = free.push(buffer);
        }
        Ok(Self(Arc::new(Shared { free, buffer_bytes, segment })))
    }

    /// A buffer, unless all are in flight.
    pub fn take(&self) -> Option<Buffer> {
        self.0.free.pop()
    }

    /// Gives an unused buffer back. One that is not of this pool, or only a part of one, is
    /// dropped: whoever takes a buffer relies on its length and on its segment's registration.
    pub fn put(&self, buffer: Buffer) {
        if Arc::ptr_eq(buffer.segment(), &self.0.segment) && buffer.len() == self.0.buffer_bytes {
            // The queue has room for every buffer it was made with.
            let _ = self.0.free.push(buffer);
        }
    }

    /// The first `len` bytes of `buffer` as a view; its release brings the buffer back.
    pub fn view(&self, buffer: Buffer, len: usize) -> View {
        let len = len.min(buffer.len());
        self.part(buffer, 0..len)
    }

    /// A part of `buffer` as a view; its release brings the buffer back.
    ///
    /// # Panics
    /// When it ends past the buffer.
    pub fn part(&self, buffer: Buffer, range: Range<usize>) -> View {
        let bytes = &buffer[range];
        let fragments = Fragment::of(bytes.as_ptr(), bytes.len(), buffer.segment_id());
        let lent = Lent { pool: self.clone(), buffer: Some(buffer) };
        // SAFETY: [view] the hold owns the buffer until its release returns it.
        unsafe { View::pinned(fragments, Hold::from(Box::new(lent))) }
    }

    /// Buffers that are neither taken nor in flight.
    pub fn free(&self) -> usize {
        self.0.free.len()
    }

    /// All buffers.
    pub fn capacity(&self) -> usize {
        self.0.free.capacity()
    }

    /// Bytes of each buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.0.buffer_bytes
    }

    /// The segment under the buffers, to be registered once.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.0.segment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_returns_when_its_view_ends() {
        let pool = Pool::new(Segment::private(8192).unwrap(), 4096).unwrap();
        let mut buffer = pool.take().unwrap();
        buffer[0] = 5;
        let view = pool.view(buffer, 10);
        assert_eq!(view.fragments().len(), 1, "a descriptor of one entry");
        let part = pool.part(pool.take().unwrap(), 4000..4096);
        assert_eq!(part.bytes(), 96);
        drop(part);
        let _other = pool.take().unwrap();
        assert!(pool.take().is_none(), "both are out");
        std::thread::spawn(move || drop(view)).join().unwrap();
        assert_eq!(pool.take().map(|b| b[0]), Some(5));
    }

    #[test]
    fn only_whole_buffers_of_its_own_come_into_a_pool() {
        let pool = Pool::new(Segment::private(8192).unwrap(), 4096).unwrap();
        let (short, rest) = pool.take().unwrap().split_at(64);
        pool.put(short);
        drop(pool.view(rest, 1));
        let strange = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
        drop(pool.view(strange, 4096));
        assert_eq!(pool.free(), 1);
        assert!(Arc::ptr_eq(pool.take().unwrap().segment(), pool.segment()));
        assert!(matches!(Pool::new(Segment::private(64).unwrap(), usize::MAX), Err(MemoryError::Escapes { .. })));
    }
}
