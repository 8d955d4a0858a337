//! One column of a record batch as the cells of rows.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BinaryViewArray, BooleanArray, FixedSizeBinaryArray,
    LargeBinaryArray, LargeStringArray, StringArray, StringViewArray,
};
use arrow_buffer::NullBuffer;

use crate::schema::{ColumnType, TimeUnit};

#[cfg(not(target_endian = "little"))]
compile_error!("rows are little-endian, and so are taken from Arrow's buffers as they are");

/// A column and where its values are null.
#[derive(Debug)]
pub(super) struct Source<'a> {
    cells: Cells<'a>,
    nulls: Option<NullBuffer>,
}

#[derive(Debug)]
enum Cells<'a> {
    /// Values of fixed width, one after another.
    Raw(&'a [u8]),
    Boolean(&'a BooleanArray),
    FixedBinary(&'a FixedSizeBinaryArray),
    Utf8(&'a StringArray),
    LargeUtf8(&'a LargeStringArray),
    Utf8View(&'a StringViewArray),
    Binary(&'a BinaryArray),
    LargeBinary(&'a LargeBinaryArray),
    BinaryView(&'a BinaryViewArray),
}

impl<'a> Source<'a> {
    /// An array as values of a column of this type, or none when they are of another.
    pub(super) fn of(array: &'a ArrayRef, column_type: &ColumnType) -> Option<Source<'a>> {
        let cells = match column_type {
            ColumnType::Int8 => raw::<Int8Type>(array)?,
            ColumnType::Int16 => raw::<Int16Type>(array)?,
            ColumnType::Int32 => raw::<Int32Type>(array)?,
            ColumnType::Int64 => raw::<Int64Type>(array)?,
            ColumnType::UInt8 => raw::<UInt8Type>(array)?,
            ColumnType::UInt16 => raw::<UInt16Type>(array)?,
            ColumnType::UInt32 => raw::<UInt32Type>(array)?,
            ColumnType::UInt64 => raw::<UInt64Type>(array)?,
            ColumnType::Float32 => raw::<Float32Type>(array)?,
            ColumnType::Float64 => raw::<Float64Type>(array)?,
            ColumnType::Date32 => raw::<Date32Type>(array)?,
            ColumnType::Decimal128 { scale, .. } => {
                // A table may be declared wider than the file: the digits are the same, the scale must be.
                let decimals = array.as_primitive_opt::<Decimal128Type>()?;
                if decimals.scale() != *scale {
                    return None;
                }
                Cells::Raw(decimals.values().inner().as_slice())
            }
            ColumnType::Timestamp { unit, .. } => match unit {
                TimeUnit::Second => raw::<TimestampSecondType>(array)?,
                TimeUnit::Millisecond => raw::<TimestampMillisecondType>(array)?,
                TimeUnit::Microsecond => raw::<TimestampMicrosecondType>(array)?,
                TimeUnit::Nanosecond => raw::<TimestampNanosecondType>(array)?,
            },
            ColumnType::Boolean => Cells::Boolean(array.as_boolean_opt()?),
            ColumnType::FixedBinary(width) => {
                let fixed = array.as_fixed_size_binary_opt()?;
                if fixed.value_length() != i32::from(*width) {
                    return None;
                }
                Cells::FixedBinary(fixed)
            }
            ColumnType::Utf8 => match array.data_type() {
                arrow_schema::DataType::LargeUtf8 => Cells::LargeUtf8(array.as_string_opt()?),
                arrow_schema::DataType::Utf8View => Cells::Utf8View(array.as_string_view_opt()?),
                _ => Cells::Utf8(array.as_string_opt()?),
            },
            ColumnType::Binary => match array.data_type() {
                arrow_schema::DataType::LargeBinary => Cells::LargeBinary(array.as_binary_opt()?),
                arrow_schema::DataType::BinaryView => Cells::BinaryView(array.as_binary_view_opt()?),
                _ => Cells::Binary(array.as_binary_opt()?),
            },
        };
        Some(Source { cells, nulls: array.nulls().filter(|nulls| nulls.null_count() > 0).cloned() })
    }

    #[inline]
    pub(super) fn is_valid(&self, row: usize) -> bool {
        self.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row))
    }

    pub(super) fn first_null(&self) -> Option<usize> {
        let nulls = self.nulls.as_ref()?;
        (0..nulls.len()).find(|&row| nulls.is_null(row))
    }

    /// Text or bytes of a row; nothing for a null, or in a column of fixed width.
    #[inline]
    pub(super) fn bytes(&self, row: usize) -> &[u8] {
        if !self.is_valid(row) {
            return &[];
        }
        match &self.cells {
            Cells::Raw(_) | Cells::Boolean(_) => &[],
            Cells::FixedBinary(array) => array.value(row),
            Cells::Utf8(array) => array.value(row).as_bytes(),
            Cells::LargeUtf8(array) => array.value(row).as_bytes(),
            Cells::Utf8View(array) => array.value(row).as_bytes(),
            Cells::Binary(array) => array.value(row),
            Cells::LargeBinary(array) => array.value(row),
            Cells::BinaryView(array) => array.value(row),
        }
    }

    /// Adds what each row's text or bytes take to `lengths`.
    pub(super) fn add_lengths(&self, lengths: &mut [usize]) {
        if matches!(self.cells, Cells::Raw(_) | Cells::Boolean(_) | Cells::FixedBinary(_)) {
            return;
        }
        for (row, length) in lengths.iter_mut().enumerate() {
            *length += self.bytes(row).len();
        }
    }

    /// Writes the values that are not null at `offset` of the rows that start at `starts`.
    pub(super) fn write_fixed(&self, rows: &mut [u8], starts: &[usize], offset: usize, width: usize) {
        match (&self.cells, width) {
            (Cells::Raw(raw), 1) => self.write_raw::<1>(raw, rows, starts, offset),
            (Cells::Raw(raw), 2) => self.write_raw::<2>(raw, rows, starts, offset),
            (Cells::Raw(raw), 4) => self.write_raw::<4>(raw, rows, starts, offset),
            (Cells::Raw(raw), 8) => self.write_raw::<8>(raw, rows, starts, offset),
            (Cells::Raw(raw), _) => self.write_raw::<16>(raw, rows, starts, offset),
            (Cells::Boolean(array), _) => {
                for (row, &start) in starts.iter().enumerate() {
                    rows[start + offset] = u8::from(self.is_valid(row) && array.value(row));
                }
            }
            _ => {
                for (row, &start) in starts.iter().enumerate().filter(|(row, _)| self.is_valid(*row)) {
                    rows[start + offset..start + offset + width].copy_from_slice(self.bytes(row));
                }
            }
        }
    }

    fn write_raw<const WIDTH: usize>(&self, raw: &[u8], rows: &mut [u8], starts: &[usize], offset: usize) {
        let cells = raw.as_chunks::<WIDTH>().0;
        for (row, (&start, cell)) in starts.iter().zip(cells).enumerate() {
            if self.is_valid(row) {
                rows[start + offset..start + offset + WIDTH].copy_from_slice(cell);
            }
        }
    }
}

fn raw<T: ArrowPrimitiveType>(array: &ArrayRef) -> Option<Cells<'_>> {
    Some(Cells::Raw(array.as_primitive_opt::<T>()?.values().inner().as_slice()))
}
