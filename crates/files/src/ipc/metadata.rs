//! What Arrow's metadata says: schemas, record batches, dictionaries, the footer.
//!
//! Field numbers are those of Schema.fbs, Message.fbs and File.fbs of the Arrow specification.

use super::super::codec::Codec;
use super::super::types::{check_columns, check_type};
use super::flatbuffer::{Table, i64_at};
use anyhow::{Context, Result, bail, ensure};
use arrow_schema::{DataType, Field, Schema, TimeUnit};

/// A column as the file stores it, and as it is read.
pub struct Column {
    /// The type of the values; of the dictionary's values where there is one.
    pub stored: DataType,
    /// The dictionary that the values stand in, and the type of the indexes.
    pub dictionary: Option<(i64, DataType)>,
}

/// The columns of a file, as read (views and large types become their plain ones) and as stored.
///
/// # Errors
/// A nested column, a type no table can hold, big-endian data.
pub fn columns(schema: Table) -> Result<(Schema, Vec<Column>)> {
    ensure!(schema.i16(0, 0)? == 0, "is big-endian; rewrite it on a little-endian machine");
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    let stored = schema.tables(1)?;
    check_columns(stored.len())?;
    for field in stored {
        let name = field.text(0)?.unwrap_or("");
        let stored = data_type(name, &field)?;
        let dictionary = match field.table(4)? {
            None => None,
            Some(dictionary) => {
                let index = match dictionary.table(1)? {
                    None => DataType::Int32,
                    Some(int) => integer(&int)?,
                };
                ensure!(
                    matches!(stored, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View),
                    "column `{name}` is a dictionary of {stored}; only dictionaries of text are \
                     read; decode it before loading"
                );
                Some((dictionary.i64(0)?, index))
            }
        };
        let shown = plain(&stored);
        check_type(name, &shown)?;
        fields.push(Field::new(name, shown, field.bool(1)?));
        columns.push(Column { stored, dictionary });
    }
    Ok((Schema::new(fields), columns))
}

/// A message: what its header holds, and the bytes of body that follow it.
pub struct Message<'a> {
    /// What the message is.
    pub header: Header<'a>,
    /// Bytes of body.
    pub body_bytes: u64,
}

/// The kinds of messages.
pub enum Header<'a> {
    /// The columns.
    Schema(Table<'a>),
    /// Values of a dictionary.
    Dictionary {
        /// The dictionary's number.
        id: i64,
        /// Whether the values are added to those there are.
        delta: bool,
        /// The values, as a batch of one column.
        batch: Batch,
    },
    /// Rows.
    Batch(Batch),
}

/// A record batch's outline.
pub struct Batch {
    /// Rows.
    pub rows: usize,
    /// Nulls of each column.
    pub nulls: Vec<i64>,
    /// Offset and length of each buffer in the body.
    pub buffers: Vec<(i64, i64)>,
    /// How the buffers are compressed.
    pub codec: Option<Codec>,
    /// Data buffers of each view column.
    pub view_buffers: Vec<i64>,
}

/// Reads a message.
///
/// # Errors
/// Damaged, or of a kind that tables do not have (a tensor).
pub fn message(bytes: &[u8]) -> Result<Message<'_>> {
    let message = Table::root(bytes)?;
    let body_bytes = u64::try_from(message.i64(3)?).context("a message has a negative length")?;
    let table = message.table(2)?.context("a message has no header")?;
    let header = match message.u8(1, 0)? {
        1 => Header::Schema(table),
        2 => Header::Dictionary {
            id: table.i64(0)?,
            delta: table.bool(2)?,
            batch: batch(table.table(1)?.context("a dictionary has no values")?)?,
        },
        3 => Header::Batch(batch(table)?),
        other => bail!("holds a message of kind {other}, which is no table"),
    };
    Ok(Message { header, body_bytes })
}

/// Where a message lies in a file: offset, bytes of metadata, bytes of body.
pub type Block = (u64, u64, u64);

/// The footer of a file: its schema, its dictionaries and its record batches.
///
/// # Errors
/// Damaged.
pub fn footer(bytes: &[u8]) -> Result<(Table<'_>, Vec<Block>, Vec<Block>)> {
    let footer = Table::root(bytes)?;
    let schema = footer.table(1)?.context("the footer has no schema")?;
    let blocks = |slot| -> Result<Vec<Block>> {
        let blocks = footer.structs::<24>(slot)?.iter();
        blocks
            .map(|block| {
                let metadata = i64_at(block, 8) as i32;
                Ok((
                    u64::try_from(i64_at(block, 0)).context("a block has a negative offset")?,
                    u64::try_from(metadata).context("a block has a negative length")?,
                    u64::try_from(i64_at(block, 16)).context("a block has a negative length")?,
                ))
            })
            .collect()
    };
    Ok((schema, blocks(2)?, blocks(3)?))
}

fn batch(table: Table) -> Result<Batch> {
    let codec = match table.table(3)? {
        None => None,
        Some(compression) => match compression.u8(0, 0)? {
            0 => Some(Codec::Lz4Frame),
            1 => Some(Codec::Zstd),
            other => bail!("is compressed by the unknown codec {other}; rewrite it uncompressed"),
        },
    };
    let pairs =
        |structs: &[[u8; 16]]| structs.iter().map(|pair| (i64_at(pair, 0), i64_at(pair, 8))).collect::<Vec<_>>();
    let rows = usize::try_from(table.i64(0)?).context("a batch has a negative number of rows")?;
    Ok(Batch {
        rows,
        nulls: pairs(table.structs::<16>(1)?).into_iter().map(|(_, nulls)| nulls).collect(),
        buffers: pairs(table.structs::<16>(2)?),
        codec,
        view_buffers: table.structs::<8>(4)?.iter().map(|count| i64_at(count, 0)).collect(),
    })
}

fn data_type(name: &str, field: &Table) -> Result<DataType> {
    let kind = field.u8(2, 0)?;
    let Some(ty) = field.table(3)? else { bail!("column `{name}` has no type") };
    let unsupported = |what: &str, advice: &str| -> Result<DataType> {
        bail!("column `{name}` is {what}, which tables do not have; {advice} before loading")
    };
    Ok(match kind {
        1 => DataType::Null,
        2 if ty.i32(0, 0)? == 128 => return unsupported("a 128-bit integer", "convert it to int64 or decimal128"),
        2 => integer(&ty)?,
        3 => match ty.i16(0, 0)? {
            0 => DataType::Float16,
            1 => DataType::Float32,
            _ => DataType::Float64,
        },
        4 => DataType::Binary,
        5 => DataType::Utf8,
        6 => DataType::Boolean,
        7 => {
            let (precision, scale, bits) = (ty.i32(0, 0)?, ty.i32(1, 0)?, ty.i32(2, 128)?);
            match (u8::try_from(precision), i8::try_from(scale), bits) {
                (Ok(precision @ 1..=38), Ok(scale), 128) => DataType::Decimal128(precision, scale),
                _ => {
                    let what = format!("decimal({precision},{scale}) of {bits} bits");
                    return unsupported(&what, "convert it to decimal128");
                }
            }
        }
        8 if ty.i16(0, 1)? == 0 => DataType::Date32,
        8 => DataType::Date64,
        9 => return unsupported("a time of day", "convert it to an integer"),
        10 => {
            let unit = match ty.i16(0, 0)? {
                0 => TimeUnit::Second,
                1 => TimeUnit::Millisecond,
                2 => TimeUnit::Microsecond,
                3 => TimeUnit::Nanosecond,
                other => bail!("column `{name}` has the unknown timestamp unit {other}"),
            };
            DataType::Timestamp(unit, ty.text(1)?.filter(|zone| !zone.is_empty()).map(Into::into))
        }
        11 | 18 => return unsupported("an interval or duration", "convert it to an integer"),
        15 => DataType::FixedSizeBinary(ty.i32(0, 0)?),
        19 => DataType::LargeBinary,
        20 => DataType::LargeUtf8,
        23 => DataType::BinaryView,
        24 => DataType::Utf8View,
        12 | 16 | 21 | 25 | 26 => return unsupported("a list", "store its elements as rows"),
        13 | 14 | 17 => {
            return unsupported("a struct, union or map", "flatten it into a column a member");
        }
        22 => return unsupported("run-end encoded", "decode it"),
        other => return unsupported(&format!("of unknown type {other}"), "convert it"),
    })
}

fn integer(int: &Table) -> Result<DataType> {
    Ok(match (int.i32(0, 0)?, int.bool(1)?) {
        (8, true) => DataType::Int8,
        (16, true) => DataType::Int16,
        (32, true) => DataType::Int32,
        (64, true) => DataType::Int64,
        (8, false) => DataType::UInt8,
        (16, false) => DataType::UInt16,
        (32, false) => DataType::UInt32,
        (64, false) => DataType::UInt64,
        (bits, _) => bail!("has an integer of {bits} bits; the file is damaged"),
    })
}

fn plain(stored: &DataType) -> DataType {
    match stored {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        other => other.clone(),
    }
}
