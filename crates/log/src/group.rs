//! The format of a segment: its header, and the groups of records behind it.
//!
//! Every byte that is written is covered by a checksum.
//!
//! # Version 1
//!
//! Blocks are of 4096 bytes, checksums are CRC32C. The directory's id, 128
//! random bits, stands in every file, so that a file of another directory is refused.
//!
//! `IDENTITY` is one block: `ovidenty`, u32 version, u32 zero, the id, zeros, and in its last four
//! bytes the checksum of all before.
//!
//! A *segment* is `log/` and its number in 16 hexadecimal digits. Numbers ascend and are not used
//! again. With `.spare` behind it a file is a segment to be: its blocks are set aside, its content
//! means nothing. Its first block is a header:
//!
//! | at | what |
//! |---|---|
//! | 0 | `ovsegmnt`, u32 version, u32 checksum of the last group before (0 of the first) |
//! | 16 | the directory's id |
//! | 32 | u64 number; u64 number of the segment whose log goes on here (0 of the first) |
//! | 48 | u64 position of the first group; u64 which start of a server wrote it |
//! | 64 | u64 bytes of the file (8 blocks to 1 GiB); u64 position known to be on the disk |
//! | 80 | zeros; in the last four bytes the checksum of all before |
//!
//! A *position* is the number of bytes of all groups before, over all segments. *Groups* follow the
//! header without a gap, each in whole blocks:
//!
//! | at | what |
//! |---|---|
//! | 0 | `ovgroup` and a zero byte, the directory's id |
//! | 24 | u64 position; u64 floor: every stamp below is in the log by the end of this group, or never will be |
//! | 40 | u64 position known to be on the disk; u64 which start of a server, as in the header |
//! | 56 | u32 bytes of header and records; u32 kind; u32 how many records; u32 checksum of the group before |
//! | 72 | u32 checksum of all from 80 on, to the end of the last block; u32 checksum of the 76 bytes before |
//! | 80 | records, then zeros up to a whole block |
//!
//! The checksum at 76 is what the next group names. Kind 1 is a group of records, or of none where
//! only the header has something to say. Kind 2 marks a segment's end: the log goes on in another
//! one, which must be there. It takes no positions, and the next segment names the group before it.
//! A later start of a server may have written it over what was torn.
//!
//! A group belongs where it stands if id, start, position and named checksum are those expected
//! there, and its checksums are right. The log goes on in the segment whose header names this one,
//! the position reached and the last group's checksum; the header is on the disk before the first
//! group is written. Otherwise the log ends. Every header and sound group behind that states a
//! position beyond the end makes it damage.
//!
//! A *record* is u64 stamp, u32 kind, u32 table, u32 bytes of its key, u32 bytes of its value, key
//! and value. Kinds are 1 put, 2 delete (no value), 3 create (no key; the value is the table's
//! options), 4 drop (neither). 5 and 6 create and drop an index (no key; the value is the index's
//! options: u8 how many columns, each u16). Records of one key are applied in the order of their
//! stamps, not of the log. A record with an unknown kind, or one that leaves its group, is damage.

use overside_disk::{BLOCK_BYTES, mutant};

/// What identifies a data directory: 128 random bits.
pub type DirectoryId = [u8; 16];

/// What the first block of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The directory that it belongs to.
    pub directory: DirectoryId,
    /// Its number, which its name says as well.
    pub number: u64,
    /// The segment whose log goes on here; 0 of the first.
    pub after: u64,
    /// Position in the log of its first group.
    pub first: u64,
    /// Which start of a server wrote it. Its groups say the same, so what a recycled file held
    /// before does not pass.
    pub incarnation: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Position known to be on the disk when this was written.
    pub synced: u64,
    /// Checksum of the last group before it; 0 of the first.
    pub previous: u32,
}

/// What a group says before its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHeader {
    /// The directory that it belongs to.
    pub directory: DirectoryId,
    /// Where in the log it begins: bytes of all groups before it.
    pub position: u64,
    /// Every stamp below is in the log by here, or never will be.
    pub floor: u64,
    /// Position known to be on the disk when this was written.
    pub synced: u64,
    /// As its segment's.
    pub incarnation: u64,
    /// Bytes of header and records; what follows up to a whole block is zero.
    pub length: u32,
    /// How many records.
    pub records: u32,
    /// Checksum of the group before it; 0 of the first.
    pub previous: u32,
    /// What it is.
    pub kind: GroupKind,
}

/// What a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Records, or none where only the header has something to say.
    Records,
    /// The log goes on in the next segment. It takes no positions and is no link of the chain of
    /// checksums.
    Continued,
}

/// A group that passed its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// What it says of itself.
    pub header: GroupHeader,
    /// Its records.
    pub body: &'a [u8],
    /// Its checksum, which the next group names.
    pub checksum: u32,
    /// Bytes that it takes, in whole blocks.
    pub bytes: usize,
}

impl SegmentHeader {
    /// As the first block of a file.
    pub fn write(&self, block: &mut [u8]) {
        let block = &mut block[..BLOCK_BYTES];
        block.fill(0);
        block[..8].copy_from_slice(SEGMENT_MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&self.previous.to_le_bytes());
        block[16..32].copy_from_slice(&self.directory);
        let words = [self.number, self.after, self.first, self.incarnation, self.bytes, self.synced];
        for (at, word) in words.into_iter().enumerate() {
            block[32 + 8 * at..40 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        let (said, checksum) = block.split_at_mut(BLOCK_BYTES - 4);
        checksum.copy_from_slice(&crc32c::crc32c(said).to_le_bytes());
    }

    /// Of a file's first block.
    ///
    /// # Errors
    /// What it is instead.
    pub fn parse(block: &[u8]) -> Result<SegmentHeader, NoHeader> {
        let block = block.get(..BLOCK_BYTES).ok_or(NoHeader::Broken)?;
        let (said, checksum) = block.split_at(BLOCK_BYTES - 4);
        if &said[..8] != SEGMENT_MAGIC || crc32c::crc32c(said).to_le_bytes() != checksum {
            return Err(NoHeader::Broken);
        }
        let version = number32(said, 8);
        if version != VERSION {
            return Err(NoHeader::Version(version));
        }
        let word = |at: usize| number64(said, 32 + 8 * at);
        let header = SegmentHeader {
            directory: said[16..32].try_into().expect("16 bytes"),
            number: word(0),
            after: word(1),
            first: word(2),
            incarnation: word(3),
            bytes: word(4),
            synced: word(5),
            previous: number32(said, 12),
        };
        let blocks = BLOCK_BYTES as u64;
        let bytes =
            (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&header.bytes) && header.bytes.is_multiple_of(blocks);
        let first = header.first.is_multiple_of(blocks) && header.first < POSITION_MAX;
        if bytes && first { Ok(header) } else { Err(NoHeader::Broken) }
    }
}

/// Why a block is no header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHeader {
    /// Its checksum is wrong, or it was never one.
    Broken,
    /// It is of another version.
    Version(u32),
}

impl GroupHeader {
    /// Completes a group: `bytes` has its records behind [`GROUP_HEADER_BYTES`] and zeros behind
    /// them, up to a whole block. Returns its checksum.
    pub fn write(&self, bytes: &mut [u8]) -> u32 {
        debug_assert_eq!(bytes.len(), padded(self.length as usize));
        let (header, rest) = bytes.split_at_mut(GROUP_HEADER_BYTES);
        header[..8].copy_from_slice(GROUP_MAGIC);
        header[8..24].copy_from_slice(&self.directory);
        let words = [self.position, self.floor, self.synced, self.incarnation];
        for (at, word) in words.into_iter().enumerate() {
            header[24 + 8 * at..32 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        let kind = match self.kind {
            GroupKind::Records => RECORDS,
            GroupKind::Continued => CONTINUED,
        };
        let words = [self.length, kind, self.records, self.previous, crc32c::crc32c(rest)];
        for (at, word) in words.into_iter().enumerate() {
            header[56 + 4 * at..60 + 4 * at].copy_from_slice(&word.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&header[..GROUP_HEADER_BYTES - 4]);
        header[GROUP_HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        checksum
    }
}

impl<'a> Group<'a> {
    /// Incarnation, position and bytes of a group of which nothing but the header need be there.
    pub(crate) fn announced(bytes: &[u8]) -> Option<(u64, u64, u64)> {
        let header = bytes.get(..GROUP_HEADER_BYTES)?;
        let sound = &header[..8] == GROUP_MAGIC
            && crc32c::crc32c(&header[..GROUP_HEADER_BYTES - 4]) == number32(header, GROUP_HEADER_BYTES - 4);
        sound.then(|| (number64(header, 48), number64(header, 24), padded(number32(header, 56) as usize) as u64))
    }

    /// The group at the start of `bytes`; none if what stands there is no group, or its checksums
    /// fail. Whether it belongs there is the caller's to see.
    pub fn parse(bytes: &'a [u8]) -> Option<Group<'a>> {
        let header = bytes.get(..GROUP_HEADER_BYTES)?;
        let checksum = number32(header, GROUP_HEADER_BYTES - 4);
        if &header[..8] != GROUP_MAGIC || crc32c::crc32c(&header[..GROUP_HEADER_BYTES - 4]) != checksum {
            return None;
        }
        let (word, half) = (|at: usize| number64(header, 24 + 8 * at), |at: usize| number32(header, 56 + 4 * at));
        let length = half(0);
        let whole = padded(length as usize);
        if (length as usize) < GROUP_HEADER_BYTES {
            return None;
        }
        if crc32c::crc32c(bytes.get(GROUP_HEADER_BYTES..whole)?) != half(4) && !mutant("group-checksum-ignored") {
            return None;
        }
        let kind = match half(1) {
            RECORDS => GroupKind::Records,
            CONTINUED => GroupKind::Continued,
            _ => return None,
        };
        let header = GroupHeader {
            directory: header[8..24].try_into().expect("16 bytes"),
            position: word(0),
            floor: word(1),
            synced: word(2),
            incarnation: word(3),
            length,
            records: half(2),
            previous: half(3),
            kind,
        };
        let sound = header.position.is_multiple_of(BLOCK_BYTES as u64) && header.position < POSITION_MAX;
        let body = &bytes[GROUP_HEADER_BYTES..length as usize];
        sound.then_some(Group { header, body, checksum, bytes: whole })
    }
}

/// In whole blocks.
pub(crate) const fn padded(bytes: usize) -> usize {
    bytes.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}

pub(crate) fn number32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(crate) fn number64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Bytes before a group's records.
pub const GROUP_HEADER_BYTES: usize = 80;
/// Bytes that a segment may have.
pub const SEGMENT_BYTES_MIN: u64 = 8 * BLOCK_BYTES as u64;
/// Bytes that a segment may have.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// Of all that lies in a data directory.
pub const VERSION: u32 = 1;
/// Positions stay below, so sums of them do not overflow.
pub(crate) const POSITION_MAX: u64 = 1 << 62;

const SEGMENT_MAGIC: &[u8; 8] = b"ovsegmnt";
const GROUP_MAGIC: &[u8; 8] = b"ovgroup\0";
const RECORDS: u32 = 1;
const CONTINUED: u32 = 2;
