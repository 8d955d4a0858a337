//! How a connection ends.

use overside_memory::MemoryError;
use overside_verbs::Status;
use rustix::io::Errno;

/// Why a queue pair is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Somebody closed it.
    Closed,
    /// The peer's process is gone.
    PeerDied,
    /// It hung up before it shared its memory.
    HungUp,
    /// A message was longer than its receive.
    TooLong,
    /// The peer wrote what no peer of ours writes.
    Malformed(&'static str),
    /// This process, or its user, has run out of what the connection takes.
    Exhausted(&'static str),
}

impl Fate {
    /// Why what the peer passed is not mapped; `otherwise` where neither it nor want of memory is
    /// to blame.
    pub(crate) fn unmapped(error: MemoryError, otherwise: &'static str) -> Self {
        match error {
            MemoryError::Untrusted(what) => Fate::Malformed(what),
            MemoryError::Exhausted { source: Errno::NOMEM | Errno::AGAIN, .. } => OUT_OF_MEMORY,
            _ => Fate::Malformed(otherwise),
        }
    }

    /// How what is pending ends.
    pub(crate) fn pending(self) -> Status {
        match self {
            Fate::Closed | Fate::TooLong => Status::Flushed,
            Fate::PeerDied | Fate::HungUp => Status::PeerDied,
            Fate::Malformed(_) => Status::Malformed,
            Fate::Exhausted(_) => Status::Exhausted,
        }
    }

    /// How the queue pair itself ended.
    pub(crate) fn status(self) -> Status {
        match self {
            Fate::TooLong => Status::TooLong,
            other => other.pending(),
        }
    }

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Fate::Closed => "the peer closed the connection",
            Fate::HungUp => "the peer hung up before the connection was set up; if it still runs, it says there why",
            Fate::PeerDied => "the peer's process is gone",
            Fate::TooLong => "a message was longer than the receive it met",
            Fate::Malformed(what) | Fate::Exhausted(what) => what,
        }
    }

    /// What our `closed` word says.
    pub(crate) fn word(self) -> u64 {
        match self {
            Fate::Closed | Fate::PeerDied | Fate::HungUp | Fate::Exhausted(_) => 1,
            Fate::TooLong => 2,
            Fate::Malformed(_) => 3,
        }
    }

    /// What the peer's `closed` word says; none while it is open.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        match word {
            0 => None,
            1 => Some(Fate::Closed),
            2 => Some(Fate::TooLong),
            3 => Some(Fate::Malformed("the peer says that we broke the protocol")),
            _ => Some(Fate::Malformed("the peer's closed word is garbage")),
        }
    }
}

pub(crate) const OUT_OF_MEMORY: Fate =
    Fate::Exhausted("there is no memory, or room in the address space, for what the peer shares");
