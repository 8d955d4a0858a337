//! CSV with a header row.
//!
//! A field with nothing in it is a null; in a column that has no nulls and holds text or bytes it
//! is the empty value. `""` is the empty value wherever a column can hold one, else a null. So
//! DuckDB and PostgreSQL write them. Bytes are `0x` and hexadecimal digits, dates and timestamps as
//! in ISO 8601.

mod infer;
mod records;

use super::text::{TextColumn, text_column, write_value};
use super::types::{check_columns, check_type, type_name};
use super::{Batches, Sink, budget, put};
use crate::limits::NAME_BYTES_MAX;
use anyhow::{Context, Result, anyhow, bail};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use infer::Guess;
use records::{Record, Records};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::sync::Arc;

/// Reads a CSV file.
pub struct CsvReader {
    schema: SchemaRef,
    columns: Vec<Box<dyn TextColumn>>,
    inferred: Vec<bool>,
    records: Records,
    record: Record,
    rows_max: usize,
}

impl CsvReader {
    /// Reads the header and the first rows to learn the columns' types; `known` go before guesses.
    ///
    /// # Errors
    /// No header, a column without a name or two of one name, a type for a column that is not
    /// there.
    pub fn open(source: impl Read + Send + 'static, known: &[Field]) -> Result<CsvReader> {
        let mut record = Record::new();
        let mut records = Records::taping(source);
        let names = header(&mut records, &mut record)?;
        if let Some(absent) = known.iter().find(|field| !names.contains(field.name())) {
            bail!("has no column `{}`; it has {}", absent.name(), quoted(&names));
        }
        // Such a file would load as one column of text that holds whole lines. Who means that names the column.
        if let ([name], []) = (&names[..], known)
            && let Some(other) = name.chars().find(|character| SEPARATORS.contains(character))
        {
            bail!(
                "line 1: one column, called {name:?}: are fields separated by {other:?}? Separate them by commas, \
                 or give the column's type by --schema"
            );
        }
        let guesses = sample(&mut records, &mut record, &names)?;
        let mut fields = Vec::new();
        let mut inferred = Vec::new();
        for (name, guess) in names.iter().zip(guesses) {
            let given = known.iter().find(|field| field.name() == name);
            inferred.push(given.is_none());
            let ty = given.map_or_else(|| guess.data_type(), |field| field.data_type().clone());
            fields.push(Field::new(name, ty, given.is_none_or(Field::is_nullable)));
        }
        let columns = fields
            .iter()
            .map(|field| {
                check_type(field.name(), field.data_type())?;
                text_column(field.data_type())
            })
            .collect::<Result<_>>()?;

        let mut records = records.rewound();
        records.read(&mut record)?;
        let schema = Arc::new(Schema::new(fields));
        let rows_max = budget::rows_max(&schema);
        Ok(CsvReader { schema, columns, inferred, records, record, rows_max })
    }

    fn push_record(&mut self) -> Result<()> {
        check_width(&self.record, self.columns.len())?;
        for (index, column) in self.columns.iter_mut().enumerate() {
            let field = self.schema.field(index);
            let place = || format!("line {}, column `{}`", self.record.line, field.name());
            let text = self
                .record
                .field(index)
                .with_context(|| format!("{}: not UTF-8; convert the file (iconv -t UTF-8)", place()))?;
            let empty = text.is_empty().then_some(field.data_type());
            let pushed = match empty {
                Some(DataType::Utf8) if !field.is_nullable() || self.record.is_quoted(index) => column.push(""),
                Some(DataType::Binary) if !field.is_nullable() || self.record.is_quoted(index) => column.push("0x"),
                Some(_) if field.is_nullable() => {
                    column.push_null();
                    Ok(())
                }
                Some(_) => Err("is empty, and the column takes no nulls".into()),
                None => column.push(text),
            };
            pushed.map_err(|why| match self.inferred[index] {
                false => anyhow!("{}: {why}", place()),
                true => anyhow!(
                    "{}: {why}; the type {} was guessed from the first {SAMPLE_ROWS} rows, \
                     give another with --schema '{}:utf8'",
                    place(),
                    type_name(field.data_type()),
                    field.name()
                ),
            })?;
        }
        Ok(())
    }
}

impl Batches for CsvReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn rows_total(&self) -> Option<u64> {
        None
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let room = budget::room(&self.schema, self.rows_max);
        let (mut rows, mut bytes) = (0, 0);
        // A record is far shorter than the room, so one more may go beyond it.
        while rows < self.rows_max && bytes < room && self.records.read(&mut self.record)? {
            self.push_record()?;
            rows += 1;
            bytes += self.record.bytes();
        }
        if rows == 0 {
            return Ok(None);
        }
        let columns: Vec<ArrayRef> = self.columns.iter_mut().map(|c| c.finish()).collect();
        Ok(Some(RecordBatch::try_new(self.schema.clone(), columns)?))
    }

    fn bytes_done(&self) -> u64 {
        self.records.bytes_done()
    }
}

/// Writes a CSV file.
pub struct CsvWriter {
    file: BufWriter<File>,
    line: String,
    value: String,
}

impl CsvWriter {
    /// Begins the file with its header row.
    ///
    /// # Errors
    /// The device is full or failing.
    pub fn begin(file: File, schema: SchemaRef) -> Result<CsvWriter> {
        let mut writer =
            CsvWriter { file: BufWriter::with_capacity(256 << 10, file), line: String::new(), value: String::new() };
        for (index, field) in schema.fields().iter().enumerate() {
            writer.append(index, Some(field.name()));
        }
        writer.end_line()?;
        Ok(writer)
    }

    fn append(&mut self, index: usize, text: Option<&str>) {
        if index > 0 {
            self.line.push(',');
        }
        let Some(text) = text else { return };
        if text.is_empty() || text.contains([',', '"', '\n', '\r']) {
            self.line.push('"');
            self.line.push_str(&text.replace('"', "\"\""));
            self.line.push('"');
        } else {
            self.line.push_str(text);
        }
    }

    fn end_line(&mut self) -> Result<()> {
        // A row of one null would be a blank line, which readers pass over; so it reads as the empty text.
        if self.line.is_empty() {
            self.line.push_str("\"\"");
        }
        self.line.push('\n');
        put(&mut self.file, self.line.as_bytes())?;
        self.line.clear();
        Ok(())
    }
}

impl Sink for CsvWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        for row in 0..batch.num_rows() {
            for (index, column) in batch.columns().iter().enumerate() {
                let mut value = std::mem::take(&mut self.value);
                value.clear();
                write_value(column.as_ref(), row, &mut value);
                self.append(index, column.is_valid(row).then_some(value.as_str()));
                self.value = value;
            }
            self.end_line()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.file.flush()?)
    }
}

fn header(records: &mut Records, record: &mut Record) -> Result<Vec<String>> {
    if !records.read(record)? {
        bail!("has no header row; its first line must name the columns");
    }
    check_columns(record.len()).context("line 1")?;
    let mut names: Vec<String> = Vec::with_capacity(record.len());
    let mut known = HashSet::with_capacity(record.len());
    for index in 0..record.len() {
        let name = record.field(index).context("line 1: the header row is not UTF-8")?;
        let name = if index == 0 { name.trim_start_matches('\u{feff}') } else { name };
        if name.is_empty() {
            bail!("line 1: column {} has no name; the first line must name the columns", index + 1);
        }
        if name.len() > NAME_BYTES_MAX {
            bail!("line 1: the name of column {} is longer than {NAME_BYTES_MAX} bytes; rename it", index + 1);
        }
        if !known.insert(name) {
            bail!("line 1: two columns are called `{name}`; rename one of them");
        }
        names.push(name.to_string());
    }
    Ok(names)
}

fn sample(records: &mut Records, record: &mut Record, names: &[String]) -> Result<Vec<Guess>> {
    let mut guesses = vec![Guess::new(); names.len()];
    let mut rows = 0;
    while rows < SAMPLE_ROWS && records.bytes_done() < SAMPLE_BYTES && records.read(record)? {
        check_width(record, names.len())?;
        for (index, guess) in guesses.iter_mut().enumerate() {
            // What is not UTF-8 is reported with its place when the row is read.
            guess.see(record.field(index).unwrap_or("\u{fffd}"));
        }
        rows += 1;
    }
    Ok(guesses)
}

fn check_width(record: &Record, columns: usize) -> Result<()> {
    if record.len() != columns {
        bail!("line {}: {} fields where the header names {columns}; is a comma not quoted?", record.line, record.len());
    }
    Ok(())
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Rows, and bytes, from which types are guessed.
const SAMPLE_ROWS: usize = 10_000;
const SAMPLE_BYTES: u64 = 16 << 20;
/// What separates fields in files that are called CSV all the same.
const SEPARATORS: [char; 3] = [';', '\t', '|'];

#[cfg(test)]
mod tests;
