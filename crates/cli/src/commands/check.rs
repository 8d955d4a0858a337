//! `overside check`

use crate::args::Check;
use crate::output::{self, grouped};
use anyhow::{Result, bail};
use overside::table::server::check_data;
use serde_json::json;

/// Reads all of a data directory that nobody serves, and changes nothing.
///
/// # Errors
/// It is no data directory or in use, or something in it is not sound.
pub fn run(args: &Check) -> Result<()> {
    let found = check_data(&args.dir)?;
    if args.json {
        output::line(
            &json!({
                "faults": found.faults,
                "tables": found.tables,
                "pages": found.pages,
                "rows": found.rows,
                "records": found.records,
                "cut_bytes": found.cut_bytes,
            })
            .to_string(),
        )?;
    } else {
        found.faults.iter().try_for_each(|fault| output::line(fault))?;
        output::line(&format!(
            "checkpoint: {} tables, {} pages, {} rows; log behind it: {} records; torn at its end: {} bytes",
            grouped(found.tables),
            grouped(found.pages),
            grouped(found.rows),
            grouped(found.records),
            grouped(found.cut_bytes)
        ))?;
    }
    if found.faults.is_empty() {
        return Ok(());
    }
    let faults = if found.faults.len() == 1 { "1 fault".into() } else { format!("{} faults", found.faults.len()) };
    bail!("{faults} in {}; take a copy of it, then start from what is sound: serve --salvage", args.dir.display())
}
