//! `overside scan`

use super::{index, open};
use crate::args;
use crate::outlet::Outlet;
use crate::output::{self, Grid, Progress, grouped, json_value};
use crate::signals::Signals;
use crate::values::{Range, parse_key, parse_key_prefix, parse_values, write_value_ref};
use anyhow::{Context, Result, ensure};
use arrow_schema::{DataType, SchemaRef};
use overside::table::arrow::{BatchBuilder, projected_to_arrow};
use overside::table::block::Answer;
use overside::table::client::{Client, Received, RemoteTable, Scan, ScanOptions, ScanSummary};
use overside::table::row::{Bytes, RowView, Value, ValueRef};
use overside::table::schema::Schema;
use overside::table::wire::MODES;
use overside_files::types::type_name;
use overside_files::{self as files, BATCH_ROWS, FileWriter};
use serde_json::{Value as Json, json};
use std::io::{IsTerminal, Write};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Scans a range and prints or writes it.
///
/// # Errors
/// No such table or column, bounds that are no key, a file that cannot be written, a server gone.
pub fn run(args: &args::Scan, signals: &Signals) -> Result<()> {
    let (mut client, table) = open(&args.at, &args.table)?;
    let (from, to) = range(args, table.schema())?;
    let (from, to) = (from.as_ref().map(|key| borrowed(key)), to.as_ref().map(|key| borrowed(key)));
    let columns = numbers(table.schema(), &args.columns)?;
    let index = args.index.as_deref().map(|names| index::columns(table.schema(), names)).transpose()?;
    let options = ScanOptions {
        index: index.as_deref(),
        from: from.as_ref().map(Vec::as_slice),
        to: to.as_ref().map(Vec::as_slice),
        columns: (!columns.is_empty()).then_some(&columns[..]),
        mode: args.mode,
        rows_max: args.limit,
    };
    let mut reading = Reading::start(&mut client, &table, &options, args, signals)?;
    match &args.out {
        Some(path) => {
            let bytes = reading.write_file(path)?;
            if args.at.json {
                let mut summary = reading.summary();
                summary["out"] = json!(path);
                summary["out_bytes"] = json!(bytes);
                return output::line(&summary.to_string());
            }
            output::line(&format!("{}, {} bytes in {}", reading.told(), grouped(bytes), path.display()))
        }
        None if args.at.json => reading.print_json(),
        None => reading.print_table(),
    }
}

/// Which keys are asked for.
fn range(args: &args::Scan, schema: &Schema) -> Result<Range> {
    if let Some(prefix) = &args.where_key_prefix {
        return parse_key_prefix(schema, prefix).context("--where-key-prefix");
    }
    let index = args.index.as_deref().map(|names| index::columns(schema, names)).transpose()?;
    let parse = |text: &str| match &index {
        Some(columns) => parse_values(schema, columns, "index", text),
        None => parse_key(schema, text),
    };
    let bound = |key: &Option<String>| -> Result<Bound<Vec<Value>>> {
        Ok(key.as_deref().map(parse).transpose()?.map_or(Bound::Unbounded, Bound::Included))
    };
    Ok((bound(&args.from).context("--from")?, bound(&args.to).context("--to")?))
}

/// The numbers of columns by their names.
///
/// # Errors
/// There is no such column, or one is named twice.
pub fn numbers(schema: &Schema, names: &[String]) -> Result<Vec<usize>> {
    for (at, name) in names.iter().enumerate() {
        ensure!(!names[..at].contains(name), "--columns names `{name}` twice; name it once");
    }
    Ok(names.iter().map(|name| schema.column(name)).collect::<Result<_, _>>()?)
}

pub fn borrowed(key: &[Value]) -> Vec<ValueRef<'_>> {
    key.iter().map(Value::as_ref).collect()
}

/// A scan, and how far it has come.
struct Reading<'a> {
    args: &'a args::Scan,
    signals: &'a Signals,
    table: &'a RemoteTable,
    scan: Scan<'a>,
    schema: SchemaRef,
    progress: Progress,
    rows: u64,
    /// Bytes of rows that came and are beyond the limit: answers hold whole pages.
    bytes_beyond: u64,
    start: Instant,
    seconds: f64,
}

impl<'a> Reading<'a> {
    fn start(
        client: &'a mut Client,
        table: &'a RemoteTable,
        options: &ScanOptions<'_>,
        args: &'a args::Scan,
        signals: &'a Signals,
    ) -> Result<Reading<'a>> {
        let start = Instant::now();
        // Columns of a file are filled from where rows lie; rows for people are looked at after they were copied.
        let scan = match &args.out {
            _ if args.one_sided => client.scan_one_sided(table, options),
            Some(_) => client.scan_in_place(table, options),
            None => client.scan(table, options),
        }?;
        let schema = Arc::new(projected_to_arrow(table.schema(), scan.projection()));
        let rows_expected = table.info().rows.min(args.limit.unwrap_or(u64::MAX));
        // Rows on the screen are progress enough.
        let progress = if args.out.is_some() { Progress::new("scanning", rows_expected) } else { Progress::none() };
        Ok(Reading { args, signals, table, scan, schema, progress, rows: 0, bytes_beyond: 0, start, seconds: 0.0 })
    }

    /// Calls `each` with every row, up to the limit.
    fn each_row(&mut self, mut each: impl FnMut(u64, &RowView<'_>) -> Result<()>) -> Result<()> {
        let limit = self.args.limit.unwrap_or(u64::MAX);
        while let Some(block) = self.scan.next_block()? {
            self.signals.check()?;
            for row in block.rows() {
                if self.rows < limit {
                    each(self.rows, &row)?;
                    self.rows += 1;
                } else {
                    self.bytes_beyond += row.len() as u64;
                }
            }
        }
        self.seconds = self.start.elapsed().as_secs_f64();
        Ok(())
    }

    fn write_file(&mut self, path: &Path) -> Result<u64> {
        let mut builder = BatchBuilder::new(self.table.schema(), self.scan.projection());
        let mut writer = files::create(path, self.schema.clone())?;
        let mut left = self.args.limit.unwrap_or(u64::MAX);
        while let Some(answer) = self.scan.next_in_place()? {
            self.signals.check()?;
            let wanted = left.min(answer.len() as u64);
            if wanted < answer.len() as u64 {
                self.bytes_beyond += bytes_behind(&answer, wanted as usize)?;
            }
            left -= wanted;
            builder.push_answer(&answer)?;
            // What was lent goes back before the next is waited for.
            drop(answer);
            if builder.rows() >= BATCH_ROWS {
                self.write(&mut builder, &mut writer)?;
            }
        }
        self.write(&mut builder, &mut writer)?;
        let bytes = writer.finish()?;
        self.progress.clear();
        self.seconds = self.start.elapsed().as_secs_f64();
        Ok(bytes)
    }

    fn write(&mut self, builder: &mut BatchBuilder, writer: &mut FileWriter) -> Result<()> {
        let batch = builder.finish()?;
        let left = self.args.limit.unwrap_or(u64::MAX) - self.rows;
        let rows = batch.num_rows().min(usize::try_from(left).unwrap_or(usize::MAX));
        if rows > 0 {
            writer.write(&batch.slice(0, rows))?;
            self.rows += rows as u64;
            self.progress.at(self.rows, || format!("{} rows", grouped(self.rows)));
        }
        Ok(())
    }

    /// One object: the columns, the rows, and how the scan went.
    fn print_json(&mut self) -> Result<()> {
        let mut out = Outlet::new(std::io::stdout())?;
        let types: Vec<DataType> = self.schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let names = self.schema.fields().iter().map(|field| serde_json::to_string(field.name()));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let columns: Vec<Json> = self
            .schema
            .fields()
            .iter()
            .map(|field| json!({ "name": field.name(), "type": type_name(field.data_type()) }))
            .collect();
        write!(out, "{{\"columns\": {}, \"rows\": [", Json::from(columns))?;
        let mut line = String::new();
        self.each_row(|number, row| {
            line.clear();
            line += if number == 0 { "\n{" } else { ",\n{" };
            for (index, (name, ty)) in names.iter().zip(&types).enumerate() {
                line += if index == 0 { "" } else { ", " };
                line += name;
                line += ": ";
                json_value(&row.value(index)?, ty, &mut line);
            }
            line.push('}');
            Ok(out.write_all(line.as_bytes())?)
        })?;
        let summary = self.summary().to_string();
        // The summary's members follow the rows in the same object.
        writeln!(out, "], {}", &summary[1..])?;
        Ok(out.finish()?)
    }

    /// A table: the first rows of it on a terminal, all of it otherwise.
    fn print_table(&mut self) -> Result<()> {
        let terminal = std::io::stdout().is_terminal();
        let shown = match (terminal, self.args.limit) {
            (true, None) => TERMINAL_ROWS,
            _ => u64::MAX,
        };
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        let types: Vec<DataType> = self.schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let numeric: Vec<bool> = types.iter().map(DataType::is_numeric).collect();
        let mut grid = Grid::new(&names, &numeric);
        if terminal {
            grid.limit_cells();
        }
        let mut out = Outlet::new(std::io::stdout())?;
        self.each_row(|number, row| {
            if number >= shown {
                return Ok(());
            }
            let cells = types.iter().enumerate().map(|(index, ty)| {
                let mut text = String::new();
                write_value_ref(&row.value(index)?, ty, &mut text);
                Ok(text)
            });
            grid.push(cells.collect::<Result<_>>()?);
            if grid.len() == GRID_ROWS {
                out.write_all(grid.render().as_bytes())?;
                grid.continue_below();
            }
            Ok(())
        })?;
        out.write_all(grid.render().as_bytes())?;
        if terminal {
            let hidden = match self.rows.saturating_sub(shown) {
                0 => String::new(),
                _ => format!("the first {shown} of "),
            };
            writeln!(out, "\n{hidden}{}", self.told())?;
        }
        Ok(out.finish()?)
    }

    fn summary(&self) -> Json {
        let ScanSummary { row_bytes, server, .. } = self.scan.summary();
        let chosen: serde_json::Map<String, Json> =
            MODES.iter().zip(server.chosen).map(|(mode, pages)| (mode.name().to_string(), json!(pages))).collect();
        json!({
            "table": self.args.table,
            "mode": if self.args.one_sided { "one-sided" } else { self.args.mode.name() },
            "row_count": self.rows,
            "row_bytes": row_bytes - self.bytes_beyond,
            "seconds": self.seconds,
            "rows_per_s": self.rows as f64 / self.seconds.max(1e-9),
            "chosen": chosen,
            "server_bytes_copied": server.bytes_copied,
        })
    }

    /// How it went, for people.
    fn told(&self) -> String {
        let pages = MODES.iter().zip(self.scan.summary().server.chosen).filter(|(_, pages)| *pages > 0);
        let pages: Vec<String> = pages.map(|(mode, pages)| format!("{} {}", mode.name(), grouped(pages))).collect();
        let pages = if pages.is_empty() { String::new() } else { format!(", pages: {}", pages.join(", ")) };
        format!("{} rows in {:.3} s{pages}", grouped(self.rows), self.seconds)
    }
}

/// Bytes of the rows behind the first `rows`.
fn bytes_behind(answer: &Answer<Received>, rows: usize) -> Result<u64> {
    fn sum<P: Bytes>(lens: impl Iterator<Item = P>) -> u64 {
        lens.map(|bytes| bytes.len() as u64).sum()
    }
    Ok(match answer {
        Answer::Copied(block) => sum(block.rows().skip(rows).flat_map(|row| [row.prefix(), row.rest()])),
        Answer::Lent(block) => block.read(|all| sum(all.skip(rows).flat_map(|row| [row.prefix(), row.rest()])))?,
    })
}

/// Rows shown on a terminal when no limit is given.
const TERMINAL_ROWS: u64 = 20;

/// Rows whose widths a table takes into account at once.
const GRID_ROWS: usize = 1000;
