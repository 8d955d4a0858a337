//! `overside demo`

use crate::args::Demo;
use anyhow::{Result, ensure};
use overside_bench::demo::{self, Options};

/// Runs the demo, which prints its results itself.
///
/// # Errors
/// The demo could not run, or a scan returned what it must not.
pub fn run(options: &Demo) -> Result<()> {
    let Demo { scale, json, report, quick, over } = options.clone();
    let report = demo::run(&Options { scale, json, report, quick, over })?;
    ensure!(report.verified, "a scan returned rows that it must not; the report says which");
    Ok(())
}
