//! Overside against its competitors, side by side in one run.
//!
//! ```text
//! cargo run --release -p overside-peers -- tree   [--quick] [--json] [--only E,insert] [--peers bwtree,concurrent-map] [--keep FILE]
//! cargo run --release -p overside-peers -- flight [--quick] [--json] [--over tcp] [--pyarrow PYTHON]
//! cargo run --release -p overside-peers -- gather [--quick] [--json] [--only 4,16]
//! cargo run --release -p overside-peers -- durability [--quick] [--json] [--dir DIR]
//! ```
//!
//! Sides alternate in rounds on the same machine and do the same work; medians and the 95 %
//! interval of paired ratios are shown, and each bar that is to be reached says whether it was. Not
//! part of the default build.
#![forbid(unsafe_code)]

mod bars;
mod durability;
mod flight;
mod gather;
mod tree;

use clap::{Args, Parser, Subcommand};
use overside_bench::figures::Keep;

#[derive(Parser)]
#[command(name = "overside-peers", about = "Overside against its competitors, side by side in one run")]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The Bw-tree against a skip list, two concurrent trees and a locked BTreeMap.
    Tree(tree::TreeMeasure),
    /// Scans over shared memory or TCP against Arrow Flight over loopback.
    Flight(flight::FlightMeasure),
    /// Messages of scattered records over shared memory and TCP against libfabric and UCX.
    Gather(gather::GatherMeasure),
    /// Tables that survive against redis and PostgreSQL, and beside fjall and bf-tree.
    Durability(durability::DurabilityMeasure),
    /// A process of `gather` or `durability`; not to be called by hand.
    #[command(hide = true)]
    BenchChild {
        /// What it is to do.
        arguments: Vec<std::ffi::OsString>,
    },
    /// A process of `flight`; not to be called by hand.
    #[command(hide = true)]
    FlightChild {
        /// Which side it serves.
        side: String,
        /// Where it serves, or where the rows are.
        address: String,
        /// The key of an Overside server.
        key_file: Option<std::path::PathBuf>,
    },
}

/// How to measure.
#[derive(Args, Clone, Debug)]
struct Measure {
    /// A tenth of the rows.
    #[arg(long)]
    quick: bool,
    /// One JSON object on standard output.
    #[arg(long)]
    json: bool,
    /// How often each side runs; the default depends on the command.
    #[arg(long)]
    rounds: Option<usize>,
    /// Keep a full run in DIR/MACHINE/DATE-COMMIT; run it in the checkout that was built.
    // Refused as it is read, rather than after all has been measured.
    #[arg(long, value_name = "DIR", conflicts_with = "quick", value_parser = |folder: &str| Keep::here(folder.as_ref()))]
    results: Option<Keep>,
}

fn main() -> anyhow::Result<()> {
    match Command::parse().what {
        What::Tree(measure) => tree::main(&measure),
        What::Flight(measure) => flight::main(&measure),
        What::Gather(measure) => gather::main(&measure),
        What::Durability(measure) => durability::main(&measure),
        What::BenchChild { arguments } => overside_bench::child_main(&arguments),
        What::FlightChild { side, address, key_file } => flight::child(&side, &address, key_file),
    }
}
