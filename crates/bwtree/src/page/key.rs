//! Keys as pages keep them: a shared prefix, a head of 8 bytes, a tail.

use std::cmp::Ordering;

/// First 8 bytes of `bytes` as a big-endian number, zero-padded: numbers compare like the bytes do,
/// up to ties.
#[inline]
pub(crate) fn head_of(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(b) => u64::from_be_bytes(*b),
        None => {
            let mut b = [0; 8];
            b[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(b)
        }
    }
}

/// Order of two keys of which heads (with [`head_of`]), lengths and bytes past the head are known.
#[inline]
pub(crate) fn order(a: &[u8], head_a: u64, b: &[u8], head_b: u64) -> Ordering {
    head_a.cmp(&head_b).then_with(|| a.cmp(b))
}

/// A key of a leaf page where it lies: shared prefix, head and tail, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyParts<'a> {
    /// Bytes shared by all rows of the page.
    pub common: &'a [u8],
    /// Up to 8 bytes after them.
    pub head: &'a [u8],
    /// The remaining bytes.
    pub tail: &'a [u8],
}

impl KeyParts<'_> {
    /// Bytes of the whole key.
    #[inline]
    pub fn len(&self) -> usize {
        self.common.len() + self.head.len() + self.tail.len()
    }

    /// Whether this is the empty key.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the key's bytes to `out`.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.common);
        out.extend_from_slice(self.head);
        out.extend_from_slice(self.tail);
    }

    /// The key's bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        self.append_to(&mut out);
        out
    }

    /// Byte-wise order against a whole key.
    pub fn compare(&self, key: &[u8]) -> Ordering {
        let mut left = key;
        for part in [self.common, self.head, self.tail] {
            let n = part.len().min(left.len());
            match part[..n].cmp(&left[..n]) {
                Ordering::Equal if n < part.len() => return Ordering::Greater,
                Ordering::Equal => left = &left[n..],
                unequal => return unequal,
            }
        }
        if left.is_empty() { Ordering::Equal } else { Ordering::Less }
    }
}
