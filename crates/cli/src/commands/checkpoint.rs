//! `overside checkpoint`

use std::time::Duration;

use crate::args::At;
use crate::output::{self, grouped};
use anyhow::Result;
use overside::table::client::ClientOptions;
use serde_json::json;

/// Asks for a checkpoint and waits for it.
///
/// # Errors
/// The server keeps no tables on a disk, or the disk has no room for it.
pub fn run(args: &At) -> Result<()> {
    let options = ClientOptions { timeout: PATIENCE, ..ClientOptions::default() };
    let mut client = overside::at(&args.addr).network(&args.network.network()).client(options)?;
    let done = client.checkpoint()?;
    if args.json {
        return output::line(
            &json!({
                "tables": done.tables,
                "unchanged": done.unchanged,
                "pages": done.pages,
                "bytes": done.bytes,
            })
            .to_string(),
        );
    }
    let tables = if done.tables == 1 { "table" } else { "tables" };
    output::line(&format!(
        "{} {tables} written ({} pages, {} bytes), {} unchanged",
        done.tables,
        grouped(done.pages),
        grouped(done.bytes),
        done.unchanged
    ))
}

/// Beside much work of others a checkpoint is written at 8 MiB/s.
const PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);
