//! `overside bench`

use super::run::library;
use crate::args::{Bench, Over};
use crate::output;
use anyhow::Result;
use overside::Network;
use overside_bench::figures::{self, Options};

/// Measures figures, which print their results themselves.
///
/// # Errors
/// A figure could not be measured, or two ways of sending delivered different bytes.
pub fn run(options: Bench) -> Result<()> {
    let Bench { figure, quick, json, report, results, over, only, seed, dir, trace, listen, to, key_file } = options;
    let Over { over, rdma_device } = over;
    let network = Network { key_file, rdma_device: rdma_device.clone(), ..Network::default() };
    if let Some(listen) = listen {
        return figures::receive(&listen, &network, output::line);
    }
    // Only the figure of sockets needs it, and says so.
    let library = library().ok();
    let options = Options {
        figure,
        quick,
        json,
        report,
        over,
        rdma_device,
        to,
        network,
        library,
        only,
        results,
        seed,
        dir,
        trace,
    };
    figures::run(&options)?;
    Ok(())
}
