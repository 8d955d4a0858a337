//! The line to beat: what hand-written code would do. Pack the rows into a buffer, `write` it to a
//! Unix socket in 64 KiB pieces, `read` them in another process, walk the rows.
//!
//! It is given every advantage that such code can have: its rows lie packed and sorted in one run
//! of memory. So packing is one `memcpy` a row, with no index to traverse, no update to look out
//! for, and nothing to protect. Each side says what CPU time it used.

mod client;
mod server;

pub use client::{Baseline, BaselineRun};
pub use server::serve;

use std::ops::Range;

/// What is asked for: rows of a range of keys, whole or projected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Keys from (included) to (excluded).
    pub keys: Range<(i64, i32)>,
    /// Only the key's two columns and the price: [`PROJECTED_BYTES`] a row.
    pub projected: bool,
}

impl Request {
    /// All rows, whole.
    pub fn full() -> Request {
        Request { keys: (i64::MIN, i32::MIN)..(i64::MAX, i32::MAX), projected: false }
    }

    fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..8].copy_from_slice(&self.keys.start.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.keys.start.1.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.keys.end.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.keys.end.1.to_le_bytes());
        bytes[24] = u8::from(self.projected);
        bytes
    }

    fn decode(bytes: &[u8; REQUEST_BYTES]) -> Request {
        let long = |at: usize| i64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let word = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        Request { keys: (long(0), word(8))..(long(12), word(20)), projected: bytes[24] != 0 }
    }
}

/// Bytes of a projected row: order key, line number, price.
pub const PROJECTED_BYTES: usize = 8 + 4 + 16;
const REQUEST_BYTES: usize = 25;
const PIECE_BYTES: usize = 64 << 10;
