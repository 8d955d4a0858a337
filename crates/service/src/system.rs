//! What a system implements to be served.

use std::sync::Arc;

use overside_memory::Buffer;

use crate::context::Context;
use crate::envelope::BadMessage;

/// What is served: shared by all threads of a [`Server`](crate::Server).
pub trait System: Send + Sync + Sized + 'static {
    /// One connection's part of it.
    type Session: Session;

    /// A session for a connection that was accepted.
    fn session(self: &Arc<Self>) -> Self::Session;

    /// Appends the body of the reply to a request whose [`Ticket`](crate::Ticket) was dropped:
    /// a fault of the system's protocol. The client would wait in vain otherwise.
    fn unfinished(&self, body: &mut Vec<u8>);

    /// A buffer that was READ into, or was to be, by a session that has ended.
    fn unread(&self, _buffer: Buffer) {}

    /// Whether a panic of a worker left what the system shares in order, so that the worker may
    /// begin anew. Where it did not, the server cannot go on.
    fn outlives_a_panic(&self) -> bool {
        true
    }
}

/// One connection. Lives on its worker's thread; dropped with its connection.
///
/// An error of a method means that the peer does not speak the protocol: its connection is closed,
/// and nothing else happens.
#[allow(unused_variables)]
pub trait Session: Send + 'static {
    /// A request. It is answered by [`Context::reply`], [`Context::later`] or [`Context::stream`];
    /// a protocol may have requests without an answer.
    ///
    /// # Errors
    /// See [`Session`].
    fn request(&mut self, context: &mut Context<'_>, number: u32, body: &[u8]) -> Result<(), BadMessage>;

    /// Whether a request is carried out at once although an earlier one holds up later ones
    /// ([`RequestOrder::Requests`](crate::Order)): a cancellation, say.
    fn overtakes(&self, body: &[u8]) -> bool {
        false
    }

    /// Sends the next message of the stream that was begun by [`Context::stream`]. Called as long
    /// as the connection's window has room.
    fn produce(&mut self, context: &mut Context<'_>) -> Produced {
        Produced::End
    }

    /// The time set by [`Context::wake_at`] has come, or a [`SessionWaker`](crate::SessionWaker)
    /// was used.
    ///
    /// # Errors
    /// See [`Session`].
    fn woken(&mut self, context: &mut Context<'_>) -> Result<(), BadMessage> {
        Ok(())
    }

    /// The peer's memory was READ ([`Context::read`]).
    ///
    /// # Errors
    /// See [`Session`]; unless said otherwise none is expected.
    fn read(&mut self, context: &mut Context<'_>, id: u64, buffer: Buffer) -> Result<(), BadMessage> {
        Err(BadMessage("memory that nobody asked for"))
    }

    /// The connection is there. The side that opened it sends its first request now.
    fn opened(&mut self, context: &mut Context<'_>) {}

    /// A reply, on a connection that this side opened ([`Dialer`](crate::Dialer)).
    ///
    /// # Errors
    /// See [`Session`]; unless said otherwise no reply is expected.
    fn reply(&mut self, context: &mut Context<'_>, number: u32, body: &[u8]) -> Result<(), BadMessage> {
        Err(BadMessage("a reply to nothing"))
    }

    /// A message that is no reply, on a connection that this side opened.
    ///
    /// # Errors
    /// See [`Session`]; unless said otherwise none is expected.
    fn data(&mut self, context: &mut Context<'_>, message: &[u8]) -> Result<(), BadMessage> {
        Err(BadMessage("a message that is no reply"))
    }

    /// The connection ended, and why. Nothing can be sent any more.
    fn ended(&mut self, why: &str) {}

    /// Called about once a second: time to forget what is no longer needed.
    fn tidy(&mut self) {}
}

/// What [`Session::produce`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Produced {
    /// It sent a message, and there may be more.
    Message,
    /// It has to wait: for a transmit buffer, or until the session is woken.
    Wait,
    /// It sent the last message, if any. Not to be called again.
    End,
}
