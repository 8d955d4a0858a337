//! All connections of a port, driven by whoever has the lock: the port's owner when it polls, else
//! the port's thread.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::pairs::{Pairs, Reports};
use overside_verbs::port::{Payload, QpIndex, RawCompletion, RawReceive, RawRequest, RawWork};
use overside_verbs::watch::{Signal, Watch};
use overside_verbs::{Link, Opcode, PortOptions, VerbsError};
use rustix::net::{RecvFlags, Shutdown};

use crate::conn::{Conn, Context};
use crate::credits::Pool;
use crate::fate::Fate;
use crate::frame::MESSAGE_MAX;
use crate::handshake::Wire;
use crate::outbound::{Outbound, Source};
use crate::provider::{DEPTH_MAX, INLINE_MAX, SGE_MAX, Shared};
use crate::registry::Known;
use crate::requests::{Act, Entry, Requests};

/// The state of a port.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) domain: u64,
    pub(crate) watch: Arc<Watch>,
    /// Readable when the port's thread has something for the port's owner.
    news: Signal,
    rung: bool,
    /// The owner sleeps, as far as it said.
    pub(crate) armed: bool,
    depth: usize,
    sources_max: usize,
    /// By index; none where there was no queue pair or it has ended.
    pub(crate) conns: Pairs<Conn>,
    /// Indexes of those that are there.
    pub(crate) live: Vec<u32>,
    pool: Pool,
    /// Messages may wait for company: somebody sends them soon, whoever else calls in.
    pub(crate) may_hold: bool,
    /// Perhaps some wait.
    pub(crate) holds: bool,
    /// The port's thread sleeps until a socket has something, however often the owner calls in.
    pub(crate) thread_sleeps: bool,
    pub(crate) reports: Reports,
    known: Known,
    leaving: Vec<Leaving>,
    ready: Vec<u64>,
    next_look: Instant,
}

// SAFETY: [tcp-posted] the addresses of posted memory may be used on whichever thread has the engine's lock.
unsafe impl Send for Engine {}

/// A connection that has ended here: its goodbye must still reach the peer, and the kernel may
/// still send from posted memory. It counts among the open ones for so long: otherwise peers that
/// break the protocol at once could take every descriptor.
#[derive(Debug)]
struct Leaving {
    index: QpIndex,
    socket: OwnedFd,
    outbound: Outbound,
    /// What is not reported yet, since the kernel may send from it.
    lent: Requests,
    until: Instant,
    said: bool,
    /// Nothing more is said or heard.
    over: bool,
}

impl Engine {
    pub(crate) fn new(
        shared: Arc<Shared>,
        domain: u64,
        options: PortOptions,
        watch: Arc<Watch>,
    ) -> Result<Self, VerbsError> {
        let news = Signal::new()?;
        watch.add(&news, NEWS)?;
        Ok(Self {
            domain,
            watch,
            news,
            rung: false,
            armed: false,
            depth: options.depth.clamp(DEPTH_MIN, DEPTH_MAX),
            sources_max: options.sges.max(SGE_MAX),
            conns: Pairs::default(),
            live: Vec::new(),
            pool: Pool::new(options.shared_receives),
            may_hold: false,
            holds: false,
            thread_sleeps: false,
            reports: Reports::default(),
            known: Known::default(),
            leaving: Vec::new(),
            ready: Vec::new(),
            next_look: Instant::now(),
            shared,
        })
    }

    pub(crate) fn attach(&mut self, qp: QpIndex, link: Link) -> Result<(), VerbsError> {
        let wire: Wire = self.shared.instance().opened(self.domain, link)?;
        self.watch.add(&wire.socket, u64::from(qp.0))?;
        let outbound = (self.shared.prices.clone(), self.shared.options.zero_copy);
        let mut conn = Conn::new(qp, wire, self.depth, self.sources_max, outbound);
        self.pool.sharers += 1;
        conn.credits.share(0, &mut self.pool);
        self.conns.insert(qp, conn);
        self.live.push(qp.0);
        self.shared.party.opened();
        Ok(())
    }

    /// One request; false when there is no room for it now.
    ///
    /// # Safety
    /// As `Port::post`.
    pub(crate) unsafe fn post_one(&mut self, qp: QpIndex, request: &RawRequest<'_>) -> Result<bool, VerbsError> {
        let Self { conns, known, shared, domain, .. } = self;
        let conn = open(conns, qp)?;
        let payload = match request.work {
            RawWork::Send(payload, _) | RawWork::Write(payload, ..) => payload,
            RawWork::SendRegion(_) => return Err(NO_REGIONS),
            _ => Payload::Inline(&[]),
        };
        let (mut sources, mut inline, mut bytes) = (Vec::new(), Vec::new(), 0);
        match payload {
            Payload::Gather(fragments) => {
                limit("a gather list's length", fragments.len() as u64, SGE_MAX as u64)?;
                if !conn.requests.has_room(fragments.len()) {
                    return Ok(false);
                }
                for fragment in fragments {
                    known.check(&shared.registry, *domain, fragment)?;
                    bytes += u64::from(fragment.len);
                }
                limit("a message's length", bytes, MESSAGE_MAX)?;
                sources = conn.requests.list();
                sources.extend(fragments.iter().map(|f| Source { address: f.address, len: f.len as usize }));
            }
            Payload::Inline(payload) => {
                limit("an inline message's length", payload.len() as u64, INLINE_MAX as u64)?;
                if !conn.requests.has_room(0) {
                    return Ok(false);
                }
                bytes = payload.len() as u64;
                inline.extend_from_slice(payload);
            }
        }
        let (opcode, act) = match request.work {
            RawWork::Send(_, immediate) => (Opcode::Send, Act::Send(immediate)),
            RawWork::SendRegion(_) => return Err(NO_REGIONS),
            RawWork::Write(_, token, immediate) => (Opcode::Write, Act::Write(token, immediate, 0)),
            RawWork::Read(sink, token) => {
                limit("a READ's length", token.len, MESSAGE_MAX)?;
                bytes = token.len;
                (Opcode::Read, Act::Read(sink, token, 0))
            }
            RawWork::FetchAdd(token, add) => (Opcode::FetchAdd, Act::FetchAdd(token, add)),
            RawWork::CompareSwap(token, compare, swap) => (Opcode::CompareSwap, Act::CompareSwap(token, compare, swap)),
        };
        let mut entry = Entry::new(request.slot, opcode, act, sources);
        (entry.inline, entry.bytes) =
            (inline, if matches!(act, Act::FetchAdd(..) | Act::CompareSwap(..)) { 8 } else { bytes });
        (entry.signalled, entry.fence) = (request.signalled, request.fence);
        conn.requests.push(entry);
        Ok(true)
    }

    /// Before a batch: what was deregistered is forgotten.
    pub(crate) fn refresh(&mut self) {
        self.known.refresh(&self.shared.registry);
    }

    pub(crate) fn post_receive(&mut self, qp: Option<QpIndex>, batch: &[RawReceive]) -> Result<usize, VerbsError> {
        let Some(qp) = qp else {
            let room = self.pool.max.saturating_sub(self.pool.receives.len()).min(batch.len());
            self.pool.receives.extend(&batch[..room]);
            self.serve_waiting();
            return Ok(room);
        };
        let depth = self.depth;
        let conn = open(&mut self.conns, qp)?;
        let room = depth.saturating_sub(conn.receives.len()).min(batch.len());
        conn.receives.extend(&batch[..room]);
        Ok(room)
    }

    /// Shared receives go to whoever waits for them, in turn; if all are kept for others, those are
    /// asked for theirs.
    fn serve_waiting(&mut self) {
        for _ in 0..self.pool.waiting.len() {
            let Some(index) = self.pool.waiting.front().copied() else { break };
            let Some(conn) = self.conns.get_mut(index) else {
                self.pool.waiting.pop_front();
                continue;
            };
            conn.credits.share(conn.receives.len(), &mut self.pool);
            self.pool.waiting.pop_front();
            if conn.credits.waits() {
                self.pool.waiting.push_back(index);
            }
        }
        if self.pool.is_hoarded() {
            self.recall();
        }
    }

    fn recall(&mut self) {
        let now = Instant::now();
        let mut hoarders = Vec::new();
        for index in &self.live {
            let Some(conn) = self.conns.get_mut(*index) else { continue };
            if conn.recall(now) {
                hoarders.push(*index);
            }
        }
        for index in hoarders {
            self.end(index, Fate::Malformed("it keeps receives that others wait for"), true);
        }
    }

    /// Progresses all connections, until `done_max` reports wait.
    pub(crate) fn turn(&mut self, done_max: usize) {
        if self.rung {
            self.news.drain();
            self.rung = false;
        }
        if self.live.len() <= ALWAYS_ASKED {
            for i in 0..self.live.len() {
                let Some(index) = self.live.get(i).copied() else { break };
                self.turn_one(index, done_max);
            }
        } else {
            self.turn_ready(done_max);
        }
        if !self.pool.waiting.is_empty() {
            self.serve_waiting();
        }
        if !self.leaving.is_empty() || self.live.iter().any(|i| is_timed(&self.conns, *i)) {
            self.tick();
        }
        // Another one begins next time.
        if self.live.len() > 1 {
            self.live.rotate_left(1);
        }
    }

    /// Many connections: epoll says which have something, and those that have bytes or
    /// acknowledgements left over need no saying.
    fn turn_ready(&mut self, done_max: usize) {
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        // An error is the system's; what it would have told shows at the next look.
        let _ = self.watch.wait(Duration::ZERO, |token, _| ready.push(token));
        ready.retain(|token| *token != NEWS);
        for index in &self.live {
            let left_over = |conn: &Conn| conn.more || conn.outbound.waiting() > 0 || conn.owes();
            if self.conns.get(*index).is_some_and(left_over) {
                ready.push(u64::from(*index));
            }
        }
        ready.sort_unstable();
        ready.dedup();
        for token in &ready {
            self.turn_one(*token as u32, done_max);
        }
        self.ready = ready;
    }

    fn turn_one(&mut self, index: u32, done_max: usize) {
        let Self { conns, shared, domain, pool, reports: Reports { done, .. }, .. } = self;
        let Some(conn) = conns.get_mut(index) else { return };
        if done.len() >= done_max {
            conn.more = true;
            return;
        }
        let mut cx = Context { registry: &shared.registry, domain: *domain, pool, done, done_max };
        if let Err(fate) = conn.turn(&mut cx) {
            self.end(index, fate, true);
        }
    }

    /// What time alone brings about.
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK;
        let done = &mut self.reports.done;
        let before = self.leaving.len();
        self.leaving.retain_mut(|leaving| leaving.stays(now, done));
        self.shared.party.ended(before - self.leaving.len());
        for i in (0..self.live.len()).rev() {
            let index = self.live[i];
            let Some(conn) = self.conns.get_mut(index) else { continue };
            if let Err(fate) = conn.check_pace(now).and_then(|()| conn.check_silence()) {
                self.end(index, fate, true);
            }
        }
    }

    /// Whether the time that passes matters.
    pub(crate) fn is_timed(&self) -> bool {
        let is_sending = |index: &u32| self.conns.get(*index).is_some_and(Conn::is_sending);
        !self.leaving.is_empty()
            || self.pool.is_hoarded()
            || self.live.iter().any(|i| is_timed(&self.conns, *i) || is_sending(i))
    }

    /// Tells peers what they do not know and asks epoll for what is wanted, before somebody sleeps.
    /// False: something is to be done now.
    pub(crate) fn settle(&mut self) -> bool {
        for i in (0..self.live.len()).rev() {
            let index = self.live[i];
            let Some(conn) = self.conns.get_mut(index) else { continue };
            if let Err(fate) = conn.settle() {
                // What came before the end is reported first.
                if fate.is_ours() {
                    self.end(index, fate, true);
                } else {
                    self.turn_one(index, usize::MAX);
                }
                continue;
            }
            let wants = conn.outbound.waiting() > 0;
            if wants != conn.wants_room {
                conn.wants_room = wants;
                self.watch.want_room(&conn.socket, u64::from(index), wants);
            }
        }
        !self.has_more() && self.reports.is_empty()
    }

    /// Whether a turn would find something that no descriptor tells of.
    pub(crate) fn has_more(&self) -> bool {
        self.live.iter().any(|i| self.conns.get(*i).is_some_and(|conn| conn.more))
    }

    /// Whether somebody must call in again: peers are to be told something, or there was no room
    /// for all that was posted.
    pub(crate) fn is_unsettled(&self) -> bool {
        let unsettled = |conn: &Conn| conn.owes() || conn.outbound.waiting() > 0;
        self.live.iter().any(|index| self.conns.get(*index).is_some_and(unsettled))
    }

    /// The owner sleeps and there is something for it.
    pub(crate) fn ring(&mut self) {
        if self.armed && !self.rung && !self.reports.is_empty() {
            self.rung = true;
            self.news.notify();
        }
    }

    /// Ends a queue pair. What is pending on it is reported by later polls.
    pub(crate) fn end(&mut self, index: u32, fate: Fate, announced: bool) {
        let Some(mut conn) = self.conns.remove(index) else { return };
        if fate.is_ours() && conn.held {
            // It was posted before: a goodbye goes behind it. What the system has against it, the goodbye meets as well.
            let _ = conn.flush();
        }
        self.watch.remove(&conn.socket);
        let (perhaps, not) = conn.end(fate, &mut self.pool, &mut self.reports.done);
        self.live.retain(|live| *live != index);
        self.pool.sharers -= 1;
        self.pool.waiting.retain(|waiting| *waiting != index);
        if announced {
            let mut reason = fate.reason();
            if perhaps + not > 0 {
                reason += &format!("; of what was pending, {perhaps} may have taken effect and {not} did not");
            }
            self.reports.disconnected(index, fate.status(), reason);
        }
        let now = Instant::now();
        let Conn { socket, outbound, requests: lent, heard_bye, .. } = *conn;
        let over = heard_bye || !fate.is_ours();
        let index = QpIndex(index);
        let mut leaving = Leaving { index, socket, outbound, lent, until: now + LEAVE_LIMIT, said: false, over };
        if leaving.stays(now, &mut self.reports.done) {
            self.leaving.push(leaving);
        } else {
            self.shared.party.ended(1);
        }
    }

    /// Closes a queue pair and frees its index.
    pub(crate) fn close(&mut self, qp: QpIndex) {
        self.end(qp.0, Fate::Closed, false);
        self.reports.closed(qp);
    }

    /// Ends everything, in the owner's name; nothing of what was posted is touched afterwards.
    pub(crate) fn end_all(&mut self) {
        for index in self.conns.indexes() {
            self.close(QpIndex(index));
        }
        // Nobody drives what is left: the system does, as far as it goes; but not from memory that is its owner's again.
        self.leaving.iter().for_each(Leaving::forsake);
        self.shared.party.ended(self.leaving.len());
        self.leaving.clear();
        self.pool.receives.clear();
    }
}

impl Leaving {
    /// Whether something is left to be said, heard or reported.
    fn stays(&mut self, now: Instant, done: &mut VecDeque<RawCompletion>) -> bool {
        self.over = self.over || !self.says(now);
        if self.lent.is_empty() {
            return !self.over;
        }
        if self.over {
            // What the kernel did not send by now it is not to send: then it gives the memory back.
            self.forsake();
        }
        self.outbound.hear(&self.socket);
        // Long after the connection is no more, nothing of it is sent, whatever was not heard.
        let given_up = now >= self.until + LEAVE_LIMIT;
        self.lent.lend_from(if given_up { u64::MAX } else { self.outbound.released() });
        self.lent.report(self.index, done);
        !self.over || !self.lent.is_empty()
    }

    /// The kernel is not to send from posted memory any longer.
    fn forsake(&self) {
        if !self.lent.is_empty() {
            let _ = rustix::net::connect_unspec(&self.socket);
        }
    }

    /// Sends what is left, then waits for the peer's own end, and throws away what it still says: a
    /// socket closed with bytes unread would take the goodbye back. False: that was all.
    fn says(&mut self, now: Instant) -> bool {
        if !self.said {
            match self.outbound.flush(&self.socket) {
                Ok(true) => {
                    self.said = true;
                    let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
                }
                Ok(false) => {}
                Err(_) => return false,
            }
        }
        let mut sink = [0u8; 4096];
        for _ in 0..256 {
            match rustix::net::recv(&self.socket, &mut sink[..], RecvFlags::DONTWAIT) {
                Ok((_, 1..)) => {}
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => break,
                Ok(_) | Err(_) => return false,
            }
        }
        now < self.until
    }
}

pub(crate) fn open(conns: &mut Pairs<Conn>, qp: QpIndex) -> Result<&mut Conn, VerbsError> {
    conns.get_mut(qp.0).ok_or(VerbsError::Closed)
}

fn is_timed(conns: &Pairs<Conn>, index: u32) -> bool {
    conns.get(index).is_some_and(Conn::is_timed)
}

fn limit(what: &'static str, value: u64, max: u64) -> Result<(), VerbsError> {
    if value > max { Err(VerbsError::Limit { what, value, max }) } else { Ok(()) }
}

/// Token of the bell; connections have their index.
const NEWS: u64 = u64::MAX;
/// The other end of a TCP connection sees none of our memory.
const NO_REGIONS: VerbsError = VerbsError::Unsupported("requests of regions; plan without them");
/// So few connections are asked without epoll.
const ALWAYS_ASKED: usize = 4;
/// Smallest depth: a completion queue leaves up to half of it unsignalled.
const DEPTH_MIN: usize = 32;
/// How often time is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long a goodbye may take.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);
