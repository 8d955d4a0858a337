//! Rows one after another in one run of bytes: what a hand-written program would keep and send.
//!
//! A row is its length (u32, itself not counted), the fixed columns, the end of each string (u32,
//! from the start of the strings) and the strings. Fixed columns are little-endian at full width,
//! decimals in 16 bytes, as the table has them.

use super::{Row, Rows};

/// Rows packed one after another, with the offset of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedRows {
    bytes: Vec<u8>,
    starts: Vec<u64>,
}

impl PackedRows {
    /// None yet; room for about `rows`.
    pub fn with_capacity(rows: usize) -> PackedRows {
        PackedRows { bytes: Vec::with_capacity(rows * TYPICAL_BYTES), starts: Vec::with_capacity(rows) }
    }

    /// Takes over rows that came packed from elsewhere.
    ///
    /// # Errors
    ///
    /// The bytes do not end with a row's end, or a row does not parse.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<PackedRows, Malformed> {
        let mut starts = Vec::with_capacity(bytes.len() / TYPICAL_BYTES);
        let mut at = 0;
        while at < bytes.len() {
            starts.push(at as u64);
            let (_, length) = decode(&bytes[at..]).ok_or(Malformed { offset: at })?;
            at += length;
        }
        Ok(PackedRows { bytes, starts })
    }

    /// Appends a row.
    pub fn push(&mut self, row: &Row<'_>) {
        self.starts.push(self.bytes.len() as u64);
        encode(row, &mut self.bytes);
    }

    /// Appends all rows of `other`.
    pub fn append(&mut self, other: &PackedRows) {
        let base = self.bytes.len() as u64;
        self.starts.extend(other.starts.iter().map(|start| base + start));
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// All rows' bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of row `index`, its length included.
    ///
    /// # Panics
    ///
    /// There is no such row.
    pub fn row_bytes(&self, index: usize) -> &[u8] {
        let next = self.starts.get(index + 1);
        let end = next.map_or(self.bytes.len(), |next| *next as usize);
        &self.bytes[self.starts[index] as usize..end]
    }

    /// The bytes of row `index`'s key columns and of its price.
    ///
    /// # Panics
    ///
    /// There is no such row.
    pub fn projected(&self, index: usize) -> (&[u8], &[u8], &[u8]) {
        let row = self.row_bytes(index);
        (&row[4..12], &row[LINENUMBER_AT..LINENUMBER_AT + 4], &row[PRICE_AT..PRICE_AT + 16])
    }

    /// Row `index`.
    ///
    /// # Panics
    ///
    /// There is no such row.
    pub fn row(&self, index: usize) -> Row<'_> {
        decode(self.row_bytes(index)).expect("rows were checked when they came in").0
    }

    /// The first of the packed rows in `bytes`, parsed only as far as a consumer that touches rows
    /// needs it, and the bytes after it; `None` at the end or at what is no row.
    #[inline]
    pub fn split_first(bytes: &[u8]) -> Option<(Packed<'_>, &[u8])> {
        let length = u32::from_le_bytes(bytes.first_chunk().copied()?) as usize;
        let (row, rest) = bytes.split_at_checked(4 + length)?;
        let orderkey = row.get(4..)?.first_chunk().copied()?;
        let linenumber = row.get(LINENUMBER_AT..)?.first_chunk().copied()?;
        let key = (i64::from_le_bytes(orderkey), i32::from_le_bytes(linenumber));
        Some((Packed { key, bytes: row }, rest))
    }
}

impl Rows for PackedRows {
    fn len(&self) -> usize {
        self.starts.len()
    }

    fn row(&self, index: usize) -> Row<'_> {
        PackedRows::row(self, index)
    }
}

/// A packed row by its key and its bytes, length included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed<'a> {
    /// The primary key.
    pub key: (i64, i32),
    /// All its bytes.
    pub bytes: &'a [u8],
}

/// Packed rows that are none.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Where the first bad row begins.
    pub offset: usize,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no packed row at byte {}: the sender was cut off or is of another version", self.offset)
    }
}

impl std::error::Error for Malformed {}

fn encode(row: &Row<'_>, out: &mut Vec<u8>) {
    let texts = row.texts();
    let length = FIXED_BYTES + texts.iter().map(|text| 4 + text.len()).sum::<usize>();
    out.extend_from_slice(&(length as u32).to_le_bytes());
    let words = [row.orderkey, row.partkey, row.suppkey, row.version, row.checksum];
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for decimal in [row.quantity, row.extendedprice, row.discount, row.tax] {
        out.extend_from_slice(&i128::from(decimal).to_le_bytes());
    }
    for word in [row.linenumber, row.shipdate, row.commitdate, row.receiptdate] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let mut end = 0u32;
    for text in texts {
        end += text.len() as u32;
        out.extend_from_slice(&end.to_le_bytes());
    }
    for text in texts {
        out.extend_from_slice(text.as_bytes());
    }
}

/// The row at the start of `bytes` and how many bytes it takes.
fn decode(bytes: &[u8]) -> Option<(Row<'_>, usize)> {
    let length = u32::from_le_bytes(bytes.first_chunk().copied()?) as usize;
    let mut rest = bytes.get(4..4 + length)?;
    let [orderkey, partkey, suppkey, version, checksum] = take(&mut rest, i64::from_le_bytes)?;
    let decimals: [i128; 4] = take(&mut rest, i128::from_le_bytes)?;
    let [quantity, extendedprice, discount, tax] = decimals.map(|decimal| decimal as i64);
    let [linenumber, shipdate, commitdate, receiptdate] = take(&mut rest, i32::from_le_bytes)?;
    let ends: [u32; 5] = take(&mut rest, u32::from_le_bytes)?;
    let mut start = 0;
    let mut texts = [""; 5];
    for (text, end) in texts.iter_mut().zip(ends) {
        *text = std::str::from_utf8(rest.get(start..end as usize)?).ok()?;
        start = end as usize;
    }
    if start != rest.len() {
        return None;
    }
    let [returnflag, linestatus, shipinstruct, shipmode, comment] = texts;
    let row = Row {
        orderkey,
        partkey,
        suppkey,
        linenumber,
        quantity,
        extendedprice,
        discount,
        tax,
        returnflag,
        linestatus,
        shipdate,
        commitdate,
        receiptdate,
        shipinstruct,
        shipmode,
        comment,
        version,
        checksum,
    };
    Some((row, 4 + length))
}

fn take<T: Copy + Default, const N: usize, const W: usize>(rest: &mut &[u8], from: fn([u8; W]) -> T) -> Option<[T; N]> {
    let mut values = [T::default(); N];
    for value in &mut values {
        let (first, after) = rest.split_first_chunk::<W>()?;
        *value = from(*first);
        *rest = after;
    }
    Some(values)
}

const PRICE_AT: usize = 4 + 5 * 8 + 16;
const LINENUMBER_AT: usize = 4 + 5 * 8 + 4 * 16;
const FIXED_BYTES: usize = 5 * 8 + 4 * 16 + 4 * 4;
const TYPICAL_BYTES: usize = 196;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineitem::Lineitem;

    #[test]
    fn rows_come_back_as_they_went_in() {
        let table = Lineitem::sample(0.0005);
        let again = PackedRows::from_bytes(table.rows().bytes().to_vec()).unwrap();
        assert_eq!(again, *table.rows());
        for index in 0..again.len() {
            assert!(again.row(index).whole());
            assert_eq!(again.find(again.row(index).key()), Ok(index));
        }
        let mut rest = again.bytes();
        for index in 0..again.len() {
            let (packed, after) = PackedRows::split_first(rest).unwrap();
            assert_eq!(packed.key, again.row(index).key());
            assert_eq!(packed.bytes, again.row_bytes(index));
            rest = after;
        }
        assert!(PackedRows::split_first(rest).is_none());
        assert_eq!(again.find((0, 0)), Err(0));
        assert_eq!(again.find((i64::MAX, 0)), Err(again.len()));
    }

    #[test]
    fn cut_or_garbled_rows_are_refused() {
        let table = Lineitem::sample(0.0005);
        let bytes = table.rows().row_bytes(0).to_vec();
        for cut in 1..bytes.len() {
            let cut_off = PackedRows::from_bytes(bytes[..cut].to_vec());
            assert_eq!(cut_off, Err(Malformed { offset: 0 }), "cut at {cut}");
        }
        for at in (0..4).chain(FIXED_BYTES + 4..FIXED_BYTES + 24) {
            let mut garbled = bytes.clone();
            garbled[at] = 0xFF;
            assert!(PackedRows::from_bytes(garbled).is_err(), "byte {at}");
        }
    }
}
