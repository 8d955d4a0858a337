//! `overside index`: secondary indexes.

use super::open;
use crate::args::{IndexCommand, OneIndex};
use crate::output::{self, Progress, grouped};
use anyhow::{Context, Result};
use overside::table::client::{Client, RemoteTable};
use overside::table::schema::Schema;
use overside::table::wire::IndexInfo;
use serde_json::{Value, json};

/// Creates or drops an index.
///
/// # Errors
/// No such table or column, an index that is there already or is not there, no memory for it.
pub fn run(command: &IndexCommand) -> Result<()> {
    match command {
        IndexCommand::Create(args) => create(args),
        IndexCommand::Drop(args) => drop(args),
    }
}

fn create(args: &OneIndex) -> Result<()> {
    let (mut client, table) = open(&args.at, &args.table)?;
    let columns = columns(table.schema(), &args.columns)?;
    let info = make(&mut client, &table, &columns)?;
    if args.at.json {
        let mut told = summary(table.schema(), &info);
        told["table"] = json!(args.table);
        return output::line(&told.to_string());
    }
    output::line(&format!("index on {} of table `{}` created", args.columns, args.table))
}

fn drop(args: &OneIndex) -> Result<()> {
    let (mut client, table) = open(&args.at, &args.table)?;
    client.drop_index(&table, &columns(table.schema(), &args.columns)?)?;
    if args.at.json {
        let named: Vec<&str> = args.columns.split(',').collect();
        return output::line(&json!({ "table": args.table, "columns": named, "dropped": true }).to_string());
    }
    output::line(&format!("index on {} of table `{}` dropped", args.columns, args.table))
}

/// Creates an index, with a bar on a terminal.
pub fn make(client: &mut Client, table: &RemoteTable, columns: &[usize]) -> Result<IndexInfo> {
    let progress = Progress::new("indexing", table.info().rows);
    let made = client.create_index(table, columns, |rows, _| progress.at(rows, || format!("{} rows", grouped(rows))));
    progress.clear();
    Ok(made?)
}

/// Columns by their names, comma-separated.
pub fn columns(schema: &Schema, names: &str) -> Result<Vec<usize>> {
    let columns = names.split(',').map(|name| schema.column(name));
    columns.collect::<Result<_, _>>().context("an index")
}

/// An index for machines.
pub fn summary(schema: &Schema, index: &IndexInfo) -> Value {
    json!({ "columns": names(schema, index), "pages": index.pages, "bytes": index.bytes })
}

/// The names of an index's columns.
pub fn names<'s>(schema: &'s Schema, index: &IndexInfo) -> Vec<&'s str> {
    let column = |column: &u16| schema.columns().get(usize::from(*column)).map_or("unknown", |column| &*column.name);
    index.columns.iter().map(column).collect()
}
