//! Stream sockets of unmodified programs, over shared memory where both ends run on this host with
//! this library; and their files on a node's volume (`files`).
//!
//! Preloaded by `overside run`. The program keeps its real, connected kernel socket. Two rings in a
//! sealed memfd carry the bytes once both ends have met. A *wake byte* on the kernel socket wakes a
//! thread that sleeps on it. What this library does not cover brings the connection back to its
//! kernel socket at a counted position: any doubt means the kernel. docs/reference/sockets.md has
//! the design and the list of what falls back.
//!
//! # The way of a connection
//!
//! - `hooks`: what programs call. `table`, `connection`: which descriptor is which connection.
//! - `name`, `rendezvous`, `peer`: the ends find each other, and whom they trust.
//! - `layout`, `ring`, `rim`: where bytes lie; local memory or RDMA.
//! - `send`, `outgoing`, `receive`, `incoming`: a program's call, and its part under the lock.
//! - `wake`, `wait`, `spin`, `poll`, `epoll`, `sets`: who wakes whom, and how long it pays to
//!   watch.
//! - `state`, `step`: what a connection's life comes to, as one pure function.
//! - `leaving`, `fallback`, `reattach`, `fork`, `end`: back to the kernel, into the rings again,
//!   the end.
//!
//! # Invariants
//!
//! - Modules form the layers listed below, and name none above; tidy's rule `layers` holds that.
//! - The kernel's stream carries bytes, then counted wake bytes, then bytes again. Each end knows
//!   where.
//! - Nothing is printed. No lock is held while a thread sleeps; over a fork all are, in one order.
//! - A sleep that the kernel socket does not end lasts some milliseconds at most.
//! - What the peer writes is checked after it was copied.
//! - Memory for connections and sets comes from the system (`slab`): the program's allocator may be
//!   what called.
//! - Absent on purpose: threads, a daemon, and the heap, but to open a device and for files.
//!
//! `rim` is the one seam between shared memory and RDMA (`remote`). `policy` has what holds for the
//! process. `explore` walks this code in every order up to a bound; `fault` plants faults.
#![deny(unsafe_op_in_unsafe_fn)]
// The hooks are not compiled for unit tests and fuzz targets, where they would replace the test's own system calls.
#![cfg_attr(any(test, fuzzing), allow(dead_code, unused_imports))]
#![cfg_attr(
    not(any(test, fuzzing)),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

// The layers, the lowest first: a module names those of its own layer and of lower ones alone, and none in a circle. `cargo xtask
// tidy` holds it.
// What everything else stands on.
mod diagnosis;
mod errno;
mod fault;
mod iovecs;
mod line;
mod policy;
mod real;
mod slab;
mod word;

// Where words and bytes lie and what they mean, and pure decisions.
mod count;
mod layout;
mod leaving;
mod lock;
mod state;
mod step;
mod wake;

// The system, time, and who sleeps.
mod futex;
mod kernel;
mod name;
mod oversubscription;
mod own;
mod peer;
mod sleepers;
mod spin;

// The two ways to keep words and bytes true, behind one seam.
/// For the fuzz targets: what another host may send or write.
pub mod remote;
mod rim;
mod ring;

// Connections: which descriptor is which.
mod connection;
mod report;
mod table;

// Who is woken, and how.
mod drain;
mod eventfd;
mod sets;

// Into the rings, bytes in and out under the lock, and back to the kernel.
mod fallback;
mod incoming;
mod outgoing;
mod reattach;
mod rendezvous;
mod settle;

// Files on a volume, which stand apart from connections.
mod files;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use files::{fuzz_placeholder, seeds_placeholder};

// What programs do, without the lock: waits, loops, ends and forks.
mod end;
mod epoll;
mod fork;
mod poll;
mod ready;
mod receive;
mod send;
mod wait;

// What programs call.
#[cfg(not(any(test, fuzzing)))]
mod hooks;

#[cfg(test)]
mod explore;
