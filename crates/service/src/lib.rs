//! What every server needs and no server should write twice: listeners, admission, workers,
//! sessions, requests that finish later, windows, deadlines; and the client's link.
//!
//! A system plugs in by two traits. A [`System`] is shared by all threads of a [`Server`] and makes
//! a [`Session`] for each connection. The data's way through them:
//!
//! ```text
//! accepting thread   verbs::Listener → a permit (or none: turned away) → a worker, in turn
//! worker             RECV completes → envelope: number and body → Session::request
//! session            Context::reply     the answer, now
//!                    Context::hold      the answer, now, but sent once a log has come so far
//!                    Context::later     a Ticket: the answer comes later, from any thread
//!                    Context::attend    the worker itself goes on with what ends them, a disk say
//!                    Context::stream    more messages than one: Session::produce is asked for the
//!                                       next as long as the connection's window has room
//! worker             outbox → SENDs, up to the window → completions release what they held
//! ```
//!
//! Worker and connection are generic over the system, so a request costs no virtual call.
//! [`Context`] and [`Ticket`] are plain types that know no system. Trait objects stand where a call
//! is rare: [`Threads`], notices, and the provider with its clock.
//!
//! A session that breaks the protocol ([`BadMessage`]) loses its connection and nothing else. What
//! a client can keep of the server is bounded: messages and bytes that wait for it, requests that
//! are unfinished, transmit buffers, and the time for which it may take nothing.
//!
//! # The way through the files
//!
//! - `system`, `options`, `threads`: what a system implements and how a server is set up. `accept`,
//!   `state`, `dial`: connections in and out.
//! - `envelope`, `part`: what every message begins with; what is longer than a buffer.
//! - `worker`, `stepped`: requests in, streams asked for messages; a server without threads.
//! - `context`, `ticket`, `ordered`, `hold`, `carry`, `attended`: answers now, later, in order,
//!   once a log has come so far, or once a disk has ended something.
//! - `connection`, `transmit`, `latency`, `notices`: outbox and window, transmit buffers,
//!   histograms, what the operator learns. `client`: the other end's link.
//!
//! # Invariants
//!
//! - A worker waits for no peer. A client harms its own connection only.
//! - What waits for a client is bounded by number and bytes, for one and for all of a worker.
//! - A dropped [`Ticket`] answers with the system's fault; one whose connection ended does nothing.
//! - A lent message counts in the window until it is returned. A client that keeps one past the
//!   deadline loses its connection.
//! - A worker that panics costs its clients their connections and begins anew, unless the system
//!   does not outlive a panic within a change: then the server ends.
//! - Absent on purpose: tables; an async runtime; a retry.

#![forbid(unsafe_code)]

mod accept;
mod attended;
mod carry;
pub mod client;
mod connection;
mod context;
mod dial;
mod envelope;
#[cfg(shuttle)]
pub mod explored;
mod hold;
mod latency;
mod notices;
mod options;
mod ordered;
mod part;
mod server;
mod state;
mod stepped;
mod sync;
mod system;
mod threads;
mod ticket;
mod transmit;
mod worker;

pub use accept::Listening;
pub use attended::{Attended, Going};
pub use context::Context;
pub use dial::Dialer;
pub use envelope::{BadMessage, CONTROL_HEADER, CONTROL_MAGIC, MessageKind, PART_MAGIC, kind, message, open};
pub use hold::{Carrier, Hold, Watermarks};
pub use latency::{Latencies, Latency};
pub use notices::{Notices, OnFailure};
pub use options::{ServiceOptions, TransmitOptions};
pub use part::{ASSEMBLY_BYTES_MAX, Assembly, PART_HEADER, cut};
pub use server::Server;
pub use state::Statistics;
pub use stepped::Stepped;
pub use system::{Produced, Session, System};
pub use threads::{Running, SystemThreads, Threads};
pub use ticket::{RequestOrder, SessionWaker, Ticket};
pub use transmit::{Message, Taken};
