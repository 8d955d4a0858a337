//! Rows of a bitmap across columns. Dense columns of 4 bytes are turned by vectors, if there are
//! such: all rows where many are set, else those that are. Of others, first the numbers of the set
//! rows, by vectors and without a branch on the bits, then row by row: only what is wanted is read,
//! and no step waits for another.

use std::mem::MaybeUninit;

use overside_shape::Column;

use super::columns::{Bits, Words};
use super::copy::run;
use super::kernel::PackKernel;
use super::load::fixed;
use crate::kernels::prefetch_to_write;

/// Packs `count` set rows from where `bits` stands, which it moves on.
///
/// # Safety
/// `base` plus the columns' offsets are readable for all set rows; `to` has room for `count` rows
/// and is disjoint; the kernel was detected.
pub(super) unsafe fn rows(
    kernel: PackKernel,
    base: *const u8,
    columns: &[Column],
    bits: &mut Bits<'_>,
    count: usize,
    mut to: *mut u8,
) {
    let row_bytes: usize = columns.iter().map(|column| column.width as usize).sum();
    let mut left = count;
    while left > 0 {
        // SAFETY: [pack] the caller's promise.
        let Some(ones) = (unsafe { stretch(kernel, base, columns, bits, left, to) }) else { break };
        left -= ones;
        // SAFETY: [pack] one past the last row at most.
        to = unsafe { to.add(ones * row_bytes) };
    }
}

/// Packs the set rows of the next [`NUMBERS`] rows, `most` of them at most, and gives how many;
/// none behind the last row.
///
/// # Safety
/// As [`rows`], for `most` rows.
pub(super) unsafe fn stretch(
    kernel: PackKernel,
    base: *const u8,
    columns: &[Column],
    bits: &mut Bits<'_>,
    most: usize,
    to: *mut u8,
) -> Option<usize> {
    let row_bytes: usize = columns.iter().map(|column| column.width as usize).sum();
    let mut buffer = [0; NUMBERS / 64];
    let taken = bits.take(kernel, most, &mut buffer);
    if taken.words.is_empty() {
        return None;
    }
    // SAFETY: [pack] the caller's promise.
    let (words, done) = unsafe { turned(kernel, base, columns, &taken, most, to) };
    let mut numbers = [const { MaybeUninit::<u32>::uninit() }; NUMBERS + SLACK];
    let numbers = numbers.as_mut_ptr().cast::<u32>();
    // SAFETY: [pack] the numbers of these words fit with slack; the caller's promise for what they number.
    unsafe {
        let ones = number(kernel, &taken.words[words..], numbers);
        let numbers = std::slice::from_raw_parts(numbers, ones);
        let (row, to) = (taken.row as usize + words * 64, to.add(done * row_bytes));
        move_rows(kernel, base, columns, row, numbers, to, row_bytes);
        Some(done + ones)
    }
}

/// Packs rows by vectors where they read most of what they read for something: of how many words,
/// and how many rows that were.
///
/// # Safety
/// As [`stretch`].
unsafe fn turned(
    kernel: PackKernel,
    base: *const u8,
    columns: &[Column],
    taken: &Words<'_>,
    most: usize,
    to: *mut u8,
) -> (usize, usize) {
    #[cfg(target_arch = "x86_64")]
    if kernel >= PackKernel::Avx2
        && columns.iter().all(|column| (column.width, column.stride) == (4, 4))
        && taken.ones * DENSE >= taken.words.len() * 64
    {
        use super::x86::set_rows4_avx2;
        let words = &taken.words[..taken.whole];
        // SAFETY: [pack] row 0 of a trimmed bitmap is set, so each offset is within the memory, and so are all rows of whole words.
        let at = |k: usize| unsafe { base.add((columns[k].base + taken.row * 4) as usize) };
        // SAFETY: [pack] as above; the caller's promise for the rest.
        return unsafe {
            match columns.len() {
                2 => set_rows4_avx2::<2>(std::array::from_fn(at), words, most, to),
                3 => set_rows4_avx2::<3>(std::array::from_fn(at), words, most, to),
                4 => set_rows4_avx2::<4>(std::array::from_fn(at), words, most, to),
                5 => set_rows4_avx2::<5>(std::array::from_fn(at), words, most, to),
                6 => set_rows4_avx2::<6>(std::array::from_fn(at), words, most, to),
                7 => set_rows4_avx2::<7>(std::array::from_fn(at), words, most, to),
                8 => set_rows4_avx2::<8>(std::array::from_fn(at), words, most, to),
                _ => (0, 0),
            }
        };
    }
    #[cfg(target_arch = "x86_64")]
    if kernel == PackKernel::Avx512
        && columns.iter().all(|column| (column.width, column.stride) == (4, 4))
        && taken.ones * SPARSE >= taken.words.len() * 64
    {
        let words = &taken.words[..taken.whole];
        let behind: usize = taken.words[taken.whole..].iter().map(|word| word.count_ones() as usize).sum();
        let ones = taken.ones - behind;
        // SAFETY: [pack] row 0 of a trimmed bitmap is set, so each offset is within the memory, and so are all rows of whole words.
        let at = |k: usize| unsafe { base.add((columns[k].base + taken.row * 4) as usize) };
        let at = &at;
        // SAFETY: [pack] as above; the caller's promise for the rest.
        let done = unsafe {
            match columns.len() {
                2 => super::x86::set_rows4_avx512::<2>(std::array::from_fn(at), words, ones, to),
                3 => super::x86::set_rows4_avx512::<3>(std::array::from_fn(at), words, ones, to),
                4 => super::x86::set_rows4_avx512::<4>(std::array::from_fn(at), words, ones, to),
                5 => super::x86::set_rows4_avx512::<5>(std::array::from_fn(at), words, ones, to),
                6 => super::x86::set_rows4_avx512::<6>(std::array::from_fn(at), words, ones, to),
                7 => super::x86::set_rows4_avx512::<7>(std::array::from_fn(at), words, ones, to),
                8 => super::x86::set_rows4_avx512::<8>(std::array::from_fn(at), words, ones, to),
                _ => return (0, 0),
            }
        };
        return (words.len(), done);
    }
    (0, 0)
}

/// Writes the numbers of the set bits, counted from the first word's first; gives how many.
///
/// # Safety
/// There is room for them and for 16 more; the kernel was detected.
unsafe fn number(kernel: PackKernel, words: &[u64], to: *mut u32) -> usize {
    // SAFETY: [pack] the caller's promise.
    unsafe {
        match kernel {
            #[cfg(target_arch = "x86_64")]
            PackKernel::Avx512 => super::x86::number_avx512(words, to),
            #[cfg(target_arch = "x86_64")]
            PackKernel::Avx2 => super::x86::number_avx2(words, to),
            _ => {
                let mut at = 0;
                for (i, word) in words.iter().enumerate() {
                    let mut word = *word;
                    while word != 0 {
                        to.add(at).write(i as u32 * 64 + word.trailing_zeros());
                        (at, word) = (at + 1, word & (word - 1));
                    }
                }
                at
            }
        }
    }
}

/// Moves the rows of the given numbers, counted from row `first`.
///
/// # Safety
/// As [`rows`], for these rows.
unsafe fn move_rows(
    kernel: PackKernel,
    base: *const u8,
    columns: &[Column],
    first: usize,
    numbers: &[u32],
    to: *mut u8,
    row_bytes: usize,
) {
    let one = columns[0];
    let alike = columns.iter().all(|column| (column.width, column.stride) == (one.width, one.stride));
    // SAFETY: [pack] row 0 of a trimmed bitmap is set, so each offset is within the memory.
    let at = |column: &Column| unsafe { base.add(column.base as usize + first * column.stride as usize) };
    // SAFETY: [pack] the caller's promise.
    unsafe {
        match (if alike { one.width } else { 0 }, columns.len()) {
            (4, 2) => whole::<4, 2>(columns, at, numbers, to),
            (4, 3) => whole::<4, 3>(columns, at, numbers, to),
            (4, 4) => whole::<4, 4>(columns, at, numbers, to),
            (4, 5) => whole::<4, 5>(columns, at, numbers, to),
            (4, 6) => whole::<4, 6>(columns, at, numbers, to),
            (4, 7) => whole::<4, 7>(columns, at, numbers, to),
            (4, 8) => whole::<4, 8>(columns, at, numbers, to),
            (8, 2) => whole::<8, 2>(columns, at, numbers, to),
            (8, 3) => whole::<8, 3>(columns, at, numbers, to),
            (8, 4) => whole::<8, 4>(columns, at, numbers, to),
            _ => {
                let mut to = to;
                for column in columns {
                    let (from, stride, width) = (at(column), column.stride as usize, column.width as usize);
                    spread(kernel, from, stride, width, numbers, to, row_bytes);
                    to = to.add(width);
                }
            }
        }
    }
}

/// Rows of `N` values of `W` bytes, each row at once.
///
/// # Safety
/// As [`rows`]; all columns have one stride.
#[inline(always)]
unsafe fn whole<const W: usize, const N: usize>(
    columns: &[Column],
    at: impl Fn(&Column) -> *const u8,
    numbers: &[u32],
    mut to: *mut u8,
) {
    let from: [*const u8; N] = std::array::from_fn(|i| at(&columns[i]));
    let stride = columns[0].stride as usize;
    // What the peer's processor has read lately is its own again before it is written; nothing behind the rows is.
    let last = to.wrapping_add((numbers.len() * N * W).saturating_sub(1));
    for number in numbers {
        let skip = *number as usize * stride;
        prefetch_to_write(to.wrapping_add(AHEAD).min(last));
        for (i, from) in from.iter().enumerate() {
            // SAFETY: [pack] the row is set, and there is room for it.
            unsafe { fixed::<W>(to.add(i * W), from.add(skip)) };
        }
        // SAFETY: [pack] one past the row at most.
        to = unsafe { to.add(N * W) };
    }
}

/// One column's values, `pitch` bytes apart.
///
/// # Safety
/// As [`rows`].
unsafe fn spread(
    kernel: PackKernel,
    from: *const u8,
    stride: usize,
    width: usize,
    numbers: &[u32],
    to: *mut u8,
    pitch: usize,
) {
    // SAFETY: [pack] the rows are set, and there is room for them.
    unsafe {
        match width {
            1 => spread_of::<1>(from, stride, numbers, to, pitch),
            2 => spread_of::<2>(from, stride, numbers, to, pitch),
            3 => spread_of::<3>(from, stride, numbers, to, pitch),
            4 => spread_of::<4>(from, stride, numbers, to, pitch),
            6 => spread_of::<6>(from, stride, numbers, to, pitch),
            8 => spread_of::<8>(from, stride, numbers, to, pitch),
            12 => spread_of::<12>(from, stride, numbers, to, pitch),
            16 => spread_of::<16>(from, stride, numbers, to, pitch),
            _ => {
                for (i, number) in numbers.iter().enumerate() {
                    run(kernel, to.add(i * pitch), from.add(*number as usize * stride), width);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn spread_of<const W: usize>(from: *const u8, stride: usize, numbers: &[u32], to: *mut u8, pitch: usize) {
    for (i, number) in numbers.iter().enumerate() {
        // SAFETY: [pack] as [`spread`].
        unsafe { fixed::<W>(to.add(i * pitch), from.add(*number as usize * stride)) };
    }
}

/// Rows whose numbers are found before any of them is moved: what they are made of stays in the
/// first-level cache.
const NUMBERS: usize = 1024;
/// How far ahead of a row its place is asked for, in bytes.
const AHEAD: usize = 1024;
/// Rows of which one in so many is set are all written.
const DENSE: usize = 4;
/// Rows of which fewer than one in so many are set are not read whole.
const SPARSE: usize = 16;
/// What vector kernels may write behind the numbers.
const SLACK: usize = 16;
