//! Arrow at the table's edge: schemas, record batches out of scan answers, rows out of record
//! batches.
//!
//! Nothing else of this crate knows Arrow. Rows lie row-wise and batches column-wise, so each is a
//! transposition: column by column, specialised by width, from one constant stride into memory that
//! earlier batches have given back.

mod bits;
mod cells;
mod column;
mod error;
mod read;
mod schema;
mod store;
mod strided;
mod variable;
mod write;

pub use error::ArrowError;
pub use read::BatchBuilder;
pub use schema::{from_arrow, projected_to_arrow, to_arrow};
pub use write::{BatchEncoder, EncodedRows};

#[cfg(test)]
mod tests;
