//! A world from one seed: it runs shipped code deterministically, so that a failure found once can
//! be seen again.
//!
//! A [`World`] runs real threads of the operating system strictly one at a time. They change hands
//! where the code waits, does I/O or passes a marked point; the seed decides who goes on. Time is
//! virtual: when no thread can run, it jumps to the next deadline. When there is none either, the
//! world ends with [`Failure::Deadlock`], which says who waits for what. The same seed gives the
//! same trace, and its hash tells two traces apart.
//!
//! Shipped code gets the world through traits that it has anyway: time, waits and chance through
//! [`overside_verbs::Clock`], threads through [`overside_service::Threads`]. Threads belong to a
//! [`Process`]. One that is killed is never scheduled again: no destructor runs, as after `kill
//! -9`.
//!
//! What a world cannot see it cannot order. Code that it runs must not sleep, wait or start threads
//! in another way (tidy's rule `sim-safe`), and must not hold a lock where it gives up its turn.
//!
//! ```
//! use std::time::Duration;
//! use overside_sim::World;
//!
//! let ended = World::run(7, |world| {
//!     let process = world.process("clients");
//!     let clock = world.clock();
//!     let sleeper = process.spawn("sleeper", move || clock.sleep(Duration::from_secs(3600)));
//!     sleeper.join().unwrap();
//!     world.passed()
//! });
//! assert!(ended.unwrap().value >= Duration::from_secs(3600));
//! ```
#![forbid(unsafe_code)]

mod chance;
mod clock;
mod disk;
mod process;
mod scheduler;
pub mod seeds;
mod trace;
mod world;

pub use chance::Chance;
pub use disk::{Drive, DriveOptions};
pub use process::{Handle, Killed, Process};
pub use trace::{Event, Trace};
pub use world::{Ended, Failed, Failure, World};
