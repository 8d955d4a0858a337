//! Buffers of a batch's body made into arrays, with every length and offset checked.

use super::super::codec::decompress;
use super::metadata::{Batch, Column};
use anyhow::{Context, Result, bail, ensure};
use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BinaryViewArray, BooleanArray, FixedSizeBinaryArray,
    GenericByteArray, PrimitiveArray, StringArray, StringViewArray,
};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;
use std::collections::HashMap;
use std::sync::Arc;

/// The dictionaries read so far, by number.
pub type Dictionaries = HashMap<i64, StringArray>;

/// Takes a body's buffers in order, as the columns need them.
pub struct Body<'a> {
    batch: &'a Batch,
    bytes: Buffer,
    nodes: usize,
    buffers: usize,
    views: usize,
    /// Bytes that compressed buffers have claimed so far: a few that repeat themselves unpack into gigabytes.
    unpacked: usize,
}

impl<'a> Body<'a> {
    /// The body `bytes` of `batch`.
    pub fn new(batch: &'a Batch, bytes: Buffer) -> Body<'a> {
        Body { batch, bytes, nodes: 0, buffers: 0, views: 0, unpacked: 0 }
    }

    /// The next column.
    ///
    /// # Errors
    /// A buffer is missing, too short or damaged; an index beyond its dictionary.
    pub fn column(&mut self, column: &Column, dictionaries: &Dictionaries) -> Result<ArrayRef> {
        let Some((id, index)) = &column.dictionary else {
            return self.values(&column.stored);
        };
        let indexes = self.values(index)?;
        let dictionary = dictionaries.get(id).context("a dictionary is missing")?;
        decode(indexes.as_ref(), dictionary)
    }

    /// The next column, as it is stored; views and large types become their plain ones.
    pub fn values(&mut self, ty: &DataType) -> Result<ArrayRef> {
        let nulls = self.nulls()?;
        Ok(match ty {
            DataType::Int8 => self.primitive::<Int8Type>(ty, nulls)?,
            DataType::Int16 => self.primitive::<Int16Type>(ty, nulls)?,
            DataType::Int32 => self.primitive::<Int32Type>(ty, nulls)?,
            DataType::Int64 => self.primitive::<Int64Type>(ty, nulls)?,
            DataType::UInt8 => self.primitive::<UInt8Type>(ty, nulls)?,
            DataType::UInt16 => self.primitive::<UInt16Type>(ty, nulls)?,
            DataType::UInt32 => self.primitive::<UInt32Type>(ty, nulls)?,
            DataType::UInt64 => self.primitive::<UInt64Type>(ty, nulls)?,
            DataType::Float32 => self.primitive::<Float32Type>(ty, nulls)?,
            DataType::Float64 => self.primitive::<Float64Type>(ty, nulls)?,
            DataType::Date32 => self.primitive::<Date32Type>(ty, nulls)?,
            DataType::Timestamp(unit, _) => match unit {
                arrow_schema::TimeUnit::Second => self.primitive::<TimestampSecondType>(ty, nulls)?,
                arrow_schema::TimeUnit::Millisecond => self.primitive::<TimestampMillisecondType>(ty, nulls)?,
                arrow_schema::TimeUnit::Microsecond => self.primitive::<TimestampMicrosecondType>(ty, nulls)?,
                arrow_schema::TimeUnit::Nanosecond => self.primitive::<TimestampNanosecondType>(ty, nulls)?,
            },
            DataType::Decimal128(precision, _) => {
                let array = self.primitive::<Decimal128Type>(ty, nulls)?;
                array.as_primitive::<Decimal128Type>().validate_decimal_precision(*precision)?;
                array
            }
            DataType::Boolean => {
                let bits = self.buffer(self.batch.rows.div_ceil(8))?;
                Arc::new(BooleanArray::new(BooleanBuffer::new(bits, 0, self.batch.rows), nulls))
            }
            DataType::FixedSizeBinary(bytes) => {
                let width = usize::try_from(*bytes).context("a width is negative")?;
                let length = self.batch.rows.checked_mul(width).context("a length overflows")?;
                let values = self.buffer(length)?.slice_with_length(0, length);
                Arc::new(FixedSizeBinaryArray::try_new(*bytes, values, nulls)?)
            }
            DataType::Utf8 => self.bytes::<GenericStringType<i32>>(nulls)?,
            DataType::Binary => self.bytes::<GenericBinaryType<i32>>(nulls)?,
            DataType::LargeUtf8 => {
                let large = self.bytes::<GenericStringType<i64>>(nulls)?;
                Arc::new(StringArray::from_iter(large.as_string::<i64>()))
            }
            DataType::LargeBinary => {
                let large = self.bytes::<GenericBinaryType<i64>>(nulls)?;
                Arc::new(BinaryArray::from_iter(large.as_binary::<i64>()))
            }
            DataType::Utf8View => {
                let (views, data) = self.view_buffers()?;
                let array = StringViewArray::try_new(views, data, nulls)?;
                ensure_plain_fits(array.lengths())?;
                Arc::new(StringArray::from_iter(array.iter()))
            }
            DataType::BinaryView => {
                let (views, data) = self.view_buffers()?;
                let array = BinaryViewArray::try_new(views, data, nulls)?;
                ensure_plain_fits(array.lengths())?;
                Arc::new(BinaryArray::from_iter(array.iter()))
            }
            other => bail!("{other} is not read"),
        })
    }

    fn primitive<T: ArrowPrimitiveType>(&mut self, ty: &DataType, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let values = self.scalars::<T::Native>(self.batch.rows)?;
        let array = PrimitiveArray::<T>::try_new(values, nulls)?;
        Ok(Arc::new(array.with_data_type(ty.clone())))
    }

    fn bytes<T: ByteArrayType>(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        // Writers may leave out the offsets of no rows.
        let next = self.batch.buffers.get(self.buffers);
        let offsets = if self.batch.rows == 0 && next.is_some_and(|(_, length)| *length == 0) {
            self.buffer(0)?;
            ScalarBuffer::from(vec![T::Offset::default()])
        } else {
            self.scalars::<T::Offset>(self.batch.rows.checked_add(1).context("too many rows")?)?
        };
        let least = offsets.first().is_some_and(|first| *first >= T::Offset::default());
        ensure!(least && offsets.is_sorted(), "a column's offsets are out of order");
        let data = self.buffer(0)?;
        if std::mem::size_of::<T::Offset>() == 8 {
            let length = offsets[offsets.len() - 1].as_usize() - offsets[0].as_usize();
            ensure!(length <= i32::MAX as usize, TOO_LARGE);
        }
        Ok(Arc::new(GenericByteArray::<T>::try_new(OffsetBuffer::new(offsets), data, nulls)?))
    }

    fn view_buffers(&mut self) -> Result<(ScalarBuffer<u128>, Vec<Buffer>)> {
        let views = self.scalars::<u128>(self.batch.rows)?;
        let count = self.batch.view_buffers.get(self.views).context("a view lacks its buffers")?;
        self.views += 1;
        let left = self.batch.buffers.len() - self.buffers;
        let count = usize::try_from(*count).ok().filter(|count| *count <= left);
        let count = count.context("a view claims more buffers than there are")?;
        let data = (0..count).map(|_| self.buffer(0)).collect::<Result<_>>()?;
        Ok((views, data))
    }

    fn nulls(&mut self) -> Result<Option<NullBuffer>> {
        let nulls = *self.batch.nulls.get(self.nodes).context("a column is missing")?;
        self.nodes += 1;
        if nulls == 0 {
            self.buffer(0)?;
            return Ok(None);
        }
        let rows = self.batch.rows;
        let bits = self.buffer(rows.div_ceil(8))?;
        let nulls = NullBuffer::new(BooleanBuffer::new(bits, 0, rows));
        Ok((nulls.null_count() > 0).then_some(nulls))
    }

    fn scalars<T: ArrowNativeType>(&mut self, count: usize) -> Result<ScalarBuffer<T>> {
        let length = count.checked_mul(std::mem::size_of::<T>()).context("a length overflows")?;
        let buffer = self.buffer(length)?;
        // Files align to 8 bytes at least, not to the 16 of decimals; a damaged one to nothing.
        let aligned = buffer.as_ptr().align_offset(std::mem::align_of::<T>()) == 0;
        let buffer = if aligned { buffer } else { copied(&buffer) };
        Ok(ScalarBuffer::new(buffer, 0, count))
    }

    /// The next buffer, at least `least` bytes long.
    fn buffer(&mut self, least: usize) -> Result<Buffer> {
        let place = self.batch.buffers.get(self.buffers).context("a buffer is missing")?;
        self.buffers += 1;
        let range = usize::try_from(place.0).ok().zip(usize::try_from(place.1).ok());
        let (offset, length) = range
            .filter(|(offset, length)| offset.checked_add(*length).is_some_and(|end| end <= self.bytes.len()))
            .context("a buffer lies outside of its batch")?;
        let stored = self.bytes.slice_with_length(offset, length);
        let buffer = match self.batch.codec {
            Some(codec) if length > 0 => {
                let (claim, packed) = stored.split_first_chunk::<8>().context("a buffer has no length")?;
                match i64::from_le_bytes(*claim) {
                    -1 => stored.slice(8),
                    claim => {
                        let claim = usize::try_from(claim).context("a length is negative")?;
                        self.unpacked = self.unpacked.saturating_add(claim);
                        ensure!(self.unpacked <= BATCH_BYTES_MAX, TOO_LARGE);
                        copied(&decompress(codec, packed, claim).context("a buffer is damaged")?)
                    }
                }
            }
            _ => stored,
        };
        ensure!(buffer.len() >= least, "a buffer is shorter than its column");
        Ok(buffer)
    }
}

/// A dictionary's values put in the place of their indexes.
fn decode(indexes: &dyn Array, dictionary: &StringArray) -> Result<ArrayRef> {
    let index: Box<dyn Fn(usize) -> Option<usize>> = match indexes.data_type() {
        DataType::Int8 => indexer::<Int8Type>(indexes),
        DataType::Int16 => indexer::<Int16Type>(indexes),
        DataType::Int32 => indexer::<Int32Type>(indexes),
        DataType::Int64 => indexer::<Int64Type>(indexes),
        DataType::UInt8 => indexer::<UInt8Type>(indexes),
        DataType::UInt16 => indexer::<UInt16Type>(indexes),
        DataType::UInt32 => indexer::<UInt32Type>(indexes),
        _ => indexer::<UInt64Type>(indexes),
    };
    let mut total = 0;
    let mut builder = StringBuilder::new();
    for row in 0..indexes.len() {
        if indexes.is_null(row) {
            builder.append_null();
            continue;
        }
        let at = index(row).filter(|at| *at < dictionary.len());
        let at = at.context("an index lies beyond its dictionary")?;
        if dictionary.is_null(at) {
            builder.append_null();
        } else {
            total += dictionary.value(at).len();
            ensure!(total <= BATCH_BYTES_MAX, TOO_LARGE);
            builder.append_value(dictionary.value(at));
        }
    }
    Ok(Arc::new(builder.finish()))
}

fn indexer<'a, T: ArrowPrimitiveType>(indexes: &'a dyn Array) -> Box<dyn Fn(usize) -> Option<usize> + 'a>
where
    T::Native: TryInto<usize>,
{
    let indexes = indexes.as_primitive::<T>();
    Box::new(|row| indexes.value(row).try_into().ok())
}

/// Views may name the same bytes again and again; as plain text every mention takes its place.
fn ensure_plain_fits(lengths: impl Iterator<Item = u32>) -> Result<()> {
    let total: u64 = lengths.map(u64::from).sum();
    ensure!(total <= BATCH_BYTES_MAX as u64, TOO_LARGE);
    Ok(())
}

fn copied(bytes: &[u8]) -> Buffer {
    let mut copy = MutableBuffer::with_capacity(bytes.len());
    copy.extend_from_slice(bytes);
    copy.into()
}

const BATCH_BYTES_MAX: usize = 1 << 30;
const TOO_LARGE: &str = "a batch holds too much text in one column; write smaller batches";
