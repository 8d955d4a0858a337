//! Receive buffers: from the ring to the caller and back.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use overside_memory::{Buffer, MemoryError, Segment};

use crate::envelope::CONTROL_HEADER;

/// Receive buffers that are neither posted nor held.
#[derive(Clone, Debug)]
pub(super) struct Ring(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    returned: ArrayQueue<Buffer>,
    segment: Arc<Segment>,
}

impl Ring {
    /// `count` buffers of `bytes`, in memory that no peer ever maps.
    pub(super) fn new(count: usize, bytes: usize) -> Result<Ring, MemoryError> {
        let returned = ArrayQueue::new(count.max(1));
        let buffers = Segment::private(bytes.max(64).next_multiple_of(64) * count.max(1))?.carve(bytes);
        let segment = buffers[0].segment().clone();
        for buffer in buffers {
            let _ = returned.push(buffer);
        }
        Ok(Ring(Arc::new(Shared { returned, segment })))
    }

    /// What the buffers lie in, to be registered.
    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.0.segment
    }

    /// Moves what has come back to `out`, to be posted.
    pub(super) fn collect(&self, out: &mut Vec<(u64, Buffer)>) {
        while let Some(buffer) = self.0.returned.pop() {
            out.push((0, buffer));
        }
    }

    /// A message in one of the ring's buffers.
    pub(super) fn received(&self, buffer: Buffer, len: usize) -> Received {
        Received { bytes: Bytes::Ring(Some(buffer), self.clone()), len }
    }

    fn put(&self, buffer: Buffer) {
        // The queue has room for every buffer it was made with.
        let _ = self.0.returned.push(buffer);
    }
}

/// A received message. Dropping it lets its buffer be received into again.
#[derive(Debug)]
pub struct Received {
    bytes: Bytes,
    len: usize,
}

#[derive(Debug)]
enum Bytes {
    Ring(Option<Buffer>, Ring),
    /// Came in parts.
    Heap(Vec<u8>),
}

impl Received {
    pub(super) fn assembled(bytes: Vec<u8>) -> Received {
        Received { len: bytes.len(), bytes: Bytes::Heap(bytes) }
    }

    /// Of a reply, what lies behind its header.
    pub fn body(&self) -> &[u8] {
        self.as_ref().get(CONTROL_HEADER..).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Received {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Ring(Some(buffer), _) => &buffer[..self.len],
            Bytes::Ring(None, _) => &[],
            Bytes::Heap(bytes) => bytes,
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Bytes::Ring(buffer, ring) = &mut self.bytes
            && let Some(buffer) = buffer.take()
        {
            ring.put(buffer);
        }
    }
}
