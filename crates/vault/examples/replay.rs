//! What each policy makes of a trace: `replay FILE BLOCKS [BLOCK_BYTES]`, a line a policy with its hit ratio.
//!
//! A trace is lines `r|w,offset,bytes`. The last line is what the best policy there can be makes of it.

use std::io::{BufRead, BufReader};
use std::process::ExitCode;

use overside_vault::cache::PolicyKind;
use overside_vault::trace::{TraceRequest, belady, replay};

fn main() -> ExitCode {
    run().map_or_else(|error| (eprintln!("replay: {error}"), ExitCode::FAILURE).1, |()| ExitCode::SUCCESS)
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (file, blocks, block_bytes) = match &arguments[..] {
        [file, blocks] => (file, blocks.parse::<usize>()?, 8192),
        [file, blocks, bytes] => (file, blocks.parse::<usize>()?, bytes.parse::<u64>()?.max(1)),
        _ => return Err("usage: replay FILE BLOCKS [BLOCK_BYTES]".into()),
    };
    let mut accesses = Vec::new();
    for (number, line) in BufReader::new(std::fs::File::open(file)?).lines().enumerate() {
        let request = TraceRequest::parse(&line?).map_err(|error| format!("{file}:{}: {error}", number + 1))?;
        accesses.extend(request.iter().flat_map(|request| request.blocks(block_bytes)));
    }
    for kind in PolicyKind::ALL {
        println!("{kind} {:.5}", replay(kind, blocks, accesses.iter().copied()).hit_ratio());
    }
    println!("belady {:.5}", belady(blocks, &accesses).hit_ratio());
    Ok(())
}
