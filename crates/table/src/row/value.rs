//! One value, for the paths where a column's type is known at run time only.

use std::fmt;

use crate::schema::ColumnType;

/// A value that borrows its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the column types")]
pub enum ValueRef<'a> {
    Null,
    Int8(i8),
    Int16(i16),
    Int32(i32),
    Int64(i64),
    UInt8(u8),
    UInt16(u16),
    UInt32(u32),
    UInt64(u64),
    Float32(f32),
    Float64(f64),
    /// Unscaled.
    Decimal128(i128),
    Date32(i32),
    /// In the column's unit.
    Timestamp(i64),
    Boolean(bool),
    FixedBinary(&'a [u8]),
    Utf8(&'a str),
    Binary(&'a [u8]),
}

impl ValueRef<'_> {
    /// Whether a column of this type can hold the value; null fits every type.
    pub fn fits(&self, column_type: &ColumnType) -> bool {
        match (self, column_type) {
            (ValueRef::Null, _)
            | (ValueRef::Int8(_), ColumnType::Int8)
            | (ValueRef::Int16(_), ColumnType::Int16)
            | (ValueRef::Int32(_), ColumnType::Int32)
            | (ValueRef::Int64(_), ColumnType::Int64)
            | (ValueRef::UInt8(_), ColumnType::UInt8)
            | (ValueRef::UInt16(_), ColumnType::UInt16)
            | (ValueRef::UInt32(_), ColumnType::UInt32)
            | (ValueRef::UInt64(_), ColumnType::UInt64)
            | (ValueRef::Float32(_), ColumnType::Float32)
            | (ValueRef::Float64(_), ColumnType::Float64)
            | (ValueRef::Decimal128(_), ColumnType::Decimal128 { .. })
            | (ValueRef::Date32(_), ColumnType::Date32)
            | (ValueRef::Timestamp(_), ColumnType::Timestamp { .. })
            | (ValueRef::Boolean(_), ColumnType::Boolean)
            | (ValueRef::Utf8(_), ColumnType::Utf8)
            | (ValueRef::Binary(_), ColumnType::Binary) => true,
            (ValueRef::FixedBinary(bytes), ColumnType::FixedBinary(width)) => bytes.len() == usize::from(*width),
            _ => false,
        }
    }

    /// The same value with its own bytes.
    pub fn to_owned(&self) -> Value {
        match *self {
            ValueRef::Null => Value::Null,
            ValueRef::Int8(v) => Value::Int8(v),
            ValueRef::Int16(v) => Value::Int16(v),
            ValueRef::Int32(v) => Value::Int32(v),
            ValueRef::Int64(v) => Value::Int64(v),
            ValueRef::UInt8(v) => Value::UInt8(v),
            ValueRef::UInt16(v) => Value::UInt16(v),
            ValueRef::UInt32(v) => Value::UInt32(v),
            ValueRef::UInt64(v) => Value::UInt64(v),
            ValueRef::Float32(v) => Value::Float32(v),
            ValueRef::Float64(v) => Value::Float64(v),
            ValueRef::Decimal128(v) => Value::Decimal128(v),
            ValueRef::Date32(v) => Value::Date32(v),
            ValueRef::Timestamp(v) => Value::Timestamp(v),
            ValueRef::Boolean(v) => Value::Boolean(v),
            ValueRef::FixedBinary(v) => Value::FixedBinary(v.to_vec()),
            ValueRef::Utf8(v) => Value::Utf8(v.to_owned()),
            ValueRef::Binary(v) => Value::Binary(v.to_vec()),
        }
    }
}

/// Numbers as numbers (decimals unscaled, dates and timestamps in ticks), text as it is, bytes in
/// hexadecimal.
impl fmt::Display for ValueRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueRef::Null => f.write_str("null"),
            ValueRef::Int8(v) => v.fmt(f),
            ValueRef::Int16(v) => v.fmt(f),
            ValueRef::Int32(v) | ValueRef::Date32(v) => v.fmt(f),
            ValueRef::Int64(v) | ValueRef::Timestamp(v) => v.fmt(f),
            ValueRef::UInt8(v) => v.fmt(f),
            ValueRef::UInt16(v) => v.fmt(f),
            ValueRef::UInt32(v) => v.fmt(f),
            ValueRef::UInt64(v) => v.fmt(f),
            ValueRef::Float32(v) => v.fmt(f),
            ValueRef::Float64(v) => v.fmt(f),
            ValueRef::Decimal128(v) => v.fmt(f),
            ValueRef::Boolean(v) => v.fmt(f),
            ValueRef::Utf8(v) => f.write_str(v),
            ValueRef::FixedBinary(v) | ValueRef::Binary(v) => v.iter().try_for_each(|b| write!(f, "{b:02x}")),
        }
    }
}

/// A value that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the column types")]
pub enum Value {
    Null,
    Int8(i8),
    Int16(i16),
    Int32(i32),
    Int64(i64),
    UInt8(u8),
    UInt16(u16),
    UInt32(u32),
    UInt64(u64),
    Float32(f32),
    Float64(f64),
    /// Unscaled.
    Decimal128(i128),
    Date32(i32),
    /// In the column's unit.
    Timestamp(i64),
    Boolean(bool),
    FixedBinary(Vec<u8>),
    Utf8(String),
    Binary(Vec<u8>),
}

impl Value {
    /// The same value, borrowed.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Null => ValueRef::Null,
            Value::Int8(v) => ValueRef::Int8(*v),
            Value::Int16(v) => ValueRef::Int16(*v),
            Value::Int32(v) => ValueRef::Int32(*v),
            Value::Int64(v) => ValueRef::Int64(*v),
            Value::UInt8(v) => ValueRef::UInt8(*v),
            Value::UInt16(v) => ValueRef::UInt16(*v),
            Value::UInt32(v) => ValueRef::UInt32(*v),
            Value::UInt64(v) => ValueRef::UInt64(*v),
            Value::Float32(v) => ValueRef::Float32(*v),
            Value::Float64(v) => ValueRef::Float64(*v),
            Value::Decimal128(v) => ValueRef::Decimal128(*v),
            Value::Date32(v) => ValueRef::Date32(*v),
            Value::Timestamp(v) => ValueRef::Timestamp(*v),
            Value::Boolean(v) => ValueRef::Boolean(*v),
            Value::FixedBinary(v) => ValueRef::FixedBinary(v),
            Value::Utf8(v) => ValueRef::Utf8(v),
            Value::Binary(v) => ValueRef::Binary(v),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}
