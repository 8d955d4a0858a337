//! What the demo's other processes do.

use super::{
    hot::CHAIN_MAX,
    table::Table,
    updates::{self, Sink},
};
use crate::{
    baseline,
    lineitem::{NarrowFile, PackedRows},
    process::{child_file, child_socket},
    rendezvous::Rendezvous,
};
use anyhow::{Context, Result};
use overside::table::server::ServerOptions;
use overside::{Prices, calibrate::Effort};
use std::{ffi::OsString, io::Read};

/// Runs a process of the demo; `None` when `role` is not one of the demo's.
pub(crate) fn child(role: &str, arguments: &[OsString]) -> Option<Result<()>> {
    let rendezvous = || Rendezvous::from_arguments(arguments);
    match role {
        SERVER => Some(rendezvous().and_then(|rendezvous| serve(&rendezvous))),
        UPDATER => Some(rendezvous().and_then(|rendezvous| update(&rendezvous))),
        BASELINE => Some(pack_and_write(arguments)),
        _ => None,
    }
}

/// Serves until the parent hangs up.
fn serve(rendezvous: &Rendezvous) -> Result<()> {
    let address = rendezvous.address.to_string();
    let serving = overside::at(&address).network(&rendezvous.network).prices(Prices::Measured(Effort::Quick));
    // Pages get as many updates as their chains take, in whichever mode they are scanned.
    let _server = serving.serve(ServerOptions { chain_max: Some(CHAIN_MAX), ..ServerOptions::default() })?;
    let mut end = [0; 1];
    // Nothing ever comes; the read ends when the parent does.
    let _ = child_socket()?.read(&mut end);
    Ok(())
}

/// The baseline, over the first rows: as many as its argument says.
fn pack_and_write(arguments: &[OsString]) -> Result<()> {
    let kept = arguments.first().and_then(|kept| kept.to_str()?.parse().ok()).context("no number of rows")?;
    let mut rows = PackedRows::with_capacity(kept);
    NarrowFile::open(child_file()?)?.first(kept, |row| rows.push(row))?;
    Ok(baseline::serve(&rows, &mut child_socket()?)?)
}

fn update(rendezvous: &Rendezvous) -> Result<()> {
    let rows = NarrowFile::open(child_file()?)?;
    let count = rows.len();
    let sink = Updates { table: Table::open(rendezvous)?, rows };
    updates::serve(sink, count, child_socket()?)
}

struct Updates {
    table: Table,
    rows: NarrowFile,
}

impl Sink for Updates {
    fn put(&mut self, rows: &[(usize, i64)]) -> Result<()> {
        self.table.put(&mut self.rows, rows)
    }

    fn delete(&mut self, index: usize) -> Result<()> {
        self.table.delete(&mut self.rows, index)
    }
}

pub(super) const SERVER: &str = "server";
pub(super) const UPDATER: &str = "updater";
pub(super) const BASELINE: &str = "baseline";
