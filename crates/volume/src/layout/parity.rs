//! Members in turn with a parity that lets one of them be lost.

use super::{LayoutError, Piece};

/// RAID 5. A row has a stripe on each member: one of them holds the parity of the others, and which
/// one it is changes from row to row. Parity is the exclusive or, so any member's bytes are that of
/// all others at the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parity {
    members: usize,
    /// Bytes on a member before the next one's turn.
    stripe: u64,
    rows: u64,
}

impl Parity {
    /// Of members of these lengths.
    ///
    /// # Errors
    /// There are fewer than three, the stripe is not whole units, or one has no room for a stripe.
    pub fn new(members: &[u64], stripe: u64, unit: u64) -> Result<Parity, LayoutError> {
        if members.len() < 3 {
            return Err(LayoutError::TooFew(3));
        }
        if stripe == 0 || !stripe.is_multiple_of(unit) {
            return Err(LayoutError::Stripe { stripe, unit });
        }
        if let Some(small) = members.iter().position(|bytes| *bytes < stripe) {
            return Err(LayoutError::TooSmall(small));
        }
        let rows = members.iter().min().map_or(0, |bytes| bytes / stripe);
        let parity = Parity { members: members.len(), stripe, rows };
        parity.row_bytes().checked_mul(rows).map(|_| parity).ok_or(LayoutError::TooLong)
    }

    /// Bytes of the volume.
    pub fn bytes(&self) -> u64 {
        self.rows * self.row_bytes()
    }

    /// How many members.
    pub fn members(&self) -> usize {
        self.members
    }

    /// Bytes on a member before the next one's turn.
    pub fn stripe(&self) -> u64 {
        self.stripe
    }

    /// Bytes of the volume in a row.
    pub fn row_bytes(&self) -> u64 {
        self.stripe * (self.members as u64 - 1)
    }

    /// Which member has the parity of a row.
    pub fn parity_of(&self, row: u64) -> usize {
        self.members - 1 - (row % self.members as u64) as usize
    }

    /// Of so many of a member's first bytes, those that are no parity.
    pub fn data_before(&self, member: usize, bytes: u64) -> u64 {
        // Once in as many rows as there are members.
        let turn = self.stripe * self.members as u64;
        let within = (bytes % turn).saturating_sub((self.members - 1 - member) as u64 * self.stripe);
        bytes - bytes / turn * self.stripe - within.min(self.stripe)
    }

    /// Which member has a row's stripe of data.
    pub fn member_of(&self, row: u64, stripe: usize) -> usize {
        (self.parity_of(row) + 1 + stripe) % self.members
    }

    /// The first piece of what lies within the volume.
    pub(super) fn piece(&self, at: u64, length: u64) -> Piece {
        let (row, within) = (at / self.row_bytes(), at % self.row_bytes());
        let (stripe, within) = (within / self.stripe, within % self.stripe);
        let member = self.member_of(row, stripe as usize);
        Piece { member, at: row * self.stripe + within, length: length.min(self.stripe - within) }
    }
}
