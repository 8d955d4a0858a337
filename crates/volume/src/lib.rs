//! Volumes: a database's disk that is elsewhere (vi-attached-storage).
//!
//! Everything that holds blocks is a [`Device`]: memory, a file, an array, a cache, a node's
//! volume, a volume on another host. [`device`] says what each of them owes, sentence by sentence,
//! and the conformance suite holds them to it.
//!
//! | module | what |
//! |---|---|
//! | [`device`] | the trait, requests, completions, and the sentences |
//! | [`files`] | a volume that keeps files: which places of its address space are what |
//! | [`layout`] | which bytes of an array lie on which member; pure |
//! | [`Array`] | a device over devices: one behind the other, or in stripes |
//! | [`Raid`] | the same where one device may be lost: mirrors, and stripes with a parity |
//! | [`Sums`] | a device with a checksum of each block, kept on the device below |
//! | [`Below`] | a device as one that lies over it has it |
//! | [`Overlaps`] | which requests may be under way together |
//! | [`Sectors`] | 512-byte sectors over a device with longer units |
//! | [`Staged`] | requests whose bytes lie in several pieces of memory |
//! | [`MemoryDevice`] | blocks in memory |
//! | [`wire`] | what a client and a node say to each other |
//! | [`client`] | a volume of a node as a device: exactly once, over reconnects |
//!
//! This crate runs inside a preload library too: it has no threads and no files of `std`.
#![forbid(unsafe_code)]

mod array;
mod below;
pub mod client;
pub mod device;
pub mod files;
mod intents;
pub mod layout;
mod memory;
mod mutant;
mod overlaps;
mod raid;
mod scattered;
mod sectors;
mod slots;
mod sums;
mod wait;
pub mod wire;

pub use array::{Array, ArrayError};
pub use below::{Below, watch_all};
pub use device::{Completion, Device, DeviceError, Geometry, Hint, Request, SECTOR_BYTES, Work};
pub use memory::MemoryDevice;
#[cfg(mutants)]
pub use mutant::plant;
pub use overlaps::Overlaps;
pub use raid::{Health, LostRange, MemberState, Raid};
#[doc(hidden)]
pub use raid::{fuzz_intents, fuzz_journal, seeds_intents, seeds_journal};
pub use scattered::{Pieces, Scattered, Staged};
pub use sectors::Sectors;
pub use sums::{SumPlaces, Sums};
pub use wait::{Completions, Waiter, complete, wait};
