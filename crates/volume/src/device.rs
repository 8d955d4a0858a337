//! What holds blocks, and every sentence that it owes.
//!
//! A [`Device`] has one owner and never waits. Requests go in by batches and come back by polls, as
//! with a [`CompletionQueue`](overside_verbs::CompletionQueue). The sentences below carry ids; the
//! conformance suite has a check for each, named after it.
//!
//! - **geometry**: [`Device::geometry`] never changes. Its units are a power of two of at least 512
//!   bytes; its length is whole units.
//! - **accept**: `submit` takes a prefix of the batch and leaves the rest as it was. With nothing
//!   in flight it takes at least one.
//! - **once**: each request that was taken is given back once, with its tag, its place, its length
//!   and its buffers.
//! - **own**: a request's bytes are touched only from `submit` until `poll` gives it back. A
//!   WRITE's bytes are never changed, and bytes of a READ's buffer past its length neither.
//! - **zeros**: what was never written reads as zeros. So does what a DISCARD or ZERO has covered.
//! - **written**: once a WRITE has been given back as done, every READ submitted later finds its
//!   bytes, until others cover them.
//! - **overlap**: of requests in flight at the same time that overlap, each sector of 512 bytes is
//!   as one of them left it, never a mix, and all later READs agree on which.
//! - **range**: a request that is empty, not whole units, past the end, or longer than its buffer
//!   ends as `Invalid`, and changes nothing.
//! - **apart**: a request that fails changes no byte outside of its range and fails no other
//!   request.
//! - **read-only**: where `Geometry::read_only` is set, requests that write end as `ReadOnly`, and
//!   change nothing.
//! - **durable**: FLUSH covers every write that was given back as done before the FLUSH was
//!   submitted. What it covers, and a WRITE with FUA, survives what the device says it survives. A
//!   sector that was under way then is old or new.
//! - **hint**: a HINT changes no byte, and whatever it says is done.
//! - **check**: a CHECK changes no byte that a READ finds. It names nobody where nothing is wrong.
//! - **nonblocking**: no call waits for a medium or a peer.
//! - **arm**: after `arm` returned true, the descriptor becomes readable, or the time that `due`
//!   says comes, when `poll` would give something back. Without a descriptor everything is given
//!   back by the first poll after `submit`.
//! - **idle**: with nothing in flight, an armed descriptor is not readable and costs no processor
//!   time.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use overside_memory::{Buffer, Bytes};

/// What is old or new as a whole after a crash, and what places on the wire count in.
pub const SECTOR_BYTES: u64 = 512;

/// Something that holds blocks: one owner, `&mut self`, never waits. Places and lengths are in
/// bytes.
///
/// Dropping it lets go of what is in flight: writes may or may not happen, and nothing is touched
/// afterwards.
pub trait Device: Send + fmt::Debug {
    /// How large it is, in which units.
    fn geometry(&self) -> Geometry;

    /// Takes requests from the front of the batch; what it has no room for stays there.
    fn submit(&mut self, batch: &mut VecDeque<Request>);

    /// Appends what has ended to `out`; how many.
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize;

    /// Asks for the descriptor to become readable when something ends. False: poll instead of
    /// sleeping.
    fn arm(&mut self) -> bool;

    /// The descriptor to wait on after [`arm`](Self::arm); the same one always. None where nothing
    /// is in flight after a poll.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// When it wants to be polled although its descriptor is not readable: for deadlines, and for
    /// peers that are tried again.
    fn due(&self) -> Option<Instant> {
        None
    }
}

/// How large a device is, and in which units it is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length in bytes.
    pub bytes: u64,
    /// Places and lengths of requests are multiples of this: 512 or more, a power of two.
    pub unit_bytes: u64,
    /// It can only be read.
    pub read_only: bool,
}

/// A request. It owns its buffers until its completion gives it back.
#[derive(Debug)]
pub struct Request {
    /// The caller's own number.
    pub tag: u64,
    /// What is asked for.
    pub work: Work,
}

/// What can be asked of a device.
#[derive(Debug)]
pub enum Work {
    /// Fills the first `length` bytes of the buffer.
    Read {
        /// First byte.
        at: u64,
        /// How many.
        length: usize,
        /// Where they go. Page-aligned memory spares a copy where the medium is a disk.
        into: Buffer,
    },
    /// Writes all of the bytes.
    Write {
        /// First byte.
        at: u64,
        /// What is written, shared with whoever reads it meanwhile.
        from: Bytes,
        /// Done only when it is on stable storage.
        fua: bool,
    },
    /// Brings to stable storage all that was written before.
    Flush,
    /// Lets go of the bytes, which read as zeros from then on.
    Discard {
        /// First byte.
        at: u64,
        /// How many.
        length: u64,
    },
    /// Makes them zeros, and keeps room for them.
    Zero {
        /// First byte.
        at: u64,
        /// How many.
        length: u64,
    },
    /// Reads the bytes on every disk that has them, to see whether they are what was written.
    Check {
        /// First byte.
        at: u64,
        /// How many.
        length: u64,
        /// What is wrong is written again from what is right; what cannot be ends the request as
        /// `Corrupt`.
        mend: bool,
        /// Set when it ends: members that had some of it wrong, as bits. A device without members
        /// is its own first one.
        wrong: u64,
    },
    /// Says what will be asked for.
    Hint {
        /// First byte.
        at: u64,
        /// How many.
        length: u64,
        /// What is known of them.
        hint: Hint,
    },
}

/// What a caller knows of its next requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// They are read soon.
    WillNeed,
    /// They are not read again.
    DontNeed,
    /// They are read in order.
    Sequential,
    /// They are read in no order.
    Random,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Completion {
    /// As it was submitted.
    pub tag: u64,
    /// The request, with its buffers.
    pub work: Work,
    /// How it ended. After a failed READ the buffer holds anything; after a failed WRITE, so do its
    /// sectors, each old or new.
    pub result: Result<(), DeviceError>,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// It asks for what there cannot be.
    #[error("the request is empty, not whole units, or past the device's end; ask for its geometry")]
    Invalid,
    /// It would write.
    #[error("the volume can only be read here; attach it for writing")]
    ReadOnly,
    /// There is no room for what it writes.
    #[error("the disk under the volume is full; make room there and write again")]
    NoSpace,
    /// The medium failed.
    #[error("the disk under the volume failed; `overside volume status` says which member")]
    Failed,
    /// What was read is not what was written, and nothing had it right.
    #[error("the bytes on the disk are not those that were written; restore them, or run `overside volume check`")]
    Corrupt,
    /// Another writer has taken the volume over.
    #[error("another writer has taken the volume over; attach it again once that one has let go")]
    Fenced,
    /// Nobody answered for longer than the caller would wait.
    #[error("the node did not answer in time; start it again, or wait longer (--give-up)")]
    Unreachable,
    /// The node answers, and does not let this client in again.
    #[error(
        "the node refuses this client: its key, the volume, or the longest request has changed; attach the volume again"
    )]
    Refused,
    /// There is no memory for what it needs.
    #[error("no memory for the request; free some, or ask for less at once")]
    NoMemory,
}

impl Geometry {
    /// Whether a device of this geometry can carry the request out.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] and [`DeviceError::ReadOnly`], as the sentences say.
    pub fn check(&self, work: &Work) -> Result<(), DeviceError> {
        let (at, length) = match work {
            Work::Flush => return Ok(()),
            Work::Read { length, into, .. } if *length > into.len() => return Err(DeviceError::Invalid),
            work => work.range().ok_or(DeviceError::Invalid)?,
        };
        let whole = at.is_multiple_of(self.unit_bytes) && length.is_multiple_of(self.unit_bytes);
        let within = at.checked_add(length).is_some_and(|end| end <= self.bytes);
        if !whole || !within || length == 0 {
            return Err(DeviceError::Invalid);
        }
        if self.read_only && work.writes() { Err(DeviceError::ReadOnly) } else { Ok(()) }
    }
}

impl Work {
    /// First byte and number of bytes; none of a FLUSH.
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            Work::Read { at, length, .. } => Some((*at, *length as u64)),
            Work::Write { at, from, .. } => Some((*at, from.len() as u64)),
            Work::Discard { at, length }
            | Work::Zero { at, length }
            | Work::Hint { at, length, .. }
            | Work::Check { at, length, .. } => Some((*at, *length)),
            Work::Flush => None,
        }
    }

    /// Whether it changes bytes.
    pub fn writes(&self) -> bool {
        matches!(self, Work::Write { .. } | Work::Discard { .. } | Work::Zero { .. })
    }
}

impl Request {
    /// It has ended.
    pub fn ended(self, result: Result<(), DeviceError>) -> Completion {
        Completion { tag: self.tag, work: self.work, result }
    }
}

impl Completion {
    /// The buffer of a READ.
    pub fn buffer(self) -> Option<Buffer> {
        match self.work {
            Work::Read { into, .. } => Some(into),
            _ => None,
        }
    }
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn geometry(&self) -> Geometry {
        (**self).geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        (**self).submit(batch);
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        (**self).poll(out)
    }
    fn arm(&mut self) -> bool {
        (**self).arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }
    fn due(&self) -> Option<Instant> {
        (**self).due()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overside_memory::Segment;

    fn buffer() -> Buffer {
        Segment::private(4096).unwrap().carve(4096).pop().unwrap()
    }

    #[test]
    fn what_there_cannot_be_is_refused() {
        let geometry = Geometry { bytes: 1 << 20, unit_bytes: 512, read_only: false };
        let read = |at, length| geometry.check(&Work::Read { at, length, into: buffer() });
        let zero = |at, length| geometry.check(&Work::Zero { at, length });
        assert_eq!((read(0, 4096), read((1 << 20) - 512, 512), zero(512, 1024)), (Ok(()), Ok(()), Ok(())));
        let absurd = [(0, 0), (1, 512), (0, 511), (1 << 20, 512), (u64::MAX - 511, 512), (u64::MAX - 511, 1024)];
        for (at, length) in absurd {
            assert_eq!(zero(at, length), Err(DeviceError::Invalid), "{at}+{length}");
            assert_eq!(read(at, length as usize), Err(DeviceError::Invalid), "{at}+{length}");
        }
        assert_eq!(read(0, 4608), Err(DeviceError::Invalid), "longer than its buffer");
        let frozen = Geometry { read_only: true, ..geometry };
        let write = Work::Write { at: 0, from: buffer().into(), fua: false };
        assert_eq!(frozen.check(&write), Err(DeviceError::ReadOnly));
        assert_eq!(frozen.check(&Work::Hint { at: 0, length: 512, hint: Hint::WillNeed }), Ok(()));
        assert_eq!(frozen.check(&Work::Flush), Ok(()));
    }
}
