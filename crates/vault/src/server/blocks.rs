//! Memory for blocks on their way between clients and devices.
//!
//! A block lies on pages, behind room for a header: it goes to the disk and into a SEND as it lies.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, OnceLock};

use overside_memory::{Buffer, Bytes, Pool, Segment, SegmentId, View};
use overside_service::{Context, Listening, Message};
use overside_verbs::{Access, Memory, MemoryRegion, ProtectionDomain, Provider, VerbsError};
use overside_volume::wire::HEADER;

use super::lock;
use crate::cache::{BlockMemory, CacheOptions, keeps};

/// Memory that a node's providers send from as it lies.
///
/// A client over shared memory can read all of a segment that it is sent from, as it can
/// those of its requests. Each volume's cache has segments of its own, so there it finds
/// blocks of its volume alone.
#[derive(Debug)]
pub(super) struct Registered {
    with: OnceLock<With>,
    /// In the order of the providers.
    regions: Mutex<BTreeMap<SegmentId, Vec<MemoryRegion>>>,
    /// Bytes of a cache's blocks that are made together.
    together: usize,
}

#[derive(Debug)]
struct With {
    providers: Vec<(Arc<dyn Provider>, ProtectionDomain)>,
    /// Parts that each of them sends in one message.
    parts_max: usize,
    /// One of them lends.
    lends: bool,
}

impl Registered {
    /// For caches of so many bytes.
    pub(super) fn new(cache_bytes: u64) -> Registered {
        let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX / 2);
        let part = (cache_bytes / SEGMENTS).next_multiple_of(HUGE_PAGE).max(HUGE_PAGE);
        Registered { with: OnceLock::new(), regions: Mutex::default(), together: part.min(cache_bytes) }
    }

    /// With which providers from now on. What was made before is copied when it is sent.
    pub(super) fn serve(&self, listening: &[Listening]) {
        let capabilities: Vec<_> = listening.iter().map(|listening| listening.provider().capabilities()).collect();
        let parts_max = capabilities.iter().map(|each| each.sge_max).min().unwrap_or(0);
        let lends = capabilities.iter().any(|each| each.lends);
        let providers = listening.iter().map(|listening| (listening.provider().clone(), listening.domain().clone()));
        let _ = self.with.set(With { providers: providers.collect(), parts_max, lends });
    }

    /// Parts that may follow a header.
    pub(super) fn parts_max(&self) -> usize {
        self.with.get().map_or(1, |with| with.parts_max.saturating_sub(1).max(1))
    }

    /// Whether all of them lie in such memory.
    fn has(&self, parts: &[Bytes]) -> bool {
        let regions = lock(&self.regions);
        parts.iter().all(|part| regions.contains_key(&part.buffer().segment_id()))
    }

    fn register(&self, segment: &Arc<Segment>) -> Result<(), VerbsError> {
        let Some(with) = self.with.get().filter(|with| !with.providers.is_empty()) else { return Ok(()) };
        let memory = Memory::Segment(segment.clone());
        let mut regions = Vec::new();
        for (provider, domain) in &with.providers {
            match provider.register(domain, &memory, Access::LOCAL) {
                Ok(region) => regions.push(region),
                Err(error) => {
                    self.deregister(regions);
                    return Err(error);
                }
            }
        }
        lock(&self.regions).insert(segment.id(), regions);
        Ok(())
    }

    fn deregister(&self, regions: Vec<MemoryRegion>) {
        let providers = self.with.get().into_iter().flat_map(|with| &with.providers);
        for ((provider, _), region) in providers.zip(regions) {
            // A provider that refuses leaves it registered, no more.
            let _ = provider.deregister(region);
        }
    }
}

impl BlockMemory for Registered {
    fn make(&self, block_bytes: usize, count_max: usize) -> Option<Vec<Buffer>> {
        // A volume's share may be less: many volumes together have no more than the cache.
        let bytes =
            self.together.max(1).next_multiple_of(block_bytes).min(block_bytes.saturating_mul(count_max.max(FEW)));
        let segment = Segment::shared(bytes).or_else(|_| Segment::private(bytes)).ok()?;
        let blocks = segment.carve(block_bytes);
        // What cannot be registered is copied when it is sent.
        let _ = self.register(blocks.first()?.segment());
        Some(blocks)
    }

    fn end(&self, segment: SegmentId) {
        let regions = lock(&self.regions).remove(&segment);
        regions.into_iter().for_each(|regions| self.deregister(regions));
    }
}

/// Registered buffers, each with room for one request's bytes.
#[derive(Debug)]
pub(super) struct Blocks {
    pool: Pool,
    /// What WRITEs write is read into these from clients' memory. They are apart: who takes no
    /// answer keeps none of them.
    reads: Pool,
    /// Those that a device keeps although its WRITE has ended.
    late: Mutex<VecDeque<Bytes>>,
    room: usize,
    /// A cache would keep what is written, and the buffer with it.
    kept: bool,
}

/// A buffer for one request's bytes.
#[derive(Debug)]
pub(super) struct Block {
    /// The page before the bytes, whose end is the header's. None in memory of its own.
    head: Option<Buffer>,
    bytes: Option<Buffer>,
}

impl Blocks {
    /// # Errors
    /// When there is no memory, or a provider does not take it.
    pub(super) fn new(
        room: usize,
        count: usize,
        registered: &Registered,
        cache: CacheOptions,
    ) -> Result<Blocks, VerbsError> {
        let room = room.next_multiple_of(PAGE);
        let length = (room + PAGE).saturating_mul(count.max(1));
        let pool = Pool::new(Segment::shared(length)?, room + PAGE)?;
        let reads = Pool::new(Segment::shared(room.saturating_mul(count.max(1)))?, room)?;
        // For as long as the node is served: the regions end with the providers.
        registered.register(pool.segment())?;
        registered.register(reads.segment())?;
        let kept = cache.bytes > 0 && keeps(cache.block_bytes, room);
        Ok(Blocks { pool, reads, late: Mutex::default(), room, kept })
    }

    /// A buffer of at least `length` bytes, on pages; of the system's memory where all
    /// others are on their way.
    pub(super) fn take(&self, length: usize) -> Option<Block> {
        if length <= self.room
            && let Some(buffer) = self.pool.take()
        {
            let (head, bytes) = buffer.split_at(PAGE);
            return Some(Block { head: Some(head), bytes: Some(bytes) });
        }
        Block::of_the_system(length)
    }

    /// The same for what comes to be written.
    pub(super) fn take_to_write(&self, length: usize) -> Option<Block> {
        if self.kept { Block::of_the_system(length) } else { self.take(length) }
    }

    /// A buffer that a client's memory can be read into, if one is free.
    pub(super) fn take_to_read(&self) -> Option<Buffer> {
        let mut late = lock(&self.late);
        for _ in 0..late.len().min(LATE_TRIES) {
            match late.pop_front().map(Bytes::into_buffer) {
                Some(Ok(buffer)) => self.reads.put(buffer),
                Some(Err(bytes)) => late.push_back(bytes),
                None => {}
            }
        }
        self.reads.take()
    }

    /// The request's bytes have come back.
    pub(super) fn put(&self, block: Block, bytes: Buffer) {
        let Some(head) = block.head else { return self.reads.put(bytes) };
        if let Ok(whole) = head.join(bytes) {
            self.pool.put(whole);
        }
    }

    /// The same of what was written. A device may keep it for longer.
    pub(super) fn put_bytes(&self, block: Block, bytes: Bytes) {
        match bytes.into_buffer() {
            Ok(buffer) => self.put(block, buffer),
            Err(bytes) if Arc::ptr_eq(bytes.buffer().segment(), self.reads.segment()) => {
                lock(&self.late).push_back(bytes);
            }
            Err(_) => {}
        }
    }

    /// A header and the first `length` bytes of a block, as a message. What it lies in comes
    /// back here when it was sent.
    pub(super) fn message(&self, block: Block, bytes: Buffer, length: usize, header: &[u8; HEADER]) -> Message {
        let foreign = |bytes: &[u8]| {
            let all = [&header[..], &bytes[..length]].concat();
            Message::new(View::foreign(Arc::new(all)))
        };
        let Some(head) = block.head else { return foreign(&bytes) };
        match head.join(bytes) {
            Ok(mut whole) => {
                whole[PAGE - HEADER..PAGE].copy_from_slice(header);
                Message::new(self.pool.part(whole, PAGE - HEADER..PAGE + length)).lendable()
            }
            Err((_, bytes)) => foreign(&bytes),
        }
    }
}

/// A header and bytes that lie in a cache, as a message. They stay there until they are sent, or
/// until a client that reads them there has done so, whatever takes their place.
pub(super) fn pinned(
    context: &Context<'_>,
    registered: &Registered,
    header: [u8; HEADER],
    parts: Vec<Bytes>,
) -> Message {
    let lends = registered.with.get().is_some_and(|with| with.lends);
    if registered.has(&parts)
        && let Some(mut taken) = context.take(HEADER)
    {
        taken[..HEADER].copy_from_slice(&header);
        let message = context.message(taken, HEADER).then(View::gathered(parts));
        return if lends { message.lendable() } else { message };
    }
    let foreign = Message::new(View::foreign(Arc::new(header)));
    parts.into_iter().fold(foreign, |message, part| message.then(View::foreign(Arc::new(Pinned(part)))))
}

#[derive(Debug)]
struct Pinned(Bytes);

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// What was read from a client's memory, or is to be. It comes back where nothing becomes of it.
#[derive(Debug)]
pub(super) struct ReadBlock {
    blocks: Arc<Blocks>,
    buffer: Option<Buffer>,
}

impl ReadBlock {
    pub(super) fn new(blocks: Arc<Blocks>, buffer: Buffer) -> ReadBlock {
        ReadBlock { blocks, buffer: Some(buffer) }
    }

    /// As a request's block of `length` bytes. Where many buffers are in use it is a copy: whatever
    /// becomes of the request, there are some to read into.
    pub(super) fn into_block(mut self, length: usize) -> Option<Block> {
        let reads = &self.blocks.reads;
        if reads.free() >= reads.capacity() / 2 {
            return Some(Block { head: None, bytes: self.buffer.take() });
        }
        let mut block = self.blocks.take_to_write(length)?;
        block.get_mut(..length)?.copy_from_slice(self.buffer.as_ref()?.get(..length)?);
        Some(block)
    }
}

impl Drop for ReadBlock {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.blocks.reads.put(buffer);
        }
    }
}

impl Block {
    fn of_the_system(length: usize) -> Option<Block> {
        let bytes = Segment::private(length).ok()?.carve(length).pop()?;
        Some(Block { head: None, bytes: Some(bytes) })
    }

    /// Its bytes, for a request that owns them until its completion.
    pub(super) fn lend(&mut self) -> Option<Buffer> {
        self.bytes.take()
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.as_deref_mut().unwrap_or_default()
    }
}

const PAGE: usize = 4096;
/// What the system backs a segment with, where it can.
const HUGE_PAGE: usize = 2 << 20;
/// Segments of all caches, about. Each takes a descriptor here, and a mapping of each client.
const SEGMENTS: usize = 256;
/// Blocks of a segment at least.
const FEW: usize = 8;
/// Looks at buffers that devices keep, each time that one is taken.
const LATE_TRIES: usize = 2;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use overside_verbs::SystemClock;
    use overside_volume::{MemoryDevice, Work, complete};

    use super::*;
    use crate::cache::Cache;

    #[test]
    fn what_a_cache_keeps_of_writes_is_none_of_the_buffers_that_come_back() {
        const BUFFERS: usize = 4;
        for block_bytes in [8 << 10, 64 << 10, 128 << 10] {
            let options = CacheOptions { block_bytes, ..CacheOptions::default() };
            let blocks = Blocks::new(128 << 10, BUFFERS, &Registered::new(0), options).unwrap();
            let mut cache = Cache::over(MemoryDevice::new(4 << 20).unwrap(), options).unwrap();
            let length = block_bytes as usize;
            for number in 0..3 * BUFFERS as u64 {
                let mut block = blocks.take_to_write(length).unwrap();
                let from = Bytes::prefix(block.lend().unwrap(), length);
                let work = Work::Write { at: number * block_bytes, from, fua: false };
                let (work, result) = complete(&mut cache, &SystemClock, work, Duration::from_secs(10));
                let (Some(Work::Write { from, .. }), Ok(())) = (work, result) else { panic!("{result:?}") };
                blocks.put_bytes(block, from);
            }
            assert_eq!(blocks.pool.free(), BUFFERS, "blocks of {block_bytes}");
        }
    }
}
