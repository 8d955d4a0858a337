//! What a row holds after its v-th write: a function of the row and v alone, so that any process
//! can write it and any other can tell what it must be.

use super::Row;

/// `base`, which is row `index` as generated, as its `version`-th write
/// leaves it, from the second on.
pub(crate) fn changed<'a>(base: Row<'a>, index: usize, version: i64, comment: &'a str) -> Row<'a> {
    let random = mix(index as u64, version as u64);
    let mut row = Row {
        quantity: 100 * (1 + (random % 50) as i64),
        discount: ((random >> 8) % 11) as i64,
        extendedprice: 90_000 + ((random >> 12) % 10_404_951) as i64,
        comment,
        version,
        ..base
    };
    row.checksum = row.sum();
    row
}

/// Which of `rows` rows that version has its comment from.
pub(crate) fn comment_from(index: usize, version: i64, rows: usize) -> usize {
    (mix(index as u64, version as u64) >> 16) as usize % rows
}

fn mix(index: u64, version: u64) -> u64 {
    let mut z = index.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ version.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    z = (z ^ (z >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    z ^ (z >> 32)
}

#[cfg(test)]
mod tests {
    use crate::lineitem::{Lineitem, Rows};

    #[test]
    fn versions_differ_are_whole_and_can_be_told_again() {
        let table = Lineitem::sample(0.0005);
        let rows = table.rows();
        for index in [0, 17, rows.len() - 1] {
            let versions: Vec<_> = (1..20).map(|v| rows.at_version(index, v)).collect();
            assert_eq!(versions[0], rows.row(index));
            for (at, row) in versions.iter().enumerate() {
                assert!(row.whole());
                assert_eq!(row.version, at as i64 + 1);
                assert_eq!(row.key(), rows.row(index).key());
                let earlier = &versions[..at];
                assert!(earlier.iter().all(|e| e.extendedprice != row.extendedprice));
                assert_eq!(*row, rows.at_version(index, at as i64 + 1));
            }
        }
    }
}
