//! What the demo's other processes do.

use super::{
    process::{child_input, child_socket, die_with},
    table::Table,
    updates::{self, Sink},
};
use crate::{baseline, lineitem::PackedRows};
use anyhow::{Context, Result, bail};
use overside::table::server::ServerOptions;
use std::{ffi::OsString, io::Read};

/// Runs a process of the demo; `arguments` are those after the hidden subcommand ([`super::SUBCOMMAND`]).
///
/// # Errors
///
/// The arguments are not the demo's own, or the process cannot do its part.
pub fn child_main(arguments: &[OsString]) -> Result<()> {
    let [role, parent, arguments @ ..] = arguments else {
        bail!("`{}` is for the demo itself; run `overside demo`", super::SUBCOMMAND);
    };
    die_with(parent)?;
    let address = arguments.first().and_then(|address| address.to_str());
    match role.to_str() {
        Some(SERVER) => serve(address.context("no address to serve at")?),
        Some(UPDATER) => update(address.context("no address to update at")?),
        Some(BASELINE) => {
            let rows = PackedRows::from_bytes(child_input()?)?;
            Ok(baseline::serve(&rows, &mut child_socket()?)?)
        }
        _ => bail!("the demo has no such process; run `overside demo`"),
    }
}

/// Serves until the parent hangs up.
fn serve(address: &str) -> Result<()> {
    let _server = overside::serve(&[address], ServerOptions::default())?;
    let mut end = [0; 1];
    // Nothing ever comes; the read ends when the parent does.
    let _ = child_socket()?.read(&mut end);
    Ok(())
}

fn update(address: &str) -> Result<()> {
    let rows = PackedRows::from_bytes(child_input()?)?;
    let count = rows.len();
    let sink = Updates { table: Table::open(address)?, rows };
    updates::serve(sink, count, child_socket()?)
}

struct Updates {
    table: Table,
    rows: PackedRows,
}

impl Sink for Updates {
    fn put(&mut self, rows: &[(usize, i64)]) -> Result<()> {
        self.table.put(&self.rows, rows)
    }

    fn delete(&mut self, index: usize) -> Result<()> {
        self.table.delete(&self.rows, index)
    }
}

pub(super) const SERVER: &str = "server";
pub(super) const UPDATER: &str = "updater";
pub(super) const BASELINE: &str = "baseline";
