//! Stream sockets of unmodified programs, over shared memory where both ends run on this host with this library.
//!
//! Preloaded by `overside run`. The program keeps its real, connected kernel socket; two rings in a sealed memfd carry the
//! bytes once both ends have met, and a *wake byte*, one byte on the kernel socket, wakes whoever sleeps on it. Whatever this
//! library does not cover brings the connection back to its kernel socket at a counted position: any doubt means the kernel. docs/sockets.md has the design and the list of what falls back.
//!
//! Read in the order of a connection's life: `hooks` (what programs call), `table` and `connection` (which descriptor is
//! which connection), `rendezvous` (the ends find each other), `layout` and `ring` (where bytes lie), `wake`, `send`,
//! `receive`, `wait`, `poll` and `epoll`, `leaving` and `fallback` (back to the kernel), `reattach` (and into the rings once more), `end`.
#![deny(unsafe_op_in_unsafe_fn)]
// The hooks are not compiled for unit tests and fuzz targets, where they would replace the test's own system calls.
#![cfg_attr(any(test, fuzzing), allow(dead_code, unused_imports))]
#![cfg_attr(
    not(any(test, fuzzing)),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod connection;
mod count;
mod diagnosis;
mod end;
mod epoll;
mod errno;
mod eventfd;
#[cfg(test)]
mod explore;
mod fallback;
mod fault;
mod fork;
mod futex;
#[cfg(not(any(test, fuzzing)))]
mod hooks;
mod iovecs;
mod kernel;
mod layout;
mod leaving;
mod lock;
mod name;
mod oversubscription;
mod own;
mod peer;
mod poll;
mod ready;
mod real;
mod reattach;
mod receive;
#[cfg(not(fuzzing))]
mod remote;
/// For the fuzz targets: nothing else of the library is there.
#[cfg(fuzzing)]
pub mod remote;
mod rendezvous;
mod report;
mod resend;
mod rim;
mod ring;
mod send;
mod settle;
mod slab;
mod sleepers;
mod spin;
mod state;
mod step;
mod table;
mod wait;
mod wake;
mod word;
