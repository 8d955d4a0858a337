//! What is longer than a receive buffer travels in parts.
//!
//! Parts of one message follow one another without anything between them. Header, little-endian:
//! magic u32, total length u32, offset u32, zero u32; then bytes up to the buffer's end.

use crate::envelope::{BadMessage, PART_MAGIC};

/// Longest message that travels in parts.
pub const ASSEMBLY_BYTES_MAX: usize = 4 << 20;
/// Bytes before a part's payload.
pub const PART_HEADER: usize = 16;

/// The parts of a message for receive buffers of `block_bytes`: the header of each, and which bytes
/// of the message follow it.
pub fn cut(
    message_len: usize,
    block_bytes: usize,
) -> impl Iterator<Item = ([u8; PART_HEADER], std::ops::Range<usize>)> {
    let step = block_bytes.saturating_sub(PART_HEADER).max(1);
    (0..message_len).step_by(step).map(move |at| {
        let mut header = [0; PART_HEADER];
        header[..4].copy_from_slice(&PART_MAGIC.to_le_bytes());
        header[4..8].copy_from_slice(&(message_len as u32).to_le_bytes());
        header[8..12].copy_from_slice(&(at as u32).to_le_bytes());
        (header, at..(at + step).min(message_len))
    })
}

/// Puts parts together again.
#[derive(Debug, Default)]
pub struct Assembly {
    total: usize,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Takes the next part; the whole message once it is complete.
    ///
    /// # Errors
    /// [`BadMessage`] for parts out of order, longer than announced, or of an absurd whole.
    pub fn add(&mut self, part: &[u8]) -> Result<Option<Vec<u8>>, BadMessage> {
        let (header, payload) = part.split_at_checked(PART_HEADER).ok_or(BadMessage("a part without a header"))?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i])) as usize;
        let (total, at) = (word(4), word(8));
        if self.bytes.is_empty() {
            if total > ASSEMBLY_BYTES_MAX {
                return Err(BadMessage("a message in parts that is too long"));
            }
            self.total = total;
        }
        let fits = at == self.bytes.len() && total == self.total && at + payload.len() <= total;
        if word(0) != PART_MAGIC as usize || !fits || payload.is_empty() {
            return Err(BadMessage("parts that do not follow one another"));
        }
        self.bytes.extend_from_slice(payload);
        Ok((self.bytes.len() == total).then(|| std::mem::take(&mut self.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_make_the_whole(message in proptest::collection::vec(any::<u8>(), 1..2000), block in 17usize..400) {
            let mut assembly = Assembly::default();
            let mut whole = None;
            for (header, range) in cut(message.len(), block) {
                prop_assert!(whole.is_none());
                let part = [&header[..], &message[range]].concat();
                prop_assert!(part.len() <= block);
                whole = assembly.add(&part).unwrap();
            }
            prop_assert_eq!(whole, Some(message));
        }

        #[test]
        fn garbage_parts_are_errors_or_nothing(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..6)) {
            let mut assembly = Assembly::default();
            for mut part in parts {
                if part.len() > 4 { part[..4].copy_from_slice(&PART_MAGIC.to_le_bytes()); }
                if assembly.add(&part).is_err() { break }
            }
        }
    }
}
