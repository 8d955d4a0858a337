//! `overside load`

mod ahead;
mod window;

use super::{connect, index};
use crate::args::Load;
use crate::output::{self, Progress, grouped, reason};
use crate::signals::Signals;
use ahead::{Read, ReadAhead};
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use arrow_array::RecordBatch;
use arrow_schema::Field;
use overside::table::arrow::{ArrowError, BatchEncoder, EncodedRows, from_arrow, to_arrow};
use overside::table::client::{Client, ClientError, Puts, RemoteTable, RowBatch};
use overside::table::schema::{self, Schema};
use overside::table::wire::{FaultCode, PutMode};
use overside_files::types::parse_columns;
use overside_files::{self as files, BATCH_ROWS, FileReader, limits};
use serde_json::json;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;
use window::{Row, Window};

// What a file is refused for is what a table cannot hold.
const _: () = assert!(
    limits::COLUMNS_MAX == schema::COLUMNS_MAX
        && limits::NAME_BYTES_MAX == schema::NAME_BYTES_MAX
        && limits::FIXED_BINARY_MAX == schema::FIXED_BINARY_MAX
);

/// Loads the files, one after another.
///
/// # Errors
/// A file is damaged or does not fit the table, a key is there already or null, the server refuses
/// a row or goes away. The message says where, and how many rows stay in the table.
pub fn run(args: &Load, signals: &Signals) -> Result<()> {
    ensure!(args.files.iter().filter(|path| is_input(path)).count() < 2, "standard input (-) is there once");
    let mut bytes_total = Some(0);
    for path in &args.files {
        // Every file, before the first is loaded.
        let metadata =
            if is_input(path) { input()?.metadata() } else { File::open(path).and_then(|file| file.metadata()) };
        let metadata = metadata.with_context(|| format!("{}", path.display()))?;
        // Nobody knows how much a pipe will bring.
        bytes_total = bytes_total.filter(|_| metadata.is_file()).map(|bytes: u64| bytes + metadata.len());
    }
    let mut client = connect(&args.at)?;
    let known = match client.table(&args.table) {
        Ok(table) => Some(table),
        Err(ClientError::Refused { code: FaultCode::UnknownTable, .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let columns = column_types(args, known.as_ref())?;
    let first = open(&args.files[0], &columns)?;
    let created = known.is_none();
    let table = match known {
        Some(table) => table,
        None => create(&mut client, args, &first)?,
    };
    let indexes: Result<Vec<_>> = args.index.iter().map(|names| index::columns(table.schema(), names)).collect();
    let indexes = indexes.inspect_err(|_| {
        if created {
            // Nothing is in it yet. Where this fails, it stays as an empty table.
            let _ = client.drop_table(&args.table);
        }
    })?;
    let progress = bytes_total.map_or_else(|| Progress::counting("loading"), |bytes| Progress::new("loading", bytes));
    let mut loader = Loader::new(client, table, args, created, progress);
    let start = Instant::now();
    if let Err(error) = loader.files(&args.files, first, signals) {
        return Err(loader.explained(error));
    }
    let seconds = start.elapsed().as_secs_f64();
    loader.index(&indexes)?;
    loader.report(args, seconds)
}

fn is_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Standard input, as a file of its own.
fn input() -> Result<File> {
    Ok(std::io::stdin().as_fd().try_clone_to_owned().context("standard input")?.into())
}

fn open(path: &Path, columns: &[Field]) -> Result<FileReader> {
    if is_input(path) { files::open_input(input()?, columns) } else { files::open(path, columns) }
}

/// The types that files do not say: those of the table, or those of `--schema`.
fn column_types(args: &Load, known: Option<&RemoteTable>) -> Result<Vec<Field>> {
    let Some(table) = known else {
        return args.schema.as_deref().map_or(Ok(Vec::new()), parse_columns);
    };
    ensure!(args.schema.is_none(), "table `{}` is there and has its types; leave --schema out", args.table);
    let schema = table.schema();
    let key: Vec<&str> = key_names(schema);
    ensure!(
        args.key.is_empty() || args.key == key,
        "table `{}` is there and has the key {}; leave --key out",
        args.table,
        key.join(",")
    );
    Ok(to_arrow(schema).fields().iter().map(|field| field.as_ref().clone()).collect())
}

fn create(client: &mut Client, args: &Load, first: &FileReader) -> Result<RemoteTable> {
    let schema = first.schema();
    let key: Vec<&str> = match args.key.as_slice() {
        [] => vec![schema.field(0).name()],
        key => key.iter().map(String::as_str).collect(),
    };
    let schema = from_arrow(&schema, &key).with_context(|| format!("{}", args.files[0].display()))?;
    Ok(client.create_table(&args.table, &schema)?)
}

/// Whether a table has such an index.
fn is_there(error: &Error) -> bool {
    let refused = error.downcast_ref::<ClientError>();
    matches!(refused, Some(ClientError::Refused { code: FaultCode::TableExists, text }) if text.contains("has an index"))
}

fn key_names(schema: &Schema) -> Vec<&str> {
    schema.key().iter().map(|&column| schema.columns()[column].name.as_str()).collect()
}

struct Loader {
    client: Client,
    table: RemoteTable,
    mode: PutMode,
    created: bool,
    progress: Progress,
    applied: u64,
    replaced: u64,
}

/// Rows on their way from a file to the server.
struct Sender<'c> {
    puts: Puts<'c>,
    table: RemoteTable,
    encoder: BatchEncoder,
    batch: RowBatch,
    window: Window,
    /// The highest key that was put so far.
    highest: Vec<u8>,
    /// Where the rows stood that were put last, for errors about them.
    sent: VecDeque<Sent>,
    rows: u64,
    created: bool,
}

/// Rows of one file that were put together.
struct Sent {
    /// How many rows were put before them, and up to their end.
    from: u64,
    to: u64,
    path: PathBuf,
    /// Rows of the file before them.
    before: u64,
    /// Their keys' columns, as they were read.
    columns: Vec<RecordBatch>,
    /// Which row stood in each place, unless they were put as they were read.
    order: Option<Vec<Row>>,
}

impl Loader {
    fn new(client: Client, table: RemoteTable, args: &Load, created: bool, progress: Progress) -> Loader {
        Loader {
            mode: if args.replace { PutMode::Upsert } else { PutMode::Insert },
            client,
            table,
            created,
            progress,
            applied: 0,
            replaced: 0,
        }
    }

    fn files(&mut self, paths: &[impl AsRef<Path>], first: FileReader, signals: &Signals) -> Result<()> {
        let mut sender = Sender {
            encoder: BatchEncoder::new(self.table.schema()),
            batch: self.table.batch(),
            table: self.table.clone(),
            puts: self.client.puts(&self.table, self.mode),
            window: Window::default(),
            highest: Vec::new(),
            sent: VecDeque::new(),
            rows: 0,
            created: self.created,
        };
        let loaded = sender.files(paths, first, signals, &mut self.progress);
        // Whatever became of it, rows that were put count.
        let told = sender.puts.settle().map(|_| ());
        (self.applied, self.replaced) = (sender.puts.told().applied, sender.puts.told().replaced);
        loaded.and(told.map_err(Error::from)).and_then(|()| sender.check())
    }

    /// Gives the table the indexes that it does not have.
    fn index(&mut self, indexes: &[Vec<usize>]) -> Result<()> {
        self.progress.clear();
        for columns in indexes {
            match index::make(&mut self.client, &self.table, columns) {
                Err(error) if is_there(&error) => {}
                made => drop(made.context("the rows are loaded, and the index was not created")?),
            }
        }
        Ok(())
    }

    /// An error, with what became of the rows before it.
    fn explained(mut self, error: Error) -> Error {
        self.progress.clear();
        let kept = match (self.applied, self.created) {
            (0, true) if self.client.drop_table(self.table.name()).is_ok() => "nothing was loaded".to_string(),
            (0, _) => "no row was loaded".to_string(),
            (rows, _) => format!("{} rows of this load stay in table `{}`", grouped(rows), self.table.name()),
        };
        match error.downcast::<crate::signals::Interrupted>() {
            Ok(interrupted) => Error::new(interrupted).context(kept),
            Err(error) => anyhow!("{}; {kept}", reason(&error)),
        }
    }

    fn report(&mut self, args: &Load, seconds: f64) -> Result<()> {
        self.progress.clear();
        let key = key_names(self.table.schema());
        let rows_per_s = self.applied as f64 / seconds.max(1e-9);
        if args.at.json {
            let report = json!({
                "table": args.table,
                "created": self.created,
                "key": key,
                "files": args.files.len(),
                "rows": self.applied,
                "replaced": self.replaced,
                "seconds": seconds,
                "rows_per_s": rows_per_s,
            });
            return output::line(&report.to_string());
        }
        if self.created {
            let chosen = if args.key.is_empty() { " (the first column; --key chooses others)" } else { "" };
            output::line(&format!("table `{}` created with key {}{chosen}", args.table, key.join(",")))?;
        }
        let replaced = match self.replaced {
            0 => String::new(),
            rows => format!(", {} of them replaced", grouped(rows)),
        };
        output::line(&format!(
            "{} rows loaded{replaced} in {seconds:.2} s ({} rows/s)",
            grouped(self.applied),
            grouped(rows_per_s as u64)
        ))
    }
}

impl Sender<'_> {
    fn files(
        &mut self,
        paths: &[impl AsRef<Path>],
        first: FileReader,
        signals: &Signals,
        progress: &mut Progress,
    ) -> Result<()> {
        let columns: Vec<Field> =
            to_arrow(self.table.schema()).fields().iter().map(|field| field.as_ref().clone()).collect();
        let (mut reader, mut bytes_before) = (Some(first), 0u64);
        let start = Instant::now();
        for (number, path) in paths.iter().enumerate() {
            let path = path.as_ref();
            let of = if paths.len() == 1 { String::new() } else { format!("file {} of {}, ", number + 1, paths.len()) };
            let reader = match reader.take() {
                Some(reader) => reader,
                None => open(path, &columns)?,
            };
            let total = reader.rows_total().map_or(String::new(), |total| format!(" of {}", grouped(total)));
            let bytes_total = reader.bytes_total();
            let (mut reader, mut row) = (ReadAhead::new(reader)?, 0);
            while let Some(Read { batch, bytes_done }) = reader.next()? {
                signals.check()?;
                self.put(&batch, path, row)?;
                row += batch.num_rows() as u64;
                progress.at(bytes_before.saturating_add(bytes_done), || {
                    // Rows that wait to be sorted are no loaded ones, but will be soon.
                    let rate = (self.rows as f64 / start.elapsed().as_secs_f64().max(1e-9)) as u64;
                    format!("{of}row {}{total}, {} rows/s", grouped(row), grouped(rate))
                });
            }
            self.flush(path, row)?;
            bytes_before = bytes_before.saturating_add(bytes_total);
        }
        Ok(())
    }

    /// Puts a batch whose first row is number `before` of its file: at once if it goes on where the
    /// last one ended, else with others.
    fn put(&mut self, rows: &RecordBatch, path: &Path, before: u64) -> Result<()> {
        let mut encoded = self.window.spare();
        let done = self.encoder.encode(rows, &mut encoded).map_err(|error| in_file(error, before));
        done.with_context(|| format!("{}", path.display()))?;
        let columns = self.key_columns(rows)?;
        if !self.window.is_empty() || !goes_on(&encoded, &self.highest) {
            self.window.add(encoded, columns);
            let whole = before + rows.num_rows() as u64;
            return if self.window.is_full() { self.flush(path, whole) } else { Ok(()) };
        }
        if let Some(key) = encoded.keys().last() {
            self.highest.clear();
            self.highest.extend_from_slice(key);
        }
        self.note(path, before, rows.num_rows() as u64, vec![columns], None);
        self.puts.put_encoded(&encoded)?;
        self.window.give_back(encoded);
        self.check()
    }

    /// Puts the rows of the window, which end in front of row `end` of their file.
    fn flush(&mut self, path: &Path, end: u64) -> Result<()> {
        if self.window.is_empty() {
            return Ok(());
        }
        let mut rows = self.window.sorted();
        let count = rows.len() as u64;
        let mut sent = Ok(());
        while rows.len() > 0 && sent.is_ok() {
            self.batch.clear();
            let mut last: &[u8] = &[];
            for (key, value) in rows.by_ref().take(BATCH_ROWS) {
                self.batch.push_encoded(value);
                last = key;
            }
            if last > &self.highest[..] {
                self.highest.clear();
                self.highest.extend_from_slice(last);
            }
            sent = self.puts.put(&self.batch);
        }
        drop(rows);
        let (columns, order) = self.window.take_places();
        self.note(path, end - count, count, columns, Some(order));
        sent?;
        self.check()
    }

    /// Remembers where rows stand that are put.
    fn note(&mut self, path: &Path, before: u64, count: u64, columns: Vec<RecordBatch>, order: Option<Vec<Row>>) {
        let acknowledged = self.puts.acknowledged();
        while self.sent.front().is_some_and(|sent| sent.to <= acknowledged) {
            self.sent.pop_front();
        }
        let (from, to) = (self.rows, self.rows + count);
        self.rows = to;
        self.sent.push_back(Sent { from, to, path: path.to_owned(), before, columns, order });
    }

    /// Columns of the key alone, in its order.
    fn key_columns(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let columns = rows.schema();
        let there = key_names(self.table.schema()).into_iter().filter_map(|name| columns.index_of(name).ok());
        Ok(rows.project(&there.collect::<Vec<_>>())?)
    }

    /// An error about the first row that the server refused, if there is one by now.
    fn check(&mut self) -> Result<()> {
        if self.puts.told().failed.is_empty() {
            return Ok(());
        }
        // One that stands before it may be under way.
        self.puts.settle()?;
        let places = self.puts.told().failed.iter().filter_map(|(at, code)| {
            let sent = self.sent.iter().find(|sent| (sent.from..sent.to).contains(at))?;
            Some((sent.from, sent.row(*at), sent, *code))
        });
        let Some((_, row, sent, code)) = places.min_by_key(|(from, row, ..)| (*from, *row)) else {
            return Ok(());
        };
        let (number, key) = (sent.before + row + 1, sent.key_text(row));
        let path = sent.path.display();
        if code != FaultCode::Duplicate {
            bail!("{path}: row {number} (key {key}): {}", code.text());
        }
        bail!(
            "{path}: row {number}: key {key} is there already{}; remove one, choose another --key, or --replace",
            if self.created { ", so it stands twice in the files" } else { "" }
        )
    }
}

impl Sent {
    /// Which of its rows, as they were read, was put as number `at`.
    fn row(&self, at: u64) -> u64 {
        let place = (at - self.from) as usize;
        let Some(order) = &self.order else { return place as u64 };
        let (batch, row) = (order[place].batch(), order[place].row());
        self.columns[..batch].iter().map(|columns| columns.num_rows() as u64).sum::<u64>() + row as u64
    }

    fn key_text(&self, row: u64) -> String {
        let (mut text, mut row) = (String::new(), row as usize);
        for columns in &self.columns {
            if row < columns.num_rows() {
                for column in columns.columns() {
                    text += if text.is_empty() { "" } else { "," };
                    files::text::write_value(column.as_ref(), row, &mut text);
                }
                break;
            }
            row -= columns.num_rows();
        }
        text
    }
}

/// Whether the rows ascend, all of them above a key.
fn goes_on(rows: &EncodedRows, above: &[u8]) -> bool {
    let mut before = above;
    rows.keys().all(|key| key > std::mem::replace(&mut before, key))
}

/// An error about a row of a batch, as one about a row of the file (from 1, the header not
/// counted).
fn in_file(error: ArrowError, before: u64) -> Error {
    let number = |row: usize| before + row as u64 + 1;
    match error {
        ArrowError::Null { column, row } => anyhow!(
            "row {}: no value for column `{column}`, which may not be null: give it one or leave the row out",
            number(row)
        ),
        ArrowError::Key { row, error } => anyhow!("row {}: {error}", number(row)),
        ArrowError::RowTooLong { row, bytes } => {
            anyhow!("row {} takes {bytes} bytes, a table's rows at most 1 MiB: shorten or split it", number(row))
        }
        other => other.into(),
    }
}
