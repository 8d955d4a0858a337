//! The writes of a row that a member is missing from, written down before they are carried out.
//!
//! Without them a crash in their middle would change what the missing member's stripe is computed
//! to be. Entries go to the store's places in turn, one after the other, so those that are left are
//! always the newest. A block of 4,096 bytes, little-endian, and the bytes that are written: magic,
//! epoch, sequence number, count, crc32c of all with this field zero; for each write its member,
//! length and first byte.

use overside_memory::Bytes;

use crate::intents::BLOCK;

/// One row's writes: member, first byte there, bytes.
pub(super) type Writes = Vec<(usize, u64, Bytes)>;

/// Where the journal's entries lie in its store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    entry_bytes: u64,
    count: u64,
}

impl Places {
    /// In a store of so many bytes, for rows with as many bytes on all members.
    pub(super) fn new(store_bytes: u64, row_bytes: u64) -> Places {
        let entry_bytes = BLOCK as u64 + row_bytes.next_multiple_of(BLOCK as u64);
        let count = store_bytes.saturating_sub(FIRST) / entry_bytes;
        Places { entry_bytes, count: count.min(ENTRIES_MAX) }
    }

    /// How long the store must be.
    pub(super) fn store_bytes(row_bytes: u64) -> u64 {
        FIRST + ENTRIES_MAX * (BLOCK as u64 + row_bytes.next_multiple_of(BLOCK as u64))
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn entry_bytes(&self) -> usize {
        self.entry_bytes as usize
    }

    pub(super) fn place(&self, sequence: u64) -> u64 {
        FIRST + sequence % self.count * self.entry_bytes
    }
}

/// Writes an entry into `into`; how long it is.
pub(super) fn write(into: &mut [u8], epoch: u64, sequence: u64, writes: &Writes) -> usize {
    into[..BLOCK].fill(0);
    into[..8].copy_from_slice(MAGIC);
    into[8..16].copy_from_slice(&epoch.to_le_bytes());
    into[16..24].copy_from_slice(&sequence.to_le_bytes());
    into[24..28].copy_from_slice(&(writes.len() as u32).to_le_bytes());
    let mut end = BLOCK;
    for (number, (member, at, bytes)) in writes.iter().enumerate() {
        let line = &mut into[HEADER + number * LINE..][..LINE];
        line[..4].copy_from_slice(&(*member as u32).to_le_bytes());
        line[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        line[8..16].copy_from_slice(&at.to_le_bytes());
        into[end..end + bytes.len()].copy_from_slice(bytes);
        end += bytes.len();
    }
    let whole = end.next_multiple_of(BLOCK);
    into[end..whole].fill(0);
    let sum = crc32c::crc32c(&into[..whole]);
    into[28..32].copy_from_slice(&sum.to_le_bytes());
    whole
}

/// An entry as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) sequence: u64,
    /// Member, first byte there, and where the bytes lie in what was read.
    pub(super) writes: Vec<(usize, u64, std::ops::Range<usize>)>,
}

/// Of an epoch; none where there is no whole one.
pub(super) fn parse(read: &mut [u8], epoch: u64) -> Option<Entry> {
    let word = |at: usize| Some(u64::from_le_bytes(read.get(at..at + 8)?.try_into().ok()?));
    let half = |at: usize| Some(u32::from_le_bytes(read.get(at..at + 4)?.try_into().ok()?) as usize);
    let (count, sum) = (half(24)?, half(28)?);
    if read.get(..8)? != MAGIC || word(8)? != epoch || count > WRITES_MAX {
        return None;
    }
    let (mut writes, mut end) = (Vec::new(), BLOCK);
    for line in (0..count).map(|number| HEADER + number * LINE) {
        let length = half(line + 4)?;
        writes.push((half(line)?, word(line + 8)?, end..end.checked_add(length)?));
        end += length;
    }
    let (sequence, whole) = (word(16)?, end.next_multiple_of(BLOCK));
    let read = read.get_mut(..whole)?;
    read[28..32].fill(0);
    (crc32c::crc32c(read) as usize == sum).then_some(Entry { sequence, writes })
}

/// Gives an entry the sum that it should have, whatever else it says: for fuzzing.
pub(super) fn make_sound(read: &mut [u8]) {
    let Some(count) = read.get(24..28) else { return };
    let count = u32::from_le_bytes([count[0], count[1], count[2], count[3]]) as usize;
    let lengths = (0..count.min(WRITES_MAX)).filter_map(|number| {
        let length = read.get(HEADER + number * LINE + 4..HEADER + number * LINE + 8)?;
        Some(u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize)
    });
    let whole = (BLOCK + lengths.sum::<usize>()).next_multiple_of(BLOCK);
    if let Some(read) = read.get_mut(..whole) {
        read[28..32].fill(0);
        let sum = crc32c::crc32c(read);
        read[28..32].copy_from_slice(&sum.to_le_bytes());
    }
}

const MAGIC: &[u8; 8] = b"OVSDROW\n";
const HEADER: usize = 64;
const LINE: usize = 16;
const WRITES_MAX: usize = (BLOCK - HEADER) / LINE;
/// Behind the bitmap's copies.
const FIRST: u64 = 2 * BLOCK as u64;
const ENTRIES_MAX: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intents::buffer;

    #[test]
    fn an_entry_is_read_as_it_was_written_and_nothing_else_is() {
        let mut bytes = buffer(4096).unwrap();
        bytes[..1024].fill(7);
        let writes = vec![(2, 512, Bytes::prefix(bytes, 1024)), (0, 0, Bytes::prefix(buffer(512).unwrap(), 512))];
        let mut into = vec![1; 3 * BLOCK];
        let whole = write(&mut into, 5, 77, &writes);
        assert_eq!(whole, 2 * BLOCK);
        let expected =
            Entry { sequence: 77, writes: vec![(2, 512, BLOCK..BLOCK + 1024), (0, 0, BLOCK + 1024..BLOCK + 1536)] };
        assert_eq!(parse(&mut into.clone(), 5), Some(expected));
        assert_eq!(parse(&mut into.clone(), 6), None);
        for at in 0..whole {
            let mut near = into.clone();
            near[at] ^= 0x81;
            assert_eq!(parse(&mut near, 5), None, "byte {at}");
        }
        for cut in [0, 7, 40, BLOCK - 1, BLOCK, whole - 1] {
            assert_eq!(parse(&mut into[..cut].to_vec(), 5), None);
        }
    }

    #[test]
    fn places_do_not_overlap() {
        let places = Places::new(Places::store_bytes(3 * 65536), 3 * 65536);
        assert_eq!(places.count(), ENTRIES_MAX);
        let all: Vec<u64> = (0..ENTRIES_MAX).map(|sequence| places.place(sequence)).collect();
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] == places.entry_bytes() as u64) && all[0] == FIRST);
        assert_eq!(Places::new(4096, 512).count(), 0);
    }
}
