//! Files of a few kilobytes that stand for gigabytes (tests/fixtures/bombs.py made some), and long honest ones: either is read in
//! bounded memory, or refused with what to do.

use anyhow::Result;
use arrow_array::RecordBatch;
use arrow_array::builder::StringBuilder;
use arrow_array::{Array, ArrayRef, Int64Array};
use arrow_schema::Field;
use arrow_schema::{DataType, Schema};
use overside_corpus::MeteredHeap;
use overside_files::budget::BATCH_BYTES_MAX;
use overside_files::create;
use overside_files::open;
use overside_files::open_as;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// What reading to the end, or to an error, came to.
struct Read {
    rows: usize,
    batch_rows_min: usize,
    batch_rows_max: usize,
    error: String,
    peak: usize,
}

fn read(name: &str, file: File) -> Read {
    let mut read = Read { rows: 0, batch_rows_min: usize::MAX, batch_rows_max: 0, error: String::new(), peak: 0 };
    let (result, peak) = MeteredHeap::peak(|| -> Result<()> {
        let mut reader = open_as(Path::new(name), file, &[])?;
        while let Some(batch) = reader.next_batch()? {
            read.rows += batch.num_rows();
            read.batch_rows_min = read.batch_rows_min.min(batch.num_rows());
            read.batch_rows_max = read.batch_rows_max.max(batch.num_rows());
            let bytes: usize = batch.columns().iter().map(texts_bytes).sum();
            assert!(bytes <= BATCH_BYTES_MAX, "{name}: a batch of {bytes} bytes");
        }
        Ok(())
    });
    read.error = result.err().map(|error| format!("{error:#}")).unwrap_or_default();
    read.peak = peak;
    read
}

fn texts_bytes(column: &ArrayRef) -> usize {
    use arrow_array::cast::AsArray;
    match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().value_data().len(),
        _ => 0,
    }
}

fn bomb(name: &str) -> Read {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bombs").join(name);
    let file = File::open(&path).unwrap();
    assert!(file.metadata().unwrap().len() < 16 << 10);
    let read = read(name, file);
    assert!(read.peak <= PEAK_BYTES, "{name} took {} MiB", read.peak >> 20);
    read
}

#[test]
fn a_dictionary_counts_as_often_as_it_is_named() {
    for name in ["dictionary.parquet", "dictionary.arrow", "views.arrow"] {
        let read = bomb(name);
        assert_eq!((read.rows, read.error.as_str()), (8192, ""), "{name}");
        assert!(read.batch_rows_max < 1000, "{name}: {} rows in a batch", read.batch_rows_max);
    }
}

#[test]
fn values_that_repeat_the_one_before_count_as_long_as_they_are() {
    let read = bomb("prefixes.parquet");
    assert_eq!((read.rows, read.error.as_str()), (8192, ""));
    assert!(read.batch_rows_max < 4000, "{} rows in a batch", read.batch_rows_max);
}

#[test]
fn all_that_is_open_of_a_file_has_one_budget() {
    for name in ["pages.parquet", "buffers.arrow"] {
        let read = bomb(name);
        assert!(
            read.error.contains("more than 256 MiB at once") && read.error.contains("rewrite it"),
            "{}",
            read.error
        );
    }
}

/// A file of `rows` rows of an id and texts as long as `bytes` says for each column.
fn texts(format: &str, rows: usize, columns: usize, bytes: impl Fn(usize, usize) -> usize) -> tempfile::NamedTempFile {
    let mut fields = vec![Field::new("id", DataType::Int64, false)];
    fields.extend((0..columns).map(|n| Field::new(format!("c{n}"), DataType::Utf8, n % 2 == 0)));
    let schema = Arc::new(Schema::new(fields));
    let file = tempfile::NamedTempFile::with_suffix(format).unwrap();
    let mut writer = create(file.path(), schema.clone()).unwrap();
    for from in (0..rows).step_by(64) {
        let rows = from..rows.min(from + 64);
        let mut arrays: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row as i64)))];
        for column in 0..columns {
            let mut builder = StringBuilder::new();
            for row in rows.clone() {
                let letter = (b'a' + ((row * 7 + column) % 26) as u8) as char;
                let text = format!("{row} {column} {}", letter.to_string().repeat(bytes(row, column)));
                builder.append_option((column % 2 == 1 || row % 9 != 4).then_some(text));
            }
            arrays.push(Arc::new(builder.finish()));
        }
        writer.write(&RecordBatch::try_new(schema.clone(), arrays).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    file
}

/// Every value of such a file is there, in its row.
fn holds_texts(file: &tempfile::NamedTempFile, rows: usize, columns: usize) -> Vec<usize> {
    use arrow_array::cast::AsArray;
    let mut reader = open(file.path(), &[]).unwrap();
    let (mut at, mut batches) = (0, Vec::new());
    while let Some(batch) = reader.next_batch().unwrap() {
        let ids = batch.column(0).as_primitive::<arrow_array::types::Int64Type>();
        for row in 0..batch.num_rows() {
            assert_eq!(ids.value(row), at as i64);
            for column in 0..columns {
                let texts = batch.column(1 + column).as_string::<i32>();
                assert_eq!(texts.is_null(row), column % 2 == 0 && at % 9 == 4, "row {at}, column {column}");
                if !texts.is_null(row) {
                    assert!(texts.value(row).starts_with(&format!("{at} {column} ")), "row {at}, column {column}");
                }
            }
            at += 1;
        }
        batches.push(batch.num_rows());
    }
    assert_eq!(at, rows);
    batches
}

#[test]
fn long_texts_make_short_batches_and_lose_nothing() {
    // Half a GiB in the first column, the second short, the third long in some rows alone.
    let file = texts(".parquet", 2400, 3, |row, column| match column {
        0 => 220_000,
        1 => 3,
        _ => {
            if row % 100 == 7 {
                700_000
            } else {
                0
            }
        }
    });
    let batches = holds_texts(&file, 2400, 3);
    assert!(batches.len() < 40, "{batches:?}");
    let read = read("t.parquet", File::open(file.path()).unwrap());
    assert!(read.peak <= PEAK_BYTES, "{} MiB", read.peak >> 20);
}

#[test]
fn a_long_row_group_of_long_texts_is_read_page_by_page() {
    use ::parquet::data_type::{ByteArray, ByteArrayType};
    let rows = 3000;
    let schema = "message m { required binary c (STRING); }";
    let schema = Arc::new(::parquet::schema::parser::parse_message_type(schema).unwrap());
    let properties = ::parquet::file::properties::WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(::parquet::file::properties::EnabledStatistics::None)
        .set_compression(::parquet::basic::Compression::SNAPPY)
        .build();
    let file = tempfile::tempfile().unwrap();
    let mut writer =
        ::parquet::file::writer::SerializedFileWriter::new(file.try_clone().unwrap(), schema, Arc::new(properties))
            .unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let text = ByteArray::from(vec![b'x'; 300_000]);
    for _ in 0..rows / 100 {
        column.typed::<ByteArrayType>().write_batch(&vec![text.clone(); 100], None, None).unwrap();
    }
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let read = read("t.parquet", file);
    assert_eq!((read.rows, read.error.as_str()), (rows, ""));
    assert!(read.peak <= PEAK_BYTES, "{} MiB", read.peak >> 20);
}

#[test]
fn a_thousand_columns_of_short_texts_keep_long_batches() {
    let file = texts(".parquet", 3000, 1000, |_, _| 4);
    let batches = holds_texts(&file, 3000, 1000);
    // One for each row group.
    assert_eq!(batches.len(), 4, "{batches:?}");
}

#[test]
fn a_row_that_no_batch_has_room_for_is_refused() {
    let file = texts(".arrow", 1, 5, |_, _| 60 << 20);
    let read = read("t.arrow", File::open(file.path()).unwrap());
    assert!(read.error.contains("a row takes") && read.error.contains("at most 1 MiB"), "{}", read.error);
}

/// A short file's budget, a batch's arrays, and what is decoded for one.
const PEAK_BYTES: usize = 3 * BATCH_BYTES_MAX;
