//! How much memory reading a file may take: bytes are charged before they are spent.
//!
//! A few bytes of a file can stand for gigabytes: a page that repeats itself, a dictionary whose
//! one long value every row names. So what a reader holds of a file has one budget, and the columns
//! of a batch have one. Both are far beyond what writers make, and far below what a host has.

use anyhow::{Result, bail};
use arrow_schema::{DataType, Schema};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::BATCH_ROWS;

/// Bytes of what a reader holds of one file at once: open pages, dictionaries, unpacked buffers.
#[derive(Clone)]
pub struct Budget {
    used: Arc<AtomicU64>,
    bytes_max: u64,
}

impl Budget {
    /// The budget of a file of `file_bytes`.
    pub fn of_file(file_bytes: u64) -> Budget {
        let bytes_max = file_bytes.saturating_mul(HELD_PER_FILE_BYTE).saturating_add(HELD_BYTES_MIN);
        Budget { used: Arc::default(), bytes_max: bytes_max.min(HELD_BYTES_MAX) }
    }

    /// Charges `bytes` until what is returned is dropped.
    ///
    /// # Errors
    /// There is no room for them; says what to do.
    pub fn charge(&self, bytes: u64) -> Result<Charge> {
        let fits = |used: u64| used.checked_add(bytes).filter(|after| *after <= self.bytes_max);
        if self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            bail!(
                "reading it takes more than {} MiB at once, for a file of this length the most that is taken; rewrite \
                 it with smaller pages, batches and dictionaries, or split it",
                self.bytes_max >> 20
            );
        }
        Ok(Charge { used: self.used.clone(), bytes })
    }
}

/// Bytes that are charged as long as this is there.
pub struct Charge {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes that each row of a batch takes in its arrays, whatever its texts and binaries hold.
pub fn row_bytes(schema: &Schema) -> usize {
    schema.fields().iter().map(|field| column_bytes(field.data_type())).sum()
}

/// Rows of a batch at most: [`BATCH_ROWS`], or fewer where they alone would take half of its
/// budget.
pub fn rows_max(schema: &Schema) -> usize {
    (BATCH_BYTES_MAX / 2 / row_bytes(schema).max(1)).clamp(1, BATCH_ROWS)
}

/// Bytes that the texts and binaries of `rows` rows may hold in a batch of `schema`.
pub fn room(schema: &Schema, rows: usize) -> usize {
    BATCH_BYTES_MAX.saturating_sub(rows * row_bytes(schema))
}

/// How many of the first rows, whose texts and binaries take `lengths`, have room in a batch
/// together.
///
/// # Errors
/// The first alone has none.
pub fn rows_within(room: usize, lengths: impl IntoIterator<Item = usize>) -> Result<usize> {
    let (mut rows, mut sum) = (0, 0usize);
    for bytes in lengths {
        sum = sum.saturating_add(bytes);
        if sum > room {
            break;
        }
        rows += 1;
    }
    if rows == 0 {
        bail!("a row takes {sum} bytes, a table's rows at most 1 MiB; shorten or split it");
    }
    Ok(rows)
}

fn column_bytes(ty: &DataType) -> usize {
    let values = match ty {
        DataType::Utf8 | DataType::Binary => VALUE_BYTES,
        DataType::FixedSizeBinary(bytes) => VALUE_BYTES + usize::try_from(*bytes).unwrap_or(0),
        // As it is decoded, and in the array.
        other => 2 * other.primitive_width().unwrap_or(1),
    };
    values + LEVEL_BYTES
}

/// Bytes of the texts and binaries of a batch, and of its rows' other values, together. Rows of
/// tables hold 1 MiB at most, so that every batch has room for some hundred of any.
pub const BATCH_BYTES_MAX: usize = 256 << 20;
/// What every file may have held of it, however short it is: a page or a batch of what a writer
/// makes at most.
const HELD_BYTES_MIN: u64 = 256 << 20;
/// Writers rarely compress better than so.
const HELD_PER_FILE_BYTE: u64 = 8;
/// As many columns as a table has, each with a page and a dictionary of the usual MiB.
const HELD_BYTES_MAX: u64 = 2 << 30;
/// A decoded text or binary, and its offset in the array.
const VALUE_BYTES: usize = 40;
/// A definition level, and a bit for nulls.
const LEVEL_BYTES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::Field;

    #[test]
    fn what_is_charged_is_refused_beyond_the_budget_and_given_back() {
        let budget = Budget::of_file(0);
        let half = budget.charge(HELD_BYTES_MIN / 2).unwrap();
        let rest = budget.clone().charge(HELD_BYTES_MIN / 2).unwrap();
        let told = budget.charge(1).err().unwrap().to_string();
        assert!(told.contains("256 MiB") && told.contains("rewrite"), "{told}");
        assert!(budget.charge(u64::MAX).is_err());
        drop(half);
        drop(budget.charge(HELD_BYTES_MIN / 2).unwrap());
        drop(rest);
        drop(budget.charge(HELD_BYTES_MIN).unwrap());
        drop(Budget::of_file(u64::MAX).charge(HELD_BYTES_MAX).unwrap());
    }

    #[test]
    fn wide_rows_make_fewer_of_them() {
        let schema = |columns, ty: DataType| {
            Schema::new((0..columns).map(|n| Field::new(format!("c{n}"), ty.clone(), true)).collect::<Vec<_>>())
        };
        assert_eq!(rows_max(&schema(1000, DataType::Int64)), 7064);
        assert_eq!(rows_max(&schema(10, DataType::Utf8)), BATCH_ROWS);
        assert_eq!(rows_max(&schema(1024, DataType::FixedSizeBinary(4096))), 31);
        assert_eq!(rows_max(&schema(1024, DataType::FixedSizeBinary(i32::MAX))), 1);
    }
}
