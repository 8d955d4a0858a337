//! Drives a port without a completion queue in between, for whoever tests a provider.
//!
//! A [`CompletionQueue`](crate::CompletionQueue) would mask what a broken provider does: it drops
//! reports of requests that it does not know, cuts lengths, infers order. A [`Probe`] shows them as
//! they are, and stays safe: every byte that a request names lies in an [`Area`]. It gives copies
//! only (as a [`Window`](overside_memory::Window) does), is never unmapped while a request names
//! it, and refuses writes to what a port may be reading.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overside_memory::{Fragment, MemoryError, Segment, SegmentId, kernels};
use overside_shape::Shape;

use crate::port::{
    Lending, Payload, Port, PortEvent, QpIndex, RawBuffer, RawCompletion, RawReceive, RawRegion, RawRequest, RawWork,
};
use crate::provider::Link;
use crate::region::{Memory, RemoteToken};
use crate::work::{Opcode, Status};
use crate::{Loan, VerbsError};

/// A segment of which only copies are taken. Cheap to clone; clones are the same memory.
#[derive(Clone, Debug)]
pub struct Area(Arc<AreaInner>);

#[derive(Debug)]
struct AreaInner {
    segment: Arc<Segment>,
    named: SegmentId,
    lent: Mutex<Vec<(usize, usize)>>,
}

impl Area {
    /// Takes a segment over, whole.
    pub fn new(segment: Segment) -> Self {
        let named = segment.id();
        Self(Arc::new(AreaInner { segment: Arc::new(segment), named, lent: Mutex::default() }))
    }

    /// The same, but its fragments say that they belong to no segment, as a user's heap does.
    pub fn foreign(segment: Segment) -> Self {
        let named = SegmentId::FOREIGN;
        Self(Arc::new(AreaInner { segment: Arc::new(segment), named, lent: Mutex::default() }))
    }

    /// What to register.
    pub fn memory(&self) -> Memory {
        Memory::Segment(self.0.segment.clone())
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.segment.len()
    }

    /// Never: a segment has at least a page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of `len` bytes at `at`, whoever may be writing them.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`].
    pub fn read(&self, at: usize, len: usize) -> Result<Vec<u8>, MemoryError> {
        let source = self.checked(at, len)?;
        let mut out = vec![0; len];
        // SAFETY: [verbs-probe] in bounds of a mapping that `self` keeps; `out` is ours.
        unsafe { kernels::copy_racing(out.as_mut_ptr(), source, len) };
        Ok(out)
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`].
    ///
    /// # Panics
    /// When a request in flight names some of these bytes.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        let target = self.checked(at, bytes.len())?;
        let lent = self.lent();
        let busy = lent.iter().any(|(start, end)| *start < at + bytes.len() && at < *end);
        assert!(!busy, "bytes {at}..{} are in flight", at + bytes.len());
        // SAFETY: [verbs-probe] in bounds, no request names the bytes, and the lock keeps it so; `bytes` is ours.
        unsafe { kernels::copy_racing(target, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// `len` bytes from `at`, for a request.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`].
    pub fn piece(&self, at: usize, len: usize) -> Result<Piece, MemoryError> {
        self.checked(at, len)?;
        Ok(Piece { area: self.clone(), at, len })
    }

    fn checked(&self, at: usize, len: usize) -> Result<*mut u8, MemoryError> {
        match at.checked_add(len) {
            Some(end) if end <= self.len() => Ok(self.0.segment.base().as_ptr().wrapping_add(at)),
            _ => Err(MemoryError::Escapes { at: at as u64, len: len as u64, of: self.len() as u64 }),
        }
    }

    fn lent(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.0.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of an area.
#[derive(Clone, Debug)]
pub struct Piece {
    area: Area,
    at: usize,
    len: usize,
}

impl Piece {
    /// Its bytes now.
    pub fn read(&self) -> Vec<u8> {
        self.area.read(self.at, self.len).unwrap_or_default()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn address(&self) -> *mut u8 {
        self.area.0.segment.base().as_ptr().wrapping_add(self.at)
    }

    fn fragment(&self) -> Fragment {
        Fragment { address: self.address(), len: self.len as u32, segment: self.area.0.named }
    }

    fn buffer(&self) -> RawBuffer {
        RawBuffer { address: self.address(), len: self.len, segment: self.area.0.named }
    }

    fn lend(&self) {
        self.area.lent().push((self.at, self.at + self.len));
    }

    fn end(&self) {
        let mut lent = self.area.lent();
        if let Some(i) = lent.iter().position(|range| *range == (self.at, self.at + self.len)) {
            lent.swap_remove(i);
        }
    }
}

/// The bytes of a message.
#[derive(Clone, Debug)]
pub enum Data {
    /// Pieces in message order.
    Gather(Vec<Piece>),
    /// Bytes that ride in the descriptor.
    Inline(Vec<u8>),
}

/// What a probe's request does.
#[derive(Clone, Debug)]
pub enum Act {
    /// SEND.
    Send(Data, Option<u32>),
    /// SENDs of a region's messages: its memory, its shape, and up to how many bytes share a SEND.
    Region(Piece, Arc<Shape>, u64),
    /// WRITE, with immediate or not.
    Write(Data, RemoteToken, Option<u32>),
    /// READ.
    Read(Piece, RemoteToken),
    /// FETCH_ADD.
    FetchAdd(RemoteToken, u64),
    /// CMP_SWAP: compare, then swap.
    CompareSwap(RemoteToken, u64, u64),
}

/// A request of a probe.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its number; the caller's choice, not in use by another in flight.
    pub slot: u32,
    /// What it does.
    pub act: Act,
    /// Whether success is reported.
    pub signalled: bool,
    /// Whether it waits for earlier READs and atomics.
    pub fence: bool,
    /// Whether the receiver may have its bytes as a loan.
    pub lend: bool,
}

/// A port under test, and the memory of everything posted to it.
pub struct Probe {
    port: Option<Box<dyn Port>>,
    flights: BTreeMap<u64, Flight>,
    posted: u64,
    decoy: Area,
}

struct Flight {
    slot: u32,
    /// The queue pair of a send-side request.
    sent_on: Option<QpIndex>,
    pieces: Vec<Piece>,
}

/// What `post` was given a pointer to: one request's fragments and inline bytes.
#[derive(Default)]
struct Lists {
    fragments: Vec<Fragment>,
    inline: Vec<u8>,
}

impl Probe {
    /// Over a port that nobody else has.
    ///
    /// # Errors
    /// When there is no memory for the decoy.
    pub fn new(port: Box<dyn Port>) -> Result<Self, MemoryError> {
        let decoy = Area::new(Segment::private(DECOY_BYTES)?);
        decoy.write(0, &vec![SCRIBBLE; DECOY_BYTES])?;
        Ok(Self { port: Some(port), flights: BTreeMap::new(), posted: 0, decoy })
    }

    /// Makes a queue pair of a connection.
    ///
    /// # Errors
    /// The port's.
    pub fn attach(&mut self, qp: QpIndex, link: Link) -> Result<(), VerbsError> {
        self.port().attach(qp, link)
    }

    /// Posts, then writes over everything that **inline** says is not read after `post` returns.
    /// Returns what the port said, or [`MemoryError::Escapes`] where a region leaves its memory,
    /// which no port has to check.
    ///
    /// # Panics
    /// When a request in flight has one of the numbers: its memory would be let go at the other
    /// one's end.
    pub fn post(&mut self, qp: QpIndex, batch: &[Request]) -> (usize, Option<VerbsError>) {
        for request in batch {
            if let Act::Region(memory, shape, _) = &request.act
                && shape.end() > memory.len as u64
            {
                let (at, len, of) = (shape.start(), shape.end() - shape.start(), memory.len as u64);
                return (0, Some(MemoryError::Escapes { at, len, of }.into()));
            }
        }
        self.refuse_numbers_in_use(batch.iter().map(|request| request.slot));
        let mut lists: Vec<Lists> = batch.iter().map(Lists::of).collect();
        let raw: Vec<RawRequest<'_>> = batch.iter().zip(&lists).map(|(request, lists)| raw(request, lists)).collect();
        for request in batch {
            let pieces = pieces(&request.act);
            pieces.iter().for_each(Piece::lend);
            self.flights.insert(self.posted, Flight { slot: request.slot, sent_on: Some(qp), pieces });
            self.posted += 1;
        }
        // SAFETY: [verbs-probe] areas stay mapped until their completion is seen, or for ever, and `write`
        // leaves alone what is in flight.
        let (accepted, error) = unsafe { self.port().post(qp, &raw) };
        drop(raw);
        let refused = batch.len().saturating_sub(accepted) as u64;
        for number in self.posted - refused..self.posted {
            self.finish(number);
        }
        lists.iter_mut().for_each(|lists| lists.scribble(&self.decoy));
        // A port that kept the address of a list must meet the scribble, not freed memory.
        std::mem::forget(lists);
        (accepted, error)
    }

    /// Posts receives: number and piece each.
    ///
    /// # Errors
    /// The port's; then none was accepted.
    ///
    /// # Panics
    /// As [`post`](Self::post).
    pub fn post_receive(&mut self, qp: Option<QpIndex>, batch: &[(u32, Piece)]) -> Result<usize, VerbsError> {
        self.post_receives(qp, batch, false)
    }

    /// As [`post_receive`](Self::post_receive), for receives that take loans.
    ///
    /// # Errors
    /// As [`post_receive`](Self::post_receive).
    ///
    /// # Panics
    /// As [`post`](Self::post).
    pub fn post_receive_or_loan(&mut self, qp: Option<QpIndex>, batch: &[(u32, Piece)]) -> Result<usize, VerbsError> {
        self.post_receives(qp, batch, true)
    }

    fn post_receives(
        &mut self,
        qp: Option<QpIndex>,
        batch: &[(u32, Piece)],
        takes_loan: bool,
    ) -> Result<usize, VerbsError> {
        self.refuse_numbers_in_use(batch.iter().map(|(slot, _)| *slot));
        let mut raw = Vec::new();
        for (slot, piece) in batch {
            piece.lend();
            self.flights.insert(self.posted, Flight { slot: *slot, sent_on: None, pieces: vec![piece.clone()] });
            self.posted += 1;
            raw.push(RawReceive { slot: *slot, buffer: piece.buffer(), takes_loan });
        }
        // SAFETY: [verbs-probe] areas stay mapped until their completion is seen, or for ever.
        let accepted = unsafe { self.port().post_receive(qp, &raw) };
        let refused = batch.len().saturating_sub(*accepted.as_ref().unwrap_or(&0)) as u64;
        for number in self.posted - refused..self.posted {
            self.finish(number);
        }
        accepted
    }

    /// Polls once; appends what the port reports, as it reports it.
    pub fn poll(&mut self, out: &mut Vec<RawCompletion>) -> usize {
        let mut raw = [NOTHING; POLL_CHUNK];
        let count = self.port().poll(&mut raw).min(POLL_CHUNK);
        for completion in &raw[..count] {
            self.complete(completion);
            out.push(*completion);
        }
        count
    }

    /// The loan that a receive was reported with.
    pub fn take_loan(&mut self, slot: u32) -> Option<Loan> {
        self.port().take_loan(slot)
    }

    /// The next event, if any.
    pub fn next_event(&mut self) -> Option<PortEvent> {
        self.port().next_event()
    }

    /// Arms the descriptor.
    ///
    /// # Errors
    /// The port's.
    pub fn arm(&mut self) -> Result<bool, VerbsError> {
        self.port().arm()
    }

    /// Sleeps.
    ///
    /// # Errors
    /// The port's.
    pub fn wait(&mut self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        self.port().wait(other, timeout)
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.port.as_ref().expect("open until drop").fd()
    }

    /// Asks how far the peer's processor is.
    pub fn line_ns(&mut self, qp: QpIndex) -> Option<f64> {
        self.port().line_ns(qp)
    }

    /// Closes a queue pair.
    pub fn close(&mut self, qp: QpIndex) {
        self.port().close(qp);
    }

    fn complete(&mut self, done: &RawCompletion) {
        // What was lent stays in flight until its second report.
        if done.lending == Lending::Lent && !matches!(done.opcode, Opcode::Receive | Opcode::ReceiveImmediate) {
            return self.lent(done.slot);
        }
        let Some((number, flight)) = self.flights.iter().find(|(_, flight)| flight.slot == done.slot) else { return };
        let (number, sent_on) = (*number, flight.sent_on);
        // Unsignalled requests before one that completed have completed too.
        let earlier: Vec<u64> = self
            .flights
            .range(..number)
            .filter(|(_, flight)| sent_on.is_some() && flight.sent_on == sent_on)
            .map(|(number, _)| *number)
            .collect();
        earlier.into_iter().chain([number]).for_each(|number| self.finish(number));
    }

    /// A SEND was lent: earlier unsignalled ones have completed, and no later completion speaks for
    /// it.
    fn lent(&mut self, slot: u32) {
        let Some((number, flight)) = self.flights.iter_mut().find(|(_, flight)| flight.slot == slot) else { return };
        let (number, sent_on) = (*number, flight.sent_on.take());
        let earlier = self.flights.range(..number).filter(|(_, flight)| sent_on.is_some() && flight.sent_on == sent_on);
        let earlier: Vec<u64> = earlier.map(|(number, _)| *number).collect();
        earlier.into_iter().for_each(|number| self.finish(number));
    }

    fn refuse_numbers_in_use(&self, slots: impl Iterator<Item = u32>) {
        let mut used: BTreeSet<u32> = self.flights.values().map(|flight| flight.slot).collect();
        slots.for_each(|slot| assert!(used.insert(slot), "number {slot} is in flight"));
    }

    fn finish(&mut self, number: u64) {
        if let Some(flight) = self.flights.remove(&number) {
            flight.pieces.iter().for_each(Piece::end);
        }
    }

    fn port(&mut self) -> &mut dyn Port {
        self.port.as_mut().expect("open until drop").as_mut()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // What the port has not completed stays mapped for ever: it may be broken. So it does if
        // the port's end panics.
        std::mem::forget(std::mem::take(&mut self.flights));
        std::mem::forget(self.decoy.clone());
        drop(self.port.take());
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").field("in_flight", &self.flights.len()).finish_non_exhaustive()
    }
}

impl Lists {
    fn of(request: &Request) -> Self {
        match &request.act {
            Act::Send(Data::Gather(pieces), _) | Act::Write(Data::Gather(pieces), ..) => {
                Self { fragments: pieces.iter().map(Piece::fragment).collect(), inline: Vec::new() }
            }
            Act::Send(Data::Inline(bytes), _) | Act::Write(Data::Inline(bytes), ..) => {
                Self { fragments: Vec::new(), inline: bytes.clone() }
            }
            Act::Region(..) | Act::Read(..) | Act::FetchAdd(..) | Act::CompareSwap(..) => Self::default(),
        }
    }

    fn scribble(&mut self, decoy: &Area) {
        self.inline.fill(SCRIBBLE);
        for fragment in &mut self.fragments {
            fragment.address = decoy.0.segment.base().as_ptr();
            fragment.len = fragment.len.min(DECOY_BYTES as u32);
        }
    }
}

fn raw<'a>(request: &'a Request, lists: &'a Lists) -> RawRequest<'a> {
    let payload = |data: &Data| match data {
        Data::Gather(_) => Payload::Gather(&lists.fragments),
        Data::Inline(_) => Payload::Inline(&lists.inline),
    };
    let work = match &request.act {
        Act::Send(data, immediate) => RawWork::Send(payload(data), *immediate),
        Act::Region(memory, shape, bundle_bytes) => {
            let RawBuffer { address, len, segment } = memory.buffer();
            RawWork::SendRegion(RawRegion { address, len, segment, shape, bundle_bytes: *bundle_bytes })
        }
        Act::Write(data, remote, immediate) => RawWork::Write(payload(data), *remote, *immediate),
        Act::Read(sink, remote) => RawWork::Read(sink.buffer(), *remote),
        Act::FetchAdd(remote, add) => RawWork::FetchAdd(*remote, *add),
        Act::CompareSwap(remote, compare, swap) => RawWork::CompareSwap(*remote, *compare, *swap),
    };
    let Request { slot, signalled, fence, lend, .. } = *request;
    RawRequest { slot, work, signalled, fence, lend }
}

fn pieces(act: &Act) -> Vec<Piece> {
    match act {
        Act::Send(Data::Gather(pieces), _) | Act::Write(Data::Gather(pieces), ..) => pieces.clone(),
        Act::Read(piece, _) | Act::Region(piece, ..) => vec![piece.clone()],
        Act::Send(Data::Inline(_), _) | Act::Write(Data::Inline(_), ..) => Vec::new(),
        Act::FetchAdd(..) | Act::CompareSwap(..) => Vec::new(),
    }
}

const NOTHING: RawCompletion = RawCompletion {
    slot: u32::MAX,
    qp: None,
    opcode: Opcode::Send,
    status: Status::Flushed,
    bytes: 0,
    immediate: None,
    value: 0,
    lending: Lending::No,
};
/// Completions taken from the port at once.
const POLL_CHUNK: usize = 32;
/// Where scribbled fragment lists point.
const DECOY_BYTES: usize = 1 << 20;
/// What is written over lists and inline bytes.
const SCRIBBLE: u8 = 0xEE;
