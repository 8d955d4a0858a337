//! Reading a row where it lies.

use std::fmt;

use super::{Bytes, RowLayout, RowPart, Value, ValueRef};
use crate::schema::ColumnType;

/// A row, borrowed from a page, a delta record or a received buffer: from memory of one's own, or
/// from a peer's (then `P` is a [`ForeignSlice`](overside_memory::ForeignSlice)).
///
/// Getters of numbers give values. Text and bytes are borrowed where they lie in memory of one's
/// own; [`copy_bytes`](Self::copy_bytes) and [`copy_str`](Self::copy_str) take them from anywhere.
///
/// Its bytes may come from a hostile peer: the prefix has the layout's length (the maker of the
/// view has checked that), and everything else is checked where it is read.
#[derive(Clone, Copy)]
pub struct RowView<'a, P = &'a [u8]> {
    prefix: P,
    rest: P,
    layout: &'a RowLayout,
}

impl<'a> RowView<'a> {
    /// A view of a row's two parts.
    ///
    /// # Errors
    /// The prefix does not have the layout's length.
    pub fn new(prefix: &'a [u8], rest: &'a [u8], layout: &'a RowLayout) -> Result<RowView<'a>, Malformed> {
        if prefix.len() != layout.prefix_len {
            return Err(Malformed("a row's prefix has another length than its table's"));
        }
        Ok(RowView { prefix, rest, layout })
    }

    /// A view of a whole value, prefix and rest one after the other.
    ///
    /// # Errors
    /// The value is shorter than a prefix.
    pub fn of_value(value: &'a [u8], layout: &'a RowLayout) -> Result<RowView<'a>, Malformed> {
        let split = value.split_at_checked(layout.prefix_len);
        let (prefix, rest) = split.ok_or(Malformed("a value is shorter than its table's prefix"))?;
        Ok(RowView { prefix, rest, layout })
    }

    /// Text, or none when null.
    ///
    /// # Errors
    /// The row's bytes are broken there.
    ///
    /// # Panics
    /// There is no such column, or it is not of type Utf8.
    #[inline]
    pub fn str(&self, column: usize) -> Result<Option<&'a str>, Malformed> {
        self.expect(column, matches!(self.layout.columns[column].column_type, ColumnType::Utf8));
        let Some(bytes) = self.variable(column)? else { return Ok(None) };
        std::str::from_utf8(bytes).map(Some).map_err(|_| NOT_TEXT)
    }

    /// Bytes of a FixedBinary, Utf8 or Binary column, or none when null.
    ///
    /// # Errors
    /// The row's bytes are broken there.
    ///
    /// # Panics
    /// There is no such column, or it is of another type.
    #[inline]
    pub fn bytes(&self, column: usize) -> Result<Option<&'a [u8]>, Malformed> {
        let layout = &self.layout.columns[column];
        match layout.place {
            RowPart::Variable { .. } => self.variable(column),
            RowPart::Fixed { offset, width } => {
                self.expect(column, matches!(layout.column_type, ColumnType::FixedBinary(_)));
                Ok((!self.is_null(column)).then(|| &self.prefix[offset..offset + width]))
            }
        }
    }

    /// A value whose type is known at run time only.
    ///
    /// # Errors
    /// The row's bytes are broken there.
    ///
    /// # Panics
    /// There is no such column.
    #[inline]
    pub fn value(&self, column: usize) -> Result<ValueRef<'a>, Malformed> {
        if self.is_null(column) {
            return Ok(ValueRef::Null);
        }
        let layout = &self.layout.columns[column];
        let RowPart::Fixed { offset, width } = layout.place else {
            let bytes = self.variable(column)?.unwrap_or_default();
            return match layout.column_type {
                ColumnType::Utf8 => std::str::from_utf8(bytes).map(ValueRef::Utf8).map_err(|_| NOT_TEXT),
                _ => Ok(ValueRef::Binary(bytes)),
            };
        };
        fixed_value(&layout.column_type, &self.prefix[offset..offset + width])
    }

    /// Checks everything that the getters would: null bits, booleans, offsets, UTF-8. A server does
    /// this once for a row that a client sent, so that what it stores is whole.
    ///
    /// # Errors
    /// What is broken first.
    pub fn check(&self) -> Result<(), Malformed> {
        let spare = self.layout.null_bytes * 8 - self.layout.null_bits;
        if spare > 0 && self.prefix[self.layout.null_bytes - 1] >> (8 - spare) != 0 {
            return Err(Malformed("a row sets null bits of no column"));
        }
        let mut end = 0;
        for index in 0..self.layout.variable {
            let next = self.end_offset(index)?;
            if next < end {
                return Err(Malformed("a row's offsets decrease"));
            }
            end = next;
        }
        if self.rest.len() != self.layout.rest_len_min() + end as usize {
            return Err(Malformed("a row's last offset is not its end"));
        }
        // Any bytes are a number; of the others there are few.
        let mut checked = self.layout.columns.iter().enumerate();
        checked.try_for_each(|(column, layout)| match layout.column_type {
            ColumnType::Utf8 => match self.variable(column)? {
                Some(bytes) if !is_text(bytes) => Err(NOT_TEXT),
                _ => Ok(()),
            },
            ColumnType::Boolean => self.value(column).map(drop),
            _ => Ok(()),
        })
    }
}

impl<'a, P: Bytes> RowView<'a, P> {
    /// The same, where the caller has checked the length once for many rows.
    #[inline(always)]
    pub(crate) fn trusted(prefix: P, rest: P, layout: &'a RowLayout) -> RowView<'a, P> {
        debug_assert_eq!(prefix.len(), layout.prefix_len);
        RowView { prefix, rest, layout }
    }

    /// Null bits and fixed-width columns, as they lie.
    #[inline]
    pub fn prefix(&self) -> P {
        self.prefix
    }

    /// End offsets and bytes of the variable columns, as they lie; empty where the answer left them
    /// out.
    #[inline]
    pub fn rest(&self) -> P {
        self.rest
    }

    /// Bytes of the row: prefix and rest.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a row has at least one column")]
    pub fn len(&self) -> usize {
        self.prefix.len() + self.rest.len()
    }

    /// Where its columns lie.
    #[inline]
    pub fn layout(&self) -> &'a RowLayout {
        self.layout
    }

    /// Whether the column's value is absent.
    ///
    /// # Panics
    /// There is no such column.
    #[inline]
    pub fn is_null(&self, column: usize) -> bool {
        self.layout.columns[column].null.is_some_and(|bit| self.byte(bit.byte) & bit.mask != 0)
    }

    /// Appends the bytes of a FixedBinary, Utf8 or Binary column to `out`; false when it is null.
    ///
    /// # Errors
    /// The row's bytes are broken there.
    ///
    /// # Panics
    /// There is no such column, or it is of another type.
    pub fn copy_bytes(&self, column: usize, out: &mut Vec<u8>) -> Result<bool, Malformed> {
        let layout = &self.layout.columns[column];
        let bytes = match layout.place {
            RowPart::Variable { .. } => self.variable(column)?,
            RowPart::Fixed { offset, width } => {
                self.expect(column, matches!(layout.column_type, ColumnType::FixedBinary(_)));
                let bytes = self.prefix.part(offset, width).ok_or(SHORT)?;
                (!self.is_null(column)).then_some(bytes)
            }
        };
        bytes.into_iter().for_each(|bytes| bytes.append_to(out));
        Ok(bytes.is_some())
    }

    /// Appends the text of a Utf8 column to `out`; false when it is null. What is checked is the
    /// copy.
    ///
    /// # Errors
    /// The row's bytes are broken there; `out` is as it was.
    ///
    /// # Panics
    /// There is no such column, or it is not of type Utf8.
    pub fn copy_str(&self, column: usize, out: &mut String) -> Result<bool, Malformed> {
        self.expect(column, matches!(self.layout.columns[column].column_type, ColumnType::Utf8));
        let mut bytes = Vec::new();
        let present = self.copy_bytes(column, &mut bytes)?;
        out.push_str(std::str::from_utf8(&bytes).map_err(|_| NOT_TEXT)?);
        Ok(present)
    }

    /// A value of its own, whose type is known at run time only.
    ///
    /// # Errors
    /// The row's bytes are broken there.
    ///
    /// # Panics
    /// There is no such column.
    pub fn to_value(&self, column: usize) -> Result<Value, Malformed> {
        if self.is_null(column) {
            return Ok(Value::Null);
        }
        let layout = &self.layout.columns[column];
        let bytes = match layout.place {
            RowPart::Fixed { offset, width } => self.prefix.part(offset, width),
            RowPart::Variable { .. } => self.variable(column)?,
        };
        let mut copy = Vec::new();
        bytes.ok_or(SHORT)?.append_to(&mut copy);
        Ok(match layout.column_type {
            ColumnType::Utf8 => Value::Utf8(String::from_utf8(copy).map_err(|_| NOT_TEXT)?),
            ColumnType::Binary => Value::Binary(copy),
            _ => fixed_value(&layout.column_type, &copy)?.to_owned(),
        })
    }

    #[inline(always)]
    fn byte(&self, at: usize) -> u8 {
        self.prefix.load::<1>(at).map_or(0, |[byte]| byte)
    }

    #[inline]
    fn end_offset(&self, index: usize) -> Result<u32, Malformed> {
        self.rest.load(index * 4).map(u32::from_le_bytes).ok_or(Malformed("a row ends within its offsets"))
    }

    #[inline]
    fn variable(&self, column: usize) -> Result<Option<P>, Malformed> {
        let RowPart::Variable { index } = self.layout.columns[column].place else { self.mistaken(column) };
        if self.is_null(column) {
            return Ok(None);
        }
        let start = if index == 0 { 0 } else { self.end_offset(index - 1)? as usize };
        let end = self.end_offset(index)? as usize;
        let len = end.checked_sub(start);
        let bytes = len.and_then(|len| self.rest.part(self.layout.rest_len_min().checked_add(start)?, len));
        bytes.map(Some).ok_or(Malformed("a row's offsets point outside it"))
    }

    #[inline]
    fn fixed<const WIDTH: usize>(&self, column: usize) -> Option<[u8; WIDTH]> {
        let RowPart::Fixed { offset, .. } = self.layout.columns[column].place else { self.mistaken(column) };
        if self.is_null(column) {
            return None;
        }
        self.prefix.load(offset)
    }

    #[inline]
    fn expect(&self, column: usize, right: bool) {
        if !right {
            self.mistaken(column)
        }
    }

    #[cold]
    fn mistaken(&self, column: usize) -> ! {
        panic!("column {column} has type {}: use its getter", self.layout.columns[column].column_type)
    }
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $type:ty, $pattern:pat,)*) => {
        impl<P: Bytes> RowView<'_, P> {
            $($(#[$doc])*
            ///
            /// # Panics
            /// There is no such column, or it is of another type.
            #[inline]
            pub fn $name(&self, column: usize) -> Option<$type> {
                self.expect(column, matches!(self.layout.columns[column].column_type, $pattern));
                self.fixed(column).map(<$type>::from_le_bytes)
            })*
        }
    };
}

getters! {
    /// An Int8, or none when null.
    i8: i8, ColumnType::Int8,
    /// An Int16, or none when null.
    i16: i16, ColumnType::Int16,
    /// An Int32 or the days of a Date32, or none when null.
    i32: i32, ColumnType::Int32 | ColumnType::Date32,
    /// An Int64 or the ticks of a Timestamp, or none when null.
    i64: i64, ColumnType::Int64 | ColumnType::Timestamp { .. },
    /// A UInt8, or none when null.
    u8: u8, ColumnType::UInt8,
    /// A UInt16, or none when null.
    u16: u16, ColumnType::UInt16,
    /// A UInt32, or none when null.
    u32: u32, ColumnType::UInt32,
    /// A UInt64, or none when null.
    u64: u64, ColumnType::UInt64,
    /// A Float32, or none when null.
    f32: f32, ColumnType::Float32,
    /// A Float64, or none when null.
    f64: f64, ColumnType::Float64,
    /// A Decimal128, unscaled, or none when null.
    i128: i128, ColumnType::Decimal128 { .. },
}

impl<P: Bytes> RowView<'_, P> {
    /// A Boolean, or none when null; any byte but 0 is true.
    ///
    /// # Panics
    /// There is no such column, or it is of another type.
    #[inline]
    pub fn bool(&self, column: usize) -> Option<bool> {
        self.expect(column, matches!(self.layout.columns[column].column_type, ColumnType::Boolean));
        self.fixed::<1>(column).map(|[byte]| byte != 0)
    }
}

impl fmt::Debug for RowView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        for column in 0..self.layout.columns.len() {
            match self.value(column) {
                Ok(value) => list.entry(&value),
                Err(malformed) => list.entry(&malformed),
            };
        }
        list.finish()
    }
}

/// Whether the bytes are UTF-8. Most texts are short and ASCII, which is seen in a few words.
#[inline]
fn is_text(bytes: &[u8]) -> bool {
    bytes.is_ascii() || std::str::from_utf8(bytes).is_ok()
}

#[inline]
fn fixed_value<'a>(column_type: &ColumnType, bytes: &'a [u8]) -> Result<ValueRef<'a>, Malformed> {
    fn array<const WIDTH: usize>(bytes: &[u8]) -> Result<[u8; WIDTH], Malformed> {
        bytes.try_into().map_err(|_| Malformed("a layout gives a column another width than its type"))
    }
    Ok(match column_type {
        ColumnType::Int8 => ValueRef::Int8(i8::from_le_bytes(array(bytes)?)),
        ColumnType::Int16 => ValueRef::Int16(i16::from_le_bytes(array(bytes)?)),
        ColumnType::Int32 => ValueRef::Int32(i32::from_le_bytes(array(bytes)?)),
        ColumnType::Int64 => ValueRef::Int64(i64::from_le_bytes(array(bytes)?)),
        ColumnType::UInt8 => ValueRef::UInt8(u8::from_le_bytes(array(bytes)?)),
        ColumnType::UInt16 => ValueRef::UInt16(u16::from_le_bytes(array(bytes)?)),
        ColumnType::UInt32 => ValueRef::UInt32(u32::from_le_bytes(array(bytes)?)),
        ColumnType::UInt64 => ValueRef::UInt64(u64::from_le_bytes(array(bytes)?)),
        ColumnType::Float32 => ValueRef::Float32(f32::from_le_bytes(array(bytes)?)),
        ColumnType::Float64 => ValueRef::Float64(f64::from_le_bytes(array(bytes)?)),
        ColumnType::Decimal128 { .. } => ValueRef::Decimal128(i128::from_le_bytes(array(bytes)?)),
        ColumnType::Date32 => ValueRef::Date32(i32::from_le_bytes(array(bytes)?)),
        ColumnType::Timestamp { .. } => ValueRef::Timestamp(i64::from_le_bytes(array(bytes)?)),
        ColumnType::Boolean => match bytes {
            [0] => ValueRef::Boolean(false),
            [1] => ValueRef::Boolean(true),
            _ => return Err(Malformed("a row's boolean is neither 0 nor 1")),
        },
        ColumnType::FixedBinary(_) => ValueRef::FixedBinary(bytes),
        ColumnType::Utf8 | ColumnType::Binary => {
            return Err(Malformed("a layout puts a variable column into the prefix"));
        }
    })
}

const NOT_TEXT: Malformed = Malformed("a row's text is not UTF-8");
const SHORT: Malformed = Malformed("a row's prefix has another length than its table's");

/// Bytes that are not what they claim to be; says what was wrong first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: the peer sent broken data, close the connection to it")]
pub struct Malformed(pub &'static str);
