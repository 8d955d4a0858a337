//! Memory for blocks on their way between clients and devices.
//!
//! A block lies on pages, behind room for a header: it goes to the disk and into a SEND as it lies.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use overside_memory::{Buffer, Bytes, Pool, Segment, View};
use overside_service::{Listening, Message};
use overside_verbs::{Access, Memory, VerbsError};
use overside_volume::wire::HEADER;

/// Registered buffers, each with room for one request's bytes.
#[derive(Debug)]
pub(super) struct Blocks {
    pool: Pool,
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
        for listening in listening {
            let memory = Memory::Segment(pool.segment().clone());
            // For as long as the node is served: the region ends with the provider.
            listening.provider().register(listening.domain(), &memory, Access::LOCAL)?;
        }
        Ok(Blocks { pool, room })
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

    /// The request's bytes have come back.
    pub(super) fn put(&self, block: Block, bytes: Buffer) {
        if let Some(Ok(whole)) = block.head.map(|head| head.join(bytes)) {
            self.pool.put(whole);
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
