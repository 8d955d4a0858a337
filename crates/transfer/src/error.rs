//! What goes wrong with channels.

use std::fmt;
use std::time::Duration;

use overside_memory::MemoryError;
use overside_planner::PlanError;
use overside_verbs::VerbsError;
use overside_verbs::declared::DeclareError;

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
