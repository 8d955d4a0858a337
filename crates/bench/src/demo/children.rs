//! What the demo's other processes do.

use super::{
    hot::CHAIN_MAX,
    table::Table,
    updates::{self, Sink},
};
use crate::{
    baseline,
    lineitem::PackedRows,
    meeting::Meeting,
    process::{child_input, child_socket},
};
use anyhow::Result;
use overside::table::server::ServerOptions;
use overside::{Prices, calibrate::Effort};
use std::{ffi::OsString, io::Read};

/// Runs a process of the demo; `None` when `role` is not one of the demo's.
pub(crate) fn child(role: &str, arguments: &[OsString]) -> Option<Result<()>> {
    let meeting = || Meeting::told(arguments);
    let baseline = || Ok(baseline::serve(&PackedRows::from_bytes(child_input()?)?, &mut child_socket()?)?);
    match role {
        SERVER => Some(meeting().and_then(|meeting| serve(&meeting))),
        UPDATER => Some(meeting().and_then(|meeting| update(&meeting))),
        BASELINE => Some(baseline()),
        _ => None,
    }
}

/// Serves until the parent hangs up.
fn serve(meeting: &Meeting) -> Result<()> {
    let address = meeting.address.to_string();
    let serving = overside::at(&address).network(&meeting.network).prices(Prices::Measured(Effort::Quick));
    // Pages get as many updates as their chains take, in whichever mode they are scanned.
    let _server = serving.serve(ServerOptions { chain_max: Some(CHAIN_MAX), ..ServerOptions::default() })?;
    let mut end = [0; 1];
    // Nothing ever comes; the read ends when the parent does.
    let _ = child_socket()?.read(&mut end);
    Ok(())
}

fn update(meeting: &Meeting) -> Result<()> {
    let rows = PackedRows::from_bytes(child_input()?)?;
    let count = rows.len();
    let sink = Updates { table: Table::open(meeting)?, rows };
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
