//! Test data: batches with every type tables have, extremes and nulls included.

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::*;
use arrow_schema::{DataType, Field, Schema};
use std::sync::Arc;

/// A column for every type, five rows: a usual value, a null, the least, the greatest, zero or empty.
pub fn every_type() -> RecordBatch {
    let mut columns = numbers();
    columns.extend(times());
    columns.extend(bytes());
    let field = |(name, array): &(&str, ArrayRef)| Field::new(*name, array.data_type().clone(), *name != "id");
    let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
    let columns = columns.into_iter().map(|(_, array)| array).collect();
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

/// `count` rows of an integer, a repeating text and a nullable float: many batches, pages and runs.
pub fn many(count: usize) -> RecordBatch {
    let rows = 0..count as i64;
    let schema = Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8, true),
        Field::new("price", DataType::Float64, true),
    ]);
    let names = rows.clone().map(|row| format!("name {}", row % 97));
    let prices = rows.clone().map(|row| (row % 5 != 0).then_some(row as f64 / 8.0));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows)),
        Arc::new(StringArray::from_iter_values(names)),
        Arc::new(Float64Array::from_iter(prices)),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

macro_rules! integers {
    ($array:ident, $native:ident) => {
        Arc::new($array::from(vec![Some(7), None, Some($native::MIN), Some($native::MAX), Some(1)]))
    };
}

fn numbers() -> Vec<(&'static str, ArrayRef)> {
    let decimal = |precision: u8, scale: i8| -> ArrayRef {
        let most = 10i128.pow(precision.into()) - 1;
        let values = vec![Some(12_345), None, Some(-most), Some(most), Some(0)];
        let array = Decimal128Array::from(values);
        Arc::new(array.with_precision_and_scale(precision, scale).unwrap())
    };
    let singles = vec![Some(1.5), None, Some(f32::MIN), Some(f32::INFINITY), Some(-0.0)];
    let doubles = vec![Some(0.1), None, Some(f64::MIN_POSITIVE), Some(f64::MAX), Some(-0.0)];
    vec![
        ("id", Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5]))),
        ("i8", integers!(Int8Array, i8)),
        ("i16", integers!(Int16Array, i16)),
        ("i32", integers!(Int32Array, i32)),
        ("i64", integers!(Int64Array, i64)),
        ("u8", integers!(UInt8Array, u8)),
        ("u16", integers!(UInt16Array, u16)),
        ("u32", integers!(UInt32Array, u32)),
        ("u64", integers!(UInt64Array, u64)),
        ("f32", Arc::new(Float32Array::from(singles))),
        ("f64", Arc::new(Float64Array::from(doubles))),
        ("d9", decimal(9, 2)),
        ("d18", decimal(18, 4)),
        ("d38", decimal(38, 10)),
    ]
}

fn times() -> Vec<(&'static str, ArrayRef)> {
    let days = vec![Some(8036), None, Some(-719_162), Some(2_932_896), Some(0)];
    let coarse = vec![Some(1_700_000_000), None, Some(-62_135_596_800), Some(253_402_300_799), Some(0)];
    let fine = vec![Some(1_700_000_000_123_456_789), None, Some(i64::MIN), Some(i64::MAX), Some(0)];
    vec![
        ("date", Arc::new(Date32Array::from(days))),
        ("ts_s", Arc::new(TimestampSecondArray::from(coarse.clone()))),
        ("ts_ms", Arc::new(TimestampMillisecondArray::from(coarse).with_timezone("UTC"))),
        ("ts_us", Arc::new(TimestampMicrosecondArray::from(fine.clone()))),
        ("ts_ns", Arc::new(TimestampNanosecondArray::from(fine).with_timezone("UTC"))),
    ]
}

fn bytes() -> Vec<(&'static str, ArrayRef)> {
    let mut fixed = FixedSizeBinaryBuilder::new(4);
    fixed.append_value([1, 2, 3, 4]).unwrap();
    fixed.append_null();
    for byte in [0, 255, 7] {
        fixed.append_value([byte; 4]).unwrap();
    }
    let long = "sixteen or more bytes: longer text, \"quoted\", and\na new line ".repeat(9);
    let texts = vec![Some("ordinary"), None, Some("a,b"), Some(long.as_str()), Some("\u{e9}")];
    let all: Vec<u8> = (0..=255).collect();
    let binaries: Vec<Option<&[u8]>> = vec![Some(b"\x00\xff"), None, Some(b"x"), Some(&all), Some(b"")];
    let flags = vec![Some(true), None, Some(false), Some(true), Some(false)];
    vec![
        ("flag", Arc::new(BooleanArray::from(flags))),
        ("text", Arc::new(StringArray::from(texts))),
        ("bytes", Arc::new(BinaryArray::from(binaries))),
        ("fixed", Arc::new(fixed.finish())),
    ]
}
