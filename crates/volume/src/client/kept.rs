//! What a node has acknowledged and no FLUSH has covered: it is written again when the node comes
//! back without it.
//!
//! A map of the volume, and not a list of writes: what was written over is not kept, so the order
//! in which pieces are written again does not matter.

use std::collections::BTreeMap;

/// What a loss of power at the node may undo.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// By first byte. None overlap.
    pieces: BTreeMap<u64, Piece>,
    /// Of all pieces, what they cost.
    bytes: u64,
    /// The next piece's turn.
    turn: u64,
}

#[derive(Debug)]
struct Piece {
    /// In the order of acknowledgements.
    turn: u64,
    what: What,
}

/// What is written again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Bytes(Vec<u8>),
    Zero(u64),
    Discard(u64),
}

impl What {
    pub(super) fn length(&self) -> u64 {
        match self {
            What::Bytes(bytes) => bytes.len() as u64,
            What::Zero(length) | What::Discard(length) => *length,
        }
    }

    /// Bytes that ride in the message of a request.
    pub(super) fn payload(&self) -> u64 {
        if let What::Bytes(bytes) = self { bytes.len() as u64 } else { 0 }
    }

    fn cost(&self) -> u64 {
        self.payload() + PIECE_BYTES
    }

    /// Keeps the first so many bytes; the rest.
    fn split_off(&mut self, length: u64) -> What {
        match self {
            What::Bytes(bytes) => What::Bytes(bytes.split_off(length as usize)),
            What::Zero(whole) => What::Zero(std::mem::replace(whole, length) - length),
            What::Discard(whole) => What::Discard(std::mem::replace(whole, length) - length),
        }
    }
}

impl Kept {
    /// A write was acknowledged that is not on stable storage.
    pub(super) fn remember(&mut self, at: u64, what: What) {
        self.forget(at, what.length());
        self.turn += 1;
        self.insert(at, self.turn, what);
    }

    /// What is there is on stable storage.
    pub(super) fn forget(&mut self, at: u64, length: u64) {
        let end = at + length;
        let before = self.pieces.range(..at).next_back().filter(|(first, piece)| *first + piece.what.length() > at);
        let first = before.map_or(at, |(first, _)| *first);
        let touched: Vec<u64> = self.pieces.range(first..end).map(|(first, _)| *first).collect();
        for first in touched {
            let Some(Piece { turn, mut what }) = self.remove(first) else { continue };
            if first + what.length() > end {
                let behind = what.split_off(end - first);
                self.insert(end, turn, behind);
            }
            if first < at {
                what.split_off(at - first);
                self.insert(first, turn, what);
            }
        }
    }

    fn insert(&mut self, at: u64, turn: u64, what: What) {
        self.bytes += what.cost();
        self.pieces.insert(at, Piece { turn, what });
    }

    fn remove(&mut self, at: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&at)?;
        self.bytes -= piece.what.cost();
        Some(piece)
    }

    /// All that is kept by now, for [`flushed`](Self::flushed).
    pub(super) fn mark(&self) -> u64 {
        self.turn
    }

    /// A FLUSH that was asked for at this mark has been acknowledged.
    pub(super) fn flushed(&mut self, mark: u64) {
        let safe: Vec<u64> =
            self.pieces.iter().filter(|(_, piece)| piece.turn <= mark).map(|(first, _)| *first).collect();
        safe.into_iter().for_each(|first| drop(self.remove(first)));
    }

    /// Bytes of memory that it takes, or nearly.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where pieces begin.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> + '_ {
        self.pieces.keys().copied()
    }

    /// The piece that begins there.
    pub(super) fn piece(&self, at: u64) -> Option<&What> {
        self.pieces.get(&at).map(|piece| &piece.what)
    }

    pub(super) fn clear(&mut self) {
        (self.pieces, self.bytes) = (BTreeMap::new(), 0);
    }
}

/// What a piece costs apart from its bytes.
const PIECE_BYTES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u64, bool),
        Zero(u64, u64),
        Mark,
        Flushed,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let range = || (0u64..30, 1u64..8);
        let step = prop_oneof![
            5 => (range(), any::<bool>()).prop_map(|((at, length), fua)| Step::Write(at, length, fua)),
            2 => range().prop_map(|(at, length)| Step::Zero(at, length)),
            1 => Just(Step::Mark),
            1 => Just(Step::Flushed),
        ];
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        /// A node that loses all that it may, and gets what is kept in any order, has what it had.
        #[test]
        fn what_is_lost_comes_back(steps in steps(), backwards: bool) {
            let (mut kept, mut now, mut safe) = (Kept::default(), [0u8; 40], [0u8; 40]);
            let mut mark = None;
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Write(at, length, fua) => {
                        let range = at as usize..(at + length) as usize;
                        now[range.clone()].fill(number as u8 + 1);
                        if fua {
                            safe[range].fill(number as u8 + 1);
                            if let Some((_, snapshot)) = &mut mark {
                                let snapshot: &mut [u8; 40] = snapshot;
                                snapshot[at as usize..(at + length) as usize].fill(number as u8 + 1);
                            }
                            kept.forget(at, length);
                        } else {
                            kept.remember(at, What::Bytes(vec![number as u8 + 1; length as usize]));
                        }
                    }
                    Step::Zero(at, length) => {
                        now[at as usize..(at + length) as usize].fill(0);
                        kept.remember(at, if number % 2 == 0 { What::Zero(length) } else { What::Discard(length) });
                    }
                    Step::Mark => mark = Some((kept.mark(), now)),
                    Step::Flushed => {
                        if let Some((mark, then)) = mark.take() {
                            kept.flushed(mark);
                            safe = then;
                        }
                    }
                }
                let mut again = safe;
                let mut places: Vec<u64> = kept.places().collect();
                if backwards { places.reverse(); }
                for at in places {
                    let place = &mut again[at as usize..];
                    match kept.piece(at).unwrap() {
                        What::Bytes(bytes) => place[..bytes.len()].copy_from_slice(bytes),
                        What::Zero(length) | What::Discard(length) => place[..*length as usize].fill(0),
                    }
                }
                prop_assert_eq!(again, now);
                let cost: u64 = kept.pieces.values().map(|piece| piece.what.cost()).sum();
                prop_assert_eq!(kept.bytes(), cost);
            }
            kept.flushed(kept.mark());
            prop_assert_eq!((kept.places().count(), kept.bytes()), (0, 0));
        }
    }
}
