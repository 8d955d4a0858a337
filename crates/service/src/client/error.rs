//! Why a link failed.

use std::time::Duration;

use overside_verbs::{Status, VerbsError};

use crate::envelope::BadMessage;

/// Why a call of a link failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Connecting or posting failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// There is no memory for the client's buffers.
    #[error(transparent)]
    Memory(#[from] overside_memory::MemoryError),
    /// The connection ended.
    #[error("the connection to the server ended: {reason}{}", advice(*.status))]
    Disconnected {
        /// Why, as a status.
        status: Status,
        /// Why, in the provider's words.
        reason: String,
    },
    /// The server said nothing for too long.
    #[error("the server has not answered within {0:?}; it may be overloaded or stopped")]
    TimedOut(Duration),
    /// The caller holds every receive buffer.
    #[error(
        "every receive buffer is held by a block; drop blocks before asking for more, or connect with more buffers"
    )]
    BuffersHeld,
    /// The server sent something that it must not.
    #[error(transparent)]
    Protocol(#[from] BadMessage),
    /// The server answered another question.
    #[error("the server sent an answer to something else: {0}; is it the same version?")]
    Unexpected(String),
}

/// What to do.
fn advice(status: Status) -> &'static str {
    match status {
        Status::PeerDied => "; see whether the server runs, and the network between",
        Status::Exhausted => "; free memory, or raise the limit (ulimit -v, or the control group's)",
        Status::Malformed => "; are both of the same version?",
        _ => "; it may have ended, or waited too long for this client to take what it sent",
    }
}
