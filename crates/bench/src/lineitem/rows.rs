//! Rows by their index, however they are kept.

use super::{Row, version};
use overside::table::row::ValueRef;
use std::cmp::Ordering;

/// The generated rows, in the order of their keys.
pub trait Rows {
    /// How many rows.
    fn len(&self) -> usize;

    /// Row `index` as generated.
    ///
    /// # Panics
    ///
    /// There is no such row.
    fn row(&self, index: usize) -> Row<'_>;

    /// The key of row `index`.
    ///
    /// # Panics
    ///
    /// There is no such row.
    fn key(&self, index: usize) -> (i64, i32) {
        self.row(index).key()
    }

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Row `index` as its `version`-th write leaves it. Version 1 is the generated one; every later
    /// one changes the quantity, the discount, the price and the comment (and by it the row's
    /// length).
    ///
    /// # Panics
    ///
    /// There is no such row.
    fn at_version(&self, index: usize, version: i64) -> Row<'_> {
        let base = self.row(index);
        if version <= 1 {
            return base;
        }
        let comment = self.row(version::comment_from(index, version, self.len())).comment;
        version::changed(base, index, version, comment)
    }

    /// The key of row `index` as values.
    ///
    /// # Panics
    ///
    /// There is no such row.
    fn key_values(&self, index: usize) -> [ValueRef<'static>; 2] {
        let (orderkey, linenumber) = self.key(index);
        [ValueRef::Int64(orderkey), ValueRef::Int32(linenumber)]
    }

    /// The index of the row with this key.
    ///
    /// # Errors
    ///
    /// `Err` holds where it would be.
    fn find(&self, key: (i64, i32)) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.key(middle).cmp(&key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }
}
