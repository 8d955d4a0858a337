//! Packing: a shape's bytes, without space between them, in a transmit buffer.
//!
//! Copying is what most plans come to. So there is a kernel for each kind of shape and each width,
//! for plain words and for vectors ([`PackKernel`]). Which one runs is found out once per call. All
//! give the same bytes.
//!
//! | kind | how |
//! |---|---|
//! | contiguous | one copy by vectors |
//! | strided | one loop a run of the period, by its width; every other value by permutations |
//! | bitmapped | vector compress by words of 64 rows (widths 1, 2, 4, 8), else value by value |
//! | several columns of a bitmap, row by row | turned by vectors (dense, 4 bytes), else numbers of the set rows by vectors, then row after row |
//! | such rows to several destinations | dealt out by vectors in one pass ([`Dealer`]) |
//! | sets, row by row | columns into a block in the first-level cache, the block into rows |
//! | mapped | row by row, fetched ahead |
//! | other | fragment by fragment, fetched ahead |
//!
//! Stores stay within the cache, because a transmit buffer is read soon after. What lost beside
//! what is here: eight pieces asked for ahead (too few for short ones), half as many lines (too few
//! for long ones), asking for lines before they are written. So did counting bits in software while
//! words are taken, and moving destinations' pointers row by row. Values of a few odd widths still
//! ask for their length, and are the slowest for their size. Compressing by vectors column by
//! column is slower than turning rows first. Two receivers that share one region's lines gain
//! nothing: what one processor has fetched is no nearer for the other than memory. For every other
//! row, in order, a compiler's loop mispredicts nothing, and the kernels do not reach twice its
//! rate. For random rows they do, in the cache; from memory the loop runs at the copy limit
//! already.

mod columns;
mod copy;
mod dealer;
mod indexed;
mod kernel;
pub(crate) mod load;
mod packer;
mod periods;
mod pieces;
mod rows;
mod tables;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_deal;

use std::ops::Range;

use overside_shape::{Mask, Messages, Run, Shape, ShapeKind};
use smallvec::SmallVec;

use crate::MemoryError;
use copy::run;
pub use dealer::{Dealer, RowBuffer};
pub use kernel::PackKernel;
pub use packer::Packer;
use pieces::pieces;
use rows::RowPacker;

/// In which order packed bytes stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// As the messages do.
    Messages,
    /// Column after column where messages lie across columns, each column's values without space
    /// between them; otherwise as the messages do.
    Columns,
}

/// Packs messages of a shape over `memory` into the start of `out`, in message order, and gives
/// their bytes.
///
/// # Errors
/// [`MemoryError::Escapes`] when the shape leaves the memory, [`MemoryError::Short`] when `out` has
/// no room; nothing is written then.
pub fn pack(memory: &[u8], messages: &Messages<'_>, out: &mut [u8]) -> Result<usize, MemoryError> {
    pack_with(PackKernel::best(), Layout::Messages, memory, messages, out)
}

/// As [`pack`], with the kernel (or the best below it that this processor can run) and the order
/// given.
///
/// # Errors
/// As [`pack`].
pub fn pack_with(
    kernel: PackKernel,
    layout: Layout,
    memory: &[u8],
    messages: &Messages<'_>,
    out: &mut [u8],
) -> Result<usize, MemoryError> {
    let (shape, range) = (messages.shape(), messages.byte_range());
    let (len, needed) = (memory.len() as u64, range.end - range.start);
    shape.within(len).map_err(|_| MemoryError::Escapes { at: 0, len: shape.end(), of: len })?;
    if needed > out.len() as u64 {
        return Err(MemoryError::Short { needed, has: out.len() as u64 });
    }
    let base = memory.as_ptr();
    // SAFETY: [pack] the shape lies within the slice, the bytes fit into the other, and the kernel is available.
    unsafe { bytes_of(kernel.or_less(), layout, base, shape, range, out.as_mut_ptr()) };
    Ok(needed as usize)
}

/// Packs `runs` of each period of `memory`, which has as many periods as begin in it whole, into
/// the start of `out`, and gives their bytes. It packs as a strided shape is packed, and spares
/// making one where the number of periods differs from call to call.
///
/// # Errors
/// [`MemoryError::Escapes`] when a run leaves its period, [`MemoryError::Short`] when `out` has no
/// room; nothing is written then.
pub fn pack_periods(memory: &[u8], period: usize, runs: &[Run], out: &mut [u8]) -> Result<usize, MemoryError> {
    if let Some(run) = runs.iter().find(|run| !lies_within(**run, period as u64)) {
        return Err(MemoryError::Escapes { at: run.at, len: run.len, of: period as u64 });
    }
    let Some(count) = memory.len().checked_div(period) else { return Ok(0) };
    let bytes = runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.len));
    let (needed, has) = (bytes.saturating_mul(count as u64), out.len() as u64);
    if needed > has {
        return Err(MemoryError::Short { needed, has });
    }
    let runs: SmallVec<[Run; 8]> = runs.iter().copied().filter(|run| run.len > 0).collect();
    if needed > 0 {
        // SAFETY: [pack] every run lies within its period and every period within the slice, the bytes fit into the other, and the
        // kernel is available.
        unsafe { periods::one_level(PackKernel::best(), memory.as_ptr(), period, count, &runs, out.as_mut_ptr()) };
    }
    Ok(needed as usize)
}

/// As [`pack`], over memory that somebody may be writing.
///
/// # Safety
/// `len` bytes at `base` are mapped and readable.
///
/// # Errors
/// As [`pack`].
pub(crate) unsafe fn pack_racing(
    base: *const u8,
    len: u64,
    messages: &Messages<'_>,
    out: &mut [u8],
) -> Result<usize, MemoryError> {
    let (shape, range) = (messages.shape(), messages.byte_range());
    let needed = range.end - range.start;
    shape.within(len).map_err(|_| MemoryError::Escapes { at: 0, len: shape.end(), of: len })?;
    if needed > out.len() as u64 {
        return Err(MemoryError::Short { needed, has: out.len() as u64 });
    }
    // SAFETY: [pack] the shape lies within the range, the bytes fit into the other, and the kernel is available.
    unsafe { bytes_of(PackKernel::best(), Layout::Messages, base, shape, range, out.as_mut_ptr()) };
    Ok(needed as usize)
}

/// Packs runs of `memory`, one after another, into the start of `out`, and gives their bytes: of a
/// region that is gathered in part, what is not.
///
/// Each run is asked for once, checked, and copied as it was checked: an iterator that says
/// something else the next time it is asked, or a clone of it, changes nothing.
///
/// # Errors
/// [`MemoryError::Escapes`] when a run leaves the memory, [`MemoryError::Short`] when `out` has no
/// room; the runs before that one may have been written then.
pub fn pack_runs(memory: &[u8], runs: impl Iterator<Item = Run>, out: &mut [u8]) -> Result<usize, MemoryError> {
    let (of, has) = (memory.len() as u64, out.len() as u64);
    let mut checked = Checked { runs, of, room: has, refused: None };
    // SAFETY: [pack] `Checked` yields runs that lie within the slice and together fit into the
    // other; the best kernel is available.
    unsafe { pieces(PackKernel::best(), memory.as_ptr(), &mut checked, out.as_mut_ptr()) };
    match checked.refused {
        None => Ok((has - checked.room) as usize),
        Some(run) if !lies_within(run, of) => Err(MemoryError::Escapes { at: run.at, len: run.len, of }),
        Some(run) => {
            let needed = checked.runs.fold(has - checked.room + run.len, |sum, run| sum.saturating_add(run.len));
            Err(MemoryError::Short { needed, has })
        }
    }
}

/// A caller's runs, which nothing is believed of: those that lie within `of` bytes and for which
/// there is room. It ends for good at the first other one.
struct Checked<I> {
    runs: I,
    of: u64,
    room: u64,
    refused: Option<Run>,
}

impl<I: Iterator<Item = Run>> Iterator for Checked<I> {
    type Item = Run;

    #[inline]
    fn next(&mut self) -> Option<Run> {
        if self.refused.is_some() {
            return None;
        }
        let run = self.runs.next()?;
        if !lies_within(run, self.of) || run.len > self.room {
            self.refused = Some(run);
            return None;
        }
        self.room -= run.len;
        Some(run)
    }
}

#[inline]
fn lies_within(run: Run, of: u64) -> bool {
    run.at.checked_add(run.len).is_some_and(|end| end <= of)
}

/// Packs a range of a shape's bytes in message order.
///
/// # Safety
/// The shape's bytes, gaps included, are readable from `base`; `out` has room for the range and is
/// disjoint; the kernel was detected.
unsafe fn bytes_of(
    kernel: PackKernel,
    layout: Layout,
    base: *const u8,
    shape: &Shape,
    range: Range<u64>,
    out: *mut u8,
) {
    let len = (range.end - range.start) as usize;
    if len == 0 {
        return;
    }
    let whole = |unit: u64| range.start.is_multiple_of(unit) && range.end.is_multiple_of(unit);
    // SAFETY: [pack] the caller's promise, handed on.
    unsafe {
        match shape.kind() {
            ShapeKind::Contiguous(only) => run(kernel, out, base.add((only.at + range.start) as usize), len),
            ShapeKind::Strided { base: at, levels, runs } if whole(unit_of(runs)) => {
                let periods = range.start / unit_of(runs)..range.end / unit_of(runs);
                periods::periods(kernel, base.add(at as usize), levels, runs, periods, out);
            }
            ShapeKind::Mapped { rows, runs } if whole(unit_of(runs)) => {
                let rows = &rows[(range.start / unit_of(runs)) as usize..(range.end / unit_of(runs)) as usize];
                periods::mapped(kernel, base, rows, runs, out);
            }
            ShapeKind::Bitmapped { columns, .. } if whole(columns.iter().map(|c| c.width).sum()) => {
                let unit: u64 = columns.iter().map(|c| c.width).sum();
                // A row is a row, whatever this region's elements are in a set.
                let packer =
                    RowPacker::new(kernel, base, std::slice::from_ref(shape), |_| Some(unit), range.start / unit);
                rows_of(packer, kernel, layout, base, unit, shape, range, out);
            }
            ShapeKind::Set { regions, mask: Mask::Rows } => {
                match regions.iter().map(Shape::element_bytes).sum::<Option<u64>>() {
                    Some(unit) if unit > 0 && whole(unit) => {
                        let packer = RowPacker::new(kernel, base, regions, Shape::element_bytes, range.start / unit);
                        rows_of(packer, kernel, layout, base, unit, shape, range, out);
                    }
                    _ => pieces(kernel, base, shape.fragments_in(range), out),
                }
            }
            ShapeKind::Set { regions, mask: Mask::Periods } => {
                let (mut before, mut done) = (0, 0);
                for region in regions {
                    let within = |at: u64| at.clamp(before, before + region.bytes()) - before;
                    let part = within(range.start)..within(range.end);
                    before += region.bytes();
                    let len = (part.end - part.start) as usize;
                    bytes_of(kernel, layout, base, region, part, out.add(done));
                    done += len;
                }
            }
            _ => pieces(kernel, base, shape.fragments_in(range), out),
        }
    }
}

/// Rows across regions, `unit` bytes each, by a packer that stands at the range's start.
///
/// # Safety
/// As [`bytes_of`].
#[allow(clippy::too_many_arguments)]
unsafe fn rows_of(
    packer: Option<RowPacker<'_>>,
    kernel: PackKernel,
    layout: Layout,
    base: *const u8,
    unit: u64,
    shape: &Shape,
    range: Range<u64>,
    out: *mut u8,
) {
    let count = ((range.end - range.start) / unit) as usize;
    // SAFETY: [pack] the caller's promise, handed on.
    unsafe {
        match (packer, layout) {
            (Some(packer), Layout::Columns) => packer.columns(count, out),
            (Some(packer), Layout::Messages) if packer.fits() => packer.rows(count, out),
            _ => pieces(kernel, base, shape.fragments_in(range), out),
        }
    }
}

fn unit_of(runs: &[Run]) -> u64 {
    runs.iter().map(|r| r.len).sum()
}
