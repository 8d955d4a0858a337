//! Rows to be put.

use std::ops::Range;
use std::sync::Arc;

use crate::row::{BuildError, RowBuilder, RowLayout, ValueRef};
use crate::wire::{REQUEST_BYTES, push_piece};

/// Encoded rows, cut into requests of a moderate size.
#[derive(Debug)]
pub struct RowBatch {
    builder: RowBuilder,
    bytes: Vec<u8>,
    /// Where each request ends in `bytes`, and how many rows there are up to there.
    cuts: Vec<(usize, u64)>,
    rows: u64,
    cut_at: usize,
}

impl RowBatch {
    pub(crate) fn new(layout: Arc<RowLayout>) -> RowBatch {
        RowBatch { builder: RowBuilder::new(layout), bytes: Vec::new(), cuts: Vec::new(), rows: 0, cut_at: 0 }
    }

    /// Adds a row of one value for each column, in the schema's order.
    ///
    /// # Errors
    /// [`BuildError`] names the column that does not fit.
    pub fn push(&mut self, values: &[ValueRef<'_>]) -> Result<(), BuildError> {
        let value = self.builder.encode(values)?;
        push_piece(&mut self.bytes, value);
        self.note();
        Ok(())
    }

    /// Adds a row that is encoded already (prefix and rest); the server checks it.
    pub fn push_encoded(&mut self, value: &[u8]) {
        push_piece(&mut self.bytes, value);
        self.note();
    }

    /// Rows in it.
    pub fn len(&self) -> usize {
        self.rows as usize
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Bytes of its rows as they travel.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.cuts.clear();
        (self.rows, self.cut_at) = (0, 0);
    }

    /// The requests: bytes, and the index of the first row in each.
    pub(crate) fn requests(&self) -> impl Iterator<Item = (&[u8], Range<u64>)> {
        let last = (self.bytes.len() > self.cut_at).then_some((self.bytes.len(), self.rows));
        let mut from = (0, 0);
        self.cuts.iter().copied().chain(last).map(move |to| {
            let request = (&self.bytes[from.0..to.0], from.1..to.1);
            from = to;
            request
        })
    }

    fn note(&mut self) {
        self.rows += 1;
        if self.bytes.len() - self.cut_at >= REQUEST_BYTES {
            self.cut_at = self.bytes.len();
            self.cuts.push((self.cut_at, self.rows));
        }
    }
}
