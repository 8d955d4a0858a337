//! Schemas to and from Arrow's.

use std::sync::Arc;

use arrow_schema::{DataType, Field};

use super::ArrowError;
use crate::projection::Projection;
use crate::schema::{Column, ColumnType, Schema, TimeUnit};

/// A table's schema as Arrow's; the key's names stand in the metadata entry `overside.key`,
/// comma-separated.
pub fn to_arrow(schema: &Schema) -> arrow_schema::Schema {
    let key: Vec<&str> = schema.key().iter().map(|&k| schema.columns()[k].name.as_str()).collect();
    let fields: Vec<Field> = schema.columns().iter().map(field).collect();
    arrow_schema::Schema::new(fields)
        .with_metadata(std::collections::HashMap::from([(KEY_METADATA.to_owned(), key.join(","))]))
}

/// The schema of the batches that a scan with this projection yields.
pub fn projected_to_arrow(schema: &Schema, projection: &Projection) -> arrow_schema::Schema {
    let fields: Vec<Field> = projection.columns().iter().map(|&column| field(&schema.columns()[column])).collect();
    arrow_schema::Schema::new(fields)
}

/// A table's schema from Arrow's, with the named columns as its key. Key columns become not
/// nullable, whatever the file's schema says: a null in them is refused when rows are loaded.
///
/// # Errors
/// A type that no table column can hold, or what breaks a schema's limits.
pub fn from_arrow(schema: &arrow_schema::Schema, key: &[&str]) -> Result<Schema, ArrowError> {
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let column_type = column_type(field)?;
        let nullable = field.is_nullable() && !key.contains(&field.name().as_str());
        columns.push(Column { name: field.name().clone(), column_type, nullable });
    }
    Ok(Schema::with_key(columns, key)?)
}

fn field(column: &Column) -> Field {
    Field::new(&column.name, data_type(&column.column_type), column.nullable)
}

/// Arrow's type of a column.
pub(super) fn data_type(column_type: &ColumnType) -> DataType {
    match column_type {
        ColumnType::Int8 => DataType::Int8,
        ColumnType::Int16 => DataType::Int16,
        ColumnType::Int32 => DataType::Int32,
        ColumnType::Int64 => DataType::Int64,
        ColumnType::UInt8 => DataType::UInt8,
        ColumnType::UInt16 => DataType::UInt16,
        ColumnType::UInt32 => DataType::UInt32,
        ColumnType::UInt64 => DataType::UInt64,
        ColumnType::Float32 => DataType::Float32,
        ColumnType::Float64 => DataType::Float64,
        ColumnType::Decimal128 { precision, scale } => DataType::Decimal128(*precision, *scale),
        ColumnType::Date32 => DataType::Date32,
        ColumnType::Timestamp { unit, zone } => DataType::Timestamp(time_unit(*unit), zone.clone()),
        ColumnType::Boolean => DataType::Boolean,
        ColumnType::FixedBinary(bytes) => DataType::FixedSizeBinary(i32::from(*bytes)),
        ColumnType::Utf8 => DataType::Utf8,
        ColumnType::Binary => DataType::Binary,
    }
}

fn column_type(field: &Field) -> Result<ColumnType, ArrowError> {
    let unsupported =
        |hint| ArrowError::Unsupported { column: field.name().clone(), found: field.data_type().to_string(), hint };
    Ok(match field.data_type() {
        DataType::Int8 => ColumnType::Int8,
        DataType::Int16 => ColumnType::Int16,
        DataType::Int32 => ColumnType::Int32,
        DataType::Int64 => ColumnType::Int64,
        DataType::UInt8 => ColumnType::UInt8,
        DataType::UInt16 => ColumnType::UInt16,
        DataType::UInt32 => ColumnType::UInt32,
        DataType::UInt64 => ColumnType::UInt64,
        DataType::Float32 => ColumnType::Float32,
        DataType::Float64 => ColumnType::Float64,
        DataType::Decimal128(precision, scale) => ColumnType::Decimal128 { precision: *precision, scale: *scale },
        DataType::Date32 => ColumnType::Date32,
        DataType::Timestamp(unit, zone) => {
            let unit = match unit {
                arrow_schema::TimeUnit::Second => TimeUnit::Second,
                arrow_schema::TimeUnit::Millisecond => TimeUnit::Millisecond,
                arrow_schema::TimeUnit::Microsecond => TimeUnit::Microsecond,
                arrow_schema::TimeUnit::Nanosecond => TimeUnit::Nanosecond,
            };
            ColumnType::Timestamp { unit, zone: zone.as_ref().map(|zone| Arc::from(&**zone)) }
        }
        DataType::Boolean => ColumnType::Boolean,
        DataType::FixedSizeBinary(bytes) => {
            let bytes = u16::try_from(*bytes).map_err(|_| unsupported(" to variable-length binary"))?;
            ColumnType::FixedBinary(bytes)
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => ColumnType::Utf8,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => ColumnType::Binary,
        DataType::Date64 => return Err(unsupported(" to date32 or a timestamp")),
        DataType::Decimal32(..) | DataType::Decimal64(..) => return Err(unsupported(" to decimal128")),
        DataType::Dictionary(..) => return Err(unsupported(" to the dictionary's value type")),
        _ => return Err(unsupported(", or leave it out")),
    })
}

fn time_unit(unit: TimeUnit) -> arrow_schema::TimeUnit {
    match unit {
        TimeUnit::Second => arrow_schema::TimeUnit::Second,
        TimeUnit::Millisecond => arrow_schema::TimeUnit::Millisecond,
        TimeUnit::Microsecond => arrow_schema::TimeUnit::Microsecond,
        TimeUnit::Nanosecond => arrow_schema::TimeUnit::Nanosecond,
    }
}

const KEY_METADATA: &str = "overside.key";
