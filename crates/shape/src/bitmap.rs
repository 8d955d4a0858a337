//! A bitmap over rows, counted once.

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use crate::error::ShapeError;

/// One bit a row, the least significant first, as Arrow lays them out. Cloning and slicing share
/// the words.
///
/// Counting, hashing and the directory for [`select`](Self::select) are done once, at construction.
#[derive(Clone, Debug)]
pub struct Bitmap {
    words: Arc<[u64]>,
    /// Bit of `words` that is row 0.
    first: u64,
    rows: u64,
    ones: u64,
    /// Ones before each block of [`BLOCK_WORDS`] words of this bitmap's own rows.
    ranks: Arc<[u64]>,
    fingerprint: u64,
}

impl Bitmap {
    /// `rows` bits of `words`; what stands behind the last row does not count.
    ///
    /// # Errors
    /// [`ShapeError::Bitmap`] unless there are exactly as many words as the rows take.
    pub fn new(words: impl Into<Arc<[u64]>>, rows: u64) -> Result<Self, ShapeError> {
        let words = words.into();
        let needed = rows.div_ceil(64);
        if words.len() as u64 != needed {
            return Err(ShapeError::Bitmap { words: words.len() as u64, rows, needed });
        }
        Ok(Self::windowed(words, 0, rows))
    }

    /// A bitmap of `rows` rows, of which those belong that `belongs` says.
    pub fn of(rows: u64, mut belongs: impl FnMut(u64) -> bool) -> Self {
        let word = |i: u64, belongs: &mut dyn FnMut(u64) -> bool| {
            let bits = (rows - i * 64).min(64);
            (0..bits).fold(0u64, |word, bit| word | u64::from(belongs(i * 64 + bit)) << bit)
        };
        let words: Arc<[u64]> = (0..rows.div_ceil(64)).map(|i| word(i, &mut belongs)).collect();
        Self::windowed(words, 0, rows)
    }

    fn windowed(words: Arc<[u64]>, first: u64, rows: u64) -> Self {
        let mut out = Self { words, first, rows, ones: 0, ranks: Arc::new([]), fingerprint: 0 };
        let count = out.word_count();
        let mut ranks = Vec::with_capacity(count.div_ceil(BLOCK_WORDS));
        // Several at once: each step of a fingerprint waits for the one before it.
        let mut prints = [rows, 1, 2, 3];
        for from in (0..count).step_by(BLOCK_WORDS) {
            ranks.push(out.ones);
            let block = out.block(from);
            out.ones += block.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
            for words in block.as_chunks::<4>().0 {
                for (print, word) in prints.iter_mut().zip(words) {
                    *print = (print.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                }
            }
        }
        out.fingerprint = prints.into_iter().reduce(|all, one| all.rotate_left(17) ^ one).unwrap_or(rows);
        out.ranks = ranks.into();
        out
    }

    /// Words `from` to `from + BLOCK_WORDS - 1`; zero behind the last.
    #[inline]
    fn block(&self, from: usize) -> [u64; BLOCK_WORDS] {
        match self.words().and_then(|words| words[from..].first_chunk()) {
            Some(whole) if (from + BLOCK_WORDS) as u64 * 64 <= self.rows => *whole,
            _ => std::array::from_fn(|i| self.word(from + i)),
        }
    }

    /// Rows, set or not.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows that are set.
    pub fn ones(&self) -> u64 {
        self.ones
    }

    /// Words of 64 rows.
    pub fn word_count(&self) -> usize {
        self.rows.div_ceil(64) as usize
    }

    /// Rows `64 * i` to `64 * i + 63`; zero bits behind the last row.
    #[inline]
    pub fn word(&self, i: usize) -> u64 {
        let left = self.rows.saturating_sub(i as u64 * 64);
        if left == 0 {
            return 0;
        }
        let (at, shift) = ((self.first / 64) as usize + i, self.first % 64);
        let low = self.words[at] >> shift;
        // The next word exists if it holds rows of ours; bits of rows that are not are masked below.
        let high = if shift == 0 { 0 } else { self.words.get(at + 1).map_or(0, |w| w << (64 - shift)) };
        let word = low | high;
        if left < 64 { word & ((1 << left) - 1) } else { word }
    }

    /// The words themselves where row 0 is the first bit of a word, else none. Bits behind the last
    /// row may be set.
    pub fn words(&self) -> Option<&[u64]> {
        let at = (self.first / 64) as usize;
        self.first.is_multiple_of(64).then(|| &self.words[at..at + self.word_count()])
    }

    /// The words that hold its bits, and the number of the bit that row 0 is; what stands before it
    /// and behind the last row belongs to others.
    pub fn window(&self) -> (&[u64], u64) {
        let (from, to) = (self.first / 64, (self.first + self.rows).div_ceil(64));
        (&self.words[from as usize..to as usize], self.first % 64)
    }

    /// Whether `row` is set.
    pub fn contains(&self, row: u64) -> bool {
        row < self.rows && self.word((row / 64) as usize) >> (row % 64) & 1 == 1
    }

    /// Set rows before `row`.
    pub fn rank(&self, row: u64) -> u64 {
        if row >= self.rows {
            return self.ones;
        }
        let word = (row / 64) as usize;
        let block = word / BLOCK_WORDS;
        let whole: u64 = (block * BLOCK_WORDS..word).map(|i| u64::from(self.word(i).count_ones())).sum();
        let below = self.word(word) & ((1u64 << (row % 64)) - 1);
        self.ranks[block] + whole + u64::from(below.count_ones())
    }

    /// The row of the set row number `k`, counted from 0.
    pub fn select(&self, k: u64) -> Option<u64> {
        self.ones_from(k).next()
    }

    /// The set rows from number `k` on, ascending.
    pub fn ones_from(&self, k: u64) -> Ones<'_> {
        if k >= self.ones {
            return Ones { bitmap: self, index: self.word_count(), word: 0 };
        }
        let block = self.ranks.partition_point(|before| *before <= k) - 1;
        let mut left = k - self.ranks[block];
        let mut index = block * BLOCK_WORDS;
        let mut word = self.word(index);
        while left >= u64::from(word.count_ones()) {
            left -= u64::from(word.count_ones());
            index += 1;
            word = self.word(index);
        }
        for _ in 0..left {
            word &= word - 1;
        }
        Ones { bitmap: self, index, word }
    }

    /// The rows of `range` as a bitmap of their own, over the same words.
    ///
    /// # Panics
    /// When the range leaves the bitmap.
    pub fn slice(&self, range: Range<u64>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        Self::windowed(self.words.clone(), self.first + range.start, range.end - range.start)
    }

    /// How many maximal runs of set rows there are.
    pub fn spans(&self) -> u64 {
        let mut carry = 0;
        let mut spans = 0;
        for i in 0..self.word_count() {
            let word = self.word(i);
            spans += u64::from((word & !(word << 1 | carry)).count_ones());
            carry = word >> 63;
        }
        spans
    }

    /// First and last set row.
    pub(crate) fn reach(&self) -> Option<(u64, u64)> {
        let (first, last) = (self.select(0)?, self.select(self.ones - 1)?);
        Some((first, last))
    }

    /// The distance between set rows, if it is one and the same for all of two rows or more.
    pub(crate) fn step(&self) -> Option<u64> {
        let (first, last) = self.reach()?;
        let between = self.ones - 1;
        if between == 0 || !(last - first).is_multiple_of(between) {
            return None;
        }
        let step = (last - first) / between;
        let regular = step == 1 || self.ones_from(0).enumerate().all(|(i, row)| row == first + i as u64 * step);
        regular.then_some(step)
    }
}

impl PartialEq for Bitmap {
    fn eq(&self, other: &Self) -> bool {
        let alike = self.rows == other.rows && self.ones == other.ones && self.fingerprint == other.fingerprint;
        let shared = Arc::ptr_eq(&self.words, &other.words) && self.first == other.first;
        alike && (shared || (0..self.word_count()).all(|i| self.word(i) == other.word(i)))
    }
}

impl Eq for Bitmap {}

impl Hash for Bitmap {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.fingerprint);
    }
}

/// Set rows, ascending. See [`Bitmap::ones_from`].
#[derive(Clone, Debug)]
pub struct Ones<'a> {
    bitmap: &'a Bitmap,
    index: usize,
    word: u64,
}

impl Ones<'_> {
    /// The next set row and how many set rows follow it without a gap, itself included (at most to
    /// the end of its word).
    #[inline]
    pub fn next_span(&mut self) -> Option<(u64, u64)> {
        let row = self.peek()?;
        let bit = row % 64;
        let len = (self.word >> bit).trailing_ones();
        let taken = if len == 64 { u64::MAX } else { ((1u64 << len) - 1) << bit };
        self.word &= !taken;
        Some((row, u64::from(len)))
    }

    #[inline]
    fn peek(&mut self) -> Option<u64> {
        while self.word == 0 {
            self.index += 1;
            if self.index >= self.bitmap.word_count() {
                return None;
            }
            self.word = self.bitmap.word(self.index);
        }
        Some(self.index as u64 * 64 + u64::from(self.word.trailing_zeros()))
    }
}

impl Iterator for Ones<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        let row = self.peek()?;
        self.word &= self.word - 1;
        Some(row)
    }
}

/// Words between two entries of the directory: 1024 rows, so that it takes 1/16 of the bitmap.
/// Whoever makes a region message by message looks its place up for each, and counting through a
/// block is most of that.
pub(crate) const BLOCK_WORDS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bitmap_of_the_wrong_length_is_refused() {
        let refused = Bitmap::new(vec![0u64; 2], 129).unwrap_err();
        assert_eq!(refused, ShapeError::Bitmap { words: 2, rows: 129, needed: 3 });
        assert!(refused.to_string().starts_with("bitmap: "));
        assert!(Bitmap::new(vec![0u64; 3], 128).is_err());
    }

    #[test]
    fn bits_behind_the_last_row_do_not_count() {
        let loose = Bitmap::new(vec![u64::MAX], 3).unwrap();
        assert_eq!((loose.ones(), loose.clone()), (3, Bitmap::of(3, |_| true)));
    }

    proptest! {
        #[test]
        fn it_answers_as_a_vector_of_booleans_does(
            bits in proptest::collection::vec(any::<bool>(), 0..700), from in 0usize..700, len in 0usize..700,
            repeat in 1usize..14,
        ) {
            let bits: Vec<bool> = bits.iter().copied().cycle().take(bits.len() * repeat).collect();
            let whole = Bitmap::of(bits.len() as u64, |row| bits[row as usize]);
            let from = from.min(bits.len());
            let to = (from + len).min(bits.len());
            let part = whole.slice(from as u64..to as u64);
            for (bitmap, bits) in [(&whole, &bits[..]), (&part, &bits[from..to])] {
                let rows: Vec<u64> = (0..bits.len() as u64).filter(|r| bits[*r as usize]).collect();
                prop_assert_eq!(bitmap.ones(), rows.len() as u64);
                prop_assert_eq!(bitmap.ones_from(0).collect::<Vec<_>>(), rows.clone());
                for k in [0, rows.len() / 3, rows.len() / 2, rows.len()] {
                    prop_assert_eq!(bitmap.select(k as u64), rows.get(k).copied());
                }
                for row in [0, bits.len() / 3, bits.len()] {
                    let rank = bits[..row].iter().filter(|b| **b).count();
                    prop_assert_eq!(bitmap.rank(row as u64), rank as u64);
                }
                let mut spans = 0;
                for i in 0..bits.len() { spans += u64::from(bits[i] && (i == 0 || !bits[i - 1])); }
                prop_assert_eq!(bitmap.spans(), spans);
                let again = Bitmap::of(bits.len() as u64, |row| bits[row as usize]);
                prop_assert_eq!(&again, bitmap);
            }
        }
    }
}
