//! What goes wrong with channels.

use std::fmt;
use std::time::Duration;

use overside_memory::MemoryError;
use overside_planner::PlanError;
use overside_verbs::VerbsError;

/// Why a call on a channel failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A verb failed; of a deadline that passed, [`VerbsError::TimedOut`].
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The region cannot be sent.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// No plan can be made for it.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A field that cannot be as it was given.
    #[error("{field}: {reason}")]
    Field {
        /// Which field.
        field: &'static str,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// More or fewer shapes than destinations.
    #[error("shapes: {shapes} for {destinations} destinations; give one for each, in the order of their addresses")]
    Shapes {
        /// How many were given.
        shapes: usize,
        /// How many there must be.
        destinations: usize,
    },
    /// One of several connections ended.
    #[error("destination {destination}: {reason}")]
    Destination {
        /// Which one.
        destination: usize,
        /// Why.
        reason: VerbsError,
    },
    /// Not all that was sent had arrived at the deadline.
    #[error("not within {within:?}: {missing}; flush again to wait on, or drop the connection")]
    Unflushed {
        /// The deadline.
        within: Duration,
        /// What is missing.
        missing: Missing,
    },
    /// There was no room for all of a send before the deadline. The rest of it is kept.
    #[error("no room within {within:?}: {missing}; the next send or flush goes on with it")]
    Unsent {
        /// The deadline.
        within: Duration,
        /// What is missing.
        missing: Missing,
    },
    /// An earlier send still waited for room at the deadline, so nothing of this one was sent.
    #[error("no room within {within:?} for what was sent before: {missing}; nothing of this was sent, send it again")]
    Untaken {
        /// The deadline.
        within: Duration,
        /// What is missing of what was sent before.
        missing: Missing,
    },
}

/// Why a region cannot be sent. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum DeclareError {
    /// It needs bytes that its memory does not have.
    #[error("{field}: {error}; declare it over the memory it lies in")]
    Escapes {
        /// Which region.
        field: String,
        /// Which bytes.
        error: MemoryError,
    },
    /// Two destinations of a shared send would get the same bytes.
    #[error("destinations {first} and {second} overlap at byte {at}; give each byte to one, or allow overlaps")]
    Overlap {
        /// One destination.
        first: usize,
        /// The other.
        second: usize,
        /// A byte that both have.
        at: u64,
    },
    /// A destination has more elements than another (d-rdma §3.2 DR-M14).
    #[error(
        "destination {destination} has {elements} elements, destination 0 has {expected}; declare as many for each, or allow any balance"
    )]
    Elements {
        /// Which destination.
        destination: usize,
        /// Its elements.
        elements: u64,
        /// Those of the first.
        expected: u64,
    },
    /// A shared send to nobody.
    #[error("destinations: there is none; name a queue pair and a region for each")]
    Nobody,
    /// The planner refuses it.
    #[error("{field}: {error}")]
    Plan {
        /// Which region.
        field: String,
        /// Why.
        error: PlanError,
    },
    /// Transmit buffers that are smaller than a request may be.
    #[error(
        "transmit buffers of {buffer_bytes} bytes are shorter than requests of {request_bytes}; make the pool's buffers larger"
    )]
    Pool {
        /// Bytes of a buffer.
        buffer_bytes: u64,
        /// Bytes that a request may have.
        request_bytes: u64,
    },
}

/// What has not arrived of what was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Destinations that have not reported everything as arrived, and how many sends each.
    pub sends: Vec<(usize, usize)>,
    /// How many destinations there are.
    pub destinations: usize,
    /// Messages that have not found room at all.
    pub messages: u64,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: usize = self.sends.iter().map(|(_, count)| count).sum();
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        write!(f, "{count} send{}", plural(count as u64))?;
        if self.destinations > 1 {
            let named: Vec<String> = self.sends.iter().map(|(destination, _)| destination.to_string()).collect();
            write!(f, " to destination{} {}", plural(named.len() as u64), named.join(", "))?;
        }
        f.write_str(if count == 1 { " has not arrived" } else { " have not arrived" })?;
        if self.messages > 0 {
            write!(f, ", of which {} message{} found no room", self.messages, plural(self.messages))?;
        }
        f.write_str(", for the receiver takes nothing or has stopped polling")
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Error {
        VerbsError::from(error).into()
    }
}

impl Error {
    /// Whether it is a deadline that passed.
    pub fn is_overdue(&self) -> bool {
        matches!(
            self,
            Error::Verbs(VerbsError::TimedOut(_))
                | Error::Unflushed { .. }
                | Error::Unsent { .. }
                | Error::Untaken { .. }
        )
    }
}
