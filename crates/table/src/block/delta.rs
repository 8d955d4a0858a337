//! `delta`: base pages and delta records as they lie, merged by the client (to-copy §5.3, TC-M28,
//! TC-M29).
//!
//! The table of such a message has three parts. Page entries have 24 bytes: `at | len | first row |
//! end row | deltas | extents`. Entries of delta records have 8: `at | len`. Entries of overflow
//! extents have 16: `row | at | len | 0`. Delta records and extents stand in the order of their
//! pages. Deltas of a page are newest per key and sorted by key. Extents of a page name a row of
//! the base page, or with the top bit a delta of it, ascending.
//!
//! A record says where in the base page its key goes, so merging compares no keys: it is O(deltas),
//! and its result is the runs of a clean answer. Positions are checked to ascend; that they are the
//! right ones is the server's word, like the rows themselves.

use std::marker::PhantomData;
use std::ops::Range;

use overside_bwtree::page::{DELTA_HEADER, DeltaHeader, Sections};
use overside_bwtree::{DeltaRecord, Op, OverflowRef, Rest};
use smallvec::SmallVec;

use super::fragments::{Fragment, Fragments};
use super::gather::LINE_BYTES;
use super::header::{BlockHeader, HEADER_BYTES, Mode, u32_at};
use super::run::Run;
use super::source::Source;
use super::state::{PageState, Piece};
use super::view::Runs;
use crate::projection::Projection;
use crate::row::{Bytes, Malformed};

/// A `delta` answer to be: its head, which is written, and its fragments, which are sent from where
/// they lie.
#[derive(Clone, Debug, Default)]
pub struct DeltaAnswer {
    pages: Vec<[u32; 6]>,
    deltas: Vec<[u32; 2]>,
    extents: Vec<[u32; 3]>,
    fragments: Fragments,
    rows: u64,
    by_address: Vec<usize>,
}

/// Where a [`DeltaAnswer`] stood.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeltaMark {
    tables: [usize; 3],
    fragments: (usize, u64),
    rows: u64,
}

impl DeltaAnswer {
    /// An answer without rows.
    pub fn new() -> DeltaAnswer {
        DeltaAnswer::default()
    }

    /// Forgets all pages.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.deltas.clear();
        self.extents.clear();
        self.fragments.clear();
        self.rows = 0;
    }

    /// Where the answer stands, to [`rewind`](DeltaAnswer::rewind) to.
    pub fn mark(&self) -> DeltaMark {
        let tables = [self.pages.len(), self.deltas.len(), self.extents.len()];
        DeltaMark { tables, fragments: self.fragments.mark(), rows: self.rows }
    }

    /// Forgets what was pushed since the mark was made.
    pub fn rewind(&mut self, mark: &DeltaMark) {
        let [pages, deltas, extents] = mark.tables;
        self.pages.truncate(pages);
        self.deltas.truncate(deltas);
        self.extents.truncate(extents);
        self.fragments.rewind(mark.fragments);
        self.rows = mark.rows;
    }

    /// Adds a page's state whole: base page, records, and the extents that the projection wants.
    pub fn push(&mut self, state: &PageState<'_>, projection: &Projection) {
        let page = state.leaf.bytes().len() as u64;
        let at = self.fragments.push(state.at..state.at + page, None) as u32;
        let first = self.deltas.len();
        self.deltas.resize(first + state.deltas.len(), [0; 2]);
        self.by_address.clear();
        self.by_address.extend(0..state.deltas.len());
        self.by_address.sort_unstable_by_key(|&index| state.deltas[index].at);
        for (nth, &index) in self.by_address.iter().enumerate() {
            let delta = &state.deltas[index];
            let len = delta.record.record().len();
            // Records that touch are one fragment; no gap is sent along, its bytes may be a record still being written.
            let gap = (nth > 0).then_some(0);
            let at = self.fragments.push(delta.at..delta.at + len as u64, gap) as u32;
            self.deltas[first + index] = [at, len as u32];
        }
        let extents = self.extents.len();
        if projection.needs_rest() {
            self.push_extents(state);
        }
        self.rows += state.rows() as u64;
        let Range { start, end } = state.base_rows;
        let counts = [state.deltas.len() as u32, (self.extents.len() - extents) as u32];
        self.pages.push([at, page as u32, start as u32, end as u32, counts[0], counts[1]]);
    }

    /// Rows in the answer.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// What follows the head, in order.
    pub fn fragments(&self) -> &[Fragment] {
        self.fragments.list()
    }

    /// Bytes of the head: header, tables, and zeroes up to a cache line, so that the page is copied
    /// aligned.
    pub fn head_len(&self) -> usize {
        self.tables_end().next_multiple_of(LINE_BYTES)
    }

    fn tables_end(&self) -> usize {
        let tables =
            self.pages.len() * PAGE_BYTES + self.deltas.len() * DELTA_BYTES + self.extents.len() * EXTENT_BYTES;
        HEADER_BYTES + tables
    }

    /// Bytes of the whole message.
    pub fn message_len(&self) -> u64 {
        self.head_len() as u64 + self.fragments.bytes()
    }

    /// Writes the head into the first [`DeltaAnswer::head_len`] bytes of `head`.
    ///
    /// # Panics
    /// `head` is shorter, or the message is longer than [`super::MESSAGE_BYTES_MAX`].
    pub fn write_head(&self, head: &mut [u8], projection: &Projection, scan: u64, sequence: u64, last: bool) {
        assert!(self.message_len() <= super::MESSAGE_BYTES_MAX as u64, "a message has at most 1 GiB");
        let header = BlockHeader {
            mode: Mode::Delta,
            packed: false,
            without_rests: !projection.needs_rest(),
            last,
            scan,
            sequence,
            rows: self.rows as u32,
            stride: projection.in_place().prefix_len() as u32,
            table_at: HEADER_BYTES as u32,
            entries: self.pages.len() as u32,
            deltas: self.deltas.len() as u32,
            overflows: self.extents.len() as u32,
            bytes: self.message_len() as u32,
        };
        let base = self.head_len() as u32;
        head[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        head[self.tables_end()..base as usize].fill(0);
        let mut words = head[HEADER_BYTES..base as usize].as_chunks_mut::<4>().0.iter_mut();
        let mut put = |word: u32| {
            if let Some(place) = words.next() {
                *place = word.to_le_bytes();
            }
        };
        for &[at, rest @ ..] in &self.pages {
            put(at + base);
            rest.into_iter().for_each(&mut put);
        }
        for &[at, len] in &self.deltas {
            put(at + base);
            put(len);
        }
        for &[row, at, len] in &self.extents {
            [row, at + base, len, 0].into_iter().for_each(&mut put);
        }
    }

    fn push_extents(&mut self, state: &PageState<'_>) {
        for piece in state.pieces(0..state.rows()) {
            if let Piece::Far { row, extent } = piece {
                let bytes = extent.offset..extent.offset + u64::from(extent.len);
                let at = self.fragments.push(bytes, None) as u32;
                self.extents.push([row as u32, at, extent.len]);
            }
        }
        for (index, delta) in state.deltas.iter().enumerate() {
            if let (Op::Put, Rest::Overflow(extent)) = (delta.record.op(), delta.record.rest()) {
                let bytes = extent.offset..extent.offset + u64::from(extent.len);
                let at = self.fragments.push(bytes, None) as u32;
                self.extents.push([OF_DELTA | index as u32, at, extent.len]);
            }
        }
    }
}

/// A page of a delta answer, as [`RowBlock::pages`](super::RowBlock::pages) tells of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerPage {
    /// Rows that it delivers.
    pub rows: usize,
    /// Delta records on it, the newest per key.
    pub deltas: usize,
}

/// The pages of a message that has been checked.
pub(super) fn pages(message: &[u8], header: &BlockHeader) -> Vec<AnswerPage> {
    let Some((pages, mut deltas, _)) = tables(message, header).filter(|_| header.mode == Mode::Delta) else {
        return Vec::new();
    };
    let page = |page: &[u8; PAGE_BYTES]| {
        let [first, end, count] = [8, 12, 16].map(|at| u32_at(page, at) as usize);
        let (ours, later) = deltas.split_at(count.min(deltas.len()));
        deltas = later;
        let record =
            |entry: &[u8; DELTA_BYTES]| DeltaRecord::parse(part(message, u32_at(entry, 0), u32_at(entry, 4))?).ok();
        let records = ours.iter().filter_map(record);
        let (put, gone) = records.fold((0, 0), |(put, gone), record| {
            (put + usize::from(record.op() == Op::Put), gone + usize::from(record.replaces()))
        });
        AnswerPage { rows: (end - first + put).saturating_sub(gone), deltas: count }
    };
    pages.iter().map(page).collect()
}

/// Pages, delta records, extents.
type Tables<'a> = (&'a [[u8; PAGE_BYTES]], &'a [[u8; DELTA_BYTES]], &'a [[u8; EXTENT_BYTES]]);

fn tables<'a>(message: &'a [u8], header: &BlockHeader) -> Option<Tables<'a>> {
    let mut rest = message.get(header.table_at as usize..)?;
    let mut table = |entries: u32, bytes: usize| {
        let (table, after) = rest.split_at_checked((entries as usize).checked_mul(bytes)?)?;
        rest = after;
        Some(table)
    };
    let pages = table(header.entries, PAGE_BYTES)?.as_chunks().0;
    let deltas = table(header.deltas, DELTA_BYTES)?.as_chunks().0;
    Some((pages, deltas, table(header.overflows, EXTENT_BYTES)?.as_chunks().0))
}

/// The runs of a delta message, checked as those of a clean one are.
pub(super) fn runs<'a, S: Source<'a>>(message: S, header: &BlockHeader) -> Result<Runs, Malformed> {
    let mut at = header.table_at as usize;
    let pages = entries::<PAGE_BYTES>(message, &mut at, header.entries)?;
    let deltas = entries::<DELTA_BYTES>(message, &mut at, header.deltas)?;
    let extents = entries::<EXTENT_BYTES>(message, &mut at, header.overflows)?;
    let (mut deltas, mut extents) = (&deltas[..], &extents[..]);
    let mut runs = Runs::with_capacity(pages.len() + 2 * (deltas.len() + extents.len()));
    let mut page_bytes = 0;
    for page in &pages {
        let [at, len, first, end, of_deltas, of_extents] = [0, 4, 8, 12, 16, 20].map(|at| u32_at(page, at));
        let ours = deltas.split_at_checked(of_deltas as usize).zip(extents.split_at_checked(of_extents as usize));
        let Some(((ours, later), (far, later_far))) = ours else {
            return Err(Malformed("a page of a scan answer has more delta records than the answer"));
        };
        (deltas, extents) = (later, later_far);
        let bytes = message.piece(at as usize, len as usize);
        let bytes = bytes.ok_or(Malformed("a page of a scan answer lies outside it"))?;
        page_bytes += bytes.len();
        if page_bytes > message.bytes() {
            return Err(Malformed("pages of a scan answer share their bytes"));
        }
        let sections = bytes.load(0).and_then(|header| Sections::parse(&header, bytes.len()).ok());
        let sections = sections.ok_or(Malformed("a page of a scan answer is broken"))?;
        if sections.prefix_len() != header.stride as usize || first > end || end as usize > sections.count() {
            return Err(Malformed("a page of a scan answer has other rows than it announces"));
        }
        let mut merge = Merge { message, header, page: bytes, sections, at, far, runs: &mut runs, from: PhantomData };
        merge.page(first as usize..end as usize, ours)?;
    }
    if !deltas.is_empty() || !extents.is_empty() {
        return Err(Malformed("a scan answer has delta records of no page"));
    }
    Ok(runs)
}

/// The next table of a message, from `at` on: each entry taken out once.
fn entries<'a, const BYTES: usize>(
    message: impl Source<'a>,
    at: &mut usize,
    count: u32,
) -> Result<SmallVec<[[u8; BYTES]; 4]>, Malformed> {
    let bytes = (count as usize).checked_mul(BYTES);
    let table = bytes.and_then(|bytes| message.piece(*at, bytes)).ok_or(OUTSIDE)?;
    *at += table.len();
    let mut entries = SmallVec::from_elem([0; BYTES], count as usize);
    table.copy_to(entries.as_flattened_mut());
    Ok(entries)
}

/// One page and its deltas becoming runs.
struct Merge<'a, 'm, S: Source<'a>> {
    message: S,
    header: &'m BlockHeader,
    page: S::Piece,
    sections: Sections,
    at: u32,
    /// Extents not yet met.
    far: &'m [[u8; EXTENT_BYTES]],
    runs: &'m mut Runs,
    from: PhantomData<&'a ()>,
}

impl<'a, S: Source<'a>> Merge<'a, '_, S> {
    fn page(&mut self, rows: Range<usize>, deltas: &[[u8; DELTA_BYTES]]) -> Result<(), Malformed> {
        let of_deltas = self.far.partition_point(|far| u32_at(far, 0) & OF_DELTA == 0);
        let (base, mut of_deltas) = self.far.split_at(of_deltas);
        self.far = base;
        let mut from = rows.start;
        for (index, entry) in deltas.iter().enumerate() {
            let (at, len) = (u32_at(entry, 0), u32_at(entry, 4));
            let bytes = self.message.piece(at as usize, len as usize);
            let bytes = bytes.ok_or(Malformed("a delta record of a scan answer lies outside it"))?;
            let record = bytes.load(0).and_then(|header| DeltaHeader::parse(&header, bytes.len()).ok());
            let record = record.ok_or(Malformed("a delta record of a scan answer is broken"))?;
            let (position, replaces) = (record.position, record.replaces);
            if position < from || position + usize::from(replaces) > rows.end {
                return Err(Malformed("delta records of a scan answer are not in the rows' order"));
            }
            self.base(from..position);
            from = position + usize::from(replaces);
            if record.op == Op::Put {
                let extent = match of_deltas.split_first() {
                    Some((far, later)) if u32_at(far, 0) == OF_DELTA | index as u32 => {
                        of_deltas = later;
                        Some((u32_at(far, 4), u32_at(far, 8)))
                    }
                    _ => None,
                };
                self.delta(at, bytes, &record, extent)?;
            }
        }
        self.base(from..rows.end);
        if !self.far.is_empty() || !of_deltas.is_empty() {
            return Err(Malformed("a scan answer has extents of no row"));
        }
        Ok(())
    }

    /// Rows of the base page, of which some may have their rest in an extent.
    fn base(&mut self, rows: Range<usize>) {
        let mut from = rows.start;
        while let Some((far, later)) = self.far.split_first() {
            let row = u32_at(far, 0) as usize;
            if row < from || row >= rows.end {
                break;
            }
            self.far = later;
            self.near(from..row);
            let (heap_at, heap_len) = (u32_at(far, 4), u32_at(far, 8));
            let run = Run { heap_at, heap_len, ..self.prefixes(row..row + 1) };
            self.runs.push(run);
            from = row + 1;
        }
        self.near(from..rows.end);
    }

    /// Rows of the base page whose rests lie in it.
    fn near(&mut self, rows: Range<usize>) {
        if rows.is_empty() {
            return;
        }
        let mut run = self.prefixes(rows.clone());
        let slots = self.sections.slots_at(rows.clone());
        if !self.header.without_rests && !slots.is_empty() {
            let slot = |at| self.page.load(at).map_or(0, u32::from_le_bytes);
            let heap = self.sections.heap_at(rows, slot);
            run.slots_at = self.at + slots.start as u32;
            run.heap_at = self.at + heap.start as u32;
            run.heap_len = heap.len() as u32;
            run.bias = heap.start as u32;
        }
        self.runs.push(run);
    }

    fn delta(
        &mut self,
        at: u32,
        bytes: S::Piece,
        record: &DeltaHeader,
        extent: Option<(u32, u32)>,
    ) -> Result<(), Malformed> {
        if record.prefix.len() != self.header.stride as usize {
            return Err(Malformed("a delta record of a scan answer has another width than its page"));
        }
        let prefixes_at = at + DELTA_HEADER as u32;
        let named = match record.overflow {
            true if !self.header.without_rests => {
                bytes.load(record.rest.start).and_then(|b: [u8; 16]| OverflowRef::parse(&b))
            }
            _ => None,
        };
        let (heap_at, heap_len) = match (named, extent) {
            _ if self.header.without_rests => (prefixes_at, 0),
            (None, None) if !record.overflow => (at + record.rest.start as u32, record.rest.len() as u32),
            (Some(named), Some((at, len))) if named.len == len => (at, len),
            _ => return Err(Malformed("a delta record of a scan answer lacks its extent")),
        };
        self.runs.push(Run { count: 1, prefixes_at, heap_at, heap_len, ..Run::default() });
        Ok(())
    }

    fn prefixes(&self, rows: Range<usize>) -> Run {
        let prefixes_at = self.at + self.sections.prefixes_at(rows.clone()).start as u32;
        Run { count: rows.len() as u32, prefixes_at, heap_at: prefixes_at, ..Run::default() }
    }
}

const OUTSIDE: Malformed = Malformed("the tables of a scan answer lie outside it");
fn part(message: &[u8], at: u32, len: u32) -> Option<&[u8]> {
    message.get(at as usize..at as usize + len as usize)
}

const PAGE_BYTES: usize = 24;
const DELTA_BYTES: usize = 8;
const EXTENT_BYTES: usize = 16;
/// Of an extent's row: the delta record with this number.
const OF_DELTA: u32 = 1 << 31;
