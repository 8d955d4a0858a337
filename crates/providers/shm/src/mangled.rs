//! Valid bytes with a few changes, through each parser of what a peer says: frames on the socket,
//! greetings, rings. (tests/hostile.rs does whole connections; this looks at each parser alone, and
//! knows what it must answer.)

use std::os::fd::{AsFd, OwnedFd};

use overside_memory::Segment;
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::consumer::{Consumer, Message as Taken};
use crate::control::{OwnControl, PeerControl};
use crate::doorbell::{OwnRing, PeerRing};
use crate::handshake::{Heard, heard};
use crate::mappings::Limits;
use crate::messages::{BYTES_MAX, FORGET_MAX, Message, VERSION};
use crate::peer_memory::PeerMemory;
use crate::producer::Producer;
use crate::ring::{Descriptor, Geometry, INLINE_MAX, Sge, Task};
use crate::socket;

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        Just(Message::Hello),
        (0usize..5000, 0usize..40_000).prop_map(|(depth, sges)| Message::Attach(Geometry::for_options(depth, sges))),
        (any::<u32>(), any::<u64>()).prop_map(|(id, len)| Message::Segment { id, len }),
        (any::<u128>(), any::<u8>(), any::<bool>(), any::<u64>())
            .prop_map(|(rkey, access, window, len)| Message::Grant { rkey, access, window, len }),
        any::<u128>().prop_map(|rkey| Message::Revoke { rkey }),
        prop::collection::vec(any::<u32>(), 0..=FORGET_MAX).prop_map(Message::Forget),
        Just(Message::Doorbell),
        Just(Message::Bye),
    ]
}

fn frame(message: &Message) -> Vec<u8> {
    let mut bytes = [0; BYTES_MAX];
    let len = message.encode(&mut bytes);
    bytes[..len].to_vec()
}

/// Bytes to change, and a length to cut or fill up to.
fn mangling() -> impl Strategy<Value = (Vec<(usize, u8)>, Option<usize>)> {
    (prop::collection::vec((0..BYTES_MAX, any::<u8>()), 0..4), prop::option::of(1..BYTES_MAX + 16))
}

fn mangle(mut bytes: Vec<u8>, (changes, len): (Vec<(usize, u8)>, Option<usize>)) -> Vec<u8> {
    for (at, value) in changes {
        let at = at % bytes.len();
        bytes[at] = value;
    }
    bytes.resize(len.unwrap_or(bytes.len()), 0);
    bytes
}

/// What one message of a ring is before it is mangled.
#[derive(Clone, Debug)]
enum Sent {
    Gather(Vec<Sge>),
    /// Of at least one piece.
    Lend(Vec<Sge>),
    Inline(Vec<u8>),
}

fn sge() -> impl Strategy<Value = Sge> {
    let segment = prop_oneof![4 => Just(SEGMENTS[0]), 4 => Just(SEGMENTS[1]), 1 => any::<u32>()];
    let len = prop_oneof![20 => 0u32..200, 1 => any::<u32>()];
    let end = DATA_BYTES as u64;
    let offset = prop_oneof![20 => 0..end - 200, 2 => end - 200..end + 200, 1 => any::<u64>()];
    (segment, len, offset).prop_map(|(segment, len, offset)| Sge { segment, len, offset })
}

fn sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        3 => prop::collection::vec(sge(), 0..9).prop_map(Sent::Gather),
        3 => prop::collection::vec(sge(), 1..9).prop_map(Sent::Lend),
        1 => prop::collection::vec(any::<u8>(), 0..=INLINE_MAX).prop_map(Sent::Inline),
    ]
}

/// A ring with both of its sides, and the segments its descriptors may name.
struct Ring {
    own: OwnControl,
    producer: Producer,
    peer: PeerControl,
    memory: PeerMemory,
    data: Vec<Vec<u8>>,
}

impl Ring {
    fn new() -> Self {
        let geometry = Geometry::for_options(0, 0);
        let own = OwnControl::new(geometry).unwrap();
        let peer = PeerControl::map(descriptor_of(own.segment()), geometry).unwrap();
        let mut memory = PeerMemory::new(Limits { segments: 4, bytes: 1 << 20, chosen: false });
        let data = SEGMENTS.map(|id| {
            let mut buffer = Segment::shared(DATA_BYTES).unwrap().carve(DATA_BYTES).pop().unwrap();
            buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i as u32 * 7 + id) as u8);
            memory.add(id, DATA_BYTES as u64, descriptor_of(buffer.segment())).unwrap();
            buffer.to_vec()
        });
        Self { own, producer: Producer::new(geometry), peer, memory, data: data.to_vec() }
    }

    fn send(&mut self, sent: &Sent) {
        match sent {
            Sent::Gather(sges) | Sent::Lend(sges) => {
                let len = sges.iter().map(|sge| u64::from(sge.len)).sum();
                let lends = matches!(sent, Sent::Lend(_));
                let task = if lends { Task::Lend(sges.len()) } else { Task::Gather(sges.len()) };
                let descriptor = Descriptor { task, immediate: None, len, report: false };
                self.producer.gather(&self.own, descriptor, sges);
            }
            Sent::Inline(bytes) => {
                let descriptor =
                    Descriptor { task: Task::Inline, immediate: Some(3), len: bytes.len() as u64, report: true };
                self.producer.inline(&self.own, descriptor, bytes);
            }
        }
    }

    /// The bytes that must arrive; none where the message names what is not there.
    fn arrives(&self, sent: &Sent) -> Option<Vec<u8>> {
        let sges = match sent {
            Sent::Gather(sges) | Sent::Lend(sges) => sges,
            Sent::Inline(bytes) => return Some(bytes.clone()),
        };
        let mut bytes = Vec::new();
        for sge in sges {
            let data = &self.data[SEGMENTS.iter().position(|id| *id == sge.segment)?];
            bytes.extend_from_slice(data.get(sge.offset.try_into().ok()?..)?.get(..sge.len as usize)?);
        }
        Some(bytes)
    }

    /// Takes the next message as a receive of [`ROOM`] bytes does: its bytes, or none if it is
    /// refused.
    fn take(&mut self, consumer: &mut Consumer) -> Option<Vec<u8>> {
        let message = consumer.peek(&self.peer).ok()?;
        let len = message.descriptor.len as usize;
        if message.descriptor.task != Task::Written && message.descriptor.len > ROOM as u64 {
            return None;
        }
        if let Task::Lend(_) = message.descriptor.task {
            return self.borrow(consumer, &message);
        }
        consumer.prefetch(&message, &self.peer, &mut self.memory);
        let mut out = vec![CANARY; ROOM + 64];
        // SAFETY: [shm-posted] ROOM bytes are there, and the message is not longer.
        let copied = unsafe { consumer.copy(&message, &self.peer, &mut self.memory, out.as_mut_ptr(), ROOM) };
        let end = if message.descriptor.task == Task::Written { 0 } else { len };
        assert!(out[end..].iter().all(|byte| *byte == CANARY), "bytes past the message's end");
        copied.ok()?;
        consumer.advance(&message.descriptor);
        out.truncate(end);
        Some(out)
    }
}

impl Ring {
    /// Takes a message as a loan: the bytes that its ranges show, which are as many as it says.
    fn borrow(&mut self, consumer: &mut Consumer, message: &Taken) -> Option<Vec<u8>> {
        let pieces = consumer.pieces(message, &self.peer, &mut self.memory).ok()?;
        let mut out = Vec::new();
        for piece in &pieces {
            let at = out.len();
            out.resize(at + piece.len(), 0);
            piece.read(0, &mut out[at..]).unwrap();
        }
        assert_eq!(out.len() as u64, message.descriptor.len);
        consumer.advance(&message.descriptor);
        Some(out)
    }
}

fn descriptor_of(segment: &Segment) -> OwnedFd {
    segment.fd().unwrap().try_clone_to_owned().unwrap()
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Two byte strings never mean the same.
    #[test]
    fn a_mangled_frame_is_refused_or_is_another_frame(message in message(), mangling in mangling()) {
        let bytes = mangle(frame(&message), mangling);
        if let Some(message) = Message::decode(&bytes) {
            prop_assert_eq!(frame(&message), bytes);
        }
    }

    #[test]
    fn only_a_greeting_is_a_greeting(
        message in prop_oneof![Just(Message::Hello), message()], mangling in mangling(), untouched in any::<bool>(),
        pass in any::<bool>(),
    ) {
        let bytes = if untouched { frame(&message) } else { mangle(frame(&message), mangling) };
        let (a, b) = sockets();
        socket::send(&a, &bytes, pass.then(|| b.as_fd())).unwrap();
        let greeting = frame(&Message::Hello);
        match heard(&b) {
            Heard::Greeting => prop_assert!(bytes == greeting && !pass),
            Heard::Nothing => prop_assert!(false, "it was sent"),
            Heard::Wrong(reason) => {
                prop_assert!(bytes != greeting || pass);
                let version = bytes.get(9..13).map(|v| u32::from_le_bytes(std::array::from_fn(|i| v[i])));
                if bytes.len() <= BYTES_MAX && bytes.starts_with(&greeting[..9]) && version.is_some_and(|v| v != VERSION) {
                    prop_assert!(reason.contains(&format!("version {} of", version.unwrap())), "{}", reason);
                }
            }
        }
        prop_assert!(matches!(heard(&b), Heard::Nothing));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Up to the first change, what was sent arrives; from there on nothing is written where it
    /// must not be.
    #[test]
    fn a_mangled_ring_is_refused_or_copied_within_bounds(
        list in prop::collection::vec(sent(), 1..8),
        change in prop::option::of((any::<prop::sample::Index>(), 0usize..8, prop_oneof![0u32..12, 0u32..64])),
    ) {
        let mut ring = Ring::new();
        list.iter().for_each(|sent| ring.send(sent));
        let mut sound = list.len();
        if let Some((index, word, bit)) = change {
            sound = index.index(list.len());
            let mut words = ring.peer.descriptor(sound as u64);
            words[word] ^= 1 << bit;
            ring.own.put_descriptor(sound as u64, &words);
        }
        let Ring { producer, own, .. } = &mut ring;
        producer.publish(own);
        if let Some((_, 1, bit @ 32..)) = change {
            // A stamp of another lap: it is not there, or it was and is no longer.
            let mut words = ring.peer.descriptor(sound as u64);
            words[1] ^= 1 << bit;
            ring.own.put_descriptor(sound as u64, &words);
        }
        let mut consumer = Consumer::new(Geometry::for_options(0, 0));
        let mut turn = 0;
        while turn < list.len() && consumer.look(&ring.peer) {
            let taken = ring.take(&mut consumer);
            if turn < sound {
                let fits = ring.arrives(&list[turn]).filter(|bytes| bytes.len() <= ROOM);
                prop_assert_eq!(&taken, &fits);
            }
            if taken.is_none() {
                break;
            }
            turn += 1;
        }
        prop_assert_eq!(consumer.next(), turn as u64);
    }
}

const SEGMENTS: [u32; 2] = [7, 9];
const DATA_BYTES: usize = 4096;
/// Bytes of each receive.
const ROOM: usize = 1024;
const CANARY: u8 = 0xa5;
