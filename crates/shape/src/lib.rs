//! Which bytes: pure geometry of a transfer, without memory, device or I/O.
//!
//! A [`Shape`] says which bytes of some memory are sent, as offsets from that memory's start, in
//! which order, and where messages end. It takes the place of a gather list (d-rdma §3 DR-M01).
//! Periods, bitmaps, row offsets and sets of them say by rule what a list would spell out. So a
//! shape stays small whatever it describes. Its fragments are produced by iteration and never
//! stored.
//!
//! | kind | declared by | a message is |
//! |---|---|---|
//! | contiguous | [`Shape::contiguous`], [`Shape::column`] | all of it; a value of the column |
//! | strided | [`Shape::strided`], [`Shape::nested`], [`Shape::every`] | a period (DR-M07) |
//! | listed | [`Shape::list`] | all of it |
//! | bitmapped | [`Shape::bitmapped`] | a set row across all columns (DR-M18) |
//! | mapped | [`Shape::mapped`] | a row (DR-M17) |
//! | variable | [`Shape::variable`] | a value |
//! | set | [`Shape::set`] | element i of every region, or each region's messages in turn (DR-M12, M13) |
//!
//! # Canonical form
//!
//! Shapes are canonicalised at construction. Two descriptions of the same bytes in the same order,
//! with the same messages and elements, are equal if a rule describes them:
//!
//! - Dense runs are folded. Periods that continue each other are one level; a level of one period
//!   is dropped.
//! - Runs that repeat are a level. A list that is a stride is one; so are equidistant set rows
//!   and row offsets.
//! - Columns of one bitmap, or of the same periods, are one region. Values of equal length are a
//!   column.
//!
//! What has no rule (lists, bitmaps, row offsets, offsets of values) is compared with its own kind,
//! bitmaps from their first set row to their last.
//!
//! ```
//! use overside_shape::{Run, Shape};
//! // Rows of 32 bytes; bytes 0..8 and 8..12 of each are wanted.
//! let shape = Shape::strided(64, 32, 3, &[Run::new(0, 8), Run::new(8, 4)])?;
//! assert_eq!(shape.bytes(), 36);
//! assert_eq!(shape.fragments().count(), 3); // the two runs touch: one fragment a row
//! assert_eq!(shape.end(), 64 + 2 * 32 + 12);
//! # Ok::<(), overside_shape::ShapeError>(())
//! ```
//!
//! # The way through the files
//!
//! - `shape`, `error`: declaring each kind, and what all of them answer.
//! - `strided`: periods within periods, and the canonical form of all that is regular.
//! - `bitmapped`, `bitmap`: columns under a bitmap with its directory. `mapped`, `offsets`: rows at
//!   offsets. `variable`: values of any length. `set`: sets under a row mask.
//! - `cut`: where messages and elements end. *Messages* are what the row mask makes of the region
//!   alone; *elements* are what it takes of the region in a set.
//! - `cursor`, `walk`, `fragments`, `messages`: a place in the bytes, and iteration from there.
//! - `address`, `gaps`, `overlap`: address order, gaps by arithmetic, bytes named twice.
//! - `describe`: a shape as bytes and back.
//! - `tiles`, `table`, `apart`: several destinations over one memory.
//!
//! # Invariants
//!
//! - Two descriptions by rule of the same bytes, order, messages and elements are equal.
//! - No operation allocates for each fragment. A bitmap's fingerprint is made at construction, so
//!   hashing a region takes no longer for a long one.
//! - Absent on purpose: addresses, and sets within sets. A list of many fragments whose periods
//!   touch in several levels may stay a list.
#![forbid(unsafe_code)]

mod address;
mod apart;
mod bitmap;
mod bitmapped;
mod cursor;
mod cut;
mod describe;
mod error;
mod form;
mod fragments;
mod gaps;
mod mapped;
mod messages;
mod offsets;
mod overlap;
mod run;
mod set;
mod shape;
mod strided;
mod table;
mod tiles;
mod variable;
mod walk;

pub use apart::{Overlap, shared_byte};
pub use bitmap::{Bitmap, Ones};
pub use bitmapped::{Column, Order};
pub use describe::DescriptionError;
pub use error::ShapeError;
pub use form::{Mask, ShapeKind};
pub use fragments::Fragments;
pub use gaps::{Coverage, GapClass, gaps};
pub use messages::{Messages, Piece, Pieces};
pub use run::Run;
pub use shape::Shape;
pub use strided::{Frequency, Level};
pub use table::{OneTable, Wanted};
pub use tiles::{SharedTiles, shared_tiles};
