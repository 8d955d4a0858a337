//! Parquet, by the column readers and writers of the `parquet` crate without its `arrow` feature.
//!
//! Reads flat files of any writer: page versions 1 and 2, dictionaries, the delta and
//! byte-stream encodings, Snappy, gzip, LZ4 and zstd. Writes Snappy.

mod column;
mod delta;
mod flow;
mod pages;
mod schema;
mod thrift;
mod writer;

pub use writer::ParquetWriter;

use super::Batches;
use super::budget::{self, Budget};
use super::guard::guarded;
use super::types::check_columns;
use anyhow::{Context, Result, bail, ensure};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use column::{ColumnReader, column_reader};
use pages::Pages;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads a Parquet file, row group by row group.
pub struct ParquetReader {
    file: Arc<File>,
    file_bytes: u64,
    metadata: ParquetMetaData,
    schema: SchemaRef,
    group: usize,
    columns: Vec<Box<dyn ColumnReader>>,
    rows_left: u64,
    /// Rows that the next batch shall have.
    rows_wanted: usize,
    rows_max: usize,
    budget: Budget,
    bytes_done: Arc<AtomicU64>,
}

impl ParquetReader {
    /// Reads the footer.
    ///
    /// # Errors
    /// No footer (the file is cut off), a damaged one, a column no table can hold.
    pub fn open(file: File) -> Result<ParquetReader> {
        let file_bytes = file.metadata()?.len();
        let footer = footer(&file, file_bytes)?;
        // Before the crate reads it, which recurses into what nests.
        if let Some(name) =
            thrift::nested_column(&footer).context("the footer is damaged; copy the file again, or write it anew")?
        {
            bail!(
                "column `{name}` is nested (a list, struct or map), which tables do not have; flatten it into a column for \
                 each member before loading"
            );
        }
        let (metadata, schema) = guarded(|| {
            let metadata = ParquetMetaDataReader::decode_metadata(&footer)
                .context("the footer is damaged; copy the file again, or write it anew")?;
            let descriptor = metadata.file_metadata().schema_descr();
            check_columns(descriptor.num_columns())?;
            let schema = schema::arrow_schema(descriptor)?;
            Ok((metadata, Arc::new(schema)))
        })?;
        for group in metadata.row_groups() {
            ensure!(group.num_rows() >= 0, "a row group has a negative number of rows");
            ensure!(group.num_columns() == schema.fields().len(), "a row group lacks columns");
        }
        Ok(ParquetReader {
            file: Arc::new(file),
            file_bytes,
            metadata,
            rows_wanted: budget::rows_max(&schema),
            rows_max: budget::rows_max(&schema),
            budget: Budget::of_file(file_bytes),
            schema,
            group: 0,
            columns: Vec::new(),
            rows_left: 0,
            bytes_done: Arc::new(AtomicU64::new(0)),
        })
    }

    /// Goes to the next row group with rows; `false` when there is none.
    fn next_group(&mut self) -> Result<bool> {
        while self.rows_left == 0 {
            let Some(group) = self.metadata.row_groups().get(self.group) else {
                return Ok(false);
            };
            self.columns = self.group_columns(group)?;
            self.rows_left = group.num_rows() as u64;
            self.group += 1;
        }
        Ok(true)
    }

    fn group_columns(&self, group: &RowGroupMetaData) -> Result<Vec<Box<dyn ColumnReader>>> {
        let fields = self.schema.fields().iter();
        fields
            .zip(group.columns())
            .map(|(field, chunk)| {
                let opened = || {
                    let counter = self.bytes_done.clone();
                    let pages = Pages::new(self.file.clone(), self.file_bytes, chunk, counter, self.budget.clone())?;
                    column_reader(chunk.column_descr_ptr(), pages, field.data_type())
                };
                opened().with_context(|| format!("column `{}`", field.name()))
            })
            .collect()
    }

    fn read_batch(&mut self) -> Result<Option<RecordBatch>> {
        if !self.next_group()? {
            return Ok(None);
        }
        let rows = self.fill().with_context(|| format!("row group {}", self.group))?;
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.columns.len());
        for (column, field) in self.columns.iter_mut().zip(self.schema.fields()) {
            let array =
                column.take(rows).with_context(|| format!("row group {}, column `{}`", self.group, field.name()))?;
            arrays.push(array);
        }
        self.rows_left -= rows as u64;
        Ok(Some(RecordBatch::try_new(self.schema.clone(), arrays)?))
    }

    /// Decodes the next rows of every column: as many as a batch has room for. Returns how many.
    fn fill(&mut self) -> Result<usize> {
        let wanted = self.rows_left.min(self.rows_wanted as u64) as usize;
        let room = budget::room(&self.schema, wanted);
        // Whatever the columns before it take, a column has room for some rows.
        let share = room / SHARES / self.columns.len();
        let (mut rows, mut taken) = (wanted, 0usize);
        for (column, field) in self.columns.iter_mut().zip(self.schema.fields()) {
            let filled = column.fill(rows, room.saturating_sub(taken).max(share));
            let (there, bytes) = filled.with_context(|| format!("column `{}`", field.name()))?;
            rows = there;
            taken = taken.saturating_add(bytes);
        }
        if taken > room {
            let mut lengths = vec![0; rows];
            self.columns.iter().for_each(|column| column.add_lengths(&mut lengths));
            rows = budget::rows_within(room, lengths)?;
        }
        // Where rows are long, the first columns must not take all room for rows that the others have none for.
        self.rows_wanted = if rows < wanted { 2 * rows } else { 2 * self.rows_wanted }.min(self.rows_max);
        Ok(rows)
    }
}

impl Batches for ParquetReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn rows_total(&self) -> Option<u64> {
        let rows = self.metadata.row_groups().iter().map(|group| group.num_rows() as u64);
        Some(rows.fold(0, u64::saturating_add))
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        guarded(|| self.read_batch())
    }

    fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Ordering::Relaxed)
    }
}

/// The footer's bytes: they stand before the last eight, which are their length and a magic word.
fn footer(file: &File, file_bytes: u64) -> Result<Vec<u8>> {
    let mut tail = [0; 8];
    let at = file_bytes.checked_sub(12).context("the file is cut off; copy it again, or write it anew")? + 4;
    file.read_exact_at(&mut tail, at)?;
    ensure!(&tail[4..] != b"PARE", "the file is encrypted; decrypt it before loading");
    ensure!(
        &tail[4..] == b"PAR1",
        "the file is cut off: it does not end as Parquet files do; copy it again, or write it anew"
    );
    let length = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    let start = at.checked_sub(length.into()).filter(|start| *start >= 4);
    let start = start.context("the footer claims to be longer than the file; copy it again, or write it anew")?;
    let mut footer = vec![0; length as usize];
    file.read_exact_at(&mut footer, start)?;
    Ok(footer)
}

/// A column's least part of a batch's room is an even share of one in so many.
const SHARES: usize = 16;
