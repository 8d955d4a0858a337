//! What the demo's other processes do.

use super::{
    table::Table,
    updates::{self, Sink},
};
use crate::{
    baseline,
    lineitem::PackedRows,
    process::{child_input, child_socket},
};
use anyhow::{Context, Result};
use overside::table::server::ServerOptions;
use std::{ffi::OsString, io::Read};

/// Runs a process of the demo; `None` when `role` is not one of the demo's.
pub(crate) fn child(role: &str, arguments: &[OsString]) -> Option<Result<()>> {
    let address = || arguments.first().and_then(|address| address.to_str()).context("no address");
    let baseline = || Ok(baseline::serve(&PackedRows::from_bytes(child_input()?)?, &mut child_socket()?)?);
    match role {
        SERVER => Some(address().and_then(serve)),
        UPDATER => Some(address().and_then(update)),
        BASELINE => Some(baseline()),
        _ => None,
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
