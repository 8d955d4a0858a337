//! Other people's servers of NBD, where they are installed.

use super::nbd::Nbd;
use crate::figures::sockets::{
    installed::{found, free_port},
    keeper::{Keeper, Launch},
};
use anyhow::{Result, bail, ensure};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// A server that runs, and a connection to it.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) pid: u32,
    pub(super) nbd: Nbd,
}

/// All of them, of `bytes` each, and why others are not there.
pub(super) fn start(keeper: &mut Keeper, bytes: u64) -> (Vec<Peer>, Vec<String>) {
    let (mut peers, mut absent) = (Vec::new(), Vec::new());
    for (name, start) in ALL {
        match start(keeper, bytes) {
            Ok((pid, nbd)) => peers.push(Peer { name, pid, nbd }),
            Err(error) => absent.push(format!("{name}: {error:#}")),
        }
    }
    (peers, absent)
}

const ALL: [(&str, Start); 3] = [("nbdkit", nbdkit), ("nbdkit over TCP", nbdkit_over_tcp), ("qemu-nbd", qemu)];

/// How one is started.
type Start = fn(&mut Keeper, u64) -> Result<(u32, Nbd)>;

fn nbdkit(keeper: &mut Keeper, bytes: u64) -> Result<(u32, Nbd)> {
    nbdkit_at(keeper, "nbdkit", bytes).map(|(pid, nbd, _)| (pid, nbd))
}

fn nbdkit_at(keeper: &mut Keeper, name: &str, bytes: u64) -> Result<(u32, Nbd, PathBuf)> {
    let socket = keeper.folder().join(name);
    let pid = serve(keeper, "nbdkit", &["-f", "-U", &text(&socket), "memory", &bytes.to_string()])?;
    let (pid, nbd) = connected(pid, || Nbd::unix(&socket, ""))?;
    Ok((pid, nbd, socket))
}

/// nbdkit as a file by nbdfuse: who serves, who stands between, and the file.
pub(super) fn nbdfuse(keeper: &mut Keeper, bytes: u64) -> Result<(u32, u32, PathBuf)> {
    let file = keeper.folder().join("nbdfuse");
    let (server, _, socket) = nbdkit_at(keeper, "nbdkit-below", bytes)?;
    File::create(&file)?;
    let between = serve(keeper, "nbdfuse", &[&text(&file), "--unix", &text(&socket)])?;
    let deadline = Instant::now() + PATIENCE;
    while fs::metadata(&file)?.len() != bytes {
        ensure!(Instant::now() < deadline, "nbdfuse mounts nothing within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(5));
    }
    Ok((server, between, file))
}

fn nbdkit_over_tcp(keeper: &mut Keeper, bytes: u64) -> Result<(u32, Nbd)> {
    let port = free_port()?;
    let arguments = ["-f", "-i", "127.0.0.1", "-p", &port.to_string(), "memory", &bytes.to_string()];
    let pid = serve(keeper, "nbdkit", &arguments)?;
    connected(pid, || Nbd::tcp(port, ""))
}

/// Of a file, which is in the page cache once it was written.
fn qemu(keeper: &mut Keeper, bytes: u64) -> Result<(u32, Nbd)> {
    qemu_as(keeper, bytes, &[])
}

/// Of a file that is read and written past the page cache; a write has
/// ended when it is on the disk.
pub(super) fn qemu_past_the_page_cache(keeper: &mut Keeper, bytes: u64) -> Result<(u32, Nbd)> {
    qemu_as(keeper, bytes, &["--cache=directsync", "--aio=native"])
}

fn qemu_as(keeper: &mut Keeper, bytes: u64, how: &[&str]) -> Result<(u32, Nbd)> {
    let (socket, file) = (keeper.folder().join("qemu"), keeper.folder().join("qemu.img"));
    File::create(&file)?.set_len(bytes)?;
    let (at, file) = (text(&socket), text(&file));
    let pid = serve(keeper, "qemu-nbd", &[&["-t", "-f", "raw", "-k", &at], how, &[&file]].concat())?;
    connected(pid, || Nbd::unix(&socket, ""))
}

fn serve(keeper: &mut Keeper, name: &str, arguments: &[&str]) -> Result<u32> {
    let Some(program) = found(name) else { bail!("is not installed") };
    let said = keeper.folder().join(format!("{name}-says-{}", arguments.join("").replace('/', "-")));
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    keeper.serve(&Launch { program, arguments, stays: Some((said, TERM)), ..Launch::default() })
}

/// It takes a moment to be there.
fn connected(pid: u32, connect: impl Fn() -> Result<Nbd>) -> Result<(u32, Nbd)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match connect() {
            Ok(nbd) => return Ok((pid, nbd)),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

const TERM: i32 = 15;
const PATIENCE: Duration = Duration::from_secs(20);
