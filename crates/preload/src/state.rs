//! Where a connection stands, and each of its two directions, with what is
//! valid there and nothing else.
//!
//! This is data: no call of the system, no shared word. `drain`, `resend`, `again` and `rendezvous`
//! take the steps from one to the next; docs/reference/sockets.md has the diagram.

use std::ffi::c_int;

use crate::layout::SharedMemory;

/// The life of a connection in this process.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Life {
    /// Through the kernel, every byte counted. The ends may still meet.
    Unattached,
    /// The memory is there. The rings begin once no call is in the kernel. Of one who has `called`
    /// the other end may never come.
    Attached { shared: SharedMemory, called: bool },
    /// In the rings, or on the way back from them.
    Ring(SharedMemory),
    /// A fork came before all of the rings had been brought back: parent and child take what is
    /// left by counts that they share. Whoever closes it leaves the stream alone.
    Forked(SharedMemory),
    /// A fork has brought it back; it may come again.
    Resting(SharedMemory),
    /// The kernel's for good; the memory stays as long as somebody watches it without the lock.
    Plain(Option<SharedMemory>),
}

/// A life as it can be looked at without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// No connection.
    Free,
    /// Through the kernel, every byte counted; the ends may still meet.
    Counting,
    /// Shared memory is mapped and both ends know it; each direction starts when
    /// its sender finds it can.
    Ring,
    /// The kernel's for good.
    Plain,
}

impl Life {
    pub(crate) fn state(&self) -> State {
        match self {
            Self::Unattached | Self::Attached { .. } | Self::Resting(_) => State::Counting,
            Self::Ring(_) | Self::Forked(_) => State::Ring,
            Self::Plain(_) => State::Plain,
        }
    }

    /// The memory, as long as it is mapped.
    #[inline]
    pub(crate) fn shared(&self) -> Option<SharedMemory> {
        match *self {
            Self::Unattached => None,
            Self::Attached { shared, .. } | Self::Ring(shared) | Self::Forked(shared) | Self::Resting(shared) => {
                Some(shared)
            }
            Self::Plain(shared) => shared,
        }
    }

    /// The memory of one that is in the rings.
    #[inline]
    pub(crate) fn ring(&self) -> Option<SharedMemory> {
        match *self {
            Self::Ring(shared) | Self::Forked(shared) => Some(shared),
            Self::Unattached | Self::Attached { .. } | Self::Resting(_) | Self::Plain(_) => None,
        }
    }
}

/// What was so when a sending direction went into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Begun {
    /// Wake bytes that this end had put into the stream before.
    pub(crate) given: u64,
}

/// The direction in which this end sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outgoing {
    /// Through the kernel: it has not begun.
    Before,
    /// Into the ring. So many wake bytes are counted that the stream had no room for.
    Ring { begun: Begun, owed: u32 },
    /// It has left the ring. Those wake bytes, and the ring's bytes from `resend` on, go through
    /// the kernel before anything else does.
    Owing { begun: Option<Begun>, resend: u64, owed: u32 },
    /// Through the kernel, where all of the ring has gone as well, or is read from it.
    Kernel { begun: Option<Begun> },
}

impl Outgoing {
    /// When it went into the ring, if it ever did.
    #[inline]
    pub(crate) fn begun(&self) -> Option<Begun> {
        match *self {
            Self::Before => None,
            Self::Ring { begun, .. } => Some(begun),
            Self::Owing { begun, .. } | Self::Kernel { begun } => begun,
        }
    }

    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.begun().is_some()
    }

    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        matches!(self, Self::Owing { .. } | Self::Kernel { .. })
    }

    #[inline]
    pub(crate) fn is_in_ring(&self) -> bool {
        matches!(self, Self::Ring { .. })
    }

    /// Whether something of the ring, or wake bytes, must go through the kernel
    /// before anything else does.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        matches!(self, Self::Owing { .. })
    }

    #[inline]
    pub(crate) fn owed(&self) -> u32 {
        match *self {
            Self::Ring { owed, .. } | Self::Owing { owed, .. } => owed,
            Self::Before | Self::Kernel { .. } => 0,
        }
    }

    /// From where on the ring's bytes go through the kernel; the head, where none do.
    #[inline]
    pub(crate) fn resend(&self, head: u64) -> u64 {
        if let Self::Owing { resend, .. } = *self { resend } else { head }
    }
}

/// The direction in which this end receives, as this end knows it; where its next byte
/// comes from is [`Source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Incoming {
    /// By the ring, once the sender has begun.
    Open,
    /// Left: by the ring up to the border, then by the kernel, behind so many wake bytes in all.
    Left { wake_bytes: u64 },
    /// Left, and the peer on another host is to say whether the ring is read on.
    Unsettled,
}

impl Incoming {
    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        !matches!(self, Self::Open)
    }

    /// How many wake bytes there are in all; none while they may still become more.
    pub(crate) fn wake_bytes(&self) -> Option<u64> {
        if let Self::Left { wake_bytes } = *self { Some(wake_bytes) } else { None }
    }
}

/// Where the next byte comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// From the kernel, and no wake byte is among it: the sender has not begun.
    NotBegun,
    /// From the kernel, so many, of before the ring.
    Before(u64),
    Ring,
    /// From the ring that was left: so many, up to the border.
    Along(u64),
    /// From the kernel for good, behind wake bytes.
    Kernel,
}

impl Source {
    /// Whether the kernel has it, and it is no wake byte: those come behind.
    pub(crate) fn is_before_ring(self) -> bool {
        matches!(self, Self::NotBegun | Self::Before(_))
    }
}

/// The other end is looked for. A socket of ours on which it may come by, or
/// the one on which it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Search {
    Idle,
    Listening(c_int),
    Accepted(c_int),
    /// On another host, by datagrams.
    Datagrams(Datagrams),
}

/// A socket for datagrams, the number made up for this once, and the other end's when it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Datagrams {
    pub(crate) socket: c_int,
    pub(crate) nonce: [u8; 16],
    pub(crate) theirs: Option<[u8; 16]>,
}

impl Search {
    pub(crate) fn socket(self) -> Option<c_int> {
        match self {
            Self::Idle => None,
            Self::Listening(socket) | Self::Accepted(socket) | Self::Datagrams(Datagrams { socket, .. }) => {
                Some(socket)
            }
        }
    }
}

/// Where the other end is, as far as addresses tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Host {
    This,
    Other,
}

/// What the socket is, and what the program has set that has to wait until
/// it is the kernel's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    /// The program wants Nagle's algorithm, for which wake bytes must not wait; it has put the cork
    /// in, which means nothing in the rings.
    Tcp { nagle: bool, cork: bool },
    /// The kernel makes no reset of bytes that lie in a ring.
    Unix,
}

impl Family {
    #[inline]
    pub(crate) fn is_unix(self) -> bool {
        self == Self::Unix
    }
}
