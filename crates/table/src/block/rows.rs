//! Walking over the rows of a block: the consumer's hot loop.
//!
//! What can be known of a run is fetched once (its slices); a row then costs one slot, two bounds that never fail, and
//! no decision but the loop's own.

use super::Run;
use super::run::slot_at;
use crate::row::{RowLayout, RowView};

/// Row views of a block in key order.
///
/// `for_each`, `fold` and what stands on them walk run by run and are a little faster than `for`.
#[derive(Clone)]
pub struct Rows<'a> {
    message: &'a [u8],
    layout: &'a RowLayout,
    runs: std::slice::Iter<'a, Run>,
    run: OpenRun<'a>,
    rows: usize,
}

/// What is left of the run being walked.
#[derive(Clone)]
struct OpenRun<'a> {
    count: usize,
    prefixes: &'a [u8],
    /// End slots of the rows left; empty when the run has none.
    ends: &'a [[u8; 4]],
    heap: &'a [u8],
    at: usize,
    bias: u32,
}

impl<'a> OpenRun<'a> {
    #[inline]
    fn of(run: &Run, message: &'a [u8], stride: usize) -> OpenRun<'a> {
        let slots = run.slots(message);
        let at = slots.map_or(0, |slots| slot_at(&slots[0]).wrapping_sub(run.bias) as usize);
        OpenRun {
            count: run.count as usize,
            prefixes: run.prefixes(message, stride).unwrap_or_default(),
            ends: slots.map_or(&[], |slots| &slots[1..]),
            heap: run.heap(message).unwrap_or_default(),
            at,
            bias: run.bias,
        }
    }

    /// The next row of the run; the caller knows that there is one.
    #[inline(always)]
    fn step(&mut self, layout: &'a RowLayout) -> RowView<'a> {
        self.count -= 1;
        let (prefix, prefixes) = self.prefixes.split_at(layout.prefix_len);
        self.prefixes = prefixes;
        let rest = match self.ends.split_first() {
            None => self.heap,
            Some((end, ends)) => {
                self.ends = ends;
                let start = self.at;
                self.at = slot_at(end).wrapping_sub(self.bias) as usize;
                self.heap.get(start..self.at).unwrap_or_default()
            }
        };
        RowView::trusted(prefix, rest, layout)
    }
}

impl<'a> Rows<'a> {
    pub(super) fn new(message: &'a [u8], layout: &'a RowLayout, runs: &'a [Run], rows: usize) -> Rows<'a> {
        let run = OpenRun { count: 0, prefixes: &[], ends: &[], heap: &[], at: 0, bias: 0 };
        Rows { message, layout, runs: runs.iter(), run, rows }
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = RowView<'a>;

    #[inline]
    fn next(&mut self) -> Option<RowView<'a>> {
        if self.run.count == 0 {
            self.run = OpenRun::of(self.runs.next()?, self.message, self.layout.prefix_len);
        }
        self.rows -= 1;
        Some(self.run.step(self.layout))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.rows, Some(self.rows))
    }

    #[inline]
    fn fold<B, F: FnMut(B, RowView<'a>) -> B>(self, init: B, mut f: F) -> B {
        let layout = self.layout;
        let mut folded = init;
        let mut open = self.run;
        let mut runs = self.runs;
        loop {
            folded = walk(open, layout, folded, &mut f);
            match runs.next() {
                None => return folded,
                Some(run) => open = OpenRun::of(run, self.message, layout.prefix_len),
            }
        }
    }
}

impl ExactSizeIterator for Rows<'_> {}

/// A whole run, by the loop that its form allows.
#[inline(always)]
fn walk<'a, B>(mut run: OpenRun<'a>, layout: &'a RowLayout, init: B, f: &mut impl FnMut(B, RowView<'a>) -> B) -> B {
    let mut folded = init;
    if run.ends.is_empty() || layout.prefix_len == 0 {
        while run.count > 0 {
            folded = f(folded, run.step(layout));
        }
        return folded;
    }
    let mut at = run.at;
    for (prefix, end) in run.prefixes.chunks_exact(layout.prefix_len).zip(run.ends) {
        let start = at;
        at = slot_at(end).wrapping_sub(run.bias) as usize;
        let rest = run.heap.get(start..at).unwrap_or_default();
        folded = f(folded, RowView::trusted(prefix, rest, layout));
    }
    folded
}
