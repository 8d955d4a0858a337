//! A volume attached for programs that speak NBD: a process of its own on the client's host, as `overside volume attach` is.

use super::super::node::Node;
use crate::process::{Process, child_socket, read_word, write_words};
use anyhow::{Context, Result};
use overside::{
    vault::fronts::nbd::{NbdOptions, NbdServer, NbdSocket, OneExport},
    verbs::SystemClock,
    volume::{client::LinkOptions, wire::Role},
};
use std::{io::Read, os::unix::net::UnixStream, path::Path, thread};

/// A volume that is attached.
pub(super) struct Attached {
    process: Process,
    /// It ends when this is closed.
    _line: UnixStream,
}

impl Attached {
    pub(super) fn start(node: &Node, volume: &str, socket: &Path) -> Result<Attached> {
        let socket = socket.to_str().context("the name of the folder for scratch files is no text; choose another")?;
        let words = [super::ATTACH, node.address("shm")?, volume, socket];
        let (process, mut line) = Process::start("attached volume", super::super::ROLE, &words, None)?;
        read_word(&mut line).context("the attached volume ended; its last words are above")?;
        Ok(Attached { process, _line: line })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// The process itself.
pub(super) fn serve(address: &str, volume: &str, socket: &str) -> Result<()> {
    let options = LinkOptions { role: Role::Reader, ..LinkOptions::default() };
    let device = overside::at(address).volume(volume, options)?;
    let socket = NbdSocket::bind(Path::new(socket))?;
    let export = Box::new(OneExport::new(volume, Box::new(device)));
    let server = NbdServer::new(socket, export, SystemClock::handle(), NbdOptions::default())?;
    let stopper = server.stopper();
    let serving = thread::spawn(move || server.run().map(drop));
    let mut line = child_socket()?;
    write_words(&mut line, &[1])?;
    // Nothing ever comes; the read ends when the parent closes it.
    let _ = line.read(&mut [0; 1]);
    stopper.notify();
    serving.join().ok().context("the NBD server panicked")??;
    Ok(())
}
