use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, RecordBatch};
use proptest::prelude::*;

use super::*;
use crate::block::tests::{Lending, any_world};
use crate::block::{LentBlock, LentError, RowBlock};
use crate::client::RowBatch;
use crate::key::KeyCodec;
use crate::projection::Projection;
use crate::row::tests::{encode_row, row_of, values_of};
use crate::row::{RowLayout, RowView, Value};
use crate::schema::{Column, ColumnType, Schema, TimeUnit, tests::any_schema};

fn cell(array: &ArrayRef, column_type: &ColumnType, row: usize) -> Value {
    if array.is_null(row) {
        return Value::Null;
    }
    match column_type {
        ColumnType::Int8 => Value::Int8(array.as_primitive::<Int8Type>().value(row)),
        ColumnType::Int16 => Value::Int16(array.as_primitive::<Int16Type>().value(row)),
        ColumnType::Int32 => Value::Int32(array.as_primitive::<Int32Type>().value(row)),
        ColumnType::Int64 => Value::Int64(array.as_primitive::<Int64Type>().value(row)),
        ColumnType::UInt8 => Value::UInt8(array.as_primitive::<UInt8Type>().value(row)),
        ColumnType::UInt16 => Value::UInt16(array.as_primitive::<UInt16Type>().value(row)),
        ColumnType::UInt32 => Value::UInt32(array.as_primitive::<UInt32Type>().value(row)),
        ColumnType::UInt64 => Value::UInt64(array.as_primitive::<UInt64Type>().value(row)),
        ColumnType::Float32 => Value::Float32(array.as_primitive::<Float32Type>().value(row)),
        ColumnType::Float64 => Value::Float64(array.as_primitive::<Float64Type>().value(row)),
        ColumnType::Decimal128 { .. } => Value::Decimal128(array.as_primitive::<Decimal128Type>().value(row)),
        ColumnType::Date32 => Value::Date32(array.as_primitive::<Date32Type>().value(row)),
        ColumnType::Timestamp { unit, .. } => Value::Timestamp(match unit {
            TimeUnit::Second => array.as_primitive::<TimestampSecondType>().value(row),
            TimeUnit::Millisecond => array.as_primitive::<TimestampMillisecondType>().value(row),
            TimeUnit::Microsecond => array.as_primitive::<TimestampMicrosecondType>().value(row),
            TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().value(row),
        }),
        ColumnType::Boolean => Value::Boolean(array.as_boolean().value(row)),
        ColumnType::FixedBinary(_) => Value::FixedBinary(array.as_fixed_size_binary().value(row).to_vec()),
        ColumnType::Utf8 => Value::Utf8(array.as_string::<i32>().value(row).to_owned()),
        ColumnType::Binary => Value::Binary(array.as_binary::<i32>().value(row).to_vec()),
    }
}

fn cells(batch: &RecordBatch, types: &[ColumnType]) -> Vec<Vec<Value>> {
    let row = |row| (0..types.len()).map(|c| cell(batch.column(c), &types[c], row)).collect();
    (0..batch.num_rows()).map(row).collect()
}

/// A batch of rows, by way of a message that holds them.
fn batch_of(schema: &Schema, rows: &[Vec<u8>]) -> RecordBatch {
    let projection = Projection::whole(schema);
    let mut builder = BatchBuilder::new(schema, &projection);
    builder.push(&RowBlock::parse(&message_of(schema, rows)[..], &projection).unwrap()).unwrap();
    builder.finish().unwrap()
}

fn message_of(schema: &Schema, rows: &[Vec<u8>]) -> Vec<u8> {
    let projection = Projection::whole(schema);
    let mut leaf = overside_bwtree::LeafBuilder::new(projection.in_place().prefix_len());
    for (number, row) in rows.iter().enumerate() {
        let (prefix, rest) = row.split_at(projection.in_place().prefix_len());
        leaf.push(&(number as u32).to_be_bytes(), prefix, overside_bwtree::Rest::Inline(rest)).unwrap();
    }
    let page = leaf.finish();
    let leaf = overside_bwtree::Leaf::parse(&page).unwrap();
    let state = crate::block::PageState::new(leaf, 0, 0..rows.len(), &[]);
    let mut buffer = vec![0; page.len() + 1000];
    let mut copier = crate::block::Copier::new(&mut buffer, &projection);
    assert_eq!(copier.push(&state, 0..rows.len(), &|_| None).unwrap(), rows.len());
    let bytes = copier.finish(0, 0, true);
    buffer.truncate(bytes);
    buffer
}

proptest! {
    #[test]
    fn batches_hold_what_the_blocks_show(world in any_world()) {
        let types: Vec<_> = world.projection.packed().columns().iter().map(|c| c.column_type.clone()).collect();
        let mut builder = BatchBuilder::new(&world.schema, &world.projection);
        let messages = [world.gathered(0..world.expected.len(), 10), world.delta()];
        for message in &messages {
            builder.push(&RowBlock::parse(&message[..], &world.projection).unwrap()).unwrap();
        }
        let batch = builder.finish().unwrap();
        let thrice = [world.expected.clone(), world.expected.clone(), world.expected.clone()].concat();
        prop_assert_eq!(cells(&batch, &types), &thrice[..]);
        // The builder starts anew after each batch.
        for message in world.copied(1 << 16).unwrap() {
            builder.push(&RowBlock::parse(&message[..], &world.projection).unwrap()).unwrap();
        }
        let batch = builder.finish().unwrap();
        prop_assert_eq!(cells(&batch, &types), &world.expected[..]);
        // And what was lent, as long as it is vouched for.
        let lendings = messages.map(|message| Lending::of(&message, &[]));
        for lending in &lendings {
            builder.push_lent(&LentBlock::parse(lending.loan(), &world.projection).unwrap()).unwrap();
        }
        let batch = builder.finish().unwrap();
        prop_assert_eq!(cells(&batch, &types), &thrice[..]);
        let block = LentBlock::parse(lendings[1].loan(), &world.projection).unwrap();
        lendings[1].revoke();
        prop_assert_eq!(builder.push_lent(&block), Err(ArrowError::Lent(LentError::Revoked)));
        prop_assert_eq!(builder.finish().unwrap().num_rows(), 0);
    }

    #[test]
    fn mutated_messages_make_no_panic(
        world in any_world(), changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..6),
    ) {
        let mut builder = BatchBuilder::new(&world.schema, &world.projection);
        let messages = [world.gathered(0..world.expected.len(), 10), world.delta()];
        for mut message in messages.into_iter().chain(world.copied(1 << 16).unwrap()) {
            for &(at, byte) in &changes {
                let at = usize::from(at) % message.len();
                message[at] = byte;
            }
            if let Ok(block) = RowBlock::parse(&message[..], &world.projection) {
                let pushed = builder.push(&block).is_ok();
                prop_assert_eq!(builder.rows(), if pushed { block.len() } else { 0 });
                let _ = builder.finish();
            }
        }
    }

    #[test]
    fn rows_to_a_batch_and_back(schema in any_schema(), seeds in proptest::collection::vec(any::<u128>(), 0..40)) {
        let layout = std::sync::Arc::new(RowLayout::new(&schema));
        let codec = KeyCodec::new(&schema);
        let rows: Vec<Vec<u8>> = seeds.iter().map(|&seed| encode_row(&layout, &row_of(&schema, seed))).collect();
        let batch = batch_of(&schema, &rows);
        let (mut encoded, mut key) = (EncodedRows::default(), Vec::new());
        BatchEncoder::new(&schema).encode(&batch, &mut encoded).unwrap();
        prop_assert_eq!(encoded.len(), rows.len());
        for ((keyed, value), row) in encoded.iter().zip(&rows) {
            prop_assert_eq!(value, row);
            key.clear();
            codec.encode_row(&RowView::of_value(row, &layout).unwrap(), &mut key).unwrap();
            prop_assert_eq!(keyed, &key);
        }
        // A part of a batch is a batch, and a column left out is null.
        if rows.len() > 3 {
            let part = batch.slice(1, 2);
            BatchEncoder::new(&schema).encode(&part, &mut encoded).unwrap();
            prop_assert_eq!(encoded.row(1).1, &rows[2]);
        }
    }

    #[test]
    fn schemas_there_and_back(schema in any_schema()) {
        let key: Vec<&str> = schema.key().iter().map(|&k| schema.columns()[k].name.as_str()).collect();
        prop_assert_eq!(from_arrow(&to_arrow(&schema), &key).unwrap(), schema.clone());
    }
}

fn small() -> Schema {
    let columns = vec![
        Column::new("id", ColumnType::Int32),
        Column::nullable("name", ColumnType::Utf8),
        Column::new("note", ColumnType::Utf8),
    ];
    Schema::with_key(columns, &["id"]).unwrap()
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

#[test]
fn encoded_rows_make_the_requests_that_one_row_after_another_makes() {
    use arrow_array::{Int32Array, StringArray};
    use std::sync::Arc;
    let (encoder, mut encoded) = (BatchEncoder::new(&small()), EncodedRows::default());
    // The last two lie where longer ones did.
    for (rows, longest) in [(0, 1), (4000, 97), (3000, 60), (1, 5)] {
        let ids = Arc::new(Int32Array::from_iter_values(0..rows)) as ArrayRef;
        let notes = (0..rows).map(|row| "n".repeat((row % longest) as usize));
        let notes = Arc::new(StringArray::from_iter_values(notes)) as ArrayRef;
        encoder.encode(&batch(vec![("id", ids), ("note", notes)]), &mut encoded).unwrap();
        let mut one_by_one = RowBatch::new(Arc::new(RowLayout::new(&small())));
        encoded.iter().for_each(|(_, value)| one_by_one.push_encoded(value));
        assert!(encoded.requests().eq(one_by_one.requests()), "{rows} rows");
        assert_eq!(encoded.requests().count() > 1, rows > 2000);
    }
}

#[test]
fn a_column_left_out_is_null_and_other_mismatches_are_errors() {
    use arrow_array::{Int32Array, Int64Array, LargeStringArray, StringArray, StringViewArray};
    use std::sync::Arc;
    let encoder = BatchEncoder::new(&small());
    let mut out = EncodedRows::default();
    let id = || ("id", Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef);
    let note = || ("note", Arc::new(StringViewArray::from(vec!["a", "a longer note than a view holds"])) as ArrayRef);
    encoder.encode(&batch(vec![note(), id()]), &mut out).unwrap();
    let layout = RowLayout::new(&small());
    let row = values_of(&RowView::of_value(out.row(1).1, &layout).unwrap());
    assert_eq!(row, [Value::Int32(2), Value::Null, Value::Utf8("a longer note than a view holds".to_owned())]);

    let mut refused = |columns| {
        let error = encoder.encode(&batch(columns), &mut out).unwrap_err();
        assert!(out.is_empty());
        error
    };
    assert!(matches!(refused(vec![id()]), ArrowError::MissingColumn { column } if column == "note"));
    let extra = ("extra", id().1);
    assert!(matches!(refused(vec![id(), note(), extra]), ArrowError::ExtraColumn { .. }));
    let wide = ("id", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef);
    assert!(matches!(refused(vec![wide, note()]), ArrowError::Type { column, .. } if column == "id"));
    let null = ("id", Arc::new(Int32Array::from(vec![Some(1), None])) as ArrayRef);
    assert!(matches!(refused(vec![null, note()]), ArrowError::Null { column, row: 1 } if column == "id"));
    let null = ("note", Arc::new(StringArray::from(vec![None, Some("b")])) as ArrayRef);
    assert!(matches!(refused(vec![id(), null]), ArrowError::Null { column, row: 0 } if column == "note"));
    let long = "x".repeat(1 << 20);
    let long = ("note", Arc::new(LargeStringArray::from(vec!["", long.as_str()])) as ArrayRef);
    assert!(matches!(refused(vec![id(), long]), ArrowError::RowTooLong { row: 1, .. }));
}

#[test]
fn a_row_whose_offsets_leave_it_is_refused() {
    let schema = small();
    let layout = std::sync::Arc::new(RowLayout::new(&schema));
    let row = |name, note| {
        encode_row(&layout, &[Value::Int32(1), Value::Utf8(String::from(name)), Value::Utf8(String::from(note))])
    };
    let projection = Projection::whole(&schema);
    // Prefix: a byte of null bits and the id; then the two end offsets, which are 2 and 4.
    for (at, to, whole) in [(5, 3, true), (5, 5, false), (5, 200, false), (9, 3, true), (9, 1, false), (9, 5, false)] {
        let mut rows = [row("ab", "cd"), row("ef", "gh")];
        rows[0][at] = to;
        let message = message_of(&schema, &rows);
        let mut builder = BatchBuilder::new(&schema, &projection);
        let pushed = builder.push(&RowBlock::parse(&message[..], &projection).unwrap());
        assert_eq!(pushed.is_ok(), whole, "offset {at} as {to}");
        assert_eq!(builder.rows(), if whole { 2 } else { 0 });
    }
}

#[test]
fn text_of_every_length_lies_where_its_ends_say() {
    // Values move in blocks by the longest of a page, and a message's last ones have nothing behind them.
    let schema = small();
    let layout = std::sync::Arc::new(RowLayout::new(&schema));
    let projection = Projection::whole(&schema);
    let text = |length: usize, seed: usize| (0..length).map(|at| char::from(b'a' + ((at + seed) % 26) as u8)).collect();
    let mut builder = BatchBuilder::new(&schema, &projection);
    for longest in [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200] {
        let mut expected: Vec<[Value; 2]> = Vec::new();
        for page in 0..3 {
            let mut rows = Vec::new();
            for row in 0..20 {
                // No length in between: the longest alone decides how all of them move.
                let length = if row % 3 == page { longest } else { 0 };
                let (name, note): (String, String) = (text(length, row), text(longest - length, page + row));
                let values = [Value::Utf8(name), Value::Utf8(note)];
                rows.push(encode_row(&layout, &[Value::Int32(0), values[0].clone(), values[1].clone()]));
                expected.push(values);
            }
            let message = message_of(&schema, &rows);
            builder.push(&RowBlock::parse(&message[..], &projection).unwrap()).unwrap();
        }
        let batch = builder.finish().unwrap();
        for (row, values) in expected.iter().enumerate() {
            let found = [1, 2].map(|column| cell(batch.column(column), &ColumnType::Utf8, row));
            assert_eq!(&found, values, "row {row} of texts up to {longest} bytes");
        }
    }
}
