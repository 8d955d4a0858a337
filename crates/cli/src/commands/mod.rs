//! The commands, one to a file.

mod bench;
mod calibrate;
mod check;
mod checkpoint;
mod demo;
mod devices;
mod dump;
mod index;
mod load;
mod manual;
mod point;
mod run;
mod scan;
mod serve;
mod status;
mod tables;
mod volume;

use crate::args::{At, Command};
use crate::signals::Signals;
use anyhow::Result;
use overside::table::client::{Client, ClientOptions, RemoteTable};

/// Carries a command out.
///
/// # Errors
/// One line for people: what failed, where, and what to do.
pub fn run(command: Command) -> Result<()> {
    match command {
        // The processes of the demo and of figures end with it, so both leave signals to the system.
        Command::Demo(options) => demo::run(&options),
        Command::Bench(options) => bench::run(options),
        Command::BenchChild { arguments } => overside_bench::child_main(&arguments),
        Command::Serve(options) => serve::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Tables(options) => tables::list(&options),
        Command::Describe(options) => tables::describe(&options),
        Command::Drop(options) => tables::drop(&options),
        Command::Completions(options) => manual::completions(&options),
        Command::Man(options) => manual::pages(&options),
        Command::Check(options) => check::run(&options),
        // Until it writes a file, a signal may end it anywhere.
        Command::Dump(options) => dump::run(&options),
        Command::Checkpoint(options) => checkpoint::run(&options),
        Command::Run(options) => run::run(&options),
        Command::Calibrate(options) => calibrate::run(&options, &Signals::take()?),
        Command::Devices(options) => devices::run(&options),
        Command::Load(options) => load::run(&options, &Signals::take()?),
        // The server gives an index up whose client is gone.
        Command::Index(options) => index::run(&options.what),
        Command::Scan(options) => scan::run(&options, &Signals::take()?),
        Command::Get(options) => point::get(&options),
        Command::Put(options) => point::put(&options),
        Command::Delete(options) => point::delete(&options),
        Command::Volume(options) => volume::run(&options),
    }
}

fn connect(at: &At) -> Result<Client> {
    Ok(overside::at(&at.addr).network(&at.network.network()).client(ClientOptions::default())?)
}

fn open(at: &At, table: &str) -> Result<(Client, RemoteTable)> {
    let mut client = connect(at)?;
    let table = client.table(table)?;
    Ok((client, table))
}
