//! Rows: a prefix of fixed length, and a rest of variable length.
//!
//! ```text
//! prefix   null bits (one a nullable column, 1 = null) | fixed-width columns, packed, in the schema's order
//! rest     u32 end offset a variable column | their bytes          (absent when the schema has none)
//! ```
//!
//! Everything is little-endian. End offsets count from the first byte after them; the last one is
//! the length of the bytes. A null column keeps its place: zeros in the prefix, no bytes in the
//! rest. All columns are in the value, the key's too, so an answer to a scan need not carry keys.
//!
//! [`RowLayout`] holds the offsets, computed once. [`RowBuilder`] writes a row without allocating.
//! [`RowView`] reads one where it lies, in memory of one's own or in a peer's ([`Bytes`]), and is
//! total on bytes that a hostile peer wrote.

mod builder;
mod bytes;
mod layout;
mod value;
mod view;

pub(crate) use builder::blank_value;
pub use builder::{BuildError, RowBuilder};
pub use bytes::Bytes;
pub use layout::{ColumnLayout, NullBit, RowLayout, RowPart};
pub use value::{Value, ValueRef};
pub use view::{Malformed, RowView};

#[cfg(test)]
pub(crate) mod tests;
