//! A scan answer that was lent, as rows where they lie in the server's memory.

use std::sync::Arc;

use overside_verbs::Loan;

use super::run::{OpenRuns, Run};
use super::source::{Lent, Next};
use super::view::{Parsed, Runs, parsed, row_bytes};
use super::{BlockHeader, RowBlock, Rows};
use crate::projection::Projection;
use crate::row::{Malformed, RowLayout};

/// The rows of one scan answer, read in place in the server's memory. Dropping it returns the loan.
///
/// It is parsed as a [`RowBlock`](super::RowBlock) is, by the same code. What says where rows lie
/// was copied out and checked in the copy; the rows' own bytes are not here.
#[derive(Debug)]
pub struct LentBlock {
    loan: Loan,
    header: BlockHeader,
    layout: Arc<RowLayout>,
    runs: Runs,
    /// Of the runs that have slots, one after another.
    slots: Vec<[u8; 4]>,
    next: Next,
}

/// A scan answer as it came.
#[derive(Debug)]
pub enum Answer<B> {
    /// In a buffer of the reader's.
    Copied(RowBlock<B>),
    /// Where it lies in the server's memory.
    Lent(LentBlock),
}

impl<B: AsRef<[u8]>> Answer<B> {
    /// What the message says of itself.
    pub fn header(&self) -> &BlockHeader {
        match self {
            Answer::Copied(block) => block.header(),
            Answer::Lent(block) => block.header(),
        }
    }

    /// Rows in it.
    pub fn len(&self) -> usize {
        self.header().rows as usize
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all rows.
    pub fn row_bytes(&self) -> u64 {
        match self {
            Answer::Copied(block) => block.row_bytes(),
            Answer::Lent(block) => block.row_bytes(),
        }
    }
}

/// Why a lent answer was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LentError {
    /// The server took the bytes back, so what was read of them may be anything.
    #[error("the server took back what it had lent, and the connection to it ends; connect and scan again")]
    Revoked,
    /// The server lent a broken answer.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl LentBlock {
    /// Parses a lent answer to a scan that asked for this projection.
    ///
    /// # Errors
    /// As [`RowBlock::parse`](super::RowBlock::parse), where the server still vouches for the
    /// bytes; else [`LentError::Revoked`].
    pub fn parse(loan: Loan, projection: &Projection) -> Result<LentBlock, LentError> {
        let mut slots = Vec::new();
        let parsed = parsed(Lent::new(&loan, Next::default()), projection, &mut slots);
        if !loan.is_valid() {
            return Err(LentError::Revoked);
        }
        let Parsed { header, layout, runs } = parsed?;
        Ok(LentBlock { loan, header, layout, runs, slots, next: Next::default() })
    }

    /// Reading it asks for its later pages, and for the first of the one that is read next.
    pub(crate) fn followed_by(&mut self, next: Option<&Loan>, projection: &Projection) {
        let (rows, stride) = (self.len().max(1), self.layout.prefix_len());
        let read = projection.read_of(rows as u64, self.loan.bytes()) as usize;
        self.next = match projection.needs_rest() {
            true => Next::new(&self.loan, rows, read / rows, next),
            // A page begins with its prefixes.
            false if 2 * read >= rows * stride => Next::new(&self.loan, rows, stride, next),
            false => Next::default(),
        };
    }

    /// What the message says of itself.
    pub fn header(&self) -> &BlockHeader {
        &self.header
    }

    /// Rows in the block.
    pub fn len(&self) -> usize {
        self.header.rows as usize
    }

    /// Whether the block has no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the columns lie in this block's rows.
    pub fn layout(&self) -> &Arc<RowLayout> {
        &self.layout
    }

    /// Bytes of all rows: prefixes and rests, nothing else of the message.
    pub fn row_bytes(&self) -> u64 {
        row_bytes(self.runs(), self.len(), &self.layout)
    }

    /// Calls `read` with the rows in key order, and gives on what it makes of them if the server
    /// still vouched for the bytes afterwards.
    ///
    /// While `read` runs, the server may take the bytes back or, if it is hostile, write there. So
    /// `read` may see rows that nobody stored: what it does must have no effect that lasts unless
    /// this returns `Ok`. Nothing outside of the message is ever read.
    ///
    /// # Errors
    /// [`LentError::Revoked`].
    #[inline]
    pub fn read<R>(&self, read: impl for<'a> FnOnce(Rows<'a, Lent<'a>>) -> R) -> Result<R, LentError> {
        let result = read(Rows::new(&self.layout, self.runs(), self.len()));
        if self.loan.is_valid() { Ok(result) } else { Err(LentError::Revoked) }
    }

    /// Whether the server still vouches for all that was read before this call.
    pub(crate) fn is_valid(&self) -> bool {
        self.loan.is_valid()
    }

    pub(crate) fn runs(&self) -> OpenRuns<'_, Lent<'_>> {
        let runs: &[Run] = &self.runs;
        OpenRuns::new(Lent::new(&self.loan, self.next), runs, &self.slots, self.layout.prefix_len())
    }
}
