//! One column of a batch being collected.

use std::sync::Arc;

use arrow_array::types::*;
use arrow_array::{ArrayRef, ArrowPrimitiveType, BooleanArray, FixedSizeBinaryArray, PrimitiveArray};
use arrow_buffer::{ArrowNativeType, NullBuffer, ScalarBuffer};

use super::ArrowError;
use super::bits::{Bits, Validity};
use super::store::Store;
use super::strided::Prefixes;
use super::variable::{Rests, Variable};
use crate::block::OpenRun;
use crate::row::{Bytes, NullBit};
use crate::schema::{ColumnType, TimeUnit};

/// Values of one column, in the form that its array takes over without a copy.
#[derive(Debug)]
pub(super) struct ColumnBuilder {
    column_type: ColumnType,
    values: Values,
    validity: Validity,
}

/// By width, whatever the type: values are moved, not looked at.
#[derive(Debug)]
enum Values {
    One(Store<u8>),
    Two(Store<u16>),
    Four(Store<u32>),
    Eight(Store<u64>),
    Sixteen(Store<i128>),
    Boolean(Bits),
    Bytes(Store<u8>),
    Variable(Variable),
}

impl ColumnBuilder {
    pub(super) fn new(column_type: &ColumnType) -> ColumnBuilder {
        let values = match column_type {
            ColumnType::Int8 | ColumnType::UInt8 => Values::One(Store::new()),
            ColumnType::Int16 | ColumnType::UInt16 => Values::Two(Store::new()),
            ColumnType::Int32 | ColumnType::UInt32 | ColumnType::Float32 | ColumnType::Date32 => {
                Values::Four(Store::new())
            }
            ColumnType::Int64 | ColumnType::UInt64 | ColumnType::Float64 | ColumnType::Timestamp { .. } => {
                Values::Eight(Store::new())
            }
            ColumnType::Decimal128 { .. } => Values::Sixteen(Store::new()),
            ColumnType::Boolean => Values::Boolean(Bits::new()),
            ColumnType::FixedBinary(_) => Values::Bytes(Store::new()),
            ColumnType::Utf8 | ColumnType::Binary => Values::Variable(Variable::new()),
        };
        ColumnBuilder { column_type: column_type.clone(), values, validity: Validity::new() }
    }

    /// Adds which rows have the column's null bit; `any` is what their bytes that hold it have in
    /// common by `|`.
    pub(super) fn push_nulls(&mut self, prefixes: &Prefixes<impl Bytes>, bit: NullBit, any: u8) {
        self.validity.push(prefixes, bit.byte, bit.mask, any);
    }

    /// Adds the values of a column of fixed width.
    pub(super) fn push_fixed(&mut self, prefixes: &Prefixes<impl Bytes>, offset: usize, width: usize) {
        match &mut self.values {
            Values::One(store) => prefixes.gather(offset, store, u8::from_le_bytes),
            Values::Two(store) => prefixes.gather(offset, store, u16::from_le_bytes),
            Values::Four(store) => prefixes.gather(offset, store, u32::from_le_bytes),
            Values::Eight(store) => prefixes.gather(offset, store, u64::from_le_bytes),
            Values::Sixteen(store) => prefixes.gather(offset, store, i128::from_le_bytes),
            Values::Boolean(bits) => bits.push(prefixes.bytes_at(offset), u8::MAX),
            Values::Bytes(store) => prefixes.gather_bytes(offset, width, store),
            Values::Variable(_) => {}
        }
    }

    /// Adds the values of variable column `index` of a checked run.
    pub(super) fn push_variable(
        &mut self,
        run: &OpenRun<'_, impl Bytes>,
        rests: &mut Rests,
        index: usize,
    ) -> Result<(), ArrowError> {
        match &mut self.values {
            Values::Variable(variable) => variable.push(run, rests, index),
            _ => Ok(()),
        }
    }

    /// Forgets the values since the last array.
    pub(super) fn clear(&mut self) {
        self.validity.clear();
        match &mut self.values {
            Values::One(store) | Values::Bytes(store) => store.clear(),
            Values::Two(store) => store.clear(),
            Values::Four(store) => store.clear(),
            Values::Eight(store) => store.clear(),
            Values::Sixteen(store) => store.clear(),
            Values::Boolean(bits) => bits.clear(),
            Values::Variable(variable) => variable.clear(),
        }
    }

    /// The values since the last array, as one.
    pub(super) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let nulls = self.validity.finish();
        Ok(match (&mut self.values, &self.column_type) {
            (Values::One(v), ColumnType::Int8) => primitive::<_, Int8Type>(v, nulls)?,
            (Values::One(v), _) => primitive::<_, UInt8Type>(v, nulls)?,
            (Values::Two(v), ColumnType::Int16) => primitive::<_, Int16Type>(v, nulls)?,
            (Values::Two(v), _) => primitive::<_, UInt16Type>(v, nulls)?,
            (Values::Four(v), ColumnType::Int32) => primitive::<_, Int32Type>(v, nulls)?,
            (Values::Four(v), ColumnType::Float32) => primitive::<_, Float32Type>(v, nulls)?,
            (Values::Four(v), ColumnType::Date32) => primitive::<_, Date32Type>(v, nulls)?,
            (Values::Four(v), _) => primitive::<_, UInt32Type>(v, nulls)?,
            (Values::Eight(v), ColumnType::Timestamp { unit, zone }) => {
                let zone = zone.clone();
                match unit {
                    TimeUnit::Second => timestamp::<TimestampSecondType>(v, nulls, zone)?,
                    TimeUnit::Millisecond => timestamp::<TimestampMillisecondType>(v, nulls, zone)?,
                    TimeUnit::Microsecond => timestamp::<TimestampMicrosecondType>(v, nulls, zone)?,
                    TimeUnit::Nanosecond => timestamp::<TimestampNanosecondType>(v, nulls, zone)?,
                }
            }
            (Values::Eight(v), ColumnType::Int64) => primitive::<_, Int64Type>(v, nulls)?,
            (Values::Eight(v), ColumnType::Float64) => primitive::<_, Float64Type>(v, nulls)?,
            (Values::Eight(v), _) => primitive::<_, UInt64Type>(v, nulls)?,
            (Values::Sixteen(v), column_type) => {
                let array = array::<_, Decimal128Type>(v, nulls)?;
                match column_type {
                    ColumnType::Decimal128 { precision, scale } => {
                        Arc::new(array.with_precision_and_scale(*precision, *scale)?)
                    }
                    _ => Arc::new(array),
                }
            }
            (Values::Boolean(bits), _) => Arc::new(BooleanArray::new(bits.finish(), nulls)),
            (Values::Bytes(v), column_type) => {
                let width = column_type.width().unwrap_or_default() as i32;
                Arc::new(FixedSizeBinaryArray::try_new(width, v.finish(), nulls)?)
            }
            (Values::Variable(v), column_type) => v.finish(nulls, matches!(column_type, ColumnType::Utf8))?,
        })
    }
}

/// A store's values as those of a type that is as wide.
fn array<V: ArrowNativeType, T: ArrowPrimitiveType>(
    store: &mut Store<V>,
    nulls: Option<NullBuffer>,
) -> Result<PrimitiveArray<T>, ArrowError> {
    let values = store.len();
    Ok(PrimitiveArray::<T>::try_new(ScalarBuffer::new(store.finish(), 0, values), nulls)?)
}

fn primitive<V: ArrowNativeType, T: ArrowPrimitiveType>(
    store: &mut Store<V>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    Ok(Arc::new(array::<V, T>(store, nulls)?))
}

fn timestamp<T: ArrowTimestampType>(
    store: &mut Store<u64>,
    nulls: Option<NullBuffer>,
    zone: Option<Arc<str>>,
) -> Result<ArrayRef, ArrowError> {
    Ok(Arc::new(array::<u64, T>(store, nulls)?.with_timezone_opt(zone)))
}
