//! Queue pairs between hosts, over TCP: one connection each.
//!
//! The sender's gather list becomes an iovec, small pieces of it copied together. A message goes
//! into its posted buffer straight from the kernel. It travels only when the receiver has granted
//! it a receive (`credits`). So the reader of a socket always has a place for what is in it, and no
//! peer makes this process keep bytes that were not asked for. A SEND or WRITE completes when the
//! peer's provider says that it has placed it.
//!
//! # The way of one request
//!
//! - `handshake`, `address`, `options`: who is there. `registry`: what may be touched.
//! - `port`, `engine`, `progress`: completion queue and queue pairs; a thread that stands in
//!   while the owner does not poll.
//! - `conn`: one queue pair. `credits`, `control`, `holding`: what its ends say unasked, and who
//!   waits for company.
//! - Out: `requests`, `outbound`, `stage`, `zerocopy`, `prices`. In: `inbound`; `target` carries
//!   out one-sided operations.
//! - `frame`, `seal`: the wire, and tags. `fate`, `silence`: how it ends, and whose host is gone.
//!
//! # What the key gives, and what it does not
//!
//! Both sides prove that they hold the same key before anything else, and every frame carries a
//! tag. So no stranger connects, injects, changes, reorders or plays back anything. There is **no
//! secrecy**: an observer of the wire reads everything on it. A holder of the key may do all that
//! any peer may. Without a key (loopback only) both ends ask the kernel whose the other is, and
//! take this user's processes only, unless [`Options::anyone`] is set: then every user of this host
//! may connect. With [`Options::mac`] off, who can write to the wire can change what travels on it
//! after the handshake.
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
