//! One column of a batch being collected.

use std::sync::Arc;

use arrow_array::types::*;
use arrow_array::{ArrayRef, ArrowPrimitiveType, BooleanArray, FixedSizeBinaryArray, PrimitiveArray};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};

use super::ArrowError;
use super::variable::Variable;
use crate::block::Run;
use crate::row::{ColumnLayout, NullBit, Place, RowLayout};
use crate::schema::{ColumnType, TimeUnit};

/// Values of one column, in the form that its array takes over without a copy.
#[derive(Debug)]
pub(super) struct ColumnBuilder {
    column_type: ColumnType,
    values: Values,
    /// A byte a row of a nullable column: 0 when its value is there.
    absent: Vec<u8>,
}

#[derive(Debug)]
enum Values {
    Int8(Vec<i8>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    UInt8(Vec<u8>),
    UInt16(Vec<u16>),
    UInt32(Vec<u32>),
    UInt64(Vec<u64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Int128(Vec<i128>),
    Boolean(Vec<u8>),
    FixedBinary(Vec<u8>),
    Variable(Variable),
}

impl ColumnBuilder {
    pub(super) fn new(column_type: &ColumnType) -> ColumnBuilder {
        let values = match column_type {
            ColumnType::Int8 => Values::Int8(Vec::new()),
            ColumnType::Int16 => Values::Int16(Vec::new()),
            ColumnType::Int32 | ColumnType::Date32 => Values::Int32(Vec::new()),
            ColumnType::Int64 | ColumnType::Timestamp { .. } => Values::Int64(Vec::new()),
            ColumnType::UInt8 => Values::UInt8(Vec::new()),
            ColumnType::UInt16 => Values::UInt16(Vec::new()),
            ColumnType::UInt32 => Values::UInt32(Vec::new()),
            ColumnType::UInt64 => Values::UInt64(Vec::new()),
            ColumnType::Float32 => Values::Float32(Vec::new()),
            ColumnType::Float64 => Values::Float64(Vec::new()),
            ColumnType::Decimal128 { .. } => Values::Int128(Vec::new()),
            ColumnType::Boolean => Values::Boolean(Vec::new()),
            ColumnType::FixedBinary(_) => Values::FixedBinary(Vec::new()),
            ColumnType::Utf8 | ColumnType::Binary => Values::Variable(Variable::default()),
        };
        ColumnBuilder { column_type: column_type.clone(), values, absent: Vec::new() }
    }

    /// Adds the column's values of a checked run.
    pub(super) fn push(
        &mut self,
        message: &[u8],
        run: &Run,
        layout: &RowLayout,
        column: &ColumnLayout,
    ) -> Result<(), ArrowError> {
        let stride = layout.prefix_len();
        let prefixes = run.prefixes(message, stride).unwrap_or_default();
        if let Some(NullBit { byte, mask }) = column.null {
            self.absent.extend(prefixes.chunks_exact(stride).map(|prefix| prefix[byte] & mask));
        }
        let at = match column.place {
            Place::Fixed { offset, .. } => Strided { prefixes, stride, offset },
            Place::Variable { index } => {
                let Values::Variable(variable) = &mut self.values else { return Ok(()) };
                return variable.push(message, run, layout.variable_columns(), index);
            }
        };
        match &mut self.values {
            Values::Int8(values) => at.append(values, i8::from_le_bytes),
            Values::Int16(values) => at.append(values, i16::from_le_bytes),
            Values::Int32(values) => at.append(values, i32::from_le_bytes),
            Values::Int64(values) => at.append(values, i64::from_le_bytes),
            Values::UInt8(values) | Values::Boolean(values) => at.append(values, u8::from_le_bytes),
            Values::UInt16(values) => at.append(values, u16::from_le_bytes),
            Values::UInt32(values) => at.append(values, u32::from_le_bytes),
            Values::UInt64(values) => at.append(values, u64::from_le_bytes),
            Values::Float32(values) => at.append(values, f32::from_le_bytes),
            Values::Float64(values) => at.append(values, f64::from_le_bytes),
            Values::Int128(values) => at.append(values, i128::from_le_bytes),
            Values::FixedBinary(values) => {
                let width = self.column_type.width().unwrap_or_default();
                for prefix in prefixes.chunks_exact(stride) {
                    values.extend_from_slice(&prefix[at.offset..at.offset + width]);
                }
            }
            Values::Variable(_) => {}
        }
        Ok(())
    }

    /// Forgets the values since the last array.
    pub(super) fn clear(&mut self) {
        *self = ColumnBuilder::new(&self.column_type);
    }

    /// The values since the last array, as one of `rows` rows.
    pub(super) fn finish(&mut self, rows: usize) -> Result<ArrayRef, ArrowError> {
        let nulls = self.nulls(rows);
        Ok(match (&mut self.values, &self.column_type) {
            (Values::Int8(v), _) => primitive::<Int8Type>(v, nulls)?,
            (Values::Int16(v), _) => primitive::<Int16Type>(v, nulls)?,
            (Values::Int32(v), ColumnType::Date32) => primitive::<Date32Type>(v, nulls)?,
            (Values::Int32(v), _) => primitive::<Int32Type>(v, nulls)?,
            (Values::Int64(v), ColumnType::Timestamp { unit, zone }) => {
                let zone = zone.clone();
                match unit {
                    TimeUnit::Second => timestamp::<TimestampSecondType>(v, nulls, zone)?,
                    TimeUnit::Millisecond => timestamp::<TimestampMillisecondType>(v, nulls, zone)?,
                    TimeUnit::Microsecond => timestamp::<TimestampMicrosecondType>(v, nulls, zone)?,
                    TimeUnit::Nanosecond => timestamp::<TimestampNanosecondType>(v, nulls, zone)?,
                }
            }
            (Values::Int64(v), _) => primitive::<Int64Type>(v, nulls)?,
            (Values::UInt8(v), _) => primitive::<UInt8Type>(v, nulls)?,
            (Values::UInt16(v), _) => primitive::<UInt16Type>(v, nulls)?,
            (Values::UInt32(v), _) => primitive::<UInt32Type>(v, nulls)?,
            (Values::UInt64(v), _) => primitive::<UInt64Type>(v, nulls)?,
            (Values::Float32(v), _) => primitive::<Float32Type>(v, nulls)?,
            (Values::Float64(v), _) => primitive::<Float64Type>(v, nulls)?,
            (Values::Int128(v), column_type) => {
                let array = PrimitiveArray::<Decimal128Type>::try_new(taken(v), nulls)?;
                match column_type {
                    ColumnType::Decimal128 { precision, scale } => {
                        Arc::new(array.with_precision_and_scale(*precision, *scale)?)
                    }
                    _ => Arc::new(array),
                }
            }
            (Values::Boolean(v), _) => {
                let bits = BooleanBuffer::collect_bool(v.len(), |row| v[row] != 0);
                v.clear();
                Arc::new(BooleanArray::new(bits, nulls))
            }
            (Values::FixedBinary(v), column_type) => {
                let width = column_type.width().unwrap_or_default() as i32;
                Arc::new(FixedSizeBinaryArray::try_new(width, Buffer::from_vec(std::mem::take(v)), nulls)?)
            }
            (Values::Variable(v), column_type) => v.finish(nulls, matches!(column_type, ColumnType::Utf8))?,
        })
    }

    fn nulls(&mut self, rows: usize) -> Option<NullBuffer> {
        let absent = std::mem::take(&mut self.absent);
        let any = absent.iter().fold(0, |any, &bit| any | bit) != 0;
        let nulls = (any && absent.len() == rows)
            .then(|| NullBuffer::new(BooleanBuffer::collect_bool(rows, |row| absent[row] == 0)));
        self.absent = absent;
        self.absent.clear();
        nulls
    }
}

/// One column of consecutive prefixes.
struct Strided<'a> {
    prefixes: &'a [u8],
    stride: usize,
    offset: usize,
}

impl Strided<'_> {
    #[inline(always)]
    fn append<T, const WIDTH: usize>(&self, values: &mut Vec<T>, read: impl Fn([u8; WIDTH]) -> T) {
        let offset = self.offset;
        values.extend(self.prefixes.chunks_exact(self.stride).map(|prefix| {
            let mut bytes = [0; WIDTH];
            bytes.copy_from_slice(&prefix[offset..offset + WIDTH]);
            read(bytes)
        }));
    }
}

/// The values, leaving room for as many: the next batch is likely as long.
fn taken<T: arrow_buffer::ArrowNativeType>(values: &mut Vec<T>) -> ScalarBuffer<T> {
    let room = Vec::with_capacity(values.len());
    ScalarBuffer::from(std::mem::replace(values, room))
}

fn primitive<T: ArrowPrimitiveType>(
    values: &mut Vec<T::Native>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    Ok(Arc::new(PrimitiveArray::<T>::try_new(taken(values), nulls)?))
}

fn timestamp<T: ArrowTimestampType>(
    values: &mut Vec<i64>,
    nulls: Option<NullBuffer>,
    zone: Option<Arc<str>>,
) -> Result<ArrayRef, ArrowError> {
    Ok(Arc::new(PrimitiveArray::<T>::try_new(taken(values), nulls)?.with_timezone_opt(zone)))
}
