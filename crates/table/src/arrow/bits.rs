//! Bits of rows, 64 at a time: validity, and booleans.

use arrow_buffer::{BooleanBuffer, NullBuffer};

use super::store::Store;
use super::strided::Prefixes;
use crate::row::Bytes;

/// One bit a row.
#[derive(Debug)]
pub(super) struct Bits {
    words: Store<u64>,
    rows: usize,
}

impl Bits {
    pub(super) fn new() -> Bits {
        Bits { words: Store::new(), rows: 0 }
    }

    /// Adds a bit for every byte: whether any bit of `mask` is in it.
    pub(super) fn push(&mut self, mut bytes: impl ExactSizeIterator<Item = u8>, mask: u8) {
        while bytes.len() > 0 {
            let count = bytes.len().min(64);
            let mut word = 0;
            for (row, byte) in bytes.by_ref().take(count).enumerate() {
                word |= u64::from(byte & mask != 0) << row;
            }
            self.append(word, count);
        }
    }

    /// Adds `rows` bits that are not set.
    fn skip(&mut self, rows: usize) {
        let words = (self.rows + rows).div_ceil(64) - self.words.len();
        self.words.fill(0, words);
        self.rows += rows;
    }

    /// Adds the lowest `count` bits, 1 to 64, of `word`, which has no others.
    fn append(&mut self, word: u64, count: usize) {
        let at = self.rows % 64;
        if at == 0 {
            self.words.push(word);
        } else {
            if let Some(last) = self.words.written().last_mut() {
                *last |= word << at;
            }
            if at + count > 64 {
                self.words.push(word >> (64 - at));
            }
        }
        self.rows += count;
    }

    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.rows = 0;
    }

    pub(super) fn finish(&mut self) -> BooleanBuffer {
        let rows = std::mem::take(&mut self.rows);
        BooleanBuffer::new(self.words.finish(), 0, rows)
    }
}

/// Which rows of a nullable column are there. Until the first null there is nothing but their
/// number.
#[derive(Debug)]
pub(super) struct Validity {
    /// A set bit is a null while collected.
    absent: Bits,
    rows: usize,
}

impl Validity {
    pub(super) fn new() -> Validity {
        Validity { absent: Bits::new(), rows: 0 }
    }

    /// Adds rows whose byte `byte` has `mask` where they are null; `any` is what these bytes have
    /// in common by `|`.
    pub(super) fn push(&mut self, prefixes: &Prefixes<impl Bytes>, byte: usize, mask: u8, any: u8) {
        if any & mask != 0 {
            self.absent.skip(self.rows - self.absent.rows);
            self.absent.push(prefixes.bytes_at(byte), mask);
        }
        self.rows += prefixes.rows;
    }

    pub(super) fn clear(&mut self) {
        self.absent.clear();
        self.rows = 0;
    }

    /// None when no row is null.
    pub(super) fn finish(&mut self) -> Option<NullBuffer> {
        let rows = std::mem::take(&mut self.rows);
        if self.absent.rows == 0 {
            return None;
        }
        self.absent.skip(rows - self.absent.rows);
        self.absent.words.written().iter_mut().for_each(|word| *word = !*word);
        Some(NullBuffer::new(self.absent.finish()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_are_the_bytes_however_they_are_cut(
            runs in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..200), any::<bool>()), 0..8),
        ) {
            const MASK: u8 = 0b100;
            let (mut bits, mut validity, mut expected) = (Bits::new(), Validity::new(), Vec::new());
            for _ in 0..2 {
                expected.clear();
                for (bytes, clean) in &runs {
                    let bytes: Vec<u8> = bytes.iter().map(|byte| if *clean { byte & !MASK } else { *byte }).collect();
                    bits.push(bytes.iter().copied(), MASK);
                    let any = bytes.iter().fold(0, |any, byte| any | byte);
                    let prefixes = Prefixes { bytes: &bytes[..], stride: 1, rows: bytes.len() };
                    validity.push(&prefixes, 0, MASK, any);
                    expected.extend(bytes.iter().map(|byte| byte & MASK != 0));
                }
                let found: Vec<bool> = bits.finish().iter().collect();
                prop_assert_eq!(&found, &expected);
                match validity.finish() {
                    None => prop_assert!(!expected.contains(&true)),
                    Some(nulls) => {
                        prop_assert!(expected.contains(&true));
                        let absent: Vec<bool> = nulls.iter().map(|valid| !valid).collect();
                        prop_assert_eq!(&absent, &expected);
                    }
                }
            }
        }
    }
}
