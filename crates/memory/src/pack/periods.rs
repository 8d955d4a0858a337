//! Rows of one pattern: at one distance, or at offsets.

use overside_shape::{Level, Run};
use smallvec::SmallVec;

use super::columns::{every, stride};
use super::copy::run;
use super::kernel::PackKernel;
use crate::kernels::{LINES_AHEAD, RANGES_AHEAD, lines_of, prefetch_range};

/// Packs innermost periods `from..to` of a stride.
///
/// # Safety
/// The periods' runs are readable from `base`; `out` has room for them and is disjoint; the kernel
/// was detected.
pub(super) unsafe fn periods(
    kernel: PackKernel,
    base: *const u8,
    levels: &[Level],
    runs: &[Run],
    range: std::ops::Range<u64>,
    out: *mut u8,
) {
    let Some((inner, outer)) = levels.split_last() else { return };
    let period_bytes: u64 = runs.iter().map(|r| r.len).sum();
    // Few periods in each of many: as one pattern of the longer period they have a straight loop for each run.
    let (first, last) = (range.start.next_multiple_of(inner.count), range.end / inner.count * inner.count);
    if !outer.is_empty() && inner.count.saturating_mul(runs.len() as u64) <= PATTERN_RUNS && first < last {
        let place = |of: u64| out.wrapping_add(((of - range.start) * period_bytes) as usize);
        let pattern: SmallVec<[Run; PATTERN_RUNS as usize]> = (0..inner.count)
            .flat_map(|period| runs.iter().map(move |run| Run::new(period * inner.period + run.at, run.len)))
            .collect();
        // SAFETY: [pack] the caller's promise: parts of the same range, each at its own place.
        return unsafe {
            periods(kernel, base, levels, runs, range.start..first, out);
            periods(kernel, base, outer, &pattern, first / inner.count..last / inner.count, place(first));
            periods(kernel, base, levels, runs, last..range.end, place(last));
        };
    }
    let (mut index, mut done) = (range.start, 0);
    while index < range.end {
        let within = index % inner.count;
        let count = (inner.count - within).min(range.end - index);
        let (mut at, mut rest) = (0, index);
        for level in levels.iter().rev() {
            at += rest % level.count * level.period;
            rest /= level.count;
        }
        // SAFETY: [pack] `count` periods from this one on, and room for them.
        unsafe {
            one_level(kernel, base.add(at as usize), inner.period as usize, count as usize, runs, out.add(done));
        }
        done += (count * period_bytes) as usize;
        index += count;
    }
}

/// Packs `count` periods, one after another. No run is empty.
///
/// # Safety
/// As [`periods`].
pub(super) unsafe fn one_level(
    kernel: PackKernel,
    from: *const u8,
    period: usize,
    count: usize,
    runs: &[Run],
    to: *mut u8,
) {
    // SAFETY: [pack] the caller's promise.
    unsafe {
        if let [only] = runs {
            return stride(kernel, from.add(only.at as usize), period, only.len as usize, count, to, 0);
        }
        let bytes: usize = runs.iter().map(|r| r.len as usize).sum();
        let block = (BLOCK_BYTES / period).max(1);
        for first in (0..count).step_by(block) {
            let (rows, from, mut to) = (block.min(count - first), from.add(first * period), to.add(first * bytes));
            // Run by run, so that each has its own straight loop; the block stays in the first-level cache.
            for run in runs {
                every(kernel, from.add(run.at as usize), period, run.len as usize, rows, to, bytes);
                to = to.add(run.len as usize);
            }
        }
    }
}

/// Packs rows at offsets.
///
/// # Safety
/// As [`periods`], for each offset.
pub(super) unsafe fn mapped(kernel: PackKernel, base: *const u8, rows: &[u64], runs: &[Run], to: *mut u8) {
    let reach = runs.last().map_or(0, |r| (r.at + r.len) as usize);
    // Runs close together are asked for as one, whatever lies between them.
    let (apart, together) = (runs.iter().map(|r| lines_of(r.len as usize)).sum::<usize>(), lines_of(reach));
    let ahead = (LINES_AHEAD / apart.min(together).max(1)).clamp(1, RANGES_AHEAD);
    // SAFETY: [pack] the caller's promise, in both.
    unsafe {
        if together <= apart {
            let whole = |row: *const u8| {
                prefetch_range(row, reach);
            };
            mapped_ahead(kernel, base, rows, runs, to, ahead, whole);
        } else {
            let each = |row: *const u8| {
                for r in runs {
                    prefetch_range(row.wrapping_add(r.at as usize), r.len as usize);
                }
            };
            mapped_ahead(kernel, base, rows, runs, to, ahead, each);
        }
    }
}

/// [`mapped`], with the row that comes `ahead` rows later asked for by `fetch`.
///
/// # Safety
/// As [`mapped`].
#[inline(always)]
unsafe fn mapped_ahead(
    kernel: PackKernel,
    base: *const u8,
    rows: &[u64],
    runs: &[Run],
    to: *mut u8,
    ahead: usize,
    fetch: impl Fn(*const u8),
) {
    let mut at = 0;
    for (i, row) in rows.iter().enumerate() {
        if let Some(next) = rows.get(i + ahead) {
            fetch(base.wrapping_add(*next as usize));
        }
        for part in runs {
            // SAFETY: [pack] the caller's promise.
            unsafe { run(kernel, to.add(at), base.add((row + part.at) as usize), part.len as usize) };
            at += part.len as usize;
        }
    }
}

/// Runs of a pattern that is made of the periods of the innermost level.
const PATTERN_RUNS: u64 = 16;
/// Bytes of memory that are packed run by run.
const BLOCK_BYTES: usize = 16 << 10;
