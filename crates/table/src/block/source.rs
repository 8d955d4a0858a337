//! Where a message lies: in a buffer of one's own, or in the sender's memory, lent.

use overside_memory::ForeignSlice;
use overside_verbs::Loan;

use crate::row::Bytes;

/// The bytes of a message, for the parser.
///
/// Those of a loan may change at any moment. So the parser takes each header, table entry and slot
/// out once, checks it, and goes by what it took.
pub trait Source<'a>: Copy {
    /// Bytes of it that lie together.
    type Piece: Bytes;

    /// Length of the message.
    fn bytes(self) -> usize;

    /// `len` bytes from `at` on; none where they are not all there, or do not lie together.
    fn piece(self, at: usize, len: usize) -> Option<Self::Piece>;

    /// All bytes from `at` on that lie together with it.
    fn behind(self, at: usize) -> Option<Self::Piece>;

    /// The `count` slots at `at`, for the parser to check; what it must keep of them is appended to `copies`.
    fn slots<'c>(self, at: usize, count: usize, copies: &'c mut Vec<[u8; 4]>) -> Option<&'c [[u8; 4]]>
    where
        'a: 'c;

    /// The same slots again, as they were checked. `copies` begins with what was kept of these and all later ones.
    fn checked_slots(self, at: usize, count: usize, copies: &mut &'a [[u8; 4]]) -> Option<&'a [[u8; 4]]>;
}

impl<'a> Source<'a> for &'a [u8] {
    type Piece = &'a [u8];

    #[inline]
    fn bytes(self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn piece(self, at: usize, len: usize) -> Option<&'a [u8]> {
        self.part(at, len)
    }

    #[inline]
    fn behind(self, at: usize) -> Option<&'a [u8]> {
        self.get(at..)
    }

    #[inline]
    fn slots<'c>(self, at: usize, count: usize, _: &'c mut Vec<[u8; 4]>) -> Option<&'c [[u8; 4]]>
    where
        'a: 'c,
    {
        self.part(at, count.checked_mul(4)?).map(|slots| slots.as_chunks().0)
    }

    #[inline]
    fn checked_slots(self, at: usize, count: usize, _: &mut &'a [[u8; 4]]) -> Option<&'a [[u8; 4]]> {
        self.part(at, count.checked_mul(4)?).map(|slots| slots.as_chunks().0)
    }
}

/// A message that was lent.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    loan: &'a Loan,
    len: usize,
}

impl<'a> Lent<'a> {
    pub(super) fn new(loan: &'a Loan) -> Lent<'a> {
        Lent { loan, len: usize::try_from(loan.bytes()).unwrap_or(usize::MAX) }
    }
}

impl<'a> Source<'a> for Lent<'a> {
    type Piece = ForeignSlice<'a>;

    fn bytes(self) -> usize {
        self.len
    }

    fn piece(self, at: usize, len: usize) -> Option<ForeignSlice<'a>> {
        self.behind(at)?.part(0, len)
    }

    /// Where one part ends and the next begins, it is the next that lies behind.
    fn behind(self, at: usize) -> Option<ForeignSlice<'a>> {
        let mut skip = at;
        for part in self.loan.parts() {
            match skip.checked_sub(part.len()) {
                Some(left) => skip = left,
                None => return part.slice().part(skip, part.len() - skip),
            }
        }
        (skip == 0).then(ForeignSlice::default)
    }

    fn slots<'c>(self, at: usize, count: usize, copies: &'c mut Vec<[u8; 4]>) -> Option<&'c [[u8; 4]]>
    where
        'a: 'c,
    {
        let piece = self.piece(at, count.checked_mul(4)?)?;
        let before = copies.len();
        copies.resize(before + count, [0; 4]);
        let copy = &mut copies[before..];
        piece.copy_to(copy.as_flattened_mut()).then_some(copy)
    }

    fn checked_slots(self, _: usize, count: usize, copies: &mut &'a [[u8; 4]]) -> Option<&'a [[u8; 4]]> {
        let (slots, later) = copies.split_at_checked(count)?;
        *copies = later;
        Some(slots)
    }
}
