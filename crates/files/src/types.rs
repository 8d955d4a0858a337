//! Which column types tables have, and what they are called on the command line.
//!
//! One grammar serves `--schema`, error messages and the JSON output:
//! `int8` … `uint64`, `float32`, `float64`, `decimal(precision,scale)`, `date`,
//! `timestamp[unit]`, `timestamp[unit,zone]`, `boolean`, `utf8`, `binary`, `fixed(bytes)`.

use crate::calendar;
use crate::limits::{COLUMNS_MAX, FIXED_BINARY_MAX};
use anyhow::{Context, Result, bail};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use std::collections::HashSet;

/// The name of a type as the command line writes it.
pub fn type_name(ty: &DataType) -> String {
    match ty {
        DataType::Int8 => "int8".into(),
        DataType::Int16 => "int16".into(),
        DataType::Int32 => "int32".into(),
        DataType::Int64 => "int64".into(),
        DataType::UInt8 => "uint8".into(),
        DataType::UInt16 => "uint16".into(),
        DataType::UInt32 => "uint32".into(),
        DataType::UInt64 => "uint64".into(),
        DataType::Float32 => "float32".into(),
        DataType::Float64 => "float64".into(),
        DataType::Decimal128(precision, scale) => format!("decimal({precision},{scale})"),
        DataType::Date32 => "date".into(),
        DataType::Timestamp(unit, None) => format!("timestamp[{}]", unit_name(unit)),
        DataType::Timestamp(unit, Some(zone)) => format!("timestamp[{},{zone}]", unit_name(unit)),
        DataType::Boolean => "boolean".into(),
        DataType::Utf8 => "utf8".into(),
        DataType::Binary => "binary".into(),
        DataType::FixedSizeBinary(bytes) => format!("fixed({bytes})"),
        other => format!("{other}"),
    }
}

/// Parses a type's name.
///
/// # Errors
/// The text names no type that a table can have; the message lists those there are.
pub fn parse_type(text: &str) -> Result<DataType> {
    let text = text.trim();
    let (name, arguments) = match text.find(['(', '[']) {
        Some(at) => {
            let inner = text[at + 1..]
                .strip_suffix([')', ']'])
                .with_context(|| format!("type `{text}` lacks its closing bracket"))?;
            (&text[..at], inner.split(',').map(str::trim).collect())
        }
        None => (text, Vec::new()),
    };
    let ty = match (name.to_ascii_lowercase().as_str(), arguments.as_slice()) {
        ("int8", []) => DataType::Int8,
        ("int16", []) => DataType::Int16,
        ("int32" | "int", []) => DataType::Int32,
        ("int64" | "bigint", []) => DataType::Int64,
        ("uint8", []) => DataType::UInt8,
        ("uint16", []) => DataType::UInt16,
        ("uint32", []) => DataType::UInt32,
        ("uint64", []) => DataType::UInt64,
        ("float32" | "float", []) => DataType::Float32,
        ("float64" | "double", []) => DataType::Float64,
        ("boolean" | "bool", []) => DataType::Boolean,
        ("date" | "date32", []) => DataType::Date32,
        ("utf8" | "string" | "text", []) => DataType::Utf8,
        ("binary" | "bytes", []) => DataType::Binary,
        ("decimal", [precision, scale]) => decimal(precision, scale)?,
        ("fixed", [bytes]) => match bytes.parse::<i32>() {
            Ok(bytes) if bytes > 0 => DataType::FixedSizeBinary(bytes),
            _ => bail!("`{text}`: fixed(N) takes a length in bytes, at least 1"),
        },
        ("timestamp", []) => DataType::Timestamp(TimeUnit::Microsecond, None),
        ("timestamp", [unit]) => DataType::Timestamp(parse_unit(unit)?, None),
        ("timestamp", [unit, zone]) => DataType::Timestamp(parse_unit(unit)?, Some(parse_zone(zone)?.into())),
        _ => bail!("`{text}` is no column type; types are {TYPES}"),
    };
    Ok(ty)
}

/// Parses `NAME:TYPE,NAME:TYPE`, the argument of `--schema`.
///
/// # Errors
/// An entry without a colon, without a known type, or a column named twice.
pub fn parse_columns(text: &str) -> Result<Vec<Field>> {
    let mut columns: Vec<Field> = Vec::new();
    for entry in split_outside_brackets(text) {
        // A zone has a colon of its own.
        let outside = if entry.trim_end().ends_with([']', ')']) { entry.rfind(['[', '(']) } else { None };
        let colon = entry[..outside.unwrap_or(entry.len())].rfind(':');
        let colon = colon.with_context(|| format!("`{entry}`: --schema takes COLUMN:TYPE,COLUMN:TYPE"))?;
        let (name, ty) = (&entry[..colon], &entry[colon + 1..]);
        let name = name.trim();
        if columns.iter().any(|known| known.name() == name) {
            bail!("--schema names column `{name}` twice");
        }
        columns.push(Field::new(name, parse_type(ty)?, true));
    }
    Ok(columns)
}

/// Refuses a schema with a column no table can hold.
///
/// # Errors
/// The first such column, its type, and what to do; or two columns of one name.
pub fn check_schema(schema: &Schema) -> Result<()> {
    check_columns(schema.fields().len())?;
    let mut names = HashSet::with_capacity(schema.fields().len());
    for field in schema.fields() {
        if !names.insert(field.name()) {
            bail!("two columns are called `{}`; rename one of them", field.name());
        }
        check_type(field.name(), field.data_type())?;
    }
    Ok(())
}

/// Refuses as many columns as no table can have: before anything is done for each of them.
///
/// # Errors
/// Says how many a table may have.
pub fn check_columns(count: usize) -> Result<()> {
    match count {
        0 => bail!("the file has no columns; write it anew with one at least"),
        1..=COLUMNS_MAX => Ok(()),
        _ => bail!("the file has {count} columns, a table at most {COLUMNS_MAX}; leave some out, or split it"),
    }
}

/// Refuses a type no table can hold.
///
/// # Errors
/// Names the column, the type and what to do.
pub fn check_type(column: &str, ty: &DataType) -> Result<()> {
    let advice = match ty {
        DataType::Decimal128(..)
        | DataType::Date32
        | DataType::Timestamp(..)
        | DataType::Boolean
        | DataType::Utf8
        | DataType::Binary
        | DataType::Float32
        | DataType::Float64 => return Ok(()),
        DataType::FixedSizeBinary(bytes) if (1..=FIXED_BYTES_MAX).contains(bytes) => return Ok(()),
        DataType::FixedSizeBinary(bytes) if *bytes > 0 => {
            bail!(
                "column `{column}` holds {bytes} bytes in each row, a fixed column at most {FIXED_BYTES_MAX}; make it binary"
            )
        }
        ty if ty.is_integer() => return Ok(()),
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => {
            "store its elements as rows of a table of their own, or as text"
        }
        DataType::Struct(_) | DataType::Map(..) | DataType::Union(..) => {
            "flatten it into a column for each member before loading"
        }
        DataType::Float16 => "convert it to float32 before loading",
        DataType::Date64 => "convert it to date32 or timestamp[ms] before loading",
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal256(..) => {
            "convert it to decimal128 before loading"
        }
        DataType::Time32(_) | DataType::Time64(_) | DataType::Duration(_) => "convert it to int64 before loading",
        DataType::Null => "it holds only nulls: leave it out, or give it a type",
        _ => "convert it to one of the types below before loading",
    };
    bail!("column `{column}` has type {ty}, which tables do not have; {advice} (types: {TYPES})")
}

/// The short name of a timestamp's unit.
pub fn unit_name(unit: &TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

fn parse_unit(text: &str) -> Result<TimeUnit> {
    Ok(match text {
        "s" => TimeUnit::Second,
        "ms" => TimeUnit::Millisecond,
        "us" => TimeUnit::Microsecond,
        "ns" => TimeUnit::Nanosecond,
        _ => bail!("`{text}` is no timestamp unit; units are s, ms, us, ns"),
    })
}

/// A distance to UTC is checked. Whether a name is a zone depends on the reader's own tables.
fn parse_zone(text: &str) -> Result<&str> {
    let is_offset = text.starts_with(['+', '-']);
    if text.is_empty() || is_offset && calendar::offset_seconds(text).is_none() {
        bail!("`{text}` is no time zone; write an offset as +02:00, or a name as Europe/Berlin");
    }
    Ok(text)
}

fn decimal(precision: &str, scale: &str) -> Result<DataType> {
    match (precision.parse::<u8>(), scale.parse::<i8>()) {
        (Ok(precision @ 1..=38), Ok(scale)) if scale >= 0 && scale as u8 <= precision => {
            Ok(DataType::Decimal128(precision, scale))
        }
        _ => bail!("decimal({precision},{scale}): precision is 1 to 38, scale 0 to precision"),
    }
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

const TYPES: &str = "int8 to int64, uint8 to uint64, float32, float64, decimal(P,S), date, \
     timestamp[s|ms|us|ns] with or without a zone, boolean, utf8, binary, fixed(N)";

/// Bytes of a `fixed` column.
const FIXED_BYTES_MAX: i32 = FIXED_BINARY_MAX as i32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_name_parses_back() {
        for text in [
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "float32",
            "float64",
            "decimal(15,2)",
            "date",
            "timestamp[s]",
            "timestamp[ms]",
            "timestamp[us]",
            "timestamp[ns]",
            "timestamp[us,Europe/Berlin]",
            "timestamp[us,-09:30]",
            "boolean",
            "utf8",
            "binary",
            "fixed(16)",
        ] {
            assert_eq!(type_name(&parse_type(text).unwrap()), text);
        }
    }

    #[test]
    fn a_schema_with_commas_inside_brackets_splits_between_columns_only() {
        let columns = parse_columns("a:decimal(15,2),b:timestamp[us,+02:00],c:utf8,d:e:int8").unwrap();
        let names: Vec<_> = columns.iter().map(|column| column.name().as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d:e"]);
        assert_eq!(columns[1].data_type(), &DataType::Timestamp(TimeUnit::Microsecond, Some("+02:00".into())));
        assert_eq!(columns[0].data_type(), &DataType::Decimal128(15, 2));
        assert!(parse_columns("a:int8,a:int8").is_err());
        assert!(parse_columns("a").is_err());
        assert!(parse_type("decimal(39,2)").is_err());
        assert!(parse_type("fixed(0)").is_err());
        for zone in ["", "+99:00", "+02:60", "-2", "+02:00:00"] {
            let said = parse_type(&format!("timestamp[us,{zone}]")).unwrap_err().to_string();
            assert!(said.contains("+02:00") && said.contains("Europe/Berlin"), "{said}");
        }
        assert!(parse_type("varchar").unwrap_err().to_string().contains("utf8"));
    }

    #[test]
    fn a_refusal_names_the_column_its_type_and_what_to_do() {
        let nested = DataType::List(Field::new("item", DataType::Int8, true).into());
        let schema = Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("tags", nested, true)]);
        let text = check_schema(&schema).unwrap_err().to_string();
        assert!(text.contains("`tags`") && text.contains("List") && text.contains("rows"), "{text}");
    }
}
