//! What lies in the arena: leaf pages and delta records.
//!
//! Everything in here is plain bytes with page-relative offsets, so a page is at once the tree's
//! leaf and the wire format of the `delta` mode. [`Leaf::parse`] and [`DeltaRecord::parse`] take
//! bytes from a hostile peer. No accessor of theirs panics or reads outside them, whatever the
//! bytes say.

mod build;
mod delta;
mod key;
mod layout;
mod leaf;
pub(crate) mod prefetch;
mod search;
mod verify;

pub use build::{BuildError, LeafBuilder};
pub(crate) use build::{Fences, Fill, Layout, MAX_KEY, Piece, cuts, rebase_overflow, row_of, split_pieces, write_page};
pub use delta::{DELTA_HEADER, DeltaHeader, DeltaRecord, Op};
pub(crate) use delta::{Draft, POSITION_EXACT, record_len};
pub use key::KeyParts;
pub(crate) use key::{head_of, order};
pub use layout::{HEADER_BYTES, HINT_STRIDE, Malformed};
pub(crate) use layout::{NO_PAGE, page_len, set_link};
pub use leaf::{Leaf, OverflowRef, Rest, Sections};
pub(crate) use verify::ensure;
