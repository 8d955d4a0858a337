//! The end of a file of pages: where its parts are.

use overside_disk::BLOCK_BYTES;

use crate::group::{number32, number64, padded};

/// What a file of pages holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// In the order of keys.
    pub parts: Vec<PageGroup>,
}

/// Pages that lie together in a file and can be read by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageGroup {
    /// Place in the file, at a block.
    pub at: u64,
    /// Bytes of its pages; what follows up to a block is zero.
    pub bytes: u64,
    /// How many pages.
    pub pages: u64,
    /// How many rows.
    pub rows: u64,
    /// Checksum of the pages' checksums.
    pub checksum: u32,
}

impl Footer {
    /// As bytes, in whole blocks, and their checksum.
    pub fn write(&self) -> (Vec<u8>, u32) {
        let mut bytes = FOOTER_MAGIC.to_vec();
        bytes.extend((self.parts.len() as u64).to_le_bytes());
        for part in &self.parts {
            for word in [part.at, part.bytes, part.pages, part.rows, u64::from(part.checksum)] {
                bytes.extend(word.to_le_bytes());
            }
        }
        bytes.resize(padded(bytes.len()), 0);
        let checksum = crc32c::crc32c(&bytes);
        (bytes, checksum)
    }

    /// What [`write`](Self::write) gave. None for anything else.
    pub fn parse(bytes: &[u8], checksum: u32) -> Option<Footer> {
        if crc32c::crc32c(bytes) != checksum || bytes.get(..8)? != FOOTER_MAGIC {
            return None;
        }
        let count = usize::try_from(number64(bytes.get(..16)?, 8)).ok()?;
        let listed = bytes.get(16..)?.get(..count.checked_mul(PART_BYTES)?)?;
        let part = |bytes: &[u8]| {
            let word = |at: usize| number64(bytes, 8 * at);
            PageGroup { at: word(0), bytes: word(1), pages: word(2), rows: word(3), checksum: number32(bytes, 32) }
        };
        let parts: Vec<PageGroup> = listed.chunks_exact(PART_BYTES).map(part).collect();
        let sound = |part: &PageGroup| {
            part.at.is_multiple_of(BLOCK_BYTES as u64)
                && part.at.checked_add(part.bytes).is_some_and(|end| end < 1 << 62)
        };
        parts.iter().all(sound).then_some(Footer { parts })
    }

    /// Pages in all.
    pub fn pages(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.pages))
    }

    /// Rows in all.
    pub fn rows(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.rows))
    }
}

const FOOTER_MAGIC: &[u8; 8] = b"ovfooter";
const PART_BYTES: usize = 40;
