//! `cargo xtask guest`: tests on a real RDMA device, in a throw-away machine.
//!
//! QEMU boots a Debian kernel with soft-RoCE and rdma-core's own libraries, runs compiled tests and passes their exit
//! status on. It emulates the processor, so nothing that is measured there means anything: correctness only.
//!
//! | test | what runs |
//! |---|---|
//! | `conformance` | the suite, with hostile peers and forks |
//! | `scan` | every mode over `rdma:`, against `shm:`; `calibrate` |
//! | `death` | either side killed |
//! | `sockets` | unmodified programs in pairs, their connections over the device |
//! | `apart` | redis on one machine, its own programs on the other |
//! | `between` | two machines, a wire and a key: every verb, a declared region, scans; delays, resets, a cut wire |
//!
//! Kernel and base image are kept under `target/guest`. There is one emulated processor: tests must yield or sleep.

#![forbid(unsafe_code)]

mod archive;
mod boot;
mod host;
mod image;
mod jobs;
mod kernel;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::jobs::JOBS;

const USAGE: &str = "usage: cargo xtask guest [--keep] [TEST]...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (keep, names) = match arguments[..] {
        ["--keep", ref names @ ..] => (true, names),
        ref names => (false, names),
    };
    if names.iter().any(|name| name.starts_with('-')) {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    match run(&root(), keep, names) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("guest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's root: the folder above this crate.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

/// Runs the named tests, all when none is named. `keep`: the archives stay for a look at them.
fn run(root: &Path, keep: bool, names: &[&str]) -> Result<()> {
    let chosen: Vec<_> = JOBS.iter().filter(|job| names.is_empty() || names.contains(&job.name)).collect();
    if let Some(unknown) = names.iter().find(|name| !JOBS.iter().any(|job| job.name == **name)) {
        let known: Vec<&str> = JOBS.iter().map(|job| job.name).collect();
        bail!("there is no guest test {unknown}; there are: {}", known.join(", "));
    }
    host::check()?;
    let folder = host::target(root).join("guest");
    std::fs::create_dir_all(&folder)?;
    let base = image::base(&folder)?;
    let mut failed = Vec::new();
    for job in chosen {
        let started = Instant::now();
        let packed = jobs::pack(root, &folder, job)?;
        let status = boot::run(&base, &packed, job)?;
        println!("guest {}: status {status} after {} s", job.name, started.elapsed().as_secs());
        if !keep {
            std::fs::remove_file(&packed)?;
        }
        if status != 0 {
            failed.push(job.name);
        }
    }
    if !failed.is_empty() {
        bail!("failed in the guest: {}", failed.join(", "));
    }
    Ok(())
}
