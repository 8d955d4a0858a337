//! What goes wrong with verbs.

use overside_memory::MemoryError;

/// Why a verb was refused. Requests that were refused stay with the caller.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// Nobody listens there.
    #[error("nobody listens on {address}: {reason}; is the server running?")]
    Unreachable {
        /// The address as given.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// Somebody listens there already, or the name cannot be used.
    #[error("cannot listen on {address}: {reason}")]
    Address {
        /// The address as given.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The peer is not who it must be, or speaks something else.
    #[error("the peer was refused: {0}")]
    Handshake(String),
    /// The peer says that its key is not this side's, or that one of the two has none: another try
    /// ends the same way.
    #[error("the peer was refused: {0}")]
    Key(String),
    /// The deadline passed.
    #[error("no answer within {0:?}")]
    TimedOut(std::time::Duration),
    /// The queue pair is closed, or was never there.
    #[error("the connection is closed")]
    Closed,
    /// The connection has ended, and why.
    #[error("the connection ended: {reason}")]
    Ended {
        /// Why, as a status.
        status: crate::Status,
        /// Why, for people.
        reason: String,
    },
    /// The provider cannot do this at all.
    #[error("this provider does not support {0}")]
    Unsupported(&'static str),
    /// A request breaks one of the provider's limits.
    #[error("{what} of {value} exceeds this provider's limit of {max}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// A fragment lies in memory that was not registered in this protection domain.
    #[error("segment {0} is not registered in this protection domain; register it before posting")]
    NotRegistered(u32),
    /// A remote range or key does not allow this.
    #[error("remote access refused: {0}")]
    RemoteAccess(&'static str),
    /// An object inherited through `fork` was used in the child.
    #[error("this object was inherited through fork; open a connection of your own in the child")]
    Forked,
    /// Memory could not be had or mapped.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A system call failed.
    #[error("{what} failed: {reason}")]
    System {
        /// The call.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
}

impl VerbsError {
    /// That a connection ended, of which no more is known than that.
    pub fn ended(status: crate::Status) -> Self {
        Self::Ended { status, reason: status.to_string() }
    }

    /// A thread could not be started: it counts as a process, and its stack takes room in the
    /// address space.
    pub fn no_thread(reason: &std::io::Error) -> Self {
        let help =
            "free memory, or raise the limit of memory or of processes (ulimit -v, ulimit -u, or the control group's)";
        Self::System { what: "starting a thread", reason: format!("{reason}; {help}") }
    }
}
