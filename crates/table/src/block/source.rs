//! Where a message lies: in a buffer of one's own, or in the sender's memory, lent.

use overside_memory::{ForeignRange, ForeignSlice, Lines};
use overside_verbs::Loan;

use crate::row::Bytes;

/// The bytes of a message, for the parser.
///
/// Those of a loan may change at any moment. So the parser takes each header, table entry and slot
/// out once, checks it, and goes by what it took.
pub trait Source<'a>: Copy {
    /// Bytes of it that lie together.
    type Piece: Bytes;
    /// What a reader asks the processor for.
    type Ahead: Ahead;

    /// For a reader of all rows, from the first on.
    fn ahead(self) -> Self::Ahead;

    /// Length of the message.
    fn bytes(self) -> usize;

    /// `len` bytes from `at` on; none where they are not all there, or do not lie together.
    fn piece(self, at: usize, len: usize) -> Option<Self::Piece>;

    /// All bytes from `at` on that lie together with it.
    fn behind(self, at: usize) -> Option<Self::Piece>;

    /// The `count` slots at `at`, for the parser to check; what it must keep of them is appended to
    /// `copies`.
    fn slots<'c>(self, at: usize, count: usize, copies: &'c mut Vec<[u8; 4]>) -> Option<&'c [[u8; 4]]>
    where
        'a: 'c;

    /// The same slots again, as they were checked. `copies` begins with what was kept of these and
    /// all later ones.
    fn checked_slots(self, at: usize, count: usize, copies: &mut &'a [[u8; 4]]) -> Option<&'a [[u8; 4]]>;
}

/// Asks for memory that is read later.
pub trait Ahead: Clone + std::fmt::Debug {
    /// A row is read now.
    fn row(&mut self);
}

/// Who copied a message has its bytes in the nearest cache.
impl Ahead for () {
    #[inline(always)]
    fn row(&mut self) {}
}

/// Lines of the pages to come: those of the message that is read, and the first of the next one.
///
/// The processor's own prefetcher begins anew with each page of a table, since pages lie apart. A
/// reader of copies does not wait for that, because the copy asks ahead (`memory::kernels`);
/// a reader in place asks here.
#[derive(Clone, Debug, Default)]
pub struct PagesAhead<'a> {
    now: Lines,
    parts: &'a [ForeignRange],
    next: Next,
}

/// What is known of the pages to come apart from the message that is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Next {
    /// Lines of the next message's first page.
    lines: Lines,
    /// Lines to ask for with each row.
    a_row: usize,
    /// Lines of a page that are read.
    a_page: usize,
}

impl Next {
    /// Behind a message of `rows` rows whose reader looks at about `row_bytes` bytes of each,
    /// `next` is read.
    pub(super) fn new(message: &Loan, rows: usize, row_bytes: usize, next: Option<&Loan>) -> Next {
        let pages = message.parts().iter().filter(|part| is_page(part)).count().max(1);
        let a_page = (rows * row_bytes).div_ceil(pages * LINE_BYTES) + 1;
        let first = next.and_then(|next| next.parts().iter().find(|part| is_page(part)));
        let lines = first.map_or(Lines::default(), |page| page.lines().first(a_page));
        Next { lines, a_row: row_bytes.div_ceil(LINE_BYTES), a_page }
    }
}

impl<'a> PagesAhead<'a> {
    fn new(loan: &'a Loan, next: Next) -> PagesAhead<'a> {
        let mut ahead = PagesAhead { now: Lines::default(), parts: loan.parts(), next };
        // The first page is read at once.
        ahead.turn();
        ahead.now = Lines::default();
        ahead
    }

    /// Goes on to the next page.
    #[cold]
    fn turn(&mut self) {
        while let Some((part, later)) = self.parts.split_first() {
            self.parts = later;
            if is_page(part) {
                self.now = part.lines().first(self.next.a_page);
                return;
            }
        }
        self.now = std::mem::take(&mut self.next.lines);
        if self.now.is_empty() {
            self.next.a_row = 0;
        }
    }
}

impl Ahead for PagesAhead<'_> {
    #[inline(always)]
    fn row(&mut self) {
        for _ in 0..self.next.a_row {
            if !self.now.ask() {
                self.turn();
            }
        }
    }
}

fn is_page(part: &ForeignRange) -> bool {
    part.len() >= PAGE_BYTES_MIN
}

impl<'a> Source<'a> for &'a [u8] {
    type Piece = &'a [u8];
    type Ahead = ();

    fn ahead(self) {}

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
    next: Next,
}

impl<'a> Lent<'a> {
    pub(super) fn new(loan: &'a Loan, next: Next) -> Lent<'a> {
        Lent { loan, len: usize::try_from(loan.bytes()).unwrap_or(usize::MAX), next }
    }
}

impl<'a> Source<'a> for Lent<'a> {
    type Piece = ForeignSlice<'a>;
    type Ahead = PagesAhead<'a>;

    fn ahead(self) -> PagesAhead<'a> {
        PagesAhead::new(self.loan, self.next)
    }

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

const LINE_BYTES: usize = 64;
/// Shorter parts are heads and deltas. The processor's own prefetcher does not leave this many
/// bytes either.
const PAGE_BYTES_MIN: usize = 4096;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overside_memory::{Foreign, Segment};
    use overside_verbs::Lender;

    use super::*;

    #[derive(Debug)]
    struct Anyone;

    impl Lender for Anyone {
        fn vouches(&self) -> bool {
            true
        }

        fn take_back(&self, _: u64) {}
    }

    /// A head, two pages with a delta between them, then another message: each later page is asked
    /// for once, as far as it is read.
    #[test]
    fn a_reader_asks_for_each_later_page_once() {
        let segment = Segment::shared(1 << 16).unwrap();
        let foreign = Foreign::map(segment.fd().unwrap().try_clone_to_owned().unwrap(), 1 << 16).unwrap();
        let loan = |parts: &[(u64, usize)]| {
            let parts: Vec<_> = parts.iter().map(|(at, len)| foreign.range(*at, *len).unwrap()).collect();
            Loan::new(parts, Arc::new(Anyone), 0)
        };
        let message = loan(&[(0, 100), (4096, 8192), (200, 64), (16384, 8192)]);
        let next = loan(&[(300, 100), (32768, 8192)]);
        let rows_asked = |next: Next| {
            let mut ahead = Lent::new(&message, next).ahead();
            (0..100)
                .take_while(|_| {
                    ahead.row();
                    ahead.next.a_row > 0
                })
                .count()
        };
        // 32 rows of 256 bytes: 65 lines of a page are read, four with a row. Going on to a page takes a line's turn.
        assert_eq!(rows_asked(Next::new(&message, 32, 256, Some(&next))), (1 + 65 + 1 + 65) / 4);
        assert_eq!(rows_asked(Next::new(&message, 32, 256, None)), (1 + 65) / 4, "the message's own later page");
        assert_eq!(rows_asked(Next::default()), 0);
    }
}
