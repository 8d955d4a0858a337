//! Primary keys as bytes whose order, compared byte by byte, is the order of the keys.
//!
//! The columns of a key follow each other, most significant first:
//!
//! | type | bytes |
//! |---|---|
//! | integers, dates, timestamps, decimals | big-endian, the sign bit flipped where there is one |
//! | floats | their total order (-NaN < -inf < … < -0 < 0 < … < inf < NaN): sign flipped, negatives inverted |
//! | booleans | 0 or 1 |
//! | fixed-size bytes | as they are |
//! | text and bytes, last column of the key | as they are |
//! | text and bytes, before another column | 0x00 as 0x00 0xff; closed by 0x00 0x00 |
//!
//! So the first columns alone encode to a prefix of the whole key, which is what range bounds on
//! them need.

mod decode;
mod encode;
mod index;

use crate::row::{RowView, Value, ValueRef};
use crate::schema::{ColumnType, Schema};

pub(crate) use index::VALUE;
pub use index::{INDEX_COLUMNS_MAX, IndexCodec, IndexError};

/// Encodes and decodes the primary keys of one table.
#[derive(Clone, Debug)]
pub struct KeyCodec {
    types: Vec<ColumnType>,
    columns: Vec<usize>,
}

impl KeyCodec {
    /// The codec of a table's key.
    pub fn new(schema: &Schema) -> KeyCodec {
        let columns = schema.key().to_vec();
        let types = columns.iter().map(|&column| schema.columns()[column].column_type.clone()).collect();
        KeyCodec { types, columns }
    }

    /// The types of the key's columns, most significant first.
    pub fn types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Where the key's columns stand among the table's.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Appends a whole key.
    ///
    /// # Errors
    /// Another number of values than the key has columns, a null, a value of another type, or too
    /// many bytes; then `out` is as it was.
    pub fn encode(&self, values: &[ValueRef<'_>], out: &mut Vec<u8>) -> Result<(), KeyError> {
        if values.len() != self.types.len() {
            return Err(KeyError::ValueCount { given: values.len(), columns: self.types.len() });
        }
        self.encode_first(values, out)
    }

    /// Appends the first columns of a key, or all: every key that starts with these values starts
    /// with these bytes.
    ///
    /// # Errors
    /// As [`KeyCodec::encode`], but fewer values are right.
    pub fn encode_first(&self, values: &[ValueRef<'_>], out: &mut Vec<u8>) -> Result<(), KeyError> {
        if values.len() > self.types.len() {
            return Err(KeyError::ValueCount { given: values.len(), columns: self.types.len() });
        }
        let start = out.len();
        let encoded = (|| {
            for (index, value) in values.iter().enumerate() {
                self.encode_one(index, value, out)?;
            }
            limited(out.len() - start)
        })();
        if encoded.is_err() {
            out.truncate(start);
        }
        encoded
    }

    /// Appends the key of a whole row.
    ///
    /// # Errors
    /// The row's bytes are broken, or the key is too long; then `out` is as it was.
    pub fn encode_row(&self, row: &RowView<'_>, out: &mut Vec<u8>) -> Result<(), KeyError> {
        let start = out.len();
        let encoded = (|| {
            for (index, &column) in self.columns.iter().enumerate() {
                let value = row.value(column).map_err(|_| KeyError::Malformed)?;
                self.encode_one(index, &value, out)?;
            }
            limited(out.len() - start)
        })();
        if encoded.is_err() {
            out.truncate(start);
        }
        encoded
    }

    /// The values of a whole key.
    ///
    /// # Errors
    /// Bytes that [`KeyCodec::encode`] would not have written.
    pub fn decode(&self, key: &[u8]) -> Result<Vec<Value>, KeyError> {
        if key.len() > KEY_BYTES_MAX {
            return Err(KeyError::TooLong { bytes: key.len() });
        }
        let mut rest = key;
        let mut values = Vec::with_capacity(self.types.len());
        for (index, column_type) in self.types.iter().enumerate() {
            let last = index + 1 == self.types.len();
            values.push(decode::value(column_type, last, &mut rest).ok_or(KeyError::Malformed)?);
        }
        if rest.is_empty() { Ok(values) } else { Err(KeyError::Malformed) }
    }

    #[inline]
    fn encode_one(&self, index: usize, value: &ValueRef<'_>, out: &mut Vec<u8>) -> Result<(), KeyError> {
        if !value.fits(&self.types[index]) {
            return Err(KeyError::WrongType { column: self.columns[index], expected: self.types[index].clone() });
        }
        if matches!(value, ValueRef::Null) {
            return Err(KeyError::Null { column: self.columns[index] });
        }
        encode::value(value, index + 1 == self.types.len(), out);
        Ok(())
    }
}

fn limited(bytes: usize) -> Result<(), KeyError> {
    if bytes > KEY_BYTES_MAX { Err(KeyError::TooLong { bytes }) } else { Ok(()) }
}

/// Why values make no key, or bytes none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Another number of values than the key has columns.
    #[error("{given} values for a key of {columns} columns: give one a column")]
    ValueCount {
        /// Values given.
        given: usize,
        /// Columns of the key.
        columns: usize,
    },
    /// A null in the key.
    #[error("column {column} may not be null, as part of a key: give it a value")]
    Null {
        /// Index of the column in the table.
        column: usize,
    },
    /// A value of another type or length than its column's.
    #[error("key column {column} takes {expected}: convert the value")]
    WrongType {
        /// Index of the column in the table.
        column: usize,
        /// Its type.
        expected: ColumnType,
    },
    /// The key exceeds the limit.
    #[error("the key takes {bytes} bytes of at most {KEY_BYTES_MAX}: choose a shorter key")]
    TooLong {
        /// Bytes it would take.
        bytes: usize,
    },
    /// Bytes that are no key (or no row with a key) of this table.
    #[error("these bytes are no key of this table: was it created anew with another schema?")]
    Malformed,
}

/// Bytes of an encoded key.
pub const KEY_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests;
