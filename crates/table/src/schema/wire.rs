//! A schema as bytes (docs/reference/wire.md, Schemas): bounded, versioned, read by a total parser.
//!
//! `version u8 | columns u16 | key columns u8 | column… | key column u16…`, little-endian; a column
//! is `type u8 | nullable u8 | name length u8 | name | parameters of the type`.
//!
//! # Version 1
//!
//! At most 1,024 columns, 16 of them in the
//! key, names of 1 to 255 bytes (UTF-8, no NUL), 4,096 bytes of null bits and fixed-width
//! columns a row. The bytes hold the schema and nothing more; a schema has one encoding.
//!
//! ```text
//! version u8 = 1 | columns u16 | key columns u8 | column … | index of a key column u16 …
//! column:  type u8 | nullable u8 (0, 1) | length of name u8 | name | parameters of the type
//! ```
//!
//! | type | parameters | bytes in a row's prefix |
//! |---|---|---|
//! | 0 Int8, 1 Int16, 2 Int32, 3 Int64, 4 UInt8, 5 UInt16, 6 UInt32, 7 UInt64 | | 1, 2, 4, 8 |
//! | 8 Float32, 9 Float64 | | 4, 8 |
//! | 10 Decimal128 | precision u8 (1 to 38), scale i8 (-38 to precision) | 16 |
//! | 11 Date32 (days since 1970-01-01) | | 4 |
//! | 12 Timestamp | unit u8 (s, ms, us, ns), length of zone u8 (0: none, to 64), zone | 8 |
//! | 13 Boolean | | 1 (0, 1) |
//! | 14 FixedBinary | width u16 (1 to 4,096) | width |
//! | 15 Utf8, 16 Binary | | none: in the rest |

use std::sync::Arc;

use super::{Column, ColumnType, KEY_COLUMNS_MAX, NAME_BYTES_MAX, Schema, SchemaError, TimeUnit, ZONE_BYTES_MAX};

impl Schema {
    /// Appends the schema to `out`: at most [`SCHEMA_BYTES_MAX`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        // Schema::new keeps every count and length below what its field holds.
        out.push(SCHEMA_VERSION);
        out.extend_from_slice(&(self.columns.len() as u16).to_le_bytes());
        out.push(self.key.len() as u8);
        for column in &self.columns {
            out.push(tag(&column.column_type));
            out.push(u8::from(column.nullable));
            out.push(column.name.len() as u8);
            out.extend_from_slice(column.name.as_bytes());
            encode_parameters(&column.column_type, out);
        }
        for &column in &self.key {
            out.extend_from_slice(&(column as u16).to_le_bytes());
        }
    }

    /// Reads what [`Schema::encode`] wrote; the bytes hold the schema and nothing more.
    ///
    /// # Errors
    /// Bytes that are no schema, or a schema that breaks a limit.
    pub fn decode(bytes: &[u8]) -> Result<Schema, SchemaError> {
        let mut reader = Reader { rest: bytes, len: bytes.len() };
        if reader.u8()? != SCHEMA_VERSION {
            return Err(reader.malformed("version"));
        }
        let count = usize::from(reader.u16()?);
        let key_count = usize::from(reader.u8()?);
        if count > super::COLUMNS_MAX || key_count > KEY_COLUMNS_MAX {
            return Err(reader.malformed("counts"));
        }
        let mut columns = Vec::with_capacity(count);
        for _ in 0..count {
            columns.push(reader.column()?);
        }
        let mut key = Vec::with_capacity(key_count);
        for _ in 0..key_count {
            key.push(usize::from(reader.u16()?));
        }
        if !reader.rest.is_empty() {
            return Err(reader.malformed("trailing bytes"));
        }
        Schema::new(columns, key)
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    len: usize,
}

impl<'a> Reader<'a> {
    fn malformed(&self, what: &'static str) -> SchemaError {
        SchemaError::Malformed { len: self.len, what }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], SchemaError> {
        let (head, rest) = self.rest.split_at_checked(bytes).ok_or(self.malformed("ends early"))?;
        self.rest = rest;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8, SchemaError> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, SchemaError> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn text(&mut self) -> Result<&'a str, SchemaError> {
        let len = usize::from(self.u8()?);
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|_| self.malformed("text"))
    }

    fn column(&mut self) -> Result<Column, SchemaError> {
        let tag = self.u8()?;
        let nullable = match self.u8()? {
            0 => false,
            1 => true,
            _ => return Err(self.malformed("flag")),
        };
        let name = self.text()?.to_owned();
        let column_type = match tag {
            0 => ColumnType::Int8,
            1 => ColumnType::Int16,
            2 => ColumnType::Int32,
            3 => ColumnType::Int64,
            4 => ColumnType::UInt8,
            5 => ColumnType::UInt16,
            6 => ColumnType::UInt32,
            7 => ColumnType::UInt64,
            8 => ColumnType::Float32,
            9 => ColumnType::Float64,
            10 => ColumnType::Decimal128 { precision: self.u8()?, scale: self.u8()? as i8 },
            11 => ColumnType::Date32,
            12 => self.timestamp()?,
            13 => ColumnType::Boolean,
            14 => ColumnType::FixedBinary(self.u16()?),
            15 => ColumnType::Utf8,
            16 => ColumnType::Binary,
            _ => return Err(self.malformed("type")),
        };
        Ok(Column { name, column_type, nullable })
    }

    fn timestamp(&mut self) -> Result<ColumnType, SchemaError> {
        let unit = match self.u8()? {
            0 => TimeUnit::Second,
            1 => TimeUnit::Millisecond,
            2 => TimeUnit::Microsecond,
            3 => TimeUnit::Nanosecond,
            _ => return Err(self.malformed("time unit")),
        };
        let zone = self.text()?;
        Ok(ColumnType::Timestamp { unit, zone: (!zone.is_empty()).then(|| Arc::from(zone)) })
    }
}

fn tag(column_type: &ColumnType) -> u8 {
    match column_type {
        ColumnType::Int8 => 0,
        ColumnType::Int16 => 1,
        ColumnType::Int32 => 2,
        ColumnType::Int64 => 3,
        ColumnType::UInt8 => 4,
        ColumnType::UInt16 => 5,
        ColumnType::UInt32 => 6,
        ColumnType::UInt64 => 7,
        ColumnType::Float32 => 8,
        ColumnType::Float64 => 9,
        ColumnType::Decimal128 { .. } => 10,
        ColumnType::Date32 => 11,
        ColumnType::Timestamp { .. } => 12,
        ColumnType::Boolean => 13,
        ColumnType::FixedBinary(_) => 14,
        ColumnType::Utf8 => 15,
        ColumnType::Binary => 16,
    }
}

fn encode_parameters(column_type: &ColumnType, out: &mut Vec<u8>) {
    match column_type {
        ColumnType::Decimal128 { precision, scale } => out.extend_from_slice(&[*precision, *scale as u8]),
        ColumnType::FixedBinary(bytes) => out.extend_from_slice(&bytes.to_le_bytes()),
        ColumnType::Timestamp { unit, zone } => {
            let zone = zone.as_deref().unwrap_or("");
            out.extend_from_slice(&[*unit as u8, zone.len() as u8]);
            out.extend_from_slice(zone.as_bytes());
        }
        _ => {}
    }
}

/// The first byte of an encoded schema.
pub const SCHEMA_VERSION: u8 = 1;
/// Bytes of an encoded schema.
pub const SCHEMA_BYTES_MAX: usize =
    4 + super::COLUMNS_MAX * (3 + NAME_BYTES_MAX + 2 + ZONE_BYTES_MAX) + KEY_COLUMNS_MAX * 2;
