use super::*;
use crate::types::parse_columns;
use arrow_array::cast::AsArray;
use std::io::{Seek, Write};

fn open(content: &str, schema: &str) -> Result<CsvReader> {
    let mut file = tempfile::tempfile()?;
    file.write_all(content.as_bytes())?;
    file.rewind()?;
    let columns = if schema.is_empty() { Vec::new() } else { parse_columns(schema)? };
    CsvReader::open(file, &columns)
}

fn read(content: &str, schema: &str) -> Result<RecordBatch> {
    Ok(open(content, schema)?.next_batch()?.unwrap())
}

fn told(content: &str, schema: &str) -> String {
    let error = open(content, schema).and_then(|mut reader| {
        while reader.next_batch()?.is_some() {}
        Ok(())
    });
    format!("{:#}", error.unwrap_err())
}

#[test]
fn types_are_inferred_and_given_ones_go_before() {
    let content = "\u{feff}id,name,price,day\n1,x,1.5,1992-01-02\n2,,3,\n";
    let batch = read(content, "").unwrap();
    let types: Vec<_> = batch.schema().fields().iter().map(|field| type_name(field.data_type())).collect();
    assert_eq!(types, ["int64", "utf8", "float64", "date"]);
    assert_eq!(batch.column(1).null_count() + batch.column(3).null_count(), 2);
    let batch = read(content, "id:uint8,price:decimal(9,2)").unwrap();
    assert_eq!(batch.schema().field(0).data_type(), &DataType::UInt8);
    assert_eq!(batch.schema().field(2).data_type(), &DataType::Decimal128(9, 2));
    assert_eq!(read("a;b\n1;2\n", "a;b:utf8").unwrap().num_columns(), 1, "one column of that name, as said");
}

#[test]
fn errors_name_the_line_and_the_column() {
    let cases = [
        ("", "", "no header row"),
        ("a,a\n1,2\n", "", "two columns are called `a`"),
        ("a,\n1,2\n", "", "column 2 has no name"),
        ("a;b\n1;2\n", "", "are fields separated by ';'?"),
        ("a\tb\n1\t2\n", "", r#"one column, called "a\tb": are fields separated by '\t'?"#),
        ("a,b\n1,2\n3\n", "", "line 3: 1 fields where the header names 2"),
        ("a,b\n1,2\n3,4,5\n", "", "line 3: 3 fields"),
        ("a,b\n1,2\n3,\"x\n", "", "line 3: the file ends inside a quoted field"),
        ("a,b\n1,2\n3,x\n", "b:int8", "line 3, column `b`: `x` is no int8"),
        ("a,b\n1,2\n\n3,400\n", "b:int8", "line 4, column `b`: `400` is no int8"),
        ("a,b\n1,2\n", "c:int8", "has no column `c`; it has `a`, `b`"),
    ];
    for (content, schema, expected) in cases {
        let told = told(content, schema);
        assert!(told.contains(expected), "{content:?}: {told}");
    }
}

#[test]
fn a_header_costs_its_length() {
    let names = |count: usize| (0..count).map(|n| format!("c{n}")).collect::<Vec<_>>().join(",");
    for count in [1025, 2000, 100_000] {
        let told = told(&names(count), "");
        assert!(told.contains("line 1") && told.contains("1024") && told.contains("leave some out"), "{told}");
    }
    assert_eq!(open(&names(1024), "").unwrap().schema().fields().len(), 1024);
    let long = told(&format!("a,{}\n1,2\n", "x".repeat(1 << 20)), "");
    assert!(long.contains("name of column 2") && long.len() < 200, "{long}");
}

#[test]
fn long_rows_make_short_batches() {
    let long = "x".repeat(1 << 20);
    let rows = (0..400).map(|n| format!("{n},{long}\n")).collect::<String>();
    let mut reader = open(&format!("id,text\n{rows}"), "").unwrap();
    let first = reader.next_batch().unwrap().unwrap();
    assert!(first.num_rows() < 300, "{}", first.num_rows());
    let second = reader.next_batch().unwrap().unwrap();
    assert_eq!(first.num_rows() + second.num_rows(), 400);
    assert!(reader.next_batch().unwrap().is_none());
}

#[test]
fn a_value_beyond_the_sample_that_its_guess_does_not_hold_says_how_to_give_a_type() {
    let mut content = String::from("id\n");
    (0..SAMPLE_ROWS + 5).for_each(|row| content.push_str(&format!("{row}\n")));
    content.push_str("x17\n");
    let told = told(&content, "");
    let line = SAMPLE_ROWS + 7;
    assert!(told.contains(&format!("line {line}, column `id`: `x17` is no int64")), "{told}");
    assert!(told.contains("--schema 'id:utf8'"), "{told}");
}

#[test]
fn what_is_not_utf8_is_named_by_its_place() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"id,name\n1,caf\xe9\n").unwrap();
    file.rewind().unwrap();
    let told = format!("{:#}", CsvReader::open(file, &[]).unwrap().next_batch().unwrap_err());
    assert!(told.contains("line 2, column `name`: not UTF-8"), "{told}");
}

#[test]
fn an_empty_field_is_null_where_nulls_are_allowed_and_else_the_empty_text_or_an_error() {
    let open = |field: Field| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"id,v\n1,\n").unwrap();
        file.rewind().unwrap();
        CsvReader::open(file, &[field]).unwrap().next_batch().map(Option::unwrap)
    };
    let batch = open(Field::new("v", DataType::Utf8, true)).unwrap();
    assert_eq!(batch.column(1).null_count(), 1);
    let batch = open(Field::new("v", DataType::Utf8, false)).unwrap();
    assert_eq!(batch.column(1).null_count(), 0);
    let told = format!("{:#}", open(Field::new("v", DataType::Int8, false)).unwrap_err());
    assert!(told.contains("line 2, column `v`: is empty"), "{told}");
}

/// `None` for nulls.
fn texts(batch: &RecordBatch, column: usize) -> Vec<Option<&str>> {
    batch.column(column).as_string::<i32>().iter().collect()
}

#[test]
fn a_quoted_empty_field_is_the_empty_text_and_no_null() {
    let content = "id,a,b\n1,,\"\"\n\n2,\"\",\n3,\"\"\"\",\"x\"\"\"\r\n\"4\",\"a,\",\" \"\n5,x\"\",\"\"";
    let batch = read(content, "").unwrap();
    assert_eq!(texts(&batch, 1), [None, Some(""), Some("\""), Some("a,"), Some("x\"\"")]);
    assert_eq!(texts(&batch, 2), [Some(""), None, Some("x\""), Some(" "), Some("")]);
    // What cannot be empty is a null: many programs quote all they write.
    let batch = read("id,n,t\n1,\"\",\"\"\n2,3,\n", "n:int8,t:binary").unwrap();
    assert_eq!((batch.column(1).null_count(), batch.column(2).null_count()), (1, 1));
    assert!(batch.column(2).is_valid(0) && batch.column(2).as_binary::<i32>().value(0).is_empty());
}

#[test]
fn quotes_are_seen_wherever_a_piece_of_the_file_ends() {
    // Each place within the first record's short fields is the end of a piece once.
    for shift in 0..32 {
        let long = "x".repeat(records::BUFFER_BYTES - shift);
        let content = format!("a,b,c,d,e\n{long},,\"\",\"y\"\"\",\n\"\",,\"{long}\",\"\",z\n");
        let batch = read(&content, "a:utf8,b:utf8,c:utf8,d:utf8,e:utf8").unwrap();
        let rows: Vec<_> = (0..5).map(|column| texts(&batch, column)).collect();
        assert_eq!(rows[0], [Some(long.as_str()), Some("")], "{shift}");
        assert_eq!(rows[1], [None, None], "{shift}");
        assert_eq!(rows[2], [Some(""), Some(long.as_str())], "{shift}");
        assert_eq!(rows[3], [Some("y\""), Some("")], "{shift}");
        assert_eq!(rows[4], [None, Some("z")], "{shift}");
    }
}

#[test]
fn an_empty_text_is_written_so_that_it_is_read_as_one() {
    let batch = read("a,b,c\nx,,\"\"\ny,\"\",\n", "").unwrap();
    let mut file = tempfile::tempfile().unwrap();
    let mut writer = CsvWriter::begin(file.try_clone().unwrap(), batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    file.rewind().unwrap();
    let mut written = String::new();
    file.read_to_string(&mut written).unwrap();
    assert_eq!(written, "a,b,c\nx,,\"\"\ny,\"\",\n");
}
