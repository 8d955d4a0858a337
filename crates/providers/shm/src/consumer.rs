//! Reading the peer's ring: nothing in it is believed before it is copied out and checked.

use overside_memory::ForeignRange;
use overside_memory::kernels::{AHEAD_BYTES, LINES_AHEAD, RANGES_AHEAD, lines_of};
use smallvec::SmallVec;

use crate::doorbell::PeerRing;
use crate::fate::Fate;
use crate::peer_memory::PeerMemory;
use crate::ring::{
    DESCRIPTOR_BYTES, Descriptor, Geometry, INLINE_INSIDE, RegionWords, SGES_INSIDE, Sge, Task, stamp_of,
};

/// Where the next message is.
#[derive(Debug)]
pub(crate) struct Consumer {
    geometry: Geometry,
    /// Descriptors consumed, ever.
    next: u64,
    /// What the second word of the next descriptor carries above its length once it is there.
    stamp: u64,
    /// Cells consumed, ever.
    cells: u64,
    /// The descriptor at `next`, when it was read already.
    ahead: Option<(u64, [u64; WORDS])>,
    /// The last descriptor whose bytes were asked for ahead.
    fetched: u64,
}

/// A message in the peer's ring, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) descriptor: Descriptor,
    words: [u64; WORDS],
}

impl Consumer {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { geometry, next: 0, stamp: geometry.stamp(0), cells: 0, ahead: None, fetched: u64::MAX }
    }

    /// Descriptors consumed, ever.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The descriptor that comes next, and its stamp.
    pub(crate) fn due(&self) -> (u64, u64) {
        (self.next, self.stamp)
    }

    /// Cells consumed, ever.
    #[inline]
    pub(crate) fn cells(&self) -> u64 {
        self.cells
    }

    /// Whether there is a message.
    #[inline]
    pub(crate) fn look(&self, peer: &impl PeerRing) -> bool {
        if peer.shows(self.next, self.stamp) {
            return true;
        }
        // A message of middling size has its bytes here, and they are written before its stamp.
        peer.prefetch_cell(self.cells);
        false
    }

    /// The first words of the next message, if there is one.
    #[inline]
    pub(crate) fn head(&self, peer: &impl PeerRing) -> Option<[u64; 2]> {
        peer.head(self.next, self.stamp)
    }

    /// Copies the bytes that ride along with the next message.
    #[inline]
    pub(crate) fn copy_riding(&self, peer: &impl PeerRing, out: &mut [u8]) {
        if out.len() <= INLINE_INSIDE {
            peer.inside(self.next, out);
        } else {
            peer.bytes(self.cells, out);
        }
    }

    /// The next message; there is one.
    #[inline]
    pub(crate) fn peek(&mut self, peer: &impl PeerRing) -> Result<Message, Fate> {
        let words = match self.ahead {
            Some((index, words)) if index == self.next => words,
            _ => peer.descriptor(self.next),
        };
        if stamp_of(words[1]) != self.stamp {
            return Err(Fate::Malformed("a descriptor changed after it was published"));
        }
        let descriptor =
            Descriptor::from_words([words[0], words[1]]).ok_or(Fate::Malformed("a descriptor is garbage"))?;
        Ok(Message { descriptor, words })
    }

    /// Reads the descriptor after the next one and asks the processor for the start of its bytes,
    /// while the next one is copied; for the next one's own, if nobody could before.
    #[inline]
    pub(crate) fn prefetch(&mut self, message: &Message, peer: &impl PeerRing, memory: &mut PeerMemory) {
        if self.fetched != self.next {
            prefetch_message(&message.words, memory);
        }
        let index = self.next + 1;
        if !peer.shows(index, self.geometry.stamp(index)) {
            return;
        }
        let words = peer.descriptor(index);
        self.ahead = Some((index, words));
        self.fetched = index;
        peer.prefetch_descriptor(index + 1);
        prefetch_message(&words, memory);
    }

    /// Copies the message to `to`.
    ///
    /// # Safety
    /// `room` bytes at `to` are ours to write, and the descriptor's length is at most that.
    #[inline]
    pub(crate) unsafe fn copy(
        &self,
        message: &Message,
        peer: &impl PeerRing,
        memory: &mut PeerMemory,
        to: *mut u8,
        room: usize,
    ) -> Result<(), Trouble> {
        match message.descriptor.task {
            // Neither has bytes of its own.
            Task::Written | Task::Region => Ok(()),
            Task::Inline => {
                let len = message.descriptor.len as usize;
                debug_assert!(len <= room);
                // SAFETY: [shm-posted] len <= room, the caller's promise.
                let out = unsafe { std::slice::from_raw_parts_mut(to, len.min(room)) };
                self.copy_riding(peer, out);
                Ok(())
            }
            Task::Gather(count) | Task::Lend(count) => {
                let (mut done, mut asked, mut lines) = (0usize, 0, 0usize);
                for i in 0..count {
                    let sge = if count <= SGES_INSIDE {
                        Sge::from_words([message.words[2 + i * 2], message.words[3 + i * 2]])
                    } else {
                        while asked < count.min(i + RANGES_AHEAD) && (asked <= i || lines <= LINES_AHEAD) {
                            lines += self.prefetch_fragment(peer, memory, asked);
                            asked += 1;
                        }
                        Sge::from_words(peer.cell(self.cells + i as u64))
                    };
                    let len = sge.len as usize;
                    // The peer may have changed it since.
                    lines = lines.saturating_sub(lines_of(len));
                    if len > message.descriptor.len as usize - done || len > room - done {
                        return Err(LONGER);
                    }
                    let then = if len >= AHEAD_BYTES { self.after(message, i, memory) } else { std::ptr::null() };
                    let source = memory.find(sge.segment).ok_or(Trouble::Unknown)?;
                    // SAFETY: [shm-posted] done + len <= room.
                    let out = unsafe { std::slice::from_raw_parts_mut(to.add(done), len) };
                    source.read_ahead(sge.offset, out, then).map_err(|_| OUTSIDE)?;
                    done += len;
                }
                if done as u64 == message.descriptor.len { Ok(()) } else { Err(SHORTER) }
            }
        }
    }

    /// The message's pieces where they lie, if it offers them. Each of its words is read once.
    pub(crate) fn pieces(
        &self,
        message: &Message,
        peer: &impl PeerRing,
        memory: &mut PeerMemory,
    ) -> Result<SmallVec<[ForeignRange; 2]>, Trouble> {
        let Task::Lend(count) = message.descriptor.task else { return Ok(SmallVec::new()) };
        let (mut pieces, mut left) = (SmallVec::new(), message.descriptor.len);
        for i in 0..count {
            let sge = if count <= SGES_INSIDE {
                Sge::from_words([message.words[2 + i * 2], message.words[3 + i * 2]])
            } else {
                Sge::from_words(peer.cell(self.cells + i as u64))
            };
            left = left.checked_sub(u64::from(sge.len)).ok_or(LONGER)?;
            let source = memory.find(sge.segment).ok_or(Trouble::Unknown)?;
            pieces.push(source.range(sge.offset, sge.len as usize).map_err(|_| OUTSIDE)?);
        }
        if left == 0 { Ok(pieces) } else { Err(SHORTER) }
    }

    /// The next long fragment behind number `i` of the message, or of the message that follows;
    /// null when none is known.
    #[inline]
    fn after(&self, message: &Message, i: usize, memory: &mut PeerMemory) -> *const u8 {
        let next = self.ahead.as_ref().filter(|(index, _)| *index == self.next + 1).map(|(_, words)| inside(words));
        let long = inside(&message.words)
            .skip(i + 1)
            .chain(next.into_iter().flatten())
            .find(|sge| sge.len as usize >= AHEAD_BYTES);
        let place = long.and_then(|sge| Some(memory.find(sge.segment)?.place(sge.offset, AHEAD_BYTES)));
        place.unwrap_or(std::ptr::null())
    }

    /// The bytes of a long list's fragments lie anywhere: asks for those of number `i` ahead; how
    /// many lines that are.
    #[inline]
    fn prefetch_fragment(&self, peer: &impl PeerRing, memory: &mut PeerMemory, i: usize) -> usize {
        let sge = Sge::from_words(peer.cell(self.cells + i as u64));
        if let Some(source) = memory.find(sge.segment) {
            source.prefetch_range(sge.offset, sge.len as usize);
        }
        lines_of(sge.len as usize)
    }

    /// The region that the message is.
    pub(crate) fn region(message: &Message) -> Option<RegionWords> {
        let [_, _, rest @ ..] = message.words;
        RegionWords::from_words(rest)
    }

    /// The next message is done with.
    #[inline]
    pub(crate) fn advance(&mut self, descriptor: &Descriptor) {
        self.next += 1;
        self.stamp = self.geometry.stamp(self.next);
        self.cells += descriptor.cells() as u64;
    }
}

/// The gather list of a message, if it lies in its descriptor.
#[inline]
fn inside(words: &[u64; WORDS]) -> impl Iterator<Item = Sge> {
    let count = match Descriptor::from_words([words[0], words[1]]) {
        Some(Descriptor { task: Task::Gather(count) | Task::Lend(count), .. }) if count <= SGES_INSIDE => count,
        _ => 0,
    };
    words[2..].as_chunks::<2>().0.iter().take(count).map(|sge| Sge::from_words(*sge))
}

/// Asks for the first bytes of a message whose gather list lies in its descriptor: its copy asks
/// for the others.
#[inline]
fn prefetch_message(words: &[u64; WORDS], memory: &mut PeerMemory) {
    for sge in inside(words) {
        let Some(source) = memory.find(sge.segment).filter(|_| sge.len > 0) else { continue };
        source.prefetch(sge.offset);
        source.prefetch(sge.offset.saturating_add(LINE_BYTES));
    }
}

/// Why a message could not be copied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// It names a segment that was not passed, as far as we have listened.
    Unknown,
    Malformed(&'static str),
}

impl From<Trouble> for Fate {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Malformed(what) => Fate::Malformed(what),
            Trouble::Unknown => Fate::Malformed("a descriptor names a segment that was not passed"),
        }
    }
}

const LONGER: Trouble = Trouble::Malformed("a message's fragments are longer than the message");
const SHORTER: Trouble = Trouble::Malformed("a message's fragments are shorter than the message");
const OUTSIDE: Trouble = Trouble::Malformed("a fragment lies outside of its segment");
const LINE_BYTES: u64 = 64;
const WORDS: usize = DESCRIPTOR_BYTES / 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doorbell::model::{GEOMETRY, Model};
    use crate::doorbell::{OwnWords, PeerWords};
    use crate::mappings::Limits;
    use crate::producer::Producer;
    use crate::ring::Word;
    use loom::sync::Arc;

    /// The second and third fill the ring's cells, so the third waits for the second; with two
    /// descriptors it also goes around the ring.
    const LENGTHS: [usize; 3] = [9, 56, 56];

    fn message(number: usize) -> Vec<u8> {
        (0..LENGTHS[number]).map(|at| (number * 100 + at + 1) as u8).collect()
    }

    fn descriptor(number: usize) -> Descriptor {
        Descriptor { task: Task::Inline, immediate: Some(number as u32), len: LENGTHS[number] as u64, report: false }
    }

    fn send_all(own: &Model, peer: &Model) {
        let mut producer = Producer::new(GEOMETRY);
        let mut freed = 0;
        for number in 0..LENGTHS.len() {
            while !producer.room(descriptor(number).cells()) {
                let done =
                    producer.observe(peer.load(Word::Consumed)).expect("it is never ahead of what was published");
                (freed..freed + done as usize).for_each(|old| producer.free_cells(descriptor(old).cells() as u32));
                freed += done as usize;
                loom::thread::yield_now();
            }
            if number == 1 {
                producer.inline(own, descriptor(number), &message(number));
                producer.publish(own);
            } else {
                producer.inline_now(own, descriptor(number), &message(number));
            }
        }
    }

    fn receive_all(own: &Model, peer: &Model) {
        let mut consumer = Consumer::new(GEOMETRY);
        let mut memory = PeerMemory::new(Limits { segments: 0, bytes: 0, chosen: false });
        for number in 0..LENGTHS.len() {
            while !consumer.look(peer) {
                loom::thread::yield_now();
            }
            let mut out = [0; 64];
            if number == 1 {
                let next = consumer.peek(peer).expect("it is published whole");
                assert_eq!(next.descriptor, descriptor(number), "messages come whole and in order");
                // SAFETY: [test] 64 bytes are there, and no message is longer.
                unsafe { consumer.copy(&next, peer, &mut memory, out.as_mut_ptr(), 64) }.expect("they are there");
            } else {
                let next = consumer.head(peer).and_then(Descriptor::inline_from_words).expect("it is published whole");
                assert_eq!(next, descriptor(number), "messages come whole and in order");
                consumer.copy_riding(peer, &mut out[..LENGTHS[number]]);
            }
            assert_eq!(out[..LENGTHS[number]], message(number));
            consumer.advance(&descriptor(number));
            own.store(Word::Consumed, consumer.next());
        }
    }

    fn both(hasty: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let (sender, receiver) = (Arc::new(Model::new(hasty)), Arc::new(Model::default()));
            let (own, peer) = (sender.clone(), receiver.clone());
            let sending = loom::thread::spawn(move || send_all(&own, &peer));
            receive_all(&receiver, &sender);
            sending.join().unwrap();
        });
    }

    /// Sender and receiver of the shipped ring, under a memory model in which stores are late.
    #[test]
    fn messages_come_whole_in_order_and_their_places_are_used_again() {
        both(false);
    }

    /// Planted: a stamp that vouches for words which may not be visible yet.
    #[test]
    #[should_panic(expected = "it is published whole")]
    fn a_stamp_without_release_is_found() {
        both(true);
    }
}
