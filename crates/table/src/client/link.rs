//! The table protocol over a client's link: requests out, replies in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_service::client::{self, LinkError, LinkOptions, Received};
use overside_verbs::Provider;

use super::batch::RowBatch;
use super::{ClientError, ClientOptions};
use crate::wire::{self, Applied, FAILED_MAX, Features, PutMode, Reply, Request};

/// A link whose two sides have said Hello.
#[derive(Debug)]
pub(crate) struct Link {
    link: client::Link,
    server_pid: u32,
    /// What both sides can do.
    features: Features,
}

impl Link {
    pub(crate) fn connect(
        provider: Arc<dyn Provider>,
        name: &str,
        options: ClientOptions,
    ) -> Result<Link, ClientError> {
        let defaults = LinkOptions::default();
        let options = LinkOptions {
            buffer_bytes: options.block_bytes,
            buffers: options.blocks,
            posted: options.posted.unwrap_or(defaults.posted),
            timeout: options.timeout,
            ..defaults
        };
        let link = client::Link::connect(provider, name, options)?;
        let mut link = Link { link, server_pid: 0, features: Features::default() };
        let block_bytes = options.buffer_bytes as u32;
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

    /// The next message, whole.
    pub(crate) fn message(&mut self) -> Result<Received, ClientError> {
        Ok(self.link.message()?)
    }

    /// Puts a batch, a few requests ahead of their replies.
    pub(crate) fn put(&mut self, table: u32, mode: PutMode, batch: &RowBatch) -> Result<Applied, ClientError> {
        let mut total = Applied::default();
        let mut waiting = VecDeque::new();
        let mut requests = batch.requests();
        loop {
            if waiting.len() < PUTS_AHEAD
                && let Some((rows, range)) = requests.next()
            {
                let sent = self.send(&Request::Put { table, mode, rows });
                waiting.push_back((sent.map_err(|e| partly(e, &total, batch))?, range));
                continue;
            }
            let Some((number, range)) = waiting.pop_front() else { return Ok(total) };
            match self.reply(number) {
                Ok(Reply::Applied(applied)) if is_of(&applied, range.end - range.start) => {
                    add(&mut total, applied, range.start);
                }
                Ok(other) => return Err(ClientError::unexpected(&other)),
                Err(error) => return Err(partly(error, &total, batch)),
            }
        }
    }
}

/// Why there was no Hello. Servers of versions before 4 close such a connection without a word.
fn unheard(error: ClientError) -> ClientError {
    let ClientError::Link(LinkError::Disconnected { status, reason }) = error else { return error };
    let reason = format!("{reason}, without a word on Hello; is the server older than version 4 of the protocol?");
    ClientError::Link(LinkError::Disconnected { status, reason })
}

/// Whether a batch of so many rows can have had this outcome.
fn is_of(applied: &Applied, rows: u64) -> bool {
    let named = applied.failed.iter().all(|(at, _)| *at < applied.rows);
    u64::from(applied.rows) <= rows && applied.applied <= applied.rows && applied.replaced <= applied.applied && named
}

fn add(total: &mut Applied, part: Applied, first: u64) {
    total.rows += part.rows;
    total.applied += part.applied;
    total.replaced += part.replaced;
    let room = FAILED_MAX.saturating_sub(total.failed.len());
    total.failed.extend(part.failed.into_iter().take(room).map(|(at, code)| (first as u32 + at, code)));
}

fn partly(error: ClientError, total: &Applied, batch: &RowBatch) -> ClientError {
    match error {
        ClientError::Link(LinkError::Disconnected { .. }) if total.rows > 0 => {
            ClientError::Partly { acknowledged: u64::from(total.rows), rows: batch.len() as u64 }
        }
        other => other,
    }
}

/// Requests of a batch that wait for their replies at once.
const PUTS_AHEAD: usize = 4;
