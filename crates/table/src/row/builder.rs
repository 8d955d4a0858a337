//! Writing a row.

use std::sync::Arc;

use super::{RowLayout, RowPart, ValueRef};
use crate::schema::{ColumnType, VALUE_BYTES_MAX};

/// Writes rows of one layout, one after another, into one buffer.
///
/// Fixed-width columns may be set in any order, variable columns in ascending order. A nullable
/// column that is not set is null.
///
/// ```
/// # use std::sync::Arc;
/// # use overside_table::{row::{RowBuilder, RowLayout, RowView}, schema::{Column, ColumnType, Schema}};
/// let columns = vec![Column::new("id", ColumnType::Int64), Column::nullable("name", ColumnType::Utf8)];
/// let layout = Arc::new(RowLayout::new(&Schema::with_key(columns, &["id"])?));
/// let mut builder = RowBuilder::new(layout.clone());
/// builder.begin();
/// builder.set_i64(0, 7)?;
/// builder.set_bytes(1, b"seven")?;
/// let row = RowView::of_value(builder.finish()?, &layout)?;
/// assert_eq!((row.i64(0), row.str(1)?), (Some(7), Some("seven")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RowBuilder {
    layout: Arc<RowLayout>,
    buffer: Vec<u8>,
    /// What a row starts as: every nullable column null.
    blank: Vec<u8>,
    /// Columns that are set, and that must be: 64 a word.
    set: Vec<u64>,
    required: Vec<u64>,
    variable_next: usize,
}

impl RowBuilder {
    /// A builder of rows that lie like this.
    ///
    /// # Panics
    /// The layout is a projection's that reads in place: such rows are only ever read.
    pub fn new(layout: Arc<RowLayout>) -> RowBuilder {
        let variable = layout.columns.iter().filter(|c| c.is_variable()).count();
        assert_eq!(variable, layout.variable, "rows are built of whole rows' or packed projections' layouts");
        let blank = blank_value(&layout);
        let mut required = vec![0u64; layout.columns.len().div_ceil(64)];
        for (index, column) in layout.columns.iter().enumerate() {
            if column.null.is_none() {
                required[index / 64] |= 1 << (index % 64);
            }
        }
        let set = vec![0; required.len()];
        RowBuilder { layout, buffer: Vec::new(), blank, set, required, variable_next: 0 }
    }

    /// Where the columns lie.
    pub fn layout(&self) -> &Arc<RowLayout> {
        &self.layout
    }

    /// Starts a row and forgets the one before.
    pub fn begin(&mut self) {
        self.buffer.clear();
        self.buffer.extend_from_slice(&self.blank);
        self.set.fill(0);
        self.variable_next = 0;
    }

    /// The row's value: its prefix, then its rest.
    ///
    /// # Errors
    /// A column that may not be null was not set, or the value is too long.
    pub fn finish(&mut self) -> Result<&[u8], BuildError> {
        if let Some(word) = (0..self.set.len()).find(|&w| self.required[w] & !self.set[w] != 0) {
            let missing = self.required[word] & !self.set[word];
            return Err(BuildError::Missing { column: word * 64 + missing.trailing_zeros() as usize });
        }
        self.end_variable_up_to(self.layout.variable);
        if self.buffer.len() > VALUE_BYTES_MAX {
            return Err(BuildError::TooLong { bytes: self.buffer.len() });
        }
        Ok(&self.buffer)
    }

    /// A whole row at once: one value a column.
    ///
    /// # Errors
    /// As the setters and [`RowBuilder::finish`], or another number of values than columns.
    pub fn encode(&mut self, values: &[ValueRef<'_>]) -> Result<&[u8], BuildError> {
        if values.len() != self.layout.columns.len() {
            return Err(BuildError::ValueCount { given: values.len(), columns: self.layout.columns.len() });
        }
        self.begin();
        for (column, value) in values.iter().enumerate() {
            self.set(column, *value)?;
        }
        self.finish()
    }

    /// Sets a column to a value of its type, or to null.
    ///
    /// # Errors
    /// No such column, another type, a null where none may be, or a variable column out of order.
    pub fn set(&mut self, column: usize, value: ValueRef<'_>) -> Result<(), BuildError> {
        let layout = self.layout.columns.get(column).ok_or(BuildError::NoColumn { column })?;
        if !value.fits(&layout.column_type) {
            return Err(BuildError::WrongType { column, expected: layout.column_type.clone() });
        }
        match value {
            ValueRef::Null => return self.set_null(column),
            ValueRef::Int8(v) => self.put(column, v.to_le_bytes()),
            ValueRef::Int16(v) => self.put(column, v.to_le_bytes()),
            ValueRef::Int32(v) | ValueRef::Date32(v) => self.put(column, v.to_le_bytes()),
            ValueRef::Int64(v) | ValueRef::Timestamp(v) => self.put(column, v.to_le_bytes()),
            ValueRef::UInt8(v) => self.put(column, v.to_le_bytes()),
            ValueRef::UInt16(v) => self.put(column, v.to_le_bytes()),
            ValueRef::UInt32(v) => self.put(column, v.to_le_bytes()),
            ValueRef::UInt64(v) => self.put(column, v.to_le_bytes()),
            ValueRef::Float32(v) => self.put(column, v.to_le_bytes()),
            ValueRef::Float64(v) => self.put(column, v.to_le_bytes()),
            ValueRef::Decimal128(v) => self.put(column, v.to_le_bytes()),
            ValueRef::Boolean(v) => self.put(column, [u8::from(v)]),
            ValueRef::Utf8(v) => return self.put_bytes(column, v.as_bytes()),
            ValueRef::FixedBinary(v) | ValueRef::Binary(v) => return self.put_bytes(column, v),
        }
        Ok(())
    }

    /// Sets a column to null, which it is already unless it was set before.
    ///
    /// # Errors
    /// No such column, one that may not be null, or a variable one that has its bytes already.
    pub fn set_null(&mut self, column: usize) -> Result<(), BuildError> {
        let layout = self.layout.columns.get(column).ok_or(BuildError::NoColumn { column })?;
        let bit = layout.null.ok_or(BuildError::Missing { column })?;
        match layout.place {
            RowPart::Fixed { offset, width } => self.buffer[offset..offset + width].fill(0),
            RowPart::Variable { index } if index < self.variable_next => {
                return Err(BuildError::OutOfOrder { column });
            }
            RowPart::Variable { .. } => {}
        }
        self.buffer[bit.byte] |= bit.mask;
        Ok(())
    }

    /// Sets a Utf8, Binary or FixedBinary column. Bytes for a Utf8 column are checked to be UTF-8.
    ///
    /// # Errors
    /// As [`RowBuilder::set`].
    pub fn set_bytes(&mut self, column: usize, bytes: &[u8]) -> Result<(), BuildError> {
        let layout = self.layout.columns.get(column).ok_or(BuildError::NoColumn { column })?;
        let right = match &layout.column_type {
            ColumnType::Utf8 => std::str::from_utf8(bytes).is_ok(),
            ColumnType::Binary => true,
            ColumnType::FixedBinary(width) => bytes.len() == usize::from(*width),
            _ => false,
        };
        if !right {
            return Err(BuildError::WrongType { column, expected: layout.column_type.clone() });
        }
        self.put_bytes(column, bytes)
    }

    /// Sets a Boolean.
    ///
    /// # Errors
    /// As [`RowBuilder::set`].
    pub fn set_bool(&mut self, column: usize, value: bool) -> Result<(), BuildError> {
        self.set(column, ValueRef::Boolean(value))
    }

    fn mark(&mut self, column: usize) {
        self.set[column / 64] |= 1 << (column % 64);
        if let Some(bit) = self.layout.columns[column].null {
            self.buffer[bit.byte] &= !bit.mask;
        }
    }

    fn put<const WIDTH: usize>(&mut self, column: usize, bytes: [u8; WIDTH]) {
        self.mark(column);
        if let RowPart::Fixed { offset, .. } = self.layout.columns[column].place {
            self.buffer[offset..offset + WIDTH].copy_from_slice(&bytes);
        }
    }

    fn put_bytes(&mut self, column: usize, bytes: &[u8]) -> Result<(), BuildError> {
        match self.layout.columns[column].place {
            RowPart::Fixed { offset, width } => self.buffer[offset..offset + width].copy_from_slice(bytes),
            RowPart::Variable { index } => {
                if index < self.variable_next {
                    return Err(BuildError::OutOfOrder { column });
                }
                if self.buffer.len() + bytes.len() > VALUE_BYTES_MAX {
                    return Err(BuildError::TooLong { bytes: self.buffer.len() + bytes.len() });
                }
                self.end_variable_up_to(index);
                self.buffer.extend_from_slice(bytes);
                self.end_variable_up_to(index + 1);
            }
        }
        self.mark(column);
        Ok(())
    }

    /// Writes the end offsets of the variable columns before `index` that have none yet.
    fn end_variable_up_to(&mut self, index: usize) {
        let offsets = self.layout.prefix_len;
        let end = (self.buffer.len() - self.blank.len()) as u32;
        for variable in self.variable_next..index {
            let at = offsets + variable * 4;
            self.buffer[at..at + 4].copy_from_slice(&end.to_le_bytes());
        }
        self.variable_next = index;
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty, $pattern:pat,)*) => {
        impl RowBuilder {
            $($(#[$doc])*
            ///
            /// # Errors
            /// As [`RowBuilder::set`].
            #[inline]
            pub fn $name(&mut self, column: usize, value: $type) -> Result<(), BuildError> {
                match self.layout.columns.get(column) {
                    Some(layout) if matches!(layout.column_type, $pattern) => {
                        self.put(column, value.to_le_bytes());
                        Ok(())
                    }
                    Some(layout) => Err(BuildError::WrongType { column, expected: layout.column_type.clone() }),
                    None => Err(BuildError::NoColumn { column }),
                }
            })*
        }
    };
}

setters! {
    /// Sets an Int8.
    set_i8: i8, ColumnType::Int8,
    /// Sets an Int16.
    set_i16: i16, ColumnType::Int16,
    /// Sets an Int32 or the days of a Date32.
    set_i32: i32, ColumnType::Int32 | ColumnType::Date32,
    /// Sets an Int64 or the ticks of a Timestamp.
    set_i64: i64, ColumnType::Int64 | ColumnType::Timestamp { .. },
    /// Sets a UInt8.
    set_u8: u8, ColumnType::UInt8,
    /// Sets a UInt16.
    set_u16: u16, ColumnType::UInt16,
    /// Sets a UInt32.
    set_u32: u32, ColumnType::UInt32,
    /// Sets a UInt64.
    set_u64: u64, ColumnType::UInt64,
    /// Sets a Float32.
    set_f32: f32, ColumnType::Float32,
    /// Sets a Float64.
    set_f64: f64, ColumnType::Float64,
    /// Sets a Decimal128, unscaled.
    set_i128: i128, ColumnType::Decimal128 { .. },
}

/// A value whose nullable columns are null and whose others are zero or empty.
pub(crate) fn blank_value(layout: &RowLayout) -> Vec<u8> {
    let mut blank = vec![0; layout.prefix_len + layout.rest_len_min()];
    for bit in layout.columns.iter().filter_map(|column| column.null) {
        blank[bit.byte] |= bit.mask;
    }
    blank
}

/// Why values make no row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A column that may not be null has no value.
    #[error("column {column} may not be null: give it a value")]
    Missing {
        /// Which column.
        column: usize,
    },
    /// A value of another type, length or text encoding than its column's.
    #[error("column {column} takes {expected}: convert the value")]
    WrongType {
        /// Which column.
        column: usize,
        /// Its type.
        expected: ColumnType,
    },
    /// The table has fewer columns.
    #[error("there is no column {column}: the first is 0, see the table's schema")]
    NoColumn {
        /// The column asked for.
        column: usize,
    },
    /// Another number of values than columns.
    #[error("{given} values for {columns} columns: give one a column")]
    ValueCount {
        /// Values given.
        given: usize,
        /// Columns of the table.
        columns: usize,
    },
    /// A variable column was set after a later one, or twice.
    #[error("column {column} was set after a later variable-length column: set them in the schema's order, once")]
    OutOfOrder {
        /// Which column.
        column: usize,
    },
    /// The value exceeds the limit.
    #[error("the row takes {bytes} bytes of at most {VALUE_BYTES_MAX}: shorten or split it")]
    TooLong {
        /// Bytes it would take.
        bytes: usize,
    },
}
