//! Tables in files: Parquet, CSV and Arrow, read and written as record batches.
//!
//! Everything here takes bytes from outside: sizes and offsets are checked before they are used,
//! and an error names the file, the place in it and what to do. [`create`] gives a
//! file its name when it is whole, so that a failed export leaves nothing half-visible.
//!
//! Arrow's own crates for these formats (arrow-ipc, arrow-cast, arrow-select) cost minutes of
//! build time; what a table needs of the formats is small enough to be read directly.
//!
//! Bytes are read as hostile. `budget` is charged before memory is spent on a file or on a batch's
//! columns; long rows make shorter batches. `limits` are the tables', without a dependency on them;
//! the command compares both when it is compiled.

#![forbid(unsafe_code)]

pub mod budget;
pub mod calendar;
mod codec;
mod csv;
mod format;
mod guard;
mod ipc;
pub mod limits;
mod parquet;
pub mod text;
pub mod types;

use anyhow::{Context, Result, bail};
use arrow_array::RecordBatch;
use arrow_schema::{Field, SchemaRef};
use format::Format;
use overside_disk::AtomicFile;
use std::fs::File;
use std::io::{Cursor, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Rows of a batch at most.
pub const BATCH_ROWS: usize = 8192;

/// Opens a file for reading; its name's extension says its format, its first bytes must agree.
///
/// `columns` are for files that do not say what they hold (CSV): by `--schema`, or those of the
/// table that is loaded into. What they do not name is inferred.
///
/// # Errors
/// Not readable, not the format its name says, damaged, or with a column no table can hold.
pub fn open(path: &Path, columns: &[Field]) -> Result<FileReader> {
    let file = File::open(path).with_context(|| format!("{}", path.display()))?;
    open_as(path, file, columns)
}

/// Reads `file` as what it would be under the name `path`.
///
/// # Errors
/// As [`open`].
pub fn open_as(path: &Path, file: File, columns: &[Field]) -> Result<FileReader> {
    let opened = || -> Result<FileReader> {
        let bytes_total = file.metadata()?.len();
        let format = Format::of(path)?.checked(&file)?;
        let batches = batches(format, file, columns)?;
        Ok(FileReader { path: path.to_path_buf(), format, bytes_total, batches })
    };
    opened().with_context(|| format!("{}", path.display()))
}

/// Reads what comes from `file`, which has no name: a process' standard input. Its first bytes say
/// its format.
///
/// A pipe carries CSV. Of the other formats the end is read before the beginning, so `file` has to
/// be one.
///
/// # Errors
/// As [`open`], and for what cannot come from a pipe.
pub fn open_input(mut file: File, columns: &[Field]) -> Result<FileReader> {
    let opened = || -> Result<FileReader> {
        let metadata = file.metadata()?;
        let mut head = [0; format::HEAD_BYTES];
        // Who has read some of a file before gives it on as a stream: the rest is what is meant.
        let whole = metadata.is_file() && file.stream_position()? == 0;
        let length = if whole { format::read_head(&file, &mut head)? } else { read_some(&mut file, &mut head)? };
        let format = Format::of_head(&head[..length])?;
        let (batches, bytes_total) = match format {
            _ if whole => (batches(format, file, columns)?, metadata.len()),
            Format::Csv => {
                let stream = Cursor::new(head).take(length as u64).chain(file);
                (checked(Box::new(csv::CsvReader::open(stream, columns)?))?, u64::MAX)
            }
            _ => bail!("{} cannot be read from a pipe: give the file by its name", format.name()),
        };
        Ok(FileReader { path: PathBuf::from("standard input"), format, bytes_total, batches })
    };
    opened().context("standard input")
}

/// The reader of a file of this format.
fn batches(format: Format, file: File, columns: &[Field]) -> Result<Box<dyn Batches>> {
    let opened = || -> Result<Box<dyn Batches>> {
        checked(match format {
            Format::Parquet => Box::new(parquet::ParquetReader::open(file)?),
            Format::Csv => Box::new(csv::CsvReader::open(file, columns)?),
            Format::Arrow => Box::new(ipc::IpcReader::open(file)?),
        })
    };
    opened().map_err(|error| format.advised(error))
}

fn checked(batches: Box<dyn Batches>) -> Result<Box<dyn Batches>> {
    types::check_schema(&batches.schema())?;
    Ok(batches)
}

fn read_some(file: &mut File, head: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < head.len() {
        match file.read(&mut head[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

/// A file being read, batch by batch.
pub struct FileReader {
    path: PathBuf,
    format: Format,
    bytes_total: u64,
    batches: Box<dyn Batches>,
}

impl FileReader {
    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        self.batches.schema()
    }

    /// Rows of the file, where it says so before it is read (not CSV, not Arrow streams).
    pub fn rows_total(&self) -> Option<u64> {
        self.batches.rows_total()
    }

    /// The next rows, at most [`BATCH_ROWS`], fewer where they are long, and never none; `None` at
    /// the end.
    ///
    /// # Errors
    /// Names the file and the place in it. Nothing can be read after an error.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let batch = self.batches.next_batch().map_err(|error| self.format.advised(error));
        batch.with_context(|| format!("{}", self.path.display()))
    }

    /// Bytes of the file that have been read, roughly; of [`Self::bytes_total`].
    pub fn bytes_done(&self) -> u64 {
        self.batches.bytes_done().min(self.bytes_total)
    }

    /// Bytes of the file; [`u64::MAX`] for a pipe, whose end nobody knows.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }
}

/// Checks that a file of this name can be [created](create), as far as the name says: for who needs
/// long until he has rows for it.
///
/// # Errors
/// An extension of no known format.
pub fn check_name(path: &Path) -> Result<()> {
    Format::of(path).map(|_| ()).with_context(|| format!("{}", path.display()))
}

/// Begins a file; its name's extension says its format.
///
/// # Errors
/// An extension of no known format, or the folder cannot be written.
pub fn create(path: &Path, schema: SchemaRef) -> Result<FileWriter> {
    let created = || -> Result<FileWriter> {
        let format = Format::of(path)?;
        types::check_schema(&schema)?;
        let output = AtomicFile::create(path)?;
        let file = output.file().try_clone()?;
        let sink: Box<dyn Sink> = match format {
            Format::Parquet => Box::new(parquet::ParquetWriter::begin(file, schema)?),
            Format::Csv => Box::new(csv::CsvWriter::begin(file, schema)?),
            Format::Arrow => Box::new(ipc::IpcWriter::begin(file, schema)?),
        };
        Ok(FileWriter { path: path.to_path_buf(), output, sink })
    };
    created().with_context(|| format!("{}", path.display()))
}

/// A file being written. Dropped without [`FileWriter::finish`] it leaves nothing behind.
pub struct FileWriter {
    path: PathBuf,
    output: AtomicFile,
    sink: Box<dyn Sink>,
}

impl FileWriter {
    /// Appends rows.
    ///
    /// # Errors
    /// The device is full or failing; a value that the format cannot hold.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.sink.write(batch).with_context(|| format!("{}", self.path.display()))
    }

    /// Completes the file and gives it its name. Returns its length in bytes.
    ///
    /// # Errors
    /// As for [`Self::write`]; nothing stands under the name then.
    pub fn finish(self) -> Result<u64> {
        let FileWriter { path, output, mut sink } = self;
        sink.finish().and_then(|()| Ok(output.publish()?)).with_context(|| format!("{}", path.display()))
    }
}

/// What a format's reader does.
trait Batches: Send {
    fn schema(&self) -> SchemaRef;
    fn rows_total(&self) -> Option<u64>;
    fn next_batch(&mut self) -> Result<Option<RecordBatch>>;
    fn bytes_done(&self) -> u64;
}

/// What a format's writer does.
trait Sink {
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;
    fn finish(&mut self) -> Result<()>;
}

/// Writes all of a small piece; a shorthand that keeps `write_all` errors in `anyhow`.
fn put(file: &mut impl Write, bytes: &[u8]) -> Result<()> {
    Ok(file.write_all(bytes)?)
}
