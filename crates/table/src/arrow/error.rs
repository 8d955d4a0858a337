//! What can go wrong between rows and record batches.

use crate::block::LentError;
use crate::key::KeyError;
use crate::row::Malformed;
use crate::schema::SchemaError;

/// Why something of Arrow's could not be taken, or made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ArrowError {
    /// A column's type has no counterpart here.
    #[error("column `{column}` has the Arrow type {found}, which no table column can hold: convert it{hint}")]
    Unsupported {
        /// The column.
        column: String,
        /// Its type.
        found: String,
        /// What to convert it to, where that is known.
        hint: &'static str,
    },
    /// A batch has another type for a column than the table.
    #[error("column `{column}` is {found} in this batch and {expected} in the table: convert it")]
    Type {
        /// The column.
        column: String,
        /// Its Arrow type.
        found: String,
        /// The table's type.
        expected: String,
    },
    /// A column that the table needs is not in the batch.
    #[error("this batch has no column `{column}`, which the table does not let be null: add it")]
    MissingColumn {
        /// The column.
        column: String,
    },
    /// A column that the table does not have.
    #[error("the table has no column `{column}`: leave it out")]
    ExtraColumn {
        /// The column.
        column: String,
    },
    /// A null where the table allows none.
    #[error("row {row} has no value for column `{column}`, which may not be null: give it one or leave the row out")]
    Null {
        /// The column.
        column: String,
        /// Index of the row in its batch.
        row: usize,
    },
    /// A row's key is too long, or broken.
    #[error("row {row}: {error}")]
    Key {
        /// Index of the row in its batch.
        row: usize,
        /// What is wrong with its key.
        error: KeyError,
    },
    /// A value is too long.
    #[error("row {row} takes {bytes} bytes of at most {}: shorten or split it", crate::schema::VALUE_BYTES_MAX)]
    RowTooLong {
        /// Index of the row in its batch.
        row: usize,
        /// Bytes it would take.
        bytes: usize,
    },
    /// More text or bytes than one array can hold.
    #[error("a batch holds at most 2 GiB of text or bytes a column: finish it earlier")]
    BatchTooLarge,
    /// Columns and key make no schema.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A received row is broken.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A lent answer was taken back while it was read.
    #[error(transparent)]
    Lent(#[from] LentError),
    /// Arrow itself refused.
    #[error("Arrow refuses the batch ({0}): the peer sent broken data, close the connection to it")]
    Refused(String),
}

impl From<arrow_schema::ArrowError> for ArrowError {
    fn from(error: arrow_schema::ArrowError) -> ArrowError {
        ArrowError::Refused(error.to_string())
    }
}
