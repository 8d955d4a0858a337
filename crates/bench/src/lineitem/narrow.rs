//! Rows in as few bytes as hold them: a third of what they take in the table, so that a large
//! table's rows can be told again without a second copy of it.
//!
//! A row is [`FIXED_BYTES`] of numbers at the width that TPC-H's values need, and its comment. The
//! other strings are few and become codes; version and checksum follow from the rest.

use super::{Row, Rows, version};
use overside::memory::{Buffer, MemoryError, Segment};
use std::{
    fs::File,
    io,
    ops::{Deref, Range},
    os::{fd::OwnedFd, unix::fs::FileExt},
};

/// Narrow rows one after another, with the offset of each sixteenth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NarrowRows<B = Vec<u8>> {
    bytes: B,
    groups: Vec<u64>,
    len: usize,
}

impl NarrowRows {
    /// None yet; room for about `rows`.
    pub fn with_capacity(rows: usize) -> NarrowRows {
        let groups = Vec::with_capacity(rows / GROUP + 1);
        NarrowRows { bytes: Vec::with_capacity(rows * TYPICAL_BYTES), groups, len: 0 }
    }

    /// Appends a row as generated.
    ///
    /// # Panics
    ///
    /// The row is not TPC-H's at a scale factor of ten or less.
    pub fn push(&mut self, row: &Row<'_>) {
        if self.len.is_multiple_of(GROUP) {
            self.groups.push(self.bytes.len() as u64);
        }
        let encoded = encode(row, &mut self.bytes);
        encoded.expect("values of TPC-H fit at every scale that is generated");
        self.len += 1;
    }

    /// Appends all rows of `other`.
    pub fn append(&mut self, other: &NarrowRows) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        let mut at = begin;
        while let Some(length) = length(&self.bytes[at..]) {
            if self.len.is_multiple_of(GROUP) {
                self.groups.push(at as u64);
            }
            at += length;
            self.len += 1;
        }
    }

    /// Where other processes can read them, once and for all of them.
    ///
    /// # Errors
    ///
    /// Memory is exhausted.
    pub fn shared(self) -> Result<NarrowRows<Buffer>, MemoryError> {
        let used = self.bytes.len().max(1);
        let mut bytes = Segment::shared(used)?.carve(used).swap_remove(0);
        bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        Ok(NarrowRows { bytes, groups: self.groups, len: self.len })
    }
}

impl NarrowRows<Buffer> {
    /// A descriptor for [`NarrowFile::open`] in another process.
    ///
    /// # Errors
    ///
    /// This process may open no more files.
    pub fn file(&self) -> io::Result<OwnedFd> {
        let fd = self.bytes.segment().fd().ok_or(io::ErrorKind::Unsupported)?;
        fd.try_clone_to_owned()
    }
}

impl<B: Deref<Target = [u8]>> NarrowRows<B> {
    fn at(&self, index: usize) -> &[u8] {
        let mut bytes = &self.bytes[self.groups[index / GROUP] as usize..];
        for _ in 0..index % GROUP {
            bytes = &bytes[length(bytes).expect("rows were encoded here")..];
        }
        bytes
    }
}

impl<B: Deref<Target = [u8]>> Rows for NarrowRows<B> {
    fn len(&self) -> usize {
        self.len
    }

    fn row(&self, index: usize) -> Row<'_> {
        assert!(index < self.len, "row {index} of {}", self.len);
        decode(self.at(index)).expect("rows were encoded here")
    }

    fn key(&self, index: usize) -> (i64, i32) {
        assert!(index < self.len, "row {index} of {}", self.len);
        key(self.at(index)).expect("rows were encoded here")
    }
}

/// Narrow rows that another process keeps, read one by one.
#[derive(Debug)]
pub struct NarrowFile {
    file: File,
    groups: Vec<u64>,
    len: usize,
    base: Vec<u8>,
    other: Vec<u8>,
}

impl NarrowFile {
    /// Looks where the rows lie.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn open(file: File) -> io::Result<NarrowFile> {
        let mut rows = NarrowFile { file, groups: Vec::new(), len: 0, base: Vec::new(), other: Vec::new() };
        rows.walk(|rows, at, _| {
            if rows.len.is_multiple_of(GROUP) {
                rows.groups.push(at);
            }
            rows.len += 1;
            true
        })?;
        Ok(rows)
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first rows, at most `most` of them, one after another.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn first(&mut self, most: usize, mut each: impl FnMut(&Row<'_>)) -> io::Result<()> {
        let mut left = most;
        self.walk(|_, _, bytes| match decode(bytes) {
            Some(row) if left > 0 => {
                left -= 1;
                each(&row);
                true
            }
            _ => false,
        })
    }

    /// As [`Rows::at_version`].
    ///
    /// # Errors
    ///
    /// The file cannot be read, or there is no such row.
    pub fn at_version(&mut self, index: usize, version: i64) -> io::Result<Row<'_>> {
        let base = self.find(index, false)?;
        if version <= 1 {
            return row(&self.base[base]);
        }
        let other = self.find(version::comment_from(index, version, self.len), true)?;
        Ok(version::changed(row(&self.base[base])?, index, version, row(&self.other[other])?.comment))
    }

    /// The key of row `index`.
    ///
    /// # Errors
    ///
    /// As [`at_version`](Self::at_version).
    pub fn key(&mut self, index: usize) -> io::Result<(i64, i32)> {
        Ok(self.at_version(index, 1)?.key())
    }

    /// Reads the group of row `index`, and tells where in it the row lies.
    fn find(&mut self, index: usize, other: bool) -> io::Result<Range<usize>> {
        let group = self.groups.get(index / GROUP).filter(|_| index < self.len).ok_or(io::ErrorKind::NotFound)?;
        let bytes = if other { &mut self.other } else { &mut self.base };
        bytes.resize(GROUP * ROW_BYTES_MAX, 0);
        let read = read_up_to(&self.file, bytes, *group)?;
        let mut at = 0;
        for _ in 0..index % GROUP {
            at += length(&bytes[at..read]).ok_or(io::ErrorKind::InvalidData)?;
        }
        Ok(at..read)
    }

    /// Every row with its offset, in pieces, until `each` has seen enough.
    fn walk(&mut self, mut each: impl FnMut(&mut NarrowFile, u64, &[u8]) -> bool) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut begin = 0;
        loop {
            let read = read_up_to(&self.file, &mut piece, begin)?;
            let mut at = 0;
            // What fills the last page is zero, and no row begins with zeros.
            while let Some(length) = length(&piece[at..read]) {
                if !each(self, begin + at as u64, &piece[at..at + length]) {
                    return Ok(());
                }
                at += length;
            }
            if at == 0 {
                return Ok(());
            }
            begin += at as u64;
        }
    }
}

fn row(bytes: &[u8]) -> io::Result<Row<'_>> {
    decode(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read_up_to(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

fn encode(row: &Row<'_>, out: &mut Vec<u8>) -> Option<()> {
    for word in [row.orderkey, row.partkey, row.suppkey, row.extendedprice] {
        out.extend_from_slice(&u32::try_from(word).ok()?.to_le_bytes());
    }
    for date in [row.shipdate, row.commitdate, row.receiptdate] {
        out.extend_from_slice(&u16::try_from(date).ok()?.to_le_bytes());
    }
    let mut code = 0;
    for (text, known) in row.texts().into_iter().zip(TEXTS) {
        code = code * known.len() + known.iter().position(|known| *known == text)?;
    }
    let whole = row.quantity % 100 == 0;
    let small = [i64::from(row.linenumber), row.quantity / 100, row.discount, row.tax, code as i64];
    for value in small.into_iter().chain([row.comment.len() as i64]) {
        out.push(u8::try_from(value).ok()?);
    }
    out.extend_from_slice(row.comment.as_bytes());
    whole.then_some(())
}

/// The row at the start of `bytes`.
fn decode(bytes: &[u8]) -> Option<Row<'_>> {
    let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>()?;
    let word = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    let date = |at: usize| i32::from(u16::from_le_bytes([fixed[at], fixed[at + 1]]));
    let mut code = usize::from(fixed[26]);
    let mut texts = [""; 4];
    for (text, known) in texts.iter_mut().zip(TEXTS).rev() {
        *text = known[code % known.len()];
        code /= known.len();
    }
    let [returnflag, linestatus, shipinstruct, shipmode] = texts;
    let mut row = Row {
        orderkey: i64::from(word(0)),
        partkey: i64::from(word(4)),
        suppkey: i64::from(word(8)),
        linenumber: i32::from(fixed[22]),
        quantity: 100 * i64::from(fixed[23]),
        extendedprice: i64::from(word(12)),
        discount: i64::from(fixed[24]),
        tax: i64::from(fixed[25]),
        returnflag,
        linestatus,
        shipdate: date(16),
        commitdate: date(18),
        receiptdate: date(20),
        shipinstruct,
        shipmode,
        comment: std::str::from_utf8(rest.get(..usize::from(fixed[27]))?).ok()?,
        version: 1,
        checksum: 0,
    };
    row.checksum = row.sum();
    Some(row)
}

fn key(bytes: &[u8]) -> Option<(i64, i32)> {
    Some((i64::from(u32::from_le_bytes(*bytes.first_chunk()?)), i32::from(*bytes.get(22)?)))
}

/// Bytes of the row at the start of `bytes`; none where no whole row is there.
fn length(bytes: &[u8]) -> Option<usize> {
    let (orderkey, _) = key(bytes)?;
    let length = FIXED_BYTES + usize::from(*bytes.get(27)?);
    (orderkey > 0 && length <= bytes.len()).then_some(length)
}

/// What the other strings of a row may be.
const TEXTS: [&[&str]; 4] = [
    &["A", "N", "R"],
    &["F", "O"],
    &["COLLECT COD", "DELIVER IN PERSON", "NONE", "TAKE BACK RETURN"],
    &["AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK"],
];
const FIXED_BYTES: usize = 28;
const ROW_BYTES_MAX: usize = FIXED_BYTES + 255;
const GROUP: usize = 16;
const TYPICAL_BYTES: usize = 56;
const PIECE_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineitem::Lineitem;

    fn narrow(table: &Lineitem) -> NarrowRows {
        let mut rows = NarrowRows::default();
        (0..table.rows().len()).for_each(|index| rows.push(&table.rows().row(index)));
        rows
    }

    #[test]
    fn narrow_rows_are_the_rows_here_and_in_another_process() {
        let table = Lineitem::sample(0.002);
        let wide = table.rows();
        let rows = narrow(&table).shared().unwrap();
        let mut file = NarrowFile::open(File::from(rows.file().unwrap())).unwrap();
        assert!(rows.bytes.len() * 5 < wide.bytes().len() * 2);
        assert_eq!((rows.len(), file.len(), rows.is_empty(), file.is_empty()), (wide.len(), wide.len(), false, false));
        for index in (0..wide.len()).rev() {
            for version in 1..3 {
                let row = wide.at_version(index, version);
                assert_eq!((rows.at_version(index, version), file.at_version(index, version).unwrap()), (row, row));
            }
            assert_eq!((rows.key(index), file.key(index).unwrap()), (wide.key(index), wide.key(index)));
            assert_eq!(rows.find(wide.key(index)), Ok(index));
        }
        assert!(file.at_version(wide.len(), 1).is_err());
        let mut first = Vec::new();
        file.first(100, |row| first.push(row.key())).unwrap();
        assert!(first.into_iter().eq((0..100).map(|index| wide.key(index))));
        let mut all = 0;
        file.first(usize::MAX, |_| all += 1).unwrap();
        assert_eq!(all, wide.len());
    }

    #[test]
    fn a_file_that_is_cut_short_has_the_rows_before() {
        let rows = narrow(&Lineitem::sample(0.0005));
        let cut = &rows.bytes[..rows.bytes.len() - 1];
        let path = std::env::temp_dir().join(format!("overside-narrow-{}", std::process::id()));
        std::fs::write(&path, cut).unwrap();
        let file = NarrowFile::open(File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.len(), rows.len() - 1);
    }

    #[test]
    fn what_is_not_generated_is_refused() {
        let table = Lineitem::sample(0.0005);
        let row = table.rows().row(0);
        let mut out = Vec::new();
        assert!(encode(&row, &mut out).is_some());
        for other in [
            Row { orderkey: 1 << 40, ..row },
            Row { quantity: 150, ..row },
            Row { shipmode: "BOAT", ..row },
            Row { tax: -1, ..row },
        ] {
            assert!(encode(&other, &mut out).is_none(), "{other:?}");
        }
    }
}
