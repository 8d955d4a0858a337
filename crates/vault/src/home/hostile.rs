//! What a member may say of itself, whoever wrote it: for fuzzing.

use overside_disk::BLOCK_BYTES;
use overside_volume::SumPlaces;

use super::superblock::{DATA_START, LayoutKind, Superblock};

/// Members' first blocks.
#[doc(hidden)]
pub fn seeds_superblock() -> Vec<Vec<u8>> {
    let of = |generation, layout, sums_bytes| Superblock {
        generation,
        id: *b"0123456789abcdef",
        member: 1,
        members: 3,
        layout,
        stripe: 64 << 10,
        volume_bytes: 6 << 30,
        member_bytes: 2 << 30,
        sums_bytes,
        name: "pg".into(),
    };
    let with_sums = |generation| of(generation, LayoutKind::Parity, Superblock::room_for_sums(2 << 30)).bytes();
    let first = of(1, LayoutKind::Stripes, 0).bytes();
    vec![
        [with_sums(7), with_sums(8)].concat(),
        [first, [0; BLOCK_BYTES]].concat(),
        [[0xff; BLOCK_BYTES], first].concat(),
    ]
}

/// Reads a member's first blocks, with the sums that they should have: else none would be looked at
/// but those that this program wrote. What is found must lie in one of the copies, and say where
/// things lie that do not overlap. Whether there is one.
#[doc(hidden)]
pub fn fuzz_superblock(input: &[u8]) -> bool {
    let mut copies = input[..input.len().min(2 * BLOCK_BYTES)].to_vec();
    copies.resize(2 * BLOCK_BYTES, 0);
    for copy in copies.chunks_mut(BLOCK_BYTES) {
        copy[12..16].fill(0);
        let sum = crc32c::crc32c(copy);
        copy[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    let Ok(found) = Superblock::newer(&copies) else { return false };
    assert!(copies.chunks(BLOCK_BYTES).any(|copy| copy == found.bytes()), "it says itself again");
    assert!(found.data_start().checked_add(found.member_bytes).is_some(), "the data end past 64 bits");
    assert!(found.data_start() >= DATA_START && found.member < found.members);
    if let Some(places) = found.sums() {
        let table_end = places.table.saturating_add(SumPlaces::table_bytes(places.bytes));
        assert!(places.bitmap + 2 * BLOCK_BYTES as u64 <= places.table && table_end <= places.data, "parts overlap");
    }
    true
}
