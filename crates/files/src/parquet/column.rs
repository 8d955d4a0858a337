//! One column of a row group, decoded into arrays.

use super::flow::{Flow, Stop};
use super::pages::Pages;
use anyhow::{Context, Result, anyhow, bail, ensure};
use arrow_array::builder::{BinaryBuilder, FixedSizeBinaryBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, PrimitiveArray};
use arrow_buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow_schema::{DataType, TimeUnit};
use parquet::basic::Type;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type as physical;
use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};
use parquet::schema::types::ColumnDescPtr;
use std::sync::Arc;

/// Decodes one column of one row group, from its start on.
pub trait ColumnReader: Send {
    /// Decodes until `rows` rows are there, or fewer (but one) where their texts and binaries take
    /// `room` bytes or more. Returns how many rows are there, at most `rows`, and the bytes of all
    /// that are.
    ///
    /// # Errors
    /// The column has fewer rows, is damaged, or takes more memory than the file may.
    fn fill(&mut self, rows: usize, room: usize) -> Result<(usize, usize)>;

    /// Adds the bytes of each row's text or binary, for as many rows as `lengths` has; they must be
    /// there.
    fn add_lengths(&self, lengths: &mut [usize]);

    /// The first `rows` rows, which must be there.
    ///
    /// # Errors
    /// A value is not of the column's type.
    fn take(&mut self, rows: usize) -> Result<ArrayRef>;
}

/// The reader for a column that the schema shows as `ty`.
///
/// # Errors
/// A type that does not go with the column's physical type.
pub fn column_reader(descriptor: ColumnDescPtr, pages: Pages, ty: &DataType) -> Result<Box<dyn ColumnReader>> {
    let source = Source { descriptor, pages };
    let ty = ty.clone();
    Ok(match (source.descriptor.physical_type(), &ty) {
        (Type::BOOLEAN, DataType::Boolean) => source.typed::<physical::BoolType>(None, booleans),
        (Type::FLOAT, DataType::Float32) => source.primitive::<physical::FloatType, Float32Type>(ty, |v| Ok(*v)),
        (Type::DOUBLE, DataType::Float64) => source.primitive::<physical::DoubleType, Float64Type>(ty, |v| Ok(*v)),
        (Type::INT32, _) => int32_reader(source, ty)?,
        (Type::INT64, _) => int64_reader(source, ty)?,
        (Type::INT96, _) => source.primitive::<physical::Int96Type, TimestampNanosecondType>(ty, nanoseconds),
        (Type::BYTE_ARRAY, DataType::Decimal128(..)) => {
            let length: Length<ByteArray> = Some(ByteArray::len);
            source.primitive_of::<physical::ByteArrayType, Decimal128Type>(ty, length, |v| decimal(v.data()))
        }
        (Type::BYTE_ARRAY, DataType::Utf8) => source.typed::<physical::ByteArrayType>(Some(ByteArray::len), strings),
        (Type::BYTE_ARRAY, DataType::Binary) => source.typed::<physical::ByteArrayType>(Some(ByteArray::len), binaries),
        (Type::FIXED_LEN_BYTE_ARRAY, DataType::Decimal128(..)) => {
            let length: Length<FixedLenByteArray> = Some(|value| value.len());
            source.primitive_of::<physical::FixedLenByteArrayType, Decimal128Type>(ty, length, |v| decimal(v.data()))
        }
        (Type::FIXED_LEN_BYTE_ARRAY, DataType::FixedSizeBinary(bytes)) => {
            let (bytes, length): (_, Length<FixedLenByteArray>) = (*bytes, Some(|value| value.len()));
            source.typed::<physical::FixedLenByteArrayType>(length, move |values, nulls| fixed(bytes, values, nulls))
        }
        (physical, ty) => bail!("{physical} cannot be read as {ty}"),
    })
}

fn int32_reader(source: Source, ty: DataType) -> Result<Box<dyn ColumnReader>> {
    type From = physical::Int32Type;
    // Small integers are stored in 32 bits; a file may hold what does not fit.
    Ok(match &ty {
        DataType::Int8 => source.primitive::<From, Int8Type>(ty, |v| Ok((*v).try_into()?)),
        DataType::Int16 => source.primitive::<From, Int16Type>(ty, |v| Ok((*v).try_into()?)),
        DataType::Int32 => source.primitive::<From, Int32Type>(ty, |v| Ok(*v)),
        DataType::UInt8 => source.primitive::<From, UInt8Type>(ty, |v| Ok((*v).try_into()?)),
        DataType::UInt16 => source.primitive::<From, UInt16Type>(ty, |v| Ok((*v).try_into()?)),
        DataType::UInt32 => source.primitive::<From, UInt32Type>(ty, |v| Ok(*v as u32)),
        DataType::Date32 => source.primitive::<From, Date32Type>(ty, |v| Ok(*v)),
        DataType::Decimal128(..) => source.primitive::<From, Decimal128Type>(ty, |v| Ok((*v).into())),
        other => bail!("INT32 cannot be read as {other}"),
    })
}

fn int64_reader(source: Source, ty: DataType) -> Result<Box<dyn ColumnReader>> {
    type From = physical::Int64Type;
    Ok(match &ty {
        DataType::Int64 => source.primitive::<From, Int64Type>(ty, |v| Ok(*v)),
        DataType::UInt64 => source.primitive::<From, UInt64Type>(ty, |v| Ok(*v as u64)),
        DataType::Decimal128(..) => source.primitive::<From, Decimal128Type>(ty, |v| Ok((*v).into())),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            source.primitive::<From, TimestampMillisecondType>(ty, |v| Ok(*v))
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            source.primitive::<From, TimestampMicrosecondType>(ty, |v| Ok(*v))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            source.primitive::<From, TimestampNanosecondType>(ty, |v| Ok(*v))
        }
        other => bail!("INT64 cannot be read as {other}"),
    })
}

/// Bytes of a value that lie in its page or in a copy; none where values are numbers.
type Length<V> = Option<fn(&V) -> usize>;

struct Source {
    descriptor: ColumnDescPtr,
    pages: Pages,
}

impl Source {
    fn typed<P: physical::DataType>(
        self,
        length: Length<P::T>,
        build: impl Fn(&[P::T], Option<NullBuffer>) -> Result<ArrayRef> + Send + 'static,
    ) -> Box<dyn ColumnReader> {
        let level_max = self.descriptor.max_def_level();
        let flow = self.pages.flow();
        let reader = ColumnReaderImpl::<P>::new(self.descriptor, Box::new(self.pages));
        let (values, levels) = (Pending::default(), Pending::default());
        Box::new(Typed::<P, _> { reader, flow, level_max, length, values, levels, bytes: 0, build })
    }

    fn primitive<P: physical::DataType, A: ArrowPrimitiveType>(
        self,
        ty: DataType,
        convert: impl Fn(&P::T) -> Result<A::Native> + Send + 'static,
    ) -> Box<dyn ColumnReader> {
        self.primitive_of::<P, A>(ty, None, convert)
    }

    fn primitive_of<P: physical::DataType, A: ArrowPrimitiveType>(
        self,
        ty: DataType,
        length: Length<P::T>,
        convert: impl Fn(&P::T) -> Result<A::Native> + Send + 'static,
    ) -> Box<dyn ColumnReader> {
        self.typed::<P>(length, move |values, nulls| {
            let native = spread(values, nulls.as_ref(), &convert)?;
            let array = PrimitiveArray::<A>::try_new(ScalarBuffer::from(native), nulls)?;
            let array = array.with_data_type(ty.clone());
            if let DataType::Decimal128(precision, _) = &ty {
                check_precision(&array, *precision)?;
            }
            Ok(Arc::new(array))
        })
    }
}

/// What was decoded; what was taken of it goes when it is most of it, so that each is moved a few
/// times at most.
struct Pending<V> {
    all: Vec<V>,
    taken: usize,
}

impl<V> Default for Pending<V> {
    fn default() -> Self {
        Pending { all: Vec::new(), taken: 0 }
    }
}

impl<V> Pending<V> {
    fn left(&self) -> &[V] {
        &self.all[self.taken..]
    }

    fn take(&mut self, count: usize)
    where
        V: Default,
    {
        // What a value holds goes at once.
        self.all[self.taken..self.taken + count].fill_with(V::default);
        self.taken += count;
        if self.taken * 2 >= self.all.len() {
            self.all.drain(..self.taken);
            self.taken = 0;
        }
    }
}

struct Typed<P: physical::DataType, B> {
    reader: ColumnReaderImpl<P>,
    flow: Arc<Flow>,
    level_max: i16,
    length: Length<P::T>,
    values: Pending<P::T>,
    levels: Pending<i16>,
    /// Of the values that are not taken yet.
    bytes: usize,
    build: B,
}

impl<P: physical::DataType, B> Typed<P, B> {
    /// Rows that are decoded and not taken.
    fn there(&self) -> usize {
        if self.level_max > 0 { self.levels.left().len() } else { self.values.left().len() }
    }

    /// Decodes at most `rows` more. Returns how many, and why not all of them.
    fn read(&mut self, rows: usize, room: u64, held_max: u64) -> Result<(usize, Stop)> {
        let asked = self.flow.ask(rows, room, held_max);
        let from = self.values.all.len();
        let (levels, values) = (&mut self.levels.all, &mut self.values.all);
        let (read, values_read, _) = self.reader.read_records(asked, Some(levels), None, values)?;
        ensure!(values.len() == from + values_read, "the column's values do not match their count");
        if let Some(length) = self.length {
            self.bytes += values[from..].iter().map(length).sum::<usize>();
        }
        let stop = self.flow.stopped();
        ensure!(read == asked || stop != Stop::None, "the column has fewer values than the table has rows");
        Ok((read, stop))
    }

    fn valid(&self, rows: usize) -> impl Iterator<Item = bool> {
        self.levels.left()[..rows].iter().map(|level| *level == self.level_max)
    }
}

impl<P, B> ColumnReader for Typed<P, B>
where
    P: physical::DataType,
    B: Fn(&[P::T], Option<NullBuffer>) -> Result<ArrayRef> + Send,
{
    fn fill(&mut self, rows: usize, room: usize) -> Result<(usize, usize)> {
        while self.there() < rows {
            let there = self.there();
            let held_max = match self.length {
                None => u64::MAX,
                Some(_) if there > 0 && self.bytes >= room => break,
                // A page more at least, or there would be no row at all.
                Some(_) if there == 0 => (room as u64).max(self.flow.held() + 1),
                Some(_) => room as u64,
            };
            let (read, stop) = self.read(rows - there, room as u64, held_max)?;
            if read == 0 && stop == Stop::HeldBody {
                ensure!(there > 0, "the column has fewer values than the table has rows");
                break;
            }
        }
        Ok((self.there().min(rows), self.bytes))
    }

    fn add_lengths(&self, lengths: &mut [usize]) {
        let Some(length) = self.length else { return };
        let mut values = self.values.left().iter();
        if self.level_max == 0 {
            lengths.iter_mut().zip(values).for_each(|(sum, value)| *sum += length(value));
            return;
        }
        let rows = lengths.len();
        for (sum, valid) in lengths.iter_mut().zip(self.valid(rows)) {
            if valid {
                *sum += values.next().map_or(0, length);
            }
        }
    }

    fn take(&mut self, rows: usize) -> Result<ArrayRef> {
        let nulls = (self.level_max > 0).then(|| NullBuffer::new(BooleanBuffer::from_iter(self.valid(rows))));
        let present = nulls.as_ref().map_or(rows, |nulls| rows - nulls.null_count());
        let values = self.values.left().get(..present).context("the column's nulls and values do not match")?;
        let array = (self.build)(values, nulls.filter(|nulls| nulls.null_count() > 0))?;
        if let Some(length) = self.length {
            self.bytes -= values.iter().map(length).sum::<usize>();
        }
        self.values.take(present);
        self.levels.take(if self.level_max > 0 { rows } else { 0 });
        Ok(array)
    }
}

/// Values at their rows, the default where a null is.
fn spread<V, N: Default + Clone>(
    values: &[V],
    nulls: Option<&NullBuffer>,
    convert: impl Fn(&V) -> Result<N>,
) -> Result<Vec<N>> {
    let Some(nulls) = nulls else {
        return values.iter().map(convert).collect();
    };
    let mut spread = vec![N::default(); nulls.len()];
    for (value, row) in values.iter().zip(nulls.valid_indices()) {
        spread[row] = convert(value)?;
    }
    Ok(spread)
}

/// Calls `append` with each row's value in turn.
fn each_row<'a, V>(
    values: &'a [V],
    nulls: Option<&NullBuffer>,
    mut append: impl FnMut(Option<&'a V>) -> Result<()>,
) -> Result<()> {
    let rows = nulls.map_or(values.len(), NullBuffer::len);
    let mut values = values.iter();
    (0..rows).try_for_each(|row| {
        append(match nulls {
            Some(nulls) if nulls.is_null(row) => None,
            _ => values.next(),
        })
    })
}

fn booleans(values: &[bool], nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    let spread = spread(values, nulls.as_ref(), |v| Ok(*v))?;
    Ok(Arc::new(BooleanArray::new(BooleanBuffer::from(spread), nulls)))
}

fn strings(values: &[ByteArray], nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    let rows = nulls.as_ref().map_or(values.len(), NullBuffer::len);
    let mut builder = StringBuilder::with_capacity(rows, total_bytes(values));
    each_row(values, nulls.as_ref(), |value| {
        match value {
            None => builder.append_null(),
            Some(value) => builder.append_value(std::str::from_utf8(value.data()).context("a text is not UTF-8")?),
        }
        Ok(())
    })?;
    Ok(Arc::new(builder.finish()))
}

fn binaries(values: &[ByteArray], nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    let rows = nulls.as_ref().map_or(values.len(), NullBuffer::len);
    let mut builder = BinaryBuilder::with_capacity(rows, total_bytes(values));
    each_row(values, nulls.as_ref(), |value| {
        builder.append_option(value.map(ByteArray::data));
        Ok(())
    })?;
    Ok(Arc::new(builder.finish()))
}

fn fixed(bytes: i32, values: &[FixedLenByteArray], nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    let mut builder = FixedSizeBinaryBuilder::with_capacity(values.len(), bytes);
    each_row(values, nulls.as_ref(), |value| {
        match value {
            None => builder.append_null(),
            Some(value) => builder.append_value(value.data())?,
        }
        Ok(())
    })?;
    Ok(Arc::new(builder.finish()))
}

fn total_bytes(values: &[ByteArray]) -> usize {
    values.iter().map(ByteArray::len).sum()
}

fn nanoseconds(value: &Int96) -> Result<i64> {
    let [low, high, day] = value.data() else {
        bail!("an INT96 has not three words");
    };
    let nanos = i128::from(u64::from(*high) << 32 | u64::from(*low));
    let days = i128::from(*day) - 2_440_588;
    i64::try_from(days * 86_400_000_000_000 + nanos)
        .map_err(|_| anyhow!("an INT96 timestamp lies outside of the years 1677 to 2262"))
}

/// A decimal's unscaled value: big-endian two's complement of any length.
fn decimal(bytes: &[u8]) -> Result<i128> {
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let (excess, low) = bytes.split_at(bytes.len().saturating_sub(16));
    let filler = if negative { 0xFF } else { 0 };
    ensure!(excess.iter().all(|byte| *byte == filler), "a decimal has more than 38 digits");
    let mut whole = [filler; 16];
    whole[16 - low.len()..].copy_from_slice(low);
    Ok(i128::from_be_bytes(whole))
}

fn check_precision<A: ArrowPrimitiveType>(array: &PrimitiveArray<A>, precision: u8) -> Result<()> {
    let array: &dyn Array = array;
    let array = array.as_primitive_opt::<Decimal128Type>();
    Ok(array.map_or(Ok(()), |array| array.validate_decimal_precision(precision))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_of_any_length() {
        assert_eq!(decimal(&[]).unwrap(), 0);
        assert_eq!(decimal(&[0xFF]).unwrap(), -1);
        assert_eq!(decimal(&[0, 0xFF]).unwrap(), 255);
        assert_eq!(decimal(&[0xFF; 20]).unwrap(), -1);
        assert_eq!(decimal(&i128::MIN.to_be_bytes()).unwrap(), i128::MIN);
        let mut twenty = [0; 20];
        twenty[0] = 1;
        assert!(decimal(&twenty).is_err());
    }

    #[test]
    fn an_int96_is_a_julian_day_and_nanoseconds() {
        let mut value = Int96::new();
        value.set_data(5, 0, 2_440_588);
        assert_eq!(nanoseconds(&value).unwrap(), 5);
        value.set_data(0, 0, 2_440_587);
        assert_eq!(nanoseconds(&value).unwrap(), -86_400_000_000_000);
        value.set_data(0, 0, u32::MAX);
        assert!(nanoseconds(&value).is_err());
    }
}
