//! `overside volume detach`

use crate::args::Detach;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use overside::vault::fronts::fuse;
use overside::vault::fronts::ublk::UblkDriver;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Ends what `attach` made.
///
/// # Errors
/// Nothing is attached there, or a program uses it.
pub fn run(args: &Detach) -> Result<()> {
    match args.target.strip_prefix("unix:") {
        Some(path) => end_server_at(Path::new(path))?,
        None if args.target.starts_with("/dev/ublkb") => end_block_device(&args.target)?,
        None => fuse::detach(Path::new(&args.target))?,
    }
    match args.json {
        true => output::line(&json!({ "detached": args.target }).to_string()),
        false => output::line(&format!("{} is detached", args.target)),
    }
}

/// Ends the process that listens on a socket.
fn end_server_at(path: &Path) -> Result<()> {
    let shown = path.display().to_string();
    let stream = UnixStream::connect(path).with_context(|| format!("nobody serves a volume at {shown}"))?;
    let server = Server::of(socket_peercred(&stream)?.pid)?;
    drop(stream);
    server.end(&shown)
}

/// Ends the process that serves a block device; where it was killed, what is left of the device
/// goes.
fn end_block_device(device: &str) -> Result<()> {
    let mut driver = UblkDriver::open()?;
    let server = driver.server_of(Path::new(device)).with_context(|| device.to_owned())?;
    match server.and_then(|server| Pid::from_raw(server as i32)) {
        Some(server) => Server::of(server)?.end(device),
        None => {
            driver.sweep();
            Ok(())
        }
    }
}

/// A process of one number, and if it is the server still, no other.
struct Server {
    process: OwnedFd,
    number: i32,
}

impl Server {
    fn of(number: Pid) -> Result<Server> {
        let process = pidfd_open(number, PidfdFlags::empty())?;
        Ok(Server { process, number: number.as_raw_nonzero().get() })
    }

    /// Ends it as its user's Ctrl-C does, and waits for that.
    fn end(&self, shown: &str) -> Result<()> {
        let Server { process, number } = self;
        let arguments = std::fs::read(format!("/proc/{number}/cmdline"))?;
        let words: Vec<&[u8]> = arguments.split(|byte| *byte == 0).skip(1).take(2).collect();
        ensure!(
            matches!(words[..], [b"volume", b"attach" | b"trace"]),
            "process {number} serves {shown}, and is no `overside volume attach`; end it as it was begun"
        );
        pidfd_send_signal(process, Signal::TERM)?;
        let mut ended = [PollFd::new(process, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE_SECONDS, tv_nsec: 0 };
        match rustix::event::poll(&mut ended, Some(&patience))? {
            0 => bail!("process {number} does not end: its requests wait for the node"),
            _ => Ok(()),
        }
    }
}

const PATIENCE_SECONDS: i64 = 60;
