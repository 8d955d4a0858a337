//! The user's side: owns everything in flight.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_memory::Buffer;
use smallvec::SmallVec;

use crate::VerbsError;
use crate::clock::Clock;
use crate::port::{Payload, Port, PortEvent, RawBuffer, RawCompletion, RawReceive, RawRequest, RawWork};
use crate::provider::Link;
use crate::reported::complete_all;
use crate::slots::{QUEUE_PAIRS_MAX, QueuePairs, Receiving, Slots};
use crate::spin::{DOZE, Expects, Spin, Wait};
use crate::work::{QueuePair, WorkCompletion, WorkRequest};

/// A completion queue with its queue pairs. One owner; `Send`, so it may live on any thread.
///
/// It keeps every hold and buffer until the provider reports the completion. Dropping it closes the
/// queue pairs, waits up to a second for what is in flight, and leaks the rest: it never frees
/// early.
pub struct CompletionQueue {
    port: Option<Box<dyn Port>>,
    /// The port's.
    clock: Arc<dyn Clock>,
    /// Freed at one place alone, once the port has let go of all of it: whatever panics before, it
    /// stays.
    slots: ManuallyDrop<Slots>,
    pairs: QueuePairs,
    signal_every: usize,
    spin: Spin,
    /// Where the port reports to; as long as a batch.
    raw: Vec<RawCompletion>,
    sleeps: u64,
    spun: Duration,
    /// What a poll that finds nothing takes.
    poll_takes: Duration,
    /// The last poll saw the end of something, perhaps of unsignalled requests only.
    made_room: bool,
}

impl CompletionQueue {
    /// Over a port that `Provider::open_port` opened.
    pub fn new(port: Box<dyn Port>) -> Self {
        Self {
            clock: port.clock(),
            port: Some(port),
            slots: ManuallyDrop::default(),
            pairs: QueuePairs::default(),
            signal_every: SIGNAL_EVERY,
            spin: Spin::new(SPIN),
            raw: vec![RawCompletion::NONE; POLL_BATCH],
            sleeps: 0,
            spun: Duration::ZERO,
            poll_takes: Duration::ZERO,
            made_room: false,
        }
    }

    /// How long [`poll_wait`](Self::poll_wait) polls before it sleeps, at most: where polling
    /// brings nothing it sleeps sooner.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = Spin::new(spin);
    }

    /// How many completions one [`poll`](Self::poll) takes at most (32 unless set). Where the
    /// receiver moves the bytes, a small batch finds them in the nearest cache when it looks at
    /// them.
    pub fn set_batch(&mut self, completions: usize) {
        self.raw = vec![RawCompletion::NONE; completions.max(1)];
    }

    /// How many unsignalled requests of a queue pair go by before the queue asks for a report
    /// itself (16 unless set, and at most); their holds end with it. Whoever shares few transmit
    /// buffers among many queue pairs sets less, or all buffers may rest in silent requests.
    pub fn set_signal_every(&mut self, requests: usize) {
        self.signal_every = requests.clamp(1, SIGNAL_EVERY);
    }

    /// Makes a queue pair of a connection.
    ///
    /// # Errors
    /// When the port refuses the link, or there are 2^24 queue pairs.
    pub fn attach(&mut self, link: Link) -> Result<QueuePair, VerbsError> {
        let max = QUEUE_PAIRS_MAX as u64;
        let full = VerbsError::Limit { what: "the number of queue pairs of a completion queue", value: max + 1, max };
        let (index, name) = self.pairs.add().ok_or(full)?;
        let attached = self.port().attach(index, link);
        if attached.is_err()
            && let Some(state) = self.pairs.by_index(index)
        {
            state.closed = true;
            self.pairs.retire(index);
        }
        attached.map(|()| name)
    }

    /// Posts to the send queue of `qp`, in order, taking from the front of `batch` what is
    /// accepted. Returns how many; fewer than all means the queue is full: poll, then post the
    /// rest.
    ///
    /// # Errors
    /// Of the request that is then at the front of `batch`: it can never be accepted.
    pub fn post(&mut self, qp: QueuePair, batch: &mut VecDeque<WorkRequest>) -> Result<usize, VerbsError> {
        if batch.len() == 1 {
            return self.post_single(qp, batch);
        }
        let mut accepted = 0;
        while !batch.is_empty() {
            let chunk = batch.len().min(POST_CHUNK);
            let (done, error) = self.post_chunk(qp, batch, chunk)?;
            accepted += done;
            if let Some(error) = error {
                return Err(error);
            }
            if done < chunk {
                break;
            }
        }
        Ok(accepted)
    }

    /// The only request of a batch, without lists.
    fn post_single(&mut self, qp: QueuePair, batch: &mut VecDeque<WorkRequest>) -> Result<usize, VerbsError> {
        let (index, state) = self.pairs.by_name(qp).ok_or(VerbsError::Closed)?;
        if state.closed {
            return Err(VerbsError::Closed);
        }
        let Some(request) = batch.pop_front() else { return Ok(0) };
        let entries = state.quiet_entries + request.entries();
        let reported = request.asks_for_a_report() || state.quiet + 1 >= self.signal_every || entries >= QUIET_ENTRIES;
        let slot = self.slots.put(request, qp);
        let Some(request) = self.slots.request(slot) else { return Ok(0) };
        let raw = [request.raw(slot, reported)];
        let port = self.port.as_mut().expect("open until drop");
        // SAFETY: [verbs-in-flight] the view and buffers rest in `slots` and leave by completion only.
        let posted = unsafe { port.post(index, &raw) };
        if posted.0 == 0 {
            batch.extend(self.slots.take_back(slot));
            return posted.1.map_or(Ok(0), Err);
        }
        state.sent.push_back(slot);
        (state.quiet, state.quiet_entries) = if reported { (0, 0) } else { (state.quiet + 1, entries) };
        Ok(1)
    }

    /// Posts a SEND of bytes that ride in the descriptor, at most `Capabilities::inline_max`, as a
    /// request of [`WorkRequest::send_inline`] does: for small messages, whose way is so short that
    /// making the request is felt. The bytes are the caller's again at once. False: the queue is
    /// full, poll and post again.
    ///
    /// # Errors
    /// [`VerbsError::Closed`], or what the port has against these bytes.
    pub fn post_inline(
        &mut self,
        qp: QueuePair,
        id: u64,
        bytes: &[u8],
        immediate: Option<u32>,
        signalled: bool,
    ) -> Result<bool, VerbsError> {
        let Some((index, state)) = self.pairs.by_name(qp).filter(|(_, state)| !state.closed) else {
            return Err(VerbsError::Closed);
        };
        let reported = signalled || state.quiet + 1 >= self.signal_every;
        let slot = self.slots.put_inline(id, qp, signalled);
        let work = RawWork::Send(Payload::Inline(bytes), immediate);
        let raw = [RawRequest { slot, work, signalled: reported, fence: false, lend: false }];
        let port = self.port.as_mut().expect("open until drop");
        // SAFETY: [verbs-in-flight] inline bytes are not read after `post` returns.
        let posted = unsafe { port.post(index, &raw) };
        // Only now: to move an error that is not there takes as long as to write it.
        if posted.0 == 0 {
            self.slots.take_back(slot);
            return posted.1.map_or(Ok(false), Err);
        }
        state.sent.push_back(slot);
        state.quiet = if reported { 0 } else { state.quiet + 1 };
        Ok(true)
    }

    fn post_chunk(
        &mut self,
        qp: QueuePair,
        batch: &mut VecDeque<WorkRequest>,
        chunk: usize,
    ) -> Result<(usize, Option<VerbsError>), VerbsError> {
        let (index, state) = self.pairs.by_name(qp).ok_or(VerbsError::Closed)?;
        if state.closed {
            return Err(VerbsError::Closed);
        }
        // Moved into their slots first: they must not move while the provider has their addresses.
        let mut posted: SmallVec<[(u32, (usize, usize)); POST_CHUNK]> = SmallVec::new();
        let (mut quiet, mut quiet_entries) = (state.quiet, state.quiet_entries);
        for request in batch.drain(..chunk) {
            (quiet, quiet_entries) = (quiet + 1, quiet_entries + request.entries());
            if request.asks_for_a_report() || quiet >= self.signal_every || quiet_entries >= QUIET_ENTRIES {
                (quiet, quiet_entries) = (0, 0);
            }
            posted.push((self.slots.put(request, qp), (quiet, quiet_entries)));
        }
        let raw: SmallVec<[RawRequest<'_>; POST_CHUNK]> = posted
            .iter()
            .filter_map(|(slot, (quiet, _))| Some(self.slots.request(*slot)?.raw(*slot, *quiet == 0)))
            .collect();
        let port = self.port.as_mut().expect("open until drop");
        // SAFETY: [verbs-in-flight] the views and buffers rest in `slots` and leave by completion only.
        let (done, error) = unsafe { port.post(index, &raw) };
        drop(raw);
        let done = done.min(posted.len());
        for (slot, _) in posted.iter().skip(done).rev() {
            if let Some(request) = self.slots.take_back(*slot) {
                batch.push_front(request);
            }
        }
        if let Some((_, state)) = self.pairs.by_name(qp) {
            state.sent.extend(posted[..done].iter().map(|(slot, _)| *slot));
            if let Some((_, quiet)) = posted[..done].last() {
                (state.quiet, state.quiet_entries) = *quiet;
            }
        }
        Ok((done, error))
    }

    /// Posts receives to `qp`, or to the shared receive queue when none is named: the buffers
    /// (with the caller's numbers) move in until their completions. Takes from the end of
    /// `buffers` what is accepted and returns how many.
    ///
    /// # Errors
    /// [`VerbsError::Closed`] when the queue pair is not there.
    pub fn post_receive(
        &mut self,
        qp: Option<QueuePair>,
        buffers: &mut Vec<(u64, Buffer)>,
    ) -> Result<usize, VerbsError> {
        self.post_receives(qp, buffers, false)
    }

    /// As [`post_receive`](Self::post_receive), and a message whose sender lends it comes as a
    /// [`Loan`](crate::Loan): the buffer then comes back as it was. Every other message is copied
    /// into it.
    ///
    /// # Errors
    /// As [`post_receive`](Self::post_receive).
    pub fn post_receive_or_loan(
        &mut self,
        qp: Option<QueuePair>,
        buffers: &mut Vec<(u64, Buffer)>,
    ) -> Result<usize, VerbsError> {
        self.post_receives(qp, buffers, true)
    }

    fn post_receives(
        &mut self,
        qp: Option<QueuePair>,
        buffers: &mut Vec<(u64, Buffer)>,
        takes_loan: bool,
    ) -> Result<usize, VerbsError> {
        let index = match qp {
            None => None,
            Some(name) => match self.pairs.by_name(name) {
                Some((index, state)) if !state.closed => Some(index),
                _ => return Err(VerbsError::Closed),
            },
        };
        let mut accepted = 0;
        while !buffers.is_empty() {
            let chunk = buffers.len().min(POST_CHUNK);
            let mut raw: SmallVec<[RawReceive; POST_CHUNK]> = SmallVec::new();
            for (id, buffer) in buffers.drain(buffers.len() - chunk..).rev() {
                let (address, len, segment) = (buffer.address(), buffer.len(), buffer.segment_id());
                let slot = self.slots.put_receive(Receiving { id, buffer, qp });
                raw.push(RawReceive { slot, buffer: RawBuffer { address, len, segment }, takes_loan });
            }
            let port = self.port.as_mut().expect("open until drop");
            // SAFETY: [verbs-in-flight] the buffers rest in `slots` until their completions.
            let posted = unsafe { port.post_receive(index, &raw) };
            let taken = posted.as_ref().map_or(0, |taken| (*taken).min(chunk));
            for refused in raw[taken..].iter().rev() {
                if let Some(Receiving { id, buffer, .. }) = self.slots.take_receive(refused.slot) {
                    buffers.push((id, buffer));
                }
            }
            if let Some(state) = index.and_then(|i| self.pairs.by_index(i)) {
                state.receives += taken;
            }
            accepted += taken;
            if taken < chunk {
                return posted.map(|_| accepted);
            }
        }
        Ok(accepted)
    }

    /// Progresses, and appends what has completed to `out`; returns how many. Releases the holds of
    /// completed sends, unsignalled ones included, and of loans that have ended.
    ///
    /// # Panics
    /// When a hold panics as it is released. All that was reported with it is in `out` by then, all
    /// other holds are released, and later polls go on.
    pub fn poll(&mut self, out: &mut Vec<WorkCompletion>) -> usize {
        let before = out.len();
        let Self { port, slots, pairs, raw, made_room, .. } = self;
        let port = port.as_mut().expect("open until drop");
        loop {
            let count = port.poll(raw).min(raw.len());
            if count == 0 {
                return out.len() - before;
            }
            // Where all reports were of unsignalled requests, not for the user, look again.
            *made_room = true;
            complete_all(port, slots, pairs, &raw[..count], out);
            if count < raw.len() || out.len() > before {
                return out.len() - before;
            }
        }
    }

    /// The next thing that happened to a queue pair apart from its requests.
    pub fn next_event(&mut self) -> Option<PortEvent<QueuePair>> {
        loop {
            let PortEvent::Disconnected { queue_pair, status, reason } = self.port().next_event()?;
            if let Some(state) = self.pairs.by_index(queue_pair) {
                return Some(PortEvent::Disconnected { queue_pair: state.name, status, reason });
            }
        }
    }

    /// Polls; when there is nothing, polls a little longer, then sleeps until something happens
    /// or `timeout` passes (never, when none). Returns how many completions were appended: possibly
    /// none, when an event, the timeout or the end of unsignalled requests (there is room to post
    /// again) ended the wait.
    ///
    /// # Errors
    /// When the system refuses to wait.
    pub fn poll_wait(&mut self, out: &mut Vec<WorkCompletion>, timeout: Option<Duration>) -> Result<usize, VerbsError> {
        self.poll_wait_or(out, timeout, None)
    }

    /// As [`poll_wait`](Self::poll_wait), and `other` becoming readable ends the sleep too.
    ///
    /// # Errors
    /// When the system refuses to wait.
    pub fn poll_wait_or(
        &mut self,
        out: &mut Vec<WorkCompletion>,
        timeout: Option<Duration>,
        other: Option<BorrowedFd<'_>>,
    ) -> Result<usize, VerbsError> {
        self.wait_by(Expects::Answer, out, timeout, other)
    }

    /// As [`poll_wait_or`](Self::poll_wait_or), for who waits until half of many completions are
    /// there ([`PortOptions::wake_at_half`](crate::PortOptions)): as a rule it sleeps at once.
    /// `alone`: nothing but one queue pair is waited for, so `other` may go unnoticed for some
    /// milliseconds.
    ///
    /// # Errors
    /// When the system refuses to wait.
    pub fn poll_wait_half(
        &mut self,
        out: &mut Vec<WorkCompletion>,
        timeout: Option<Duration>,
        other: Option<BorrowedFd<'_>>,
        alone: bool,
    ) -> Result<usize, VerbsError> {
        self.wait_by(Expects::Half { alone }, out, timeout, other)
    }

    #[inline]
    fn wait_by(
        &mut self,
        expects: Expects,
        out: &mut Vec<WorkCompletion>,
        timeout: Option<Duration>,
        other: Option<BorrowedFd<'_>>,
    ) -> Result<usize, VerbsError> {
        if let Some(found) = self.poll_once(out) {
            return Ok(found);
        }
        let mut wait = self.spin.begin(expects);
        let (timeout, other) = match wait {
            Wait::Doze => (Some(timeout.map_or(DOZE, |timeout| timeout.min(DOZE))), None),
            _ => (timeout, other),
        };
        let mut budget = Duration::ZERO;
        match &mut wait {
            Wait::Poll(most) => {
                *most = timeout.map_or(*most, |timeout| timeout.min(*most));
                budget = *most;
            }
            Wait::Unpolled { watched: false } => {
                self.sleeps += u64::from(self.port().wait(other, timeout)?);
                return Ok(self.poll(out));
            }
            _ => {}
        }
        // An answer that comes at once costs no look at the clock: what those polls took is known by others.
        if budget > Duration::ZERO
            && let Some(found) = self.poll_eagerly(out)
        {
            self.spin.found();
            return Ok(found);
        }
        let start = self.clock.now();
        if budget > Duration::ZERO {
            let found = self.poll_for(budget, start, out);
            if found > 0 || self.made_room {
                self.spin.found();
                return Ok(found);
            }
        }
        let polled = self.since(start);
        let left = timeout.map(|t| t.saturating_sub(polled));
        let slept = self.port().wait(other, left)?.then(|| self.since(start).saturating_sub(polled));
        self.sleeps += u64::from(slept.is_some());
        let found = self.poll(out);
        self.spin.slept(wait, slept, found > 0);
        Ok(found)
    }

    /// Polls; how many completions were appended, or none when there is nothing to do but to wait.
    /// Room to post again counts as something, though nothing is appended for it.
    #[inline]
    pub fn poll_once(&mut self, out: &mut Vec<WorkCompletion>) -> Option<usize> {
        self.made_room = false;
        let found = self.poll(out);
        (found > 0 || self.made_room).then_some(found)
    }

    /// Polls a few times; how many completions there were, if there was anything.
    fn poll_eagerly(&mut self, out: &mut Vec<WorkCompletion>) -> Option<usize> {
        for poll in 0..EAGER_POLLS {
            let found = self.poll(out);
            if found > 0 || self.made_room {
                self.spun += self.poll_takes * poll;
                return Some(found);
            }
        }
        self.spun += self.poll_takes * EAGER_POLLS;
        None
    }

    /// Polls until something is there or `budget` is spent.
    fn poll_for(&mut self, budget: Duration, start: Instant, out: &mut Vec<WorkCompletion>) -> usize {
        // Whoever is waited for may share this core's units and caches: the longer nothing comes, the rarer the looks.
        let (mut pauses, mut looks) = (1, 0);
        // A clock that somebody steps by hand may stand still.
        while self.since(start) < budget && looks < LOOKS_MAX {
            looks += 1;
            for _ in 0..SPIN_POLLS {
                let found = self.poll(out);
                if found > 0 || self.made_room {
                    self.spun += self.since(start);
                    return found;
                }
                (0..pauses).for_each(|_| std::hint::spin_loop());
            }
            if pauses == 1 {
                self.poll_takes = (self.since(start) / SPIN_POLLS as u32).min(POLL_TAKES_MAX);
            }
            pauses = (pauses * 2).min(PAUSES_MAX);
        }
        self.spun += self.since(start);
        0
    }

    /// Asks for [`fd`](Self::fd) to become readable when something happens. False: poll again
    /// first.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn arm(&mut self) -> Result<bool, VerbsError> {
        self.port().arm()
    }

    /// The descriptor to wait on, after [`arm`](Self::arm).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.port.as_ref().expect("open until drop").fd()
    }

    /// Closes a queue pair; everything pending on it completes in later polls.
    pub fn close(&mut self, qp: QueuePair) {
        let Some((index, state)) = self.pairs.by_name(qp) else { return };
        if !state.closed {
            state.closed = true;
            self.port().close(index);
        }
        self.pairs.retire(index);
    }

    /// Requests and receives that have not completed, and loans that have not ended.
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Send-side requests of `qp` that have not completed.
    pub fn sends_in_flight(&mut self, qp: QueuePair) -> usize {
        self.pairs.by_name(qp).map_or(0, |(_, state)| state.sent.len())
    }

    /// SENDs of `qp` that were lent and not returned yet.
    pub fn loans_out(&mut self, qp: QueuePair) -> usize {
        self.pairs.by_name(qp).map_or(0, |(_, state)| state.loans)
    }

    /// How long a cache line lately took to come from the processor of `qp`'s peer:
    /// [`Port::line_ns`].
    pub fn line_ns(&mut self, qp: QueuePair) -> Option<f64> {
        self.pairs.by_name(qp).map(|(index, _)| index).and_then(|index| self.port().line_ns(index))
    }

    /// How often [`poll_wait`](Self::poll_wait) went to sleep.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }

    /// Time spent polling for nothing before going to sleep or finding something.
    pub fn spun(&self) -> Duration {
        self.spun
    }

    fn since(&self, start: Instant) -> Duration {
        self.clock.now().saturating_duration_since(start)
    }

    fn port(&mut self) -> &mut dyn Port {
        self.port.as_mut().expect("open until drop").as_mut()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if matches!(self.port().arm(), Err(VerbsError::Forked)) {
            // A forked child: the parent goes on with these requests, their memory is not ours to free.
            std::mem::forget(self.port.take());
            return;
        }
        let open: Vec<QueuePair> = self.pairs.open().collect();
        open.into_iter().for_each(|qp| self.close(qp));
        let end = self.clock.now() + DRAIN;
        let (mut sink, mut panicked) = (Vec::new(), None);
        // Shared receives are not bound to a queue pair: the port gives them back when it is dropped.
        while self.sends_left() && self.clock.now() < end {
            // A hold that panics must not cut the drain short: what is in flight would be freed
            // early.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.poll(&mut sink))) {
                match &panicked {
                    None => panicked = Some(payload),
                    Some(_) => std::mem::forget(payload),
                }
            }
            sink.clear();
            std::hint::spin_loop();
        }
        if self.sends_left() {
            // Leak, never free early: the provider may still read these bytes.
            std::mem::forget(self.port.take());
        } else {
            // The port goes first: after it, nobody writes into the receives that are left.
            drop(self.port.take());
            drop(std::mem::take(&mut *self.slots));
        }
        match panicked {
            // A second panic would abort the process.
            Some(payload) if std::thread::panicking() => std::mem::forget(payload),
            Some(payload) => resume_unwind(payload),
            None => {}
        }
    }
}

impl CompletionQueue {
    fn sends_left(&self) -> bool {
        self.pairs.in_flight() > 0
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

/// Requests handed to the provider at once.
const POST_CHUNK: usize = 16;
/// Completions taken from the provider at once, unless set.
const POLL_BATCH: usize = 32;
/// Polls of a wait before the first look at the clock and the first pause: a microsecond or so.
const EAGER_POLLS: u32 = 32;
/// A poll that takes longer was interrupted.
const POLL_TAKES_MAX: Duration = Duration::from_nanos(500);
/// Polls between two looks at the clock.
const SPIN_POLLS: usize = 16;
/// Looks at the clock in one wait at most: more than any budget needs.
const LOOKS_MAX: u32 = 4096;
/// Pauses of the processor between two polls: together well under a microsecond.
const PAUSES_MAX: u32 = 16;
/// A silent run is never longer: else its holds would not end. Half of the smallest depth a
/// provider may offer.
const SIGNAL_EVERY: usize = 16;
/// Nor has it more gather entries: it could fill a queue, and no report would tell of its end.
const QUIET_ENTRIES: usize = 128;
/// Polling turns into sleeping after this: about the price of waking another core (45 to 65 µs,
/// measured).
const SPIN: Duration = Duration::from_micros(50);
/// How long dropping a completion queue waits for what is in flight.
const DRAIN: Duration = Duration::from_secs(1);
