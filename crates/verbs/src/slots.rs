//! Where requests in flight live, and in which order they complete.

use std::collections::VecDeque;

use overside_memory::Buffer;

use crate::port::{QpIndex, RawCompletion};
use crate::work::{Opcode, QueuePair, Status, Work, WorkCompletion, WorkRequest};

/// A send-side request that was posted and has not completed; what it holds lies apart, since
/// messages whose bytes went with the post hold nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) id: u64,
    pub(crate) qp: QueuePair,
    /// Its user asked for a report of success.
    pub(crate) reported: bool,
    holds: bool,
    /// It has completed, and what it holds is lent.
    pub(crate) lent: bool,
    /// Its user asked for a report of its release.
    tells_release: bool,
}

/// A receive that was posted and has not completed.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub(crate) id: u64,
    pub(crate) buffer: Buffer,
    pub(crate) qp: Option<QueuePair>,
}

/// Requests in flight, by number. Receives have numbers of their own, since they are small and each
/// moves in and out once a message.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    sends: Slab<Sending>,
    /// What those sends hold that hold something.
    held: Vec<Option<WorkRequest>>,
    receives: Slab<Receiving>,
}

#[derive(Debug)]
struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    #[inline]
    fn put(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(value);
                slot
            }
            None => {
                self.slots.push(Some(value));
                (self.slots.len() - 1) as u32
            }
        }
    }

    #[inline]
    fn take(&mut self, slot: u32) -> Option<T> {
        let place = self.slots.get_mut(slot as usize)?;
        // In this order nothing can fail while it is on its way, so that it goes straight to where its taker has it: parts of a copy on
        // the stack that are read at once, and in other widths than they were written in, make the processor wait for its own stores.
        if place.is_some() {
            self.free.push(slot);
        }
        place.take()
    }

    /// Ends what is there.
    #[inline]
    fn free(&mut self, slot: u32) {
        self.slots[slot as usize] = None;
        self.free.push(slot);
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl Slots {
    /// A send-side request, with what it holds.
    pub(crate) fn put(&mut self, request: WorkRequest, qp: QueuePair) -> u32 {
        let WorkRequest { id, signalled: reported, tells_release, .. } = request;
        let slot = self.put_sending(Sending { id, qp, reported, holds: true, lent: false, tells_release });
        if self.held.len() <= slot as usize {
            self.held.resize_with(slot as usize + 1, || None);
        }
        self.held[slot as usize] = Some(request);
        slot
    }

    /// A SEND whose bytes go with the post.
    #[inline]
    pub(crate) fn put_inline(&mut self, id: u64, qp: QueuePair, reported: bool) -> u32 {
        self.put_sending(Sending { id, qp, reported, holds: false, lent: false, tells_release: false })
    }

    #[inline]
    fn put_sending(&mut self, sending: Sending) -> u32 {
        let slot = self.sends.put(sending);
        debug_assert!(slot & RECEIVE == 0);
        slot
    }

    #[inline]
    pub(crate) fn put_receive(&mut self, receiving: Receiving) -> u32 {
        self.receives.put(receiving) | RECEIVE
    }

    /// The send-side request of that number.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<Sending> {
        *self.sends.slots.get(slot as usize)?
    }

    /// What the send-side request of that number holds.
    pub(crate) fn request(&self, slot: u32) -> Option<&WorkRequest> {
        self.held.get(slot as usize)?.as_ref()
    }

    /// Takes back a send-side request that was not accepted.
    pub(crate) fn take_back(&mut self, slot: u32) -> Option<WorkRequest> {
        self.sends.take(slot).filter(|sending| sending.holds).and_then(|_| self.held[slot as usize].take())
    }

    /// The receive of a receive's number.
    #[inline]
    pub(crate) fn receive(&self, slot: u32) -> Option<&Receiving> {
        self.receives.slots.get((slot & !RECEIVE) as usize)?.as_ref()
    }

    /// Ends a receive that is there: what the user gets.
    #[inline]
    pub(crate) fn complete_receive(&mut self, queue_pair: Option<QueuePair>, raw: &RawCompletion) -> WorkCompletion {
        let opcode = match raw.opcode {
            Opcode::ReceiveImmediate => Opcode::ReceiveImmediate,
            _ => Opcode::Receive,
        };
        match self.receives.take(raw.slot & !RECEIVE) {
            Some(receiving) => completion(queue_pair, receiving.id, opcode, Some(receiving.buffer), raw),
            None => completion(queue_pair, 0, opcode, None, raw),
        }
    }

    /// The receive of that number; none for the number of anything else.
    #[inline]
    pub(crate) fn take_receive(&mut self, slot: u32) -> Option<Receiving> {
        if !is_receive(slot) {
            return None;
        }
        self.receives.take(slot & !RECEIVE)
    }

    /// Ends a send-side request whose user hears of it, and appends what the user gets.
    pub(crate) fn complete(&mut self, slot: u32, raw: &RawCompletion, out: &mut Vec<WorkCompletion>) {
        let Some(sending) = self.sends.take(slot) else { return };
        let (mut opcode, mut buffer) = (Opcode::Send, None);
        if sending.holds
            && let Some(held) = self.held.get_mut(slot as usize)
        {
            opcode = held.as_ref().map_or(opcode, WorkRequest::opcode);
            if opcode == Opcode::Read
                && let Some(WorkRequest { work: Work::Read { sink, .. }, .. }) = held.take()
            {
                buffer = Some(sink);
            }
        }
        out.push(completion(Some(sending.qp), sending.id, opcode, buffer, raw));
        if sending.tells_release {
            out.push(completion(Some(sending.qp), sending.id, Opcode::Release, None, raw));
        }
        if sending.holds {
            // Its end may run its owner's code, which may panic: all is in order before.
            self.held[slot as usize] = None;
        }
    }

    /// A SEND has completed by being lent: what it holds stays until [`release`](Self::release).
    /// Appends what the user gets.
    pub(crate) fn lend(&mut self, slot: u32, raw: &RawCompletion, out: &mut Vec<WorkCompletion>) {
        let Some(Some(sending)) = self.sends.slots.get_mut(slot as usize) else { return };
        sending.lent = true;
        if sending.reported {
            out.push(completion(Some(sending.qp), sending.id, Opcode::Send, None, raw));
        }
    }

    /// The loan of a SEND has ended, and so does what it holds. Appends what the user gets.
    pub(crate) fn end_loan(&mut self, slot: u32, raw: &RawCompletion, out: &mut Vec<WorkCompletion>) {
        if let Some(Sending { qp, id, tells_release: true, .. }) = self.get(slot) {
            out.push(completion(Some(qp), id, Opcode::Release, None, raw));
        }
        self.release(slot);
    }

    /// Ends a send-side request whose user gets nothing of it; false when a READ's buffer must go
    /// back.
    #[inline]
    pub(crate) fn release(&mut self, slot: u32) -> bool {
        match self.sends.slots.get(slot as usize) {
            Some(Some(Sending { holds: false, .. })) => {
                self.sends.free(slot);
                true
            }
            Some(Some(_)) => self.release_held(slot),
            _ => true,
        }
    }

    fn release_held(&mut self, slot: u32) -> bool {
        let Some(held) = self.held.get_mut(slot as usize) else { return true };
        if matches!(held, Some(WorkRequest { work: Work::Read { .. }, .. })) {
            return false;
        }
        self.sends.free(slot);
        // Its end may run its owner's code: all is in order before.
        *held = None;
        true
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.sends.in_flight() + self.receives.in_flight()
    }
}

/// Whether a number is a receive's.
#[inline]
pub(crate) fn is_receive(slot: u32) -> bool {
    slot & RECEIVE != 0
}

/// A queue pair as the completion queue sees it.
#[derive(Debug)]
pub(crate) struct QpState {
    pub(crate) name: QueuePair,
    /// Send-side slots in the order of posting.
    pub(crate) sent: VecDeque<u32>,
    /// Requests since the last one that the provider reports.
    pub(crate) quiet: usize,
    /// Their gather entries.
    pub(crate) quiet_entries: usize,
    /// SENDs that were lent and not returned.
    pub(crate) loans: usize,
    /// Requests of its own receive queue in flight.
    pub(crate) receives: usize,
    pub(crate) closed: bool,
}

impl QpState {
    pub(crate) fn new(name: QueuePair) -> Self {
        Self { name, sent: VecDeque::new(), quiet: 0, quiet_entries: 0, loans: 0, receives: 0, closed: false }
    }

    #[inline]
    pub(crate) fn drained(&self) -> bool {
        self.sent.is_empty() && self.receives == 0 && self.loans == 0
    }
}

/// The queue pairs of a completion queue, by index; an index is used again once it is drained.
#[derive(Debug, Default)]
pub(crate) struct QueuePairs {
    states: Vec<Option<QpState>>,
    /// Of the next one. It never comes round: an old name would be a later queue pair's.
    generation: u64,
}

impl QueuePairs {
    /// A place for one more; none when there are as many as can be.
    pub(crate) fn add(&mut self) -> Option<(QpIndex, QueuePair)> {
        let free = self.states.iter().position(Option::is_none);
        let index = free.unwrap_or(self.states.len());
        if index >= QUEUE_PAIRS_MAX || self.generation > u64::MAX >> INDEX_BITS {
            return None;
        }
        if free.is_none() {
            self.states.push(None);
        }
        let name = QueuePair(self.generation << INDEX_BITS | index as u64);
        self.generation += 1;
        self.states[index] = Some(QpState::new(name));
        Some((QpIndex(index as u32), name))
    }

    #[inline]
    pub(crate) fn by_name(&mut self, name: QueuePair) -> Option<(QpIndex, &mut QpState)> {
        let index = name.0 as usize % QUEUE_PAIRS_MAX;
        let state = self.states.get_mut(index)?.as_mut()?;
        (state.name == name).then_some((QpIndex(index as u32), state))
    }

    #[inline]
    pub(crate) fn by_index(&mut self, index: QpIndex) -> Option<&mut QpState> {
        self.states.get_mut(index.0 as usize)?.as_mut()
    }

    /// Frees the index of a closed queue pair with nothing left in flight.
    #[inline]
    pub(crate) fn retire(&mut self, index: QpIndex) {
        if let Some(state) = self.states.get_mut(index.0 as usize)
            && state.as_ref().is_some_and(|s| s.closed && s.drained())
        {
            *state = None;
        }
    }

    /// Requests bound to queue pairs that have not completed, and loans.
    pub(crate) fn in_flight(&self) -> usize {
        self.states.iter().flatten().map(|s| s.sent.len() + s.receives + s.loans).sum()
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = QueuePair> + '_ {
        self.states.iter().flatten().filter(|s| !s.closed).map(|s| s.name)
    }
}

/// Bits of a queue pair's name that say where it is; the others count how many there were before.
const INDEX_BITS: u32 = 24;
/// Queue pairs of a completion queue.
pub(crate) const QUEUE_PAIRS_MAX: usize = 1 << INDEX_BITS;

#[inline]
fn completion(
    queue_pair: Option<QueuePair>,
    id: u64,
    opcode: Opcode,
    buffer: Option<Buffer>,
    raw: &RawCompletion,
) -> WorkCompletion {
    let bytes = match (&buffer, raw.status) {
        // Never more than the buffer has, whatever a provider says.
        (Some(buffer), Status::Success) => raw.bytes.min(buffer.len() as u64),
        (Some(_), _) => 0,
        (None, _) => raw.bytes,
    };
    WorkCompletion {
        queue_pair,
        id,
        opcode,
        status: raw.status,
        bytes,
        immediate: raw.immediate,
        value: raw.value,
        buffer,
        loan: None,
    }
}

/// Of a number: it is a receive's.
const RECEIVE: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pairs_name_is_never_another_ones() {
        let (mut pairs, mut names) = (QueuePairs::default(), Vec::new());
        for round in 0..6 {
            if round == 2 {
                // A count of 32 bits would come round to the first ones.
                pairs.generation = u64::from(u32::MAX);
            }
            let (index, name) = pairs.add().unwrap();
            assert_eq!(index, QpIndex(0));
            assert!(pairs.by_name(name).is_some() && names.iter().all(|old| pairs.by_name(*old).is_none()));
            names.push(name);
            pairs.by_name(name).unwrap().1.closed = true;
            pairs.retire(index);
        }
        pairs.generation = u64::MAX >> INDEX_BITS;
        assert!(pairs.add().is_some() && pairs.add().is_none(), "there are no names left");
    }
}
