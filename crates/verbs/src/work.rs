//! Requests and their completions.

use overside_memory::{Buffer, View};
use smallvec::SmallVec;

use crate::declared::Region;
use crate::loan::Loan;
use crate::port::{Payload, RawBuffer, RawRequest, RawWork};
use crate::region::{Atomic, Readable, Remote, Writable};

/// Names a queue pair of a completion queue. Never names a later one by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueuePair(pub(crate) u64);

/// A send-side request. It owns what it needs until it completes.
#[derive(Debug)]
pub struct WorkRequest {
    /// The caller's own number, given back with the completion.
    pub id: u64,
    /// Whether success is reported; failure always is.
    pub signalled: bool,
    /// Whether it waits until earlier READs and atomics of its queue pair are done.
    pub fence: bool,
    /// Its end is looked for even though nobody is told: what it holds is scarce.
    pub(crate) prompt: bool,
    /// Its receiver may have its bytes as a loan.
    pub(crate) lend: bool,
    /// The end of what it holds is reported, too.
    pub(crate) tells_release: bool,
    pub(crate) work: Work,
}

#[derive(Debug)]
pub(crate) enum Work {
    Send { view: View, immediate: Option<u32> },
    SendInline { bytes: SmallVec<[u8; 64]>, immediate: Option<u32> },
    SendRegion { region: Region, bundle_bytes: u64 },
    Write { view: View, remote: Remote<Writable>, immediate: Option<u32> },
    WriteInline { bytes: SmallVec<[u8; 64]>, remote: Remote<Writable>, immediate: Option<u32> },
    Read { sink: Buffer, remote: Remote<Readable> },
    FetchAdd { remote: Remote<Atomic>, add: u64 },
    CompareSwap { remote: Remote<Atomic>, compare: u64, swap: u64 },
}

impl WorkRequest {
    /// SEND: one message of the view's fragments in order (to-copy §3 TC-M01).
    #[inline]
    pub fn send(id: u64, view: View) -> Self {
        Self::new(id, Work::Send { view, immediate: None })
    }

    /// SEND of bytes that ride in the descriptor (to-copy §5.6 TC-M11); at most
    /// `Capabilities::inline_max` of them. They are the caller's again at once.
    #[inline]
    pub fn send_inline(id: u64, bytes: &[u8]) -> Self {
        Self::new(id, Work::SendInline { bytes: SmallVec::from_slice(bytes), immediate: None })
    }

    /// The region's messages, cut into SENDs and made at the other end by the region's own
    /// description: one request whatever the number of messages (d-rdma §3 DR-M01). As many whole
    /// messages share a SEND as fit into `bundle_bytes` ([`Bundle`](crate::declared::Bundle)); each
    /// SEND meets a receive. Only where `Capabilities::region_bytes_max` has room for the
    /// description, and only for memory that peers can map.
    pub fn send_region(id: u64, region: Region, bundle_bytes: u64) -> Self {
        Self::new(id, Work::SendRegion { region, bundle_bytes })
    }

    /// WRITE the view into a peer's memory.
    #[inline]
    pub fn write(id: u64, view: View, remote: Remote<Writable>) -> Self {
        Self::new(id, Work::Write { view, remote, immediate: None })
    }

    /// WRITE of bytes that ride in the request (rdma-sockets RS-M18); at most
    /// `Capabilities::inline_max` of them. They are the caller's again at once.
    #[inline]
    pub fn write_inline(id: u64, bytes: &[u8], remote: Remote<Writable>) -> Self {
        Self::new(id, Work::WriteInline { bytes: SmallVec::from_slice(bytes), remote, immediate: None })
    }

    /// READ a peer's memory into a buffer, which comes back with the completion.
    pub fn read(id: u64, sink: Buffer, remote: Remote<Readable>) -> Self {
        Self::new(id, Work::Read { sink, remote })
    }

    /// Add to a peer's aligned word; the completion carries what it was.
    pub fn fetch_add(id: u64, remote: Remote<Atomic>, add: u64) -> Self {
        Self::new(id, Work::FetchAdd { remote, add })
    }

    /// Replace a peer's aligned word if it is `compare`; the completion carries what it was.
    pub fn compare_swap(id: u64, remote: Remote<Atomic>, compare: u64, swap: u64) -> Self {
        Self::new(id, Work::CompareSwap { remote, compare, swap })
    }

    /// With 32 bits that the receiver's completion carries. A WRITE with immediate consumes a
    /// receive at the target; regions, READs and atomics have none and stay as they are.
    #[inline]
    #[must_use]
    pub fn with_immediate(mut self, value: u32) -> Self {
        match &mut self.work {
            Work::Send { immediate, .. }
            | Work::SendInline { immediate, .. }
            | Work::Write { immediate, .. }
            | Work::WriteInline { immediate, .. } => {
                *immediate = Some(value);
            }
            // What tells a region's messages apart is said by whoever makes them.
            Work::SendRegion { .. } | Work::Read { .. } | Work::FetchAdd { .. } | Work::CompareSwap { .. } => {}
        }
        self
    }

    /// Without a report of success. Its hold ends when a later request of the queue pair completes.
    #[inline]
    #[must_use]
    pub fn unsignalled(mut self) -> Self {
        self.signalled = false;
        self
    }

    /// Without a report of success, and yet its hold ends as soon as it completes: for transmit
    /// buffers, which are few.
    #[must_use]
    pub fn prompt(mut self) -> Self {
        (self.signalled, self.prompt) = (false, true);
        self
    }

    /// Of a SEND of a view: the receiver may have its bytes as a [`Loan`](crate::Loan) instead of a
    /// copy, where it asks for that and `Capabilities::lends`. The request completes when the
    /// receiver has accepted the loan; what the view holds is released when the receiver has
    /// returned it, or when the queue pair has ended.
    #[must_use]
    pub fn lendable(mut self) -> Self {
        self.lend = matches!(self.work, Work::Send { .. });
        self
    }

    /// Of a signalled SEND that is [`lendable`](Self::lendable): when what it holds is released,
    /// that is reported as well ([`Opcode::Release`]), with the same number. It follows the SEND's
    /// own completion: at once where the bytes were copied or the SEND failed, when the loan has
    /// ended where they were lent.
    #[must_use]
    pub fn reporting_release(mut self) -> Self {
        self.tells_release = self.lend;
        self
    }

    /// After earlier READs and atomics of the queue pair.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Of a READ that was not posted, its buffer.
    pub fn into_sink(self) -> Option<Buffer> {
        if let Work::Read { sink, .. } = self.work { Some(sink) } else { None }
    }

    /// Which operation it is.
    pub fn opcode(&self) -> Opcode {
        match &self.work {
            Work::Send { .. } | Work::SendInline { .. } | Work::SendRegion { .. } => Opcode::Send,
            Work::Write { .. } | Work::WriteInline { .. } => Opcode::Write,
            Work::Read { .. } => Opcode::Read,
            Work::FetchAdd { .. } => Opcode::FetchAdd,
            Work::CompareSwap { .. } => Opcode::CompareSwap,
        }
    }

    /// Whether its bytes ride in the request instead of lying in memory.
    #[inline]
    pub fn is_inline(&self) -> bool {
        matches!(self.work, Work::SendInline { .. } | Work::WriteInline { .. })
    }

    /// Whether the provider has to tell of its end, though the user may not want to hear of it.
    #[inline]
    pub(crate) fn asks_for_a_report(&self) -> bool {
        self.signalled | self.prompt | self.lend
    }

    /// As it is posted under a number, to be reported or not.
    pub(crate) fn raw(&self, slot: u32, signalled: bool) -> RawRequest<'_> {
        let work = match &self.work {
            Work::Send { view, immediate } => RawWork::Send(Payload::Gather(view.fragments()), *immediate),
            Work::SendInline { bytes, immediate } => RawWork::Send(Payload::Inline(bytes), *immediate),
            Work::SendRegion { region, bundle_bytes } => RawWork::SendRegion(region.raw(*bundle_bytes)),
            Work::Write { view, remote, immediate } => {
                RawWork::Write(Payload::Gather(view.fragments()), remote.token(), *immediate)
            }
            Work::WriteInline { bytes, remote, immediate } => {
                RawWork::Write(Payload::Inline(bytes), remote.token(), *immediate)
            }
            Work::Read { sink, remote } => {
                let buffer = RawBuffer { address: sink.address(), len: sink.len(), segment: sink.segment_id() };
                RawWork::Read(buffer, remote.token())
            }
            Work::FetchAdd { remote, add } => RawWork::FetchAdd(remote.token(), *add),
            Work::CompareSwap { remote, compare, swap } => RawWork::CompareSwap(remote.token(), *compare, *swap),
        };
        RawRequest { slot, work, signalled, fence: self.fence, lend: self.lend }
    }

    /// Gather entries of its payload.
    pub(crate) fn entries(&self) -> usize {
        match &self.work {
            Work::Send { view, .. } | Work::Write { view, .. } => view.fragments().len(),
            _ => 0,
        }
    }

    /// Bytes of its message or transfer.
    pub fn bytes(&self) -> u64 {
        match &self.work {
            Work::Send { view, .. } | Work::Write { view, .. } => view.bytes(),
            Work::SendInline { bytes, .. } | Work::WriteInline { bytes, .. } => bytes.len() as u64,
            Work::SendRegion { region, .. } => region.shape().bytes(),
            Work::Read { remote, .. } => remote.token().len,
            Work::FetchAdd { .. } | Work::CompareSwap { .. } => 8,
        }
    }

    #[inline]
    fn new(id: u64, work: Work) -> Self {
        Self { id, signalled: true, fence: false, prompt: false, lend: false, tells_release: false, work }
    }
}

/// Which operation completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A send.
    Send,
    /// A one-sided write.
    Write,
    /// A one-sided read.
    Read,
    /// An atomic addition.
    FetchAdd,
    /// An atomic compare and swap.
    CompareSwap,
    /// What a SEND held is released ([`WorkRequest::reporting_release`]).
    Release,
    /// A receive that took a SEND.
    Receive,
    /// A receive that a WRITE with immediate consumed; no byte of its buffer changed.
    ReceiveImmediate,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done; for a SEND or WRITE: the peer's provider has placed the bytes.
    Success,
    /// Not done, because the queue pair closed.
    Flushed,
    /// The peer died or vanished.
    PeerDied,
    /// The message does not fit into the receive it met.
    TooLong,
    /// The remote range, key or right does not allow it.
    RemoteAccess,
    /// The peer broke the provider's protocol; the connection is closed.
    Malformed,
    /// This process, or its user, has run out of what the connection takes: memory, room in the
    /// address space, descriptors. It is closed.
    Exhausted,
}

impl std::fmt::Display for Status {
    /// Of what came to an end in this way: why, and what helps.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Status::Success => "all was done",
            Status::Flushed => "it was closed",
            Status::PeerDied => "the peer's process, or the way to it, is gone",
            Status::TooLong => "a message did not fit into the receive it met",
            Status::RemoteAccess => "a remote range, key or right did not allow what was asked",
            Status::Malformed => "one of the two broke the protocol; are both of the same version?",
            Status::Exhausted => {
                "this process, or its user, has no memory, room in the address space or descriptors left for the connection; free some, \
                 or raise the limit (ulimit -v, ulimit -n, or the control group's)"
            }
        })
    }
}

/// The end of a request.
#[derive(Debug)]
pub struct WorkCompletion {
    /// The queue pair it was on; for a shared receive, the one whose message arrived (none when
    /// flushed).
    pub queue_pair: Option<QueuePair>,
    /// The number its request was posted with.
    pub id: u64,
    /// Which operation.
    pub opcode: Opcode,
    /// How it ended.
    pub status: Status,
    /// Bytes received, read or sent.
    pub bytes: u64,
    /// What the sender attached.
    pub immediate: Option<u32>,
    /// What an atomic found.
    pub value: u64,
    /// The buffer of a receive or READ, back again, whatever the status.
    pub buffer: Option<Buffer>,
    /// The message, where it was lent; the buffer is as it was posted then.
    pub loan: Option<Loan>,
}
