//! One region to one queue pair.

use std::collections::VecDeque;
use std::ops::Range;

use overside_memory::pack::{Packer, pack as pack_into, pack_runs};
use overside_memory::{Buffer, Pool, View, ViewPart};
use overside_planner::{Capabilities, Method, PlanError, Terms, ViewPlan};
use overside_shape::{Messages, Run, Shape};
use overside_verbs::declared::Region;
use overside_verbs::declared::bundle::{Framing, LENGTH_BYTES, first, write_lengths};
use overside_verbs::{CompletionQueue, QueuePair, VerbsError, WorkRequest};

use crate::cut::{Limits, by_entries};
use crate::error::{DeclareError, Error};

/// A region on its way. Nothing blocks: what finds no room in the queue or no transmit buffer is
/// posted by a later [`post`](DeclaredSend::post).
///
/// Its last request carries the caller's number and is signalled; those before it report failures
/// only. A region without messages posts nothing, so nothing of it is reported.
#[derive(Debug)]
pub struct DeclaredSend {
    id: u64,
    region: Region,
    way: Method,
    limits: Limits,
    inline_max: usize,
    /// The first message that is not in a request yet.
    next: u64,
    /// Messages beyond wait for a later tile of a shared send.
    until: u64,
    /// Made and not accepted yet.
    waiting: VecDeque<WorkRequest>,
    /// Messages of each of those.
    counts: VecDeque<u64>,
    /// A request that later tiles go on filling.
    open: Option<Open>,
    runs: Vec<Run>,
}

/// A transmit buffer that is being filled. Tiles do not cut requests: what is posted is as long as
/// it would be without.
#[derive(Debug)]
struct Open {
    buffer: Option<Buffer>,
    pool: Pool,
    /// Its messages when it is full.
    messages: Range<u64>,
    bytes: usize,
}

impl Open {
    /// What was packed, on its way.
    fn into_view(mut self) -> View {
        match self.buffer.take() {
            Some(buffer) => self.pool.view(buffer, self.bytes),
            None => unreachable!("an open request has its buffer"),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.put(buffer);
        }
    }
}

/// How far posting came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    /// To the end of what was released.
    Done,
    /// There is no transmit buffer for the next request.
    Starved,
    /// The queue takes no more.
    Full,
}

impl DeclaredSend {
    /// Sends `region` as `plan` says; without a plan it is gathered as it lies, and what has too
    /// many fragments for a gather list is packed. No request is longer than `request_bytes_max`,
    /// which the receiver's buffers must hold.
    ///
    /// # Errors
    /// [`DeclareError::Plan`] when a message is longer.
    pub fn new(
        id: u64,
        region: Region,
        plan: Option<&ViewPlan>,
        capabilities: &Capabilities,
        request_bytes_max: u64,
    ) -> Result<Self, DeclareError> {
        let bytes_max = request_bytes_max.min(capabilities.message_max);
        let messages = region.shape().messages();
        let longest = messages.uniform_bytes().or_else(|| messages.lengths().max()).unwrap_or(0);
        if longest > bytes_max {
            let error = PlanError::TooLong { bytes: longest, max: bytes_max };
            return Err(DeclareError::Plan { field: "the region".into(), error });
        }
        let way = match plan.map_or(Method::Gather, ViewPlan::way) {
            // Nobody else can read what no peer can map.
            Method::Declared if region.memory().segment().fd().is_none() => Method::Copy,
            way => way,
        };
        let gather_from = plan.map_or(0, ViewPlan::gather_from);
        let bundle_bytes = plan.map_or(Terms::default().bundle_bytes, ViewPlan::bundle_bytes);
        let limits =
            Limits { bytes_max: bytes_max.min(bundle_bytes), sge_max: capabilities.sge_max, gather_from, longest };
        let (inline_max, until) = (capabilities.inline_max.min(bytes_max as usize), messages.count());
        let (waiting, counts, runs) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Ok(Self { id, region, way, limits, inline_max, next: 0, until, waiting, counts, open: None, runs })
    }

    /// What is being sent.
    pub fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether every request of it was accepted.
    pub fn is_posted(&self) -> bool {
        self.waiting.is_empty() && self.open.is_none() && self.next == self.region.shape().messages().count()
    }

    /// Lets messages up to `until` go.
    pub(crate) fn release(&mut self, until: u64) {
        self.until = until.clamp(self.next, self.region.shape().messages().count());
    }

    /// Transmit buffers must hold a request, with the lengths in front of it.
    pub(crate) fn check(&self, pool: &Pool) -> Result<(), DeclareError> {
        if self.way == Method::Declared {
            return Ok(());
        }
        let messages = self.region.shape().messages();
        let lengths = if messages.uniform_bytes().is_none() { messages.count() * LENGTH_BYTES as u64 } else { 0 };
        let request_bytes = self.limits.bytes_max.min(messages.bytes() + lengths).max(self.limits.longest);
        let buffer_bytes = pool.buffer_bytes() as u64;
        if buffer_bytes < request_bytes {
            return Err(DeclareError::Pool { buffer_bytes, request_bytes });
        }
        Ok(())
    }

    /// Posts what was released, as far as the queue and the pool allow. With `several`, fewer than
    /// [`AT_ONCE`] requests wait for those of later tiles, so that a peer is woken once for
    /// several.
    pub(crate) fn advance(
        &mut self,
        queue: &mut CompletionQueue,
        qp: QueuePair,
        pool: &Pool,
        several: bool,
    ) -> Result<Advance, VerbsError> {
        let (memory, shape) = (self.region.memory().clone(), self.region.shape().clone());
        // Finding a place among the rows takes a while, and often there is nothing left to pack.
        let mut packer = None;
        loop {
            let mut starved = false;
            // Several at once, so that the provider tells the peer once.
            while self.waiting.len() < AT_ONCE && self.next < self.until && !starved {
                starved = !match packer.get_or_insert_with(|| self.packer(&memory, &shape)) {
                    Some(packer) => self.fill(packer, pool),
                    None => self.prepare(pool),
                };
            }
            let last = self.next == self.region.shape().messages().count();
            let later = several && !last && !starved && self.waiting.len() < AT_ONCE;
            if self.waiting.is_empty() || later {
                return Ok(if self.next == self.until { Advance::Done } else { Advance::Starved });
            }
            if !self.push(queue, qp)? {
                return Ok(Advance::Full);
            }
        }
    }

    /// Posts what is made; whether that was all.
    pub(crate) fn push(&mut self, queue: &mut CompletionQueue, qp: QueuePair) -> Result<bool, VerbsError> {
        if !self.waiting.is_empty() {
            let posted = queue.post(qp, &mut self.waiting);
            self.counts.drain(..self.counts.len() - self.waiting.len());
            posted?;
        }
        Ok(self.waiting.is_empty())
    }

    /// Makes a request of the buffer that is being filled, as far as it is.
    pub(crate) fn close_bundle(&mut self) {
        // Of a buffer that nothing is in yet, no request is made; it goes back.
        if let Some(open) = self.open.take().filter(|open| open.messages.start < self.next) {
            let all = self.region.shape().messages();
            let messages = open.messages.start..self.next;
            let count = messages.end - messages.start;
            self.put(framed(WorkRequest::send(self.id, open.into_view()), &all.slice(messages)), count);
        }
    }

    fn put(&mut self, request: WorkRequest, messages: u64) {
        self.counts.push_back(messages);
        let last = self.next == self.region.shape().messages().count();
        self.waiting.push_back(if last { request } else { request.prompt() });
    }

    /// Makes the next request, which begins with the first message that is in none; false while
    /// there is no transmit buffer for it.
    fn prepare(&mut self, pool: &Pool) -> bool {
        let shape = self.region.shape().clone();
        let all = shape.messages();
        let rest = all.slice(self.next..self.until);
        let made = match self.way {
            // All of it at once: its description says how the rest goes on.
            Method::Declared => {
                let taken = all.count() - self.next;
                (self.next, self.until) = (all.count(), all.count());
                let bundle_bytes = self.limits.bytes_max.max(self.limits.longest);
                self.put(WorkRequest::send_region(self.id, self.region.clone(), bundle_bytes), taken);
                return true;
            }
            Method::Copy => self.packed(&rest, pool),
            Method::Inline => self.inline(&rest, pool),
            Method::Gather | Method::Mixture | Method::Boxes => match by_entries(&rest, &self.limits, &mut self.runs) {
                Some(taken) => self.gathered(&rest.slice(0..taken), pool).map(|request| (taken, request)),
                // One message has more entries than a gather list: it is packed.
                None => self.packed(&rest.slice(0..1), pool),
            },
        };
        let Some((taken, request)) = made else { return false };
        self.next += taken;
        self.put(request, taken);
        true
    }

    /// For packing what was released bit by bit, where it is packed and its messages are of one
    /// length.
    pub(crate) fn packer<'a>(&self, memory: &'a Buffer, shape: &'a Shape) -> Option<Packer<'a>> {
        let released = self.next..self.until;
        self.fills().then(|| Packer::new(memory, shape.messages().slice(released)).ok().flatten()).flatten()
    }

    /// Whether it is packed and its messages are of one length: requests are filled stretch by
    /// stretch then.
    pub(crate) fn fills(&self) -> bool {
        self.way == Method::Copy && matches!(Framing::of(&self.region.shape().messages()), Framing::Uniform(_))
    }

    /// Packs a stretch of what `packer` has left into the buffer in hand, or into a new one; false
    /// when there is none.
    pub(crate) fn fill(&mut self, packer: &mut Packer<'_>, pool: &Pool) -> bool {
        let Some(room) = self.room(pool) else { return false };
        match packer.stretch(room) {
            Ok(taken) => self.filled(taken),
            Err(error) => unreachable!("a buffer holds a request: {error}"),
        }
        true
    }

    /// Where the next messages go, in the buffer in hand or a new one; none when there is no
    /// buffer. There is a message left.
    pub(crate) fn room(&mut self, pool: &Pool) -> Option<&mut [u8]> {
        let shape = self.region.shape();
        let all = shape.messages();
        if self.open.is_none() {
            let buffer = pool.take()?;
            let taken = first(&all.slice(self.next..all.count()), self.limits.bytes_max).count();
            let messages = self.next..self.next + taken;
            self.open = Some(Open { buffer: Some(buffer), pool: pool.clone(), messages, bytes: 0 });
        }
        let open = self.open.as_mut()?;
        let room = (open.messages.end - self.next) as usize * all.uniform_bytes().unwrap_or(0) as usize;
        Some(&mut open.buffer.as_mut()?[open.bytes..][..room])
    }

    /// So many messages have been written there.
    pub(crate) fn filled(&mut self, messages: u64) {
        let shape = self.region.shape().clone();
        let all = shape.messages();
        let Some(open) = &mut self.open else { return };
        self.next += messages;
        open.bytes += messages as usize * all.uniform_bytes().unwrap_or(0) as usize;
        if self.next == open.messages.end
            && let Some(open) = self.open.take()
        {
            let slice = all.slice(open.messages.clone());
            self.put(framed(WorkRequest::send(self.id, open.into_view()), &slice), slice.count());
        }
    }

    /// Messages in no request yet.
    pub(crate) fn left(&self) -> u64 {
        self.region.shape().messages().count() - self.next
    }

    /// Messages that no queue has accepted.
    pub(crate) fn unposted(&self) -> u64 {
        let filling = self.open.as_ref().map_or(0, |open| self.next - open.messages.start);
        self.left() + filling + self.counts.iter().sum::<u64>()
    }

    /// Whether so many requests wait.
    pub(crate) fn has(&self, requests: usize) -> bool {
        self.waiting.len() >= requests
    }

    /// As many messages as a buffer holds, packed.
    fn packed(&self, rest: &Messages<'_>, pool: &Pool) -> Option<(u64, WorkRequest)> {
        let slice = first(rest, self.limits.bytes_max);
        let mut buffer = pool.take()?;
        let len = pack(self.region.memory(), &slice, &mut buffer);
        Some((slice.count(), framed(WorkRequest::send(self.id, pool.view(buffer, len)), &slice)))
    }

    /// All messages in the descriptor; packed into a buffer when they are not that few after all.
    fn inline(&self, rest: &Messages<'_>, pool: &Pool) -> Option<(u64, WorkRequest)> {
        let framing = Framing::of(rest);
        let len = rest.bytes() as usize + framing.head_bytes();
        if len > self.inline_max {
            return self.packed(rest, pool);
        }
        let mut bytes = smallvec::SmallVec::<[u8; 512]>::from_elem(0, len);
        pack(self.region.memory(), rest, &mut bytes);
        Some((rest.count(), framed(WorkRequest::send_inline(self.id, &bytes), rest)))
    }

    /// The fragments in `runs`: long ones from where they lie, short ones and lengths in front from
    /// a buffer.
    fn gathered(&self, slice: &Messages<'_>, pool: &Pool) -> Option<WorkRequest> {
        let memory = self.region.memory();
        let (framing, gather_from) = (Framing::of(slice), self.limits.gather_from);
        if self.runs.is_empty() && framing.head_bytes() == 0 {
            return Some(framed(WorkRequest::send_inline(self.id, &[]), slice));
        }
        if framing.head_bytes() == 0 && self.runs.iter().all(|run| run.len >= gather_from) {
            let view = match View::runs(memory, self.runs.iter().copied()) {
                Ok(view) => view,
                Err(error) => unreachable!("a region lies in its memory: {error}"),
            };
            return Some(framed(WorkRequest::send(self.id, view), slice));
        }
        let mut buffer = pool.take()?;
        let head = framing.head_bytes();
        if head > 0 {
            write_lengths(slice, &mut buffer);
        }
        // A request's bytes are bounded far below 4 GiB.
        let mut parts: Vec<ViewPart> = Vec::with_capacity(self.limits.sge_max.min(self.runs.len() + 1));
        let (mut packed, mut stretch) = (head, head as u32);
        for run in &self.runs {
            if run.len >= gather_from {
                parts.extend((stretch > 0).then_some(ViewPart::Packed(stretch)));
                parts.push(ViewPart::Run(*run));
                stretch = 0;
            } else {
                (packed, stretch) = (packed + run.len as usize, stretch + run.len as u32);
            }
        }
        parts.extend((stretch > 0).then_some(ViewPart::Packed(stretch)));
        let short = self.runs.iter().copied().filter(|run| run.len < gather_from);
        if let Err(error) = pack_runs(memory, short, &mut buffer[head..]) {
            unreachable!("a region lies in its memory and a buffer holds a request: {error}");
        }
        match View::mixed(memory, pool.view(buffer, packed), parts) {
            Ok(view) => Some(framed(WorkRequest::send(self.id, view), slice)),
            Err(error) => unreachable!("a region lies in its memory, and what is packed was counted: {error}"),
        }
    }

    /// Posts as much of it to `qp` as the queue and the pool take now; true once all is posted.
    /// Otherwise poll, then call it again.
    ///
    /// # Errors
    /// [`DeclareError::Pool`] when the pool's buffers are shorter than a request may be; else as
    /// [`CompletionQueue::post`]: the rest can never be posted.
    pub fn post(&mut self, queue: &mut CompletionQueue, qp: QueuePair, pool: &Pool) -> Result<bool, Error> {
        self.check(pool)?;
        self.advance(queue, qp, pool, false)?;
        Ok(self.is_posted())
    }
}

/// Packs whole messages, with lengths in front where they differ; returns how many bytes that made.
fn pack(memory: &Buffer, slice: &Messages<'_>, out: &mut [u8]) -> usize {
    let head = Framing::of(slice).head_bytes();
    if head > 0 {
        write_lengths(slice, out);
    }
    match pack_into(memory, slice, &mut out[head..]) {
        Ok(packed) => head + packed,
        Err(error) => unreachable!("a region lies in its memory and a buffer holds a request: {error}"),
    }
}

fn framed(request: WorkRequest, slice: &Messages<'_>) -> WorkRequest {
    match Framing::of(slice).immediate() {
        Some(immediate) => request.with_immediate(immediate),
        None => request,
    }
}

/// Requests that are posted together.
const AT_ONCE: usize = 4;
