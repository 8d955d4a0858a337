//! What a request and its reply take without any work between them: a service that answers as many
//! bytes as it is asked for, by the same workers, connections and buffers as a table's.

use crate::{
    figures::Over,
    process::{Process, child_socket, read_word, write_words},
    rendezvous::Rendezvous,
};
use anyhow::{Context as _, Result, ensure};
use overside::{
    service::{
        BadMessage, Context, Listening, Server, ServiceOptions, Session, System,
        client::{Link, LinkOptions},
    },
    table::wire::{BLOCK_BYTES, REQUEST_BYTES_MAX},
};
use std::{ffi::OsString, io::Read, os::unix::net::UnixStream, sync::Arc};

/// The service in a process of its own, and a connection to it.
pub(in crate::figures) struct Echo {
    link: Link,
    _process: Process,
    /// It ends when this is closed.
    _line: UnixStream,
}

impl Echo {
    pub(in crate::figures) fn start(over: &Over) -> Result<Echo> {
        let rendezvous = over.rendezvous()?;
        let words = [super::ECHO, &rendezvous.to_string()];
        let (process, mut line) = Process::start("echo server", super::ROLE, &words, None)?;
        read_word(&mut line).context("the echo server ended; its last words are above")?;
        let link = Link::connect(rendezvous.provider()?, rendezvous.address.name(), LinkOptions::default())?;
        Ok(Echo { link, _process: process, _line: line })
    }

    /// Sends a request whose body has `asks` bytes, and waits for a reply whose body has `gets`.
    pub(in crate::figures) fn exchange(&mut self, asks: usize, gets: usize) -> Result<()> {
        let number = self.link.send(|body| {
            let whole = body.len() + asks;
            body.extend_from_slice(&(gets as u32).to_le_bytes());
            body.resize(whole, 0);
        })?;
        let reply = self.link.reply(number)?;
        ensure!(reply.body().len() == gets, "an echo of {} bytes, not {gets}", reply.body().len());
        Ok(())
    }
}

/// The process itself.
pub(super) fn serve(arguments: &[OsString]) -> Result<()> {
    let rendezvous = Rendezvous::from_arguments(arguments)?;
    let listening = Listening::open(rendezvous.provider()?, &[rendezvous.address.name()])?;
    // As a table server has it, which matters where a reply is longer than a small buffer.
    let options =
        ServiceOptions { buffer_bytes: BLOCK_BYTES, request_bytes_max: REQUEST_BYTES_MAX, ..ServiceOptions::default() };
    let server = Server::start(vec![(listening, Arc::new(Echoing))], options)?;
    let mut line = child_socket()?;
    write_words(&mut line, &[0])?;
    // Nothing ever comes; the read ends when the parent closes it.
    let _ = line.read(&mut [0; 1]);
    server.shutdown();
    Ok(())
}

#[derive(Debug)]
struct Echoing;

struct Echoes;

impl System for Echoing {
    type Session = Echoes;

    fn session(self: &Arc<Self>) -> Echoes {
        Echoes
    }

    fn unfinished(&self, _body: &mut Vec<u8>) {}
}

impl Session for Echoes {
    fn opened(&mut self, context: &mut Context<'_>) {
        context.admit();
    }

    fn request(&mut self, context: &mut Context<'_>, number: u32, body: &[u8]) -> Result<(), BadMessage> {
        let (bytes, _) = body.split_first_chunk().ok_or(BadMessage("no length"))?;
        let bytes = u32::from_le_bytes(*bytes) as usize;
        if bytes > REQUEST_BYTES_MAX {
            return Err(BadMessage("an echo that is too long"));
        }
        context.reply(number, |reply| reply.resize(reply.len() + bytes, 0));
        Ok(())
    }
}
