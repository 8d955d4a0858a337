//! Rows of a page with its deltas applied, and of a range of pages.

use std::ops::Range as Span;

use crate::cursor::{Direction, Pages};
use crate::page::{KeyParts, Op};
use crate::pinned::{DeltaRef, PinnedPage, Row};

/// Iterator over a [`PinnedPage`]'s rows, from both ends.
#[derive(Clone)]
pub struct Rows<'a> {
    page: &'a PinnedPage,
    leaf: crate::page::Leaf<'a>,
    rows: Span<usize>,
    deltas: Span<usize>,
    /// Base rows before this one come before the next delta.
    clear: usize,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(page: &'a PinnedPage, rows: Span<usize>, deltas: Span<usize>) -> Rows<'a> {
        Rows { page, leaf: page.leaf(), rows, deltas, clear: 0 }
    }

    /// The row at a place.
    #[inline]
    fn row(&self, at: At) -> Row<'a> {
        match at {
            At::Base(i) => Row { key: self.leaf.key_parts(i), prefix: self.leaf.prefix(i), rest: self.leaf.rest(i) },
            At::Delta(i) => {
                let delta = self.page.delta(i);
                let key = KeyParts { common: delta.key(), head: &[], tail: &[] };
                Row { key, prefix: delta.prefix(), rest: delta.rest() }
            }
        }
    }

    #[inline]
    fn step(&mut self) -> Option<At> {
        if self.rows.start < self.clear {
            return self.rows.next().map(At::Base);
        }
        self.step_at_delta()
    }

    fn step_at_delta(&mut self) -> Option<At> {
        while !self.deltas.is_empty() {
            let delta = self.page.delta(self.deltas.start);
            if delta.position() > self.rows.start {
                self.clear = delta.position().min(self.rows.end);
                return self.rows.next().map(At::Base);
            }
            self.rows.start += usize::from(delta.replaces());
            self.deltas.start += 1;
            if delta.op() == Op::Put {
                return Some(At::Delta(self.deltas.start - 1));
            }
        }
        self.clear = self.rows.end;
        self.rows.next().map(At::Base)
    }

    fn step_back(&mut self) -> Option<At> {
        self.clear = 0;
        while !self.deltas.is_empty() {
            let delta = self.page.delta(self.deltas.end - 1);
            if delta.position() + usize::from(delta.replaces()) < self.rows.end {
                break;
            }
            self.rows.end -= usize::from(delta.replaces());
            self.deltas.end -= 1;
            if delta.op() == Op::Put {
                return Some(At::Delta(self.deltas.end));
            }
        }
        self.rows.next_back().map(At::Base)
    }
}

/// Where a row lies.
#[derive(Debug, Clone, Copy)]
enum At {
    Base(usize),
    Delta(usize),
}

impl<'a> Iterator for Rows<'a> {
    type Item = Row<'a>;

    #[inline]
    fn next(&mut self) -> Option<Row<'a>> {
        self.step().map(|at| self.row(at))
    }
}

impl DoubleEndedIterator for Rows<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step_back().map(|at| self.row(at))
    }
}

/// A stretch of a [`PinnedPage`] in key order.
#[derive(Debug, Clone)]
pub enum Run<'a> {
    /// These rows of the base page: their heads, prefixes and rests are one slice each (see
    /// [`Leaf`](crate::Leaf)).
    Base(Span<usize>),
    /// A row that a delta put here.
    Delta(DeltaRef<'a>),
}

/// Iterator over the runs of a [`PinnedPage`]: for who works on slices rather than rows.
#[derive(Clone)]
pub struct Runs<'a> {
    rows: Rows<'a>,
}

impl<'a> Runs<'a> {
    pub(crate) fn new(rows: Rows<'a>) -> Runs<'a> {
        Runs { rows }
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    #[inline]
    fn next(&mut self) -> Option<Run<'a>> {
        match self.rows.step_at_delta()? {
            At::Delta(i) => Some(Run::Delta(self.rows.page.delta(i))),
            At::Base(from) => {
                self.rows.rows.start = self.rows.clear.max(from + 1);
                Some(Run::Base(from..self.rows.rows.start))
            }
        }
    }
}

/// Rows of a key range in key order (or its reverse), page by page: each page is one instant's
/// state.
pub struct Range {
    pages: Pages,
    page: Option<PinnedPage>,
    rows: Span<usize>,
    deltas: Span<usize>,
}

impl Range {
    pub(crate) fn new(pages: Pages) -> Range {
        Range { pages, page: None, rows: 0..0, deltas: 0..0 }
    }

    /// The next row, where it lies, and the page that it belongs to. Nothing is copied.
    #[inline]
    pub fn next_row(&mut self) -> Option<(Row<'_>, &PinnedPage)> {
        let at = loop {
            let page = match &self.page {
                Some(page) => page,
                None => {
                    let page = self.pages.next()?;
                    (self.rows, self.deltas) = (page.rows(), 0..page.delta_count());
                    self.page.insert(page)
                }
            };
            let mut rows = Rows::new(page, self.rows.clone(), self.deltas.clone());
            let at = match self.pages.direction() {
                Direction::Forward => rows.step(),
                Direction::Backward => rows.step_back(),
            };
            (self.rows, self.deltas) = (rows.rows, rows.deltas);
            match at {
                Some(at) => break at,
                None => self.page = None,
            }
        };
        let page = self.page.as_ref()?;
        Some((Rows::new(page, 0..0, 0..0).row(at), page))
    }
}

impl Iterator for Range {
    type Item = (Vec<u8>, Vec<u8>);

    /// The next row, copied: key and value.
    fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (row, page) = self.next_row()?;
        Some((row.key.to_vec(), [row.prefix, page.rest_bytes(row.rest)].concat()))
    }
}
