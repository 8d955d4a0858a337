//! Arrow files written: the schema, a block for each batch, the footer that lists them.

use super::super::{Sink, put};
use super::builder::{Builder, Slots, Value};
use anyhow::{Result, bail};
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use std::fs::File;
use std::io::{BufWriter, Write};

/// Writes an Arrow file, uncompressed, each buffer aligned to 64 bytes of the file.
pub struct IpcWriter {
    file: BufWriter<File>,
    at: u64,
    schema: SchemaRef,
    blocks: Vec<[u8; 24]>,
}

impl IpcWriter {
    /// Begins the file with its magic word and its schema.
    ///
    /// # Errors
    /// A type that no table has; the device is full or failing.
    pub fn begin(file: File, schema: SchemaRef) -> Result<IpcWriter> {
        let file = BufWriter::with_capacity(1 << 20, file);
        let mut writer = IpcWriter { file, at: 0, schema, blocks: Vec::new() };
        writer.append(b"ARROW1\0\0")?;
        let (mut builder, message) = message(HEADER_SCHEMA, 0);
        let columns = schema_table(&mut builder, &writer.schema)?;
        builder.point(&message, 2, columns);
        writer.metadata(builder.finish())?;
        Ok(writer)
    }

    /// Writes a message's metadata, padded so that what follows lies at 64 bytes. Returns its
    /// length.
    fn metadata(&mut self, metadata: Vec<u8>) -> Result<u64> {
        let end = self.at + 8 + metadata.len() as u64;
        let padding = end.next_multiple_of(64) - end;
        let length = metadata.len() as u64 + padding;
        self.append(&[0xFF; 4])?;
        self.append(&(length as u32).to_le_bytes())?;
        self.append(&metadata)?;
        self.append(&[0; 64][..padding as usize])?;
        Ok(8 + length)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        put(&mut self.file, bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

impl Sink for IpcWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let (mut nodes, mut buffers, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for column in batch.columns() {
            nodes.push(pair(column.len() as i64, column.null_count() as i64));
            column_buffers(column.as_ref(), &mut buffers)?;
        }
        let mut body_bytes = 0;
        for buffer in &buffers {
            places.push(pair(body_bytes, buffer.len() as i64));
            body_bytes += buffer.len().next_multiple_of(64) as i64;
        }
        let (mut builder, message) = message(HEADER_BATCH, body_bytes);
        let rows = Value::I64(batch.num_rows() as i64);
        let table = builder.table(&[rows, Value::Offset, Value::Offset]);
        builder.point(&message, 2, table.at);
        let nodes = builder.structs(&nodes);
        builder.point(&table, 1, nodes);
        let places = builder.structs(&places);
        builder.point(&table, 2, places);

        let at = self.at;
        let metadata_bytes = self.metadata(builder.finish())?;
        for buffer in &buffers {
            self.append(buffer)?;
            self.append(&[0; 64][..buffer.len().next_multiple_of(64) - buffer.len()])?;
        }
        let mut block = [0; 24];
        block[..8].copy_from_slice(&at.to_le_bytes());
        block[8..16].copy_from_slice(&metadata_bytes.to_le_bytes());
        block[16..].copy_from_slice(&body_bytes.to_le_bytes());
        self.blocks.push(block);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.append(&[0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0])?;
        let (mut builder, footer) = Builder::new(&[Value::I16(VERSION_5), Value::Offset, Value::Offset, Value::Offset]);
        let columns = schema_table(&mut builder, &self.schema)?;
        builder.point(&footer, 1, columns);
        let none = builder.structs::<24>(&[]);
        builder.point(&footer, 2, none);
        let blocks = builder.structs(&self.blocks);
        builder.point(&footer, 3, blocks);
        let footer = builder.finish();
        self.append(&footer)?;
        self.append(&(footer.len() as u32).to_le_bytes())?;
        self.append(b"ARROW1")?;
        Ok(self.file.flush()?)
    }
}

fn message(header: u8, body_bytes: i64) -> (Builder, Slots) {
    Builder::new(&[Value::I16(VERSION_5), Value::U8(header), Value::Offset, Value::I64(body_bytes)])
}

fn schema_table(builder: &mut Builder, schema: &Schema) -> Result<usize> {
    let table = builder.table(&[Value::I16(0), Value::Offset]);
    let fields = builder.offsets(schema.fields().len());
    builder.point(&table, 1, fields.at);
    for (index, field) in schema.fields().iter().enumerate() {
        let field = field_table(builder, field)?;
        builder.point(&fields, index, field);
    }
    Ok(table.at)
}

fn field_table(builder: &mut Builder, field: &Field) -> Result<usize> {
    let (kind, values, zone): (u8, Vec<Value>, Option<&str>) = match field.data_type() {
        DataType::Int8 => (2, vec![Value::I32(8), Value::U8(1)], None),
        DataType::Int16 => (2, vec![Value::I32(16), Value::U8(1)], None),
        DataType::Int32 => (2, vec![Value::I32(32), Value::U8(1)], None),
        DataType::Int64 => (2, vec![Value::I32(64), Value::U8(1)], None),
        DataType::UInt8 => (2, vec![Value::I32(8), Value::U8(0)], None),
        DataType::UInt16 => (2, vec![Value::I32(16), Value::U8(0)], None),
        DataType::UInt32 => (2, vec![Value::I32(32), Value::U8(0)], None),
        DataType::UInt64 => (2, vec![Value::I32(64), Value::U8(0)], None),
        DataType::Float32 => (3, vec![Value::I16(1)], None),
        DataType::Float64 => (3, vec![Value::I16(2)], None),
        DataType::Binary => (4, vec![], None),
        DataType::Utf8 => (5, vec![], None),
        DataType::Boolean => (6, vec![], None),
        DataType::Decimal128(precision, scale) => {
            let (precision, scale) = ((*precision).into(), (*scale).into());
            (7, vec![Value::I32(precision), Value::I32(scale), Value::I32(128)], None)
        }
        DataType::Date32 => (8, vec![Value::I16(0)], None),
        DataType::Timestamp(unit, zone) => {
            let unit = match unit {
                TimeUnit::Second => 0,
                TimeUnit::Millisecond => 1,
                TimeUnit::Microsecond => 2,
                TimeUnit::Nanosecond => 3,
            };
            let place = if zone.is_some() { Value::Offset } else { Value::Absent };
            (10, vec![Value::I16(unit), place], zone.as_deref())
        }
        DataType::FixedSizeBinary(bytes) => (15, vec![Value::I32(*bytes)], None),
        other => bail!("column `{}`: {other} cannot be written to Arrow files", field.name()),
    };
    let table = builder.table(&[
        Value::Offset,
        Value::U8(field.is_nullable().into()),
        Value::U8(kind),
        Value::Offset,
        Value::Absent,
        Value::Offset,
    ]);
    let name = builder.text(field.name());
    builder.point(&table, 0, name);
    let ty = builder.table(&values);
    builder.point(&table, 3, ty.at);
    if let Some(zone) = zone {
        let zone = builder.text(zone);
        builder.point(&ty, 1, zone);
    }
    let children = builder.offsets(0);
    builder.point(&table, 5, children.at);
    Ok(table.at)
}

/// Appends a column's buffers: validity, then offsets and data or values, from its first row on.
fn column_buffers(array: &dyn Array, buffers: &mut Vec<Buffer>) -> Result<()> {
    let rows = array.len();
    buffers.push(match array.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => Buffer::from_vec(Vec::<u8>::new()),
        Some(nulls) => nulls.inner().sliced(),
    });
    match array.data_type() {
        DataType::Boolean => buffers.push(array.as_boolean().values().sliced()),
        DataType::Utf8 => {
            let array = array.as_string::<i32>();
            byte_buffers(array.value_offsets(), array.values(), buffers);
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>();
            byte_buffers(array.value_offsets(), array.values(), buffers);
        }
        DataType::FixedSizeBinary(width) => {
            let array = array.as_fixed_size_binary();
            let width = *width as usize;
            let data = array.to_data();
            let start = data.offset() * width;
            buffers.push(data.buffers()[0].slice_with_length(start, rows * width));
        }
        other => {
            let Some(width) = other.primitive_width() else {
                bail!("{other} cannot be written to Arrow files");
            };
            let data = array.to_data();
            buffers.push(data.buffers()[0].slice_with_length(data.offset() * width, rows * width));
        }
    }
    Ok(())
}

fn byte_buffers(offsets: &[i32], data: &Buffer, buffers: &mut Vec<Buffer>) {
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    buffers.push(offsets.iter().map(|offset| offset - first).collect());
    buffers.push(data.slice_with_length(first as usize, (last - first) as usize));
}

fn pair(first: i64, second: i64) -> [u8; 16] {
    let mut pair = [0; 16];
    pair[..8].copy_from_slice(&first.to_le_bytes());
    pair[8..].copy_from_slice(&second.to_le_bytes());
    pair
}

const VERSION_5: i16 = 4;
const HEADER_SCHEMA: u8 = 1;
const HEADER_BATCH: u8 = 3;
