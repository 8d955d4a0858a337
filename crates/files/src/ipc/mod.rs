//! Arrow IPC files: the file format and the stream format read, the file format written.
//!
//! A batch of the file is read into memory whole and handed on in parts. Bodies compressed with
//! LZ4 or zstd are read; files are written uncompressed, so that others can map them.

mod arrays;
mod builder;
mod dictionary;
mod flatbuffer;
mod metadata;
mod stored;
mod writer;

pub use writer::IpcWriter;

use super::Batches;
use super::budget::{self, Budget};
use super::guard::guarded;
use anyhow::{Context, Result, bail, ensure};
use arrays::Body;
use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::SchemaRef;
use dictionary::Dictionaries;
use metadata::{Batch, Block, Column, Header};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use stored::{StoredBatch, StoredColumn};

/// Reads an Arrow file or stream.
pub struct IpcReader {
    file: File,
    file_bytes: u64,
    schema: SchemaRef,
    columns: Vec<Column>,
    dictionaries: Dictionaries,
    source: Source,
    rows_total: Option<u64>,
    current: Option<StoredBatch>,
    rows_max: usize,
    budget: Budget,
    bytes_done: u64,
}

enum Source {
    /// Blocks that the footer lists, those before `next` read.
    File { batches: Vec<Block>, next: usize },
    /// Messages one after another.
    Stream { at: u64 },
}

impl IpcReader {
    /// Reads the footer, or a stream's first message, and a file's dictionaries.
    ///
    /// # Errors
    /// Cut off, damaged, or with a column that no table can hold.
    pub fn open(file: File) -> Result<IpcReader> {
        let file_bytes = file.metadata()?.len();
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, 0).context("the file is cut off; copy it again, or write it anew")?;
        if &magic[..6] == b"ARROW1" { Self::file(file, file_bytes) } else { Self::stream(file, file_bytes) }
    }

    fn file(file: File, file_bytes: u64) -> Result<IpcReader> {
        let footer = footer(&file, file_bytes)?;
        let (schema, dictionaries, batches) = metadata::footer(&footer).context("the footer is damaged")?;
        let (schema, columns) = metadata::columns(schema)?;
        let source = Source::File { batches: batches.clone(), next: 0 };
        // Each lies by itself: a footer that names one again and again would cost more than the file is long.
        let listed = dictionaries.iter().chain(&batches);
        let named = listed.fold(0u64, |sum, (_, metadata, body)| sum.saturating_add(*metadata).saturating_add(*body));
        ensure!(named <= file_bytes, "the footer names more bytes than the file has; it is damaged");
        let mut reader = IpcReader::new(file, file_bytes, Arc::new(schema), columns, source);
        for block in dictionaries {
            let metadata = reader.metadata(block.0, block.1)?;
            let message = metadata::message(&metadata)?;
            let Header::Dictionary { id, delta, batch } = message.header else {
                bail!("a dictionary is none; the footer is damaged");
            };
            ensure!(message.body_bytes <= block.2, "a message is longer than the footer says; it is damaged");
            let body = reader.body(block.0 + block.1, message.body_bytes)?;
            guarded(|| reader.add_dictionary(id, delta, &batch, body))?;
        }
        let mut rows = 0u64;
        for block in &batches {
            rows = rows.saturating_add(reader.block_rows(block)?);
        }
        reader.rows_total = Some(rows);
        Ok(reader)
    }

    fn stream(file: File, file_bytes: u64) -> Result<IpcReader> {
        let source = Source::Stream { at: 0 };
        let empty = Arc::new(arrow_schema::Schema::empty());
        let mut reader = IpcReader::new(file, file_bytes, empty, Vec::new(), source);
        let Some((metadata, end)) = reader.stream_metadata(0)? else {
            bail!("the stream is empty");
        };
        let message = metadata::message(&metadata)?;
        let Header::Schema(schema) = message.header else {
            bail!("the stream does not begin with its columns");
        };
        let (schema, columns) = metadata::columns(schema)?;
        (reader.rows_max, reader.schema, reader.columns) = (budget::rows_max(&schema), Arc::new(schema), columns);
        reader.source = Source::Stream { at: end.saturating_add(message.body_bytes) };
        Ok(reader)
    }

    fn new(file: File, file_bytes: u64, schema: SchemaRef, columns: Vec<Column>, source: Source) -> IpcReader {
        IpcReader {
            rows_max: budget::rows_max(&schema),
            budget: Budget::of_file(file_bytes),
            file,
            file_bytes,
            schema,
            columns,
            dictionaries: Dictionaries::new(),
            source,
            rows_total: None,
            current: None,
            bytes_done: 0,
        }
    }

    /// Reads the next batch of the file into `current`; `false` at the end.
    fn read_stored_batch(&mut self) -> Result<bool> {
        loop {
            let (metadata, end, body_max) = match &mut self.source {
                Source::File { batches, next } => {
                    let Some(block) = batches.get(*next).copied() else { return Ok(false) };
                    *next += 1;
                    (self.metadata(block.0, block.1)?, block.0 + block.1, block.2)
                }
                Source::Stream { at } => {
                    let at = *at;
                    let Some((metadata, end)) = self.stream_metadata(at)? else { return Ok(false) };
                    (metadata, end, u64::MAX)
                }
            };
            let message = metadata::message(&metadata)?;
            ensure!(message.body_bytes <= body_max, "a message is longer than the footer says; the file is damaged");
            let body = self.body(end, message.body_bytes)?;
            if let Source::Stream { at } = &mut self.source {
                *at = end + message.body_bytes;
            }
            self.bytes_done = end + message.body_bytes;
            match message.header {
                Header::Schema(_) => bail!("a second schema follows the first"),
                Header::Dictionary { id, delta, batch } => {
                    guarded(|| self.add_dictionary(id, delta, &batch, body))?;
                }
                Header::Batch(batch) => {
                    self.current = Some(guarded(|| self.record_batch(&batch, body))?);
                    return Ok(true);
                }
            }
        }
    }

    fn record_batch(&self, batch: &Batch, body: Buffer) -> Result<StoredBatch> {
        let mut body = Body::new(batch, body, &self.budget);
        let mut columns = Vec::with_capacity(self.columns.len());
        for (column, field) in self.columns.iter().zip(self.schema.fields()) {
            let stored = body.column(column, &self.dictionaries);
            columns.push(stored.with_context(|| format!("column `{}`", field.name()))?);
        }
        Ok(StoredBatch { columns, rows: batch.rows, taken: 0, _charges: body.charges() })
    }

    /// The next rows of `stored`, as many as a batch has room for.
    fn part(&self, stored: &mut StoredBatch) -> Result<RecordBatch> {
        let rows = self.rows_max.min(stored.rows - stored.taken);
        let mut lengths = vec![0; rows];
        let named = |column: usize| format!("column `{}`", self.schema.field(column).name());
        for (index, column) in stored.columns.iter().enumerate() {
            column.add_lengths(stored.taken, &mut lengths).with_context(|| named(index))?;
        }
        let rows = budget::rows_within(budget::room(&self.schema, rows), lengths)?;
        let plain =
            |(index, column): (usize, &StoredColumn)| column.plain(stored.taken, rows).with_context(|| named(index));
        let arrays = stored.columns.iter().enumerate().map(plain).collect::<Result<_>>()?;
        stored.taken += rows;
        RecordBatch::try_new(self.schema.clone(), arrays).context("a batch contradicts its schema")
    }

    fn add_dictionary(&mut self, id: i64, delta: bool, batch: &Batch, body: Buffer) -> Result<()> {
        let column = self.columns.iter().find(|c| c.dictionary.as_ref().is_some_and(|d| d.0 == id));
        // Nobody names it.
        let Some(column) = column else { return Ok(()) };
        let mut body = Body::new(batch, body, &self.budget);
        let values = body.values(&column.stored).context("a dictionary is damaged")?;
        let known = self.dictionaries.entry(id).or_default();
        if !delta {
            *known = Arc::default();
        }
        // Only a batch that is not handed on whole yet has it as well.
        Arc::make_mut(known).add(values, body.charges());
        Ok(())
    }

    fn block_rows(&self, block: &Block) -> Result<u64> {
        match metadata::message(&self.metadata(block.0, block.1)?)?.header {
            Header::Batch(batch) => Ok(batch.rows as u64),
            _ => bail!("a batch is none; the footer is damaged"),
        }
    }

    /// The metadata of a block: `length` bytes at `at`, of which the first say how many they are.
    fn metadata(&self, at: u64, length: u64) -> Result<Vec<u8>> {
        let bytes = self.read(at, length)?;
        let prefix = if bytes.starts_with(&CONTINUATION) { 4 } else { 0 };
        let from = bytes.get(prefix..).and_then(<[u8]>::split_first_chunk::<4>);
        let (claim, rest) = from.context("a message is cut off")?;
        let claim = u32::from_le_bytes(*claim) as usize;
        Ok(rest.get(..claim).context("a message is cut off")?.to_vec())
    }

    /// A stream's next metadata and where it ends; `None` at the end of the stream.
    fn stream_metadata(&self, at: u64) -> Result<Option<(Vec<u8>, u64)>> {
        // A stream ends with a length of 0, or simply ends.
        if at >= self.file_bytes {
            return Ok(None);
        }
        let mut head = self.read(at, 4)?;
        let mut start = at + 4;
        if head == CONTINUATION {
            head = self.read(start, 4)?;
            start += 4;
        }
        let length = head.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if length == 0 {
            return Ok(None);
        }
        Ok(Some((self.read(start, length.into())?, start + u64::from(length))))
    }

    fn body(&self, at: u64, length: u64) -> Result<Buffer> {
        self.check(at, length)?;
        let mut body = MutableBuffer::from_len_zeroed(length as usize);
        self.file.read_exact_at(body.as_slice_mut(), at)?;
        Ok(body.into())
    }

    fn read(&self, at: u64, length: u64) -> Result<Vec<u8>> {
        self.check(at, length)?;
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }

    fn check(&self, at: u64, length: u64) -> Result<()> {
        let end = at.checked_add(length);
        ensure!(
            end.is_some_and(|end| end <= self.file_bytes),
            "a message lies outside of the file, which is damaged or cut off; copy it again, or write it anew"
        );
        Ok(())
    }
}

impl Batches for IpcReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn rows_total(&self) -> Option<u64> {
        self.rows_total
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(mut stored) = self.current.take()
                && stored.taken < stored.rows
            {
                let batch = guarded(|| self.part(&mut stored))?;
                self.current = Some(stored);
                return Ok(Some(batch));
            }
            if !self.read_stored_batch()? {
                return Ok(None);
            }
        }
    }

    fn bytes_done(&self) -> u64 {
        self.bytes_done
    }
}

/// The footer stands before the file's last ten bytes: its length and the magic word.
fn footer(file: &File, file_bytes: u64) -> Result<Vec<u8>> {
    const CUT_OFF: &str = "the file is cut off: it does not end as Arrow files do; copy it again, or write it anew";
    let at = file_bytes.checked_sub(10).filter(|at| *at >= 8).context(CUT_OFF)?;
    let mut tail = [0; 10];
    file.read_exact_at(&mut tail, at)?;
    ensure!(&tail[4..] == b"ARROW1", CUT_OFF);
    let length = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    let start = at.checked_sub(length.into()).filter(|start| *start >= 8);
    let start = start.context("the footer claims to be longer than the file")?;
    let mut footer = vec![0; length as usize];
    file.read_exact_at(&mut footer, start)?;
    Ok(footer)
}

const CONTINUATION: [u8; 4] = [0xFF; 4];
