//! What goes wrong at a client.

use overside_service::client::LinkError;

use crate::block::LentError;
use crate::key::{IndexError, KeyError};
use crate::projection::ProjectionError;
use crate::row::{BuildError, Malformed};
use crate::schema::SchemaError;
use crate::wire::{BadMessage, FaultCode, Reply};

/// Why a call of the client failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection failed.
    #[error(transparent)]
    Link(LinkError),
    /// The server said no.
    #[error("{text}")]
    Refused {
        /// What kind of no.
        code: FaultCode,
        /// The server's words.
        text: String,
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
    /// The server sent something that it must not.
    #[error(transparent)]
    Protocol(#[from] BadMessage),
    /// The server sent rows that are not whole.
    #[error("the server sent a broken answer: {0}")]
    Malformed(#[from] Malformed),
    /// The server took back what it had lent.
    #[error(transparent)]
    Lent(LentError),
    /// The server answered another question.
    #[error("the server sent an answer to something else: {0}; is it the same version?")]
    Unexpected(String),
    /// A table could not be read one-sidedly.
    #[error("the table could not be read one-sidedly: {0}")]
    OneSided(String),
    /// Values that are no key of the table.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Columns that can have no index.
    #[error(transparent)]
    Index(#[from] IndexError),
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

impl From<LinkError> for ClientError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Protocol(bad) => ClientError::Protocol(bad),
            LinkError::Unexpected(what) => ClientError::Unexpected(what),
            error => ClientError::Link(error),
        }
    }
}

impl From<LentError> for ClientError {
    fn from(error: LentError) -> Self {
        match error {
            LentError::Malformed(malformed) => ClientError::Malformed(malformed),
            revoked => ClientError::Lent(revoked),
        }
    }
}

impl ClientError {
    pub(crate) fn unexpected(reply: &Reply) -> Self {
        match reply {
            Reply::Fault(fault) => ClientError::Refused { code: fault.code, text: fault.text.clone() },
            other => ClientError::Unexpected(format!("{other:.60?}")),
        }
    }
}
