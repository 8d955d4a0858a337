//! The send queue: from a request to a descriptor, and from the peer's consumed index to
//! completions.

use std::collections::VecDeque;

use overside_memory::{Fragment, SegmentId};
use overside_verbs::port::{Lending, Payload, QpIndex, RawCompletion, RawRequest};
use overside_verbs::{Opcode, Status, VerbsError};

use crate::bounce::{Bounce, LARGE_MAX};
use crate::channel::{Carried, Channel};
use crate::control::OwnControl;
use crate::fate::Fate;
use crate::lending::Lent;
use crate::local::{LocalSegments, Location};
use crate::messages::{FORGET_MAX, Message};
use crate::producer::Producer;
use crate::provider::SEGMENTS_MAX;
use crate::registry::Registry;
use crate::ring::{Descriptor, INLINE_MAX, MESSAGE_MAX, SGE_MAX, Sge, Task};

/// Requests in the order of posting, and the ring they go through.
#[derive(Debug)]
pub(crate) struct SendQueue {
    entries: Entries,
    /// Entries whose end will be reported.
    reports: usize,
    /// A request found no room since the peer consumed something.
    pub(crate) refused: bool,
    /// A request found no room, and nothing was reported since.
    pub(crate) wants_room: bool,
    /// The last request that succeeded silently, while none after it was reported.
    silent: Option<Ended>,
    pub(crate) producer: Producer,
    pub(crate) bounce: Bounce,
    pub(crate) lent: Lent,
    /// Descriptors consumed whose entries are not popped yet.
    ripe: u64,
    /// Slots of the port's segment table that the peer has.
    passed: Vec<u64>,
    /// How many those are.
    passed_count: usize,
    /// Segments the peer has and need not keep, with the head after which no descriptor names them.
    forgetting: VecDeque<(u64, SegmentId)>,
}

/// A request that was accepted and has not completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    pub(crate) opcode: Opcode,
    pub(crate) signalled: bool,
    pub(crate) bytes: u64,
    pub(crate) progress: Progress,
}

/// What is reported of a request that has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    slot: u32,
    opcode: Opcode,
    bytes: u64,
}

/// How far a request is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Progress {
    /// Its descriptor is in the ring.
    Ring { cells: u32, bounced: u32 },
    /// The same, and its receiver may keep the bytes as a loan.
    Offered { cells: u32 },
    /// It has ended and waits for earlier ones.
    Done { status: Status, value: u64 },
}

/// What resolving and sending a gather list needs of the port.
pub(crate) struct Sources<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) domain: u64,
    pub(crate) segments: &'a mut LocalSegments,
    /// Scratch space, so that posting allocates nothing.
    pub(crate) places: &'a mut Vec<(Fragment, Location)>,
    pub(crate) sges: &'a mut Vec<Sge>,
}

impl SendQueue {
    pub(crate) fn new(own: &OwnControl) -> Self {
        Self {
            entries: Entries::new(own.geometry().depth()),
            reports: 0,
            refused: false,
            wants_room: false,
            silent: None,
            producer: Producer::new(own.geometry()),
            bounce: Bounce::default(),
            lent: Lent::new(),
            ripe: 0,
            passed: Vec::new(),
            passed_count: 0,
            forgetting: VecDeque::new(),
        }
    }

    /// Whether another request may be posted.
    #[inline]
    pub(crate) fn full(&self) -> bool {
        self.entries.full()
    }

    /// Takes in a request; there must be room.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) {
        self.reports += usize::from(entry.reports());
        self.entries.push(entry);
    }

    /// Writes a SEND into the ring: how far it is, or none for now when there is no room.
    ///
    /// # Safety
    /// The fragments' bytes are readable and unchanged.
    pub(crate) unsafe fn send(
        &mut self,
        payload: Payload<'_>,
        immediate: Option<u32>,
        request: &RawRequest<'_>,
        own: &OwnControl,
        channel: &Channel,
        sources: &mut Sources<'_>,
    ) -> Result<Option<(u64, Progress)>, VerbsError> {
        let descriptor = Descriptor { task: Task::Inline, immediate, len: 0, report: request.signalled };
        let lend = (request.lend && request.signalled).then_some(request.slot);
        match payload {
            Payload::Inline(bytes) => self.send_inline(bytes, descriptor, own),
            // SAFETY: [shm-posted] the caller's promise.
            Payload::Gather(fragments) => unsafe {
                self.send_gather(fragments, descriptor, lend, own, channel, sources)
            },
        }
    }

    /// Writes a SEND of bytes that ride along and tells the peer of it, all in one; false when it
    /// has to go the long way.
    #[inline]
    pub(crate) fn send_now(
        &mut self,
        slot: u32,
        bytes: &[u8],
        immediate: Option<u32>,
        signalled: bool,
        own: &OwnControl,
    ) -> bool {
        let descriptor = Descriptor { task: Task::Inline, immediate, len: bytes.len() as u64, report: signalled };
        let cells = descriptor.cells();
        if bytes.len() > INLINE_MAX || self.full() || self.producer.unpublished() || !self.producer.room(cells) {
            return false;
        }
        self.producer.inline_now(own, descriptor, bytes);
        let progress = Progress::Ring { cells: cells as u32, bounced: 0 };
        self.push(Entry { slot, opcode: Opcode::Send, signalled, bytes: descriptor.len, progress });
        true
    }

    fn send_inline(
        &mut self,
        bytes: &[u8],
        descriptor: Descriptor,
        own: &OwnControl,
    ) -> Result<Option<(u64, Progress)>, VerbsError> {
        limit("an inline message's length", bytes.len() as u64, INLINE_MAX as u64)?;
        let descriptor = Descriptor { len: bytes.len() as u64, ..descriptor };
        let cells = descriptor.cells();
        if !self.producer.room(cells) {
            return Ok(None);
        }
        self.producer.inline(own, descriptor, bytes);
        Ok(Some((descriptor.len, Progress::Ring { cells: cells as u32, bounced: 0 })))
    }

    /// # Safety
    /// As [`send`](Self::send).
    unsafe fn send_gather(
        &mut self,
        fragments: &[Fragment],
        descriptor: Descriptor,
        lend: Option<u32>,
        own: &OwnControl,
        channel: &Channel,
        sources: &mut Sources<'_>,
    ) -> Result<Option<(u64, Progress)>, VerbsError> {
        let Sources { registry, domain, segments, places, sges } = sources;
        places.clear();
        let (mut bytes, mut hidden) = (0u64, 0u64);
        for fragment in fragments.iter().filter(|f| f.len > 0) {
            let place = segments.place(fragment, registry, *domain)?;
            bytes += u64::from(fragment.len);
            if matches!(place, Location::Hidden) {
                hidden += u64::from(fragment.len);
            }
            places.push((*fragment, place));
        }
        limit("a gather list's length", places.len() as u64, SGE_MAX as u64)?;
        if channel.made && !self.may_pass(places.iter().map(|(_, place)| place))? {
            return Ok(None);
        }
        limit("a message's length", bytes, MESSAGE_MAX)?;
        let index = self.producer.head();
        // What lies where no peer can map it is copied anyway.
        let offered = lend.filter(|_| hidden == 0 && !places.is_empty() && self.lent.room(index));
        let task = if offered.is_some() { Task::Lend(places.len()) } else { Task::Gather(places.len()) };
        let descriptor = Descriptor { task, len: bytes, ..descriptor };
        let cells = descriptor.cells();
        if !self.producer.room(cells) {
            return Ok(None);
        }
        let mut room = None;
        if hidden > 0 {
            room = self.bounce.reserve(hidden, channel)?;
            if room.is_none() {
                return Ok(None);
            }
        }
        sges.clear();
        for (fragment, place) in places.iter() {
            let (segment, offset) = match (*place, &mut room) {
                (Location::Shared(slot, offset), _) => {
                    self.pass(slot, segments, channel);
                    (fragment.segment.get(), offset)
                }
                (Location::Hidden, Some(room)) => {
                    // SAFETY: [shm-posted] readable and unchanged until completion.
                    let from = unsafe { std::slice::from_raw_parts(fragment.address, fragment.len as usize) };
                    self.bounce.fill(room, from)
                }
                (Location::Hidden, None) => return Ok(None),
            };
            sges.push(Sge { segment, len: fragment.len, offset });
        }
        let mut bounced = 0;
        if let Some(room) = room {
            bounced = room.charge;
            self.bounce.commit(room, self.producer.head());
        }
        self.producer.gather(own, descriptor, sges);
        let cells = cells as u32;
        let Some(slot) = offered else { return Ok(Some((bytes, Progress::Ring { cells, bounced }))) };
        self.lent.offer(index, slot);
        Ok(Some((bytes, Progress::Offered { cells })))
    }

    /// Announces a WRITE that has placed its bytes; false when there is no room.
    pub(crate) fn announce(&mut self, immediate: u32, bytes: u64, report: bool, own: &OwnControl) -> bool {
        if !self.producer.room(0) {
            return false;
        }
        let descriptor = Descriptor { task: Task::Written, immediate: Some(immediate), len: bytes, report };
        self.producer.alone(own, descriptor);
        true
    }

    #[inline]
    fn has_passed(&self, slot: u32) -> bool {
        let (word, bit) = (slot as usize / 64, 1u64 << (slot % 64));
        self.passed.get(word).is_some_and(|w| w & bit != 0)
    }

    /// Whether a peer that let this process in keeps the segments of these places beside those that
    /// it has; not before it has forgotten some, where that is to come.
    ///
    /// # Errors
    /// When it does not keep so many.
    pub(crate) fn may_pass<'a>(&self, places: impl Iterator<Item = &'a Location>) -> Result<bool, VerbsError> {
        let new = |place: &&Location| matches!(place, Location::Shared(slot, _) if !self.has_passed(*slot));
        let count = places.filter(new).count();
        if count == 0 || self.passed_count + self.forgetting.len() + count <= PASSED_MAX {
            return Ok(true);
        }
        limit(
            "the number of segments that one peer is sent from",
            (self.passed_count + count) as u64,
            PASSED_MAX as u64,
        )?;
        Ok(false)
    }

    /// Gives the peer the segment's descriptor, once.
    #[inline]
    pub(crate) fn pass(&mut self, slot: u32, segments: &LocalSegments, channel: &Channel) {
        let (word, bit) = (slot as usize / 64, 1u64 << (slot % 64));
        if self.has_passed(slot) {
            return;
        }
        let Some(segment) = segments.segment(slot) else { return };
        if self.passed.len() <= word {
            self.passed.resize(word + 1, 0);
        }
        self.passed[word] |= bit;
        self.passed_count += 1;
        if let Some(at) = self.forgetting.iter().position(|(_, id)| *id == segment.id()) {
            // Registered again before the peer was told to forget it.
            self.forgetting.remove(at);
            return;
        }
        let message = Message::Segment { id: segment.id().get(), len: segment.len() as u64 };
        channel.send(&message, Carried::Segment(segment.clone()));
    }

    /// A segment is no longer registered: the peer is told once nothing in the ring names it.
    pub(crate) fn forget(&mut self, slot: u32, id: SegmentId) {
        let (word, bit) = (slot as usize / 64, 1u64 << (slot % 64));
        if let Some(w) = self.passed.get_mut(word).filter(|w| **w & bit != 0) {
            *w &= !bit;
            self.passed_count -= 1;
            self.forgetting.push_back((self.producer.head(), id));
        }
    }

    /// Tells the peer what it may forget by now.
    #[inline]
    pub(crate) fn flush_forgetting(&mut self, channel: &Channel) {
        if !self.forgetting.is_empty() {
            self.tell_what_to_forget(channel);
        }
    }

    #[cold]
    fn tell_what_to_forget(&mut self, channel: &Channel) {
        let consumed = self.producer.consumed();
        while self.forgetting.front().is_some_and(|(head, _)| *head <= consumed) {
            let mut ids = Vec::with_capacity(FORGET_MAX);
            while ids.len() < FORGET_MAX
                && let Some((head, id)) = self.forgetting.front()
                && *head <= consumed
            {
                ids.push(id.get());
                self.forgetting.pop_front();
            }
            channel.send(&Message::Forget(ids), Carried::Nothing);
        }
    }

    /// What the peer has consumed, as last seen, if anything waits for it to consume more: a
    /// report, room, or news for the peer of what it may forget then.
    pub(crate) fn waits(&self) -> Option<u64> {
        (self.reports > 0 || self.refused || !self.forgetting.is_empty()).then_some(self.producer.consumed())
    }

    /// Whether all that is to be reported is the end of loans: no other request, nothing refused
    /// for lack of room, no news for the peer.
    pub(crate) fn lends_alone(&self) -> bool {
        self.lent.offered() == self.entries.len() && !self.refused && self.forgetting.is_empty()
    }

    /// How many descriptors stand before the first request that has ended behind them, if one has:
    /// a READ, say, is to be reported as soon as they are consumed.
    pub(crate) fn before_ended(&self) -> Option<u64> {
        let ripe = self.ripe;
        let unconsumed = self.producer.head() - self.producer.consumed();
        if self.entries.len() as u64 == unconsumed + ripe {
            return None;
        }
        let before = self.entries.iter().take_while(|entry| !matches!(entry.progress, Progress::Done { .. }));
        Some((before.count() as u64).saturating_sub(ripe))
    }

    /// Whether segments are to be forgotten once the peer has consumed what names them.
    pub(crate) fn forgets_later(&self) -> bool {
        !self.forgetting.is_empty()
    }

    /// Whether nothing can be reported and nothing told without the peer's doing.
    #[inline]
    pub(crate) fn settled(&self) -> bool {
        !self.front_ready() && !self.producer.unpublished()
    }

    #[inline]
    fn front_ready(&self) -> bool {
        self.ripe > 0 || matches!(self.entries.first(), Some(Entry { progress: Progress::Done { .. }, .. }))
    }

    /// Takes in the peer's consumed index.
    #[inline]
    pub(crate) fn observe(&mut self, consumed: u64, channel: &Channel) -> Result<bool, Fate> {
        if consumed == self.producer.consumed() {
            return Ok(false);
        }
        let done =
            self.producer.observe(consumed).ok_or(Fate::Malformed("the peer's consumed index is out of range"))?;
        self.ripe += done;
        self.refused = false;
        self.bounce.release_large(consumed, channel);
        Ok(true)
    }

    /// Reports what has completed, in order; how many reports.
    #[inline]
    pub(crate) fn complete(&mut self, qp: QpIndex, out: &mut [RawCompletion]) -> usize {
        let mut count = 0;
        while count < out.len() && self.front_ready() {
            // Looked at where it lies, and left there: a copy would be of what was just written.
            let Some(entry) = self.entries.first() else { break };
            let (ended, signalled, reports) = (entry.ended(), entry.signalled, entry.reports());
            let mut lending = Lending::No;
            let (status, value) = match entry.progress {
                Progress::Done { status, value } => (status, value),
                Progress::Offered { cells } => {
                    if self.ripe == 0 {
                        break;
                    }
                    if self.lent.completed(self.producer.consumed() - self.ripe) {
                        lending = Lending::Lent;
                    }
                    self.ripe -= 1;
                    self.producer.free_cells(cells);
                    (Status::Success, 0)
                }
                Progress::Ring { cells, bounced } => {
                    if self.ripe == 0 {
                        break;
                    }
                    self.ripe -= 1;
                    self.producer.free_cells(cells);
                    self.bounce.release(bounced);
                    (Status::Success, 0)
                }
            };
            self.entries.leave();
            self.reports -= usize::from(reports);
            if signalled || status != Status::Success {
                out[count] = RawCompletion { lending, ..ended.completion(qp, status, value) };
                count += 1;
                (self.silent, self.wants_room) = (None, false);
            } else {
                self.silent = Some(ended);
            }
        }
        if self.wants_room
            && count < out.len()
            && let Some(silent) = self.silent.take()
        {
            out[count] = silent.completion(qp, Status::Success, 0);
            count += 1;
            self.wants_room = false;
        }
        if !self.lent.is_empty() {
            while count < out.len()
                && let Some(slot) = self.lent.ended()
            {
                out[count] = returned(qp, slot);
                count += 1;
            }
        }
        count
    }

    /// Everything that is left ends with the queue pair.
    pub(crate) fn flush(&mut self, qp: QpIndex, fate: Fate, by_peer: bool, out: &mut VecDeque<RawCompletion>) {
        let mut buffer = [RawCompletion::NONE];
        while self.complete(qp, &mut buffer) == 1 {
            out.push_back(buffer[0]);
        }
        // The first message that the peer did not consume is the one it refused.
        let mut refused = by_peer && fate == Fate::TooLong;
        self.reports = 0;
        let mut index = self.producer.consumed();
        while let Some(entry) = self.entries.pop() {
            if let Progress::Offered { .. } = entry.progress {
                self.lent.flushed(index);
            }
            index += u64::from(!matches!(entry.progress, Progress::Done { .. }));
            let (mut status, mut result) = (fate.pending(), 0);
            match entry.progress {
                Progress::Done { status: ended, value } => (status, result) = (ended, value),
                _ if std::mem::take(&mut refused) => status = Status::TooLong,
                Progress::Ring { .. } | Progress::Offered { .. } => {}
            }
            if entry.signalled || status != Status::Success {
                out.push_back(entry.ended().completion(qp, status, result));
                self.silent = None;
            } else {
                self.silent = Some(entry.ended());
            }
        }
        // Nothing after it will tell that it has ended.
        out.extend(self.silent.take().map(|silent| silent.completion(qp, Status::Success, 0)));
        self.lent.revoke();
        out.extend(std::iter::from_fn(|| self.lent.ended().map(|slot| returned(qp, slot))));
    }
}

/// As many requests as a ring has descriptors. Each is written where it lies: what goes there by
/// way of the stack is read again before it is written, behind the stores into the ring that wait
/// for the peer's cache.
#[derive(Debug)]
struct Entries {
    /// As many as were ever in use at once, rounded up: an idle peer shall not cost what a busy one
    /// does.
    places: Box<[Entry]>,
    depth: usize,
    first: usize,
    next: usize,
}

impl Entries {
    /// For a power of two.
    fn new(depth: u32) -> Self {
        let depth = depth as usize;
        Self { places: vec![NO_ENTRY; depth.min(PLACES_FIRST)].into(), depth, first: 0, next: 0 }
    }

    #[inline]
    fn len(&self) -> usize {
        self.next.wrapping_sub(self.first)
    }

    #[inline]
    fn full(&self) -> bool {
        self.len() >= self.depth
    }

    /// Twice as many places.
    #[cold]
    fn grow(&mut self) {
        let mut places = vec![NO_ENTRY; 2 * self.places.len()];
        let (old, new) = (self.places.len() - 1, places.len() - 1);
        for at in (0..self.len()).map(|i| self.first.wrapping_add(i)) {
            places[at & new] = self.places[at & old];
        }
        self.places = places.into();
    }

    #[inline]
    fn push(&mut self, entry: Entry) {
        debug_assert!(!self.full());
        if self.len() == self.places.len() {
            self.grow();
        }
        let at = self.next & (self.places.len() - 1);
        if let Some(place) = self.places.get_mut(at) {
            *place = entry;
            self.next = self.next.wrapping_add(1);
        }
    }

    #[inline]
    fn first(&self) -> Option<&Entry> {
        let at = self.first & (self.places.len() - 1);
        if self.first == self.next { None } else { self.places.get(at) }
    }

    fn iter(&self) -> impl Iterator<Item = &Entry> {
        (0..self.len()).filter_map(|i| self.places.get(self.first.wrapping_add(i) & (self.places.len() - 1)))
    }

    #[inline]
    fn pop(&mut self) -> Option<Entry> {
        let entry = self.first().copied()?;
        self.leave();
        Some(entry)
    }

    /// The first, which is there, leaves.
    #[inline]
    fn leave(&mut self) {
        debug_assert!(self.first != self.next);
        self.first = self.first.wrapping_add(1);
    }
}

impl Entry {
    /// Whether its end is reported even if all goes well from here on.
    fn reports(&self) -> bool {
        self.signalled || matches!(self.progress, Progress::Done { status, .. } if status != Status::Success)
    }

    #[inline]
    fn ended(&self) -> Ended {
        let Entry { slot, opcode, bytes, .. } = *self;
        Ended { slot, opcode, bytes }
    }
}

impl Ended {
    fn completion(&self, qp: QpIndex, status: Status, value: u64) -> RawCompletion {
        let bytes = if status == Status::Success { self.bytes } else { 0 };
        RawCompletion { bytes, value, ..RawCompletion::new(self.slot, Some(qp), self.opcode, status) }
    }
}

fn returned(qp: QpIndex, slot: u32) -> RawCompletion {
    let report = RawCompletion::new(slot, Some(qp), Opcode::Send, Status::Success);
    RawCompletion { lending: Lending::Returned, ..report }
}

/// Places there are before a request needs more; a power of two.
const PLACES_FIRST: usize = 8;
const NO_ENTRY: Entry = Entry {
    slot: u32::MAX,
    opcode: Opcode::Send,
    signalled: false,
    bytes: 0,
    progress: Progress::Done { status: Status::Flushed, value: 0 },
};

/// Segments that a peer which let this process in is sent from. With those that bytes are copied
/// into for it, it keeps so many.
const PASSED_MAX: usize = SEGMENTS_MAX - 1 - LARGE_MAX;

pub(crate) fn limit(what: &'static str, value: u64, max: u64) -> Result<(), VerbsError> {
    if value > max { Err(VerbsError::Limit { what, value, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lap after lap, full or nearly empty: as many as there are places, in order, and across the
    /// end of the numbers.
    #[test]
    fn entries_leave_in_the_order_in_which_they_came() {
        let mut entries = Entries::new(32);
        (entries.first, entries.next) = (usize::MAX - 20, usize::MAX - 20);
        let (mut came, mut left) = (0, 0);
        for most in [4, 8, 3, 9, 32, 7, 32, 1, 32] {
            while came - left < most {
                assert!(!entries.full());
                entries.push(Entry { slot: came, ..NO_ENTRY });
                came += 1;
            }
            assert_eq!(entries.full(), most == 32);
            while left < came {
                assert_eq!(entries.first().map(|entry| entry.slot), Some(left));
                assert_eq!(entries.pop().map(|entry| entry.slot), Some(left));
                left += 1;
            }
            assert!(entries.first().is_none() && entries.pop().is_none());
        }
    }
}
