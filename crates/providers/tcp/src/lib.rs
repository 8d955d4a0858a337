//! Queue pairs between hosts, over TCP: one connection each.
//!
//! The sender's gather list becomes an iovec, small pieces of it copied together, and a message goes into its posted buffer straight from the kernel. A message
//! travels only when the receiver has granted it a receive (`credits`), so whoever reads a socket always has a place for what is
//! in it: answers and acknowledgements never wait behind a message that nobody wants, and no peer makes this process
//! keep bytes that nobody asked for. A SEND or WRITE completes when the peer's provider says that it has placed it.
//!
//! In the order in which a request meets them: `handshake` (who is there, by `verbs::handshake`), `port` and `engine` (completion queue, queue
//! pairs), `conn` (one of them), `control` (what its ends tell each other unasked), `holding` (who waits for company), `requests` → `outbound`, `stage`, `prices` (out), `inbound` (in) → `target` (one-sided operations,
//! carried out here), `frame` (the wire), `seal` (tags), `progress` (a thread that stands in while nobody polls), `silence` (whose host is gone).
//!
//! **What the key gives, and what it does not.** Both sides prove that they hold the same key
//! before anything else, and every frame carries a tag, so nobody without the key connects,
//! injects, changes, reorders or plays back anything. There is **no secrecy**: whoever sees the
//! wire reads everything on it. Whoever has the key may do all that any peer may. Without a key
//! (loopback only) both ends ask the kernel whose the other is, and take this user's processes
//! only, unless [`Options::anyone`] is set: then every user of this host may connect. With
//! [`Options::mac`] off, whoever can write to the wire can change what travels on it after the
//! handshake.
//!
//! # Invariants
//!
//! - A word about a request counts once the request has left. A message travels only when a receive
//!   is kept for it, so a socket is never left unread.
//! - What a peer can make this process keep is bounded by what was posted.
//! - A message waits for company only behind one under way, and while a thread looks, so it leaves
//!   though its owner never calls in again.
//! - No byte of a WRITE is placed before its tag was checked. Its last aligned word is stored last.
//! - Memory that the kernel may still send from is not given back.
//! - A peer that breaks the protocol, or stops within a frame, is disconnected alone, and the
//!   operator learns why.
//!
//! docs/design/004-tcp-credits.md has the reasons, and what a shared receive queue costs here.
#![deny(unsafe_op_in_unsafe_fn)]

mod address;
mod conn;
mod control;
#[cfg(test)]
mod corpus;
mod credits;
mod engine;
mod fate;
mod frame;
mod handshake;
mod holding;
mod inbound;
mod options;
mod outbound;
#[cfg(any(test, fuzzing))]
pub mod parts;
mod port;
mod prices;
mod progress;
mod provider;
mod registry;
mod requests;
mod seal;
mod silence;
mod stage;
mod target;
#[cfg(any(test, fuzzing))]
mod two_ends;
mod watch;
mod zerocopy;

pub use options::Options;
pub use provider::TcpProvider;
