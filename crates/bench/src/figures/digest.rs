//! What messages came to, in their order and with their boundaries.

/// A running digest of messages. Rows bundled into one message count as messages of their own, so that ways of sending
/// that bundle differently are held against one another.
#[derive(Clone, Copy, Debug)]
pub struct Digest {
    row_bytes: usize,
    value: u64,
    messages: u64,
}

impl Digest {
    /// Of messages that bundle rows of `row_bytes` each; 0 for messages that are one each.
    pub fn of_rows(row_bytes: u64) -> Digest {
        Digest { row_bytes: row_bytes as usize, value: SEED, messages: 0 }
    }

    /// Takes a message in.
    pub fn message(&mut self, bytes: &[u8]) {
        match self.row_bytes {
            0 => self.row(bytes),
            row_bytes => bytes.chunks(row_bytes).for_each(|row| self.row(row)),
        }
    }

    /// Messages so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// The digest so far.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Length first, so that a boundary that moves is a difference.
    fn row(&mut self, bytes: &[u8]) {
        self.messages += 1;
        self.value = mixed(self.value, bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.value = mixed(self.value, u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.value = mixed(self.value, u64::from_le_bytes(last));
    }
}

fn mixed(value: u64, word: u64) -> u64 {
    (value ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

const SEED: u64 = 0x0B5E_55ED_0B5E_55ED;

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(row_bytes: u64, messages: &[&[u8]]) -> (u64, u64) {
        let mut digest = Digest::of_rows(row_bytes);
        messages.iter().for_each(|message| digest.message(message));
        (digest.messages(), digest.value())
    }

    #[test]
    fn bundles_of_rows_are_the_rows_and_boundaries_count() {
        let whole = digest(4, &[b"abcdefgh", b"ijkl"]);
        assert_eq!(whole, digest(4, &[b"abcd", b"efghijkl"]));
        assert_eq!(whole, digest(0, &[b"abcd", b"efgh", b"ijkl"]));
        assert_ne!(whole.1, digest(0, &[b"abcdefgh", b"ijkl"]).1);
        assert_ne!(whole.1, digest(0, &[b"efgh", b"abcd", b"ijkl"]).1);
        assert_ne!(digest(0, &[b"a\0"]).1, digest(0, &[b"a"]).1);
        assert_ne!(digest(0, &[b"abcdefg\0"]).1, digest(0, &[b"abcdefg"]).1);
    }
}
