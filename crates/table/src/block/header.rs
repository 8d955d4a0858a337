//! The first 64 bytes of a scan answer.
//!
//! ```text
//!  0 u32 magic "OSB1"   4 u8 version   5 u8 mode    6 u8 flags     7 u8 0
//!  8 u64 scan          16 u64 sequence number of the message in the scan
//! 24 u32 rows          28 u32 bytes of a row's prefix (the constant stride)
//! 32 u32 table_at      36 u32 entries: runs, or pages
//! 40 u32 delta records 44 u32 overflow extents     (both 0 unless mode is delta)
//! 48 u32 bytes of the message                      52 u32 0   56 u64 0
//! ```

use super::MESSAGE_BYTES_MAX;
use super::source::Source;
use crate::row::{Bytes, Malformed};

/// How the rows of an answer were brought together; the three modes of the paper (to-copy §3,
/// §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Packed by the server's CPU.
    Copy,
    /// Gathered from where they lie.
    Gather,
    /// Base pages and delta records, merged by the client.
    Delta,
}

/// What the first 64 bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// How the rows were brought together.
    pub mode: Mode,
    /// Rows are packed to the projection; else whole rows' prefixes lie there and the view
    /// projects.
    pub packed: bool,
    /// Rests were left out, because no chosen column lies in them.
    pub without_rests: bool,
    /// No message of this scan follows.
    pub last: bool,
    /// The scan that this answers, as the client numbered it.
    pub scan: u64,
    /// 0 for the scan's first message, and one more for each.
    pub sequence: u64,
    /// Rows that the message delivers.
    pub rows: u32,
    /// Bytes of each row's prefix.
    pub stride: u32,
    pub(super) table_at: u32,
    pub(super) entries: u32,
    pub(super) deltas: u32,
    pub(super) overflows: u32,
    pub(super) bytes: u32,
}

impl BlockHeader {
    /// Reads the header of a whole message.
    ///
    /// # Errors
    /// No header of this version, or one that announces another length than the message has.
    pub fn parse(message: &[u8]) -> Result<BlockHeader, Malformed> {
        BlockHeader::of(message)
    }

    /// The same, wherever the message lies.
    pub(super) fn of<'a>(message: impl Source<'a>) -> Result<BlockHeader, Malformed> {
        let bytes = message.piece(0, HEADER_BYTES).and_then(|header| header.load::<HEADER_BYTES>(0));
        let bytes = &bytes.ok_or(Malformed("a scan answer is shorter than its header"))?;
        if u32_at(bytes, 0) != MAGIC || bytes[4] != VERSION {
            return Err(Malformed("a scan answer has another magic or version"));
        }
        let mode = match bytes[5] {
            0 => Mode::Copy,
            1 => Mode::Gather,
            2 => Mode::Delta,
            _ => return Err(Malformed("a scan answer has an unknown mode")),
        };
        let flags = bytes[6];
        if flags & !(PACKED | WITHOUT_RESTS | LAST) != 0 || bytes[7] != 0 || bytes[52..].iter().any(|&b| b != 0) {
            return Err(Malformed("a scan answer has unknown flags"));
        }
        let header = BlockHeader {
            mode,
            packed: flags & PACKED != 0,
            without_rests: flags & WITHOUT_RESTS != 0,
            last: flags & LAST != 0,
            scan: u64::from(u32_at(bytes, 8)) | u64::from(u32_at(bytes, 12)) << 32,
            sequence: u64::from(u32_at(bytes, 16)) | u64::from(u32_at(bytes, 20)) << 32,
            rows: u32_at(bytes, 24),
            stride: u32_at(bytes, 28),
            table_at: u32_at(bytes, 32),
            entries: u32_at(bytes, 36),
            deltas: u32_at(bytes, 40),
            overflows: u32_at(bytes, 44),
            bytes: u32_at(bytes, 48),
        };
        if header.bytes as usize != message.bytes() || message.bytes() > MESSAGE_BYTES_MAX {
            return Err(Malformed("a scan answer has another length than it announces"));
        }
        if mode != Mode::Delta && (header.deltas, header.overflows) != (0, 0) {
            return Err(Malformed("a clean scan answer announces delta records"));
        }
        Ok(header)
    }

    /// The header as it goes on the wire.
    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let mode = match self.mode {
            Mode::Copy => 0,
            Mode::Gather => 1,
            Mode::Delta => 2,
        };
        let flags = flag(self.packed, PACKED) | flag(self.without_rests, WITHOUT_RESTS) | flag(self.last, LAST);
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&[VERSION, mode, flags, 0]);
        bytes[8..16].copy_from_slice(&self.scan.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        let words = [self.rows, self.stride, self.table_at, self.entries, self.deltas, self.overflows, self.bytes];
        for (at, word) in words.into_iter().enumerate() {
            bytes[24 + 4 * at..28 + 4 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// A little-endian word at a place that the caller knows to lie inside.
#[inline]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"OSB1");
const VERSION: u8 = 1;
const PACKED: u8 = 1;
const WITHOUT_RESTS: u8 = 2;
const LAST: u8 = 4;
