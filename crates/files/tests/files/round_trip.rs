//! What is written reads back the same, in every format, for every type.

use super::samples::{every_type, many};
use anyhow::Result;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampSecondType;
use arrow_array::{Array, ArrayRef, TimestampMillisecondArray};
use arrow_schema::Field;
use arrow_schema::{DataType, Schema, TimeUnit};
use overside_files::BATCH_ROWS;
use overside_files::create;
use overside_files::open;
use overside_files::text::{text_column, write_value};
use std::sync::Arc;

/// Writes batches, then reads the file back.
fn round_trip(name: &str, batches: &[RecordBatch], columns: &[Field]) -> Result<Vec<RecordBatch>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join(name);
    let mut writer = create(&path, batches[0].schema())?;
    for batch in batches {
        writer.write(batch)?;
    }
    let bytes = writer.finish()?;
    let mut reader = open(&path, columns)?;
    assert_eq!(reader.bytes_total(), bytes);
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    assert!(reader.rows_total().is_none_or(|total| total == rows as u64));
    let mut read = Vec::new();
    while let Some(batch) = reader.next_batch()? {
        assert!((1..=BATCH_ROWS).contains(&batch.num_rows()));
        read.push(batch);
    }
    // What is read on opening does not count, which is most of a small file.
    assert!(bytes < 100_000 || reader.bytes_done() * 10 >= bytes * 8, "{} of {bytes}", reader.bytes_done());
    Ok(read)
}

fn fields(batch: &RecordBatch) -> Vec<Field> {
    batch.schema().fields().iter().map(|field| field.as_ref().clone()).collect()
}

#[test]
fn arrow_files_keep_every_type_and_value() {
    let batch = every_type();
    assert_eq!(round_trip("t.arrow", std::slice::from_ref(&batch), &[]).unwrap(), [batch]);
}

#[test]
fn parquet_keeps_every_type_but_seconds_which_become_milliseconds() {
    let batch = every_type();
    let read = round_trip("t.parquet", std::slice::from_ref(&batch), &[]).unwrap();
    let at = batch.schema().index_of("ts_s").unwrap();
    let mut fields = fields(&batch);
    fields[at] = Field::new("ts_s", DataType::Timestamp(TimeUnit::Millisecond, None), true);
    let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
    let seconds = columns[at].as_primitive::<TimestampSecondType>();
    let millis = seconds.iter().map(|second| second.map(|second| second * 1000));
    columns[at] = Arc::new(TimestampMillisecondArray::from_iter(millis));
    let expected = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    assert_eq!(read, [expected]);
}

#[test]
fn csv_keeps_every_type_when_told_the_types_and_takes_empty_for_null() {
    let batch = every_type();
    let read = round_trip("t.csv", std::slice::from_ref(&batch), &fields(&batch)).unwrap();
    assert_eq!(read.len(), 1);
    for (column, read) in batch.columns().iter().zip(read[0].columns()) {
        assert_eq!(column.data_type(), read.data_type());
        assert_eq!(column, read);
    }
}

#[test]
fn many_rows_come_back_in_order_and_in_bounded_batches() {
    let whole = many(300_000);
    let parts: Vec<_> =
        (0..whole.num_rows()).step_by(50_000).map(|at| whole.slice(at, 50_000.min(whole.num_rows() - at))).collect();
    for name in ["t.arrow", "t.parquet", "t.csv"] {
        let read = round_trip(name, &parts, &[]).unwrap();
        let mut at = 0;
        for batch in read {
            let expected = whole.slice(at, batch.num_rows());
            assert_eq!(batch.columns(), expected.columns(), "{name} from row {at}");
            at += batch.num_rows();
        }
        assert_eq!(at, whole.num_rows(), "{name}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 24, ..Default::default() })]

    #[test]
    fn any_text_and_any_number_come_back(
        texts in proptest::collection::vec(proptest::option::of("(?s).{0,20}"), 1..60),
        numbers in proptest::collection::vec(proptest::option::of(proptest::num::f64::ANY), 60),
    ) {
        // NaNs are one value to CSV, whose text has no payload.
        let numbers = numbers.iter().take(texts.len()).map(|n| n.filter(|n| !n.is_nan()));
        let numbers: ArrayRef = Arc::new(arrow_array::Float64Array::from_iter(numbers));
        let texts: ArrayRef = Arc::new(arrow_array::StringArray::from_iter(texts));
        let fields = vec![
            Field::new("a,\"b\"", DataType::Utf8, true),
            Field::new("number", DataType::Float64, true),
        ];
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields.clone())), vec![texts, numbers]).unwrap();
        for name in ["t.arrow", "t.parquet", "t.csv"] {
            let read = round_trip(name, std::slice::from_ref(&batch), &fields).unwrap();
            proptest::prop_assert_eq!(read[0].columns(), batch.columns(), "{}", name);
        }
    }
}

#[test]
fn a_slice_is_written_from_its_first_row_on() {
    let slice = every_type().slice(2, 2);
    for name in ["t.arrow", "t.csv"] {
        let read = round_trip(name, std::slice::from_ref(&slice), &fields(&slice)).unwrap();
        assert_eq!(read[0].columns(), slice.columns(), "{name}");
    }
    let numbers = many(20_000).slice(9_000, 70);
    let read = round_trip("t.parquet", std::slice::from_ref(&numbers), &[]).unwrap();
    assert_eq!(read, [numbers]);
}

#[test]
fn a_file_without_rows_keeps_its_columns() {
    let none = every_type().slice(0, 0);
    for name in ["t.arrow", "t.parquet", "t.csv"] {
        assert!(round_trip(name, std::slice::from_ref(&none), &[]).unwrap().is_empty(), "{name}");
    }
}

#[test]
fn a_file_that_is_not_finished_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["t.arrow", "t.parquet", "t.csv"] {
        let mut writer = create(&folder.path().join(name), many(10).schema()).unwrap();
        writer.write(&many(10)).unwrap();
        drop(writer);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn every_value_of_every_type_parses_back_from_its_text() {
    let batch = every_type();
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let mut builder = text_column(field.data_type()).unwrap();
        let mut text = String::new();
        for row in 0..column.len() {
            text.clear();
            write_value(column, row, &mut text);
            if column.is_null(row) {
                builder.push_null();
            } else {
                builder.push(&text).unwrap();
            }
        }
        assert_eq!(&builder.finish(), column, "column {}", field.name());
    }
}
