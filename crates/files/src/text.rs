//! Values as text: what CSV files hold, keys on the command line are, and tables print.
//!
//! Every value but a null parses back to itself from what [`write_value`] wrote.

use super::{calendar, types::type_name};
use arrow_array::builder::{BinaryBuilder, BooleanBuilder, FixedSizeBinaryBuilder, PrimitiveBuilder, StringBuilder};
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, cast::AsArray};
use arrow_schema::{DataType, TimeUnit};
use std::fmt::Write;
use std::str::FromStr;
use std::sync::Arc;

/// A column being built from text, value by value.
pub trait TextColumn: Send {
    /// Appends the value that `text` writes.
    ///
    /// # Errors
    /// Says what is wrong with the text; nothing was appended.
    fn push(&mut self, text: &str) -> Result<(), String>;

    /// Appends a null.
    fn push_null(&mut self);

    /// The values appended since the last call.
    fn finish(&mut self) -> ArrayRef;
}

/// A builder for a column of type `ty`.
///
/// # Errors
/// Tables have no such type ([`super::types::check_type`] says it better).
pub fn text_column(ty: &DataType) -> anyhow::Result<Box<dyn TextColumn>> {
    Ok(match ty {
        DataType::Int8 => number::<Int8Type>(ty),
        DataType::Int16 => number::<Int16Type>(ty),
        DataType::Int32 => number::<Int32Type>(ty),
        DataType::Int64 => number::<Int64Type>(ty),
        DataType::UInt8 => number::<UInt8Type>(ty),
        DataType::UInt16 => number::<UInt16Type>(ty),
        DataType::UInt32 => number::<UInt32Type>(ty),
        DataType::UInt64 => number::<UInt64Type>(ty),
        DataType::Float32 => number::<Float32Type>(ty),
        DataType::Float64 => number::<Float64Type>(ty),
        DataType::Date32 => primitive::<Date32Type>(ty, |text| {
            calendar::parse_date(text).ok_or_else(|| format!("`{text}` is no date (YYYY-MM-DD)"))
        }),
        DataType::Decimal128(precision, scale) => {
            let (precision, scale) = (*precision, *scale);
            primitive::<Decimal128Type>(ty, move |text| parse_decimal(text, precision, scale))
        }
        DataType::Timestamp(unit, _) => timestamp(ty, unit),
        DataType::Boolean => Box::new(BooleanBuilder::new()),
        DataType::Utf8 => Box::new(StringBuilder::new()),
        DataType::Binary => Box::new(BinaryBuilder::new()),
        DataType::FixedSizeBinary(bytes) if *bytes > 0 => {
            Box::new(FixedColumn { bytes: *bytes, builder: FixedSizeBinaryBuilder::new(*bytes) })
        }
        other => anyhow::bail!("a {} cannot be given as text", type_name(other)),
    })
}

/// Appends the value of row `row` of `array` to `out`; a null appends nothing.
///
/// Bytes are written as `0x` and hexadecimal digits.
pub fn write_value(array: &dyn Array, row: usize, out: &mut String) {
    if array.is_null(row) {
        return;
    }
    let _ = match array.data_type() {
        DataType::Int8 => write!(out, "{}", array.as_primitive::<Int8Type>().value(row)),
        DataType::Int16 => write!(out, "{}", array.as_primitive::<Int16Type>().value(row)),
        DataType::Int32 => write!(out, "{}", array.as_primitive::<Int32Type>().value(row)),
        DataType::Int64 => write!(out, "{}", array.as_primitive::<Int64Type>().value(row)),
        DataType::UInt8 => write!(out, "{}", array.as_primitive::<UInt8Type>().value(row)),
        DataType::UInt16 => write!(out, "{}", array.as_primitive::<UInt16Type>().value(row)),
        DataType::UInt32 => write!(out, "{}", array.as_primitive::<UInt32Type>().value(row)),
        DataType::UInt64 => write!(out, "{}", array.as_primitive::<UInt64Type>().value(row)),
        DataType::Float32 => write!(out, "{:?}", array.as_primitive::<Float32Type>().value(row)),
        DataType::Float64 => write!(out, "{:?}", array.as_primitive::<Float64Type>().value(row)),
        DataType::Decimal128(_, scale) => {
            write_decimal(array.as_primitive::<Decimal128Type>().value(row), *scale, out);
            Ok(())
        }
        DataType::Date32 => {
            calendar::write_date(array.as_primitive::<Date32Type>().value(row).into(), out);
            Ok(())
        }
        DataType::Timestamp(unit, zone) => {
            calendar::write_timestamp(ticks(array, unit, row), unit, zone.is_some(), out);
            Ok(())
        }
        DataType::Boolean => write!(out, "{}", array.as_boolean().value(row)),
        DataType::Utf8 => out.write_str(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => out.write_str(array.as_string::<i64>().value(row)),
        DataType::Utf8View => out.write_str(array.as_string_view().value(row)),
        DataType::Binary => write_hex(array.as_binary::<i32>().value(row), out),
        DataType::LargeBinary => write_hex(array.as_binary::<i64>().value(row), out),
        DataType::BinaryView => write_hex(array.as_binary_view().value(row), out),
        DataType::FixedSizeBinary(_) => write_hex(array.as_fixed_size_binary().value(row), out),
        other => write!(out, "<{other}>"),
    };
}

/// The ticks of row `row` of a timestamp column.
pub fn ticks(array: &dyn Array, unit: &TimeUnit, row: usize) -> i64 {
    match unit {
        TimeUnit::Second => array.as_primitive::<TimestampSecondType>().value(row),
        TimeUnit::Millisecond => array.as_primitive::<TimestampMillisecondType>().value(row),
        TimeUnit::Microsecond => array.as_primitive::<TimestampMicrosecondType>().value(row),
        TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().value(row),
    }
}

struct Primitive<T: ArrowPrimitiveType, P> {
    builder: PrimitiveBuilder<T>,
    parse: P,
}

impl<T, P> TextColumn for Primitive<T, P>
where
    T: ArrowPrimitiveType,
    P: Fn(&str) -> Result<T::Native, String> + Send,
{
    fn push(&mut self, text: &str) -> Result<(), String> {
        self.builder.append_value((self.parse)(text)?);
        Ok(())
    }

    fn push_null(&mut self) {
        self.builder.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.builder.finish())
    }
}

impl TextColumn for BooleanBuilder {
    fn push(&mut self, text: &str) -> Result<(), String> {
        self.append_value(match text {
            "true" | "True" | "TRUE" | "t" | "1" => true,
            "false" | "False" | "FALSE" | "f" | "0" => false,
            _ => return Err(format!("`{text}` is no boolean (true, false)")),
        });
        Ok(())
    }

    fn push_null(&mut self) {
        self.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(BooleanBuilder::finish(self))
    }
}

impl TextColumn for StringBuilder {
    fn push(&mut self, text: &str) -> Result<(), String> {
        self.append_value(text);
        Ok(())
    }

    fn push_null(&mut self) {
        self.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(StringBuilder::finish(self))
    }
}

impl TextColumn for BinaryBuilder {
    fn push(&mut self, text: &str) -> Result<(), String> {
        self.append_value(parse_hex(text)?);
        Ok(())
    }

    fn push_null(&mut self) {
        self.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(BinaryBuilder::finish(self))
    }
}

struct FixedColumn {
    bytes: i32,
    builder: FixedSizeBinaryBuilder,
}

impl TextColumn for FixedColumn {
    fn push(&mut self, text: &str) -> Result<(), String> {
        let value = parse_hex(text)?;
        let (has, holds) = (value.len(), self.bytes);
        self.builder.append_value(&value).map_err(|_| format!("`{text}` has {has} bytes, the column holds {holds}"))
    }

    fn push_null(&mut self) {
        self.builder.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.builder.finish())
    }
}

fn primitive<T: ArrowPrimitiveType>(
    ty: &DataType,
    parse: impl Fn(&str) -> Result<T::Native, String> + Send + 'static,
) -> Box<dyn TextColumn> {
    let builder = PrimitiveBuilder::<T>::new().with_data_type(ty.clone());
    Box::new(Primitive { builder, parse })
}

fn number<T: ArrowPrimitiveType>(ty: &DataType) -> Box<dyn TextColumn>
where
    T::Native: FromStr,
{
    let name = type_name(ty);
    primitive::<T>(ty, move |text| text.parse::<T::Native>().map_err(|_| format!("`{text}` is no {name}")))
}

fn timestamp(ty: &DataType, unit: &TimeUnit) -> Box<dyn TextColumn> {
    let (name, tick_unit) = (type_name(ty), *unit);
    let parse = move |text: &str| {
        calendar::parse_timestamp(text, &tick_unit)
            .ok_or_else(|| format!("`{text}` is no {name} (YYYY-MM-DDTHH:MM:SS, as fine as the unit allows)"))
    };
    match unit {
        TimeUnit::Second => primitive::<TimestampSecondType>(ty, parse),
        TimeUnit::Millisecond => primitive::<TimestampMillisecondType>(ty, parse),
        TimeUnit::Microsecond => primitive::<TimestampMicrosecondType>(ty, parse),
        TimeUnit::Nanosecond => primitive::<TimestampNanosecondType>(ty, parse),
    }
}

fn parse_decimal(text: &str, precision: u8, scale: i8) -> Result<i128, String> {
    let told = |why: &str| Err(format!("`{text}` {why} decimal({precision},{scale})"));
    let scale = scale.max(0) as usize;
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let fraction = fraction.trim_end_matches('0');
    let all_digits = whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit());
    if !all_digits || digits.bytes().all(|b| b == b'.') {
        return told("is no");
    }
    if fraction.len() > scale {
        return told("has more decimal places than");
    }
    let whole = whole.trim_start_matches('0');
    if whole.len() + scale > precision as usize {
        return told("does not fit");
    }
    let padding = scale - fraction.len();
    let magnitude = whole
        .bytes()
        .chain(fraction.bytes())
        .chain(std::iter::repeat_n(b'0', padding))
        .fold(0i128, |value, digit| value * 10 + i128::from(digit - b'0'));
    Ok(if text.starts_with('-') { -magnitude } else { magnitude })
}

/// Appends an unscaled decimal with its point.
pub fn write_decimal(value: i128, scale: i8, out: &mut String) {
    let magnitude = value.unsigned_abs().to_string();
    if value < 0 {
        out.push('-');
    }
    if scale <= 0 {
        out.push_str(&magnitude);
        out.extend(std::iter::repeat_n('0', usize::from(scale.unsigned_abs())));
        return;
    }
    let scale = scale as usize;
    let padded = format!("{magnitude:0>width$}", width = scale + 1);
    let (whole, fraction) = padded.split_at(padded.len() - scale);
    let _ = write!(out, "{whole}.{fraction}");
}

fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    let told = || format!("`{text}` is no bytes (0x and pairs of hexadecimal digits)");
    let digits = text.strip_prefix("0x").ok_or_else(told)?.as_bytes();
    if digits.len() % 2 != 0 {
        return Err(told());
    }
    let nibble = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
    digits
        .chunks_exact(2)
        .map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?))
        .collect::<Option<_>>()
        .ok_or_else(told)
}

/// Appends bytes as `0x` and hexadecimal digits.
pub fn write_hex(bytes: &[u8], out: &mut String) -> std::fmt::Result {
    out.write_str("0x")?;
    bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::parse_type;

    #[test]
    fn what_a_type_cannot_hold_is_refused_with_the_text_in_the_message() {
        for (ty, text) in [
            ("int8", "128"),
            ("uint8", "-1"),
            ("int64", "1.0"),
            ("int64", ""),
            ("float64", "one"),
            ("decimal(5,2)", "1000"),
            ("decimal(5,2)", "1.234"),
            ("decimal(5,2)", "."),
            ("decimal(5,2)", "1e3"),
            ("date", "2020-02-30"),
            ("timestamp[s]", "2020-01-01T00:00:00.5"),
            ("boolean", "yes"),
            ("binary", "abc"),
            ("binary", "0xabc"),
            ("fixed(2)", "0xaabbcc"),
        ] {
            let error = text_column(&parse_type(ty).unwrap()).unwrap().push(text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{ty}: {error}");
        }
    }

    #[test]
    fn decimals_keep_their_scale() {
        for (value, scale, text) in
            [(5, 2, "0.05"), (-5, 2, "-0.05"), (12_345, 2, "123.45"), (0, 0, "0"), (7, -2, "700")]
        {
            let mut out = String::new();
            write_decimal(value, scale, &mut out);
            assert_eq!(out, text);
        }
        assert_eq!(parse_decimal("-1.5", 5, 2), Ok(-150));
        assert_eq!(parse_decimal("1.500", 5, 2), Ok(150));
        assert_eq!(parse_decimal(".5", 5, 2), Ok(50));
    }
}
