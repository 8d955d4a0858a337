//! `overside index`: secondary indexes.

use super::At;
use clap::{Args, Subcommand};

/// `overside index`
#[derive(Debug, Args)]
pub struct Index {
    /// What to do.
    #[command(subcommand)]
    pub what: IndexCommand,
}

/// What can be done with indexes.
#[derive(Debug, Subcommand)]
pub enum IndexCommand {
    /// Give a table an index on some of its columns.
    #[command(long_about = CREATE, after_long_help = CREATE_EXAMPLES)]
    Create(OneIndex),
    /// Drop an index; the table and its rows stay.
    #[command(long_about = DROP, after_long_help = DROP_EXAMPLES)]
    Drop(OneIndex),
}

/// An index, by its table and columns.
#[derive(Debug, Args)]
pub struct OneIndex {
    /// Which server, and how it is asked.
    #[command(flatten)]
    pub at: At,
    /// The table.
    pub table: String,
    /// The index's columns, most significant first.
    #[arg(value_name = "COLUMN[,COLUMN]")]
    pub columns: String,
}

pub(super) const INDEX: &str = "\
Create and drop secondary indexes, by which rows are found by other columns than the key's.
`overside describe` shows which a table has, and `overside scan --index` reads through one.";
pub(super) const INDEX_EXAMPLES: &str = "\
Examples:
  overside index create shm:mine trips street
  overside index drop shm:mine trips street";

const CREATE: &str = "\
Give a table an index on one column or several, most significant first. Others read and write the
table meanwhile. Each later put and delete keeps the index, and costs a search more. An index takes
memory for its columns and the key of every row. Rows whose column is null are in it, before all
others. Values and key columns of a row may take 1,024 bytes each. If it fails, the table is as it
was.";
const CREATE_EXAMPLES: &str = "\
Examples:
  overside index create shm:mine trips street
  overside index create shm:mine trips street,price --json";

const DROP: &str = "Drop an index. Scans that are reading through it come to their end.";
const DROP_EXAMPLES: &str = "\
Examples:
  overside index drop shm:mine trips street";
