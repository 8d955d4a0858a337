//! Members one behind the other.

use super::{LayoutError, Piece};

/// Members one behind the other, each with all of its whole units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concat {
    /// Where each member ends, in bytes of the volume.
    ends: Vec<u64>,
    /// Bytes of a piece at most.
    piece_max: u64,
}

impl Concat {
    /// Of members of these lengths.
    ///
    /// # Errors
    /// There are none, one is too small, or they are too long together.
    pub fn new(members: &[u64], unit: u64) -> Result<Concat, LayoutError> {
        let (mut ends, mut end) = (Vec::with_capacity(members.len()), 0u64);
        for (member, bytes) in members.iter().enumerate() {
            let whole = bytes - bytes % unit;
            if whole == 0 {
                return Err(LayoutError::TooSmall(member));
            }
            end = end.checked_add(whole).ok_or(LayoutError::TooLong)?;
            ends.push(end);
        }
        if ends.is_empty() { Err(LayoutError::TooFew(1)) } else { Ok(Concat { ends, piece_max: u64::MAX }) }
    }

    /// With pieces of so many bytes at most: whole units, and at least one.
    #[must_use]
    pub fn in_pieces(self, bytes: u64) -> Concat {
        Concat { piece_max: bytes.max(1), ..self }
    }

    /// Bytes of the volume.
    pub fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// How many members.
    pub fn members(&self) -> usize {
        self.ends.len()
    }

    /// The first piece of what lies within the volume.
    pub(super) fn piece(&self, at: u64, length: u64) -> Piece {
        let member = self.ends.partition_point(|end| *end <= at);
        let start = member.checked_sub(1).map_or(0, |before| self.ends[before]);
        Piece { member, at: at - start, length: length.min(self.ends[member] - at).min(self.piece_max) }
    }
}
