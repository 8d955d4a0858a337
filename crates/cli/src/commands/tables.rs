//! `overside tables`, `describe` and `drop`: tables as wholes.

use super::{connect, index, open};
use crate::args::{At, Describe, Drop};
use crate::output::{self, Grid, grouped, refused};
use anyhow::{Result, bail};
use overside::table::arrow::to_arrow;
use overside::table::schema::Schema;
use overside::table::wire::{Choices, MODES, TableInfo};
use overside_files::types::type_name;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};

/// Lists a server's tables.
///
/// # Errors
/// Nobody serves there, or standard output is closed.
pub fn list(args: &At) -> Result<()> {
    let tables = connect(args)?.tables()?;
    if args.json {
        let tables: Vec<Value> = tables.iter().map(summary).collect();
        return output::line(&json!({ "tables": tables }).to_string());
    }
    output::text(&grid(&tables))
}

/// A table for machines.
pub fn summary(table: &TableInfo) -> Value {
    json!({
        "name": table.name,
        "key": key(table).unwrap_or_default(),
        "rows": table.rows,
        "pages": table.pages,
        "bytes": table.bytes,
    })
}

/// Tables for people.
pub fn grid(tables: &[TableInfo]) -> String {
    if tables.is_empty() {
        return "no tables\n".into();
    }
    let mut grid = Grid::new(&["table", "key", "rows", "pages", "bytes"], &[false, false, true, true, true]);
    for table in tables {
        // The columns of a server that is newer than this client may be of types that it does not know.
        let key = key(table).map_or("unknown".into(), |names| names.join(","));
        grid.push(vec![table.name.clone(), key, grouped(table.rows), grouped(table.pages), grouped(table.bytes)]);
    }
    grid.render()
}

fn key(table: &TableInfo) -> Option<Vec<String>> {
    let schema = Schema::decode(&table.schema).ok()?;
    Some(schema.key().iter().map(|&column| schema.columns()[column].name.clone()).collect())
}

/// Shows a table's columns.
///
/// # Errors
/// No such table, or standard output is closed.
pub fn describe(args: &Describe) -> Result<()> {
    let (mut client, table) = open(&args.at, &args.table)?;
    let (schema, info) = (table.schema(), table.info());
    let indexes = client.indexes(&table)?;
    let choices = client.choices(&table)?;
    let arrow = to_arrow(schema);
    let of_key = |column: usize| schema.key().iter().position(|&key| key == column).map(|at| at + 1);
    let columns = arrow.fields().iter().enumerate();
    if args.at.json {
        let columns: Vec<Value> = columns
            .map(|(at, field)| {
                json!({
                    "name": field.name(),
                    "type": type_name(field.data_type()),
                    "nullable": field.is_nullable(),
                    "key": of_key(at),
                })
            })
            .collect();
        let mut described = summary(info);
        described["columns"] = columns.into();
        described["sent"] = choices.map(|choices| sent(&choices)).into();
        described["indexes"] = indexes.iter().map(|index| index::summary(schema, index)).collect();
        return output::line(&described.to_string());
    }
    let mut grid = Grid::new(&["column", "type", "key", "nulls"], &[false, false, true, false]);
    for (at, field) in columns {
        let place = of_key(at).map_or(String::new(), |place| place.to_string());
        let nulls = if field.is_nullable() { "yes" } else { "no" };
        grid.push(vec![field.name().clone(), type_name(field.data_type()), place, nulls.into()]);
    }
    let mut text = format!(
        "{}\nrows    {}\npages   {}\nmemory  {} bytes\n",
        grid.render(),
        grouped(info.rows),
        grouped(info.pages),
        grouped(info.bytes)
    );
    for index in &indexes {
        let (names, pages, bytes) = (index::names(schema, index).join(","), index.pages, index.bytes);
        text += &format!("index   {names} ({} pages, {} bytes)\n", grouped(pages), grouped(bytes));
    }
    if let Some(choices) = choices {
        let pages = MODES.iter().zip(choices.pages).map(|(mode, pages)| format!("{} {}", mode.name(), grouped(pages)));
        text += &format!("sent    {} (pages of scans, by mode)\n", pages.collect::<Vec<_>>().join(", "));
        text += &format!("chains  {} deltas at most on a page\n", choices.chain_max);
    }
    output::text(&text)
}

/// How pages travelled, for machines.
fn sent(choices: &Choices) -> Value {
    let pages: serde_json::Map<String, Value> =
        MODES.iter().zip(choices.pages).map(|(mode, pages)| (mode.name().to_owned(), pages.into())).collect();
    json!({ "pages": pages, "chain_max": choices.chain_max })
}

/// Drops a table.
///
/// # Errors
/// No such table, nobody to ask, or the answer was no.
pub fn drop(args: &Drop) -> Result<()> {
    let (mut client, table) = open(&args.at, &args.table)?;
    let rows = table.info().rows;
    if !args.yes && !agreed(&args.table, rows)? {
        bail!("table `{}` was not dropped", args.table);
    }
    client.drop_table(&args.table)?;
    if args.at.json {
        return output::line(&json!({ "table": args.table, "dropped": true, "rows": rows }).to_string());
    }
    output::line(&format!("table `{}` dropped ({} rows)", args.table, grouped(rows)))
}

fn agreed(table: &str, rows: u64) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("table `{table}` has {} rows; say --yes to drop it", grouped(rows));
    }
    let mut err = std::io::stderr().lock();
    write!(err, "drop table `{table}` with {} rows? [y/N] ", grouped(rows))
        .and_then(|()| err.flush())
        .map_err(refused)?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
