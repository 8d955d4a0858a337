//! Memory of a cache's blocks.

use std::collections::VecDeque;

use overside_memory::{Buffer, Bytes, Segment};

/// Buffers of one block each. A block that has left the cache gives its memory back once nobody reads
/// it any more.
#[derive(Debug)]
pub(super) struct Pool {
    block_bytes: usize,
    free: Vec<Buffer>,
    /// Left the cache while somebody still read them.
    shared: VecDeque<Bytes>,
}

/// Blocks whose memory is made together.
const TOGETHER: usize = 128;
/// Blocks that wait to be used again.
const FREE_MAX: usize = 2 * TOGETHER;
/// Blocks of `shared` that are looked at when one is wanted.
const LOOKED_AT: usize = 4;

impl Pool {
    pub(super) fn new(block_bytes: usize) -> Pool {
        Pool { block_bytes, free: Vec::new(), shared: VecDeque::new() }
    }

    /// Memory for a block; none where the system has none.
    pub(super) fn take(&mut self) -> Option<Buffer> {
        for _ in 0..LOOKED_AT.min(self.shared.len()) {
            let Some(bytes) = self.shared.pop_front() else { break };
            self.give(bytes);
        }
        if self.free.is_empty() {
            let segment = Segment::private(self.block_bytes * TOGETHER).ok()?;
            self.free = segment.carve(self.block_bytes);
        }
        self.free.pop()
    }

    /// A block has left the cache.
    pub(super) fn give(&mut self, bytes: Bytes) {
        match bytes.into_buffer() {
            // What a writer brought along is not of this pool.
            Ok(buffer) if buffer.len() == self.block_bytes && self.free.len() < FREE_MAX => self.free.push(buffer),
            Ok(_) => {}
            Err(shared) => self.shared.push_back(shared),
        }
    }

    /// A buffer that was not used.
    pub(super) fn give_buffer(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }
}
