//! `overside volume detach`

use crate::args::Detach;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use overside::vault::fronts::fuse;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Ends what `attach` made.
///
/// # Errors
/// Nothing is attached there, or a program uses it.
pub fn run(args: &Detach) -> Result<()> {
    match args.target.strip_prefix("unix:") {
        Some(path) => end_server(Path::new(path))?,
        None => fuse::detach(Path::new(&args.target))?,
    }
    match args.json {
        true => output::line(&json!({ "detached": args.target }).to_string()),
        false => output::line(&format!("{} is detached", args.target)),
    }
}

/// Ends the process that listens on a socket, as its user's Ctrl-C does, and waits for that.
fn end_server(path: &Path) -> Result<()> {
    let shown = path.display();
    let stream = UnixStream::connect(path).with_context(|| format!("nobody serves a volume at {shown}"))?;
    let server = socket_peercred(&stream)?.pid;
    // A process of this number from here on, and if it is the server still, no other.
    let process = pidfd_open(server, PidfdFlags::empty())?;
    drop(stream);
    let arguments = std::fs::read(format!("/proc/{}/cmdline", server.as_raw_nonzero()))?;
    let words: Vec<&[u8]> = arguments.split(|byte| *byte == 0).skip(1).take(2).collect();
    ensure!(
        matches!(words[..], [b"volume", b"attach" | b"trace"]),
        "process {} serves {shown}, and is no `overside volume attach`; end it as it was begun",
        server.as_raw_nonzero()
    );
    pidfd_send_signal(&process, Signal::TERM)?;
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    let patience = Timespec { tv_sec: PATIENCE_SECONDS, tv_nsec: 0 };
    match rustix::event::poll(&mut ended, Some(&patience))? {
        0 => bail!("process {} does not end: its requests wait for the node", server.as_raw_nonzero()),
        _ => Ok(()),
    }
}

const PATIENCE_SECONDS: i64 = 60;
