//! Parquet files written: row groups of a fixed number of rows, Snappy, dictionaries where they
//! pay.

use super::super::Sink;
use super::schema::{decimal_bytes, parquet_schema};
use anyhow::{Context, Result, bail};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrowPrimitiveType, RecordBatch};
use arrow_schema::{DataType, SchemaRef, TimeUnit};
use bytes::Bytes;
use parquet::basic::Compression;
use parquet::data_type as physical;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use std::fs::File;
use std::io::BufWriter;
use std::sync::Arc;

/// Writes a Parquet file. Holds one row group's batches in memory.
pub struct ParquetWriter {
    schema: SchemaRef,
    writer: SerializedFileWriter<BufWriter<File>>,
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    pending_bytes: usize,
}

impl ParquetWriter {
    /// Begins the file.
    ///
    /// # Errors
    /// The device is full or failing.
    pub fn begin(file: File, schema: SchemaRef) -> Result<ParquetWriter> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(format!("overside {}", env!("CARGO_PKG_VERSION")))
            .build();
        let file = BufWriter::with_capacity(256 << 10, file);
        let columns = parquet_schema(&schema)?;
        let writer = SerializedFileWriter::new(file, columns, Arc::new(properties))?;
        Ok(ParquetWriter { schema, writer, pending: Vec::new(), pending_rows: 0, pending_bytes: 0 })
    }

    fn write_group(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.pending);
        (self.pending_rows, self.pending_bytes) = (0, 0);
        let mut group = self.writer.next_row_group()?;
        for (index, field) in self.schema.fields().iter().enumerate() {
            let mut column = group.next_column()?.context("the schema has too few columns")?;
            for batch in &batches {
                write_column(&mut column, batch.column(index).as_ref(), field.is_nullable())
                    .with_context(|| format!("column `{}`", field.name()))?;
            }
            column.close()?;
        }
        group.close()?;
        Ok(())
    }
}

impl Sink for ParquetWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.pending_rows += batch.num_rows();
        self.pending_bytes += batch.get_array_memory_size();
        self.pending.push(batch.clone());
        if self.pending_rows >= GROUP_ROWS || self.pending_bytes >= GROUP_BYTES {
            self.write_group()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if self.pending_rows > 0 {
            self.write_group()?;
        }
        self.writer.finish()?;
        // The writer's own `finish` leaves the tail in the buffer.
        Ok(std::io::Write::flush(self.writer.inner_mut())?)
    }
}

fn write_column(column: &mut SerializedColumnWriter, array: &dyn Array, nullable: bool) -> Result<()> {
    type I32 = physical::Int32Type;
    type I64 = physical::Int64Type;
    let levels: Option<Vec<i16>> =
        nullable.then(|| (0..array.len()).map(|row| i16::from(array.is_valid(row))).collect());
    if !nullable && array.null_count() > 0 {
        bail!("holds a null, which its schema does not allow");
    }
    let mut to = Target { column, levels };
    match array.data_type() {
        DataType::Boolean => {
            let array = array.as_boolean();
            let values = present(array).map(|row| array.value(row)).collect();
            to.write::<physical::BoolType>(values)
        }
        DataType::Int8 => to.native::<I32, Int8Type>(array, |v| Ok(v.into())),
        DataType::Int16 => to.native::<I32, Int16Type>(array, |v| Ok(v.into())),
        DataType::Int32 => to.native::<I32, Int32Type>(array, Ok),
        DataType::Int64 => to.native::<I64, Int64Type>(array, Ok),
        DataType::UInt8 => to.native::<I32, UInt8Type>(array, |v| Ok(v.into())),
        DataType::UInt16 => to.native::<I32, UInt16Type>(array, |v| Ok(v.into())),
        DataType::UInt32 => to.native::<I32, UInt32Type>(array, |v| Ok(v as i32)),
        DataType::UInt64 => to.native::<I64, UInt64Type>(array, |v| Ok(v as i64)),
        DataType::Float32 => to.native::<physical::FloatType, Float32Type>(array, Ok),
        DataType::Float64 => to.native::<physical::DoubleType, Float64Type>(array, Ok),
        DataType::Date32 => to.native::<I32, Date32Type>(array, Ok),
        DataType::Timestamp(TimeUnit::Second, _) => {
            // Parquet has no seconds.
            to.native::<I64, TimestampSecondType>(array, |v| {
                v.checked_mul(1000).context("a timestamp is too far from 1970 for milliseconds")
            })
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => to.native::<I64, TimestampMillisecondType>(array, Ok),
        DataType::Timestamp(TimeUnit::Microsecond, _) => to.native::<I64, TimestampMicrosecondType>(array, Ok),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => to.native::<I64, TimestampNanosecondType>(array, Ok),
        DataType::Decimal128(precision, _) => to.decimal(array, decimal_bytes(*precision)),
        _ => to.bytes(array),
    }
}

struct Target<'a, 'b> {
    column: &'a mut SerializedColumnWriter<'b>,
    levels: Option<Vec<i16>>,
}

impl Target<'_, '_> {
    fn write<P: physical::DataType>(&mut self, values: Vec<P::T>) -> Result<()> {
        self.column.typed::<P>().write_batch(&values, self.levels.as_deref(), None)?;
        Ok(())
    }

    fn native<P: physical::DataType, A: ArrowPrimitiveType>(
        &mut self,
        array: &dyn Array,
        convert: impl Fn(A::Native) -> Result<P::T>,
    ) -> Result<()> {
        let array = array.as_primitive::<A>();
        let values = present(array).map(|row| convert(array.value(row)));
        self.write::<P>(values.collect::<Result<_>>()?)
    }

    fn decimal(&mut self, array: &dyn Array, bytes: i32) -> Result<()> {
        match bytes {
            4 => self.native::<physical::Int32Type, Decimal128Type>(array, |v| Ok(v.try_into()?)),
            8 => self.native::<physical::Int64Type, Decimal128Type>(array, |v| Ok(v.try_into()?)),
            bytes => {
                let skip = 16 - bytes as usize;
                self.native::<physical::FixedLenByteArrayType, Decimal128Type>(array, |v| {
                    Ok(FixedLenByteArray::from(v.to_be_bytes()[skip..].to_vec()))
                })
            }
        }
    }

    fn bytes(&mut self, array: &dyn Array) -> Result<()> {
        let copied = |bytes: &[u8]| ByteArray::from(Bytes::copy_from_slice(bytes));
        let rows = present(array);
        let values: Vec<ByteArray> = match array.data_type() {
            DataType::Utf8 => {
                let array = array.as_string::<i32>();
                rows.map(|row| copied(array.value(row).as_bytes())).collect()
            }
            DataType::Binary => {
                let array = array.as_binary::<i32>();
                rows.map(|row| copied(array.value(row))).collect()
            }
            DataType::FixedSizeBinary(_) => {
                let array = array.as_fixed_size_binary();
                let values = rows.map(|row| copied(array.value(row)).into()).collect();
                return self.write::<physical::FixedLenByteArrayType>(values);
            }
            other => bail!("{other} cannot be written to Parquet"),
        };
        self.write::<physical::ByteArrayType>(values)
    }
}

fn present(array: &dyn Array) -> impl Iterator<Item = usize> + '_ {
    (0..array.len()).filter(|row| array.is_valid(*row))
}

/// A row group is written when it has this many rows or bytes.
const GROUP_ROWS: usize = 128 << 10;
const GROUP_BYTES: usize = 64 << 20;
