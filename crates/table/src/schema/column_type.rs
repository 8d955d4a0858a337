//! The types a column can have.

use std::fmt;
use std::sync::Arc;

use super::{FIXED_BINARY_MAX, SchemaError, ZONE_BYTES_MAX};

/// What a column's values are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the integers' and floats' names say it")]
pub enum ColumnType {
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float32,
    Float64,
    /// A 128-bit integer read as `value / 10^scale`; precision 1 to 38 digits, scale -38 to 38 and
    /// not above it.
    Decimal128 {
        precision: u8,
        scale: i8,
    },
    /// Days since 1970-01-01.
    Date32,
    /// Ticks since 1970-01-01T00:00:00: in UTC when a zone is named (to show it in), else in no
    /// zone at all.
    Timestamp {
        unit: TimeUnit,
        zone: Option<Arc<str>>,
    },
    Boolean,
    /// Exactly this many bytes, 1 to [`FIXED_BINARY_MAX`].
    FixedBinary(u16),
    /// Text, any length.
    Utf8,
    /// Bytes, any length.
    Binary,
}

impl ColumnType {
    /// Bytes of a value in a row's prefix; none for the types of variable length, whose values lie
    /// in the rest.
    pub fn width(&self) -> Option<usize> {
        Some(match self {
            ColumnType::Boolean | ColumnType::Int8 | ColumnType::UInt8 => 1,
            ColumnType::Int16 | ColumnType::UInt16 => 2,
            ColumnType::Int32 | ColumnType::UInt32 | ColumnType::Float32 | ColumnType::Date32 => 4,
            ColumnType::Int64 | ColumnType::UInt64 | ColumnType::Float64 | ColumnType::Timestamp { .. } => 8,
            ColumnType::Decimal128 { .. } => 16,
            ColumnType::FixedBinary(bytes) => usize::from(*bytes),
            ColumnType::Utf8 | ColumnType::Binary => return None,
        })
    }

    pub(super) fn check(&self, name: &str) -> Result<(), SchemaError> {
        let why = match self {
            ColumnType::Decimal128 { precision, scale } => {
                let digits = i16::from(*precision);
                let scale = i16::from(*scale);
                if (1..=38).contains(&digits) && (-38..=digits).contains(&scale) {
                    return Ok(());
                }
                "a decimal has 1 to 38 digits and a scale from -38 to its digits"
            }
            ColumnType::FixedBinary(bytes) if (1..=FIXED_BINARY_MAX).contains(bytes) => return Ok(()),
            ColumnType::FixedBinary(_) => "a fixed-size value has 1 to 4096 bytes",
            ColumnType::Timestamp { zone: Some(zone), .. } if zone.is_empty() || zone.len() > ZONE_BYTES_MAX => {
                "a time zone's name has 1 to 64 bytes"
            }
            _ => return Ok(()),
        };
        Err(SchemaError::Type { name: name.to_owned(), why })
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColumnType::Int8 => f.write_str("int8"),
            ColumnType::Int16 => f.write_str("int16"),
            ColumnType::Int32 => f.write_str("int32"),
            ColumnType::Int64 => f.write_str("int64"),
            ColumnType::UInt8 => f.write_str("uint8"),
            ColumnType::UInt16 => f.write_str("uint16"),
            ColumnType::UInt32 => f.write_str("uint32"),
            ColumnType::UInt64 => f.write_str("uint64"),
            ColumnType::Float32 => f.write_str("float32"),
            ColumnType::Float64 => f.write_str("float64"),
            ColumnType::Decimal128 { precision, scale } => write!(f, "decimal({precision},{scale})"),
            ColumnType::Date32 => f.write_str("date"),
            ColumnType::Timestamp { unit, zone: None } => write!(f, "timestamp({unit})"),
            ColumnType::Timestamp { unit, zone: Some(zone) } => write!(f, "timestamp({unit},{zone})"),
            ColumnType::Boolean => f.write_str("boolean"),
            ColumnType::FixedBinary(bytes) => write!(f, "binary({bytes})"),
            ColumnType::Utf8 => f.write_str("utf8"),
            ColumnType::Binary => f.write_str("binary"),
        }
    }
}

/// The tick of a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum TimeUnit {
    Second,
    Millisecond,
    Microsecond,
    Nanosecond,
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TimeUnit::Second => "s",
            TimeUnit::Millisecond => "ms",
            TimeUnit::Microsecond => "us",
            TimeUnit::Nanosecond => "ns",
        })
    }
}
