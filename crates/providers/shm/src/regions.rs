//! Regions: the sender writes their description once. The receiver makes their messages from the
//! sender's memory, each byte copied once (d-rdma §3 DR-M01: as a card would that is given a region
//! instead of a gather list).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use overside_memory::MemoryError;
use overside_shape::Shape;
use overside_verbs::declared::{Framing, bundle};
use overside_verbs::port::{RawCompletion, RawReceive, RawRegion};
use overside_verbs::{Opcode, Status, VerbsError};

use crate::channel::Channel;
use crate::consumer::{Consumer, Message};
use crate::control::OwnControl;
use crate::fate::{Fate, OUT_OF_MEMORY};
use crate::local::Location;
use crate::pair::{Heard, Link, Pair};
use crate::peer_memory::PeerMemory;
use crate::ring::{DESCRIPTION_MAX, Descriptor, MESSAGE_MAX, RegionWords, Sge, Task};
use crate::send::{Progress, SendQueue, Sources, limit};

impl SendQueue {
    /// Writes a region's description where the peer can read it, and a descriptor into the ring;
    /// none for now when there is no room.
    pub(crate) fn send_region(
        &mut self,
        region: &RawRegion<'_>,
        own: &OwnControl,
        channel: &Channel,
        sources: &mut Sources<'_>,
        report: bool,
    ) -> Result<Option<Progress>, VerbsError> {
        let len = region.shape.description_bytes();
        limit("a region's description in bytes", len, DESCRIPTION_MAX)?;
        if region.shape.end() > region.len as u64 {
            return Err(MemoryError::Escapes { at: 0, len: region.shape.end(), of: region.len as u64 }.into());
        }
        if region.shape.describable(region.len as u64).is_err() {
            return Err(VerbsError::Unsupported(
                "a region of more than 4096 columns, or that goes through one bitmap more often than its memory has room for; send fewer of \
                 its columns at a time",
            ));
        }
        if region.shape.messages().count() == 0 {
            return Err(VerbsError::Unsupported("a region without messages: there is nothing to post"));
        }
        let Sources { registry, domain, segments, .. } = sources;
        let place = segments.place_of(region.segment, region.address, region.len, registry, *domain)?;
        let Location::Shared(slot, offset) = place else {
            return Err(VerbsError::Unsupported(
                "a region of memory that no peer can map; make the memory with Segment::shared",
            ));
        };
        if !self.producer.room(0) || (channel.made && !self.may_pass([place].iter())?) {
            return Ok(None);
        }
        let Some(mut room) = self.bounce.reserve(len, channel)? else { return Ok(None) };
        let mut description = Vec::with_capacity(len as usize);
        region.shape.describe(&mut description);
        let (segment, at) = self.bounce.fill(&mut room, &description);
        self.pass(slot, segments, channel);
        let bounced = room.charge;
        self.bounce.commit(room, self.producer.head());
        let words = RegionWords {
            description: Sge { segment, len: len as u32, offset: at },
            segment: region.segment.get(),
            offset,
            len: region.len as u64,
            bundle_bytes: region.bundle_bytes.min(MESSAGE_MAX) as u32,
        };
        self.producer.region(own, Descriptor { task: Task::Region, immediate: None, len, report }, words);
        Ok(Some(Progress::Ring { cells: 0, bounced }))
    }
}

/// A region of the peer's, and how far it is. Nothing here lies where the peer can write.
#[derive(Debug)]
pub(crate) struct Executing {
    shape: Shape,
    words: RegionWords,
    /// The first message that was not made.
    next: u64,
    _held: DescriptionBytes,
}

/// Bytes of descriptions that this process carries out, of all its connections.
#[derive(Debug)]
struct DescriptionBytes(u64);

impl DescriptionBytes {
    fn claim(bytes: u64) -> Result<Self, Fate> {
        let claimed = HELD.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let held = DescriptionBytes(bytes);
        if claimed > HELD_BYTES_MAX { Err(DESCRIPTIONS_ABOUND) } else { Ok(held) }
    }
}

impl Drop for DescriptionBytes {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// What one SEND of a region came to.
enum Made {
    /// Bytes, immediate data, and whether it was the last.
    Send(u64, Option<u32>, bool),
    /// It is longer than its receive.
    TooLong(u64),
}

impl Executing {
    /// Copies the description out, then checks it; none while a segment that it needs is not known.
    fn begin(message: &Message, memory: &mut PeerMemory) -> Result<Option<Self>, Fate> {
        let words = Consumer::region(message).ok_or(Fate::Malformed("a region's descriptor is garbage"))?;
        let Sge { segment, len, offset } = words.description;
        if u64::from(len) != message.descriptor.len {
            return Err(Fate::Malformed("a region's description is not as long as its descriptor says"));
        }
        let Some(of) = memory.find(words.segment) else { return Ok(None) };
        if words.offset.checked_add(words.len).is_none_or(|end| end > of.len() as u64) {
            return Err(Fate::Malformed("a region's memory lies outside of its segment"));
        }
        let Some(source) = memory.find(segment) else { return Ok(None) };
        if u64::from(len) > source.len() as u64 {
            return Err(DESCRIPTION_OUTSIDE);
        }
        let held = DescriptionBytes::claim(u64::from(len))?;
        let mut description = Vec::new();
        description.try_reserve_exact(len as usize).map_err(|_| OUT_OF_MEMORY)?;
        description.resize(len as usize, 0);
        source.read(offset, &mut description).map_err(|_| DESCRIPTION_OUTSIDE)?;
        let shape = Shape::described(&description, words.len).map_err(|_| {
            Fate::Malformed("a region's description is garbage, or costs more than its memory warrants")
        })?;
        if shape.messages().count() == 0 {
            return Err(Fate::Malformed("a region has no message"));
        }
        Ok(Some(Self { shape, words, next: 0, _held: held }))
    }

    /// Makes the next SEND in `out`.
    fn make(&mut self, memory: &mut PeerMemory, out: &mut [u8]) -> Result<Made, Fate> {
        let all = self.shape.messages();
        let slice = bundle::first(&all.slice(self.next..all.count()), u64::from(self.words.bundle_bytes));
        let framing = Framing::of(&slice);
        let head = framing.head_bytes();
        let bytes = slice.bytes().saturating_add(head as u64);
        if bytes > MESSAGE_MAX {
            return Err(Fate::Malformed("a region's message is longer than any may be"));
        }
        if bytes > out.len() as u64 {
            return Ok(Made::TooLong(bytes));
        }
        let source = memory.find(self.words.segment).ok_or(Fate::Malformed("a region's segment was taken back"))?;
        bundle::write_lengths(&slice, &mut out[..head]);
        let packed = source.pack(self.words.offset, self.words.len, &slice, &mut out[head..bytes as usize]);
        packed.map_err(|_| Fate::Malformed("a region lies outside of its segment"))?;
        self.next += slice.count();
        Ok(Made::Send(bytes, framing.immediate(), self.next == all.count()))
    }
}

impl Pair {
    /// Makes the next SEND of the region that is at the head of the peer's ring, in `receive`.
    pub(crate) fn receive_region(
        &mut self,
        message: &Message,
        receive: RawReceive,
        own: bool,
        shared: &mut VecDeque<RawReceive>,
    ) -> Result<Option<RawCompletion>, Fate> {
        if !self.takes_regions {
            return Err(Fate::Malformed("the peer sends a region, and this port takes none (PortOptions::regions)"));
        }
        let mut executing = match self.executing.take() {
            Some(executing) => executing,
            None => match self.begin_region(message)? {
                Some(executing) => executing,
                None => return Ok(None),
            },
        };
        // SAFETY: [shm-posted] the buffer is ours until its completion.
        let out = unsafe { std::slice::from_raw_parts_mut(receive.buffer.address, receive.buffer.len) };
        let (status, bytes, immediate) = match executing.make(&mut self.memory, out)? {
            Made::TooLong(bytes) => (Status::TooLong, bytes, None),
            Made::Send(bytes, immediate, last) => {
                // As with any message: only a connection that still stands vouches for the bytes.
                fence(Ordering::Acquire);
                self.check_open()?;
                // What the sender lent is lent until it hears of it.
                self.owed |= last;
                match &mut self.link {
                    Some(Link { consumer, .. }) if last => consumer.advance(&message.descriptor),
                    _ => self.executing = Some(executing),
                }
                (Status::Success, bytes, immediate)
            }
        };
        self.leave_queue(own, shared);
        let report = RawCompletion::new(receive.slot, Some(self.index), Opcode::Receive, status);
        Ok(Some(report.with(bytes, immediate)))
    }

    /// None while the socket holds more than is heard at a time.
    fn begin_region(&mut self, message: &Message) -> Result<Option<Box<Executing>>, Fate> {
        if let Some(executing) = Executing::begin(message, &mut self.memory)? {
            return Ok(Some(Box::new(executing)));
        }
        // What a descriptor names was passed before it was published: it is in the socket.
        let all = self.hear()? == Heard::All;
        match Executing::begin(message, &mut self.memory)? {
            None if all => Err(Fate::Malformed("a region names a segment that was not passed")),
            executing => Ok(executing.map(Box::new)),
        }
    }
}

static HELD: AtomicU64 = AtomicU64::new(0);
/// Room for several of the longest descriptions. What is made of one takes about as much again.
const HELD_BYTES_MAX: u64 = 8 * DESCRIPTION_MAX;
const DESCRIPTIONS_ABOUND: Fate = Fate::Exhausted(
    "the peers of this process describe more regions at once than it reads; send smaller ones, or fewer at a time",
);
const DESCRIPTION_OUTSIDE: Fate = Fate::Malformed("a region's description lies outside of its segment");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::PeerControl;
    use crate::mappings::Limits;
    use crate::producer::Producer;
    use crate::ring::Geometry;
    use overside_memory::{Buffer, Segment};
    use overside_shape::{Bitmap, Column, Order, Run};
    use proptest::prelude::*;

    /// A peer's table and its description, as we have them mapped.
    struct Peer {
        memory: PeerMemory,
        data: Buffer,
        description: Buffer,
        len: usize,
    }

    impl Peer {
        fn new(shape: &Shape) -> Self {
            let mut description = Vec::new();
            shape.describe(&mut description);
            let mut memory = PeerMemory::new(Limits { segments: 4, bytes: 1 << 20, chosen: false });
            let mut pass = |id: u32, bytes: &mut dyn FnMut(usize) -> u8| {
                let mut buffer = Segment::shared(DATA_BYTES).unwrap().carve(DATA_BYTES).pop().unwrap();
                buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = bytes(at));
                let fd = buffer.segment().fd().unwrap().try_clone_to_owned().unwrap();
                memory.add(id, DATA_BYTES as u64, fd).unwrap();
                buffer
            };
            let data = pass(1, &mut |at| (at * 7 + at / 256) as u8);
            let own = description.clone();
            let description = pass(2, &mut |at| own.get(at).copied().unwrap_or(0xAA));
            Self { memory, data, description, len: own.len() }
        }

        fn message(&self, change: impl Fn(&mut RegionWords)) -> Message {
            let geometry = Geometry::for_options(0, 0);
            let own = OwnControl::new(geometry).unwrap();
            let fd = own.segment().fd().unwrap().try_clone_to_owned().unwrap();
            let peer = PeerControl::map(fd, geometry).unwrap();
            let mut producer = Producer::new(geometry);
            let description = Sge { segment: 2, len: self.len as u32, offset: 0 };
            let mut words =
                RegionWords { description, segment: 1, offset: 0, len: DATA_BYTES as u64, bundle_bytes: 300 };
            change(&mut words);
            let descriptor = Descriptor { task: Task::Region, immediate: None, len: self.len as u64, report: true };
            producer.region(&own, descriptor, words);
            producer.publish(&own);
            Consumer::new(geometry).peek(&peer).unwrap()
        }

        /// All bytes without the lengths in front of them, made in buffers of which nothing behind
        /// a SEND may change.
        fn made(&mut self, message: &Message) -> Result<Vec<u8>, Fate> {
            let mut executing = Executing::begin(message, &mut self.memory)?.ok_or(DESCRIPTION_OUTSIDE)?;
            let mut all = Vec::new();
            for _ in 0..SENDS_MAX {
                let mut out = vec![0xEE; 1024];
                let Made::Send(bytes, immediate, last) = executing.make(&mut self.memory, &mut out)? else {
                    return Ok(all);
                };
                assert!(out[bytes as usize..].iter().all(|byte| *byte == 0xEE), "it wrote behind the SEND");
                let messages = bundle::Bundle::new(&out[..bytes as usize], immediate).expect("its framing is right");
                messages.for_each(|message| all.extend_from_slice(message));
                if last {
                    break;
                }
            }
            Ok(all)
        }
    }

    fn shapes() -> Vec<Shape> {
        let rows = Bitmap::of(300, |row| row % 3 == 1 || row % 7 == 2);
        let columns: Vec<Column> = (0..3).map(|column| Column::dense(column * 1300, 4)).collect();
        vec![
            Shape::bitmapped(&columns, &rows, Order::Rows).unwrap(),
            Shape::bitmapped(&columns, &rows, Order::Columns).unwrap(),
            Shape::strided(5, 40, 90, &[Run::new(0, 4), Run::new(9, 7)]).unwrap(),
            Shape::mapped(vec![900u64, 20, 20, 3000], &[Run::new(1, 30)]).unwrap(),
            Shape::variable(100, vec![0u64, 5, 5, 90, 600, 601], None).unwrap(),
            Shape::list(&[Run::new(9, 3), Run::new(1, 2), Run::new(4000, 96)]).unwrap(),
        ]
    }

    #[test]
    fn the_messages_are_those_of_the_region() {
        for shape in shapes() {
            let mut peer = Peer::new(&shape);
            let message = peer.message(|_| {});
            let expected: Vec<u8> =
                shape.fragments().flat_map(|run| peer.data[run.at as usize..][..run.len as usize].to_vec()).collect();
            assert_eq!(peer.made(&message).unwrap(), expected, "{shape:?}");
        }
    }

    #[test]
    fn what_leaves_its_segment_is_refused() {
        let shape = &shapes()[0];
        let lies: [&dyn Fn(&mut RegionWords); 7] = [
            &|words| words.segment = 9,
            &|words| words.description.segment = 9,
            &|words| words.description.offset = DATA_BYTES as u64 - 8,
            &|words| words.description.len += 8,
            &|words| words.offset = 8,
            &|words| words.len = shape.end() - 1,
            &|words| (words.offset, words.len) = (u64::MAX, DATA_BYTES as u64),
        ];
        for (number, lie) in lies.into_iter().enumerate() {
            let mut peer = Peer::new(shape);
            let message = peer.message(lie);
            assert!(matches!(peer.made(&message), Err(Fate::Malformed(_))), "lie {number}");
        }
        // Changed after it was read: what was begun goes on as it was described.
        let mut peer = Peer::new(shape);
        let message = peer.message(|_| {});
        let mut executing = Executing::begin(&message, &mut peer.memory).unwrap().unwrap();
        let (mut before, mut after) = ([0; 1024], [0; 1024]);
        assert!(matches!(executing.make(&mut peer.memory, &mut before), Ok(Made::Send(300, Some(12), false))));
        peer.description.fill(0xFF);
        executing.next = 0;
        assert!(matches!(executing.make(&mut peer.memory, &mut after), Ok(Made::Send(300, Some(12), false))));
        assert_eq!(before, after);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Every byte of every description, by turns: what is made stays within its segment and its
        /// buffer, or is refused.
        #[test]
        fn garbage_in_each_byte_of_a_description_is_refused_or_harmless(value in any::<u8>(), flip in any::<bool>()) {
            for shape in shapes() {
                let mut peer = Peer::new(&shape);
                let message = peer.message(|_| {});
                for at in 0..peer.len {
                    let was = peer.description[at];
                    peer.description[at] = if flip { was ^ (1 << (value % 8)) } else { value };
                    let _ = peer.made(&message);
                    peer.description[at] = was;
                }
                prop_assert!(peer.made(&message).is_ok());
            }
        }
    }

    const DATA_BYTES: usize = 8192;
    const SENDS_MAX: usize = 64;
}
