//! One column: values at a distance, or those of a bitmap, without space between them.

use overside_shape::{Bitmap, Column};

use super::copy::run;
use super::kernel::PackKernel;
use super::load::fixed;
use crate::kernels::prefetch;

/// Packs `count` values of `width` bytes that lie `step` apart, and fetches what lies `ahead` bytes
/// behind each (0: nothing).
///
/// # Safety
/// The values are readable, `to` has room for them and is disjoint; the kernel was detected.
pub(super) unsafe fn stride(
    kernel: PackKernel,
    from: *const u8,
    step: usize,
    width: usize,
    count: usize,
    to: *mut u8,
    ahead: usize,
) {
    // SAFETY: [pack] the caller's promise.
    unsafe {
        if step == width {
            return run(kernel, to, from, width * count);
        }
        #[cfg(target_arch = "x86_64")]
        if kernel >= PackKernel::Avx2 && step == 2 * width && (width == 4 || width == 8) {
            let done = match (width, kernel) {
                (4, PackKernel::Avx512) => super::x86::halve_avx512::<4>(from, to, count, ahead),
                (4, _) => super::x86::halve_avx2::<4>(from, to, count, ahead),
                (_, PackKernel::Avx512) => super::x86::halve_avx512::<8>(from, to, count, ahead),
                _ => super::x86::halve_avx2::<8>(from, to, count, ahead),
            };
            return every(kernel, from.add(done * step), step, width, count - done, to.add(done * width), width);
        }
        if ahead != 0 {
            (0..count * step).step_by(64).for_each(|line| prefetch(from.wrapping_add(ahead + line)));
        }
        every(kernel, from, step, width, count, to, width);
    }
}

/// Copies `count` values from places `step` apart to places `pitch` apart.
///
/// # Safety
/// As [`stride`], with room at each place.
pub(super) unsafe fn every(
    kernel: PackKernel,
    from: *const u8,
    step: usize,
    width: usize,
    count: usize,
    to: *mut u8,
    pitch: usize,
) {
    // SAFETY: [pack] the caller's promise.
    unsafe {
        match width {
            1 => every_of::<1>(from, step, count, to, pitch),
            2 => every_of::<2>(from, step, count, to, pitch),
            3 => every_of::<3>(from, step, count, to, pitch),
            4 => every_of::<4>(from, step, count, to, pitch),
            5 => every_of::<5>(from, step, count, to, pitch),
            6 => every_of::<6>(from, step, count, to, pitch),
            7 => every_of::<7>(from, step, count, to, pitch),
            8 => every_of::<8>(from, step, count, to, pitch),
            10 => every_of::<10>(from, step, count, to, pitch),
            12 => every_of::<12>(from, step, count, to, pitch),
            16 => every_of::<16>(from, step, count, to, pitch),
            _ => {
                for i in 0..count {
                    run(kernel, to.add(i * pitch), from.add(i * step), width);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn every_of<const W: usize>(from: *const u8, step: usize, count: usize, to: *mut u8, pitch: usize) {
    // SAFETY: [pack] as [`every`].
    unsafe {
        let fours = count / 4 * 4;
        for i in (0..fours).step_by(4) {
            for k in i..i + 4 {
                fixed::<W>(to.add(k * pitch), from.add(k * step));
            }
        }
        for i in fours..count {
            fixed::<W>(to.add(i * pitch), from.add(i * step));
        }
    }
}

/// A place among the set rows of a bitmap.
#[derive(Clone, Debug)]
pub(super) struct Bits<'a> {
    rows: &'a Bitmap,
    index: usize,
    /// What is left of word `index`.
    word: u64,
}

/// Words of set rows, taken together.
pub(super) struct Words<'b> {
    /// Row of the first word's lowest bit.
    pub(super) row: u64,
    pub(super) words: &'b [u64],
    /// Words of which the column holds all 64 rows.
    pub(super) whole: usize,
    pub(super) ones: usize,
}

impl<'a> Bits<'a> {
    /// At set row number `k`.
    pub(super) fn new(rows: &'a Bitmap, k: u64) -> Self {
        let row = rows.select(k).unwrap_or(rows.rows());
        let index = (row / 64) as usize;
        Self { rows, index, word: rows.word(index) & (u64::MAX << (row % 64)) }
    }

    /// The next set rows, `most` at most, and no more words than `buffer` holds. The kernel was
    /// detected.
    #[inline]
    pub(super) fn take<'b>(&mut self, kernel: PackKernel, most: usize, buffer: &'b mut [u64]) -> Words<'b> {
        #[cfg(target_arch = "x86_64")]
        if kernel >= PackKernel::Avx2 {
            // SAFETY: [pack] such a kernel was detected, and with it the instructions that count and spread bits.
            return unsafe { super::x86::take(self, most, buffer) };
        }
        let _ = kernel;
        self.take_by(most, buffer, lowest)
    }

    /// As [`take`](Self::take), with the instructions of the function that inlines this; `lowest`
    /// keeps so many of the set bits, fewer than there are.
    #[inline(always)]
    pub(super) fn take_by<'b>(
        &mut self,
        most: usize,
        buffer: &'b mut [u64],
        lowest: impl Fn(u64, usize) -> u64,
    ) -> Words<'b> {
        let (first, mut used, mut ones) = (self.index, 0, 0);
        let count = self.rows.word_count();
        while used < buffer.len() && ones < most && self.index < count {
            let set = self.word.count_ones() as usize;
            if ones + set > most {
                buffer[used] = lowest(self.word, most - ones);
                self.word &= !buffer[used];
                (used, ones) = (used + 1, most);
                break;
            }
            buffer[used] = self.word;
            (used, ones) = (used + 1, ones + set);
            self.index += 1;
            self.word = self.rows.word(self.index);
        }
        let whole = ((self.rows.rows() / 64) as usize).saturating_sub(first).min(used);
        Words { row: first as u64 * 64, words: &buffer[..used], whole, ones }
    }
}

/// The lowest `count` set bits.
fn lowest(word: u64, count: usize) -> u64 {
    let mut rest = word;
    for _ in 0..count {
        rest &= rest - 1;
    }
    word & !rest
}

/// Packs a column's values of the given words. Gives the bytes.
///
/// # Safety
/// `base` plus the column's offsets are readable for all set rows, and for all rows of the first
/// `whole` words. `to` has `room` bytes, enough for the set ones, and is disjoint. The kernel was
/// detected. What lies `ahead` bytes behind each dense value is fetched (0: nothing).
pub(super) unsafe fn compress(
    kernel: PackKernel,
    base: *const u8,
    column: Column,
    words: &Words<'_>,
    to: *mut u8,
    room: usize,
    ahead: usize,
) -> usize {
    // SAFETY: [pack] the caller's promise; row 0 of a trimmed bitmap is set, so the offset is within the memory.
    unsafe {
        let from = base.add((column.base + words.row * column.stride) as usize);
        let (stride, dense) = (column.stride as usize, column.stride == column.width);
        match (column.width, dense) {
            (1, true) => dense_of::<1>(kernel, from, words, to, room, ahead),
            (2, true) => dense_of::<2>(kernel, from, words, to, room, ahead),
            (4, true) => dense_of::<4>(kernel, from, words, to, room, ahead),
            (8, true) => dense_of::<8>(kernel, from, words, to, room, ahead),
            (1, false) => sparse_of::<1>(from, stride, words, to),
            (2, false) => sparse_of::<2>(from, stride, words, to),
            (3, _) => sparse_of::<3>(from, stride, words, to),
            (4, false) => sparse_of::<4>(from, stride, words, to),
            (6, _) => sparse_of::<6>(from, stride, words, to),
            (8, false) => sparse_of::<8>(from, stride, words, to),
            (16, _) => sparse_of::<16>(from, stride, words, to),
            (width, _) => {
                let (width, mut at) = (width as usize, 0);
                for (i, word) in words.words.iter().enumerate() {
                    let mut word = *word;
                    while word != 0 {
                        let row = i * 64 + word.trailing_zeros() as usize;
                        run(kernel, to.add(at), from.add(row * stride), width);
                        (at, word) = (at + width, word & (word - 1));
                    }
                }
                at
            }
        }
    }
}

/// Values at any distance, one by one.
#[inline(always)]
unsafe fn sparse_of<const W: usize>(from: *const u8, stride: usize, words: &Words<'_>, to: *mut u8) -> usize {
    let mut at = 0;
    for (i, word) in words.words.iter().enumerate() {
        // SAFETY: [pack] as [`compress`].
        at += unsafe { single_of::<W>(*word, from.add(i * 64 * stride), stride, to.add(at)) };
    }
    at
}

#[inline(always)]
unsafe fn single_of<const W: usize>(mut word: u64, from: *const u8, stride: usize, to: *mut u8) -> usize {
    let mut at = 0;
    while word != 0 {
        // SAFETY: [pack] the row is set, and there is room for it.
        unsafe { fixed::<W>(to.add(at), from.add(word.trailing_zeros() as usize * stride)) };
        (at, word) = (at + W, word & (word - 1));
    }
    at
}

/// Values without space between them: vectors where a word has several, and where reading all its
/// rows and writing whole vectors stays inside.
unsafe fn dense_of<const W: usize>(
    kernel: PackKernel,
    from: *const u8,
    words: &Words<'_>,
    to: *mut u8,
    room: usize,
    ahead: usize,
) -> usize {
    // SAFETY: [pack] the caller's promise; each arm was detected.
    unsafe {
        match kernel {
            #[cfg(target_arch = "x86_64")]
            PackKernel::Avx512 if W >= 4 => super::x86::dense_avx512::<W>(from, words, to, room, ahead),
            #[cfg(target_arch = "x86_64")]
            PackKernel::Avx512 if std::arch::is_x86_feature_detected!("avx512vbmi2") => {
                super::x86::dense_vbmi2::<W>(from, words, to, room, ahead)
            }
            #[cfg(target_arch = "x86_64")]
            PackKernel::Avx2 | PackKernel::Avx512 => super::x86::dense_avx2::<W>(from, words, to, room, ahead),
            _ => sparse_of::<W>(from, W, words, to),
        }
    }
}

/// The loop around a vector kernel, which may write 64 bytes more than the values of its word.
///
/// # Safety
/// As [`compress`]; `whole` reads 64 values and writes the set ones and at most 64 bytes behind
/// them.
#[inline(always)]
pub(super) unsafe fn dense_words<const W: usize>(
    from: *const u8,
    words: &Words<'_>,
    to: *mut u8,
    room: usize,
    ahead: usize,
    whole: impl Fn(u64, *const u8, *mut u8) -> usize,
) -> usize {
    let mut at = 0;
    for (i, word) in words.words.iter().enumerate() {
        let ones = word.count_ones();
        // SAFETY: [pack] the rows of a whole word are readable, and room was checked.
        unsafe {
            let (from, to) = (from.add(i * 64 * W), to.add(at));
            if ahead != 0 {
                (0..W).for_each(|line| prefetch(from.wrapping_add(ahead + 64 * line)));
            }
            if ones > FEW && i < words.whole && at + ones as usize * W + 64 <= room {
                at += whole(*word, from, to);
            } else {
                at += single_of::<W>(*word, from, W, to);
            }
        }
    }
    at
}

/// Words that are taken together: 4096 rows.
pub(super) const WORDS: usize = 64;
/// Up to so many values of a word are moved one by one.
const FEW: u32 = 2;
