//! Parquet's types as columns' types, and back.
//!
//! Two things a column's type says have no place in Parquet: timestamps in seconds are written
//! in milliseconds, and a time zone other than UTC becomes UTC (the instants stay the same).

use super::super::types::check_type;
use anyhow::{Result, bail};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit as ParquetUnit, Type};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type as SchemaType, TypePtr};
use std::sync::Arc;

/// The columns of a Parquet file.
///
/// # Errors
/// A nested column, or one of a type no table can hold.
pub fn arrow_schema(descriptor: &SchemaDescriptor) -> Result<Schema> {
    let mut fields = Vec::with_capacity(descriptor.num_columns());
    for column in descriptor.columns() {
        let name = column.name();
        if column.path().parts().len() != 1 || column.max_rep_level() > 0 {
            bail!("column `{}` is nested; flatten it before loading", column.path().string());
        }
        let ty = data_type(column)?;
        check_type(name, &ty)?;
        fields.push(Field::new(name, ty, column.max_def_level() > 0));
    }
    Ok(Schema::new(fields))
}

/// The Parquet schema that columns are written with.
///
/// # Errors
/// A column of a type no table can hold.
pub fn parquet_schema(schema: &Schema) -> Result<TypePtr> {
    let mut fields = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        fields.push(Arc::new(parquet_column(field)?));
    }
    Ok(Arc::new(SchemaType::group_type_builder("schema").with_fields(fields).build()?))
}

/// Bytes of a decimal as Parquet stores it: 4 and 8 are its integers, more is a byte array.
pub fn decimal_bytes(precision: u8) -> i32 {
    match precision {
        0..=9 => 4,
        10..=18 => 8,
        // The least width whose greatest signed number has this many digits.
        precision => (f64::from(precision) * 10f64.log2() / 8.0 + 1.0 / 8.0).ceil() as i32,
    }
}

fn data_type(column: &ColumnDescriptor) -> Result<DataType> {
    let name = column.name();
    let unsupported = |what: &str, advice: &str| -> Result<DataType> {
        bail!("column `{name}` has Parquet type {what}, which tables do not have; {advice}")
    };
    match column.logical_type_ref() {
        Some(LogicalType::Time(_)) => return unsupported("TIME", "convert it to an integer"),
        Some(LogicalType::Float16) => return unsupported("FLOAT16", "convert it to float"),
        Some(LogicalType::Unknown) => {
            return unsupported("null", "it holds only nulls: leave it out, or give it a type");
        }
        Some(LogicalType::Variant(_) | LogicalType::Geometry(_) | LogicalType::Geography(_)) => {
            return unsupported("variant or geometry", "convert it to text or bytes");
        }
        _ => {}
    }
    Ok(match column.physical_type() {
        Type::BOOLEAN => DataType::Boolean,
        Type::FLOAT => DataType::Float32,
        Type::DOUBLE => DataType::Float64,
        Type::INT96 => DataType::Timestamp(TimeUnit::Nanosecond, None),
        Type::INT32 => int32(column).unwrap_or(DataType::Int32),
        Type::INT64 => int64(column).unwrap_or(DataType::Int64),
        Type::BYTE_ARRAY => match (column.logical_type_ref(), column.converted_type()) {
            _ if is_decimal(column) => decimal(column)?,
            (Some(LogicalType::String | LogicalType::Enum | LogicalType::Json), _)
            | (_, ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON) => DataType::Utf8,
            _ => DataType::Binary,
        },
        Type::FIXED_LEN_BYTE_ARRAY => match column.converted_type() {
            _ if is_decimal(column) => decimal(column)?,
            ConvertedType::INTERVAL => return unsupported("INTERVAL", "convert it to an integer"),
            _ => DataType::FixedSizeBinary(column.type_length()),
        },
    })
}

fn int32(column: &ColumnDescriptor) -> Option<DataType> {
    if is_decimal(column) {
        return decimal(column).ok();
    }
    if let Some(LogicalType::Date) = column.logical_type_ref() {
        return Some(DataType::Date32);
    }
    if let Some(LogicalType::Integer(int)) = column.logical_type_ref() {
        return Some(match (int.bit_width, int.is_signed) {
            (8, true) => DataType::Int8,
            (16, true) => DataType::Int16,
            (8, false) => DataType::UInt8,
            (16, false) => DataType::UInt16,
            (_, false) => DataType::UInt32,
            _ => DataType::Int32,
        });
    }
    Some(match column.converted_type() {
        ConvertedType::DATE => DataType::Date32,
        ConvertedType::INT_8 => DataType::Int8,
        ConvertedType::INT_16 => DataType::Int16,
        ConvertedType::UINT_8 => DataType::UInt8,
        ConvertedType::UINT_16 => DataType::UInt16,
        ConvertedType::UINT_32 => DataType::UInt32,
        ConvertedType::TIME_MILLIS => DataType::Time32(TimeUnit::Millisecond),
        _ => return None,
    })
}

fn int64(column: &ColumnDescriptor) -> Option<DataType> {
    if is_decimal(column) {
        return decimal(column).ok();
    }
    let utc = |adjusted: bool| adjusted.then(|| Arc::from("UTC"));
    match column.logical_type_ref() {
        Some(LogicalType::Timestamp(timestamp)) => {
            let unit = match timestamp.unit {
                ParquetUnit::MILLIS => TimeUnit::Millisecond,
                ParquetUnit::MICROS => TimeUnit::Microsecond,
                ParquetUnit::NANOS => TimeUnit::Nanosecond,
            };
            return Some(DataType::Timestamp(unit, utc(timestamp.is_adjusted_to_u_t_c)));
        }
        Some(LogicalType::Integer(int)) if !int.is_signed => return Some(DataType::UInt64),
        _ => {}
    }
    Some(match column.converted_type() {
        ConvertedType::TIMESTAMP_MILLIS => DataType::Timestamp(TimeUnit::Millisecond, utc(true)),
        ConvertedType::TIMESTAMP_MICROS => DataType::Timestamp(TimeUnit::Microsecond, utc(true)),
        ConvertedType::TIME_MICROS => DataType::Time64(TimeUnit::Microsecond),
        ConvertedType::UINT_64 => DataType::UInt64,
        _ => return None,
    })
}

fn is_decimal(column: &ColumnDescriptor) -> bool {
    matches!(column.logical_type_ref(), Some(LogicalType::Decimal(_)))
        || column.converted_type() == ConvertedType::DECIMAL
}

fn decimal(column: &ColumnDescriptor) -> Result<DataType> {
    let (precision, scale) = match column.logical_type_ref() {
        Some(LogicalType::Decimal(decimal)) => (decimal.precision, decimal.scale),
        _ => (column.type_precision(), column.type_scale()),
    };
    match (u8::try_from(precision), i8::try_from(scale)) {
        (Ok(precision @ 1..=38), Ok(scale)) if (0..=precision as i8).contains(&scale) => {
            Ok(DataType::Decimal128(precision, scale))
        }
        _ => bail!(
            "column `{}` is decimal({precision},{scale}); tables have up to 38 digits; \
             convert it before loading",
            column.name()
        ),
    }
}

fn parquet_column(field: &Field) -> Result<SchemaType> {
    let (physical, logical, length) = match field.data_type() {
        DataType::Boolean => (Type::BOOLEAN, None, 0),
        DataType::Int8 => (Type::INT32, Some(LogicalType::integer(8, true)), 0),
        DataType::Int16 => (Type::INT32, Some(LogicalType::integer(16, true)), 0),
        DataType::Int32 => (Type::INT32, None, 0),
        DataType::Int64 => (Type::INT64, None, 0),
        DataType::UInt8 => (Type::INT32, Some(LogicalType::integer(8, false)), 0),
        DataType::UInt16 => (Type::INT32, Some(LogicalType::integer(16, false)), 0),
        DataType::UInt32 => (Type::INT32, Some(LogicalType::integer(32, false)), 0),
        DataType::UInt64 => (Type::INT64, Some(LogicalType::integer(64, false)), 0),
        DataType::Float32 => (Type::FLOAT, None, 0),
        DataType::Float64 => (Type::DOUBLE, None, 0),
        DataType::Date32 => (Type::INT32, Some(LogicalType::Date), 0),
        DataType::Timestamp(unit, zone) => {
            let unit = match unit {
                TimeUnit::Second | TimeUnit::Millisecond => ParquetUnit::MILLIS,
                TimeUnit::Microsecond => ParquetUnit::MICROS,
                TimeUnit::Nanosecond => ParquetUnit::NANOS,
            };
            (Type::INT64, Some(LogicalType::timestamp(zone.is_some(), unit)), 0)
        }
        DataType::Decimal128(precision, scale) => {
            let logical = LogicalType::decimal((*scale).into(), (*precision).into());
            match decimal_bytes(*precision) {
                4 => (Type::INT32, Some(logical), 0),
                8 => (Type::INT64, Some(logical), 0),
                bytes => (Type::FIXED_LEN_BYTE_ARRAY, Some(logical), bytes),
            }
        }
        DataType::Utf8 => (Type::BYTE_ARRAY, Some(LogicalType::String), 0),
        DataType::Binary => (Type::BYTE_ARRAY, None, 0),
        DataType::FixedSizeBinary(bytes) => (Type::FIXED_LEN_BYTE_ARRAY, None, *bytes),
        other => bail!("column `{}`: {other} cannot be written to Parquet", field.name()),
    };
    let repetition = if field.is_nullable() { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    let mut column = SchemaType::primitive_type_builder(field.name(), physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .with_length(length);
    if let DataType::Decimal128(precision, scale) = field.data_type() {
        column = column.with_precision((*precision).into()).with_scale((*scale).into());
    }
    Ok(column.build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decimals_bytes_hold_its_greatest_number_and_one_byte_less_does_not() {
        for precision in 19..=38u8 {
            let bytes = decimal_bytes(precision);
            let greatest = |bytes: i32| (1i128 << (bytes * 8 - 2)) - 1 + (1i128 << (bytes * 8 - 2));
            let most = 10i128.pow(precision.into()) - 1;
            assert!(most <= greatest(bytes), "{precision}");
            assert!(most > greatest(bytes - 1), "{precision}");
        }
    }
}
