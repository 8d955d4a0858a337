//! Which bytes: pure geometry of a transfer, without memory, device or I/O.
//!
//! A [`Shape`] says which bytes of some memory belong to a message, as offsets
//! from that memory's start. It is canonicalised at construction, so two
//! descriptions of the same bytes in the same order and of the same regularity
//! compare equal: dense runs are folded, a stride without gaps becomes one
//! range, a single period loses its stride.
//!
//! The regular kinds stay small whatever they describe (d-rdma §3: a strided
//! region is one control structure, the equivalent gather list grows with the
//! rows); fragments are produced by iteration and never stored.
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
#![forbid(unsafe_code)]

mod fragments;
mod shape;

pub use fragments::Fragments;
pub use shape::{Run, Shape, ShapeError};
