//! The table protocol over a client's link: requests out, replies in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_service::client::{self, Arrived, LinkError, LinkOptions, Received};
use overside_verbs::{Loan, Provider, Readable, Remote};

use super::puts::PUTS_AHEAD;
use super::{ClientError, ClientOptions};
use crate::wire::{self, Features, Reply, Request};

/// A link whose two sides have said Hello.
#[derive(Debug)]
pub(crate) struct Link {
    link: client::Link,
    server_pid: u32,
    /// What both sides can do.
    features: Features,
    /// Bytes of a receive buffer.
    buffer_bytes: usize,
}

impl Link {
    pub(crate) fn connect(
        provider: Arc<dyn Provider>,
        name: &str,
        options: ClientOptions,
    ) -> Result<Link, ClientError> {
        let defaults = LinkOptions::default();
        let block_bytes = options.block_bytes as u32;
        let lent_bytes = if provider.capabilities().lends { options.lent_bytes } else { 0 };
        let options = LinkOptions {
            buffer_bytes: options.block_bytes.max(lent_bytes),
            buffers: options.blocks,
            posted: options.posted.unwrap_or(defaults.posted),
            timeout: options.timeout,
            transmits: PUTS_AHEAD + 2,
            loans: true,
            ..defaults
        };
        let link = client::Link::connect(provider, name, options)?;
        let buffer_bytes = options.buffer_bytes;
        let mut link = Link { link, server_pid: 0, features: Features::default(), buffer_bytes };
        let hello = Request::Hello { version: wire::VERSION, block_bytes, features: Features::ALL };
        match link.call(&hello).map_err(unheard)? {
            Reply::Hello { version: wire::VERSION, pid, features, .. } => {
                (link.server_pid, link.features) = (pid, features.and(Features::ALL));
            }
            other => return Err(ClientError::unexpected(&other)),
        }
        Ok(link)
    }

    /// How long a server may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.link.timeout()
    }

    /// The time.
    pub(crate) fn now(&self) -> Instant {
        self.link.clock().now()
    }

    pub(crate) fn server_pid(&self) -> u32 {
        self.server_pid
    }

    /// What both sides can do.
    pub(crate) fn features(&self) -> Features {
        self.features
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn call(&mut self, request: &Request<'_>) -> Result<Reply, ClientError> {
        let number = self.send(request)?;
        self.reply(number)
    }

    /// Sends a request; its number.
    pub(crate) fn send(&mut self, request: &Request<'_>) -> Result<u32, ClientError> {
        Ok(self.link.send(|body| wire::append(body, request))?)
    }

    /// The next message, which must be the reply to `number`.
    pub(crate) fn reply(&mut self, number: u32) -> Result<Reply, ClientError> {
        match wire::decode_body(self.link.reply(number)?.body())? {
            Reply::Fault(fault) => Err(ClientError::Refused { code: fault.code, text: fault.text }),
            reply => Ok(reply),
        }
    }

    /// The next message, whole, or where it lies.
    pub(crate) fn message_or_loan(&mut self) -> Result<Arrived, ClientError> {
        Ok(self.link.message_or_loan()?)
    }

    /// Bytes of a message that may be lent.
    pub(crate) fn lent_bytes_max(&self) -> u32 {
        u32::try_from(self.buffer_bytes).unwrap_or(u32::MAX)
    }

    /// The loan that comes next, if it is known by now.
    pub(crate) fn next_loan(&self) -> Option<&Loan> {
        self.link.next_loan()
    }

    /// Reads bytes from a place of what the server granted.
    pub(crate) fn read(&mut self, remote: Remote<Readable>, at: u64, out: &mut [u8]) -> Result<(), ClientError> {
        let part = remote.part(at, out.len() as u64).map_err(LinkError::from)?;
        Ok(self.link.read(part, out)?)
    }

    /// Lets others go on for a while.
    pub(crate) fn pause(&self, time: Duration) {
        let clock = self.link.clock();
        // A wait that fails is none.
        let _ = clock.wait(&[], clock.now().checked_add(time));
    }

    /// The next message, whole.
    pub(crate) fn message(&mut self) -> Result<Received, ClientError> {
        Ok(self.link.message()?)
    }
}

/// Why there was no Hello. Servers of versions before 4 close such a connection without a word.
fn unheard(error: ClientError) -> ClientError {
    let ClientError::Link(LinkError::Disconnected { status, reason }) = error else { return error };
    let reason = format!(
        "{reason}, without a word on Hello; is this a node of volumes, or a server older than version 4 of the protocol?"
    );
    ClientError::Link(LinkError::Disconnected { status, reason })
}
