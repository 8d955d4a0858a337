//! `gather`: the rows of pages and deltas, sent from where they lie as a clean answer.
//!
//! A run of rows of a base page is up to three ranges of it (prefixes, slots, rests), a delta's row
//! is one range of its record. Ranges close to each other are one fragment. So a page without
//! deltas is one, and a page with a few is often one and those few. The rows that they replace
//! travel as a gap that no run mentions.

use std::ops::Range;

use overside_bwtree::{OverflowRef, Rest, page::DELTA_HEADER};

use super::fragments::{Fragment, Fragments};
use super::header::{BlockHeader, HEADER_BYTES, Mode};
use super::run::{RUN_BYTES, Run};
use super::state::{PageState, Piece};
use crate::projection::Projection;

/// A `gather` answer to be: its head, which is written, and its fragments, which are sent from
/// where they lie.
///
/// The same object is used again for message after message, so that none allocates.
#[derive(Clone, Debug, Default)]
pub struct GatherAnswer {
    runs: Vec<Draft>,
    fragments: Fragments,
    rows: u64,
    /// Deltas of the page being added, by address: where their run stands, and which they are.
    by_address: Vec<(usize, usize)>,
}

/// Where a [`GatherAnswer`] stood.
#[derive(Clone, Copy, Debug, Default)]
pub struct GatherMark {
    runs: usize,
    fragments: (usize, u64),
    rows: u64,
}

/// A run whose offsets count from the head's end, which is not known yet.
#[derive(Clone, Copy, Debug, Default)]
struct Draft {
    run: Run,
    has_slots: bool,
}

impl GatherAnswer {
    /// An answer without rows.
    pub fn new() -> GatherAnswer {
        GatherAnswer::default()
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.fragments.clear();
        self.rows = 0;
    }

    /// Where the answer stands, to [`rewind`](GatherAnswer::rewind) to.
    pub fn mark(&self) -> GatherMark {
        GatherMark { runs: self.runs.len(), fragments: self.fragments.mark(), rows: self.rows }
    }

    /// Forgets what was pushed since the mark was made.
    pub fn rewind(&mut self, mark: &GatherMark) {
        self.runs.truncate(mark.runs);
        self.fragments.rewind(mark.fragments);
        self.rows = mark.rows;
    }

    /// Adds the delivered rows `rows` of a page's state. Gaps of up to `gap_bytes_max` bytes are
    /// sent along rather than split a fragment: what an entry of the gather list costs on this
    /// device, in bytes.
    pub fn push(&mut self, state: &PageState<'_>, rows: Range<usize>, projection: &Projection, gap_bytes_max: u64) {
        let first = self.runs.len();
        let rests = projection.needs_rest();
        for piece in state.pieces(rows.clone()) {
            let count = piece.rows() as u32;
            self.rows += u64::from(count);
            self.runs.push(Draft { run: Run { count, ..Run::default() }, has_slots: false });
        }
        let mut add = Adder { fragments: &mut self.fragments, at: state.at, gap_bytes_max, started: false };
        let leaf = &state.leaf;
        for (draft, piece) in self.runs[first..].iter_mut().zip(state.pieces(rows.clone())) {
            let base = match piece {
                Piece::Base { from, to } => from..to,
                Piece::Far { row, .. } => row..row + 1,
                Piece::Delta { .. } => continue,
            };
            draft.run.prefixes_at = add.page(leaf.prefixes_at(base));
        }
        if rests {
            add_rests(&mut self.runs[first..], state, rows.clone(), &mut add);
        }
        self.push_deltas(first, state, rows, rests, gap_bytes_max);
    }

    /// Rows in the answer.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// What follows the head, in order.
    pub fn fragments(&self) -> &[Fragment] {
        self.fragments.list()
    }

    /// Bytes of the head: header, run table, and zeroes up to a cache line, so that what follows is
    /// copied aligned.
    pub fn head_len(&self) -> usize {
        (HEADER_BYTES + self.runs.len() * RUN_BYTES).next_multiple_of(LINE_BYTES)
    }

    /// Bytes of the whole message.
    pub fn message_len(&self) -> u64 {
        self.head_len() as u64 + self.fragments.bytes()
    }

    /// Writes the head into the first [`GatherAnswer::head_len`] bytes of `head`.
    ///
    /// # Panics
    /// `head` is shorter, or the message is longer than [`super::MESSAGE_BYTES_MAX`].
    pub fn write_head(&self, head: &mut [u8], projection: &Projection, scan: u64, sequence: u64, last: bool) {
        assert!(self.message_len() <= super::MESSAGE_BYTES_MAX as u64, "a message has at most 1 GiB");
        let head_len = self.head_len();
        let header = BlockHeader {
            mode: Mode::Gather,
            packed: false,
            without_rests: !projection.needs_rest(),
            last,
            scan,
            sequence,
            rows: self.rows as u32,
            stride: projection.in_place().prefix_len() as u32,
            table_at: HEADER_BYTES as u32,
            entries: self.runs.len() as u32,
            deltas: 0,
            overflows: 0,
            bytes: self.message_len() as u32,
        };
        head[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        head[HEADER_BYTES + self.runs.len() * RUN_BYTES..head_len].fill(0);
        let table = head[HEADER_BYTES..head_len].as_chunks_mut::<RUN_BYTES>().0;
        for (entry, draft) in table.iter_mut().zip(&self.runs) {
            let mut run = draft.run;
            run.prefixes_at += head_len as u32;
            run.heap_at += head_len as u32;
            run.slots_at = if draft.has_slots { run.slots_at + head_len as u32 } else { 0 };
            *entry = run.to_bytes();
        }
    }

    /// Adds the deltas' rows, in order of address so that records that lie together are sent
    /// together.
    fn push_deltas(&mut self, first: usize, state: &PageState<'_>, rows: Range<usize>, rests: bool, gap: u64) {
        self.by_address.clear();
        for (at, piece) in state.pieces(rows).enumerate() {
            if let Piece::Delta { index } = piece {
                self.by_address.push((first + at, index));
            }
        }
        self.by_address.sort_unstable_by_key(|&(_, index)| state.deltas[index].at);
        let mut before = None;
        for &(at, index) in &self.by_address {
            let delta = &state.deltas[index];
            let prefix = delta.record.prefix().len();
            let inline = match delta.record.rest() {
                Rest::Inline(bytes) if rests => bytes.len(),
                _ => 0,
            };
            // Between the rows of records that touch lie only those records' own bytes, published like the rows.
            let touches = before == Some(delta.at);
            before = Some(delta.at + delta.record.record().len() as u64);
            let start = delta.at + DELTA_HEADER as u64;
            let end = start + (prefix + inline) as u64;
            let in_message = self.fragments.push(start..end, touches.then_some(gap)) as u32;
            let run = &mut self.runs[at].run;
            run.prefixes_at = in_message;
            run.heap_at = in_message + prefix as u32;
            run.heap_len = inline as u32;
        }
        for &(at, index) in &self.by_address {
            if let (Rest::Overflow(extent), true) = (state.deltas[index].record.rest(), rests) {
                add_extent(&mut self.runs[at].run, extent, &mut self.fragments);
            }
        }
    }
}

/// Adds ranges of one page.
struct Adder<'f> {
    fragments: &'f mut Fragments,
    at: u64,
    gap_bytes_max: u64,
    /// Whether the fragment before is of this page; pages may lie in different segments, so only
    /// then it may grow.
    started: bool,
}

impl Adder<'_> {
    fn page(&mut self, range: Range<usize>) -> u32 {
        if range.is_empty() {
            // Begins no fragment: what follows must not grow the one of the page before.
            return self.fragments.bytes() as u32;
        }
        let range = self.at + range.start as u64..self.at + range.end as u64;
        if std::mem::replace(&mut self.started, true) {
            return self.fragments.push(range, Some(self.gap_bytes_max)) as u32;
        }
        // Begins some bytes early where that makes source and destination lie alike in their cache lines: copies that are
        // askew take longer, on some machines many times as long.
        let askew = range.start.wrapping_sub(self.fragments.bytes()) % LINE_BYTES as u64;
        let lead = if range.start < self.at + askew { 0 } else { askew };
        (self.fragments.push(range.start - lead..range.end, None) + lead) as u32
    }
}

fn add_extent(run: &mut Run, extent: OverflowRef, fragments: &mut Fragments) {
    run.heap_at = fragments.push(extent.offset..extent.offset + u64::from(extent.len), None) as u32;
    run.heap_len = extent.len;
}

/// Adds slots and rests of the base page's rows, then the extents.
fn add_rests(drafts: &mut [Draft], state: &PageState<'_>, rows: Range<usize>, add: &mut Adder<'_>) {
    let leaf = &state.leaf;
    for (draft, piece) in drafts.iter_mut().zip(state.pieces(rows.clone())) {
        if let Piece::Base { from, to } = piece {
            let slots = leaf.slots_at(from..to);
            if !slots.is_empty() {
                draft.run.slots_at = add.page(slots);
                draft.has_slots = true;
            }
        }
    }
    for (draft, piece) in drafts.iter_mut().zip(state.pieces(rows.clone())) {
        if let Piece::Base { from, to } = piece {
            let heap = leaf.heap_at(from..to);
            if !heap.is_empty() {
                draft.run.heap_at = add.page(heap.clone());
            }
            draft.run.bias = if draft.has_slots { heap.start as u32 } else { 0 };
            draft.run.heap_len = heap.len() as u32;
        }
    }
    for (draft, piece) in drafts.iter_mut().zip(state.pieces(rows)) {
        if let Piece::Far { extent, .. } = piece {
            add_extent(&mut draft.run, extent, add.fragments);
        }
    }
}

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows without fixed-width columns have empty prefixes.
    #[test]
    fn a_page_that_begins_with_nothing_leaves_the_page_before_alone() {
        let mut fragments = Fragments::default();
        fragments.push(24..38, None);
        let mut add = Adder { fragments: &mut fragments, at: 40, gap_bytes_max: 100, started: false };
        assert_eq!(add.page(0..0), 14);
        assert_eq!(add.page(8..16), 14);
        assert_eq!(add.page(0..0), 22);
        assert_eq!(add.page(20..30), 26, "within the page, gaps travel");
        let list: Vec<_> = fragments.list().iter().map(|f| (f.offset, f.len)).collect();
        assert_eq!(list, [(24, 14), (48, 22)]);
    }
}
