//! Vector kernels of x86-64. Each touches exactly what its caller proved, as plain kernels do.

use std::arch::x86_64::*;

use super::columns::{Bits, Words, dense_words};
use super::load;
use super::tables::{ORDER_2, ORDER_4, ORDER_8, Rows4};
use crate::kernels::{prefetch, prefetch_to_write};

/// # Safety
/// Both ranges are live, `len` long and disjoint; `len >= 32`; AVX2 was detected.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn copy_avx2(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: [pack] the head, whole turns and the tail lie within `len`.
    unsafe {
        let (head, tail) = (load_256(from), load_256(from.add(len - 32)));
        let mut at = 32 - (to as usize & 31);
        while at + 128 <= len {
            let (a, b) = (load_256(from.add(at)), load_256(from.add(at + 32)));
            let (c, d) = (load_256(from.add(at + 64)), load_256(from.add(at + 96)));
            _mm256_storeu_si256(to.add(at).cast(), a);
            _mm256_storeu_si256(to.add(at + 32).cast(), b);
            _mm256_storeu_si256(to.add(at + 64).cast(), c);
            _mm256_storeu_si256(to.add(at + 96).cast(), d);
            at += 128;
        }
        while at + 32 < len {
            _mm256_storeu_si256(to.add(at).cast(), load_256(from.add(at)));
            at += 32;
        }
        _mm256_storeu_si256(to.cast(), head);
        _mm256_storeu_si256(to.add(len - 32).cast(), tail);
    }
}

/// # Safety
/// Both ranges are live, `len` long and disjoint; `len >= 64`; AVX-512 was detected.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn copy_avx512(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: [pack] the head, whole turns and the tail lie within `len`.
    unsafe {
        let (head, tail) = (load_512(from), load_512(from.add(len - 64)));
        let mut at = 64 - (to as usize & 63);
        while at + 256 <= len {
            let (a, b) = (load_512(from.add(at)), load_512(from.add(at + 64)));
            let (c, d) = (load_512(from.add(at + 128)), load_512(from.add(at + 192)));
            _mm512_storeu_si512(to.add(at).cast(), a);
            _mm512_storeu_si512(to.add(at + 64).cast(), b);
            _mm512_storeu_si512(to.add(at + 128).cast(), c);
            _mm512_storeu_si512(to.add(at + 192).cast(), d);
            at += 256;
        }
        while at + 64 < len {
            _mm512_storeu_si512(to.add(at).cast(), load_512(from.add(at)));
            at += 64;
        }
        _mm512_storeu_si512(to.cast(), head);
        _mm512_storeu_si512(to.add(len - 64).cast(), tail);
    }
}

/// The set values of 64 rows without space between them: `W` is 1, 2, 4 or 8. Gives their number of
/// bytes.
///
/// # Safety
/// 64 values are readable at `from`; at `to` is room for the set ones and 64 bytes; AVX2, BMI2 and
/// POPCNT were detected.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
#[inline]
unsafe fn compress_avx2<const W: usize>(word: u64, from: *const u8, to: *mut u8) -> usize {
    let mut at = 0;
    // SAFETY: [pack] each step reads its own rows and writes at most as much as it may yet have to.
    unsafe {
        match W {
            1 => {
                for step in 0..8 {
                    let bits = word >> (8 * step) & 0xFF;
                    let lanes = _pdep_u64(bits, 0x0101_0101_0101_0101) * 0xFF;
                    let value = load::word::<u64>(from.add(8 * step));
                    to.add(at).cast::<u64>().write_unaligned(_pext_u64(value, lanes));
                    at += bits.count_ones() as usize;
                }
            }
            2 => {
                for step in 0..8 {
                    let bits = (word >> (8 * step) & 0xFF) as usize;
                    let order = _mm_load_si128(ORDER_2.0[bits].as_ptr().cast());
                    let value = load_128(from.add(16 * step));
                    _mm_storeu_si128(to.add(at).cast(), _mm_shuffle_epi8(value, order));
                    at += 2 * bits.count_ones() as usize;
                }
            }
            4 => {
                for step in 0..8 {
                    let bits = (word >> (8 * step) & 0xFF) as usize;
                    let order = _mm256_load_si256(ORDER_4.0[bits].as_ptr().cast());
                    let value = load_256(from.add(32 * step));
                    _mm256_storeu_si256(to.add(at).cast(), _mm256_permutevar8x32_epi32(value, order));
                    at += 4 * bits.count_ones() as usize;
                }
            }
            _ => {
                for step in 0..16 {
                    let bits = (word >> (4 * step) & 0xF) as usize;
                    let order = _mm256_load_si256(ORDER_8.0[bits].as_ptr().cast());
                    let value = load_256(from.add(32 * step));
                    _mm256_storeu_si256(to.add(at).cast(), _mm256_permutevar8x32_epi32(value, order));
                    at += 8 * bits.count_ones() as usize;
                }
            }
        }
    }
    at
}

/// As [`compress_avx2`] for values of 4 and 8 bytes.
///
/// # Safety
/// As there; AVX-512 was detected.
#[target_feature(enable = "avx512f,popcnt")]
#[inline]
unsafe fn compress_avx512<const W: usize>(word: u64, from: *const u8, to: *mut u8) -> usize {
    let mut at = 0;
    // SAFETY: [pack] each step reads its own rows and writes at most as much as it may yet have to.
    unsafe {
        if W == 4 {
            for step in 0..4 {
                let bits = (word >> (16 * step)) as u16;
                let value = load_512(from.add(64 * step));
                _mm512_storeu_si512(to.add(at).cast(), _mm512_maskz_compress_epi32(bits, value));
                at += 4 * bits.count_ones() as usize;
            }
        } else {
            for step in 0..8 {
                let bits = (word >> (8 * step)) as u8;
                let value = load_512(from.add(64 * step));
                _mm512_storeu_si512(to.add(at).cast(), _mm512_maskz_compress_epi64(bits, value));
                at += 8 * bits.count_ones() as usize;
            }
        }
    }
    at
}

/// As [`compress_avx2`] for values of 1 and 2 bytes.
///
/// # Safety
/// As there; AVX-512 with VBMI2 was detected.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
#[inline]
unsafe fn compress_vbmi2<const W: usize>(word: u64, from: *const u8, to: *mut u8) -> usize {
    // SAFETY: [pack] each step reads its own rows and writes at most as much as it may yet have to.
    unsafe {
        if W == 1 {
            let value = load_512(from);
            _mm512_storeu_si512(to.cast(), _mm512_maskz_compress_epi8(word, value));
            return word.count_ones() as usize;
        }
        let (low, high) = (word as u32, (word >> 32) as u32);
        let first = _mm512_maskz_compress_epi16(low, load_512(from));
        let second = _mm512_maskz_compress_epi16(high, load_512(from.add(64)));
        _mm512_storeu_si512(to.cast(), first);
        _mm512_storeu_si512(to.add(2 * low.count_ones() as usize).cast(), second);
        2 * word.count_ones() as usize
    }
}

/// As [`Bits::take`].
///
/// # Safety
/// BMI1, BMI2 and POPCNT were detected.
#[target_feature(enable = "bmi1,bmi2,popcnt")]
pub(super) unsafe fn take<'b>(bits: &mut Bits<'_>, most: usize, buffer: &'b mut [u64]) -> Words<'b> {
    bits.take_by(most, buffer, |word, count| _pdep_u64((1 << count) - 1, word))
}

/// The numbers of the set bits of `words`, counted from the first word's first. Gives how many.
///
/// # Safety
/// There is room for them and for 16 more; AVX2 and POPCNT were detected.
#[target_feature(enable = "avx2,popcnt")]
pub(super) unsafe fn number_avx2(words: &[u64], to: *mut u32) -> usize {
    let mut at = 0;
    for (i, word) in words.iter().enumerate() {
        for step in 0..8 {
            let bits = (word >> (8 * step) & 0xFF) as usize;
            let first = _mm256_set1_epi32((i * 64 + step * 8) as i32);
            // SAFETY: [pack] 8 numbers from `at` on, of which the set ones stay.
            unsafe {
                let order = _mm256_load_si256(ORDER_4.0[bits].as_ptr().cast());
                _mm256_storeu_si256(to.add(at).cast(), _mm256_add_epi32(order, first));
            }
            at += bits.count_ones() as usize;
        }
    }
    at
}

/// As [`number_avx2`].
///
/// # Safety
/// As there; AVX-512 was detected.
#[target_feature(enable = "avx512f,popcnt")]
pub(super) unsafe fn number_avx512(words: &[u64], to: *mut u32) -> usize {
    let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let mut at = 0;
    for (i, word) in words.iter().enumerate() {
        for step in 0..4 {
            let bits = (word >> (16 * step)) as u16;
            let numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32((i * 64 + step * 16) as i32));
            // SAFETY: [pack] 16 numbers from `at` on, of which the set ones stay.
            unsafe { _mm512_storeu_si512(to.add(at).cast(), _mm512_maskz_compress_epi32(bits, numbers)) };
            at += bits.count_ones() as usize;
        }
    }
    at
}

/// As [`compress`](super::columns::compress).
///
/// # Safety
/// As there, for values without space between them from `from` on.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn dense_avx2<const W: usize>(
    from: *const u8,
    words: &Words<'_>,
    to: *mut u8,
    room: usize,
    ahead: usize,
) -> usize {
    // SAFETY: [pack] the loop hands on what the kernel needs.
    unsafe { dense_words::<W>(from, words, to, room, ahead, |word, from, to| compress_avx2::<W>(word, from, to)) }
}

/// # Safety
/// As [`dense_avx2`].
#[target_feature(enable = "avx512f,popcnt")]
pub(super) unsafe fn dense_avx512<const W: usize>(
    from: *const u8,
    words: &Words<'_>,
    to: *mut u8,
    room: usize,
    ahead: usize,
) -> usize {
    // SAFETY: [pack] the loop hands on what the kernel needs.
    unsafe { dense_words::<W>(from, words, to, room, ahead, |word, from, to| compress_avx512::<W>(word, from, to)) }
}

/// # Safety
/// As [`dense_avx2`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
pub(super) unsafe fn dense_vbmi2<const W: usize>(
    from: *const u8,
    words: &Words<'_>,
    to: *mut u8,
    room: usize,
    ahead: usize,
) -> usize {
    // SAFETY: [pack] the loop hands on what the kernel needs.
    unsafe { dense_words::<W>(from, words, to, room, ahead, |word, from, to| compress_vbmi2::<W>(word, from, to)) }
}

/// Every other value of 4 or 8 bytes, 32 bytes of them a turn; fetches `ahead` bytes ahead of each
/// line unless that is
/// 0. Gives how many values it took of `count`.
///
/// # Safety
/// `count` values lie 2 `W` apart from `from` on, with room for them at `to`; AVX2 was detected.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn halve_avx2<const W: usize>(from: *const u8, to: *mut u8, count: usize, ahead: usize) -> usize {
    // The last value has no gap behind it that may be read.
    let turns = (count * 2 * W).saturating_sub(W) / 64;
    for turn in 0..turns {
        // SAFETY: [pack] 64 bytes a turn end at or before the last value's end.
        unsafe {
            let from = from.add(64 * turn);
            fetch(from, ahead);
            let (a, b) = (load_256(from), load_256(from.add(32)));
            let mixed = if W == 4 {
                _mm256_castps_si256(_mm256_shuffle_ps::<0x88>(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)))
            } else {
                _mm256_unpacklo_epi64(a, b)
            };
            _mm256_storeu_si256(to.add(32 * turn).cast(), _mm256_permute4x64_epi64::<0xD8>(mixed));
        }
    }
    turns * 32 / W
}

/// As [`halve_avx2`], 64 bytes of values a turn.
///
/// # Safety
/// As there; AVX-512 was detected.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn halve_avx512<const W: usize>(from: *const u8, to: *mut u8, count: usize, ahead: usize) -> usize {
    let turns = (count * 2 * W).saturating_sub(W) / 128;
    let four = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    let eight = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
    for turn in 0..turns {
        // SAFETY: [pack] 128 bytes a turn end at or before the last value's end.
        unsafe {
            let from = from.add(128 * turn);
            fetch(from, ahead);
            fetch(from.add(64), ahead);
            let (a, b) = (load_512(from), load_512(from.add(64)));
            let mixed =
                if W == 4 { _mm512_permutex2var_epi32(a, four, b) } else { _mm512_permutex2var_epi64(a, eight, b) };
            _mm512_storeu_si512(to.add(64 * turn).cast(), mixed);
        }
    }
    turns * 64 / W
}

/// Asks for the line `ahead` bytes behind `from`, unless that is 0.
#[inline(always)]
fn fetch(from: *const u8, ahead: usize) {
    if ahead != 0 {
        prefetch(from.wrapping_add(ahead));
    }
}

/// Rows of four columns of 4 bytes, eight rows a turn: 16 bytes of each row. Gives how many rows it
/// did.
///
/// # Safety
/// The columns hold `rows` values; each of `rows` rows, `row_bytes` apart from `to` on, has 16
/// bytes; AVX2 was detected.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn rows_of_four_avx2(columns: [*const u8; 4], to: *mut u8, row_bytes: usize, rows: usize) -> usize {
    let turns = rows / 8;
    for turn in 0..turns {
        // SAFETY: [pack] 32 bytes a turn of each column, 16 of each row.
        unsafe {
            let done = quarters(columns.map(|column| _mm256_loadu_si256(column.add(32 * turn).cast())));
            let to = to.add(8 * turn * row_bytes);
            for (i, pair) in done.into_iter().enumerate() {
                _mm_storeu_si128(to.add(i * row_bytes).cast(), _mm256_castsi256_si128(pair));
                _mm_storeu_si128(to.add((i + 4) * row_bytes).cast(), _mm256_extracti128_si256::<1>(pair));
            }
        }
    }
    turns * 8
}

/// Rows of two columns of 8 bytes, four rows a turn. Gives how many rows it did.
///
/// # Safety
/// As [`rows_of_four_avx2`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn rows_of_two_avx2(columns: [*const u8; 2], to: *mut u8, row_bytes: usize, rows: usize) -> usize {
    let turns = rows / 4;
    for turn in 0..turns {
        // SAFETY: [pack] 32 bytes a turn of each column, 16 of each row.
        unsafe {
            let [a, b] = columns.map(|column| _mm256_loadu_si256(column.add(32 * turn).cast()));
            let to = to.add(4 * turn * row_bytes);
            for (i, pair) in [_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)].into_iter().enumerate() {
                _mm_storeu_si128(to.add(i * row_bytes).cast(), _mm256_castsi256_si128(pair));
                _mm_storeu_si128(to.add((i + 2) * row_bytes).cast(), _mm256_extracti128_si256::<1>(pair));
            }
        }
    }
    turns * 4
}

/// Rows of `R` columns of 4 bytes and of nothing else, 16 rows a turn in whole vectors. Gives how
/// many rows it did.
///
/// # Safety
/// The columns, `pitch` bytes apart, hold `rows` values; `to` has room for `rows` rows; AVX-512 was
/// detected.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn rows4_avx512<const R: usize>(columns: *const u8, pitch: usize, to: *mut u8, rows: usize) -> usize {
    let turns = rows / 16;
    for turn in 0..turns {
        // SAFETY: [pack] 64 bytes a turn of each column, 64 `R` of the rows.
        unsafe {
            let mut values = [_mm512_setzero_si512(); R];
            for (i, value) in values.iter_mut().enumerate() {
                *value = _mm512_loadu_si512(columns.add(i * pitch + 64 * turn).cast());
            }
            for out in 0..R {
                let mut sum = _mm512_setzero_si512();
                for pair in 0..R.div_ceil(2) {
                    let order = _mm512_loadu_si512(Rows4::<R>::ORDER[out][pair].as_ptr().cast());
                    let second = if 2 * pair + 1 < R { values[2 * pair + 1] } else { values[2 * pair] };
                    let both = _mm512_permutex2var_epi32(values[2 * pair], order, second);
                    sum =
                        if pair == 0 { both } else { _mm512_mask_blend_epi32(Rows4::<R>::MASK[out][pair], sum, both) };
                }
                _mm512_storeu_si512(to.add(64 * (turn * R + out)).cast(), sum);
            }
        }
    }
    turns * 16
}

/// The set rows of `R` dense columns of 4 bytes: each column's set values next to each other in a
/// block, 16 rows of it at a time turned into rows. What lies a little further on is asked for with
/// each vector that is read, so that memory is read while vectors are compressed. Gives how many
/// rows it did: all of them.
///
/// # Safety
/// Each column holds 64 values a word; `to` has room for the `ones` rows that are set; AVX-512 was
/// detected.
#[target_feature(enable = "avx512f,popcnt")]
pub(super) unsafe fn set_rows4_avx512<const R: usize>(
    columns: [*const u8; R],
    words: &[u64],
    ones: usize,
    to: *mut u8,
) -> usize {
    let mut block = [const { std::mem::MaybeUninit::<[u32; BLOCK_ROWS + 16]>::uninit() }; R];
    let pitch = size_of::<[u32; BLOCK_ROWS + 16]>();
    let block = block.as_mut_ptr().cast::<u8>();
    let last = to.wrapping_add((ones * 4 * R).saturating_sub(1));
    let (mut held, mut done) = (0, 0);
    for (i, word) in words.iter().enumerate() {
        for step in 0..4 {
            let bits = (word >> (16 * step)) as u16;
            for (k, column) in columns.iter().enumerate() {
                // SAFETY: [pack] 16 values of a word's 64; a block holds what is set of it, and a vector behind it.
                unsafe {
                    let from = column.add(256 * i + 64 * step);
                    prefetch(from.wrapping_add(FETCH_BYTES));
                    let value = _mm512_maskz_compress_epi32(bits, load_512(from));
                    _mm512_storeu_si512(block.add(k * pitch + 4 * held).cast(), value);
                }
            }
            held += bits.count_ones() as usize;
        }
        if held + 64 > BLOCK_ROWS || i + 1 == words.len() {
            let whole = held / 16 * 16;
            let place = to.wrapping_add(done * 4 * R);
            // What the peer's processor has read lately is its own again before it is written.
            for line in (0..whole * 4 * R).step_by(64) {
                prefetch_to_write(place.wrapping_add(FETCH_BYTES + line).min(last));
            }
            // SAFETY: [pack] the rows are set; the rest of the block, of which only what is held is read, goes to its start.
            unsafe {
                rows4_avx512::<R>(block, pitch, place, whole);
                let rest = ((1u32 << (held - whole)) - 1) as u16;
                for column in (0..R).map(|k| block.add(k * pitch)) {
                    let value = _mm512_maskz_loadu_epi32(rest, column.add(4 * whole).cast());
                    _mm512_storeu_si512(column.cast(), value);
                }
            }
            (done, held) = (done + whole, held - whole);
        }
    }
    // SAFETY: [pack] fewer than 16 rows are left, at the block's start, which holds a whole vector of each column.
    unsafe { last_rows4_avx512::<R>(block, pitch, to.wrapping_add(done * 4 * R), held) };
    done + held
}

/// As [`rows4_avx512`] of fewer than 16 rows, by vectors of which only the rows are written.
///
/// # Safety
/// As there; 16 values of each column may be read.
#[target_feature(enable = "avx512f")]
unsafe fn last_rows4_avx512<const R: usize>(columns: *const u8, pitch: usize, to: *mut u8, rows: usize) {
    if rows == 0 {
        return;
    }
    let mut whole = [const { std::mem::MaybeUninit::<__m512i>::uninit() }; R];
    // SAFETY: [pack] 16 rows are `R` vectors, all of which are written; of those no more than `rows` rows go on.
    unsafe {
        rows4_avx512::<R>(columns, pitch, whole.as_mut_ptr().cast(), 16);
        for (i, vector) in whole.iter().enumerate() {
            let left = (rows * R).saturating_sub(16 * i).min(16);
            let place = to.wrapping_add(64 * i);
            _mm512_mask_storeu_epi32(place.cast(), ((1u32 << left) - 1) as u16, vector.assume_init());
        }
    }
}

/// The set rows of `N` dense columns of 4 bytes, 2 to 8 of them. Every row is turned and written
/// behind the last set one, over what is not wanted. So nothing waits for a bit, and the next
/// values are read meanwhile. Gives of how many words, and how many rows that were: a word whose
/// last row would leave no room for a whole vector behind it is left, and so are those that follow.
///
/// # Safety
/// Each column holds 64 values a word; `to` has room for `most` rows; AVX2, BMI2 and POPCNT were
/// detected.
#[target_feature(enable = "avx2,bmi2,popcnt")]
pub(super) unsafe fn set_rows4_avx2<const N: usize>(
    columns: [*const u8; N],
    words: &[u64],
    most: usize,
    mut to: *mut u8,
) -> (usize, usize) {
    let mut done = 0;
    for (i, word) in words.iter().enumerate() {
        let after = done + word.count_ones() as usize;
        if after + ROWS_BEHIND > most {
            return (i, done);
        }
        for turn in 0..8 {
            let mut values = [_mm256_setzero_si256(); 8];
            for (value, column) in values.iter_mut().zip(columns) {
                // SAFETY: [pack] 8 values of a word's 64.
                unsafe {
                    let from = column.add(256 * i + 32 * turn);
                    fetch(from, if turn % 2 == 0 { FETCH_BYTES } else { 0 });
                    *value = load_256(from);
                }
            }
            let [a, b, c, d, rest @ ..] = values;
            let (low, high) = (quarters([a, b, c, d]), quarters(rest));
            // Of each row how many values the set ones before it have, a byte each.
            let bits = word >> (8 * turn) & 0xFF;
            let before = _pdep_u64(bits, BYTES).wrapping_mul((BYTES << 8).wrapping_mul(N as u64)).to_le_bytes();
            for (row, before) in before.into_iter().enumerate() {
                let (low, high) = (low[row % 4], high[row % 4]);
                let place = to.wrapping_add(4 * usize::from(before));
                // SAFETY: [pack] the set rows up to here and two more have room, which are not shorter than a vector.
                unsafe {
                    match (N > 4, row < 4) {
                        (false, true) => _mm_storeu_si128(place.cast(), _mm256_castsi256_si128(low)),
                        (false, false) => _mm_storeu_si128(place.cast(), _mm256_extracti128_si256::<1>(low)),
                        (true, true) => _mm256_storeu_si256(place.cast(), _mm256_permute2x128_si256::<0x20>(low, high)),
                        (true, false) => {
                            _mm256_storeu_si256(place.cast(), _mm256_permute2x128_si256::<0x31>(low, high))
                        }
                    }
                }
            }
            to = to.wrapping_add(bits.count_ones() as usize * 4 * N);
        }
        done = after;
    }
    (words.len(), done)
}

/// Of four columns, rows 0 and 4, 1 and 5, 2 and 6, 3 and 7.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn quarters([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (low_2, high_2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(low, low_2),
        _mm256_unpackhi_epi64(low, low_2),
        _mm256_unpacklo_epi64(high, high_2),
        _mm256_unpackhi_epi64(high, high_2),
    ]
}

/// 16 bytes of what is packed ([`load`](super::load)).
///
/// # Safety
/// They are readable; AVX was detected.
#[target_feature(enable = "avx")]
#[inline]
unsafe fn load_128(from: *const u8) -> __m128i {
    let out;
    // SAFETY: [pack] the caller's promise.
    unsafe {
        std::arch::asm!("vmovdqu {out}, [{from}]", out = out(xmm_reg) out, from = in(reg) from,
            options(nostack, preserves_flags, readonly));
    }
    out
}

/// 32 bytes, likewise.
///
/// # Safety
/// As [`load_128`].
#[target_feature(enable = "avx")]
#[inline]
unsafe fn load_256(from: *const u8) -> __m256i {
    let out;
    // SAFETY: [pack] the caller's promise.
    unsafe {
        std::arch::asm!("vmovdqu {out}, [{from}]", out = out(ymm_reg) out, from = in(reg) from,
            options(nostack, preserves_flags, readonly));
    }
    out
}

/// 64 bytes, likewise.
///
/// # Safety
/// They are readable; AVX-512 was detected.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load_512(from: *const u8) -> __m512i {
    let out;
    // SAFETY: [pack] the caller's promise.
    unsafe {
        std::arch::asm!("vmovdqu64 {out}, [{from}]", out = out(zmm_reg) out, from = in(reg) from,
            options(nostack, preserves_flags, readonly));
    }
    out
}

/// A number in each byte is its product with this.
const BYTES: u64 = 0x0101_0101_0101_0101;
/// Rows that are not shorter than a vector which holds one: two, from 2 columns on.
const ROWS_BEHIND: usize = 2;
/// Rows that are compressed before they are turned: together with the rows made of them they stay
/// in the first-level cache.
const BLOCK_ROWS: usize = 256;
/// How far ahead of what is read or written a cache line is asked for, in bytes.
const FETCH_BYTES: usize = 1024;
