//! What this host must have, and where it is.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A file that is needed, and the package that has it.
const NEEDED: [(&str, &str); 11] = [
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
    ("/usr/bin/setpriv", "util-linux"),
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

/// A program that is killed when this process ends, however that comes about. From a thread that
/// stays until then: the system goes by it.
pub fn tied(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use super::*;

    /// Starts a program, says its number and waits to be killed; or to be left alone, and then ends
    /// it.
    #[test]
    #[ignore = "the process that the next test kills"]
    fn whoever_starts_it() {
        let mut child = tied("sleep").arg("600").spawn().unwrap();
        eprintln!("{}", child.id());
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_is_tied_ends_with_a_process_that_is_killed() {
        let mut parent = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "host::tests::whoever_starts_it"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(parent.stderr.take().unwrap()).read_line(&mut said).unwrap();
        let program = PathBuf::from(format!("/proc/{}", said.trim()));
        // It is the program from when it has asked for its end.
        let name = || std::fs::read_to_string(program.join("comm")).unwrap_or_default();
        let lives = |name: &str| {
            // Dead and not taken note of by whoever inherits it, it still has a name.
            let status = std::fs::read_to_string(program.join("status")).unwrap_or_default();
            name == "sleep\n" && !status.contains("State:\tZ") && !status.contains("State:\tX")
        };
        assert!(comes_true(|| lives(&name())), "{said:?} was never started");
        // Nothing is said to it before.
        parent.kill().unwrap();
        parent.wait().unwrap();
        assert!(comes_true(|| !lives(&name())), "it runs on");
    }

    /// Within a minute, however busy the machine is.
    fn comes_true(is_true: impl Fn() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_true() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        is_true()
    }
}
