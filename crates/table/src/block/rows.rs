//! Walking over the rows of a block: the consumer's hot loop.
//!
//! What can be known of a run is fetched once (its bytes); a row then costs one slot, two bounds
//! that never fail, and no decision but the loop's own.

use super::run::{OpenRun, OpenRuns, slot_at};
use super::source::{Ahead, Source};
use crate::row::{Bytes, RowLayout, RowView};

/// Row views of a block in key order.
///
/// `for_each`, `fold` and what stands on them walk run by run and are a little faster than `for`.
#[derive(Clone, Debug)]
pub struct Rows<'a, S: Source<'a> = &'a [u8]> {
    layout: &'a RowLayout,
    runs: OpenRuns<'a, S>,
    run: Walk<'a, S::Piece>,
    rows: usize,
    ahead: S::Ahead,
}

/// What is left of the run being walked.
#[derive(Clone, Debug, Default)]
struct Walk<'a, P> {
    count: usize,
    prefixes: P,
    /// End slots of the rows left; empty when the run has none.
    ends: &'a [[u8; 4]],
    heap: P,
    at: usize,
    bias: u32,
}

impl<'a, P: Bytes> Walk<'a, P> {
    #[inline]
    fn of(run: OpenRun<'a, P>) -> Walk<'a, P> {
        let OpenRun { rows, prefixes, slots, bias, heap, .. } = run;
        let at = slots.map_or(0, |slots| slot_at(&slots[0]).wrapping_sub(bias) as usize);
        Walk { count: rows, prefixes, ends: slots.map_or(&[], |slots| &slots[1..]), heap, at, bias }
    }

    /// The next row of the run; the caller knows that there is one.
    #[inline(always)]
    fn step(&mut self, layout: &'a RowLayout) -> RowView<'a, P> {
        self.count -= 1;
        let width = layout.prefix_len;
        let prefix = self.prefixes.part(0, width).unwrap_or_default();
        self.prefixes = self.prefixes.part(width, self.prefixes.len() - width).unwrap_or_default();
        let rest = match self.ends.split_first() {
            None => self.heap,
            Some((end, ends)) => {
                self.ends = ends;
                self.rest_to(end)
            }
        };
        RowView::trusted(prefix, rest, layout)
    }

    /// The rest that ends where a slot says.
    #[inline(always)]
    fn rest_to(&mut self, end: &[u8; 4]) -> P {
        let start = self.at;
        self.at = slot_at(end).wrapping_sub(self.bias) as usize;
        self.at.checked_sub(start).and_then(|len| self.heap.part(start, len)).unwrap_or_default()
    }
}

impl<'a, S: Source<'a>> Rows<'a, S> {
    pub(super) fn new(layout: &'a RowLayout, runs: OpenRuns<'a, S>, rows: usize) -> Rows<'a, S> {
        let ahead = runs.message().ahead();
        Rows { layout, runs, run: Walk::default(), rows, ahead }
    }
}

impl<'a, S: Source<'a>> Iterator for Rows<'a, S> {
    type Item = RowView<'a, S::Piece>;

    #[inline]
    fn next(&mut self) -> Option<RowView<'a, S::Piece>> {
        if self.run.count == 0 {
            self.run = Walk::of(self.runs.next()?);
        }
        self.rows -= 1;
        self.ahead.row();
        Some(self.run.step(self.layout))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.rows, Some(self.rows))
    }

    #[inline]
    fn fold<B, F: FnMut(B, RowView<'a, S::Piece>) -> B>(self, init: B, mut f: F) -> B {
        let (layout, mut ahead) = (self.layout, self.ahead);
        let folded = walk(self.run, layout, init, &mut ahead, &mut f);
        self.runs.fold(folded, |folded, run| walk(Walk::of(run), layout, folded, &mut ahead, &mut f))
    }
}

impl<'a, S: Source<'a>> ExactSizeIterator for Rows<'a, S> {}

/// A whole run, by the loop that its form allows.
#[inline(always)]
fn walk<'a, P: Bytes, B>(
    mut run: Walk<'a, P>,
    layout: &'a RowLayout,
    init: B,
    ahead: &mut impl Ahead,
    f: &mut impl FnMut(B, RowView<'a, P>) -> B,
) -> B {
    let mut folded = init;
    if run.ends.is_empty() || layout.prefix_len == 0 {
        while run.count > 0 {
            ahead.row();
            folded = f(folded, run.step(layout));
        }
        return folded;
    }
    for (prefix, end) in run.prefixes.chunks(layout.prefix_len).zip(run.ends) {
        let rest = run.rest_to(end);
        ahead.row();
        folded = f(folded, RowView::trusted(prefix, rest, layout));
    }
    folded
}
