//! `overside bench`

use super::run::library;
use crate::args::{Bench, Over};
use anyhow::Result;
use overside_bench::figures::{self, Options};

/// Measures figures, which print their results themselves.
///
/// # Errors
/// A figure could not be measured, or two ways of sending delivered different bytes.
pub fn run(options: Bench) -> Result<()> {
    let Bench { figure, quick, json, report, results, over: Over { over, rdma_device }, only, seed, dir } = options;
    // Only the figure of sockets needs it, and says so.
    let library = library().ok();
    figures::run(&Options { figure, quick, json, report, over, rdma_device, library, only, results, seed, dir })?;
    Ok(())
}
