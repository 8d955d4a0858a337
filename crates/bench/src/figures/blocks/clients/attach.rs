//! A volume attached for programs that speak NBD, or open files: a process of its own on the
//! client's host, as `overside volume attach` is.

use super::super::node::Node;
use crate::process::{Process, child_socket, read_word, write_words};
use anyhow::{Context, Result};
use overside::{
    vault::fronts::{
        fuse::{FuseMount, FuseServer},
        nbd::{NbdOptions, NbdServer, NbdSocket, OneExport},
    },
    verbs::SystemClock,
    volume::{Device, client::LinkOptions, wire::Role},
};
use rustix::process::set_parent_process_death_signal;
use std::{io::Read, os::unix::net::UnixStream, path::Path, thread, time::Duration};

/// A volume that is attached.
pub(in crate::figures::blocks) struct Attached {
    process: Option<Process>,
    /// It ends when this is closed.
    line: Option<UnixStream>,
    by_io_uring: bool,
}

impl Attached {
    /// At a socket for NBD.
    pub(super) fn start(node: &Node, volume: &str, socket: &Path) -> Result<Attached> {
        Attached::at(super::ATTACH, node, volume, socket)
    }

    /// As a file to be read.
    pub(in crate::figures::blocks) fn as_file(node: &Node, volume: &str, file: &Path) -> Result<Attached> {
        Attached::at(super::ATTACH_FILE, node, volume, file)
    }

    /// As a file to be read and written.
    pub(in crate::figures::blocks) fn as_disk(node: &Node, volume: &str, file: &Path) -> Result<Attached> {
        Attached::at(super::ATTACH_DISK, node, volume, file)
    }

    fn at(way: &str, node: &Node, volume: &str, place: &Path) -> Result<Attached> {
        let place = place.to_str().context("the name of the folder for scratch files is no text; choose another")?;
        let words = [way, node.address("shm")?, volume, place];
        let (process, mut line) = Process::start("attached volume", super::super::ROLE, &words, None)?;
        let way = read_word(&mut line).context("the attached volume ended; its last words are above")?;
        Ok(Attached { process: Some(process), line: Some(line), by_io_uring: way == BY_IO_URING })
    }

    /// How the kernel hands over requests for a file; by `/dev/fuse` otherwise.
    pub(in crate::figures::blocks) fn is_by_io_uring(&self) -> bool {
        self.by_io_uring
    }

    pub(in crate::figures::blocks) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }
}

impl Drop for Attached {
    /// What it has mounted goes with it, so it ends by itself.
    fn drop(&mut self) {
        self.line = None;
        if let Some(process) = self.process.take() {
            process.end(PATIENCE);
        }
    }
}

/// The process itself.
pub(super) fn serve(address: &str, volume: &str, socket: &str) -> Result<()> {
    let socket = NbdSocket::bind(Path::new(socket))?;
    let export = Box::new(OneExport::new(volume, device(address, volume, Role::Reader)?));
    let server = NbdServer::new(socket, export, SystemClock::handle(), NbdOptions::default())?;
    let stopper = server.stopper();
    let serving = thread::spawn(move || server.run().map(drop));
    until_told(SERVES)?;
    stopper.notify();
    Ok(serving.join().ok().context("the NBD server panicked")??)
}

/// The process that serves a file.
pub(super) fn serve_file(address: &str, volume: &str, file: &str, role: Role) -> Result<()> {
    // The line says when whoever measures has gone; one that is killed leaves a mount behind.
    set_parent_process_death_signal(None).context("the kernel does not let this process outlive its parent")?;
    let mount = FuseMount::new(Path::new(file), role == Role::Reader)?;
    let device = device(address, volume, role)?;
    let server = FuseServer::new(mount, device, SystemClock::handle())?;
    let stopper = server.stopper();
    let way = if server.is_by_io_uring() { BY_IO_URING } else { SERVES };
    let serving = thread::spawn(move || server.run().map(drop));
    until_told(way)?;
    stopper.notify();
    Ok(serving.join().ok().context("the server of the file panicked")??)
}

fn device(address: &str, volume: &str, role: Role) -> Result<Box<dyn Device>> {
    let options = LinkOptions { role, ..LinkOptions::default() };
    Ok(Box::new(overside::at(address).volume(volume, options)?))
}

/// Says that it serves, and how. Nothing ever comes; the read ends when the parent closes it.
fn until_told(way: u64) -> Result<()> {
    let mut line = child_socket()?;
    write_words(&mut line, &[way])?;
    let _ = line.read(&mut [0; 1]);
    Ok(())
}

const SERVES: u64 = 1;
const BY_IO_URING: u64 = 2;
const PATIENCE: Duration = Duration::from_secs(10);
