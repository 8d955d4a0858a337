//! Transmit buffers of a worker, registered once (to-copy §3 TC-M03).

use std::sync::Arc;

use overside_memory::{Buffer, Pool, Segment, View};
use overside_verbs::{Access, Memory, MemoryRegion, VerbsError};

use super::Shared;

/// Large buffers for packed answers, small ones for the headers of answers that are gathered.
#[derive(Debug)]
pub(crate) struct Transmit {
    large: Pool,
    small: Pool,
    regions: Vec<MemoryRegion>,
}

impl Transmit {
    /// # Errors
    /// When the memory is not there or the provider has no room for three more regions.
    pub(crate) fn new(shared: &Shared, received: &Arc<Segment>) -> Result<Self, VerbsError> {
        let large = Pool::new(Segment::shared(LARGE_BYTES * LARGE_COUNT)?, LARGE_BYTES)?;
        let small = Pool::new(Segment::shared(SMALL_BYTES * SMALL_COUNT)?, SMALL_BYTES)?;
        let mut regions = Vec::new();
        for segment in [large.segment(), small.segment(), received] {
            let memory = Memory::Segment(segment.clone());
            regions.push(shared.provider.register(&shared.domain, &memory, Access::LOCAL)?);
        }
        Ok(Self { large, small, regions })
    }

    /// The smallest free buffer of at least `len` bytes; none when all are in flight or none is so large.
    pub(crate) fn take(&self, len: usize) -> Option<Buffer> {
        if len <= SMALL_BYTES {
            return self.small.take().or_else(|| self.large.take());
        }
        (len <= LARGE_BYTES).then(|| self.large.take()).flatten()
    }

    /// The first `len` bytes of a taken buffer, which comes back when they are sent.
    pub(crate) fn view(&self, buffer: Buffer, len: usize) -> View {
        self.pool_of(&buffer).view(buffer, len)
    }

    /// Gives an unused buffer back.
    pub(crate) fn put(&self, buffer: Buffer) {
        self.pool_of(&buffer).put(buffer);
    }

    /// `bytes` in a transmit buffer, or on the heap when none is free or it is longer than any.
    pub(crate) fn packed(&self, bytes: Vec<u8>) -> View {
        match self.take(bytes.len()) {
            Some(mut buffer) => {
                buffer[..bytes.len()].copy_from_slice(&bytes);
                self.view(buffer, bytes.len())
            }
            None => View::foreign(std::sync::Arc::new(bytes)),
        }
    }

    /// Ends the registrations; what is in flight still completes.
    pub(crate) fn close(&mut self, shared: &Shared) {
        for region in self.regions.drain(..) {
            let _ = shared.provider.deregister(region);
        }
    }

    fn pool_of(&self, buffer: &Buffer) -> &Pool {
        if buffer.segment_id() == self.small.segment().id() { &self.small } else { &self.large }
    }
}

/// A packed answer: at least a page's rows and their header. No power of two, so that the buffers do not fall into the
/// same sets of a cache.
pub(crate) const LARGE_BYTES: usize = 36 << 10;
const LARGE_COUNT: usize = 32;
/// Header, run table and delta table of a page with a long chain.
const SMALL_BYTES: usize = 2 << 10;
/// For some clients that scan at once, each of which has a window of them in flight.
const SMALL_COUNT: usize = 1024;
