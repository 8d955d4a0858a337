//! The provider's data side, and every sentence it owes.
//!
//! Plain data, no ownership: the [`CompletionQueue`](crate::CompletionQueue) above keeps views and
//! buffers alive. The sentences below carry ids; the conformance suite has a test for each, named
//! after it.
//!
//! - **own**: bytes of a request are touched only from `post` until its completion is returned by
//!   `poll`; those of a SEND that was lent until it is reported as returned (**return**).
//! - **private**: once a receive or READ has completed, no peer can change the bytes of its buffer.
//!   What a loan shows is the peer's: whoever reads it copies, and asks afterwards (**revoke**).
//! - **accept**: `post` accepts a prefix of the batch and says how long it is; what it refuses it
//!   has not touched.
//! - **once**: each accepted slot is reported at most once; exactly once if it was signalled or
//!   failed. One that was lent is reported a second time, as returned.
//! - **silent**: an unsignalled request that succeeds is not reported, but where **room** or
//!   **close** say so.
//! - **room**: where `post` accepted less than all without an error, only unsignalled requests may
//!   be in flight. Then one of them that has ended is reported as soon as there is more room:
//!   nothing else would tell whoever waits for it.
//! - **order**: send-side completions of a queue pair are reported in the order of posting.
//! - **fifo**: messages of a queue pair meet its receives in the order in which both were posted.
//! - **placed**: a SEND or WRITE succeeds only when its bytes are in the peer's buffer or memory,
//!   or the peer has accepted them as a loan.
//! - **gather**: the message is the fragments' bytes in list order.
//! - **inline**: an inline payload, and every fragment list, is not read after `post` returns.
//! - **region**: a region's messages arrive as the SENDs that
//!   [`declared::bundle::first`](crate::declared::bundle::first) cuts them into, in order. Each
//!   meets a receive of its own with the immediate data of its framing. The request completes once,
//!   after the last of them was placed. Where `Capabilities::region_bytes_max` is 0, or has no room
//!   for the description, it is refused. The receiving port was opened with
//!   [`PortOptions::regions`](crate::PortOptions); one that was not ends the connection.
//! - **lend**: a SEND of fragments that may be lent ([`RawRequest::lend`]) and meets a receive that
//!   takes a loan ([`RawReceive::takes_loan`]) is lent where `Capabilities::lends` is set. Both
//!   completions then say [`Lending::Lent`], and no byte of the receive's buffer is changed.
//!   [`Port::take_loan`] gives the message's bytes in list order where they lie. The provider
//!   copies them into the buffer instead, and says nothing of a loan, where the bytes ride along or
//!   lie where no peer can map them. It does so, too, where as many loans of the connection are out
//!   as it keeps account of. **order**, **fifo**, **length** and **immediate** hold either way.
//! - **return**: the end of a [`Loan`] is the end of what it shows. The sender's port then reports
//!   the slot again, once, as [`Lending::Returned`], and not before. Loans end in any order and on
//!   any thread. One that has ended when its SEND is reported is reported as [`Lending::No`], and
//!   not again.
//! - **revoke**: when the queue pair ends, each loan is reported as returned. Before that,
//!   [`Loan::is_valid`] is false at the receiver, and stays so. A loan that its receiver keeps
//!   stays readable, whatever happens to queue pair, port and peer; what a peer lent whose process
//!   was killed stays as it was.
//! - **immediate**: immediate data arrives with its message; a WRITE with immediate consumes a
//!   receive and changes no byte of its buffer, after its own bytes and all earlier WRITEs of the
//!   queue pair are visible.
//! - **rnr**: a message that meets no receive waits; it is not an error and nothing is lost. So it
//!   does where the receiver moves the bytes and does not poll. No provider sets a deadline for a
//!   peer that is alive: what a request lends stays lent until its end or `close`, and whoever
//!   sends decides how long to wait.
//! - **length**: a message longer than its receive completes both ends with `TooLong` and closes
//!   the queue pair; no byte outside the buffer is written.
//! - **last-word**: where the target's `Capabilities::last_byte_last` is set, a WRITE's last
//!   aligned 8 bytes become visible after its others. What the writer's own says is of no account.
//! - **write-order**: WRITEs of one queue pair become visible in order.
//! - **fence**: a fenced request takes effect after all earlier READs and atomics of its queue
//!   pair.
//! - **atomic**: FETCH_ADD and CMP_SWAP are atomic within `Capabilities::atomics` and report the
//!   old value.
//! - **keys**: a remote range outside of the region, a wrong key or a missing right completes with
//!   `RemoteAccess` and changes nothing.
//! - **progress**: where `Capabilities::progress_by_itself` is set, one-sided operations complete
//!   though the target never calls in, and what `post` accepted goes out though its poster never
//!   calls in again.
//! - **shared**: receives of the shared receive queue serve any queue pair of the port, each once.
//! - **close**: after `close`, everything pending on the queue pair is reported (`Flushed` unless
//!   it had ended otherwise), at both ends. So is the last of the unsignalled requests that
//!   succeeded since the last report: nobody waits for what has ended.
//! - **death**: the peer's death is reported within a second, by an event and by the failure of
//!   everything pending.
//! - **hostile**: whatever a peer writes where it can write, only its own connection suffers.
//! - **arm**: after `arm` returned true, the descriptor becomes readable when `poll` or
//!   `next_event` would return something. So with `wait`.
//! - **half**: with [`PortOptions::wake_at_half`](crate::PortOptions) completed sends do that at
//!   the latest once they are half of those in flight, but not where all of those are lent.
//!   Returned loans do it once they are half of what is lent or offered, or once their borrower
//!   sleeps. Both do it with a wait's timeout, and everything else at once.
//! - **wait**: `wait` returns soon after `poll` or `next_event` would return something, after
//!   `other` became readable and after `timeout`.
//! - **forget**: memory whose registration has ended is let go once no request in flight names it;
//!   a port that sleeps is woken where that needs a poll.
//! - **idle**: a port on which nothing happens costs no processor time once armed.
//! - **nonblocking**: `post`, `poll`, `arm`, `close` and `next_event` do not wait for a peer.
//! - **line**: [`Port::line_ns`] says a number of nanoseconds from 0 on, or none: of a queue pair
//!   that is not there, and where the provider does not know it. None is the default; plans go by
//!   the prices of one distance then. Asking changes nothing else.
//! - **learn**: what [`Provider::learn`](crate::Provider::learn) is told changes no byte and no
//!   report. It says each time the same, whether there is anything to learn; by default there is
//!   not.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use overside_memory::{Fragment, SegmentId};
use overside_shape::Shape;

use crate::clock::{Clock, SystemClock};
use crate::provider::Link;
use crate::region::RemoteToken;
use crate::work::Status;
use crate::{Loan, Opcode, VerbsError};

/// Index of a queue pair in its port; given by the completion queue, used again only after it is
/// drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpIndex(pub u32);

/// Bytes to send.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Fragments in message order.
    Gather(&'a [Fragment]),
    /// Bytes that ride in the descriptor.
    Inline(&'a [u8]),
}

/// A region to be sent.
#[derive(Clone, Copy, Debug)]
pub struct RawRegion<'a> {
    /// First byte of the memory that the shape's offsets count from.
    pub address: *const u8,
    /// Its length in bytes; the shape lies within.
    pub len: usize,
    /// The segment it lies in.
    pub segment: SegmentId,
    /// Which bytes, and where messages end; not read after `post` returns.
    pub shape: &'a Shape,
    /// Up to so many bytes, whole messages share a SEND.
    pub bundle_bytes: u64,
}

/// What a raw request does.
#[derive(Clone, Copy, Debug)]
pub enum RawWork<'a> {
    /// SEND.
    Send(Payload<'a>, Option<u32>),
    /// SENDs of a region's messages.
    SendRegion(RawRegion<'a>),
    /// WRITE, with immediate or not.
    Write(Payload<'a>, RemoteToken, Option<u32>),
    /// READ `RemoteToken::len` bytes to the start of the sink, which is at least as long.
    Read(RawBuffer, RemoteToken),
    /// FETCH_ADD.
    FetchAdd(RemoteToken, u64),
    /// CMP_SWAP: compare, then swap.
    CompareSwap(RemoteToken, u64, u64),
}

/// A request of the send queue.
#[derive(Clone, Copy, Debug)]
pub struct RawRequest<'a> {
    /// The completion queue's number for it.
    pub slot: u32,
    /// What it does.
    pub work: RawWork<'a>,
    /// Whether success is reported.
    pub signalled: bool,
    /// Whether it waits for earlier READs and atomics.
    pub fence: bool,
    /// Of a SEND of fragments: whether the receiver may have them as a loan. Such a request is
    /// signalled. For any other one it means nothing.
    pub lend: bool,
}

/// Memory that is the provider's until the completion.
#[derive(Clone, Copy, Debug)]
pub struct RawBuffer {
    /// First byte.
    pub address: *mut u8,
    /// Length in bytes.
    pub len: usize,
    /// The segment it lies in, registered in the domain of the port, as those of fragments are.
    pub segment: SegmentId,
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub struct RawReceive {
    /// The completion queue's number for it.
    pub slot: u32,
    /// Where the message goes.
    pub buffer: RawBuffer,
    /// Whether it takes a loan instead.
    pub takes_loan: bool,
}

/// The end of a raw request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawCompletion {
    /// The request's number.
    pub slot: u32,
    /// The queue pair; for a flushed shared receive, none.
    pub qp: Option<QpIndex>,
    /// Which operation.
    pub opcode: Opcode,
    /// How it ended.
    pub status: Status,
    /// Bytes received, read or sent.
    pub bytes: u64,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// What an atomic found.
    pub value: u64,
    /// Whether it begins or ends a loan.
    pub lending: Lending,
}

impl RawCompletion {
    /// Of no request: for places that a port reports to.
    pub const NONE: Self = Self::new(u32::MAX, None, Opcode::Send, Status::Flushed);

    /// Of a request that moved no byte.
    #[inline]
    pub const fn new(slot: u32, qp: Option<QpIndex>, opcode: Opcode, status: Status) -> Self {
        Self { slot, qp, opcode, status, bytes: 0, immediate: None, value: 0, lending: Lending::No }
    }

    /// The same with a message.
    #[inline]
    pub const fn with(self, bytes: u64, immediate: Option<u32>) -> Self {
        Self { bytes, immediate, ..self }
    }
}

/// What a completion says of loans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lending {
    /// Nothing: what was sent was copied, or was lent and is back already.
    #[default]
    No,
    /// A loan begins. Of a SEND: its bytes stay the request's until it is reported again. Of a
    /// receive: the loan is to be [taken](Port::take_loan).
    Lent,
    /// A loan of that slot has ended; whoever posted it hears nothing.
    Returned,
}

/// What happened to a queue pair apart from its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortEvent<Q = QpIndex> {
    /// The peer closed, died or misbehaved; everything pending completes. Close the queue pair to
    /// free its index.
    Disconnected {
        /// Which queue pair.
        queue_pair: Q,
        /// Why, as a status.
        status: Status,
        /// Why, for people.
        reason: String,
    },
}

/// A completion queue with its queue pairs: one owner, `&mut self`, never blocks.
///
/// # Safety
/// The completion queue above hands out buffers and releases holds by what a port reports. So
/// unsafe code leans on these sentences of this module: **own**, **private**, **accept**, **once**,
/// **order** and **return**.
pub unsafe trait Port: Send {
    /// Makes a queue pair of a connection. Receives may be posted to it at once.
    ///
    /// # Errors
    /// When the link is not this provider's, is forked, or there is no room.
    fn attach(&mut self, qp: QpIndex, link: Link) -> Result<(), VerbsError>;

    /// Posts to the send queue; returns how many of `batch` were accepted. Fewer than all without
    /// an error means that the queue is full for now, or that news of a registration, which the
    /// next request needs, is still under way. Poll, then post the rest.
    ///
    /// # Errors
    /// Of the first request that can never be accepted; then the ones before it were accepted and
    /// `accepted` says how many.
    ///
    /// # Safety
    /// The bytes that accepted requests name stay valid, and unchanged where they are read, until
    /// completion.
    unsafe fn post(&mut self, qp: QpIndex, batch: &[RawRequest<'_>]) -> (usize, Option<VerbsError>);

    /// Posts receives to a queue pair, or to the shared receive queue when `qp` is none; returns
    /// how many were accepted. A queue pair with no receive of its own takes from the shared queue.
    ///
    /// # Errors
    /// [`VerbsError::Closed`] for a queue pair that is not there.
    ///
    /// # Safety
    /// The buffers are the provider's alone until completion.
    unsafe fn post_receive(&mut self, qp: Option<QpIndex>, batch: &[RawReceive]) -> Result<usize, VerbsError>;

    /// Progresses and reports completions; returns how many.
    fn poll(&mut self, out: &mut [RawCompletion]) -> usize;

    /// The loan that a receive was reported with ([`Lending::Lent`]), once. One that is not taken
    /// ends with the port.
    fn take_loan(&mut self, _slot: u32) -> Option<Loan> {
        None
    }

    /// The next event, if any.
    fn next_event(&mut self) -> Option<PortEvent>;

    /// Asks for the descriptor to become readable when something happens. False: something has
    /// happened already, poll again instead of sleeping.
    ///
    /// # Errors
    /// When the system refuses.
    fn arm(&mut self) -> Result<bool, VerbsError>;

    /// Sleeps until something happens here, `other` becomes readable or `timeout` has passed;
    /// whether it slept. As [`arm`](Self::arm) and a sleep on [`fd`](Self::fd), which is what it
    /// does unless the provider knows a cheaper way.
    ///
    /// # Errors
    /// When the system refuses.
    fn wait(&mut self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<bool, VerbsError> {
        let armed = self.arm()?;
        if armed {
            let clock = self.clock();
            let until = timeout.and_then(|timeout| clock.now().checked_add(timeout));
            match other {
                Some(other) => clock.wait(&[self.fd(), other], until)?,
                None => clock.wait(&[self.fd()], until)?,
            }
        }
        Ok(armed)
    }

    /// How long a cache line lately took to come from the processor of a queue pair's peer, in
    /// nanoseconds (sentence **line**). It is measured while something is sent to that peer, by the
    /// polls that follow a call of this, and no others.
    fn line_ns(&mut self, _qp: QpIndex) -> Option<f64> {
        None
    }

    /// Where its [`wait`](Self::wait) takes time from: its provider's
    /// [clock](crate::Provider::clock).
    fn clock(&self) -> Arc<dyn Clock> {
        SystemClock::handle()
    }

    /// The descriptor to wait on.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Closes a queue pair. Everything pending on it is reported by later polls; the index is free
    /// after those.
    fn close(&mut self, qp: QpIndex);
}
