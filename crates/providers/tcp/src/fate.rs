//! How a connection ends.

use overside_verbs::Status;
use rustix::io::Errno;

use crate::frame::Why;

/// Why a queue pair is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Somebody closed it.
    Closed,
    /// The connection ended without a word.
    Died,
    /// The system gave the connection up.
    Lost(Errno),
    /// A message was longer than its receive.
    TooLong,
    /// The peer sent what no peer of ours sends, or did not keep a deadline.
    Malformed(&'static str),
}

impl Fate {
    /// How what is pending ends.
    pub(crate) fn pending(self) -> Status {
        match self {
            Fate::Closed | Fate::TooLong => Status::Flushed,
            Fate::Died | Fate::Lost(_) => Status::PeerDied,
            Fate::Malformed(_) => Status::Malformed,
        }
    }

    /// How the queue pair itself ended.
    pub(crate) fn status(self) -> Status {
        match self {
            Fate::TooLong => Status::TooLong,
            other => other.pending(),
        }
    }

    /// Why, for people.
    pub(crate) fn reason(self) -> String {
        match self {
            Fate::Closed => "the peer closed the connection".to_owned(),
            Fate::Died => "the connection ended without a word: the peer's process is gone".to_owned(),
            Fate::Lost(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                "the peer's host no longer answers".to_owned()
            }
            Fate::Lost(errno) => format!("the connection was lost ({errno})"),
            Fate::TooLong => "a message was longer than the receive it met".to_owned(),
            Fate::Malformed(what) => format!("the peer broke the protocol: {what}"),
        }
    }

    /// What the peer is told.
    pub(crate) fn why(self) -> Why {
        match self {
            Fate::TooLong => Why::TooLong,
            Fate::Malformed(_) => Why::Malformed,
            Fate::Closed | Fate::Died | Fate::Lost(_) => Why::Closed,
        }
    }

    /// What the peer's goodbye means for us.
    pub(crate) fn told(why: Why) -> Self {
        match why {
            Why::Closed => Fate::Closed,
            Why::TooLong => Fate::TooLong,
            Why::Malformed => Fate::Malformed("so it says of us"),
        }
    }

    /// Whether a goodbye can still reach the peer.
    pub(crate) fn is_ours(self) -> bool {
        !matches!(self, Fate::Died | Fate::Lost(_))
    }
}
