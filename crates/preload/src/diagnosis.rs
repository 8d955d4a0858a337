//! Why a connection goes through the kernel.

/// Said with `--verbose`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// It does not: the rings carry it.
    None,
    /// It has not carried enough.
    Short,
    /// The other end never came by.
    Alone,
    /// A call that this library does not cover.
    Call(&'static str),
    /// The other end went back.
    Peer,
    /// A fork has brought it back for a while.
    Fork,
    /// Another process has it open too.
    SharedMemory,
    /// The kernel has counted other bytes than this library.
    Miscounted,
    /// Some resource could not be had.
    Exhausted,
    /// Whoever came by was somebody else, or brought something else.
    Refused,
    /// The peer's words made no sense.
    Corrupt,
}

impl Reason {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Short => "too few calls to be worth it",
            Self::Alone => "the other end did not come by: no library there, or another user, host or container",
            Self::Call(name) => name,
            Self::Peer => "the other end closed it or went back to the kernel",
            Self::Fork => "a fork, and the ends have not come together again since",
            Self::SharedMemory => "another process has it open too",
            Self::Miscounted => "bytes went past this library",
            Self::Exhausted => "out of memory or descriptors",
            Self::Refused => "whoever met us there was not the other end",
            Self::Corrupt => "the other end wrote nonsense into the shared memory",
        }
    }
}
