//! A queue pair: a socket, both directions of it, and what either side has asked of the other.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::port::{QpIndex, RawCompletion, RawReceive};
use overside_verbs::{Opcode, Status};
use rustix::io::Errno;

use crate::control::LastEnds;
use crate::credits::{Credits, Pool, Taken};
use crate::fate::Fate;
use crate::frame::{Head, Op, WRITE_CHUNK};
use crate::handshake::Wire;
use crate::inbound::{Body, Frame, Inbound};
use crate::outbound::{Outbound, Source};
use crate::prices::Prices;
use crate::registry::Registry;
use crate::requests::{Act, Requests};
use crate::seal::Seal;
use crate::silence::Silence;
use crate::target::Target;

/// A queue pair of a port.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) index: QpIndex,
    pub(crate) socket: OwnedFd,
    pub(crate) requests: Requests,
    pub(crate) receives: VecDeque<RawReceive>,
    pub(crate) credits: Credits,
    pub(crate) outbound: Outbound,
    /// Epoll tells when there is room to send.
    pub(crate) wants_room: bool,
    /// What was posted last waits for company.
    pub(crate) held: bool,
    /// Why the system gave the connection up, as it told a send: it tells only once, and a read
    /// learns of no reason any more.
    lost: Option<Errno>,
    /// There is more to take than the last turn did.
    pub(crate) more: bool,
    /// The peer's goodbye was heard: ours needs no answer.
    pub(crate) heard_bye: bool,
    inbound: Inbound,
    body: Option<(Body, Then)>,
    pub(crate) target: Target,
    /// Bytes received since the peer was last told.
    pub(crate) untold_bytes: u64,
    pub(crate) last_ends: LastEnds,
    /// The peer's request that was too long for its receive, or ours, as the peer says.
    too_long: Option<u64>,
    /// When the peer's present frame was last found to grow as it should, and how many bytes there
    /// were.
    pace: Option<(Instant, u64)>,
    silence: Silence,
}

/// What a large payload is.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// A message, the receive that it meets and its immediate data.
    Receive(Taken, Option<u32>),
    /// Bytes of the READ with this number.
    Data(u64),
}

/// What a connection needs of its port.
pub(crate) struct Context<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) domain: u64,
    pub(crate) pool: &'a mut Pool,
    pub(crate) done: &'a mut VecDeque<RawCompletion>,
    /// Reports after which a turn ends.
    pub(crate) done_max: usize,
}

impl Conn {
    /// With room for so many requests and gather entries; see [`Outbound::new`] for `prices`.
    pub(crate) fn new(
        index: QpIndex,
        wire: Wire,
        depth: usize,
        sources_max: usize,
        (prices, zero_copy): (Arc<Prices>, bool),
    ) -> Self {
        Self {
            index,
            socket: wire.socket,
            requests: Requests::new(depth, sources_max),
            receives: VecDeque::new(),
            credits: Credits::default(),
            outbound: Outbound::new(Seal::new(wire.keys.map(|keys| keys.out)), prices, zero_copy),
            wants_room: false,
            held: false,
            lost: None,
            more: true,
            heard_bye: false,
            inbound: Inbound::new(Seal::new(wire.keys.map(|keys| keys.into))),
            body: None,
            target: Target::new(),
            untold_bytes: 0,
            last_ends: LastEnds::default(),
            too_long: None,
            pace: None,
            silence: Silence::default(),
        }
    }

    /// Takes what has come, answers it, and sends what may go. True: something moved.
    pub(crate) fn turn(&mut self, cx: &mut Context<'_>) -> Result<bool, Fate> {
        let before = self.inbound.taken;
        self.more = false;
        self.hear();
        self.requests.report(self.index, cx.done);
        if self.held {
            // What came before an end is taken first: the same end shows below.
            let _ = self.flush();
        }
        let taken = self.take_frames(cx);
        let moved = self.inbound.taken != before;
        // What came before an end counts.
        taken.map_err(|fate| self.known(fate))?;
        self.pump();
        self.acknowledge(!moved);
        self.flush()?;
        Ok(moved)
    }

    fn take_frames(&mut self, cx: &mut Context<'_>) -> Result<(), Fate> {
        let budget = self.inbound.taken + TURN_BYTES;
        self.inbound.dry = false;
        loop {
            if let Some((body, then)) = &mut self.body {
                if self.inbound.take(body)? {
                    let (len, then) = (body.len(), *then);
                    self.body = None;
                    self.finish(len, then, cx)?;
                    continue;
                }
            } else {
                match self.inbound.frame()? {
                    Some(Frame::Whole(head, payload)) => {
                        self.whole(head, payload, cx)?;
                        if cx.done.len() >= cx.done_max {
                            self.more = true;
                            return Ok(());
                        }
                        continue;
                    }
                    Some(Frame::Large(head)) => {
                        self.large(head, cx)?;
                        continue;
                    }
                    None => {}
                }
            }
            if cx.done.len() >= cx.done_max || self.inbound.taken >= budget {
                self.more = true;
                return Ok(());
            }
            // A socket that gave less than was asked for has no more now: asking again would be a call for nothing.
            if self.inbound.dry || !self.inbound.fill(&self.socket, self.body.as_mut().map(|(body, _)| body))? {
                return Ok(());
            }
        }
    }

    /// What every head carries.
    fn heed(&mut self, head: &Head, cx: &mut Context<'_>) -> Result<(), Fate> {
        if self.target.is_writing() && head.op.is_request() {
            return Err(Fate::Malformed("a request between the parts of a WRITE"));
        }
        if head.credits > 0 {
            self.credits.ours = self.credits.ours.saturating_add(head.credits as usize);
            self.credits.asked = false;
        }
        self.requests.acknowledge(head.acked, self.outbound.sent(), self.index, cx.done)
    }

    fn whole(&mut self, head: Head, payload: std::ops::Range<usize>, cx: &mut Context<'_>) -> Result<(), Fate> {
        self.heed(&head, cx)?;
        match head.op {
            Op::Send { immediate } => {
                let taken = self.meet(head.len as usize, cx)?;
                let bytes = self.inbound.stage(payload);
                // SAFETY: [tcp-posted] the receive is ours until its report, and `meet` checked its length.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), taken.receive.buffer.address, bytes.len()) };
                let len = bytes.len() as u64;
                self.target.done();
                self.received(taken, len, immediate, Opcode::Receive, cx);
                Ok(())
            }
            Op::Write { .. } | Op::WriteMore => self.write(&head, payload, cx),
            Op::Read { .. } | Op::FetchAdd { .. } | Op::CompareSwap { .. } => {
                self.target.execute(head.op, cx.registry, cx.domain)
            }
            Op::Data => self.data(&head, Some(payload), cx),
            Op::Value(value) => self.answered(head.acked, Some(value), cx),
            Op::Refused => self.answered(head.acked, None, cx),
            Op::Ack => Ok(()),
            Op::Want(count) => {
                self.credits.want(count, self.index.0, cx.pool);
                Ok(())
            }
            Op::Recall => self.give_back(),
            Op::Return(count) => self.given_back(count, cx),
            Op::Bye { why, number } => {
                self.heard_bye = true;
                let fate = Fate::told(why);
                self.too_long = (fate == Fate::TooLong).then_some(number);
                Err(fate)
            }
        }
    }

    fn large(&mut self, head: Head, cx: &mut Context<'_>) -> Result<(), Fate> {
        self.heed(&head, cx)?;
        match head.op {
            Op::Send { immediate } => {
                let taken = self.meet(head.len as usize, cx)?;
                // SAFETY: [tcp-posted] the receive is ours until its report, and `meet` checked its length.
                let body = unsafe { self.inbound.body(taken.receive.buffer.address, head.len as usize) };
                self.body = Some((body, Then::Receive(taken, immediate)));
                Ok(())
            }
            Op::Data => self.data(&head, None, cx),
            _ => Err(Fate::Malformed("a large frame that may not be")),
        }
    }

    /// The receive that a message of `len` bytes meets. One that does not fit ends the queue pair.
    fn meet(&mut self, len: usize, cx: &mut Context<'_>) -> Result<Taken, Fate> {
        let taken = self.credits.take(&mut self.receives, cx.pool).ok_or(NO_CREDIT)?;
        if len > taken.receive.buffer.len {
            self.too_long = Some(self.target.number());
            let too_long = Status::TooLong;
            cx.done.push_back(RawCompletion::new(taken.receive.slot, Some(self.index), Opcode::Receive, too_long));
            return Err(Fate::TooLong);
        }
        Ok(taken)
    }

    fn received(&mut self, taken: Taken, bytes: u64, immediate: Option<u32>, opcode: Opcode, cx: &mut Context<'_>) {
        self.untold_bytes += bytes;
        self.credits.share(self.receives.len(), cx.pool);
        let report = RawCompletion::new(taken.receive.slot, Some(self.index), opcode, Status::Success);
        cx.done.push_back(report.with(bytes, immediate));
    }

    fn write(&mut self, head: &Head, payload: std::ops::Range<usize>, cx: &mut Context<'_>) -> Result<(), Fate> {
        let bytes = self.inbound.stage(payload);
        let Some(written) = self.target.write(head, bytes, cx.registry, cx.domain)? else { return Ok(()) };
        self.untold_bytes += written.bytes;
        let Some(immediate) = written.immediate else { return Ok(()) };
        // It came with a credit; only one that was allowed consumes a receive.
        let taken = self.credits.take(&mut self.receives, cx.pool).ok_or(NO_CREDIT)?;
        match written.placed {
            true => self.received(taken, written.bytes, Some(immediate), Opcode::ReceiveImmediate, cx),
            false => self.credits.put_back(taken, &mut self.receives, cx.pool),
        }
        Ok(())
    }

    /// The next bytes of the READ that is answered: of the stage, or still to come.
    fn data(&mut self, head: &Head, staged: Option<std::ops::Range<usize>>, cx: &mut Context<'_>) -> Result<(), Fate> {
        let out_of_place = Fate::Malformed("an answer to no READ");
        let len = head.len as usize;
        let entry = self.requests.answered(head.acked, self.outbound.sent()).ok_or(out_of_place)?;
        let Act::Read(sink, token, done) = entry.act else { return Err(out_of_place) };
        if len as u64 > token.len - done as u64 {
            return Err(Fate::Malformed("more bytes than the READ asked for"));
        }
        let place = sink.address.wrapping_add(done);
        match staged {
            Some(range) => {
                let bytes = self.inbound.stage(range);
                // SAFETY: [tcp-posted] the sink is ours until its report, and as long as the READ: `Requests::push` saw to it.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, len) };
                self.finish(len, Then::Data(head.acked), cx)
            }
            None => {
                // SAFETY: [tcp-posted] as above.
                self.body = Some((unsafe { self.inbound.body(place, len) }, Then::Data(head.acked)));
                Ok(())
            }
        }
    }

    /// A large payload is in its place.
    fn finish(&mut self, len: usize, then: Then, cx: &mut Context<'_>) -> Result<(), Fate> {
        match then {
            Then::Receive(taken, immediate) => {
                self.target.done();
                self.received(taken, len as u64, immediate, Opcode::Receive, cx);
            }
            Then::Data(number) => {
                let entry = self
                    .requests
                    .answered(number, self.outbound.sent())
                    .ok_or(Fate::Malformed("an answer to no READ"))?;
                let Act::Read(_, token, done) = &mut entry.act else { return Ok(()) };
                *done += len;
                if *done as u64 == token.len {
                    self.requests.end_first(Status::Success, 0);
                    self.requests.report(self.index, cx.done);
                }
            }
        }
        Ok(())
    }

    /// An answer without bytes: the value that an atomic found (or that an empty READ is done), or
    /// a refusal.
    fn answered(&mut self, number: u64, value: Option<u64>, cx: &mut Context<'_>) -> Result<(), Fate> {
        let out_of_place = Fate::Malformed("an answer to nothing that was asked");
        let entry = self.requests.answered(number, self.outbound.sent()).ok_or(out_of_place)?;
        let fits = match (&entry.act, value) {
            (Act::FetchAdd(..) | Act::CompareSwap(..), _) => true,
            (Act::Read(_, token, _), Some(_)) => token.len == 0,
            (Act::Read(..), None) => true,
            (Act::Write(..), None) => true,
            (Act::Write(..), Some(_)) | (Act::Send(_), _) => false,
        };
        if !fits {
            return Err(out_of_place);
        }
        let status = if value.is_some() { Status::Success } else { Status::RemoteAccess };
        self.requests.end_first(status, value.unwrap_or(0));
        self.requests.report(self.index, cx.done);
        Ok(())
    }

    /// Queues a frame without payload.
    pub(crate) fn say(&mut self, op: Op) {
        let head = self.head(op, 0);
        self.outbound.frame(&head, &[]);
    }

    fn head(&mut self, op: Op, len: usize) -> Head {
        self.untold_bytes = 0;
        Head { acked: self.target.acked(), credits: self.credits.grant(self.receives.len()), len: len as u32, op }
    }

    /// Queues what may go: answers first, then requests in order.
    pub(crate) fn pump(&mut self) {
        let Self { target, outbound, credits, receives, .. } = self;
        target.answer(outbound, OUT_ROOM, || credits.grant(receives.len()));
        while self.outbound.waiting() < OUT_ROOM {
            let Some(entry) = self.requests.waiting() else { return };
            let takes_receive = entry.act.takes_receive() && !entry.act.is_begun();
            if self.requests.next_is_held_back() {
                return;
            }
            if takes_receive && self.credits.ours == 0 {
                if !std::mem::replace(&mut self.credits.asked, true) {
                    let waiting = self.requests.waiting_count() as u32;
                    self.say(Op::Want(waiting));
                }
                return;
            }
            self.credits.ours -= usize::from(takes_receive);
            self.queue_next();
        }
    }

    /// Queues the next request, or the next part of a WRITE.
    fn queue_next(&mut self) {
        let (acked, credits) = (self.target.acked(), self.credits.grant(self.receives.len()));
        self.untold_bytes = 0;
        let Some(entry) = self.requests.next_mut() else { return };
        let head = |op, len: usize| Head { acked, credits, len: len as u32, op };
        let out = &mut self.outbound;
        match &mut entry.act {
            Act::Send(immediate) => {
                let head = head(Op::Send { immediate: *immediate }, entry.bytes as usize);
                // SAFETY: [tcp-posted] the request has not completed; what ends it first drops what was not sent.
                unsafe { out.frame_from(&head, &entry.sources, &entry.inline) };
            }
            Act::Write(token, immediate, done) => {
                let total = entry.bytes;
                let len = (total - *done).min(WRITE_CHUNK as u64) as usize;
                let first = Op::Write { rkey: token.rkey, at: token.at, total, immediate: *immediate };
                let head = head(if *done == 0 { first } else { Op::WriteMore }, len);
                if entry.inline.is_empty() {
                    // SAFETY: [tcp-posted] as above.
                    unsafe { out.frame_from(&head, &cut(&entry.sources, *done as usize, len), &[]) };
                } else {
                    out.frame(&head, &entry.inline[*done as usize..][..len]);
                }
                *done += len as u64;
                if *done < total {
                    return;
                }
            }
            Act::Read(_, token, _) => {
                out.frame(&head(Op::Read { rkey: token.rkey, at: token.at, len: token.len }, 0), &[]);
            }
            Act::FetchAdd(token, add) => {
                out.frame(&head(Op::FetchAdd { rkey: token.rkey, at: token.at, add: *add }, 0), &[]);
            }
            Act::CompareSwap(token, compare, swap) => {
                let (compare, swap) = (*compare, *swap);
                out.frame(&head(Op::CompareSwap { rkey: token.rkey, at: token.at, compare, swap }, 0), &[]);
            }
        }
        self.requests.advance(self.outbound.queued());
    }

    /// Hears of memory that the kernel has sent from.
    fn hear(&mut self) {
        if self.outbound.is_lent() {
            self.outbound.hear(&self.socket);
            self.requests.lend_from(self.outbound.released());
        }
    }

    /// Sends what the system takes now.
    pub(crate) fn flush(&mut self) -> Result<(), Fate> {
        self.held = false;
        loop {
            let flushed = self.outbound.flush(&self.socket);
            if self.outbound.is_lent() {
                self.requests.lend_from(self.outbound.released());
            }
            match flushed {
                // There may be more than the queue was allowed to hold.
                Ok(true) => self.pump(),
                Ok(false) => return Ok(()),
                Err(Errno::PIPE) => return Err(self.known(Fate::Died)),
                Err(errno) => return Err(Fate::Lost(*self.lost.insert(errno))),
            }
            if self.outbound.waiting() == 0 {
                return Ok(());
            }
        }
    }

    /// An end, with the reason that the system told before.
    fn known(&self, fate: Fate) -> Fate {
        match (fate, self.lost) {
            (Fate::Died, Some(errno)) => Fate::Lost(errno),
            _ => fate,
        }
    }

    /// Holds the peer to a pace: a frame that was begun must grow.
    pub(crate) fn check_pace(&mut self, now: Instant) -> Result<(), Fate> {
        let taken = self.inbound.taken;
        match &mut self.pace {
            _ if !self.inbound.is_partial() => self.pace = None,
            None => self.pace = Some((now, taken)),
            Some((since, _)) if now.duration_since(*since) < PACE_WINDOW => {}
            Some((since, then)) => {
                if taken - *then < PACE_BYTES {
                    return Err(Fate::Malformed("it stopped in the middle of a frame"));
                }
                (*since, *then) = (now, taken);
            }
        }
        Ok(())
    }

    /// Whether the peer has a deadline.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.inbound.is_partial()
    }

    /// Whether the peer's host owes an acknowledgement, as far as is known without asking the
    /// system.
    pub(crate) fn is_sending(&self) -> bool {
        !self.requests.is_empty() || self.outbound.waiting() > 0
    }

    /// Whether the peer's host is still there.
    pub(crate) fn check_silence(&mut self) -> Result<(), Fate> {
        if self.is_sending() { self.silence.look(&self.socket) } else { Ok(()) }
    }

    /// Ends it: reports everything that is pending, but for what the kernel may still send from,
    /// and leaves a goodbye in `outbound`. What had left and what had not.
    pub(crate) fn end(&mut self, fate: Fate, pool: &mut Pool, out: &mut VecDeque<RawCompletion>) -> (usize, usize) {
        self.hear();
        let sent = self.outbound.sent();
        let effects = self.requests.effects(sent);
        let acked = self.target.acked_at_end(sent);
        // From here on nobody reads posted memory.
        let may_follow = self.outbound.drop_unsent();
        if may_follow && fate.is_ours() && !self.heard_bye {
            let number = self.too_long.unwrap_or(0);
            let head = Head { acked, credits: 0, len: 0, op: Op::Bye { why: fate.why(), number } };
            self.outbound.frame(&head, &[]);
        }
        let too_long = self.too_long.filter(|_| self.heard_bye);
        self.requests.flush(self.index, fate, (too_long, sent), out);
        let half = match self.body.take() {
            Some((_, Then::Receive(taken, _))) if taken.shared => {
                self.credits.put_back(taken, &mut self.receives, pool);
                None
            }
            Some((_, Then::Receive(taken, _))) => Some(taken.receive),
            _ => None,
        };
        self.credits.end(pool);
        for receive in half.into_iter().chain(self.receives.drain(..)) {
            out.push_back(RawCompletion::new(receive.slot, Some(self.index), Opcode::Receive, fate.pending()));
        }
        effects
    }
}

/// The part of a gather list from byte `at` on, `len` bytes long.
fn cut(sources: &[Source], at: usize, len: usize) -> Vec<Source> {
    let (mut skip, mut left, mut out) = (at, len, Vec::new());
    for source in sources {
        let before = skip.min(source.len);
        skip -= before;
        let now = left.min(source.len - before);
        if now > 0 {
            out.push(Source { address: source.address.wrapping_add(before), len: now });
            left -= now;
        }
        if left == 0 {
            break;
        }
    }
    out
}

const NO_CREDIT: Fate = Fate::Malformed("a message that no receive was granted for");
/// Bytes of one turn; then others have theirs.
const TURN_BYTES: u64 = 1 << 20;
/// Bytes that may wait to be sent before more is queued: requests stay where they are until then.
pub(crate) const OUT_ROOM: u64 = 1 << 20;
/// A frame that was begun grows by so much in this time, or its sender is closed.
const PACE_WINDOW: Duration = Duration::from_secs(5);
const PACE_BYTES: u64 = 4 << 10;
