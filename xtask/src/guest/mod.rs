//! `cargo xtask guest`: tests on a real RDMA device, in a throw-away machine.
//!
//! QEMU boots a Debian kernel with soft-RoCE and rdma-core's own libraries, runs compiled tests and passes their exit
//! status on. It emulates the processor, so nothing that is measured there means anything: correctness only.

mod archive;
mod boot;
pub mod host;
mod image;
mod jobs;
mod kernel;

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};

use self::jobs::JOBS;

/// Runs the named tests, all when none is named. `keep`: the archives stay for a look at them.
pub fn run(root: &Path, keep: bool, names: &[&str]) -> Result<()> {
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
