//! Files that pyarrow wrote (tests/fixtures/README.md says how), read value by value.

use overside_files::open;
use overside_files::text::write_value;
use overside_files::types::type_name;
use std::path::Path;
use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Columns of a fixture as text, nulls as `None`, with their types.
fn read(name: &str) -> Vec<(String, String, Vec<Option<String>>)> {
    let mut reader = open(&fixture(name), &[]).unwrap();
    let schema = reader.schema();
    let mut columns: Vec<_> =
        schema.fields().iter().map(|field| (field.name().clone(), type_name(field.data_type()), Vec::new())).collect();
    while let Some(batch) = reader.next_batch().unwrap() {
        for (array, (_, _, values)) in batch.columns().iter().zip(&mut columns) {
            for row in 0..array.len() {
                let mut text = String::new();
                write_value(array, row, &mut text);
                values.push(array.is_valid(row).then_some(text));
            }
        }
    }
    columns
}

/// What the script put into row `row` of a column; it left a null in every seventh but `id`'s.
fn expected(column: &str, row: i64) -> Option<String> {
    if row % 7 == 3 && !["id", "dict8"].contains(&column) {
        return None;
    }
    let clock = |fraction: &str| {
        let second = 12 * 3600 + 34 * 60 + 56 + row;
        format!("2024-02-29T12:{:02}:{:02}.{fraction}", second / 60 % 60, second % 60)
    };
    let text = || if row == 5 { String::new() } else { format!("row number {row}, \u{e9}") };
    Some(match column {
        "id" => row.to_string(),
        "i8" => (row - 20).to_string(),
        "i16" => (row * -100).to_string(),
        "i32" => (row * 100_000).to_string(),
        "i64" => (row * -1_000_000_000_000_000).to_string(),
        "u8" => (255 - row).to_string(),
        "u16" => (65_535 - row).to_string(),
        "u32" => (u32::MAX as i64 - row).to_string(),
        "u64" => (u64::MAX - row as u64).to_string(),
        "f32" => format!("{:?}", row as f32 / 4.0),
        "f64" => format!("{:?}", row as f64 / 3.0),
        "dec" => match row * 125 {
            0 => "0.00".into(),
            cents => format!("-{}.{:02}", cents / 100, cents % 100),
        },
        "dec38" if row == 0 => "0.000".into(),
        "dec38" => format!("{row}00000000000000000000.000"),
        "date" => match row {
            0..30 => format!("1992-01-{:02}", row + 2),
            row => format!("1992-02-{:02}", row - 29),
        },
        "ts_ms" => clock("789"),
        "ts_us" => clock("789012") + "Z",
        "ts_ns" => clock("789012000"),
        "flag" => (row % 3 == 0).to_string(),
        "text" | "large" | "view" | "dict" => text(),
        "bytes" | "large_bytes" | "view_bytes" => format!("0x{row:02x}ff00"),
        "fixed" => format!("0x{}", format!("{row:02x}").repeat(4)),
        "dict8" => format!("x{}", row % 3),
        other => panic!("no column {other}"),
    })
}

fn check(name: &str, columns_expected: usize) {
    let columns = read(name);
    assert_eq!(columns.len(), columns_expected, "{name}");
    for (column, _, values) in &columns {
        assert_eq!(values.len(), 40, "{name}, {column}");
        for (row, value) in values.iter().enumerate() {
            assert_eq!(*value, expected(column, row as i64), "{name}, {column}, row {row}");
        }
    }
}

#[test]
fn every_type_in_every_container() {
    let types = "int64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 \
        decimal(15,2) decimal(38,3) date timestamp[ms] timestamp[us,UTC] timestamp[ns] boolean \
        utf8 binary fixed(4)";
    for name in [
        "every_type.parquet",
        "v2_zstd.parquet",
        "gzip.parquet",
        "lz4.parquet",
        "every_type.arrow",
        "stream.arrows",
        "lz4.feather",
        "zstd.arrow",
    ] {
        check(name, 21);
        let found: Vec<_> = read(name).into_iter().map(|(_, ty, _)| ty).collect();
        assert_eq!(found.join(" "), types, "{name}");
    }
}

#[test]
fn delta_and_stream_split_encodings_decimals_as_integers_and_julian_days() {
    check("delta.parquet", 5);
    check("int_decimal.parquet", 3);
    let columns = read("int96.parquet");
    assert_eq!(columns[1].1, "timestamp[ns]");
    for (row, value) in columns[1].2.iter().enumerate() {
        let shown = expected("ts_us", row as i64).map(|text| text.replace('Z', "000"));
        assert_eq!(*value, shown, "row {row}");
    }
}

#[test]
fn large_types_views_and_dictionaries_of_text_become_plain() {
    check("variants.arrow", 7);
    check("dictionary_stream.arrows", 2);
}

#[test]
fn row_groups_and_pages_follow_one_another() {
    let columns = read("groups.parquet");
    assert_eq!(columns[0].2.len(), 5000);
    for row in 0..5000 {
        assert_eq!(columns[0].2[row].as_deref(), Some(row.to_string().as_str()));
        assert_eq!(columns[1].2[row], Some(format!("n{}", row % 9)));
    }
}

#[test]
fn csv_with_every_text_quoted() {
    let columns = read("plain.csv");
    let types: Vec<_> = columns.iter().map(|(_, ty, _)| ty.as_str()).collect();
    assert_eq!(types, ["int64", "int64", "float64", "date", "boolean", "utf8"]);
    for (column, _, values) in &columns {
        for (row, value) in values.iter().enumerate() {
            // Row 5 has an empty text, which is no null.
            let shown = expected(column, row as i64);
            let shown = shown.map(|text| if column == "f64" { shortest(&text) } else { text });
            assert_eq!(*value, shown, "{column}, row {row}");
        }
    }
}

/// A number's text as a float's shortest.
fn shortest(text: &str) -> String {
    format!("{:?}", text.parse::<f64>().unwrap())
}

#[test]
fn what_is_not_read_says_which_column_and_what_to_do() {
    for (name, told) in [
        ("nested.parquet", ["`tags`", "nested", "flatten"]),
        ("brotli.parquet", ["`id`", "Brotli", "snappy or zstd"]),
        ("time.arrow", ["`t`", "time of day", "integer"]),
    ] {
        let error = open(&fixture(name), &[]).and_then(|mut reader| reader.next_batch());
        let error = format!("{:#}", error.unwrap_err());
        assert!(told.iter().all(|part| error.contains(part)), "{name}: {error}");
        assert!(!error.contains("damaged"), "nothing is broken: {error}");
    }
}
