//! Memory for blocks on their way between clients and devices.
//!
//! A block lies on pages, behind room for a header: it goes to the disk and into a SEND as it lies.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use overside_memory::{Buffer, Bytes, Pool, Segment, View};
use overside_service::{Listening, Message};
use overside_verbs::{Access, Memory, VerbsError};
use overside_volume::wire::HEADER;

use super::lock;

/// Registered buffers, each with room for one request's bytes.
#[derive(Debug)]
pub(super) struct Blocks {
    pool: Pool,
    /// What WRITEs write is read into these from clients' memory. They are apart: who takes no answer keeps none of them.
    reads: Pool,
    /// Those that a device keeps although its WRITE has ended.
    late: Mutex<VecDeque<Bytes>>,
    room: usize,
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
    pub(super) fn new(room: usize, count: usize, listening: &[Listening]) -> Result<Blocks, VerbsError> {
        let room = room.next_multiple_of(PAGE);
        let length = (room + PAGE).saturating_mul(count.max(1));
        let pool = Pool::new(Segment::shared(length)?, room + PAGE)?;
        let reads = Pool::new(Segment::shared(room.saturating_mul(count.max(1)))?, room)?;
        for (listening, pool) in listening.iter().flat_map(|listening| [(listening, &pool), (listening, &reads)]) {
            let memory = Memory::Segment(pool.segment().clone());
            // For as long as the node is served: the region ends with the provider.
            listening.provider().register(listening.domain(), &memory, Access::LOCAL)?;
        }
        Ok(Blocks { pool, reads, late: Mutex::default(), room })
    }

    /// A buffer of at least `length` bytes, on pages; of the system's memory where all others are on their way.
    pub(super) fn take(&self, length: usize) -> Option<Block> {
        if length <= self.room
            && let Some(buffer) = self.pool.take()
        {
            let (head, bytes) = buffer.split_at(PAGE);
            return Some(Block { head: Some(head), bytes: Some(bytes) });
        }
        let bytes = Segment::private(length).ok()?.carve(length).pop()?;
        Some(Block { head: None, bytes: Some(bytes) })
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

    /// A header and the first `length` bytes of a block, as a message. What it lies in comes back here when it was sent.
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

/// A header and bytes that lie in a cache, as a message. They stay there until they are sent, whatever takes their place.
pub(super) fn pinned(header: [u8; HEADER], bytes: Bytes) -> Message {
    Message::new(View::foreign(Arc::new(header))).then(View::foreign(Arc::new(Pinned(bytes))))
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

    /// As a request's block of `length` bytes. Where many buffers are in use it is a copy: whatever becomes of the
    /// request, there are some to read into.
    pub(super) fn into_block(mut self, length: usize) -> Option<Block> {
        let reads = &self.blocks.reads;
        if reads.free() >= reads.capacity() / 2 {
            return Some(Block { head: None, bytes: self.buffer.take() });
        }
        let mut block = self.blocks.take(length)?;
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
/// Looks at buffers that devices keep, each time that one is taken.
const LATE_TRIES: usize = 2;
