//! The `overside` command: tables served, loaded, scanned and changed from the command line.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod outlet;
mod output;
mod signals;
mod values;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

#[global_allocator]
static HEAP: overside::memory::Heap = overside::memory::Heap::new(out_of_memory);

fn main() -> ExitCode {
    signals::ignore_file_size();
    let cli = args::Cli::read();
    let Err(error) = commands::run(cli.command) else {
        return ExitCode::SUCCESS;
    };
    // Whoever read the output (`| head`) has had enough.
    let io = error.downcast_ref::<std::io::Error>();
    if io.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("overside: {}", output::reason(&error).replace('\n', " "));
    let interrupted = error.downcast_ref::<signals::Interrupted>().is_some();
    ExitCode::from(if interrupted { 130 } else { 1 })
}

/// An error like any other: one line, and exit status 1.
fn out_of_memory(bytes: usize) {
    let mut line = [0; 200];
    let mut room = &mut line[..];
    let _ = writeln!(
        room,
        "overside: out of memory: {bytes} bytes could not be allocated; free memory, or raise the limit (ulimit -v, or the control \
         group's)"
    );
    let left = room.len();
    let _ = std::io::stderr().write_all(&line[..line.len() - left]);
    signal_hook::low_level::exit(1);
}
