//! The send queue: what we asked of the peer, in order, until it is reported.

use std::collections::VecDeque;

use overside_verbs::port::{QpIndex, RawBuffer, RawCompletion};
use overside_verbs::{Opcode, RemoteToken, Status};

use crate::fate::Fate;
use crate::outbound::Source;

/// A request that was accepted and not reported.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    pub(crate) opcode: Opcode,
    pub(crate) signalled: bool,
    pub(crate) fence: bool,
    pub(crate) bytes: u64,
    pub(crate) act: Act,
    /// Where its payload lies; inline bytes are in `inline`.
    pub(crate) sources: Vec<Source>,
    pub(crate) inline: Vec<u8>,
    /// Where its last byte is among all that were queued; 0 before. The kernel has taken it, and
    /// the peer may know of it, once so much was sent.
    end: u64,
    state: State,
}

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Send(Option<u32>),
    /// The target, immediate data, and how many bytes were queued.
    Write(RemoteToken, Option<u32>, u64),
    /// The sink, and how much of it is filled.
    Read(RawBuffer, RemoteToken, usize),
    FetchAdd(RemoteToken, u64),
    CompareSwap(RemoteToken, u64, u64),
}

#[derive(Clone, Copy, Debug)]
enum State {
    Waits,
    /// The peer's number for it.
    Queued(u64),
    Done(Status, u64),
}

impl Act {
    /// Whether it meets a receive at the peer.
    pub(crate) fn takes_receive(&self) -> bool {
        matches!(self, Act::Send(_) | Act::Write(_, Some(_), _))
    }

    /// Whether a part of it was queued.
    pub(crate) fn is_begun(&self) -> bool {
        matches!(self, Act::Write(_, _, 1..))
    }

    /// Whether the peer answers it with more than an acknowledgement.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self, Act::Read(..) | Act::FetchAdd(..) | Act::CompareSwap(..))
    }
}

/// Requests in the order of posting: reported ones have left, then those under way, then those that
/// wait.
#[derive(Debug)]
pub(crate) struct Requests {
    entries: VecDeque<Entry>,
    /// The first that waits.
    next: usize,
    /// Those at the front that have ended and are not reported, since the kernel may still send
    /// from their memory.
    ended: usize,
    /// From this byte of all that were queued on it may.
    lent_from: u64,
    /// The number of the next one that goes to the peer.
    number: u64,
    /// Under way and to be answered.
    reading: usize,
    /// Gather entries of all of them.
    sources: usize,
    depth: usize,
    sources_max: usize,
    spare: Vec<Vec<Source>>,
    /// A request found no room, and nothing was reported since.
    wants_room: bool,
    /// The last that succeeded silently, while none after it was reported.
    silent: Option<RawCompletion>,
    /// Nothing is posted any more.
    over: bool,
}

impl Requests {
    pub(crate) fn new(depth: usize, sources_max: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            next: 0,
            ended: 0,
            lent_from: u64::MAX,
            number: 0,
            reading: 0,
            sources: 0,
            depth,
            sources_max,
            spare: Vec::new(),
            wants_room: false,
            silent: None,
            over: false,
        }
    }

    /// Whether one more of so many gather entries may be posted now; if not, somebody waits for
    /// room.
    pub(crate) fn has_room(&mut self, sources: usize) -> bool {
        let room = self.entries.len() < self.depth && (self.sources == 0 || self.sources + sources <= self.sources_max);
        self.wants_room |= !room;
        room
    }

    /// An empty list for a request's sources.
    pub(crate) fn list(&mut self) -> Vec<Source> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn push(&mut self, mut entry: Entry) {
        self.sources += entry.sources.len();
        // An honest caller gives a READ room; no byte is written past a sink.
        if let Act::Read(sink, token, _) = entry.act
            && token.len > sink.len as u64
        {
            entry.state = State::Done(Status::RemoteAccess, 0);
        }
        self.entries.push_back(entry);
    }

    /// The next one that waits for its turn.
    pub(crate) fn waiting(&mut self) -> Option<&Entry> {
        while let Some(Entry { state: State::Done(..), .. }) = self.entries.get(self.next) {
            self.next += 1;
        }
        self.entries.get(self.next)
    }

    /// Whether the peer has not said of one under way that it has carried it out.
    pub(crate) fn are_under_way(&mut self) -> bool {
        matches!(self.first_open(), Some(Entry { state: State::Queued(_), .. }))
    }

    /// How many wait.
    pub(crate) fn waiting_count(&self) -> usize {
        self.entries.len() - self.next
    }

    /// Whether its fence must wait, or there is no room for another answer.
    pub(crate) fn next_is_held_back(&self) -> bool {
        let held = |e: &Entry| (e.fence && self.reading > 0) || (e.act.is_answered() && self.reading >= READING_MAX);
        self.entries.get(self.next).is_some_and(held)
    }

    /// The one that [`waiting`](Self::waiting) found.
    pub(crate) fn next_mut(&mut self) -> Option<&mut Entry> {
        self.entries.get_mut(self.next)
    }

    /// The one that waited is queued up to `queued`.
    pub(crate) fn advance(&mut self, queued: u64) {
        let Some(entry) = self.entries.get_mut(self.next) else { return };
        (entry.state, entry.end) = (State::Queued(self.number), queued);
        self.reading += usize::from(entry.act.is_answered());
        self.number += 1;
        self.next += 1;
    }

    /// The peer has carried out everything before `acked`, when `sent` bytes had left. Reports what
    /// has ended.
    ///
    /// # Errors
    /// When the peer cannot have. What has not left wholly it does not know: `Outbound` still
    /// points to that memory.
    pub(crate) fn acknowledge(
        &mut self,
        acked: u64,
        sent: u64,
        qp: QpIndex,
        out: &mut VecDeque<RawCompletion>,
    ) -> Result<(), Fate> {
        if acked > self.number {
            return Err(Fate::Malformed("it acknowledges what was not asked"));
        }
        while let Some(Entry { state: State::Queued(number), act, end, .. }) = self.first_open() {
            if *number >= acked {
                break;
            }
            if *end > sent {
                return Err(Fate::Malformed("it acknowledges what was not sent"));
            }
            if act.is_answered() {
                return Err(Fate::Malformed("it acknowledges what it must answer"));
            }
            self.end_first(Status::Success, 0);
        }
        self.report(qp, out);
        Ok(())
    }

    /// The request with this number, if an answer to it may come now: all before it have ended, and
    /// it is among the `sent` bytes.
    pub(crate) fn answered(&mut self, number: u64, sent: u64) -> Option<&mut Entry> {
        let first = self.first_open()?;
        (matches!(first.state, State::Queued(this) if this == number) && first.end <= sent).then_some(first)
    }

    /// The first one that has not ended.
    fn first_open(&mut self) -> Option<&mut Entry> {
        while let Some(Entry { state: State::Done(..), .. }) = self.entries.get(self.ended) {
            self.ended += 1;
        }
        self.entries.get_mut(self.ended)
    }

    /// The first one under way has ended.
    pub(crate) fn end_first(&mut self, status: Status, value: u64) {
        let Some(first) = self.first_open() else { return };
        let answers = usize::from(first.act.is_answered() && matches!(first.state, State::Queued(_)));
        first.state = State::Done(status, value);
        self.reading -= answers;
    }

    /// From this byte on the kernel may still send from posted memory: what lies there is not
    /// reported.
    pub(crate) fn lend_from(&mut self, byte: u64) {
        self.lent_from = byte;
    }

    /// Whether nothing is left to report.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reports what has ended, in order; of what ended silently the last, where somebody waits for
    /// its room or nothing comes after it.
    pub(crate) fn report(&mut self, qp: QpIndex, out: &mut VecDeque<RawCompletion>) {
        self.report_ended(qp, out);
        if self.wants_room || (self.over && self.entries.is_empty()) {
            let silent = self.silent.take();
            self.wants_room &= silent.is_none();
            out.extend(silent);
        }
    }

    fn report_ended(&mut self, qp: QpIndex, out: &mut VecDeque<RawCompletion>) {
        while let Some(Entry { state: State::Done(status, value), end, .. }) = self.entries.front() {
            let (status, value) = (*status, *value);
            if *end > self.lent_from {
                return;
            }
            let Some(entry) = self.entries.pop_front() else { return };
            self.next = self.next.saturating_sub(1);
            self.ended = self.ended.saturating_sub(1);
            self.sources -= entry.sources.len();
            let report = RawCompletion::new(entry.slot, Some(qp), entry.opcode, status);
            let report = RawCompletion { bytes: entry.bytes, value, ..report };
            if entry.signalled || status != Status::Success {
                out.push_back(report);
                (self.silent, self.wants_room) = (None, false);
            } else {
                self.silent = Some(report);
            }
            if self.spare.len() < SPARE_MAX && entry.sources.capacity() <= SPARE_LEN_MAX {
                let mut list = entry.sources;
                list.clear();
                self.spare.push(list);
            }
        }
    }

    /// How many had left (and may have taken effect), and how many had not, when `sent` bytes had.
    pub(crate) fn effects(&self, sent: u64) -> (usize, usize) {
        let open = self.entries.iter().filter(|entry| !matches!(entry.state, State::Done(..)));
        let (mut perhaps, mut not) = (0, 0);
        for entry in open {
            match entry.state {
                State::Queued(_) if entry.end <= sent => perhaps += 1,
                // A WRITE that has left in part may have changed something.
                _ if entry.act.is_begun() => perhaps += 1,
                _ => not += 1,
            }
        }
        (perhaps, not)
    }

    /// Ends all of them, when `sent` bytes had left. `too_long` is the message that the peer says
    /// was too long.
    pub(crate) fn flush(
        &mut self,
        qp: QpIndex,
        fate: Fate,
        (too_long, sent): (Option<u64>, u64),
        out: &mut VecDeque<RawCompletion>,
    ) {
        for entry in &mut self.entries {
            let met = entry.act.takes_receive() && entry.end <= sent;
            entry.state = match entry.state {
                State::Done(status, value) => State::Done(status, value),
                State::Queued(number) if met && Some(number) == too_long => State::Done(Status::TooLong, 0),
                _ => State::Done(fate.pending(), 0),
            };
        }
        (self.reading, self.over) = (0, true);
        self.report(qp, out);
    }
}

impl Entry {
    pub(crate) fn new(slot: u32, opcode: Opcode, act: Act, sources: Vec<Source>) -> Self {
        let bytes = sources.iter().map(|source| source.len as u64).sum();
        Self {
            slot,
            opcode,
            signalled: true,
            fence: false,
            bytes,
            act,
            sources,
            inline: Vec::new(),
            end: 0,
            state: State::Waits,
        }
    }
}

/// READs and atomics under way; a peer that asks for more at a time is closed.
pub(crate) const READING_MAX: usize = 128;
const SPARE_MAX: usize = 32;
const SPARE_LEN_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use overside_memory::SegmentId;

    fn reported(out: &mut VecDeque<RawCompletion>) -> Vec<(u32, Status)> {
        out.drain(..).map(|done| (done.slot, done.status)).collect()
    }

    /// A SEND, a READ behind it, a SEND behind that, all under way; each 100 bytes of the stream.
    fn under_way() -> Requests {
        let mut requests = Requests::new(32, 32);
        let sink = RawBuffer { address: std::ptr::null_mut(), len: 8, segment: SegmentId::FOREIGN };
        let read = Act::Read(sink, RemoteToken { at: 0, len: 8, rkey: 1 }, 0);
        for (slot, opcode, act) in
            [(0, Opcode::Send, Act::Send(None)), (1, Opcode::Read, read), (2, Opcode::Send, Act::Send(None))]
        {
            requests.push(Entry::new(slot, opcode, act, Vec::new()));
            requests.waiting();
            requests.advance(100 * u64::from(slot + 1));
        }
        requests
    }

    #[test]
    fn what_the_kernel_may_send_again_is_not_reported_and_holds_up_no_answer() {
        let (mut requests, mut out, qp) = (under_way(), VecDeque::new(), QpIndex(0));
        requests.lend_from(50);
        assert_eq!(requests.acknowledge(1, 300, qp, &mut out), Ok(()));
        assert_eq!(reported(&mut out), []);
        assert!(requests.answered(0, 300).is_none() && requests.answered(2, 300).is_none());
        assert!(requests.answered(1, 300).is_some(), "the READ is next, though the SEND before it is not reported");
        requests.end_first(Status::Success, 0);
        assert_eq!(requests.acknowledge(3, 300, qp, &mut out), Ok(()));
        assert_eq!(reported(&mut out), [], "the order is kept");
        requests.lend_from(250);
        requests.report(qp, &mut out);
        assert_eq!(reported(&mut out), [(0, Status::Success), (1, Status::Success)]);
        requests.lend_from(u64::MAX);
        requests.report(qp, &mut out);
        assert_eq!(reported(&mut out), [(2, Status::Success)]);
        assert!(requests.is_empty());
    }

    #[test]
    fn an_end_reports_each_once_as_memory_comes_back() {
        let (mut requests, mut out, qp) = (under_way(), VecDeque::new(), QpIndex(0));
        requests.lend_from(50);
        assert_eq!(requests.acknowledge(1, 300, qp, &mut out), Ok(()));
        requests.flush(qp, Fate::Died, (None, 300), &mut out);
        assert_eq!(reported(&mut out), []);
        requests.lend_from(u64::MAX);
        requests.report(qp, &mut out);
        let gone = Status::PeerDied;
        assert_eq!(reported(&mut out), [(0, Status::Success), (1, gone), (2, gone)]);
    }

    /// Each is 100 bytes of the stream: the peer has no word about it before the last of them has
    /// left.
    #[test]
    fn what_has_not_left_wholly_is_neither_acknowledged_nor_answered() {
        let qp = QpIndex(0);
        for sent in [0, 1, 99, 100, 199, 200, 299, 300] {
            let (mut requests, mut out) = (under_way(), VecDeque::new());
            assert_eq!(requests.acknowledge(1, sent, qp, &mut out).is_ok(), sent >= 100, "the SEND, {sent} bytes sent");
            assert_eq!(reported(&mut out).len(), usize::from(sent >= 100));
            assert_eq!(requests.answered(1, sent).is_some(), sent >= 200, "the READ, {sent} bytes sent");
            if sent < 200 {
                continue;
            }
            requests.end_first(Status::Success, 0);
            assert_eq!(requests.acknowledge(3, sent, qp, &mut out).is_ok(), sent >= 300, "{sent} bytes sent");
            assert!(requests.acknowledge(4, sent, qp, &mut out).is_err(), "never asked");
        }
    }

    #[test]
    fn a_peer_calls_no_message_too_long_that_it_has_not_got() {
        for (sent, too_long, ends) in [
            (300, 2, [Status::Flushed, Status::Flushed, Status::TooLong]),
            (299, 2, [Status::Flushed; 3]),
            (300, 1, [Status::Flushed; 3]),
        ] {
            let (mut requests, mut out) = (under_way(), VecDeque::new());
            requests.flush(QpIndex(0), Fate::TooLong, (Some(too_long), sent), &mut out);
            let reported: Vec<Status> = reported(&mut out).into_iter().map(|(_, status)| status).collect();
            assert_eq!(reported, ends, "message {too_long}, {sent} bytes sent");
        }
    }
}
