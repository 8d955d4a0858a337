//! Queue pairs on a real RDMA device, by libibverbs.
//!
//! The library is loaded when the first provider is made: nothing is needed to build this crate,
//! nor to run a program that holds it where there is no device. [`devices`] says what was found
//! and, if nothing, why.
//!
//! A connection is a TCP connection (the *side channel*) and reliable-connected queue pairs. The
//! side channel carries the greeting, the queue pairs' numbers and the end; its own end is how the
//! death of a peer is noticed at once. Everything else goes through the device.
//!
//! # The way of one message
//!
//! - [`devices`], `library`, `ffi`, `device`: what there is. `provider`, `limits`: what it can do.
//! - `registry`, `token`: what may be touched, and by which key.
//! - `handshake`, `channel`, `messages`, `said`: the side channel. `process`: a peer's end on
//!   this host.
//! - Out: `port`, `translate` (a request in the device's words), `segments`, `bounce`, `pair`.
//! - In: `receives`, `completions`, `status` (the device's errors in ours).
//!
//! # Two queue pairs for one
//!
//! A queue pair of the device takes its receives from a queue of its own or from a shared one,
//! which is settled when it is made. A queue pair of [`overside_verbs`] may do both. So a
//! connection one of whose ends has a shared receive queue is two queue pairs, one of either kind.
//! The receiver says which it uses as soon as it posts its first receive; until then there is no
//! receive that a message could meet, and messages wait at their sender.
//!
//! [`Wire`] is a queue pair without all that: it writes and reads the memory of one peer, for who
//! brings the connection.
//!
//! Completions keep the order of posting because only one of the two is in use at a time.
//!
//! # Invariants
//!
//! - A queue pair is destroyed before what was pending on it is reported as flushed, so the device
//!   touches nothing afterwards.
//! - A segment is deregistered when no request in flight names it. Device and processor never mix
//!   atomics.
//! - A forked child keeps the side channel open, so on one host the peer's process is watched too.
//! - The classic `ibv_post_send` is used on purpose: a soft-RoCE driver sends wrong bytes by the
//!   extended calls.
//!
//! # Known gaps
//!
//! - Where an end has a shared queue, a message posted before its receiver's first receive waits
//!   for its sender's next call.
//! - A receive of the shared queue that a connection has begun to fill when it ends may stay with
//!   the device until the port ends. Waiting for the queue pair's last word could not be shown to
//!   work on soft-RoCE.
//! - Absent on purpose: names of hosts; tags and secrecy of what the device sends.
#![deny(unsafe_op_in_unsafe_fn)]

mod address;
mod bounce;
mod channel;
mod completions;
#[cfg(test)]
mod corpus;
mod device;
#[cfg(test)]
mod fake;
mod ffi;
mod handshake;
#[cfg(test)]
mod header;
mod library;
mod limits;
mod messages;
mod objects;
mod pair;
#[cfg(any(test, fuzzing))]
pub mod parts;
mod port;
mod process;
mod provider;
mod receives;
mod registry;
mod said;
mod segments;
mod status;
mod token;
mod translate;
mod wire;

pub use device::{Device, DevicePort, devices};
pub use provider::{IbvProvider, Options};
pub use wire::{Card, Down, Nic, Wire};
