//! Batches of rows or of keys, as requests carry them: each piece behind its u32 length.

use super::BadMessage;

/// Adds a piece to a batch.
pub fn push_piece(batch: &mut Vec<u8>, piece: &[u8]) {
    batch.extend_from_slice(&frame(piece.len()));
    batch.extend_from_slice(piece);
}

/// What stands in front of a piece of so many bytes.
pub(crate) fn frame(bytes: usize) -> [u8; FRAME_BYTES] {
    (bytes as u32).to_le_bytes()
}

/// Bytes of a frame.
pub(crate) const FRAME_BYTES: usize = 4;
/// A request is sent once it has this many bytes: enough to forget its own price, little to hold a
/// worker up.
pub(crate) const REQUEST_BYTES: usize = 48 << 10;

/// The first piece of a batch, and the rest of it; none when it is at its end or ends within the
/// piece.
pub fn split_piece(batch: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = batch.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

/// The pieces of a batch, where they lie.
///
/// # Errors
/// The batch ends within a piece.
pub fn pieces(mut batch: &[u8]) -> Result<Vec<&[u8]>, BadMessage> {
    // Pieces of a batch are of about one length.
    let first = split_piece(batch).map_or(0, |(piece, _)| piece.len());
    let mut out = Vec::with_capacity(batch.len() / (FRAME_BYTES + first) + 1);
    while let Some((piece, rest)) = split_piece(batch) {
        out.push(piece);
        batch = rest;
    }
    if batch.is_empty() { Ok(out) } else { Err(BadMessage("a batch ends within a row")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_batch_is_its_pieces_and_nothing_less_is_one(
            said in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..6),
        ) {
            let mut batch = Vec::new();
            said.iter().for_each(|piece| push_piece(&mut batch, piece));
            prop_assert_eq!(pieces(&batch).unwrap(), said.clone());
            let last = said[said.len() - 1].len();
            for cut in 1..last + 4 {
                prop_assert!(pieces(&batch[..batch.len() - cut]).is_err(), "{} bytes missing", cut);
            }
        }
    }
}
