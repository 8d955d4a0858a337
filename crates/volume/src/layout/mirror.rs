//! Members that each have everything.

use super::{LayoutError, Piece};

/// RAID 1: each member has everything, as much as the shortest has room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    members: usize,
    bytes: u64,
}

impl Mirror {
    /// Of members of these lengths.
    ///
    /// # Errors
    /// There are fewer than two, or one has no room for a unit.
    pub fn new(members: &[u64], unit: u64) -> Result<Mirror, LayoutError> {
        if members.len() < 2 {
            return Err(LayoutError::TooFew(2));
        }
        if let Some(small) = members.iter().position(|bytes| *bytes < unit) {
            return Err(LayoutError::TooSmall(small));
        }
        let bytes = members.iter().min().map_or(0, |bytes| bytes - bytes % unit);
        Ok(Mirror { members: members.len(), bytes })
    }

    /// Bytes of the volume.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many members.
    pub fn members(&self) -> usize {
        self.members
    }

    /// All of what lies within the volume, on the first member.
    pub(super) fn piece(&self, at: u64, length: u64) -> Piece {
        Piece { member: 0, at, length }
    }
}
