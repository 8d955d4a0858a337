//! `cargo xtask guest`: tests on a real RDMA device, in a throw-away machine.
//!
//! `cargo xtask guest power`, which runs only where it is named: tables in `sync` on ext4, on a
//! disk ([`drive`]) that loses, mixes or tears what no flush covers. QEMU is killed round after
//! round; what was acknowledged must be there.
//!
//! QEMU boots a Debian kernel with soft-RoCE and rdma-core's own libraries, runs compiled tests and
//! passes their exit status on. It emulates the processor, so nothing that is measured there means
//! anything: correctness only.
//!
//! | test | what runs |
//! |---|---|
//! | `conformance` | the suite, with hostile peers and forks |
//! | `scan` | every mode over `rdma:`, against `shm:`; a volume, and programs' files on one, whose node is killed; `calibrate` |
//! | `death` | either side killed |
//! | `sockets` | unmodified programs in pairs, their connections over the device; calls on files, which allocate nothing |
//! | `apart` | redis on one machine, its own programs on the other |
//! | `between` | two machines, a wire and a key: every verb, a declared region, figures, scans; delays, resets, a cut wire |
//! | `ublk` | a volume as a block device, on a later kernel: fio and ext4 while node and server are killed |
//!
//! Kernel and base image are kept under `target/guest`. There is one emulated processor: tests must
//! yield or sleep.

#![forbid(unsafe_code)]

mod archive;
mod boot;
mod drive;
mod host;
mod image;
mod jobs;
mod kernel;
mod power;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::jobs::{JOBS, Job, POWER};

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

/// Runs the named tests; when none is named, all but the one that takes the power away. `keep`: the
/// archives stay for a look at them.
fn run(root: &Path, keep: bool, names: &[&str]) -> Result<()> {
    let all = || JOBS.iter().chain([&POWER]);
    let chosen = |job: &&Job| if names.is_empty() { job.name != POWER.name } else { names.contains(&job.name) };
    let chosen: Vec<_> = all().filter(chosen).collect();
    if let Some(unknown) = names.iter().find(|name| !all().any(|job| job.name == **name)) {
        let known: Vec<&str> = all().map(|job| job.name).collect();
        bail!("there is no guest test {unknown}; there are: {}", known.join(", "));
    }
    host::check()?;
    let folder = host::target(root).join("guest");
    std::fs::create_dir_all(&folder)?;
    let mut failed = Vec::new();
    for job in chosen {
        let started = Instant::now();
        let base = image::base(&folder, job.series)?;
        let packed = jobs::pack(root, &folder, job)?;
        let status = if job.name == POWER.name {
            let initrd = boot::initrd(&base, &packed)?;
            power::run(&base, &initrd, &folder, job)?;
            std::fs::remove_file(initrd)?;
            0
        } else {
            boot::run(&base, &packed, job)?
        };
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
