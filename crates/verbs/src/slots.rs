//! Where requests in flight live, and in which order they complete.

use std::collections::VecDeque;

use overside_memory::Buffer;

use crate::port::{QpIndex, RawCompletion};
use crate::work::{Opcode, QueuePair, Status, Work, WorkCompletion, WorkRequest};

/// A send-side request that was posted and has not completed.
#[derive(Debug)]
pub(crate) enum Sending {
    /// With what it holds.
    Request { request: WorkRequest, qp: QueuePair, reported: bool },
    /// A SEND whose bytes went with the post: nothing is held.
    Inline { id: u64, qp: QueuePair, reported: bool },
}

/// A receive that was posted and has not completed.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub(crate) id: u64,
    pub(crate) buffer: Buffer,
    pub(crate) qp: Option<QueuePair>,
}

/// Requests in flight, by number. Receives have numbers of their own, since they are small and each moves in and out once a message.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    sends: Slab<Sending>,
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
        let taken = self.slots.get_mut(slot as usize)?.take();
        if taken.is_some() {
            self.free.push(slot);
        }
        taken
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl Slots {
    #[inline]
    pub(crate) fn put(&mut self, sending: Sending) -> u32 {
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
    pub(crate) fn get(&self, slot: u32) -> Option<&Sending> {
        self.sends.slots.get(slot as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn take(&mut self, slot: u32) -> Option<Sending> {
        self.sends.take(slot)
    }

    /// The receive of that number; none for the number of anything else.
    #[inline]
    pub(crate) fn take_receive(&mut self, slot: u32) -> Option<Receiving> {
        if slot & RECEIVE == 0 {
            return None;
        }
        self.receives.take(slot & !RECEIVE)
    }

    /// Ends a send-side request whose user gets nothing of it, where it lies; false when a buffer must go back.
    #[inline]
    pub(crate) fn release(&mut self, slot: u32) -> bool {
        match self.sends.slots.get_mut(slot as usize) {
            Some(Some(Sending::Request { request: WorkRequest { work: Work::Read { .. }, .. }, .. })) => false,
            Some(place @ Some(_)) => {
                *place = None;
                self.sends.free.push(slot);
                true
            }
            _ => true,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.sends.in_flight() + self.receives.in_flight()
    }
}

impl Sending {
    /// Bytes of what it moves into a buffer.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Sending::Request { request, .. } => request.bytes(),
            Sending::Inline { .. } => 0,
        }
    }

    #[inline]
    pub(crate) fn queue_pair(&self) -> QueuePair {
        match self {
            Sending::Request { qp, .. } | Sending::Inline { qp, .. } => *qp,
        }
    }

    /// Whether its user asked for a report of success.
    #[inline]
    pub(crate) fn reported(&self) -> bool {
        match self {
            Sending::Request { reported, .. } | Sending::Inline { reported, .. } => *reported,
        }
    }
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
    /// Requests of its own receive queue in flight.
    pub(crate) receives: usize,
    pub(crate) closed: bool,
}

impl QpState {
    pub(crate) fn new(name: QueuePair) -> Self {
        Self { name, sent: VecDeque::new(), quiet: 0, quiet_entries: 0, receives: 0, closed: false }
    }

    #[inline]
    pub(crate) fn drained(&self) -> bool {
        self.sent.is_empty() && self.receives == 0
    }
}

/// The queue pairs of a completion queue, by index; an index is used again once it is drained.
#[derive(Debug, Default)]
pub(crate) struct QueuePairs {
    states: Vec<Option<QpState>>,
    generation: u32,
}

impl QueuePairs {
    pub(crate) fn add(&mut self) -> (QpIndex, QueuePair) {
        let index = self.states.iter().position(Option::is_none).unwrap_or_else(|| {
            self.states.push(None);
            self.states.len() - 1
        });
        self.generation = self.generation.wrapping_add(1);
        let name = QueuePair(u64::from(self.generation) << 32 | index as u64);
        self.states[index] = Some(QpState::new(name));
        (QpIndex(index as u32), name)
    }

    #[inline]
    pub(crate) fn by_name(&mut self, name: QueuePair) -> Option<(QpIndex, &mut QpState)> {
        let index = (name.0 & u64::from(u32::MAX)) as usize;
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

    /// Requests bound to queue pairs that have not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.states.iter().flatten().map(|s| s.sent.len() + s.receives).sum()
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = QueuePair> + '_ {
        self.states.iter().flatten().filter(|s| !s.closed).map(|s| s.name)
    }
}

impl Sending {
    /// What the user gets of it; releases its hold.
    #[inline]
    pub(crate) fn complete(self, raw: &RawCompletion) -> WorkCompletion {
        let (queue_pair, id, opcode, buffer) = match self {
            Sending::Inline { id, qp, .. } => (qp, id, Opcode::Send, None),
            Sending::Request { request, qp, .. } => {
                let (id, opcode) = (request.id, request.opcode());
                let buffer = match request.work {
                    Work::Read { sink, .. } => Some(sink),
                    _ => None,
                };
                (qp, id, opcode, buffer)
            }
        };
        completion(Some(queue_pair), id, opcode, buffer, raw)
    }
}

impl Receiving {
    /// What the user gets of it.
    #[inline]
    pub(crate) fn complete(self, raw: &RawCompletion, arrived_on: Option<QueuePair>) -> WorkCompletion {
        let opcode = match raw.opcode {
            Opcode::ReceiveImmediate => Opcode::ReceiveImmediate,
            _ => Opcode::Receive,
        };
        completion(self.qp.or(arrived_on), self.id, opcode, Some(self.buffer), raw)
    }
}

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
    }
}

/// Of a number: it is a receive's.
const RECEIVE: u32 = 1 << 31;
