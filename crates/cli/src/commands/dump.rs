//! `overside dump`

use super::scan::{borrowed, numbers};
use crate::args::Dump;
use crate::output::{self, Grid, Progress, grouped};
use crate::signals::Signals;
use crate::values::parse_key;
use anyhow::{Context, Result, ensure};
use overside::table::arrow::{BatchBuilder, projected_to_arrow};
use overside::table::client::ScanOptions;
use overside::table::server::{OnProgress, Recovering, SavedOptions, SavedRows, SavedTable, SavedTables};
use overside_files::{self as files, BATCH_ROWS, FileWriter};
use serde_json::{Value, json};
use std::io::Write;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Writes a table of a data directory to a file, or lists its tables. Nothing in the directory is
/// changed.
///
/// # Errors
/// It is no data directory, in use or damaged; no such table or column; a file that cannot be
/// written.
pub fn run(args: &Dump) -> Result<()> {
    let start = Instant::now();
    if let Some(out) = &args.out {
        files::check_name(out)?;
        ensure!(!lies_in(out, &args.dir), "{} lies in the data directory; name a file elsewhere", out.display());
    }
    let usual = SavedOptions::default();
    let saved = SavedTables::open(
        &args.dir,
        &SavedOptions {
            memory_max: args.memory.unwrap_or(usual.memory_max),
            only: args.table.clone(),
            salvage: args.salvage,
            on_progress: Some(recovering()),
        },
    )?;
    for lost in &saved.recovery().losses {
        // Nobody may be listening there.
        let _ = writeln!(std::io::stderr(), "lost: {lost}");
    }
    match (&args.table, &args.out) {
        (Some(name), Some(out)) => Dumping { args, out, table: saved.table(name)?, start }.run(),
        _ => list(args, &saved),
    }
}

/// Whether a file of this name would lie in the folder.
fn lies_in(file: &Path, folder: &Path) -> bool {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (parent.canonicalize(), folder.canonicalize()) {
        (Ok(parent), Ok(folder)) => parent.starts_with(folder),
        _ => false,
    }
}

/// How far a recovery is, on a terminal.
pub fn recovering() -> OnProgress {
    let progress = Progress::counting("recovering the tables");
    OnProgress::new(move |how_far| match how_far {
        Recovering::Adopting { rows, of } => {
            progress.at(rows, || format!("{} of {} rows read", grouped(rows), grouped(of)));
        }
        Recovering::Replaying { records } => {
            progress.at(records, || format!("{} changes replayed", grouped(records)));
        }
    })
}

fn list(args: &Dump, saved: &SavedTables) -> Result<()> {
    let tables = saved.tables();
    if args.json {
        let tables: Vec<Value> = tables
            .iter()
            .map(|table| json!({ "name": table.name, "rows": table.rows, "pages": table.pages, "bytes": table.bytes }))
            .collect();
        return output::line(&json!({ "tables": tables, "losses": saved.recovery().losses }).to_string());
    }
    if tables.is_empty() {
        return output::line("no tables");
    }
    let mut grid = Grid::new(&["table", "rows", "pages", "bytes"], &[false, true, true, true]);
    for table in tables {
        grid.push(vec![table.name, grouped(table.rows), grouped(table.pages), grouped(table.bytes)]);
    }
    output::text(&grid.render())
}

/// A table on its way to a file.
struct Dumping<'a> {
    args: &'a Dump,
    out: &'a Path,
    table: SavedTable,
    start: Instant,
}

impl Dumping<'_> {
    fn run(&self) -> Result<()> {
        // From here on a file is there that has no name yet.
        let signals = Signals::take()?;
        let schema = self.table.described().schema();
        let bound = |key: &Option<String>| key.as_deref().map(|key| parse_key(schema, key)).transpose();
        let (from, to) = (bound(&self.args.from).context("--from")?, bound(&self.args.to).context("--to")?);
        let (from, to) = (from.as_deref().map(borrowed), to.as_deref().map(borrowed));
        let columns = numbers(schema, &self.args.columns)?;
        let options = ScanOptions {
            from: from.as_deref().map_or(Bound::Unbounded, Bound::Included),
            to: to.as_deref().map_or(Bound::Unbounded, Bound::Included),
            columns: (!columns.is_empty()).then_some(&columns[..]),
            ..ScanOptions::default()
        };
        let rows = self.table.rows(&options)?;
        let arrow = Arc::new(projected_to_arrow(schema, rows.projection()));
        let mut writer = files::create(self.out, arrow)?;
        let written = self.write(rows, &mut writer, &signals)?;
        let bytes = writer.finish()?;
        let seconds = self.start.elapsed().as_secs_f64();
        if self.args.json {
            let table = self.table.described().name();
            return output::line(
                &json!({ "table": table, "rows": written, "bytes": bytes, "seconds": seconds, "out": self.out })
                    .to_string(),
            );
        }
        let (rows, bytes) = (grouped(written), grouped(bytes));
        output::line(&format!("{rows} rows in {seconds:.3} s, {bytes} bytes in {}", self.out.display()))
    }

    fn write(&self, rows: SavedRows, writer: &mut FileWriter, signals: &Signals) -> Result<u64> {
        let described = self.table.described();
        let mut builder = BatchBuilder::new(described.schema(), rows.projection());
        let progress = Progress::new("writing", described.info().rows);
        let mut written = 0;
        for block in rows {
            signals.check()?;
            builder.push(&block?)?;
            if builder.rows() >= BATCH_ROWS {
                written += flush(&mut builder, writer)?;
                progress.at(written, || format!("{} rows", grouped(written)));
            }
        }
        Ok(written + flush(&mut builder, writer)?)
    }
}

fn flush(builder: &mut BatchBuilder, writer: &mut FileWriter) -> Result<u64> {
    let batch = builder.finish()?;
    if batch.num_rows() > 0 {
        writer.write(&batch)?;
    }
    Ok(batch.num_rows() as u64)
}
