//! Keys of secondary indexes: the values of an index's columns, and behind them the row's primary
//! key.
//!
//! A value is encoded as within a primary key that goes on behind it, so that no value's bytes
//! begin another's. In a column that may be null a byte comes before it: 0 for null, which nothing
//! follows, and 1 for a value. So nulls come first.

use super::{KeyError, encode, limited};
use crate::row::{RowView, ValueRef};
use crate::schema::{ColumnType, Schema};

/// Encodes the values of one index's columns.
#[derive(Clone, Debug)]
pub struct IndexCodec {
    columns: Vec<Indexed>,
}

#[derive(Clone, Debug)]
struct Indexed {
    at: usize,
    column_type: ColumnType,
    nullable: bool,
}

impl IndexCodec {
    /// The codec of an index over some columns of a table, most significant first.
    ///
    /// # Errors
    /// No column or too many, one that the table does not have, or one twice.
    pub fn new(schema: &Schema, columns: &[usize]) -> Result<IndexCodec, IndexError> {
        if columns.is_empty() || columns.len() > INDEX_COLUMNS_MAX {
            return Err(IndexError::Count(columns.len()));
        }
        let mut indexed = Vec::with_capacity(columns.len());
        for (place, &at) in columns.iter().enumerate() {
            let have = schema.columns().len();
            let column = schema.columns().get(at).ok_or(IndexError::NoColumn { column: at, have })?;
            if columns[..place].contains(&at) {
                return Err(IndexError::Twice(column.name.clone()));
            }
            indexed.push(Indexed { at, column_type: column.column_type.clone(), nullable: column.nullable });
        }
        Ok(IndexCodec { columns: indexed })
    }

    /// The types of its columns, most significant first.
    pub fn types(&self) -> impl ExactSizeIterator<Item = &ColumnType> {
        self.columns.iter().map(|column| &column.column_type)
    }

    /// Whether its first column may be null.
    pub fn begins_with_nulls(&self) -> bool {
        self.columns.first().is_some_and(|column| column.nullable)
    }

    /// Appends values of the first columns, or of all: every key that starts with these values
    /// starts with these bytes.
    ///
    /// # Errors
    /// More values than columns, a null where none may be, a value of another type, or too many
    /// bytes; then `out` is as it was.
    pub fn encode_first(&self, values: &[ValueRef<'_>], out: &mut Vec<u8>) -> Result<(), KeyError> {
        if values.len() > self.columns.len() {
            return Err(KeyError::ValueCount { given: values.len(), columns: self.columns.len() });
        }
        let values = self.columns.iter().zip(values).map(|(column, value)| Ok((column, *value)));
        append(values, out)
    }

    /// Appends the values of a row.
    ///
    /// # Errors
    /// The row's bytes are broken, or the values take too many; then `out` is as it was.
    pub fn encode_row(&self, row: &RowView<'_>, out: &mut Vec<u8>) -> Result<(), KeyError> {
        let value = |column: &Indexed| row.value(column.at).map_err(|_| KeyError::Malformed);
        append(self.columns.iter().map(|column| Ok((column, value(column)?))), out)
    }
}

fn append<'c, 'v>(
    values: impl Iterator<Item = Result<(&'c Indexed, ValueRef<'v>), KeyError>>,
    out: &mut Vec<u8>,
) -> Result<(), KeyError> {
    let start = out.len();
    let encoded = (|| {
        for value in values {
            let (column, value) = value?;
            append_one(column, &value, out)?;
        }
        limited(out.len() - start)
    })();
    if encoded.is_err() {
        out.truncate(start);
    }
    encoded
}

fn append_one(column: &Indexed, value: &ValueRef<'_>, out: &mut Vec<u8>) -> Result<(), KeyError> {
    let is_null = matches!(value, ValueRef::Null);
    if is_null && !column.nullable {
        return Err(KeyError::Null { column: column.at });
    }
    if !is_null && !value.fits(&column.column_type) {
        return Err(KeyError::WrongType { column: column.at, expected: column.column_type.clone() });
    }
    if column.nullable {
        out.push(if is_null { NULL } else { VALUE });
    }
    encode::value(value, false, out);
    Ok(())
}

/// Why there can be no such index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// No column, or too many.
    #[error("an index has 1 to {INDEX_COLUMNS_MAX} columns, not {0}")]
    Count(usize),
    /// The table has no such column.
    #[error("there is no column {column} for an index: the table has {have}")]
    NoColumn {
        /// Its index.
        column: usize,
        /// Columns of the table.
        have: usize,
    },
    /// A column is named twice.
    #[error("column {0:?} is named twice for one index; name it once")]
    Twice(String),
}

/// Before a value, or instead of one, in a column that may be null.
const NULL: u8 = 0;
/// The least byte of a value in a column that may be null.
pub(crate) const VALUE: u8 = 1;
/// Columns of an index.
pub const INDEX_COLUMNS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::row::{RowBuilder, RowLayout};
    use crate::schema::Column;
    use std::sync::Arc;

    fn schema() -> Schema {
        let columns = vec![
            Column::new("id", ColumnType::UInt64),
            Column::nullable("text", ColumnType::Utf8),
            Column::new("n", ColumnType::Int32),
        ];
        Schema::with_key(columns, &["id"]).unwrap()
    }

    fn key(codec: &IndexCodec, text: Option<&str>, n: i32) -> Vec<u8> {
        let mut out = Vec::new();
        let text = text.map_or(ValueRef::Null, ValueRef::Utf8);
        codec.encode_first(&[text, ValueRef::Int32(n)], &mut out).unwrap();
        out
    }

    proptest! {
        #[test]
        fn order_of_bytes_is_order_of_values_and_no_value_begins_another(
            a in proptest::option::of("[\0\u{1}a]{0,3}"), b in proptest::option::of("[\0\u{1}a]{0,3}"), x: i32, y: i32,
        ) {
            let codec = IndexCodec::new(&schema(), &[1, 2]).unwrap();
            let (first, second) = (key(&codec, a.as_deref(), x), key(&codec, b.as_deref(), y));
            // `None` is less than `Some`, as nulls come first.
            prop_assert_eq!(first.cmp(&second), (&a, x).cmp(&(&b, y)));
            prop_assert_eq!(second.starts_with(&first), first == second);
        }

        #[test]
        fn a_row_has_the_key_of_its_values(text in proptest::option::of("[a-z]{0,9}"), n: i32) {
            let schema = schema();
            let codec = IndexCodec::new(&schema, &[1, 2]).unwrap();
            let layout = Arc::new(RowLayout::new(&schema));
            let mut builder = RowBuilder::new(layout.clone());
            let values = [
                ValueRef::UInt64(7), text.as_deref().map_or(ValueRef::Null, ValueRef::Utf8), ValueRef::Int32(n),
            ];
            let row = builder.encode(&values).unwrap();
            let mut of_row = Vec::new();
            codec.encode_row(&RowView::of_value(row, &layout).unwrap(), &mut of_row).unwrap();
            prop_assert_eq!(of_row, key(&codec, text.as_deref(), n));
        }
    }

    #[test]
    fn what_is_no_index_is_refused_by_name() {
        let made = |columns: &[usize]| IndexCodec::new(&schema(), columns).map(|_| ()).unwrap_err();
        assert_eq!(made(&[]), IndexError::Count(0));
        assert_eq!(made(&[3]), IndexError::NoColumn { column: 3, have: 3 });
        assert_eq!(made(&[1, 2, 1]), IndexError::Twice("text".into()));
        let codec = IndexCodec::new(&schema(), &[2]).unwrap();
        let mut out = vec![9];
        assert_eq!(codec.encode_first(&[ValueRef::Null], &mut out), Err(KeyError::Null { column: 2 }));
        assert!(codec.encode_first(&[ValueRef::Int64(1)], &mut out).is_err());
        let text = IndexCodec::new(&schema(), &[1]).unwrap();
        let long = "x".repeat(2000);
        assert!(matches!(text.encode_first(&[ValueRef::Utf8(&long)], &mut out), Err(KeyError::TooLong { .. })));
        assert_eq!(out, [9]);
    }
}
