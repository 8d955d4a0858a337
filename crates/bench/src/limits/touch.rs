//! What a consumer reads of a row, the same for every side of every comparison.

use overside::table::row::Bytes;

/// What reading came to; pass it on so that the reads are not optimised away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Rows read.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// A sum over what was read.
    pub sum: u64,
}

impl Touched {
    /// Adds another's rows.
    pub fn add(&mut self, other: Touched) {
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Takes rows away that were added before.
    pub fn remove(&mut self, other: Touched) {
        self.rows -= other.rows;
        self.bytes -= other.bytes;
        self.sum = self.sum.wrapping_sub(other.sum);
    }
}

/// Reads a byte of each cache line that `bytes` lies in, and its last byte.
///
/// Two lines a turn, the second without a branch. Where rows end now before and now after the end
/// of a line, a turn for each line costs a branch that no processor predicts, and a miss takes
/// longer than reading the row.
#[inline]
pub fn touch(bytes: &[u8]) -> u64 {
    let mut sum = bytes.last().map_or(0, |byte| u64::from(*byte));
    for pair in bytes.chunks(2 * LINE_BYTES) {
        let second = pair[LINE_BYTES.min(pair.len() - 1)];
        sum = sum.wrapping_add(u64::from(pair[0]) + u64::from(second) * u64::from(pair.len() > LINE_BYTES));
    }
    sum
}

/// As [`touch`], of bytes that lie in the server's memory: two lines a turn, too.
#[inline]
pub fn touch_lent<P: Bytes>(bytes: P) -> u64 {
    let byte = |at| bytes.load(at).map_or(0, |[byte]: [u8; 1]| u64::from(byte));
    let Some(last) = bytes.len().checked_sub(1) else { return 0 };
    (0..=last).step_by(2 * LINE_BYTES).fold(byte(last), |sum, at| {
        let second = byte((at + LINE_BYTES).min(last)) * u64::from(last - at >= LINE_BYTES);
        sum.wrapping_add(byte(at)).wrapping_add(second)
    })
}

const LINE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_counts() {
        let mut bytes = [0u8; 200];
        for at in [0, 64, 128, 192, 199] {
            assert_eq!(touch(&bytes), 0);
            bytes[at] = 1;
            assert_eq!(touch(&bytes), 1, "byte {at}");
            bytes[at] = 0;
        }
        assert_eq!(touch(&[]), 0);
        // Each length, around the ends of lines: as many lines as there are, and the last byte.
        for length in 1..=400usize {
            assert_eq!(touch(&[1; 400][..length]), length.div_ceil(64) as u64 + 1, "{length} bytes");
        }
    }
}
