//! The kernel of [`Dealer`](super::Dealer): columns are turned into rows by vectors, and each row
//! is written to its place. That is where its destination's first of the block goes, and as many
//! rows on as the destination has before it. What a vector writes behind a row is overwritten by
//! the one after it.
//!
//! Places are worked out for the whole block before the first row is written. Pointers moved on row
//! by row would be read again right after they were written, behind stores whose addresses depend
//! on them. Each row would wait for the one before it.

use std::arch::x86_64::*;

use super::kernel::PackKernel;
use super::x86::quarters;
use crate::kernels::{prefetch, prefetch_to_write};

/// 64 rows of `N` columns of 4 bytes. Row `r` goes to the destination whose word has bit `r`, one
/// behind the other from `next` of it on, which is moved on. Rows without a destination go to the
/// last of `next`.
///
/// # Safety
/// 64 values are readable at each of `columns`. No bit is set in two words. `next` has one more
/// than `words`, none more than 255, and `counts` are the words' bits. There is room at each for
/// its rows (at the last for 64) and 32 bytes. `kernel` is AVX2 or better and was detected.
#[inline]
pub(super) unsafe fn deal<const N: usize>(
    kernel: PackKernel,
    columns: [*const u8; N],
    words: &[u64],
    counts: &[usize],
    next: &mut [*mut u8],
) {
    let mut order = Order { to: [0; 8], rank: [0; 8] };
    // SAFETY: [pack] the caller's promise: every number that is found is one of `next`.
    unsafe {
        if kernel == PackKernel::Avx512 && std::arch::is_x86_feature_detected!("avx512vbmi2") {
            order_vbmi2(words, &mut order);
        } else {
            order_bmi2(words, &mut order);
        }
        // As many lines of each as there are on average, so that no branch depends on the bits.
        let lines = 4 * N / words.len() + 2;
        for place in &next[..words.len()] {
            (0..lines).for_each(|line| prefetch_to_write(place.wrapping_add(WRITE_AHEAD + 64 * line)));
        }
        rows::<N>(columns, &order, next);
    }
    for (count, place) in counts.iter().zip(next) {
        *place = place.wrapping_add(count * 4 * N);
    }
}

/// How many bits each word has; whether any is set in two.
///
/// # Safety
/// POPCNT was detected.
#[target_feature(enable = "popcnt")]
pub(super) unsafe fn count(words: &[u64], counts: &mut [usize]) -> bool {
    let (mut union, mut shared) = (0, 0);
    for (word, count) in words.iter().zip(counts) {
        *count = word.count_ones() as usize;
        shared |= union & word;
        union |= word;
    }
    shared != 0
}

/// Of each of 64 rows, a byte each: its destination, and how many rows of the block go there before
/// it.
#[repr(align(64))]
struct Order {
    to: [u64; 8],
    rank: [u64; 8],
}

/// Eight rows at a time: each bit becomes a byte, and bytes are dealt to those of the set bits.
///
/// # Safety
/// BMI2 and POPCNT were detected.
#[target_feature(enable = "bmi2,popcnt")]
unsafe fn order_bmi2(words: &[u64], order: &mut Order) {
    let nobody = words.len() as u64;
    order.to = [nobody * BYTES; 8];
    order.rank = [0; 8];
    for (number, word) in words.iter().enumerate() {
        let (change, mut before) = ((number as u64 ^ nobody) * BYTES, NUMBERS);
        for ((to, rank), bits) in order.to.iter_mut().zip(&mut order.rank).zip(word.to_le_bytes()) {
            let bytes = SPREAD[usize::from(bits)];
            *to ^= bytes & change;
            *rank |= _pdep_u64(before, bytes);
            before += u64::from(bits.count_ones()) * BYTES;
        }
    }
}

/// As [`order_bmi2`], all rows at once.
///
/// # Safety
/// AVX-512 F, BW and VBMI2 were detected.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2")]
unsafe fn order_vbmi2(words: &[u64], order: &mut Order) {
    let (mut to, mut rank) = (_mm512_set1_epi8(words.len() as i8), _mm512_setzero_si512());
    // SAFETY: [pack] 64 bytes of a table, and aligned ones of the order.
    unsafe {
        let numbers = _mm512_loadu_si512(COUNTED.as_ptr().cast());
        for (number, word) in words.iter().enumerate() {
            to = _mm512_mask_mov_epi8(to, *word, _mm512_set1_epi8(number as i8));
            rank = _mm512_mask_expand_epi8(rank, *word, numbers);
        }
        _mm512_store_si512(order.to.as_mut_ptr().cast(), to);
        _mm512_store_si512(order.rank.as_mut_ptr().cast(), rank);
    }
}

/// # Safety
/// As [`deal`], for the destinations in `order`.
#[target_feature(enable = "avx2")]
unsafe fn rows<const N: usize>(columns: [*const u8; N], order: &Order, next: &[*mut u8]) {
    let next = next.as_ptr();
    for turn in 0..8 {
        let (to, rank) = (order.to[turn].to_le_bytes(), order.rank[turn].to_le_bytes());
        // SAFETY: [pack] 32 bytes a turn of each column; each row's destination is one of `next` and has room.
        unsafe {
            let place = |i: usize| (*next.add(usize::from(to[i]))).add(usize::from(rank[i]) * 4 * N);
            let mut values = [_mm256_setzero_si256(); 8];
            for (value, column) in values.iter_mut().zip(columns) {
                if turn % 2 == 0 {
                    prefetch(column.wrapping_add(32 * turn + READ_AHEAD));
                }
                *value = _mm256_loadu_si256(column.add(32 * turn).cast());
            }
            let low = quarters([values[0], values[1], values[2], values[3]]);
            if N <= 4 {
                for (i, pair) in low.into_iter().enumerate() {
                    _mm_storeu_si128(place(i).cast(), _mm256_castsi256_si128(pair));
                }
                for (i, pair) in low.into_iter().enumerate() {
                    _mm_storeu_si128(place(i + 4).cast(), _mm256_extracti128_si256::<1>(pair));
                }
                continue;
            }
            let high = quarters([values[4], values[5], values[6], values[7]]);
            for i in 0..4 {
                _mm256_storeu_si256(place(i).cast(), _mm256_permute2x128_si256::<0x20>(low[i], high[i]));
            }
            for i in 0..4 {
                _mm256_storeu_si256(place(i + 4).cast(), _mm256_permute2x128_si256::<0x31>(low[i], high[i]));
            }
        }
    }
}

/// A byte of ones for each bit.
static SPREAD: [u64; 256] = spread();

const fn spread() -> [u64; 256] {
    let mut out = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut bit = 0;
        while bit < 8 {
            if bits >> bit & 1 == 1 {
                out[bits] |= 0xFF << (8 * bit);
            }
            bit += 1;
        }
        bits += 1;
    }
    out
}

/// 0, 1, 2 and so on.
static COUNTED: [u8; 64] = {
    let mut out = [0; 64];
    let mut at = 0;
    while at < 64 {
        out[at] = at as u8;
        at += 1;
    }
    out
};
const NUMBERS: u64 = 0x0706_0504_0302_0100;
/// A number in each byte is its product with this.
const BYTES: u64 = 0x0101_0101_0101_0101;
/// How far ahead of what is read, and of what is written, a cache line is asked for, in bytes.
const READ_AHEAD: usize = 1024;
const WRITE_AHEAD: usize = 512;
