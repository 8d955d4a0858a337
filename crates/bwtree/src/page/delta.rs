//! A delta record: one put or delete that goes on top of a base page.
//!
//! ```text
//!  0  [u8; 8] first 8 bytes of the key, zero-padded
//!  8  u16 next older record of the chain, in units of 8 bytes from the base page's start; 0: none
//! 10  u16 prefix_len     12 u32 position (bit 31: a row with this key is there, replaced; else the key goes before it)
//! 16  u32 bytes of the rest as it lies here    20 u16 key_len    22 u8 op (bit 7: rest is an overflow reference)
//! 23  u8 0xD1
//! 24  prefix | rest | whole key, only if longer than 8 bytes | padding to 8
//! ```

use std::ops::Range;

use super::layout::{Malformed, u16_at, u32_at};
use super::leaf::{OverflowRef, Rest};

/// Bytes of a delta record's header.
pub const DELTA_HEADER: usize = 24;

/// What a delta does to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The key has this value from now on.
    Put,
    /// The key is gone.
    Delete,
}

/// A view of a delta record's bytes.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRecord<'a> {
    record: &'a [u8],
    prefix_len: usize,
    rest_len: usize,
    key_len: usize,
}

/// What the header of a delta record says. No byte behind it is looked at, so it serves records
/// that are read in place in a peer's memory, too: the header is copied out, and checked in the
/// copy.
#[derive(Debug, Clone)]
pub struct DeltaHeader {
    /// Bytes of the record, padding included.
    pub len: usize,
    /// What it does.
    pub op: Op,
    /// Index in the base page where the key goes.
    pub position: usize,
    /// Whether the row there has this key.
    pub replaces: bool,
    /// Where in the record the value's prefix lies.
    pub prefix: Range<usize>,
    /// Where the rest lies, or the 16 bytes that name its extent.
    pub rest: Range<usize>,
    /// Whether it is those.
    pub overflow: bool,
}

impl DeltaHeader {
    /// Checks that the record lies inside the `have` bytes from its header on (it may be shorter).
    ///
    /// # Errors
    /// No header of a record, or of a longer one.
    pub fn parse(header: &[u8; DELTA_HEADER], have: usize) -> Result<DeltaHeader, Malformed> {
        if header[AT_MAGIC] != MAGIC || !matches!(header[AT_OP] & !OP_OVERFLOW, OP_PUT | OP_DELETE) {
            return Err(Malformed::Magic);
        }
        let len = record_len(header);
        if have < len {
            return Err(Malformed::Truncated { have, need: len });
        }
        let record = DeltaRecord::open(header);
        let prefix = DELTA_HEADER..DELTA_HEADER + record.prefix_len;
        Ok(DeltaHeader {
            len,
            op: record.op(),
            position: record.position(),
            replaces: record.replaces(),
            rest: record.rest_at(),
            prefix,
            overflow: header[AT_OP] & OP_OVERFLOW != 0,
        })
    }
}

impl<'a> DeltaRecord<'a> {
    /// Checks that the record lies inside `bytes` (it may be shorter) and gives the view.
    pub fn parse(bytes: &'a [u8]) -> Result<DeltaRecord<'a>, Malformed> {
        let header = bytes.first_chunk::<DELTA_HEADER>();
        let header = header.ok_or(Malformed::Truncated { have: bytes.len(), need: DELTA_HEADER })?;
        let len = DeltaHeader::parse(header, bytes.len())?.len;
        Ok(DeltaRecord::open(&bytes[..len]))
    }

    /// The view without the checks, for records of one's own tree (`record` is at least the
    /// record).
    #[inline]
    pub(crate) fn open(record: &'a [u8]) -> DeltaRecord<'a> {
        DeltaRecord {
            record,
            prefix_len: u16_at(record, AT_PREFIX_LEN) as usize,
            rest_len: u32_at(record, AT_REST_LEN) as usize,
            key_len: u16_at(record, AT_KEY_LEN) as usize,
        }
    }

    /// The record as it lies, padding included.
    pub fn record(&self) -> &'a [u8] {
        self.record
    }

    /// What it does.
    #[inline]
    pub fn op(&self) -> Op {
        match self.record.get(AT_OP).map(|op| op & !OP_OVERFLOW) {
            Some(OP_PUT) => Op::Put,
            _ => Op::Delete,
        }
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        if self.key_len <= 8 {
            return self.record.get(..self.key_len).unwrap_or(&[]);
        }
        self.part(DELTA_HEADER + self.prefix_len + self.rest_len, self.key_len)
    }

    /// The fixed-length prefix of the value; empty for a delete.
    #[inline]
    pub fn prefix(&self) -> &'a [u8] {
        self.part(DELTA_HEADER, self.prefix_len)
    }

    /// The variable part of the value; empty for a delete.
    #[inline]
    pub fn rest(&self) -> Rest<'a> {
        let bytes = self.part(DELTA_HEADER + self.prefix_len, self.rest_len);
        if self.refers() {
            return OverflowRef::parse(bytes).map_or(Rest::Inline(&[]), Rest::Overflow);
        }
        Rest::Inline(bytes)
    }

    /// Whether it says that its rest lies elsewhere.
    pub(crate) fn refers(&self) -> bool {
        self.record.get(AT_OP).is_some_and(|op| op & OP_OVERFLOW != 0)
    }

    /// Bytes of the record that hold the rest as it lies in it.
    pub fn rest_at(&self) -> Range<usize> {
        let at = DELTA_HEADER + self.prefix_len;
        at..at + self.rest_len
    }

    /// Index in the base page where the key goes.
    #[inline]
    pub fn position(&self) -> usize {
        (self.raw_position() & !POSITION_EXACT) as usize
    }

    /// Whether the row at [`position`](Self::position) has this key (and is replaced or deleted);
    /// else the key goes before that row.
    #[inline]
    pub fn replaces(&self) -> bool {
        self.raw_position() & POSITION_EXACT != 0
    }

    /// First 8 bytes of the key, zero-padded, as they lie.
    #[inline]
    pub(crate) fn head_bytes(&self) -> [u8; 8] {
        self.record.first_chunk().copied().unwrap_or_default()
    }

    /// Offset of the next older record from the base page's start; 0: none.
    #[inline]
    pub(crate) fn next(&self) -> usize {
        8 * u16_at(self.record, AT_NEXT) as usize
    }

    #[inline]
    pub(crate) fn raw_position(&self) -> u32 {
        u32_at(self.record, AT_POSITION)
    }

    fn part(&self, at: usize, len: usize) -> &'a [u8] {
        self.record.get(at..at.saturating_add(len)).unwrap_or(&[])
    }
}

/// What a writer is about to put into a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draft<'a> {
    pub(crate) op: Op,
    pub(crate) key: &'a [u8],
    pub(crate) prefix: &'a [u8],
    pub(crate) rest: Rest<'a>,
}

impl Draft<'_> {
    /// Bytes that the record takes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        let rest = match self.rest {
            Rest::Inline(bytes) => bytes.len(),
            Rest::Overflow(_) => OVERFLOW_BYTES,
        };
        record_bytes(self.prefix.len(), rest, self.key.len())
    }

    /// Writes the record; `out` is at least [`bytes`](Self::bytes) long.
    #[inline]
    pub(crate) fn write(&self, out: &mut [u8], position: u32, next: usize) {
        let overflow;
        let (rest, flag): (&[u8], u8) = match self.rest {
            Rest::Inline(bytes) => (bytes, 0),
            Rest::Overflow(o) => {
                overflow = o.to_bytes();
                (&overflow, OP_OVERFLOW)
            }
        };
        let op = match self.op {
            Op::Put => OP_PUT,
            Op::Delete => OP_DELETE,
        };
        // What is left at the end travels as well, and what lay here before is nobody's business.
        let bytes = self.bytes();
        out[bytes - 8..bytes].fill(0);
        let header = &mut out[..DELTA_HEADER];
        header[..8].copy_from_slice(&super::key::head_of(self.key).to_be_bytes());
        header[AT_NEXT..AT_NEXT + 2].copy_from_slice(&((next / 8) as u16).to_le_bytes());
        header[AT_PREFIX_LEN..AT_PREFIX_LEN + 2].copy_from_slice(&(self.prefix.len() as u16).to_le_bytes());
        header[AT_POSITION..AT_POSITION + 4].copy_from_slice(&position.to_le_bytes());
        header[AT_REST_LEN..AT_REST_LEN + 4].copy_from_slice(&(rest.len() as u32).to_le_bytes());
        header[AT_KEY_LEN..AT_KEY_LEN + 2].copy_from_slice(&(self.key.len() as u16).to_le_bytes());
        header[AT_OP] = op | flag;
        header[AT_MAGIC] = MAGIC;
        let at = DELTA_HEADER + self.prefix.len();
        out[DELTA_HEADER..at].copy_from_slice(self.prefix);
        out[at..at + rest.len()].copy_from_slice(rest);
        if self.key.len() > 8 {
            out[at + rest.len()..at + rest.len() + self.key.len()].copy_from_slice(self.key);
        }
    }
}

/// Bytes of a record with these lengths.
#[inline]
pub(crate) fn record_bytes(prefix: usize, rest: usize, key: usize) -> usize {
    (DELTA_HEADER + prefix + rest + if key > 8 { key } else { 0 }).next_multiple_of(8)
}

/// Bytes of the record whose header starts `bytes`.
#[inline]
pub(crate) fn record_len(bytes: &[u8]) -> usize {
    let (prefix, key) = (u16_at(bytes, AT_PREFIX_LEN), u16_at(bytes, AT_KEY_LEN));
    record_bytes(prefix as usize, u32_at(bytes, AT_REST_LEN) as usize, key as usize)
}

/// Bit of a record's position: a row with the key is there.
pub(crate) const POSITION_EXACT: u32 = 1 << 31;
/// Bytes of an overflow reference.
pub(crate) const OVERFLOW_BYTES: usize = 16;
const AT_NEXT: usize = 8;
const AT_PREFIX_LEN: usize = 10;
const AT_POSITION: usize = 12;
const AT_REST_LEN: usize = 16;
const AT_KEY_LEN: usize = 20;
const AT_OP: usize = 22;
const AT_MAGIC: usize = 23;
const MAGIC: u8 = 0xD1;
const OP_PUT: u8 = 1;
const OP_DELETE: u8 = 2;
const OP_OVERFLOW: u8 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_shows_nothing_of_what_lay_there_before() {
        let draft = Draft { op: Op::Put, key: b"nine byte", prefix: b"p", rest: Rest::Inline(b"") };
        let write = |before: u8| {
            let mut out = vec![before; draft.bytes()];
            draft.write(&mut out, 3, 64);
            out
        };
        assert_eq!(write(0xEE), write(0));
        assert_eq!(draft.bytes() % 8, 0);
        assert!(draft.bytes() > DELTA_HEADER + 1 + 9, "it has bytes that are nothing");
    }
}
