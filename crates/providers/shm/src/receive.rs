//! The receive side of a queue pair: messages meet posted buffers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use overside_memory::ForeignRange;
use overside_verbs::port::{Lending, RawCompletion, RawReceive};
use overside_verbs::{Loan, Opcode, Status};
use smallvec::SmallVec;

use crate::borrowing::Borrowed;
use crate::consumer::{Message, Trouble};
use crate::doorbell::PeerWords;
use crate::fate::Fate;
use crate::pair::{Heard, LAZY_TURNS, Link, Pair};
use crate::ring::{Descriptor, Task, Word};

impl Pair {
    /// Takes the messages whose bytes ride along, into receives of the queue pair's own: how many.
    /// None where there may be more to do, and [`turn`](Self::turn) does it.
    #[inline]
    pub(crate) fn take_riding(&mut self, out: &mut [RawCompletion]) -> Option<usize> {
        let Link { control, consumer, .. } = self.link.as_mut()?;
        let mut count = 0;
        while count < out.len()
            && let Some(head) = consumer.head(control)
        {
            let (Some(descriptor), Some(receive)) = (Descriptor::inline_from_words(head), self.receives.front()) else {
                break;
            };
            if descriptor.len > receive.buffer.len as u64 {
                break;
            }
            // SAFETY: [shm-posted] the buffer is ours until its completion, and the message fits.
            let out_bytes = unsafe { std::slice::from_raw_parts_mut(receive.buffer.address, descriptor.len as usize) };
            consumer.copy_riding(control, out_bytes);
            fence(Ordering::Acquire);
            if control.load(Word::Closed) != 0 {
                break;
            }
            consumer.advance(&descriptor);
            self.owed |= descriptor.report;
            let report = RawCompletion::new(receive.slot, Some(self.index), Opcode::Receive, Status::Success);
            out[count] = report.with(descriptor.len, descriptor.immediate);
            count += 1;
            self.receives.pop_front();
        }
        if count > 0 {
            self.idle = 0;
            self.tell_if_due();
            return Some(count);
        }
        let quiet = !consumer.look(control) && control.load(Word::Closed) == 0;
        self.idle += 1;
        (quiet && self.idle < LAZY_TURNS).then_some(0)
    }

    /// Copies messages into receives, the queue pair's own first, then the shared ones. Appends
    /// reports to `out`; how many, and how it ended if it did. Stops after [`TURN_BYTES`], so that
    /// whoever asked finds the bytes in the first-level cache.
    pub(crate) fn receive(
        &mut self,
        shared: &mut VecDeque<RawReceive>,
        loans: &mut VecDeque<(u32, Loan)>,
        out: &mut [RawCompletion],
    ) -> (usize, Option<Fate>) {
        let (mut count, mut bytes) = (0, 0);
        (self.starved, self.executed) = (false, false);
        while count < out.len() && bytes < TURN_BYTES {
            match self.receive_one(shared, loans) {
                Ok(Some(completion)) => {
                    out[count] = completion;
                    count += 1;
                    // A region may take far longer than its bytes say: others get their turn after
                    // each SEND of it.
                    bytes += match completion.lending {
                        _ if self.executed => TURN_BYTES,
                        Lending::No => completion.bytes,
                        _ => 0,
                    };
                    if completion.status != Status::Success {
                        return (count, Some(Fate::TooLong));
                    }
                }
                Ok(None) => break,
                Err(fate) => return (count, Some(fate)),
            }
        }
        (count, None)
    }

    #[inline]
    fn receive_one(
        &mut self,
        shared: &mut VecDeque<RawReceive>,
        loans: &mut VecDeque<(u32, Loan)>,
    ) -> Result<Option<RawCompletion>, Fate> {
        let Some(Link { control, consumer, .. }) = &mut self.link else { return Ok(None) };
        if !consumer.look(control) {
            return Ok(None);
        }
        let message = consumer.peek(control)?;
        let own = !self.receives.is_empty();
        let Some(receive) = (if own { self.receives.front() } else { shared.front() }).copied() else {
            self.starved = true;
            return Ok(None);
        };
        let task = message.descriptor.task;
        if task == Task::Region {
            self.executed = true;
            return self.receive_region(&message, receive, own, shared);
        }
        let fits = task == Task::Written || message.descriptor.len <= receive.buffer.len as u64;
        // The number of what it offers, where it offers its bytes.
        let offered = matches!(task, Task::Lend(_)).then(|| consumer.next());
        let mut accepted = None;
        if fits && task != Task::Written {
            // Of what is lent, too: where the next message begins is read soon.
            consumer.prefetch(&message, control, &mut self.memory);
            if offered.is_some() && receive.takes_loan && self.borrowed().is_some_and(|borrowed| borrowed.room()) {
                accepted = self.pieces(&message)?;
                if accepted.is_none() {
                    return Ok(None);
                }
            } else if !self.copy(&message, &receive)? {
                return Ok(None);
            }
        }
        if fits {
            // The source may have been reused while it was copied: only a connection that still
            // stands vouches for the bytes. The sender raises `closed` before it lets go of them. Of another
            // nothing is believed, and a loan of it would never have been valid.
            fence(Ordering::Acquire);
            self.check_open()?;
        }
        let mut lending = Lending::No;
        if let (true, Some(index)) = (fits, offered)
            && let Some(borrowed) = self.borrowed()
        {
            match accepted {
                Some(pieces) => {
                    loans.push_back((receive.slot, borrowed.accept(index, pieces)));
                    lending = Lending::Lent;
                }
                // Before the sender hears that the message was consumed.
                None => self.declined = borrowed.decline(index),
            }
        }
        let status = if fits { Status::Success } else { Status::TooLong };
        let report = self.meets(&message, receive, own, shared, status);
        Ok(Some(RawCompletion { lending, ..report }))
    }

    /// The loans of the connection.
    fn borrowed(&mut self) -> Option<&Arc<Borrowed>> {
        let Link { control, .. } = self.link.as_ref()?;
        let borrowed = &mut self.borrowed;
        Some(
            borrowed.get_or_insert_with(|| {
                Arc::new(Borrowed::new(&self.own, control, &self.channel, self.provider.clone()))
            }),
        )
    }

    /// A message has met its receive, which leaves its queue; what has not succeeded ends the queue
    /// pair.
    #[inline]
    fn meets(
        &mut self,
        message: &Message,
        receive: RawReceive,
        own: bool,
        shared: &mut VecDeque<RawReceive>,
        status: Status,
    ) -> RawCompletion {
        let Descriptor { task, report, len, immediate, .. } = message.descriptor;
        if let (Status::Success, Some(Link { consumer, .. })) = (status, &mut self.link) {
            consumer.advance(&message.descriptor);
            // What the sender lent is lent until it hears of it; bytes that rode along are nobody's any more.
            self.owed |= report || task != Task::Inline;
        }
        self.leave_queue(own, shared);
        let opcode = if task == Task::Written { Opcode::ReceiveImmediate } else { Opcode::Receive };
        RawCompletion::new(receive.slot, Some(self.index), opcode, status).with(len, immediate)
    }

    /// The receive that was met is in its queue no more.
    #[inline]
    pub(crate) fn leave_queue(&mut self, own: bool, shared: &mut VecDeque<RawReceive>) {
        let queue = if own { &mut self.receives } else { shared };
        queue.pop_front();
    }

    /// Where a message lies that is lent; none while the socket holds more than is heard at a time.
    fn pieces(&mut self, message: &Message) -> Result<Option<SmallVec<[ForeignRange; 2]>>, Fate> {
        match self.try_pieces(message) {
            Err(Trouble::Unknown) => {
                let all = self.hear()? == Heard::All;
                match self.try_pieces(message) {
                    Err(Trouble::Unknown) if !all => Ok(None),
                    pieces => pieces.map(Some).map_err(Fate::from),
                }
            }
            pieces => pieces.map(Some).map_err(Fate::from),
        }
    }

    fn try_pieces(&mut self, message: &Message) -> Result<SmallVec<[ForeignRange; 2]>, Trouble> {
        let Some(Link { control, consumer, .. }) = &self.link else { return Ok(SmallVec::new()) };
        consumer.pieces(message, control, &mut self.memory)
    }

    /// False while the socket holds more than is heard at a time.
    #[inline]
    fn copy(&mut self, message: &Message, receive: &RawReceive) -> Result<bool, Fate> {
        match self.try_copy(message, receive) {
            Ok(()) => Ok(true),
            Err(trouble @ Trouble::Malformed(_)) => Err(trouble.into()),
            Err(Trouble::Unknown) => {
                // The segment was passed before the descriptor was published: it is in the socket.
                let all = self.hear()? == Heard::All;
                match self.try_copy(message, receive) {
                    Ok(()) => Ok(true),
                    Err(Trouble::Unknown) if !all => Ok(false),
                    Err(trouble) => Err(trouble.into()),
                }
            }
        }
    }

    #[inline]
    fn try_copy(&mut self, message: &Message, receive: &RawReceive) -> Result<(), Trouble> {
        let Some(Link { control, consumer, .. }) = &self.link else { return Ok(()) };
        // SAFETY: [shm-posted] the buffer is ours until its completion, and the message fits.
        unsafe { consumer.copy(message, control, &mut self.memory, receive.buffer.address, receive.buffer.len) }
    }

    /// `Err` when the peer has closed.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), Fate> {
        let Some(Link { control, .. }) = &self.link else { return Ok(()) };
        Fate::from_word(control.load(Word::Closed)).map_or(Ok(()), Err)
    }
}

/// Bytes copied before the receiver's user gets its turn.
const TURN_BYTES: u64 = 32 << 10;
