//! A Debian kernel: fetched, unpacked, and turned into what QEMU boots without unpacking it in the
//! guest.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::host::output;

/// Which of Debian's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// The stable release's own.
    Stable,
    /// A later one, which has drivers that the stable one lacks.
    Later,
}

/// The kernel's files on this host.
#[derive(Debug)]
pub struct Kernel {
    /// As QEMU boots it.
    pub image: PathBuf,
    /// Its version, as `uname -r` has it.
    pub version: String,
    /// What the package unpacks to.
    pub unpacked: PathBuf,
}

/// The kernel in `folder`; fetched when none is there.
pub fn get(folder: &Path, series: Series) -> Result<Kernel> {
    let (name, meta) = match series {
        Series::Stable => ("kernel", "linux-image-amd64"),
        Series::Later => ("kernel-6.12", "linux-image-6.12-amd64"),
    };
    let unpacked = folder.join(name);
    if !unpacked.join("boot").is_dir() {
        fetch(folder, &unpacked, meta)?;
    }
    let compressed = std::fs::read_dir(unpacked.join("boot"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")))
        .context("the kernel's package has no vmlinuz")?;
    let name = compressed.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let version = name.trim_start_matches("vmlinuz-").to_owned();
    let image = folder.join(format!("vmlinux-{version}"));
    if !image.exists() {
        let elf = unpack(&std::fs::read(&compressed)?)?;
        write_whole(&image, &elf)?;
    }
    Ok(Kernel { image, version, unpacked })
}

/// Fetches the newest kernel that `meta` depends on.
fn fetch(folder: &Path, unpacked: &Path, meta: &str) -> Result<()> {
    let depends = output(Command::new("apt-cache").args(["depends", meta]))?;
    let depends = String::from_utf8_lossy(&depends).into_owned();
    let package = depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))
        .with_context(|| format!("apt knows no {meta}; apt-get update"))?;
    let package = format!("linux-image-{package}");
    println!("guest: fetching {package}");
    let download = folder.join("download");
    let _ = std::fs::remove_dir_all(&download);
    std::fs::create_dir_all(&download)?;
    output(Command::new("apt-get").args(["download", "-q", &package]).current_dir(&download))?;
    let deb = std::fs::read_dir(&download)?.filter_map(|entry| Some(entry.ok()?.path())).next();
    let deb = deb.context("apt-get download left nothing")?;
    let partial = folder.join("kernel.partial");
    let _ = std::fs::remove_dir_all(&partial);
    output(Command::new("dpkg-deb").arg("-x").args([&deb, &partial]))?;
    output(Command::new("depmod").arg("-b").arg(&partial).arg(package.trim_start_matches("linux-image-")))?;
    std::fs::rename(&partial, unpacked)?;
    Ok(std::fs::remove_dir_all(&download)?)
}

/// The ELF file within a bzImage: its header says where the compressed one is.
fn unpack(image: &[u8]) -> Result<Vec<u8>> {
    let word = |at: usize| -> Result<usize> {
        let bytes = image.get(at..at + 4).context("the kernel's image is cut off")?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    };
    if image.get(0x202..0x206) != Some(b"HdrS") {
        bail!("the kernel's image is no bzImage");
    }
    let sectors = usize::from(image[0x1f1]).max(1);
    let start = (sectors + 1) * 512 + word(0x248)?;
    let payload = image.get(start..).and_then(|rest| rest.get(..word(0x24c).ok()?));
    let payload = payload.context("the kernel's image is cut off")?;
    let Some(command) = UNPACKERS.iter().find(|(magic, _)| payload.starts_with(magic)).map(|(_, command)| command)
    else {
        bail!("the kernel is compressed in a way that is not known here");
    };
    let elf = piped(command, payload)?;
    if !elf.starts_with(b"\x7fELF") {
        bail!("what the kernel's image holds is no ELF file");
    }
    Ok(elf)
}

fn piped(command: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("{} cannot be started", command[0]))?;
    let mut stdin = child.stdin.take().context("no pipe")?;
    std::thread::scope(|scope| {
        // What follows the compressed file is not read: writing it fails, and that is well.
        scope.spawn(move || drop(stdin.write_all(input)));
        Ok(child.wait_with_output()?.stdout)
    })
}

/// Written beside and renamed, so that what is there is whole.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    std::fs::write(&partial, bytes).with_context(|| format!("{} cannot be written", partial.display()))?;
    Ok(std::fs::rename(partial, path)?)
}

const UNPACKERS: [(&[u8], &[&str]); 3] = [
    (b"\xfd7zXZ", &["xz", "-dc", "--single-stream"]),
    (b"\x28\xb5\x2f\xfd", &["zstd", "-dcq"]),
    (b"\x1f\x8b", &["gzip", "-dcq"]),
];
