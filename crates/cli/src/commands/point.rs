//! `overside get`, `put` and `delete`: one row.

use super::open;
use crate::args::{Point, Put};
use crate::output::{self, Grid, json_value};
use crate::values::{parse_row, parse_whole_key, write_value_ref};
use anyhow::{Context, Result, bail, ensure};
use overside::table::arrow::{BatchEncoder, EncodedRows, to_arrow};
use overside::table::client::RemoteTable;
use overside::table::row::{Value, ValueRef};
use overside::table::wire::PutMode;
use serde_json::json;
use std::io::Read;
use std::path::Path;

/// Prints the row with a key.
///
/// # Errors
/// There is none, or the key does not parse.
pub fn get(args: &Point) -> Result<()> {
    let (mut client, table) = open(&args.at, &args.table)?;
    let key = parse_whole_key(table.schema(), &args.key)?;
    let row = client.get(&table, &borrowed(&key))?.with_context(|| absent(&table, &args.key))?;
    let schema = to_arrow(table.schema());
    let fields = schema.fields();
    if args.at.json {
        let mut line = String::from("{");
        for (index, field) in fields.iter().enumerate() {
            line += if index > 0 { ", " } else { "" };
            line += &serde_json::to_string(field.name())?;
            line += ": ";
            json_value(&row.view().value(index)?, field.data_type(), &mut line);
        }
        return output::line(&(line + "}"));
    }
    let mut grid = Grid::new(&["column", "value"], &[false, false]);
    for (index, field) in fields.iter().enumerate() {
        let value = row.view().value(index)?;
        let mut text = String::new();
        write_value_ref(&value, field.data_type(), &mut text);
        let shown = if matches!(value, ValueRef::Null) { "null".to_string() } else { text };
        grid.push(vec![field.name().clone(), shown]);
    }
    output::text(&grid.render())
}

/// Puts a row.
///
/// # Errors
/// The key or a value does not parse, or the server refuses the row.
pub fn put(args: &Put) -> Result<()> {
    let (mut client, table) = open(&args.at, &args.table)?;
    let text = args.file.as_deref().map(read_value).transpose()?;
    let row = parse_row(table.schema(), &args.key, text.as_deref().or(args.value.as_deref()))?;
    let mut encoded = EncodedRows::default();
    BatchEncoder::new(table.schema()).encode(&row, &mut encoded)?;
    let mut batch = table.batch();
    encoded.iter().for_each(|(_, value)| batch.push_encoded(value));
    let applied = client.put(&table, PutMode::Upsert, &batch)?;
    if let Some((_, code)) = applied.failed.first() {
        bail!("the row was not put: {}", code.text());
    }
    let replaced = applied.replaced > 0;
    if args.at.json {
        return output::line(&json!({ "table": args.table, "put": true, "replaced": replaced }).to_string());
    }
    output::line(if replaced { "replaced" } else { "put" })
}

/// The other columns as a file writes them; without the line break that editors end files with.
fn read_value(path: &Path) -> Result<String> {
    let whole = || -> std::io::Result<String> {
        let mut text = String::new();
        // A row is a megabyte at most, its text a few.
        let read = |source: &mut dyn Read, text: &mut String| source.take(VALUE_BYTES_MAX).read_to_string(text);
        match path.to_str() {
            Some("-") => read(&mut std::io::stdin().lock(), &mut text)?,
            _ => read(&mut std::fs::File::open(path)?, &mut text)?,
        };
        Ok(text)
    };
    let mut text = whole().with_context(|| format!("{}", path.display()))?;
    ensure!((text.len() as u64) < VALUE_BYTES_MAX, "{}: too long for a row, which takes 1 MiB", path.display());
    text.truncate(text.trim_end_matches(['\n', '\r']).len());
    Ok(text)
}

const VALUE_BYTES_MAX: u64 = 16 << 20;

/// Deletes a row.
///
/// # Errors
/// There is none with this key, or the key does not parse.
pub fn delete(args: &Point) -> Result<()> {
    let (mut client, table) = open(&args.at, &args.table)?;
    let key = parse_whole_key(table.schema(), &args.key)?;
    if !client.delete(&table, &borrowed(&key))? {
        bail!(absent(&table, &args.key));
    }
    if args.at.json {
        return output::line(&json!({ "table": args.table, "deleted": true }).to_string());
    }
    output::line("deleted")
}

fn borrowed(key: &[Value]) -> Vec<ValueRef<'_>> {
    key.iter().map(Value::as_ref).collect()
}

fn absent(table: &RemoteTable, key: &str) -> String {
    format!("table `{}` has no row with key {key}", table.name())
}
