//! The `overside` command: tables served, loaded, scanned and changed from the command line.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod files;
mod outlet;
mod output;
mod signals;
mod values;

use clap::Parser;
use std::io::ErrorKind;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    let Err(error) = commands::run(cli.command) else {
        return ExitCode::SUCCESS;
    };
    // Whoever read the output (`| head`) has had enough.
    let io = error.downcast_ref::<std::io::Error>();
    if io.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let one_line = format!("{error:#}").replace('\n', " ");
    eprintln!("overside: {one_line}");
    let interrupted = error.downcast_ref::<signals::Interrupted>().is_some();
    ExitCode::from(if interrupted { 130 } else { 1 })
}
