//! A lock-free Bw-tree whose leaves can be transmitted as they lie.
#![deny(unsafe_code)]

mod account;
mod alloc;
mod arena;
mod consolidate;
mod core;
mod cursor;
mod descend;
mod epoch;
mod inner;
mod merge;
mod options;
pub mod page;
mod pinned;
mod rows;
mod segments;
mod slab;
mod split;
#[cfg(all(test, not(shuttle)))]
mod stall;
mod stats;
mod store;
mod sync;
mod transmit;
mod tree;
mod write;

pub use account::PinAccount;
pub use arena::{Arena, Exhausted, HeapArena};
pub use cursor::{Direction, Pages};
pub use epoch::Stall;
pub use options::{Error, Options};
pub use page::{DeltaRecord, KeyParts, Leaf, LeafBuilder, Malformed, Op, OverflowRef, Rest};
pub use pinned::{DeltaRef, PinnedPage, Row};
pub use rows::{Range, Rows, Run, Runs};
pub use segments::{SegmentArena, SegmentObserver};
pub use stats::Stats;
pub use tree::Tree;
