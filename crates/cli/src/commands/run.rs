//! `overside run`: a program with the sockets library preloaded.

use crate::args::Run;
use anyhow::{Context, Result, bail, ensure};
use overside::verbs::handshake::Key;
use overside::verbs::{Clock, SystemClock};
use overside::volume::client::LinkOptions;
use overside::volume::wire::Role;
use overside::{Address, Network};
use std::ffi::OsString;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Runs the program in place of this one, or waits for it and tells what its connections did.
///
/// # Errors
/// When the library or the program is not there.
pub(super) fn run(options: &Run) -> Result<()> {
    if options.print_library {
        return print_library();
    }
    let library = library()?;
    let (program, arguments) = options.command.split_first().context("name the program to run after `--`")?;
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload(&library));
    if let Some(volume) = &options.volume {
        command.env("OVERSIDE_FILES", files(volume, options)?);
    }
    if !options.verbose {
        let error = command.exec();
        return Err(error).with_context(|| format!("{} cannot be started", program.display()));
    }
    let (mut report, place) = report()?;
    // Ctrl-C reaches the program as well; its report is to be told all the same.
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::new(AtomicBool::new(false)))?;
    let status = command
        .env("OVERSIDE_SOCKETS_REPORT", place)
        .status()
        .with_context(|| format!("{} cannot be started", program.display()));
    let mut lines = Vec::new();
    let _ = report.rewind().and_then(|()| report.read_to_end(&mut lines));
    let status = status?;
    eprint!("{}", told(&String::from_utf8_lossy(&lines)));
    exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
}

/// What the library is told of files on a volume. The node is asked whether it lets such a program
/// in.
///
/// # Errors
/// It does not, or the text names no folder and volume that a library can reach.
fn files(text: &str, options: &Run) -> Result<OsString> {
    let (prefix, target) = text.split_once('=').context("write --volume PREFIX=ADDR/NAME, as data=shm:vault/db")?;
    let (address, volume) = super::volume::named(target)?;
    let parsed: Address = address.parse()?;
    ensure!(
        !parsed.transport().is_network || parsed.transport().has_devices,
        "--volume takes shm: or rdma:, not {}:, whose bytes would go by the kernel's sockets, among the program's own; serve \
         the volume on rdma:, for which soft-RoCE makes a device of any network interface",
        parsed.transport().name
    );
    let absolute = |file: &Option<PathBuf>| file.as_deref().map(std::path::absolute).transpose();
    let (key_file, access_key) = (absolute(&options.key_file)?, absolute(&options.access_key)?);
    let folder = std::path::absolute(prefix)?;
    // What the program makes itself, as initdb does its folder, is not there yet.
    let folder = match folder.canonicalize() {
        Ok(folder) => folder,
        Err(_) => {
            let (parent, name) = folder.parent().zip(folder.file_name()).context("PREFIX names no folder")?;
            parent.canonicalize().with_context(|| format!("{} is not there", parent.display()))?.join(name)
        }
    };
    let mut group = [0; 8];
    SystemClock.fill(&mut group)?;
    let group = u64::from_le_bytes(group).max(1);
    let role = if options.take_over { Role::TakeOver } else { Role::Writer };
    let (rdma_device, transport) = (options.rdma_device.clone(), parsed.transport().name);
    let device = rdma_device.clone().unwrap_or_default();
    let network = Network { key_file: key_file.clone(), rdma_device, ..Network::default() };
    let key = access_key.as_deref().map(Key::from_file).transpose()?;
    // No more memory is locked for a device than each process will lock.
    let link = LinkOptions { role, group, key, receives: RECEIVES, ..LinkOptions::default() };
    let mut client = overside::at(address).network(&network).files(volume, link)?;
    let preset = client.about()?.preset;
    client.close(CLOSING);
    let node = parsed.name();
    let mut told = OsString::from(format!("{}\n{transport}\n{node}\n{volume}\n{group:x}\n{device}\n", preset.name()));
    for file in [key_file, access_key].map(Option::unwrap_or_default) {
        ensure!(!file.as_os_str().as_bytes().contains(&b'\n'), "move the key file to a path without a line break");
        told.push(file);
        told.push("\n");
    }
    told.push(folder);
    Ok(told)
}

/// The path that the library is preloaded by: its own, or a link's where that has a character at
/// which the dynamic linker would cut it.
///
/// # Errors
/// It is not there, or there is no folder for such a link.
pub(super) fn library() -> Result<PathBuf> {
    let library = installed()?;
    let Some(character) = unloadable(&library) else { return Ok(library) };
    linked(&library, std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).as_deref()).with_context(|| {
        format!("the library's path {:?} has {character:?}, at which LD_PRELOAD is cut; {ELSEWHERE}", library.display())
    })
}

/// For service files: its own path alone, which is there after the next start of the machine as
/// well.
fn print_library() -> Result<()> {
    let library = installed()?;
    if let Some(character) = unloadable(&library) {
        bail!("the library's path {:?} has {character:?}, at which LD_PRELOAD is cut; {ELSEWHERE}", library.display());
    }
    // Not for people alone: another command takes every byte of it.
    let mut line = library.into_os_string().into_vec();
    line.push(b'\n');
    Ok(std::io::stdout().write_all(&line)?)
}

/// The first character that a path in LD_PRELOAD must not have: what separates paths there, or
/// begins what the linker replaces.
fn unloadable(path: &Path) -> Option<char> {
    let separates = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b':' | b'$' | b'\x0b');
    path.as_os_str().as_bytes().iter().copied().find(separates).map(char::from)
}

/// A link to the library in `runtime`, the user's own folder for as long as a session lasts: the
/// program and its children may outlive this process, so it stays. One path has one link.
fn linked(library: &Path, runtime: Option<&Path>) -> Result<PathBuf> {
    let runtime = runtime.context("XDG_RUNTIME_DIR names no folder for a link to it")?;
    let usable = runtime.is_absolute() && unloadable(runtime).is_none();
    ensure!(usable, "XDG_RUNTIME_DIR is {:?}, which a link to it cannot lie in", runtime.display());
    let about = runtime.metadata().with_context(|| format!("XDG_RUNTIME_DIR {}", runtime.display()))?;
    // Who may write there could put another library in its place.
    let own = about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o022 == 0;
    ensure!(own, "others may write to XDG_RUNTIME_DIR {}", runtime.display());
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let link = runtime.join(format!("overside-preload-{:016x}.so", hasher.finish()));
    if std::fs::read_link(&link).is_ok_and(|target| target == library) {
        return Ok(link);
    }
    let fresh = link.with_extension(std::process::id().to_string());
    let _ = std::fs::remove_file(&fresh);
    std::os::unix::fs::symlink(library, &fresh)
        .and_then(|()| std::fs::rename(&fresh, &link))
        .with_context(|| format!("a link to it, {}, cannot be made", link.display()))?;
    Ok(link)
}

/// The library: beside this executable, where a build puts it, or where a package would.
///
/// # Errors
/// It is at none of these places.
fn installed() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("where this executable lies")?;
    let folder = exe.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(NAME), folder.join("deps").join(NAME), folder.join("../lib/overside").join(NAME)];
    match places.iter().find(|place| place.exists()) {
        Some(place) => Ok(place.canonicalize().unwrap_or_else(|_| place.clone())),
        None => bail!("{NAME} is not beside {}; `cargo build --release` puts it there", exe.display()),
    }
}

/// What is preloaded already stays so.
fn preload(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        all.push(":");
        all.push(before);
    }
    all
}

/// A file for the processes' lines, and where they find it. It has no name in any folder: whatever
/// ends this process, nothing is left.
fn report() -> Result<(File, String)> {
    let file =
        rustix::fs::memfd_create(REPORT, rustix::fs::MemfdFlags::CLOEXEC).context("memory for what is to be told")?;
    let place = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    Ok((file.into(), place))
}

/// The processes' lines (process, side, both addresses, way, reason, then bytes and messages out
/// and in) for people.
fn told(lines: &str) -> String {
    let mut text = String::new();
    let (mut rings, mut far, mut kernel, mut bytes, mut messages) = (0u64, 0u64, 0u64, 0u64, 0u64);
    for line in lines.lines() {
        if let [process, "files", what] = line.split('\t').collect::<Vec<_>>()[..] {
            text += &format!("overside: process {process}: {what}\n");
            continue;
        }
        let [process, side, here, there, way, reason, bytes_out, messages_out, bytes_in, messages_in] =
            line.split('\t').collect::<Vec<_>>()[..]
        else {
            continue;
        };
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        bytes += number(bytes_out) + number(bytes_in);
        messages += number(messages_out) + number(messages_in);
        let head = format!("overside: process {process} {side} {here} to {there}: ");
        let over = if way == "rdma" { "RDMA" } else { "shared memory" };
        let tail = if way != "kernel" {
            *(if way == "rdma" { &mut far } else { &mut rings }) += 1;
            let then = if reason.is_empty() { String::new() } else { format!(", then the kernel: {reason}") };
            format!("{over}, {bytes_out} bytes in {messages_out} sends, {bytes_in} in {messages_in} receives{then}")
        } else {
            kernel += 1;
            format!("kernel: {reason}")
        };
        text += &format!("{head}{tail}\n");
    }
    let far = if far > 0 { format!("{far} over RDMA, ") } else { String::new() };
    text + &format!(
        "overside: {rings} connection ends over shared memory, {far}{kernel} through the kernel; {bytes} bytes in {messages} calls past it\n"
    )
}

const ELSEWHERE: &str = "move the folder with both to a path without";
/// How long the node may take to hear that it was only asked.
const CLOSING: Duration = Duration::from_secs(1);
/// As many as the library has.
const RECEIVES: usize = 16;
const NAME: &str = "liboverside_preload.so";
/// The library looks for this name before it writes: the number of a process that ended may be
/// another's.
const REPORT: &str = "overside-report";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_and_nonsense_is_passed_over() {
        let lines = "7\tconnected\t127.0.0.1:1\t127.0.0.1:2\tring\t\t10\t1\t20\t2\n\
                     7\taccepted\tunix\tunix\tkernel\tpoll\t0\t0\t0\t0\nnonsense\n\
                     7\tconnected\t10.0.0.1:1\t10.0.0.2:2\trdma\t\t5\t1\t0\t0\n";
        let told = told(lines);
        assert!(told.contains("process 7 connected 127.0.0.1:1 to 127.0.0.1:2: shared memory, 10 bytes in 1 sends"));
        assert!(told.contains("10.0.0.1:1 to 10.0.0.2:2: RDMA, 5 bytes in 1 sends"));
        assert!(told.contains("kernel: poll\n"));
        assert!(told.ends_with(
            "1 connection ends over shared memory, 1 over RDMA, 1 through the kernel; 35 bytes in 4 calls past it\n"
        ));
    }
}
