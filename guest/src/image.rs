//! What every guest begins with: busybox, the RDMA modules and tools, rdma-core's libraries. Kept
//! under `target`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::archive::Archive;
use crate::host::{DRIVERS, VERBS, libraries, output};
use crate::kernel::{self, Kernel, Series, write_whole};

/// Kernel and first file system.
#[derive(Debug)]
pub struct Base {
    pub kernel: PathBuf,
    pub archive: PathBuf,
}

/// The base in `folder`; built when none is there that this version of the code made.
pub fn base(folder: &Path, series: Series) -> Result<Base> {
    let kernel = kernel::get(folder, series)?;
    let wanted: Vec<&str> = match series {
        Series::Stable => MODULES.to_vec(),
        Series::Later => [&MODULES[..], &LATER_MODULES].concat(),
    };
    let recipe = fingerprint(&[INIT, &wanted.join(" "), &APPLETS.join(" "), LAYOUT]);
    let archive = folder.join(format!("base-{}-{recipe:016x}.cpio", kernel.version));
    if !archive.exists() {
        println!("guest: building the base image");
        write_whole(&archive, &build(&kernel, &wanted)?.bytes())?;
    }
    Ok(Base { kernel: kernel.image, archive })
}

fn build(kernel: &Kernel, wanted: &[&str]) -> Result<Archive> {
    let mut archive = Archive::default();
    for folder in ["proc", "sys", "dev", "tmp", "run", "job", "etc", "var/tmp", "lib64", "bin"] {
        archive.folder(folder);
    }
    // As Debian has it, so that each file has one place.
    archive.folder("usr");
    for (link, to) in [("usr/lib", "../lib"), ("usr/bin", "../bin"), ("usr/sbin", "../bin"), ("sbin", "bin")] {
        archive.link(link, to);
    }
    archive.copy("bin/busybox", Path::new("/bin/busybox"))?;
    APPLETS.iter().for_each(|applet| archive.link(&format!("bin/{applet}"), "busybox"));
    for (name, program) in [("ip", "/bin/ip"), ("rdma", "/bin/rdma"), ("ss", "/bin/ss"), ("tc", "/sbin/tc")] {
        add_program(&mut archive, &format!("bin/{name}"), Path::new(program))?;
    }
    // A test loads it by its name, so no program is linked with it.
    add_program(&mut archive, "lib/x86_64-linux-gnu/libibverbs.so.1", Path::new(VERBS))?;
    let driver = std::fs::read_dir(DRIVERS)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("librxe-rdmav")))
        .context("libibverbs has no driver for soft-RoCE; apt-get install ibverbs-providers")?;
    let name = driver.file_name().unwrap_or_default().to_string_lossy().into_owned();
    add_program(&mut archive, &format!("lib/x86_64-linux-gnu/libibverbs/{name}"), &driver)?;
    archive.file("etc/libibverbs.d/rxe.driver", false, *b"driver rxe\n");
    archive.file("etc/passwd", false, *b"root:x:0:0::/:/bin/sh\n");
    archive.file("etc/hosts", false, *b"127.0.0.1 localhost\n");
    archive.file("init", true, INIT);
    modules(&mut archive, kernel, wanted)?;
    Ok(archive)
}

/// A program or library of this host, with the libraries it is linked with.
pub fn add_program(archive: &mut Archive, path: &str, from: &Path) -> Result<()> {
    archive.copy(path, from)?;
    for library in libraries(from)? {
        let shown = library.to_string_lossy().into_owned();
        let place = shown.trim_start_matches('/').trim_start_matches("usr/").to_owned();
        if !archive.has(&place) {
            archive.copy(&place, &library)?;
        }
    }
    Ok(())
}

/// The modules and what they need, in the order in which they must be loaded.
fn modules(archive: &mut Archive, kernel: &Kernel, all: &[&str]) -> Result<()> {
    let folder = kernel.unpacked.join("lib/modules").join(&kernel.version);
    let listed = std::fs::read_to_string(folder.join("modules.dep")).context("depmod has left no modules.dep")?;
    let within =
        std::fs::read_to_string(folder.join("modules.builtin")).context("the kernel has no modules.builtin")?;
    let is_it = |line: &str, wanted: &str| {
        let file = line.split(':').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        file.split('.').next() == Some(wanted)
    };
    let mut order: Vec<&str> = Vec::new();
    for wanted in all {
        if within.lines().any(|line| is_it(line, wanted)) {
            continue;
        }
        let line = listed.lines().find(|line| is_it(line, wanted));
        let Some(line) = line else { bail!("the kernel has no module {wanted}") };
        let (module, needs) = line.split_once(':').context("modules.dep is malformed")?;
        // What it needs, last needed first.
        order.extend(needs.split_whitespace().rev());
        order.push(module);
    }
    let mut seen = Vec::new();
    for module in order {
        if seen.contains(&module) {
            continue;
        }
        seen.push(module);
        let name = module.rsplit('/').next().unwrap_or(module).split(".ko").next().unwrap_or(module);
        archive.file(&format!("modules/{:03}-{name}.ko", seen.len()), false, plain(&folder.join(module))?);
    }
    Ok(())
}

/// A module's bytes, unpacked and without what is only for debugging.
fn plain(module: &Path) -> Result<Vec<u8>> {
    let bytes = match module.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => output(Command::new("xz").arg("-dc").arg(module))?,
        Some("zst") => output(Command::new("zstd").arg("-dcq").arg(module))?,
        _ => std::fs::read(module)?,
    };
    let scratch = std::env::temp_dir().join(format!("overside-module-{}.ko", std::process::id()));
    std::fs::write(&scratch, bytes)?;
    let stripped = output(Command::new("strip").args(["--strip-debug", "-R", ".BTF"]).arg(&scratch));
    let bytes = std::fs::read(&scratch);
    std::fs::remove_file(&scratch)?;
    stripped?;
    Ok(bytes?)
}

/// Not for security: tells one recipe from another.
fn fingerprint(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Raised when the archive is put together differently.
const LAYOUT: &str = "2";
const INIT: &str = include_str!("init.sh");
/// Soft-RoCE and ext4 ask for checksums by name, which nobody loads for them here. Two slow a wire
/// and reset connections.
const MODULES: [&str; 11] = [
    "crc32_generic",
    "crc32c_generic",
    "ib_uverbs",
    "rdma_rxe",
    "dummy",
    "virtio_pci",
    "virtio_net",
    "sch_netem",
    "tcp_diag",
    "virtio_blk",
    "ext4",
];
/// What the stable kernel has not.
const LATER_MODULES: [&str; 1] = ["ublk_drv"];
const APPLETS: [&str; 38] = [
    "sh", "ash", "awk", "basename", "cat", "chmod", "cmp", "cp", "cut", "dd", "diff", "echo", "env", "expr", "false",
    "grep", "head", "insmod", "kill", "ln", "ls", "md5sum", "mkdir", "modprobe", "mount", "mv", "poweroff", "printf",
    "rm", "sed", "sleep", "sort", "sync", "tail", "tr", "umount", "uniq", "wc",
];
