use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::schema::{Column, ColumnType, Schema, tests::any_schema};

/// A value of a type, drawn from a seed (and often an extreme one).
pub(crate) fn value_of(column_type: &ColumnType, seed: u128) -> Value {
    let seed = match seed % 7 {
        0 => 0,
        1 => u128::MAX,
        2 => 1 << 127 | 1 << 63 | 1 << 31 | 1 << 15 | 1 << 7,
        _ => seed,
    };
    let bytes = |len: usize| (0..len).map(|i| (seed >> (i * 5 % 120)) as u8 & !(i as u8 & 1)).collect::<Vec<u8>>();
    match column_type {
        ColumnType::Int8 => Value::Int8(seed as i8),
        ColumnType::Int16 => Value::Int16(seed as i16),
        ColumnType::Int32 => Value::Int32(seed as i32),
        ColumnType::Int64 => Value::Int64(seed as i64),
        ColumnType::UInt8 => Value::UInt8(seed as u8),
        ColumnType::UInt16 => Value::UInt16(seed as u16),
        ColumnType::UInt32 => Value::UInt32(seed as u32),
        ColumnType::UInt64 => Value::UInt64(seed as u64),
        ColumnType::Float32 => Value::Float32((seed as i32) as f32 / 3.0),
        ColumnType::Float64 => Value::Float64((seed as i64) as f64 / 3.0),
        ColumnType::Decimal128 { .. } => Value::Decimal128(seed as i128),
        ColumnType::Date32 => Value::Date32(seed as i32),
        ColumnType::Timestamp { .. } => Value::Timestamp(seed as i64),
        ColumnType::Boolean => Value::Boolean(seed & 8 != 0),
        ColumnType::FixedBinary(width) => Value::FixedBinary(bytes(usize::from(*width))),
        ColumnType::Utf8 => Value::Utf8(bytes((seed % 23) as usize).iter().map(|b| char::from(b & 0x7f)).collect()),
        ColumnType::Binary => Value::Binary(bytes((seed % 29) as usize)),
    }
}

/// Values of a whole row, a nullable column null one time in four.
pub(crate) fn row_of(schema: &Schema, seed: u128) -> Vec<Value> {
    let value = |(index, column): (usize, &Column)| {
        let seed = seed.rotate_left(index as u32 * 17).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        if column.nullable && seed >> 64 & 3 == 0 { Value::Null } else { value_of(&column.column_type, seed >> 3) }
    };
    schema.columns().iter().enumerate().map(value).collect()
}

pub(crate) fn encode_row(layout: &Arc<RowLayout>, values: &[Value]) -> Vec<u8> {
    let refs: Vec<ValueRef<'_>> = values.iter().map(Value::as_ref).collect();
    RowBuilder::new(layout.clone()).encode(&refs).expect("a whole row").to_vec()
}

pub(crate) fn values_of(row: &RowView<'_>) -> Vec<Value> {
    (0..row.layout().columns().len()).map(|c| row.value(c).expect("a whole row").to_owned()).collect()
}

proptest! {
    #[test]
    fn a_row_reads_as_it_was_built(schema in any_schema(), seed in any::<u128>()) {
        let layout = Arc::new(RowLayout::new(&schema));
        let values = row_of(&schema, seed);
        let bytes = encode_row(&layout, &values);
        let row = RowView::of_value(&bytes, &layout).unwrap();
        row.check().unwrap();
        prop_assert_eq!(values_of(&row), values);
        prop_assert_eq!(row.len(), bytes.len());
    }

    #[test]
    fn garbage_never_panics(schema in any_schema(), bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let layout = RowLayout::new(&schema);
        if let Ok(row) = RowView::of_value(&bytes, &layout) {
            let _ = row.check();
            let _ = format!("{row:?}");
        }
    }

    #[test]
    fn a_checked_row_has_all_its_values(
        schema in any_schema(), seed in any::<u128>(), at in any::<prop::sample::Index>(), to in any::<u8>(),
    ) {
        let layout = Arc::new(RowLayout::new(&schema));
        let mut bytes = encode_row(&layout, &row_of(&schema, seed));
        let at = at.index(bytes.len());
        bytes[at] = to;
        let row = RowView::of_value(&bytes, &layout).unwrap();
        if row.check().is_ok() {
            values_of(&row);
        }
    }
}

fn two_texts() -> Arc<RowLayout> {
    let columns = vec![
        Column::new("a", ColumnType::Int32),
        Column::nullable("b", ColumnType::Utf8),
        Column::new("c", ColumnType::Binary),
    ];
    Arc::new(RowLayout::new(&Schema::with_key(columns, &["a"]).unwrap()))
}

#[test]
fn lies_as_documented() {
    let mut builder = RowBuilder::new(two_texts());
    let value = builder.encode(&[ValueRef::Int32(0x01020304), ValueRef::Utf8("hi"), ValueRef::Binary(b"xyz")]);
    assert_eq!(value.unwrap(), b"\x00\x04\x03\x02\x01\x02\x00\x00\x00\x05\x00\x00\x00hixyz");
    let value = builder.encode(&[ValueRef::Int32(-1), ValueRef::Null, ValueRef::Binary(b"")]);
    assert_eq!(value.unwrap(), b"\x01\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00");
}

#[test]
fn mistakes_of_the_builders_user_are_errors() {
    let mut builder = RowBuilder::new(two_texts());
    builder.begin();
    assert_eq!(builder.finish().map(drop), Err(BuildError::Missing { column: 0 }));
    builder.set_i32(0, 1).unwrap();
    assert_eq!(builder.finish().map(drop), Err(BuildError::Missing { column: 2 }));
    builder.set_bytes(2, b"c").unwrap();
    assert_eq!(builder.set_bytes(1, b"b"), Err(BuildError::OutOfOrder { column: 1 }));
    assert!(matches!(builder.set_i64(0, 1), Err(BuildError::WrongType { column: 0, .. })));
    assert_eq!(builder.set_i64(9, 1), Err(BuildError::NoColumn { column: 9 }));
    assert_eq!(builder.set(0, ValueRef::Null), Err(BuildError::Missing { column: 0 }));
    builder.begin();
    assert!(matches!(builder.set_bytes(1, b"\xff"), Err(BuildError::WrongType { column: 1, .. })));
    assert!(matches!(builder.set_bytes(2, &vec![0; 1 << 20]), Err(BuildError::TooLong { .. })));
}

#[test]
fn broken_rows_are_refused() {
    let layout = two_texts();
    let check = |bytes: &[u8]| RowView::of_value(bytes, &layout).and_then(|row| row.check());
    assert!(check(b"\x00\x04\x03\x02\x01\x02\x00\x00\x00\x05\x00\x00\x00hixyz").is_ok());
    assert!(check(b"\x00\x04\x03\x02").is_err(), "no prefix");
    assert!(check(b"\x00\x04\x03\x02\x01\x02\x00\x00\x00\x05\x00\x00").is_err(), "no offsets");
    assert!(check(b"\x02\x04\x03\x02\x01\x02\x00\x00\x00\x05\x00\x00\x00hixyz").is_err(), "a bit of no column");
    assert!(check(b"\x00\x04\x03\x02\x01\x06\x00\x00\x00\x05\x00\x00\x00hixyz").is_err(), "offsets decrease");
    assert!(check(b"\x00\x04\x03\x02\x01\x02\x00\x00\x00\x04\x00\x00\x00hixyz").is_err(), "bytes of no column");
    assert!(check(b"\x00\x04\x03\x02\x01\x02\x00\x00\x00\x05\x00\x00\x00\xff\xffxyz").is_err(), "no UTF-8");
}
