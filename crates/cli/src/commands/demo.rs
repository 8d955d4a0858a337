//! `overside demo`

use crate::args::{Demo, Over};
use anyhow::{Result, ensure};
use overside_bench::demo::{self, Options};

/// Runs the demo, which prints its results itself.
///
/// # Errors
/// The demo could not run, or a scan returned what it must not.
pub fn run(options: &Demo) -> Result<()> {
    let Demo { scale, json, report, quick, over: Over { over, rdma_device } } = options.clone();
    let report = demo::run(&Options { scale, json, report, quick, over, rdma_device })?;
    ensure!(report.verified, "a scan returned rows that it must not; the report says which");
    Ok(())
}
