//! The outline of DELTA_BINARY_PACKED sequences: how many values they claim, where they end.
//!
//! Lengths of byte arrays are stored so, and the decoder allocates what the sequence claims.

use anyhow::{Context, Result, bail, ensure};

/// Checks that each of the first `sequences` in `bytes` claims at most `values_max` values.
///
/// # Errors
/// A sequence claims more, or is damaged.
pub fn check(bytes: &[u8], values_max: u32, sequences: u64) -> Result<()> {
    let mut rest = bytes;
    for _ in 0..sequences {
        rest = after_sequence(rest, values_max)?;
    }
    Ok(())
}

fn after_sequence(bytes: &[u8], values_max: u32) -> Result<&[u8]> {
    let mut rest = bytes;
    let block_values = varint(&mut rest)?;
    let miniblocks = varint(&mut rest)?;
    let values = varint(&mut rest)?;
    let _first = varint(&mut rest)?;
    ensure!(values <= values_max.into(), "a page claims {values} lengths for {values_max} values");
    ensure!(miniblocks > 0 && miniblocks <= 1 << 16, "a page's lengths are damaged");
    let per_miniblock = block_values / miniblocks;
    ensure!(per_miniblock > 0 && per_miniblock <= 1 << 32, "a page's lengths are damaged");
    // The first value stands in the header.
    let mut left = values.saturating_sub(1);
    while left > 0 {
        let _least = varint(&mut rest)?;
        let widths = take(&mut rest, miniblocks)?;
        for width in widths {
            if left == 0 {
                break;
            }
            ensure!(*width <= 64, "a page's lengths are damaged");
            // A miniblock is stored whole, even where its last values are none.
            take(&mut rest, (per_miniblock * u64::from(*width)).div_ceil(8))?;
            left = left.saturating_sub(per_miniblock);
        }
    }
    Ok(rest)
}

fn take<'a>(rest: &mut &'a [u8], count: u64) -> Result<&'a [u8]> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let (taken, after) = rest.split_at_checked(count).context("a page's lengths are cut off")?;
    *rest = after;
    Ok(taken)
}

fn varint(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(value);
        }
    }
    bail!("a number is longer than 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_beyond_the_page_is_refused_in_either_sequence() {
        // Blocks of 128 values in 4 miniblocks, 3 values from 5 on, deltas of width 0.
        let sequence = [0x80, 0x01, 4, 3, 10, 0, 0, 0, 0, 0];
        let two = [sequence, sequence].concat();
        check(&sequence, 3, 1).unwrap();
        check(&two, 3, 2).unwrap();
        assert!(check(&two, 2, 1).is_err());
        assert!(check(&sequence, 3, 2).is_err());
        let mut second = two.clone();
        second[13] = 100;
        assert!(check(&second, 3, 2).unwrap_err().to_string().contains("100 lengths"));
    }
}
