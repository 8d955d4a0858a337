//! What goes wrong at a client.

use std::time::Duration;

use overside_verbs::{Status, VerbsError};

use crate::key::KeyError;
use crate::projection::ProjectionError;
use crate::row::{BuildError, Malformed};
use crate::schema::SchemaError;
use crate::wire::{BadMessage, FaultCode, Reply};

/// Why a call of the client failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Connecting or posting failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// There is no memory for the client's buffers.
    #[error(transparent)]
    Memory(#[from] overside_memory::MemoryError),
    /// The server said no.
    #[error("{text}")]
    Refused {
        /// What kind of no.
        code: FaultCode,
        /// The server's words.
        text: String,
    },
    /// The connection ended.
    #[error("the connection to the server ended: {reason}{}", advice(*.status))]
    Disconnected {
        /// Why, as a status.
        status: Status,
        /// Why, in the provider's words, and what is known of the effect of what was under way.
        reason: String,
    },
    /// A batch was cut short: what was acknowledged is applied, of the rest some rows may be.
    #[error(
        "the connection ended in the middle of a batch: {acknowledged} of {rows} rows are applied for certain; put the others again with upsert"
    )]
    Partly {
        /// Rows whose outcome the server told.
        acknowledged: u64,
        /// Rows of the batch.
        rows: u64,
    },
    /// The server said nothing for too long.
    #[error("the server has not answered within {0:?}; it may be overloaded or stopped")]
    TimedOut(Duration),
    /// Every receive buffer is held by blocks that the caller keeps.
    #[error(
        "every receive buffer is held by a block; drop blocks before asking for more, or connect with more buffers"
    )]
    BlocksHeld,
    /// The server sent something that it must not.
    #[error(transparent)]
    Protocol(#[from] BadMessage),
    /// The server sent rows that are not whole.
    #[error("the server sent a broken answer: {0}")]
    Malformed(#[from] Malformed),
    /// The server answered another question.
    #[error("the server sent an answer to something else: {0}; is it the same version?")]
    Unexpected(String),
    /// Values that are no key of the table.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A row that cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A schema that cannot be.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// Columns that cannot be chosen.
    #[error(transparent)]
    Projection(#[from] ProjectionError),
}

impl ClientError {
    pub(crate) fn unexpected(reply: &Reply) -> Self {
        match reply {
            Reply::Fault(fault) => ClientError::Refused { code: fault.code, text: fault.text.clone() },
            other => ClientError::Unexpected(format!("{other:.60?}")),
        }
    }
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
