//! What messages came to, in their order and with their borders.

/// A running digest of messages.
#[derive(Clone, Copy, Debug)]
pub struct Digest {
    value: u64,
    messages: u64,
}

impl Default for Digest {
    fn default() -> Digest {
        Digest { value: SEED, messages: 0 }
    }
}

impl Digest {
    /// Takes a message in: its length first, so that a border that moves is a difference.
    pub fn message(&mut self, bytes: &[u8]) {
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

    /// Messages so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// The digest so far.
    pub fn value(&self) -> u64 {
        self.value
    }
}

fn mixed(value: u64, word: u64) -> u64 {
    (value ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

const SEED: u64 = 0x0B5E_55ED_0B5E_55ED;

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(messages: &[&[u8]]) -> (u64, u64) {
        let mut digest = Digest::default();
        messages.iter().for_each(|message| digest.message(message));
        (digest.messages(), digest.value())
    }

    #[test]
    fn bytes_order_and_borders_count() {
        let whole = digest(&[b"abcd", b"efgh", b"ijkl"]);
        assert_eq!(whole.0, 3);
        assert_eq!(whole, digest(&[b"abcd", b"efgh", b"ijkl"]));
        for other in [&[&b"abcdefgh"[..], b"ijkl"][..], &[b"efgh", b"abcd", b"ijkl"], &[b"abcd", b"efg", b"hijkl"]] {
            assert_ne!(whole.1, digest(other).1);
        }
        assert_ne!(digest(&[b"a\0"]).1, digest(&[b"a"]).1);
        assert_ne!(digest(&[b"abcdefg\0"]).1, digest(&[b"abcdefg"]).1);
    }
}
