//! Arrow IPC files: the file format and the stream format read, the file format written.
//!
//! A batch of the file is read into memory whole and handed on in slices. Bodies compressed with
//! LZ4 or zstd are read; files are written uncompressed, so that others can map them.

mod arrays;
mod builder;
mod flatbuffer;
mod metadata;
mod writer;

pub use writer::IpcWriter;

use super::guard::guarded;
use super::{BATCH_ROWS, Batches};
use anyhow::{Context, Result, bail, ensure};
use arrays::{Body, Dictionaries};
use arrow_array::cast::AsArray;
use arrow_array::{RecordBatch, StringArray};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::{DataType, SchemaRef};
use metadata::{Batch, Block, Column, Header};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Reads an Arrow file or stream.
pub struct IpcReader {
    file: File,
    file_bytes: u64,
    schema: SchemaRef,
    columns: Vec<Column>,
    dictionaries: Dictionaries,
    source: Source,
    rows_total: Option<u64>,
    current: Option<RecordBatch>,
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
        file.read_exact_at(&mut magic, 0).context("the file is cut off")?;
        if &magic[..6] == b"ARROW1" { Self::file(file, file_bytes) } else { Self::stream(file, file_bytes) }
    }

    fn file(file: File, file_bytes: u64) -> Result<IpcReader> {
        let footer = footer(&file, file_bytes)?;
        let (schema, dictionaries, batches) = metadata::footer(&footer).context("the footer is damaged")?;
        let (schema, columns) = metadata::columns(schema)?;
        let source = Source::File { batches: batches.clone(), next: 0 };
        let mut reader = IpcReader::new(file, file_bytes, Arc::new(schema), columns, source);
        for block in dictionaries {
            let metadata = reader.metadata(block.0, block.1)?;
            let message = metadata::message(&metadata)?;
            let Header::Dictionary { id, delta, batch } = message.header else {
                bail!("a dictionary is none; the footer is damaged");
            };
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
        (reader.schema, reader.columns) = (Arc::new(schema), columns);
        reader.source = Source::Stream { at: end.saturating_add(message.body_bytes) };
        Ok(reader)
    }

    fn new(file: File, file_bytes: u64, schema: SchemaRef, columns: Vec<Column>, source: Source) -> IpcReader {
        IpcReader {
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
            let (metadata, end) = match &mut self.source {
                Source::File { batches, next } => {
                    let Some(block) = batches.get(*next).copied() else { return Ok(false) };
                    *next += 1;
                    (self.metadata(block.0, block.1)?, block.0 + block.1)
                }
                Source::Stream { at } => {
                    let at = *at;
                    let Some(message) = self.stream_metadata(at)? else { return Ok(false) };
                    message
                }
            };
            let message = metadata::message(&metadata)?;
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

    fn record_batch(&self, batch: &Batch, body: Buffer) -> Result<RecordBatch> {
        let mut body = Body::new(batch, body);
        let mut arrays = Vec::with_capacity(self.columns.len());
        for (column, field) in self.columns.iter().zip(self.schema.fields()) {
            let array = body.column(column, &self.dictionaries);
            arrays.push(array.with_context(|| format!("column `{}`", field.name()))?);
        }
        RecordBatch::try_new(self.schema.clone(), arrays).context("a batch contradicts its schema")
    }

    fn add_dictionary(&mut self, id: i64, delta: bool, batch: &Batch, body: Buffer) -> Result<()> {
        let column = self.columns.iter().find(|c| c.dictionary.as_ref().is_some_and(|d| d.0 == id));
        let stored = column.map(|column| &column.stored).unwrap_or(&DataType::Utf8);
        let values = Body::new(batch, body).values(stored).context("a dictionary is damaged")?;
        let values = values.as_string_opt::<i32>().context("a dictionary holds no text")?.clone();
        let values = match self.dictionaries.remove(&id).filter(|_| delta) {
            None => values,
            Some(before) => StringArray::from_iter(before.iter().chain(values.iter())),
        };
        self.dictionaries.insert(id, values);
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
            "a message lies outside of the file; it is damaged or cut off"
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
            match self.current.take() {
                Some(batch) if batch.num_rows() > BATCH_ROWS => {
                    let left = batch.num_rows() - BATCH_ROWS;
                    self.current = Some(batch.slice(BATCH_ROWS, left));
                    return Ok(Some(batch.slice(0, BATCH_ROWS)));
                }
                Some(batch) if batch.num_rows() > 0 => return Ok(Some(batch)),
                _ => {}
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
    const CUT_OFF: &str = "the file is cut off: it does not end as Arrow files do";
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
