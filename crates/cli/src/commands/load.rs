//! `overside load`

use super::connect;
use crate::args::Load;
use crate::output::{self, Progress, grouped, reason};
use crate::signals::Signals;
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use arrow_array::RecordBatch;
use arrow_schema::Field;
use overside::table::arrow::{ArrowError, BatchEncoder, EncodedRows, from_arrow, to_arrow};
use overside::table::client::{Client, ClientError, RemoteTable, RowBatch};
use overside::table::schema::{self, Schema};
use overside::table::wire::{FaultCode, PutMode};
use overside_files::types::parse_columns;
use overside_files::{self as files, FileReader, limits};
use serde_json::json;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

// What a file is refused for is what a table cannot hold.
const _: () = assert!(
    limits::COLUMNS_MAX == schema::COLUMNS_MAX
        && limits::NAME_BYTES_MAX == schema::NAME_BYTES_MAX
        && limits::FIXED_BINARY_MAX == schema::FIXED_BINARY_MAX
);

/// Loads the files, one after another.
///
/// # Errors
/// A file is damaged or does not fit the table, a key is there already or null, the server refuses a
/// row or goes away. The message says where, and how many rows stay in the table.
pub fn run(args: &Load, signals: &Signals) -> Result<()> {
    let mut bytes_total = 0;
    for path in &args.files {
        // Every file, before the first is loaded.
        let file = File::open(path).with_context(|| format!("{}", path.display()))?;
        bytes_total += file.metadata()?.len();
    }
    let mut client = connect(&args.addr, &args.network)?;
    let known = match client.table(&args.table) {
        Ok(table) => Some(table),
        Err(ClientError::Refused { code: FaultCode::UnknownTable, .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let columns = column_types(args, known.as_ref())?;
    let first = files::open(&args.files[0], &columns)?;
    let created = known.is_none();
    let table = match known {
        Some(table) => table,
        None => create(&mut client, args, &first)?,
    };
    let mut loader = Loader::new(client, table, args, created, Progress::new("loading", bytes_total));
    let start = Instant::now();
    if let Err(error) = loader.files(&args.files, first, signals) {
        return Err(loader.explained(error));
    }
    loader.report(args, start.elapsed().as_secs_f64())
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

fn key_names(schema: &Schema) -> Vec<&str> {
    schema.key().iter().map(|&column| schema.columns()[column].name.as_str()).collect()
}

struct Loader {
    client: Client,
    table: RemoteTable,
    encoder: BatchEncoder,
    encoded: EncodedRows,
    batch: RowBatch,
    mode: PutMode,
    created: bool,
    progress: Progress,
    applied: u64,
    replaced: u64,
}

impl Loader {
    fn new(client: Client, table: RemoteTable, args: &Load, created: bool, progress: Progress) -> Loader {
        Loader {
            encoder: BatchEncoder::new(table.schema()),
            encoded: EncodedRows::default(),
            batch: table.batch(),
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
        let columns: Vec<Field> =
            to_arrow(self.table.schema()).fields().iter().map(|field| field.as_ref().clone()).collect();
        let (mut reader, mut bytes_before) = (Some(first), 0);
        for path in paths {
            let path = path.as_ref();
            let mut reader = match reader.take() {
                Some(reader) => reader,
                None => files::open(path, &columns)?,
            };
            let mut row = 0;
            while let Some(batch) = reader.next_batch()? {
                signals.check()?;
                self.put(&batch, row).with_context(|| format!("{}", path.display()))?;
                row += batch.num_rows() as u64;
                self.progress.at(bytes_before + reader.bytes_done(), || match reader.rows_total() {
                    Some(total) => format!("row {} of {}", grouped(row), grouped(total)),
                    None => format!("row {}", grouped(row)),
                });
            }
            bytes_before += reader.bytes_total();
        }
        Ok(())
    }

    /// Puts a batch whose first row is number `before` of its file.
    fn put(&mut self, rows: &RecordBatch, before: u64) -> Result<()> {
        self.encoder.encode(rows, &mut self.encoded).map_err(|error| in_file(error, before))?;
        self.batch.clear();
        self.encoded.iter().for_each(|(_, value)| self.batch.push_encoded(value));
        let applied = self.client.put(&self.table, self.mode, &self.batch)?;
        self.applied += u64::from(applied.applied);
        self.replaced += u64::from(applied.replaced);
        let Some((index, code)) = applied.failed.iter().min_by_key(|(index, _)| *index).copied() else {
            return Ok(());
        };
        let number = before + u64::from(index) + 1;
        let key = self.key_text(rows, index as usize);
        if code != FaultCode::Duplicate {
            bail!("row {number} (key {key}): {}", code.text());
        }
        bail!(
            "row {number}: key {key} is there already{}; remove one, choose another --key, or --replace",
            if self.created { ", so it stands twice in the files" } else { "" }
        )
    }

    fn key_text(&self, rows: &RecordBatch, row: usize) -> String {
        let mut text = String::new();
        for name in key_names(self.table.schema()) {
            text += if text.is_empty() { "" } else { "," };
            if let Some(column) = rows.column_by_name(name) {
                files::text::write_value(column.as_ref(), row, &mut text);
            }
        }
        text
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
        if args.json {
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

/// An error about a row of a batch, as one about a row of the file (from 1, the header not counted).
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
