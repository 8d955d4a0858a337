//! Members in turn, a stripe each.

use super::{LayoutError, Piece};

/// RAID 0: members in turn, a stripe each. Each gives as many whole stripes as the shortest has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripes {
    members: usize,
    /// Bytes on a member before the next one's turn.
    stripe: u64,
    bytes: u64,
}

impl Stripes {
    /// Of members of these lengths.
    ///
    /// # Errors
    /// The stripe is not whole units, there are no members, or one has no room for a stripe.
    pub fn new(members: &[u64], stripe: u64, unit: u64) -> Result<Stripes, LayoutError> {
        if stripe == 0 || !stripe.is_multiple_of(unit) {
            return Err(LayoutError::Stripe { stripe, unit });
        }
        if let Some(small) = members.iter().position(|bytes| *bytes < stripe) {
            return Err(LayoutError::TooSmall(small));
        }
        let rows = members.iter().min().ok_or(LayoutError::TooFew(1))? / stripe;
        let bytes = (rows * stripe).checked_mul(members.len() as u64).ok_or(LayoutError::TooLong)?;
        Ok(Stripes { members: members.len(), stripe, bytes })
    }

    /// Bytes of the volume.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many members.
    pub fn members(&self) -> usize {
        self.members
    }

    /// The first piece of what lies within the volume.
    pub(super) fn piece(&self, at: u64, length: u64) -> Piece {
        let (stripe, within) = (at / self.stripe, at % self.stripe);
        let (row, member) = (stripe / self.members as u64, stripe % self.members as u64);
        Piece { member: member as usize, at: row * self.stripe + within, length: length.min(self.stripe - within) }
    }
}
