//! What this host must have, and where it is.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A file that is needed, and the package that has it.
const NEEDED: [(&str, &str); 10] = [
    ("/usr/bin/qemu-system-x86_64", "qemu-system-x86"),
    ("/bin/busybox", "busybox-static"),
    ("/bin/ip", "iproute2"),
    ("/bin/rdma", "iproute2"),
    ("/usr/sbin/depmod", "kmod"),
    ("/usr/bin/xz", "xz-utils"),
    ("/usr/bin/dpkg-deb", "dpkg"),
    (VERBS, "libibverbs1"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("/usr/bin/strip", "binutils"),
];

/// The library that tests load by name.
pub const VERBS: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
/// The library's drivers.
pub const DRIVERS: &str = "/usr/lib/x86_64-linux-gnu/libibverbs";

/// Says what is missing and how to get it.
pub fn check() -> Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("the guest needs a Debian host of x86-64, whose libraries and kernel it runs");
    }
    let mut missing: Vec<&str> =
        NEEDED.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, package)| *package).collect();
    missing.dedup();
    if !missing.is_empty() {
        bail!("the guest needs: apt-get install --no-install-recommends {}", missing.join(" "));
    }
    Ok(())
}

/// Where cargo puts what it builds.
pub fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

/// Runs a command of this host; what it printed.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let shown = format!("{command:?}");
    let done = command.output().with_context(|| format!("{shown} cannot be started"))?;
    if !done.status.success() {
        bail!("{shown} failed: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(done.stdout)
}

/// The libraries that a program of this host is linked with.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let listed = Command::new("ldd").arg(program).output().context("ldd cannot be started")?;
    // One that is linked statically lists none, and ldd calls that a failure.
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}
