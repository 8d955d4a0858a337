//! Buffers of a batch's body made into arrays, with every length and offset checked.

use super::super::budget::{Budget, Charge};
use super::super::codec::decompress;
use super::dictionary::Dictionaries;
use super::metadata::{Batch, Column};
use super::stored::StoredColumn;
use anyhow::{Context, Result, bail, ensure};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{
    ArrayRef, ArrowPrimitiveType, BinaryViewArray, BooleanArray, FixedSizeBinaryArray, GenericByteArray,
    PrimitiveArray, StringViewArray,
};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;
use std::sync::Arc;

/// Takes a body's buffers in order, as the columns need them.
pub struct Body<'a> {
    batch: &'a Batch,
    bytes: Buffer,
    nodes: usize,
    buffers: usize,
    views: usize,
    budget: &'a Budget,
    /// For buffers that do not lie in the body: a few compressed bytes that repeat themselves
    /// unpack into gigabytes, and any number of columns may name the same buffer.
    charges: Vec<Charge>,
}

impl<'a> Body<'a> {
    /// The body `bytes` of `batch`; what is unpacked of it is charged to `budget`.
    pub fn new(batch: &'a Batch, bytes: Buffer, budget: &'a Budget) -> Body<'a> {
        Body { batch, bytes, nodes: 0, buffers: 0, views: 0, budget, charges: Vec::new() }
    }

    /// What the columns' buffers were charged.
    pub fn charges(self) -> Vec<Charge> {
        self.charges
    }

    /// The next column.
    ///
    /// # Errors
    /// A buffer is missing, too short or damaged; a dictionary is missing; more is unpacked than
    /// the file may take.
    pub fn column(&mut self, column: &Column, dictionaries: &Dictionaries) -> Result<StoredColumn> {
        let Some((id, index)) = &column.dictionary else {
            return Ok(StoredColumn::Values(self.values(&column.stored)?));
        };
        let indexes = self.values(index)?;
        let dictionary = dictionaries.get(id).context("a dictionary is missing")?;
        Ok(StoredColumn::Indexes(indexes, dictionary.clone()))
    }

    /// The next column's values, as they are stored.
    ///
    /// # Errors
    /// As [`Body::column`].
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
            DataType::LargeUtf8 => self.bytes::<GenericStringType<i64>>(nulls)?,
            DataType::LargeBinary => self.bytes::<GenericBinaryType<i64>>(nulls)?,
            DataType::Utf8View => {
                let (views, data) = self.view_buffers()?;
                Arc::new(StringViewArray::try_new(views, data, nulls)?)
            }
            DataType::BinaryView => {
                let (views, data) = self.view_buffers()?;
                Arc::new(BinaryViewArray::try_new(views, data, nulls)?)
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
        // Views may name the same bytes again and again, and each mention is checked to be text.
        let total: u64 = views.iter().map(|view| u64::from(*view as u32)).sum();
        ensure!(total <= VIEWS_BYTES_MAX, "a batch holds too much text in one column; write smaller batches");
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
        let buffer = if aligned { buffer } else { self.copied(&buffer)? };
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
                        self.charges.push(self.budget.charge(claim as u64)?);
                        Buffer::from_vec(decompress(codec, packed, claim).context("a buffer is damaged")?)
                    }
                }
            }
            _ => stored,
        };
        ensure!(buffer.len() >= least, "a buffer is shorter than its column");
        Ok(buffer)
    }

    /// A copy that is aligned for values of any type.
    fn copied(&mut self, bytes: &[u8]) -> Result<Buffer> {
        self.charges.push(self.budget.charge(bytes.len() as u64)?);
        let mut copy = MutableBuffer::with_capacity(bytes.len());
        copy.extend_from_slice(bytes);
        Ok(copy.into())
    }
}

/// Bytes that the views of a column may name.
const VIEWS_BYTES_MAX: u64 = 1 << 30;
