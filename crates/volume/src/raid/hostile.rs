//! What a store may say, whoever wrote it: for fuzzing.
//!
//! Sums are made to fit first. Else no input but those that this program wrote would be looked at.

use overside_memory::Bytes;

use super::journal;
use crate::intents::{self, BLOCK, Image};

/// An image: bytes of the volume and of a row, 8 bytes each, and the block.
#[doc(hidden)]
pub fn seeds_intents() -> Vec<Vec<u8>> {
    let seed = |volume: u64, row: u64, written: &[usize], torn: &[usize]| {
        let image = Image::with(volume, row, written, torn);
        [&volume.to_le_bytes()[..], &row.to_le_bytes(), &image.bytes()].concat()
    };
    vec![seed(10 << 30, 3 * 65536, &[0, 9], &[]), seed(768 << 10, 512, &[], &[2]), seed(0, 1, &[], &[])]
}

/// Parses an image, and holds it against what an array takes for granted. Whether it was one.
#[doc(hidden)]
pub fn fuzz_intents(input: &[u8]) -> bool {
    let Some((volume, rest)) = input.split_first_chunk::<8>() else { return false };
    let Some((row, block)) = rest.split_first_chunk::<8>() else { return false };
    let (volume, row, mut block) = (u64::from_le_bytes(*volume), u64::from_le_bytes(*row), block.to_vec());
    if block.len() == BLOCK {
        block[12..16].fill(0);
        let sum = crc32c::crc32c(&block);
        block[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    let Some(image) = Image::parse(&block, volume, row) else { return false };
    assert_eq!(image.bytes()[..], block, "an image says itself again");
    let mut end = 0;
    for region in 0..image.regions() {
        let (at, length) = image.range(region);
        assert!(at == end && length > 0 && length <= volume - at, "regions follow each other in the volume");
        assert!(at.is_multiple_of(row.max(1)), "a region is whole rows");
        end = at + length;
    }
    assert_eq!(end, volume, "the regions are the volume");
    true
}

/// An entry of the journal.
#[doc(hidden)]
pub fn seeds_journal() -> Vec<Vec<u8>> {
    let bytes = |length: usize, with: u8| {
        let mut bytes = intents::buffer(length.max(1)).expect("there is memory");
        bytes.fill(with);
        Bytes::prefix(bytes, length)
    };
    let seed = |sequence, writes: journal::Writes| {
        let mut into = vec![0; 4 * BLOCK];
        let whole = journal::write(&mut into, 5, sequence, &writes);
        into.truncate(whole);
        into
    };
    vec![seed(77, vec![(2, 512, bytes(1024, 7)), (0, 0, bytes(512, 9))]), seed(0, vec![(4, 1 << 40, bytes(8192, 1))])]
}

/// Parses an entry of the epoch that it names, and holds what it says against its bytes. Whether it
/// was one.
#[doc(hidden)]
pub fn fuzz_journal(input: &[u8]) -> bool {
    let mut read = input.to_vec();
    let epoch = read.get(8..16).and_then(|epoch| epoch.try_into().ok()).map_or(0, u64::from_le_bytes);
    journal::make_sound(&mut read);
    let Some(entry) = journal::parse(&mut read.clone(), epoch) else { return false };
    assert_eq!(journal::parse(&mut read.clone(), epoch.wrapping_add(1)), None, "of another epoch");
    let mut end = BLOCK;
    let writes: journal::Writes = (entry.writes.iter())
        .map(|(member, at, range)| {
            assert!(range.start == end && range.end <= read.len(), "writes lie behind each other");
            end = range.end;
            let mut bytes = intents::buffer(range.len().max(1)).expect("there is memory");
            bytes[..range.len()].copy_from_slice(&read[range.clone()]);
            (*member, *at, Bytes::prefix(bytes, range.len()))
        })
        .collect();
    let mut again = vec![0; end.next_multiple_of(BLOCK)];
    journal::write(&mut again, epoch, entry.sequence, &writes);
    assert_eq!(journal::parse(&mut again, epoch), Some(entry), "an entry is read as it was written");
    true
}
