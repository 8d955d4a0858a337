//! The data side: a completion queue's queue pairs, polled by memory or woken by epoll.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use overside_memory::Fragment;
use overside_verbs::pairs::{Pairs, Reports, post_each};
use overside_verbs::port::{Payload, QpIndex, RawCompletion, RawReceive, RawRequest, RawWork};
use overside_verbs::spin::DOZE;
use overside_verbs::watch::{Watch, sleep_on};
use overside_verbs::{Link, Loan, Opcode, Port, PortEvent, PortOptions, ProtectionDomain, Status, VerbsError};

use crate::fate::Fate;
use crate::handshake::Wire;
use crate::local::{LocalSegments, Location};
use crate::pair::{Pair, PairOptions};
use crate::provider::Shared;
use crate::registry::{self, Mailbox};
use crate::ring::{Geometry, MESSAGE_MAX, Sge};
use crate::send::{Entry, Progress, Sources, limit};
use crate::watch::Ready;

/// A port of the shared-memory provider.
#[derive(Debug)]
pub(crate) struct ShmPort {
    shared: Arc<Shared>,
    domain: u64,
    geometry: Geometry,
    pair_options: PairOptions,
    watch: Watch,
    pairs: Pairs<Pair>,
    /// Queue pairs that are polled by memory.
    hot: Vec<u32>,
    /// Armed queue pairs with a message that waits for a shared receive.
    starved: Vec<u32>,
    /// Armed queue pairs whose peer is to consume or to return something.
    awaited: Vec<u32>,
    receives: VecDeque<RawReceive>,
    receives_max: usize,
    /// Of queue pairs that have ended.
    reports: Reports,
    /// Loans that were reported and not taken yet, by their receives.
    loans: VecDeque<(u32, Loan)>,
    segments: LocalSegments,
    mail: Arc<Mailbox>,
    places: Vec<(Fragment, Location)>,
    sges: Vec<Sge>,
    ready: Vec<Ready>,
    /// Polls until epoll is looked at in any case.
    patience: u32,
    next_look: Instant,
    /// Polls that found nothing since the clock was looked at.
    idle_polls: u32,
    /// The queue pair whose turn comes first.
    first: usize,
    /// Polls until one looks at everything in any case.
    brief: u32,
}

// SAFETY: [shm-posted] the addresses of posted buffers may be used on whichever thread owns the port.
unsafe impl Send for ShmPort {}

impl ShmPort {
    pub(crate) fn open(
        shared: Arc<Shared>,
        domain: &ProtectionDomain,
        options: PortOptions,
    ) -> Result<Self, VerbsError> {
        let (watch, mail) = (Watch::new()?, shared.registry.open_port(domain)?);
        watch.add(&*mail, MAIL)?;
        Ok(Self {
            domain: domain.id(),
            geometry: Geometry::for_options(options.depth, options.sges),
            pair_options: PairOptions { wake_at_half: options.wake_at_half, takes_regions: options.regions },
            watch,
            pairs: Pairs::default(),
            hot: Vec::new(),
            starved: Vec::new(),
            awaited: Vec::new(),
            receives: VecDeque::new(),
            receives_max: options.shared_receives.max(1),
            reports: Reports::default(),
            loans: VecDeque::new(),
            segments: LocalSegments::default(),
            mail,
            places: Vec::new(),
            sges: Vec::new(),
            ready: Vec::new(),
            patience: 0,
            next_look: Instant::now(),
            idle_polls: 0,
            first: 0,
            brief: BRIEF_POLLS,
            shared,
        })
    }

    /// The one open queue pair, where there is no other and all that can happen to it shows in its
    /// peer's memory.
    fn only(&self) -> Option<QpIndex> {
        let mut open = self.pairs.iter().filter(|pair| pair.fate.is_none());
        let pair = open.next().filter(|pair| pair.hot && pair.link.is_some() && !pair.channel.blocked())?;
        open.next().is_none().then_some(pair.index)
    }

    /// Puts a queue pair among those polled by memory.
    fn heat(&mut self, index: u32) {
        if let Some(pair) = self.pairs.get_mut(index)
            && !pair.hot
            && pair.fate.is_none()
        {
            pair.hot = true;
            pair.disarm();
            self.hot.push(index);
        }
    }

    /// Puts those among which something was consumed or returned among those polled by memory: it
    /// may be too little to be woken for, for as long as the peer does no more.
    fn heat_awaited(&mut self) {
        let mut awaited = std::mem::take(&mut self.awaited);
        awaited.retain(|index| {
            let Some(pair) = self.pairs.get_mut(*index) else { return false };
            pair.awaited = !pair.hot && pair.fate.is_none() && pair.awaits() && !pair.any_news();
            let stays = pair.awaited;
            if !stays {
                self.heat(*index);
            }
            stays
        });
        self.awaited = awaited;
    }

    /// Ends a queue pair. What is pending on it is reported by later polls.
    fn end(&mut self, index: u32, fate: Fate, announced: bool) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        if pair.fate.is_some() {
            return;
        }
        pair.end(fate, &mut self.reports.done);
        self.watch.remove(&pair.channel);
        self.watch.remove(&pair.pidfd);
        pair.hot = false;
        self.hot.retain(|hot| *hot != index);
        self.starved.retain(|starved| *starved != index);
        if announced {
            self.reports.disconnected(index, fate.status(), fate.reason());
        }
    }

    /// Looks at epoll: doorbells, control messages, deaths.
    fn look(&mut self) -> bool {
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        // An error here is the system's; what it would have told shows at the next look.
        let _ = self.watch.wait(Duration::ZERO, |token, writable| ready.push(Ready { token, writable }));
        for event in &ready {
            let index = (event.token >> 1) as u32;
            let Some(pair) = self.pairs.get_mut(index) else { continue };
            if pair.fate.is_some() {
                continue;
            }
            let mut fate = None;
            if event.token & 1 == PROCESS {
                // What it still said counts: it may have closed before it went.
                fate = pair.hear().err().or_else(|| Some(pair.ended(Fate::PeerDied)));
            } else if let Err(heard) = pair.hear() {
                fate = Some(heard);
            } else if event.writable {
                pair.channel.flush();
                if pair.wants_room && !pair.channel.blocked() {
                    pair.wants_room = false;
                    self.watch.want_room(&pair.channel, token(index, SOCKET), false);
                }
            }
            match fate {
                Some(fate) => self.end(index, fate, true),
                None => self.heat(index),
            }
        }
        let found = !ready.is_empty();
        self.ready = ready;
        self.patience = LOOK_EVERY;
        self.heat_awaited();
        found
    }

    /// Tells peers of segments that are no longer registered.
    fn read_mail(&mut self) {
        for id in self.mail.take() {
            let Some(slot) = self.segments.remove(id) else { continue };
            let mut later = Vec::new();
            for pair in self.pairs.iter_mut().filter(|p| p.fate.is_none()) {
                pair.send.forget(slot, id);
                pair.send.flush_forgetting(&pair.channel);
                if pair.send.forgets_later() {
                    later.push(pair.index.0);
                }
            }
            // They are armed anew, for what this waits for.
            later.into_iter().for_each(|index| self.heat(index));
        }
    }

    /// A turn for every hot queue pair, beginning with another one each time.
    fn turns(&mut self, out: &mut [RawCompletion]) -> (usize, bool) {
        let (mut count, mut busy) = (0, false);
        let hot = self.hot.len();
        let idle_max = if hot > ALWAYS_HOT { (IDLE_TURNS / hot as u32).max(IDLE_TURNS_MIN) } else { u32::MAX };
        let (mut ended, mut cooled) = (None, false);
        for i in 0..hot {
            if count == out.len() {
                self.first = (self.first + i) % hot;
                break;
            }
            // Never further than twice around, as long as no queue pair has gone since.
            let at = self.first + i;
            let index = self.hot[if at < hot { at } else { at % hot }];
            let Some(pair) = self.pairs.get_mut(index) else { continue };
            let turn = pair.turn(&mut self.receives, &mut self.loans, &mut out[count..]);
            count += turn.count;
            busy |= turn.busy;
            pair.idle = if turn.busy { 0 } else { pair.idle.saturating_add(1) };
            cooled |= pair.idle > idle_max;
            if let Some(fate) = turn.fate {
                ended = Some((index, fate));
                break;
            }
        }
        if let Some((index, fate)) = ended {
            self.end(index, fate, true);
            busy = true;
        }
        if cooled {
            self.cool(idle_max);
        }
        (count, busy)
    }

    /// Arms queue pairs that were idle for longer than `idle_max` turns; false when one of them has
    /// something to do after all.
    fn cool(&mut self, idle_max: u32) -> bool {
        let mut quiet = true;
        let mut hot = std::mem::take(&mut self.hot);
        hot.retain(|index| {
            let Some(pair) = self.pairs.get_mut(*index) else { return false };
            if pair.idle < idle_max {
                return true;
            }
            if !pair.arm(false) {
                quiet = false;
                return true;
            }
            pair.hot = false;
            if pair.starved {
                self.starved.push(*index);
            }
            if pair.awaits() && !std::mem::replace(&mut pair.awaited, true) {
                self.awaited.push(*index);
            }
            if pair.channel.blocked() && !pair.wants_room {
                pair.wants_room = true;
                self.watch.want_room(&pair.channel, token(*index, SOCKET), true);
            }
            false
        });
        self.hot = hot;
        quiet
    }

    /// # Safety
    /// As [`Port::post`].
    #[inline(never)]
    unsafe fn post_batch(&mut self, qp: QpIndex, batch: &[RawRequest<'_>]) -> (usize, Option<VerbsError>) {
        // SAFETY: [shm-posted] the caller's promise.
        let (accepted, error) = post_each(batch, |request| unsafe { self.post_one(qp, request) });
        if let (true, None, Some(pair)) = (accepted < batch.len(), &error, self.pairs.get_mut(qp.0)) {
            (pair.send.refused, pair.send.wants_room) = (true, true);
        }
        if let Some(pair) = self.pairs.get_mut(qp.0).filter(|p| p.fate.is_none()) {
            pair.publish(false);
            self.heat(qp.0);
        }
        (accepted, error)
    }

    /// A poll where there is one queue pair and nothing to do but to take small messages; none
    /// where there may be more.
    #[inline]
    fn poll_brief(&mut self, out: &mut [RawCompletion]) -> Option<usize> {
        let ([index], true, false) = (&self.hot[..], self.reports.done.is_empty(), self.mail.any()) else {
            return None;
        };
        let pair = self.pairs.get_mut(*index)?;
        if !pair.at_rest() {
            return None;
        }
        self.brief -= 1;
        pair.take_riding(out)
    }

    /// A look at everything, after so many that were brief.
    #[inline(never)]
    fn poll_all(&mut self, out: &mut [RawCompletion], briefly: u32) -> usize {
        if self.mail.any() {
            self.read_mail();
        }
        let mut count = self.reports.take(out);
        if self.patience == 0 {
            self.look();
        }
        self.patience -= 1;
        let (taken, busy) = self.turns(&mut out[count..]);
        count += taken;
        if busy || count > 0 {
            self.idle_polls = 0;
        } else {
            self.idle_polls += briefly + 1;
            // Reading the clock costs as much as a poll.
            if self.idle_polls >= CLOCK_EVERY {
                self.idle_polls = 0;
                let now = Instant::now();
                if now >= self.next_look {
                    self.look();
                    self.next_look = now + LOOK_IDLE;
                }
            }
        }
        count + self.reports.take(&mut out[count..])
    }

    /// One request; false when there is no room for it now.
    ///
    /// # Safety
    /// As [`Port::post`].
    unsafe fn post_one(&mut self, qp: QpIndex, request: &RawRequest<'_>) -> Result<bool, VerbsError> {
        let Self { pairs, shared, segments, places, sges, domain, .. } = self;
        let pair = pairs.get_mut(qp.0).ok_or(VerbsError::Closed)?;
        if pair.fate.is_some() {
            return Err(VerbsError::Closed);
        }
        if pair.send.full() {
            return Ok(false);
        }
        let done = |(status, value)| Progress::Done { status, value };
        let (opcode, bytes, progress) = match request.work {
            RawWork::Send(payload, immediate) => {
                let mut sources = Sources { registry: &shared.registry, domain: *domain, segments, places, sges };
                // SAFETY: [shm-posted] the caller's promise.
                let sent =
                    unsafe { pair.send.send(payload, immediate, request, &pair.own, &pair.channel, &mut sources) }?;
                let Some((bytes, progress)) = sent else { return Ok(false) };
                (Opcode::Send, bytes, progress)
            }
            RawWork::SendRegion(region) => {
                let mut sources = Sources { registry: &shared.registry, domain: *domain, segments, places, sges };
                let sent = pair.send.send_region(&region, &pair.own, &pair.channel, &mut sources, request.signalled)?;
                let Some(progress) = sent else { return Ok(false) };
                (Opcode::Send, region.shape.bytes(), progress)
            }
            // What the peer grants is known once it attached.
            _ if pair.link.is_none() => return Ok(false),
            RawWork::Write(payload, token, immediate) => {
                if immediate.is_some() {
                    limit("a message's length", payload_bytes(&payload), MESSAGE_MAX)?;
                }
                if immediate.is_some() && !pair.send.producer.room(0) {
                    return Ok(false);
                }
                // SAFETY: [shm-posted] the caller's promise.
                let outcome = unsafe { pair.write(payload, &token) };
                let bytes = payload_bytes(&payload);
                let mut progress = done(outcome);
                if let (Some(immediate), Status::Success) = (immediate, outcome.0) {
                    pair.send.announce(immediate, bytes, request.signalled, &pair.own);
                    progress = Progress::Ring { cells: 0, bounced: 0 };
                }
                (Opcode::Write, bytes, progress)
            }
            RawWork::Read(sink, token) => {
                // SAFETY: [shm-posted] the caller's promise.
                (Opcode::Read, token.len, done(unsafe { pair.read(sink, &token) }))
            }
            RawWork::FetchAdd(token, add) => {
                let outcome = pair.atomic(&token, |word| word.fetch_add(add, Ordering::SeqCst));
                (Opcode::FetchAdd, 8, done(outcome))
            }
            RawWork::CompareSwap(token, compare, swap) => {
                let outcome = pair.atomic(&token, |word| {
                    let swapped = word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
                    swapped.unwrap_or_else(|found| found)
                });
                (Opcode::CompareSwap, 8, done(outcome))
            }
        };
        pair.send.push(Entry { slot: request.slot, opcode, signalled: request.signalled, bytes, progress });
        Ok(true)
    }
}

// SAFETY: [shm-posted] buffers are touched between post and completion only, each accepted slot is
// reported once, in order, and a report of success follows the copy.
unsafe impl Port for ShmPort {
    fn attach(&mut self, qp: QpIndex, link: Link) -> Result<(), VerbsError> {
        let wire: Wire = self.shared.instance.opened(self.domain, link)?;
        let limits = self.shared.limits(wire.made);
        let mut pair = Pair::new(qp, wire, self.geometry, limits, self.pair_options)?;
        pair.provider = Arc::downgrade(&self.shared);
        self.watch.add(&pair.channel, token(qp.0, SOCKET))?;
        self.watch.add(&pair.pidfd, token(qp.0, PROCESS))?;
        registry::join(&self.shared.registry, self.domain, &pair.channel)?;
        self.pairs.insert(qp, pair);
        self.heat(qp.0);
        // The peer may have attached already.
        self.patience = 0;
        Ok(())
    }

    // Into the guard, its one caller.
    #[inline]
    unsafe fn post(&mut self, qp: QpIndex, batch: &[RawRequest<'_>]) -> (usize, Option<VerbsError>) {
        if self.mail.any() {
            self.read_mail();
        }
        if let [RawRequest { slot, work: RawWork::Send(Payload::Inline(bytes), immediate), signalled, .. }] = batch
            && self.pairs.get_mut(qp.0).is_some_and(|pair| pair.post_small(*slot, bytes, *immediate, *signalled))
        {
            return (1, None);
        }
        // SAFETY: [shm-posted] the caller's promise.
        unsafe { self.post_batch(qp, batch) }
    }

    #[inline]
    unsafe fn post_receive(&mut self, qp: Option<QpIndex>, batch: &[RawReceive]) -> Result<usize, VerbsError> {
        let Some(qp) = qp else {
            let room = self.receives_max.saturating_sub(self.receives.len()).min(batch.len());
            self.receives.extend(&batch[..room]);
            while let Some(index) = self.starved.pop() {
                self.heat(index);
            }
            return Ok(room);
        };
        let depth = self.geometry.depth() as usize;
        let pair = self.pairs.get_mut(qp.0).filter(|p| p.fate.is_none()).ok_or(VerbsError::Closed)?;
        let room = depth.saturating_sub(pair.receives.len()).min(batch.len());
        pair.receives.extend(&batch[..room]);
        if pair.starved {
            self.starved.retain(|starved| *starved != qp.0);
            self.heat(qp.0);
        }
        Ok(room)
    }

    #[inline]
    fn poll(&mut self, out: &mut [RawCompletion]) -> usize {
        if self.brief > 0
            && let Some(count) = self.poll_brief(out)
        {
            return count;
        }
        let briefly = BRIEF_POLLS - std::mem::replace(&mut self.brief, BRIEF_POLLS);
        self.poll_all(out, briefly)
    }

    fn take_loan(&mut self, slot: u32) -> Option<Loan> {
        // As a rule they are taken in the order in which they were reported.
        let at = self.loans.iter().position(|(lent, _)| *lent == slot)?;
        self.loans.remove(at).map(|(_, loan)| loan)
    }

    fn next_event(&mut self) -> Option<PortEvent> {
        self.reports.events.pop_front()
    }

    fn arm(&mut self) -> Result<bool, VerbsError> {
        self.read_mail();
        if !self.reports.is_empty() {
            return Ok(false);
        }
        // Whatever wakes us shows in epoll, so that is where to look next.
        self.patience = 0;
        Ok(self.cool(0))
    }

    fn wait(&mut self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        let mut left = timeout;
        // A sleep on the peer's word is short: neither its death nor a message on the socket ends it.
        if other.is_none()
            && let Some(index) = self.only()
        {
            self.read_mail();
            if !self.reports.is_empty() {
                return Ok(false);
            }
            let limit = left.map_or(DOZE, |left| left.min(DOZE));
            match self.pairs.get_mut(index.0).and_then(|pair| pair.doze(limit)) {
                Some(false) => left = left.map(|left| left - limit),
                woken => return Ok(woken.is_some()),
            }
        }
        if left != Some(Duration::ZERO) && self.arm()? {
            sleep_on(self.fd(), other, left)?;
        }
        Ok(true)
    }

    fn line_ns(&mut self, qp: QpIndex) -> Option<f64> {
        self.pairs.get_mut(qp.0)?.distance.ask()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    fn close(&mut self, qp: QpIndex) {
        self.end(qp.0, Fate::Closed, false);
        self.pairs.remove(qp.0);
        self.reports.closed(qp);
    }
}

impl Drop for ShmPort {
    /// Peers learn of it; nothing is sound only because of that.
    fn drop(&mut self) {
        self.pairs.indexes().for_each(|index| self.end(index, Fate::Closed, false));
    }
}

fn token(index: u32, what: u64) -> u64 {
    u64::from(index) << 1 | what
}

fn payload_bytes(payload: &Payload<'_>) -> u64 {
    match payload {
        Payload::Gather(fragments) => fragments.iter().map(|f| u64::from(f.len)).sum(),
        Payload::Inline(bytes) => bytes.len() as u64,
    }
}

/// The token of the mail, which every poll reads anyway; no queue pair has the index.
const MAIL: u64 = u64::MAX;
const SOCKET: u64 = 0;
const PROCESS: u64 = 1;
/// Busy polls of everything between two looks at epoll.
const LOOK_EVERY: u32 = 128;
/// Brief polls between two that look at everything.
const BRIEF_POLLS: u32 = 15;
/// Idle polling looks at epoll this often.
const LOOK_IDLE: Duration = Duration::from_micros(20);
/// Idle polls between two looks at the clock.
const CLOCK_EVERY: u32 = 16;
/// So few queue pairs are polled by memory however idle they are.
const ALWAYS_HOT: usize = 8;
/// Idle turns, shared among the hot queue pairs, before one turns cold.
const IDLE_TURNS: u32 = 4096;
const IDLE_TURNS_MIN: u32 = 16;
