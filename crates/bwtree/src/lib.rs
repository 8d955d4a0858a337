//! A lock-free Bw-tree whose leaves can be transmitted as they lie.
#![deny(unsafe_code)]

pub mod page;

pub use page::{DeltaRecord, Leaf, LeafBuilder, Malformed, Op, OverflowRef, Rest};
