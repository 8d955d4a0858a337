//! Queue pairs between processes of one host, over shared memory.
//!
//! The receiver plays the NIC. Each side writes only memory of its own: a small *control memory*
//! per connection (its send ring, what it has consumed of the peer's, whether it sleeps) and the
//! segments it sends from. The peer maps both read-only. A SEND is therefore one copy, made by the
//! receiver from the sender's registered memory straight into the posted buffer, and the sender's
//! processor stays out of it. Where both ends agree on a loan it is no copy at all: the receiver's
//! user reads the bytes where they lie. The exception are windows, which their owner made for peers
//! to write: WRITE and atomics go there directly, by the initiator, so a target that never calls in
//! makes no difference.
//!
//! # The way of one message
//!
//! - [`address`](mod@address), `listener`, `handshake`: who is there. `channel`, `messages`,
//!   `socket`: the socket between two processes, for file descriptors and doorbells.
//! - `registry`, `grants`, `local`, `peer_memory`: what may be touched. `mappings`, `closing`:
//!   what a peer makes this process keep.
//! - Out: `port`, `pair`, `send`, `producer`, `ring`. In: `consumer` (copies out, then checks),
//!   `receive`.
//! - `regions`: one descriptor for many messages. `lending`, `borrowing`: messages that are read
//!   where they lie.
//! - `one_sided`, `bounce`: WRITE, READ and atomics; memory that no peer can map.
//! - `doorbell`, `watch`, `fate`: no wake-up is lost; how it ends.
//!
//! # Who may read what
//!
//! **A registered segment is readable whole by every connected peer** it was
//! sent from or granted to. Peers run under the same user; the system vouches for that.
//!
//! Polling many connections: a port polls the memory of its *hot* queue pairs only. A queue pair
//! that stays idle beside others turns cold: it raises its `armed` word. Its peer then sends a byte
//! over the socket with the next thing it publishes, and the port's epoll descriptor shows that.
//! Now and then while polling, one look at epoll finds those. So a thousand idle connections cost
//! what one epoll costs.
//!
//! # Invariants
//!
//! - Whatever a peer writes where it can write, only its own connection suffers. What it passes is
//!   asked for its seals and nothing else, since a file's server may answer every other question.
//! - A memory is of one class for all peers, readable or writable too, because a holder of a
//!   writable memory file can open it again.
//! - An idle port costs no processor time. A polling port looks at its hot queue pairs, and at all
//!   else every sixteenth time.
//! - Files that a peer passed are closed by threads made for it: a socket's close waits as long as
//!   its sender wished, and its unread messages are closed with it.
//!
//! docs/design/003-shared-memory.md has the reasons.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod address;
mod borrowing;
mod bounce;
mod channel;
mod closing;
mod consumer;
mod control;
#[cfg(test)]
mod corpus;
mod distance;
mod doorbell;
mod fate;
mod grants;
mod handshake;
mod lending;
mod listener;
mod local;
#[cfg(test)]
mod mangled;
mod mappings;
mod messages;
mod one_sided;
mod pair;
#[cfg(any(test, fuzzing))]
pub mod parts;
mod peer_memory;
mod port;
mod producer;
mod provider;
mod receive;
mod regions;
mod registry;
mod ring;
mod send;
mod socket;
mod watch;

pub use provider::{Options, ShmProvider};
