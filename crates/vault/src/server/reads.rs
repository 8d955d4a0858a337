//! WRITEs whose bytes the node reads from the client's memory.
//!
//! Until its bytes are here, such a WRITE has not come: nothing is admitted, fenced or answered
//! before. So a client that is away, or slow, delays nobody who waits for what was admitted.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use overside_service::{BadMessage, Context};
use overside_verbs::{Readable, Remote, RemoteToken};
use overside_volume::wire::RequestHeader;

use super::blocks::Blocks;

/// Those of one connection.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// By the READ's number.
    under_way: BTreeMap<u64, RequestHeader>,
    /// They wait for others, or for a buffer.
    waiting: VecDeque<(RequestHeader, RemoteToken)>,
    next: u64,
}

impl Reads {
    /// A WRITE comes, of a client that may have so many.
    pub(super) fn ask(
        &mut self,
        request: RequestHeader,
        token: RemoteToken,
        requests_max: usize,
    ) -> Result<(), BadMessage> {
        if self.under_way.len() + self.waiting.len() >= requests_max {
            return Err(BadMessage("more requests in flight than there are credits"));
        }
        self.waiting.push_back((request, token));
        Ok(())
    }

    /// Begins what there is room for. The session is woken for the rest.
    pub(super) fn begin(&mut self, context: &mut Context<'_>, blocks: &Blocks) {
        while self.under_way.len() < UNDER_WAY_MAX
            && let Some((request, token)) = self.waiting.front().copied()
        {
            let Some(buffer) = blocks.take_to_read() else {
                return context.wake_at(context.clock().now() + LOOK_AGAIN);
            };
            self.waiting.pop_front();
            self.under_way.insert(self.next, request);
            context.read(self.next, buffer, Remote::<Readable>::new(token));
            self.next += 1;
        }
    }

    /// The bytes of which WRITE have come.
    pub(super) fn ended(&mut self, number: u64) -> Option<RequestHeader> {
        self.under_way.remove(&number)
    }
}

/// READs of one connection at a time: each takes no longer than a copy, and clients that
/// are slow have few buffers.
const UNDER_WAY_MAX: usize = 16;
/// While all buffers are in use.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
