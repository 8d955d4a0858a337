//! Memory of a cache's blocks.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use overside_memory::{Buffer, Bytes, Segment, SegmentId};

/// Where a cache's blocks lie.
pub trait BlockMemory: fmt::Debug + Send + Sync {
    /// Some buffers of so many bytes, `count_max` at most, all in one segment of their own; none
    /// where the system has no memory.
    fn make(&self, block_bytes: usize, count_max: usize) -> Option<Vec<Buffer>>;

    /// None of the buffers that were made in this segment is used any more.
    fn end(&self, segment: SegmentId);
}

/// Memory of this process alone.
#[derive(Debug)]
pub(super) struct Private;

/// Buffers of one block each. A block that has left the cache gives its memory back once
/// nobody reads it any more.
#[derive(Debug)]
pub(super) struct Pool {
    block_bytes: usize,
    memory: Arc<dyn BlockMemory>,
    /// How many buffers there are of each segment: here, in the cache, or with those who read them.
    made: BTreeMap<SegmentId, usize>,
    free: Vec<Buffer>,
    /// Of those, as many at most.
    free_max: usize,
    /// Left the cache while somebody still read them.
    shared: VecDeque<Bytes>,
}

/// Blocks whose memory is made together.
const TOGETHER: usize = 128;
/// Blocks of `shared` that are looked at when one is wanted.
const LOOKED_AT: usize = 4;

impl Pool {
    pub(super) fn new(block_bytes: usize, memory: Arc<dyn BlockMemory>) -> Pool {
        Pool { block_bytes, memory, made: BTreeMap::new(), free: Vec::new(), free_max: 0, shared: VecDeque::new() }
    }

    /// Whether a block lies in memory of this pool.
    pub(super) fn made(&self, bytes: &Bytes) -> bool {
        self.made.contains_key(&bytes.buffer().segment_id())
    }

    /// Memory for a block of a cache that has `count_max`; none where the system has none.
    pub(super) fn take(&mut self, count_max: usize) -> Option<Buffer> {
        for _ in 0..LOOKED_AT.min(self.shared.len()) {
            let Some(bytes) = self.shared.pop_front() else { break };
            self.give(bytes);
        }
        if self.free.is_empty() {
            self.free = self.memory.make(self.block_bytes, count_max.max(1))?;
            let segment = self.free.first()?.segment_id();
            self.made.insert(segment, self.free.len());
            self.free_max = 2 * self.free.len();
        }
        self.free.pop()
    }

    /// A block has left the cache.
    pub(super) fn give(&mut self, bytes: Bytes) {
        // What a writer brought along is not of this pool, and may be awaited elsewhere.
        if !self.made(&bytes) {
            return;
        }
        match bytes.into_buffer() {
            Ok(buffer) => self.give_buffer(buffer),
            Err(shared) => self.shared.push_back(shared),
        }
    }

    /// A buffer that nobody reads.
    pub(super) fn give_buffer(&mut self, buffer: Buffer) {
        if self.free.len() < self.free_max {
            return self.free.push(buffer);
        }
        let segment = buffer.segment_id();
        drop(buffer);
        if let Some(left) = self.made.get_mut(&segment) {
            *left -= 1;
            if *left == 0 {
                self.made.remove(&segment);
                self.memory.end(segment);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.made.keys().for_each(|segment| self.memory.end(*segment));
    }
}

impl BlockMemory for Private {
    fn make(&self, block_bytes: usize, count_max: usize) -> Option<Vec<Buffer>> {
        Some(Segment::private(block_bytes * TOGETHER.min(count_max)).ok()?.carve(block_bytes))
    }

    fn end(&self, _segment: SegmentId) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Counting(Mutex<Vec<SegmentId>>);

    impl BlockMemory for Counting {
        fn make(&self, block_bytes: usize, count_max: usize) -> Option<Vec<Buffer>> {
            Private.make(block_bytes, count_max)
        }

        fn end(&self, segment: SegmentId) {
            self.0.lock().unwrap().push(segment);
        }
    }

    #[test]
    fn a_segment_ends_when_nobody_has_a_block_of_it() {
        let memory = Arc::new(Counting::default());
        let ended = || memory.0.lock().unwrap().len();
        let mut pool = Pool::new(4096, memory.clone());
        let mut blocks: Vec<Bytes> = (0..4 * TOGETHER).map(|_| pool.take(TOGETHER).unwrap().into()).collect();
        let read = blocks[0].clone();
        blocks.drain(TOGETHER..).for_each(|block| pool.give(block));
        assert_eq!(ended(), 1, "so many wait to be used again");
        blocks.drain(..).for_each(|block| pool.give(block));
        assert_eq!(ended(), 1, "one is read");
        drop(read);
        let again = pool.take(TOGETHER).unwrap();
        assert_eq!(ended(), 2);
        drop((again, pool));
        assert_eq!(ended(), 4, "each once");
    }

    #[test]
    fn what_a_writer_brought_along_is_let_go_of() {
        let mut pool = Pool::new(4096, Arc::new(Private));
        let brought: Bytes = Segment::private(4096).unwrap().carve(4096).pop().unwrap().into();
        pool.give(brought.clone());
        assert!(brought.into_buffer().is_ok(), "it is its owner's alone again");
        assert!(pool.free.is_empty());
    }
}
