//! A lock-free Bw-tree whose leaves can be transmitted as they lie (to-copy §4, §5.3-5.5).
//!
//! ```
//! use std::{ops::Bound, sync::Arc};
//! use overside_bwtree::{Direction, HeapArena, Options, Tree};
//!
//! let arena = Arc::new(HeapArena::new(64 << 20)?);
//! let tree = Tree::new(arena, Options { prefix_len: 8, ..Options::default() })?;
//! tree.insert(b"key", b"8 bytes, and whatever else")?;
//! for page in tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward) {
//!     // The page stays where it is, unchanged, until it is dropped: `page.base()` can be sent as it lies.
//!     for row in page.merged() {
//!         assert_eq!((row.key.to_vec(), row.prefix), (b"key".to_vec(), &b"8 bytes,"[..]));
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What lies where
//!
//! - The **mapping table** gives each page number a word. An inner node's word is the address of
//!   an immutable array in private memory. A leaf's word packs where its base page lies in the
//!   arena, where its newest delta lies behind it, and how long the chain is: one compare-and-swap
//!   of the word is every change there is.
//! - A **unit** is one piece of the arena: a base page ([`page`] has the layout) and, behind it,
//!   room into which writers put delta records. A writer claims its bytes with an atomic addition,
//!   writes the record, and publishes it through the word. A full chain (or full room) is
//!   consolidated by the writer who finds it, with his own change included.
//! - **Overflow extents** hold rests above a quarter page; units that refer to one count it.
//! - What is known about units besides their bytes (pins, how much room is claimed, birth) lies
//!   in private tables.
//!
//! # Who may see what, and until when
//!
//! A traversal runs under a guard of the tree's own epoch table; it never spans user code. A guard
//! publishes an *interval* of epochs, so that a thread descheduled inside holds back what lived
//! when it last looked and nothing born later ([`Stats::stall`] names it). Cursors hand out
//! [`PinnedPage`]s: a pin per unit, taken under a guard, released from any thread. A retired unit
//! goes when no guard's interval overlaps its life and its last pin is gone. crossbeam-epoch would
//! hold back everything retired while one guard stalls, and cannot be run under shuttle; hence the
//! table of our own.
//!
//! # Structure changes
//!
//! A split publishes the left half with a side link to the right one, then tells the parent. A
//! merge is marked in the parent, freezes the page, is absorbed by the left neighbour, and is
//! forgotten by the parent. Each step is one compare-and-swap that any thread that comes by carries
//! on, so none waits for another. Index entries point at or left of the right page, never beyond
//! it.
//!
//! # Stamps
//!
//! Trees may share [`Stamps`]. Each change then bears a number, which says in which order changes
//! of its key took place. Each read says up to which number it may have seen. So a log can be
//! written beside the tree without a lock. A tree without them pays nothing.
//!
//! # What it does not do
//!
//! A scan is no snapshot. When the arena is full, deletes still work: a small reserve holds a
//! page's smaller version until the old one is gone. Only if pins, or keys of a length that a page
//! had not before, take more than the reserve has can a delete fail with [`Error::Exhausted`]. The
//! tree does not lose height.
//!
//! # The way through the files
//!
//! - `arena`, `segments`, `alloc`: chunks, spans, slots; the reserve for deletes is `shortage`'s.
//! - `page`: leaf pages and delta records; parsers are total. `store`, `slab`: words, units,
//!   extents.
//! - `descend` finds a leaf; `write`, `consolidate`, `newest`, `batch` change it; `split`, `merge`,
//!   `inner` change the structure.
//! - `pinned`, `pins`, `cursor`, `rows`: scans. `reader`, `copied`: short ranges, copied under the
//!   guard. `transmit`: a pinned page as a `View`.
//! - `epoch`, `account`, `stats`: who holds memory back. `stamps`, `stamped`: the order of changes.
//! - `adopt`: a tree made of a checkpoint's leaves, checked row by row. `mutants`: planted faults.
//!
//! A published page never changes. Absent on purpose: the network, types, locks on the read path.
#![deny(unsafe_code)]

mod account;
mod adopt;
mod alloc;
mod arena;
mod batch;
mod consolidate;
mod copied;
mod core;
mod cursor;
mod descend;
mod epoch;
mod inner;
mod merge;
#[cfg(mutants)]
pub mod mutants;
mod newest;
mod open;
mod options;
pub mod page;
mod pinned;
mod pins;
mod reader;
mod rows;
mod segments;
mod shortage;
mod slab;
mod split;
#[cfg(all(test, not(shuttle)))]
mod stall;
mod stamped;
mod stamps;
mod stats;
mod store;
mod sync;
mod transmit;
mod tree;
mod waits;
mod walk;
mod write;

pub use account::PinAccount;
pub use adopt::{AdoptError, AdoptLeaf, Adoption, LeafRun};
pub use arena::{Arena, Exhausted, HeapArena};
pub use batch::Put;
pub use copied::Copied;
pub use cursor::{Direction, Pages};
pub use epoch::Stall;
pub use open::Opening;
pub use options::{Error, Options};
pub use page::{DeltaRecord, KeyParts, Leaf, LeafBuilder, Malformed, Op, OverflowRef, Rest};
pub use pinned::{DeltaRef, PinnedPage, Row};
pub use reader::Reader;
pub use rows::{Range, Rows, Run, Runs};
pub use segments::{SegmentArena, SegmentObserver};
pub use stamped::Changes;
pub use stamps::{Stamps, Writing};
pub use stats::Stats;
pub use tree::Tree;
pub use waits::{System as SystemWaits, Waits};
pub use walk::{Reads, Walk, WalkError, Walked};
pub use write::ChangeOutcome;
