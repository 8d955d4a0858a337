use std::cmp::Ordering;

use proptest::prelude::*;

use super::*;
use crate::row::tests::{encode_row, row_of, value_of};
use crate::row::{RowLayout, RowView};
use crate::schema::{Column, tests::any_schema};

fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Int8(a), Value::Int8(b)) => a.cmp(b),
        (Value::Int16(a), Value::Int16(b)) => a.cmp(b),
        (Value::Int32(a), Value::Int32(b)) | (Value::Date32(a), Value::Date32(b)) => a.cmp(b),
        (Value::Int64(a), Value::Int64(b)) | (Value::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
        (Value::UInt8(a), Value::UInt8(b)) => a.cmp(b),
        (Value::UInt16(a), Value::UInt16(b)) => a.cmp(b),
        (Value::UInt32(a), Value::UInt32(b)) => a.cmp(b),
        (Value::UInt64(a), Value::UInt64(b)) => a.cmp(b),
        (Value::Float32(a), Value::Float32(b)) => a.total_cmp(b),
        (Value::Float64(a), Value::Float64(b)) => a.total_cmp(b),
        (Value::Decimal128(a), Value::Decimal128(b)) => a.cmp(b),
        (Value::Boolean(a), Value::Boolean(b)) => a.cmp(b),
        (Value::Utf8(a), Value::Utf8(b)) => a.cmp(b),
        (Value::FixedBinary(a), Value::FixedBinary(b)) | (Value::Binary(a), Value::Binary(b)) => a.cmp(b),
        _ => panic!("{a:?} and {b:?} are of two types"),
    }
}

fn encode(codec: &KeyCodec, values: &[Value]) -> Vec<u8> {
    let mut key = Vec::new();
    codec.encode(&values.iter().map(Value::as_ref).collect::<Vec<_>>(), &mut key).unwrap();
    key
}

/// A codec whose first column may be one of variable length, and two keys of it that often share
/// columns.
fn codec_and_keys() -> impl Strategy<Value = (KeyCodec, Vec<Value>, Vec<Value>)> {
    (any_schema(), any::<[u128; 6]>(), any::<[bool; 3]>()).prop_map(|(schema, seeds, same)| {
        let codec = KeyCodec::new(&schema);
        let first: Vec<Value> = codec.types().iter().zip(seeds).map(|(t, seed)| value_of(t, seed)).collect();
        let second = codec.types().iter().zip(&seeds[3..]).zip(same).zip(&first);
        let second = second.map(|(((t, seed), same), first)| if same { first.clone() } else { value_of(t, *seed) });
        (codec.clone(), first.clone(), second.collect())
    })
}

proptest! {
    #[test]
    fn order_of_bytes_is_order_of_values((codec, a, b) in codec_and_keys()) {
        let order = a.iter().zip(&b).map(|(a, b)| compare(a, b)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal);
        prop_assert_eq!(encode(&codec, &a).cmp(&encode(&codec, &b)), order);
    }

    #[test]
    fn order_holds_for_text_around_zero_bytes(a in "[\0\u{1}a]{0,4}", b in "[\0\u{1}a]{0,4}", x: u8, y: u8) {
        let columns = vec![Column::new("t", ColumnType::Utf8), Column::new("n", ColumnType::UInt8)];
        let codec = KeyCodec::new(&Schema::with_key(columns, &["t", "n"]).unwrap());
        let key = |t: &str, n| encode(&codec, &[Value::Utf8(t.to_owned()), Value::UInt8(n)]);
        prop_assert_eq!(key(&a, x).cmp(&key(&b, y)), (a, x).cmp(&(b, y)));
    }

    #[test]
    fn order_holds_for_floats(a: f64, b: f64, c: f32, d: f32) {
        let columns = vec![Column::new("f", ColumnType::Float64), Column::new("g", ColumnType::Float32)];
        let codec = KeyCodec::new(&Schema::with_key(columns, &["f", "g"]).unwrap());
        let key = |f, g| encode(&codec, &[Value::Float64(f), Value::Float32(g)]);
        prop_assert_eq!(key(a, c).cmp(&key(b, d)), a.total_cmp(&b).then(c.total_cmp(&d)));
    }

    #[test]
    fn decodes_what_it_encodes((codec, a, _) in codec_and_keys()) {
        let key = encode(&codec, &a);
        prop_assert_eq!(codec.decode(&key).unwrap(), a);
    }

    #[test]
    fn first_columns_are_a_prefix((codec, a, _) in codec_and_keys(), count in 0usize..3) {
        let key = encode(&codec, &a);
        let count = count.min(a.len());
        let mut first = Vec::new();
        codec.encode_first(&a[..count].iter().map(Value::as_ref).collect::<Vec<_>>(), &mut first).unwrap();
        prop_assert!(key.starts_with(&first));
    }

    #[test]
    fn a_rows_key_is_its_columns((schema, seed) in (any_schema(), any::<u128>())) {
        let codec = KeyCodec::new(&schema);
        let layout = std::sync::Arc::new(RowLayout::new(&schema));
        let values = row_of(&schema, seed);
        let row = encode_row(&layout, &values);
        let mut key = Vec::new();
        codec.encode_row(&RowView::of_value(&row, &layout).unwrap(), &mut key).unwrap();
        let expected: Vec<Value> = codec.columns().iter().map(|&c| values[c].clone()).collect();
        prop_assert_eq!(codec.decode(&key).unwrap(), expected);
    }

    #[test]
    fn garbage_is_an_error_or_the_only_encoding((codec, a, _) in codec_and_keys(),
        garbage in proptest::collection::vec(any::<u8>(), 0..40), at in any::<prop::sample::Index>(), to: u8) {
        let mut flipped = encode(&codec, &a);
        if !flipped.is_empty() {
            let at = at.index(flipped.len());
            flipped[at] = to;
        }
        for bytes in [garbage, flipped] {
            if let Ok(values) = codec.decode(&bytes) {
                prop_assert_eq!(encode(&codec, &values), bytes);
            }
        }
    }
}

#[test]
fn mistakes_are_errors_and_leave_nothing() {
    let columns = vec![Column::new("a", ColumnType::Utf8), Column::new("b", ColumnType::Int32)];
    let codec = KeyCodec::new(&Schema::with_key(columns, &["b", "a"]).unwrap());
    let mut out = b"before".to_vec();
    let mut refused = |values: &[ValueRef<'_>]| {
        let error = codec.encode(values, &mut out).unwrap_err();
        assert_eq!(out, b"before");
        error
    };
    assert_eq!(refused(&[ValueRef::Int32(1)]), KeyError::ValueCount { given: 1, columns: 2 });
    assert_eq!(refused(&[ValueRef::Int32(1), ValueRef::Null]), KeyError::Null { column: 0 });
    assert!(matches!(refused(&[ValueRef::Int64(1), ValueRef::Utf8("")]), KeyError::WrongType { column: 1, .. }));
    let long = "x".repeat(KEY_BYTES_MAX);
    assert_eq!(refused(&[ValueRef::Int32(1), ValueRef::Utf8(&long)]), KeyError::TooLong { bytes: KEY_BYTES_MAX + 4 });
}
