//! Memory that no peer can map is copied into memory that the peer can, and sent from there.

use std::collections::VecDeque;
use std::sync::Arc;

use overside_memory::{Buffer, Segment};
use overside_verbs::VerbsError;

use crate::channel::{Carried, Channel};
use crate::messages::Message;

/// A ring of bytes, made at the first use; larger messages get a segment of their own.
#[derive(Debug, Default)]
pub(crate) struct Bounce {
    ring: Option<Buffer>,
    used: u64,
    freed: u64,
    /// Descriptor number and segment of what was too large for the ring.
    large: VecDeque<(u64, Arc<Segment>)>,
}

/// Room for one message's hidden fragments.
#[derive(Debug)]
pub(crate) struct Room {
    buffer: Large,
    segment: u32,
    offset: u64,
    at: usize,
    /// Bytes of the ring that its completion gives back.
    pub(crate) charge: u32,
}

#[derive(Debug)]
enum Large {
    Ring,
    Own(Buffer),
}

impl Bounce {
    /// Room for `bytes`, or none for now.
    pub(crate) fn reserve(&mut self, bytes: u64, channel: &Channel) -> Result<Option<Room>, VerbsError> {
        if bytes > RING_BYTES / 2 {
            if self.large.len() >= LARGE_MAX {
                return Ok(None);
            }
            let buffer = whole(Segment::shared(bytes as usize)?);
            pass(&buffer, channel);
            let segment = buffer.segment_id().get();
            return Ok(Some(Room { buffer: Large::Own(buffer), segment, offset: 0, at: 0, charge: 0 }));
        }
        let ring = match &self.ring {
            Some(ring) => ring,
            None => {
                let buffer = whole(Segment::shared(RING_BYTES as usize)?);
                pass(&buffer, channel);
                self.ring.insert(buffer)
            }
        };
        let at = self.used % RING_BYTES;
        let skip = if at + bytes > RING_BYTES { RING_BYTES - at } else { 0 };
        let charge = (skip + bytes).next_multiple_of(64);
        if self.used - self.freed + charge > RING_BYTES {
            return Ok(None);
        }
        let offset = (self.used + skip) % RING_BYTES;
        Ok(Some(Room {
            buffer: Large::Ring,
            segment: ring.segment_id().get(),
            offset,
            at: offset as usize,
            charge: charge as u32,
        }))
    }

    /// Copies the next fragment into the room; where it lies there: segment and offset.
    pub(crate) fn fill(&mut self, room: &mut Room, bytes: &[u8]) -> (u32, u64) {
        let target = match (&mut room.buffer, &mut self.ring) {
            (Large::Own(buffer), _) => &mut buffer[room.at..room.at + bytes.len()],
            (Large::Ring, Some(ring)) => &mut ring[room.at..room.at + bytes.len()],
            (Large::Ring, None) => return (0, 0),
        };
        target.copy_from_slice(bytes);
        let place = (room.segment, room.offset);
        room.at += bytes.len();
        room.offset += bytes.len() as u64;
        place
    }

    /// The room belongs to descriptor number `index` now.
    pub(crate) fn commit(&mut self, room: Room, index: u64) {
        self.used += u64::from(room.charge);
        if let Large::Own(buffer) = room.buffer {
            self.large.push_back((index, buffer.segment().clone()));
        }
    }

    /// A completed descriptor gives its bytes of the ring back.
    #[inline]
    pub(crate) fn release(&mut self, charge: u32) {
        self.freed += u64::from(charge);
    }

    /// Ends the segments of descriptors below `consumed`.
    pub(crate) fn release_large(&mut self, consumed: u64, channel: &Channel) {
        while self.large.front().is_some_and(|(index, _)| *index < consumed) {
            if let Some((_, segment)) = self.large.pop_front() {
                channel.send(&Message::Forget(vec![segment.id().get()]), Carried::Nothing);
            }
        }
    }
}

fn whole(segment: Segment) -> Buffer {
    let len = segment.len();
    segment.carve(len).pop().expect("a segment holds one buffer of its own length")
}

fn pass(buffer: &Buffer, channel: &Channel) {
    let segment = buffer.segment();
    let message = Message::Segment { id: segment.id().get(), len: segment.len() as u64 };
    channel.send(&message, Carried::Segment(segment.clone()));
}

/// Messages under way in segments of their own: the peer maps each.
pub(crate) const LARGE_MAX: usize = 128;

/// Stays in the cache.
const RING_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_full_then_free_and_never_overlaps() {
        let (socket, _other) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let channel = Channel::new(crate::socket::Connected::new(socket), false);
        let mut bounce = Bounce::default();
        let mut live: VecDeque<(u64, u64, u32)> = VecDeque::new();
        for turn in 0..200u64 {
            let bytes = 1 + turn * 7919 % (400 << 10);
            while let Some(room) = bounce.reserve(bytes, &channel).unwrap() {
                let (start, end) = (room.offset, room.offset + bytes);
                assert!(end <= RING_BYTES);
                assert!(live.iter().all(|(s, e, _)| end <= *s || *e <= start), "overlap at turn {turn}");
                live.push_back((start, end, room.charge));
                bounce.commit(room, 0);
                if live.len() > 5 {
                    break;
                }
            }
            let (_, _, charge) = live.pop_front().expect("something fits once the ring is empty");
            bounce.release(charge);
        }
    }
}
