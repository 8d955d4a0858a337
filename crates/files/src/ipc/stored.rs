//! A batch as the file stores it, handed on in parts: dictionaries, views and large types become
//! plain values part by part.

use super::super::budget::Charge;
use super::dictionary::Dictionary;
use anyhow::{Context, Result};
use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BinaryArray, StringArray};
use arrow_schema::DataType;
use std::sync::Arc;

/// A batch whose first `taken` rows were handed on.
pub struct StoredBatch {
    /// Its columns.
    pub columns: Vec<StoredColumn>,
    /// Rows of all of it.
    pub rows: usize,
    /// Rows that were handed on.
    pub taken: usize,
    /// What its unpacked buffers take of the file's budget.
    pub _charges: Vec<Charge>,
}

/// A column as it is stored.
pub enum StoredColumn {
    /// Values: plain, or of a type whose values become plain ones.
    Values(ArrayRef),
    /// Indexes into a dictionary.
    Indexes(ArrayRef, Arc<Dictionary>),
}

impl StoredColumn {
    /// Adds the bytes of the texts or binaries of the rows from `from` on, for as many as `lengths`
    /// has.
    ///
    /// # Errors
    /// An index lies beyond its dictionary.
    pub fn add_lengths(&self, from: usize, lengths: &mut [usize]) -> Result<()> {
        match self {
            StoredColumn::Values(values) => {
                let Some(length) = length(values) else { return Ok(()) };
                for (row, sum) in lengths.iter_mut().enumerate() {
                    *sum = sum.saturating_add(length(from + row));
                }
            }
            StoredColumn::Indexes(indexes, dictionary) => {
                let place = indexer(indexes);
                for (row, sum) in lengths.iter_mut().enumerate() {
                    let text = named(indexes, dictionary, &place, from + row)?;
                    *sum = sum.saturating_add(text.map_or(0, str::len));
                }
            }
        }
        Ok(())
    }

    /// The plain values of `rows` rows from `from` on.
    ///
    /// # Errors
    /// An index lies beyond its dictionary.
    pub fn plain(&self, from: usize, rows: usize) -> Result<ArrayRef> {
        let (indexes, dictionary) = match self {
            StoredColumn::Values(values) => return Ok(plain(values.slice(from, rows))),
            StoredColumn::Indexes(indexes, dictionary) => (indexes, dictionary),
        };
        let place = indexer(indexes);
        let mut builder = StringBuilder::new();
        for row in from..from + rows {
            builder.append_option(named(indexes, dictionary, &place, row)?);
        }
        Ok(Arc::new(builder.finish()))
    }
}

/// The text that a row names in its dictionary.
fn named<'a>(
    indexes: &ArrayRef,
    dictionary: &'a Dictionary,
    place: &impl Fn(usize) -> Option<usize>,
    row: usize,
) -> Result<Option<&'a str>> {
    if indexes.is_null(row) {
        return Ok(None);
    }
    place(row).and_then(|at| dictionary.get(at)).context("an index lies beyond its dictionary")
}

type Indexer<'a> = Box<dyn Fn(usize) -> Option<usize> + 'a>;

fn indexer(indexes: &ArrayRef) -> Indexer<'_> {
    fn of<T: ArrowPrimitiveType>(indexes: &ArrayRef) -> Indexer<'_>
    where
        T::Native: TryInto<usize>,
    {
        let indexes = indexes.as_primitive::<T>();
        Box::new(|row| indexes.value(row).try_into().ok())
    }
    match indexes.data_type() {
        DataType::Int8 => of::<Int8Type>(indexes),
        DataType::Int16 => of::<Int16Type>(indexes),
        DataType::Int32 => of::<Int32Type>(indexes),
        DataType::Int64 => of::<Int64Type>(indexes),
        DataType::UInt8 => of::<UInt8Type>(indexes),
        DataType::UInt16 => of::<UInt16Type>(indexes),
        DataType::UInt32 => of::<UInt32Type>(indexes),
        _ => of::<UInt64Type>(indexes),
    }
}

/// Bytes of a row's text or binary, in columns that have some.
fn length(values: &ArrayRef) -> Option<Box<dyn Fn(usize) -> usize + '_>> {
    Some(match values.data_type() {
        DataType::Utf8 => {
            let array = values.as_string::<i32>();
            Box::new(|row| array.value_length(row) as usize)
        }
        DataType::Binary => {
            let array = values.as_binary::<i32>();
            Box::new(|row| array.value_length(row) as usize)
        }
        DataType::LargeUtf8 => {
            let array = values.as_string::<i64>();
            Box::new(|row| array.value_length(row) as usize)
        }
        DataType::LargeBinary => {
            let array = values.as_binary::<i64>();
            Box::new(|row| array.value_length(row) as usize)
        }
        // A view's first 32 bits are its length.
        DataType::Utf8View => {
            let views = values.as_string_view().views();
            Box::new(|row| views[row] as u32 as usize)
        }
        DataType::BinaryView => {
            let views = values.as_binary_view().views();
            Box::new(|row| views[row] as u32 as usize)
        }
        _ => return None,
    })
}

fn plain(values: ArrayRef) -> ArrayRef {
    match values.data_type() {
        DataType::LargeUtf8 => Arc::new(StringArray::from_iter(values.as_string::<i64>())),
        DataType::LargeBinary => Arc::new(BinaryArray::from_iter(values.as_binary::<i64>())),
        DataType::Utf8View => Arc::new(StringArray::from_iter(values.as_string_view())),
        DataType::BinaryView => Arc::new(BinaryArray::from_iter(values.as_binary_view())),
        _ => values,
    }
}
