//! A received scan answer as rows.

use std::sync::Arc;

use smallvec::SmallVec;

use super::header::{BlockHeader, Mode};
use super::run::{OpenRuns, RUN_BYTES};
use super::source::Source;
use super::{AnswerPage, Rows, Run};
use crate::projection::Projection;
use crate::row::{Bytes, Malformed, RowLayout, RowView};

/// The runs of a message.
pub(super) type Runs = SmallVec<[Run; 2]>;

/// The rows of one scan answer, in the buffer that it arrived in.
///
/// `B` is whatever holds the bytes: a received buffer, a vector, a slice. It must hold the same
/// bytes throughout; nobody else may be able to write them.
#[derive(Debug)]
pub struct RowBlock<B> {
    bytes: B,
    header: BlockHeader,
    layout: Arc<RowLayout>,
    /// A message of whole clean pages has one for each, which allocates nothing.
    runs: Runs,
}

impl<B: AsRef<[u8]>> RowBlock<B> {
    /// Parses an answer to a scan that asked for this projection. Takes time by the number of runs,
    /// and a fraction of a nanosecond a row to see that the rests' offsets ascend. Reading the rows
    /// afterwards cannot fail; reading text or bytes of a row can, see [`RowView`].
    ///
    /// # Errors
    /// The bytes are no answer of this version, or name bytes outside themselves, or have other
    /// rows than they say.
    pub fn parse(bytes: B, projection: &Projection) -> Result<RowBlock<B>, Malformed> {
        let Parsed { header, layout, runs } = parsed(bytes.as_ref(), projection, &mut Vec::new())?;
        Ok(RowBlock { bytes, header, layout, runs })
    }

    /// What the message says of itself.
    pub fn header(&self) -> &BlockHeader {
        &self.header
    }

    /// The pages that a `delta` answer holds, in the order of their rows; none of other answers,
    /// which do not say.
    pub fn pages(&self) -> Vec<AnswerPage> {
        super::delta::pages(self.bytes.as_ref(), &self.header)
    }

    /// Rows in the block.
    pub fn len(&self) -> usize {
        self.header.rows as usize
    }

    /// Whether the block has no row, as the last message of a scan may.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the columns lie in this block's rows.
    pub fn layout(&self) -> &Arc<RowLayout> {
        &self.layout
    }

    /// The rows in key order.
    #[inline]
    pub fn rows(&self) -> Rows<'_> {
        Rows::new(&self.layout, self.runs(), self.len())
    }

    /// One row; O(runs).
    pub fn row(&self, index: usize) -> Option<RowView<'_>> {
        let mut index = index;
        for run in self.runs() {
            if index < run.rows {
                let stride = self.layout.prefix_len();
                return Some(RowView::trusted(
                    run.prefixes.part(index * stride, stride)?,
                    run.rest(index),
                    &self.layout,
                ));
            }
            index -= run.rows;
        }
        None
    }

    /// Bytes of all row views: prefixes and rests, nothing else of the message.
    pub fn row_bytes(&self) -> u64 {
        row_bytes(self.runs(), self.len(), &self.layout)
    }

    /// The message.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// What held the message, to receive the next one into.
    pub fn into_inner(self) -> B {
        self.bytes
    }

    pub(crate) fn runs(&self) -> OpenRuns<'_, &[u8]> {
        OpenRuns::new(self.bytes.as_ref(), &self.runs, &[], self.layout.prefix_len())
    }
}

/// What a message says, checked.
pub(super) struct Parsed {
    pub(super) header: BlockHeader,
    pub(super) layout: Arc<RowLayout>,
    pub(super) runs: Runs,
}

/// Reads all of a message but its rows, wherever it lies. What must be kept of its slots goes to
/// `copies`.
pub(super) fn parsed<'a>(
    message: impl Source<'a>,
    projection: &Projection,
    copies: &mut Vec<[u8; 4]>,
) -> Result<Parsed, Malformed> {
    let header = BlockHeader::of(message)?;
    let layout = if header.packed { projection.packed() } else { projection.in_place() };
    if header.stride as usize != layout.prefix_len() {
        return Err(Malformed("rows of a scan answer have another width than the scan asked for"));
    }
    if header.without_rests && projection.needs_rest() {
        return Err(Malformed("a scan answer leaves out columns that the scan asked for"));
    }
    let runs = match header.mode {
        Mode::Copy | Mode::Gather => clean_runs(message, &header)?,
        Mode::Delta => super::delta::runs(message, &header)?,
    };
    check_sums(&runs, &header)?;
    // Sums first: what a short message can make this loop do is bounded by its length.
    runs.iter().try_for_each(|run| run.check(message, header.stride as usize, copies))?;
    Ok(Parsed { header, layout: layout.clone(), runs })
}

/// Bytes of all rows of a block.
pub(super) fn row_bytes<'a, S: Source<'a>>(runs: OpenRuns<'a, S>, rows: usize, layout: &RowLayout) -> u64 {
    rows as u64 * layout.prefix_len() as u64 + runs.map(|run| run.rests_len()).sum::<u64>()
}

fn clean_runs<'a>(message: impl Source<'a>, header: &BlockHeader) -> Result<Runs, Malformed> {
    let table = (header.entries as usize).checked_mul(RUN_BYTES);
    let table = table.and_then(|bytes| message.piece(header.table_at as usize, bytes));
    let table = table.ok_or(Malformed("the run table of a scan answer lies outside it"))?;
    Ok(table.chunks(RUN_BYTES).filter_map(|entry| entry.load(0).as_ref().map(Run::read)).collect())
}

/// Rows are as many as announced, and no byte is two rows': otherwise a short message could
/// announce rows without end.
fn check_sums(runs: &[Run], header: &BlockHeader) -> Result<(), Malformed> {
    let (mut rows, mut prefixes, mut slots, mut heaps) = (0u64, 0u64, 0u64, 0u64);
    for run in runs {
        rows += u64::from(run.count);
        prefixes = prefixes.saturating_add(u64::from(run.count) * u64::from(header.stride));
        slots += if run.slots_at == 0 { 0 } else { 4 * u64::from(run.count) };
        heaps += u64::from(run.heap_len);
    }
    if rows != u64::from(header.rows) {
        return Err(Malformed("a scan answer has other rows than it announces"));
    }
    if prefixes.max(slots).max(heaps) > u64::from(header.bytes) {
        return Err(Malformed("rows of a scan answer share their bytes"));
    }
    Ok(())
}
