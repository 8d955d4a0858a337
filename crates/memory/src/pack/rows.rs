//! Rows across columns: each column packed into a block that stays in the first-level cache, the
//! block turned into rows (d-rdma §3.2 DR-M12).

use overside_shape::{Column, Fragments, Shape, ShapeKind};
use smallvec::SmallVec;

use super::columns::{Bits, WORDS, compress, every, stride};
use super::copy::run;
use super::indexed;
use super::kernel::PackKernel;

/// What gives the elements of one region in turn.
enum Feed<'a> {
    /// Values at a distance: the next one's address, the distance.
    Stride { from: *const u8, step: usize, width: usize },
    /// Columns under one bitmap.
    Bits { columns: &'a [Column], bits: Bits<'a> },
    /// Anything else, piece by piece.
    Pieces { fragments: Box<Fragments<'a>>, width: usize },
}

/// A column of the block: where it lies and how wide its values are.
#[derive(Clone, Copy)]
struct Slot {
    at: usize,
    width: usize,
}

/// Rows of several regions, from one element to another.
pub(super) struct RowPacker<'a> {
    kernel: PackKernel,
    base: *const u8,
    feeds: SmallVec<[Feed<'a>; 8]>,
    /// Widths of the columns in message order.
    widths: SmallVec<[usize; 8]>,
    row_bytes: usize,
}

impl<'a> RowPacker<'a> {
    /// Regions under [`Mask::Rows`](overside_shape::Mask::Rows) from `element` on, `width` of each
    /// the bytes of its elements; none if an element's length is not fixed.
    pub(super) fn new(
        kernel: PackKernel,
        base: *const u8,
        regions: &'a [Shape],
        width: impl Fn(&Shape) -> Option<u64>,
        element: u64,
    ) -> Option<Self> {
        let mut out = Self { kernel, base, feeds: SmallVec::new(), widths: SmallVec::new(), row_bytes: 0 };
        for region in regions {
            let width = width(region)?;
            match region.kind() {
                ShapeKind::Contiguous(whole) => {
                    let from = base.wrapping_add((whole.at + element * width) as usize);
                    out.push(Feed::Stride { from, step: width as usize, width: width as usize }, [width]);
                }
                ShapeKind::Strided { base: at, levels: [level], runs: [only] } if only.len == width => {
                    let from = base.wrapping_add((at + element * level.period) as usize);
                    out.push(Feed::Stride { from, step: level.period as usize, width: width as usize }, [width]);
                }
                ShapeKind::Bitmapped { columns, rows } if columns.iter().map(|c| c.width).sum::<u64>() == width => {
                    let bits = Bits::new(rows, element);
                    out.push(Feed::Bits { columns, bits }, columns.iter().map(|c| c.width));
                }
                _ => {
                    let fragments = Box::new(region.fragments_in(element * width..region.bytes()));
                    out.push(Feed::Pieces { fragments, width: width as usize }, [width]);
                }
            }
        }
        Some(out)
    }

    /// Whether a block holds some rows, as [`rows`](Self::rows) wants it.
    pub(super) fn fits(&self) -> bool {
        self.row_bytes * LEAST_ROWS + self.widths.len() * SLACK <= BLOCK_BYTES
    }

    fn push(&mut self, feed: Feed<'a>, widths: impl IntoIterator<Item = u64>) {
        self.feeds.push(feed);
        self.widths.extend(widths.into_iter().map(|width| width as usize));
        self.row_bytes = self.widths.iter().sum();
    }

    /// Packs `count` rows.
    ///
    /// # Safety
    /// The regions' bytes are readable from the base; `to` has room for the rows and is disjoint;
    /// the kernel was detected.
    pub(super) unsafe fn rows(mut self, count: usize, to: *mut u8) {
        if self.widths.len() == 1 {
            let slot = Slot { at: 0, width: self.widths[0] };
            // SAFETY: [pack] one column's values are the rows.
            return unsafe { self.fill(0, count, to, &[slot], count * self.row_bytes) };
        }
        if let [Feed::Bits { columns, bits }] = &mut self.feeds[..] {
            // SAFETY: [pack] the caller's promise.
            return unsafe { indexed::rows(self.kernel, self.base, columns, bits, count, to) };
        }
        let mut block = Block([const { std::mem::MaybeUninit::uninit() }; BLOCK_BYTES]);
        let block = block.0.as_mut_ptr().cast::<u8>();
        let rows = ((BLOCK_BYTES - self.widths.len() * SLACK) / self.row_bytes / LEAST_ROWS * LEAST_ROWS)
            .min(count.next_multiple_of(LEAST_ROWS));
        let mut slots: SmallVec<[Slot; 8]> = SmallVec::new();
        let mut at = 0;
        for width in &self.widths {
            slots.push(Slot { at, width: *width });
            at += width * rows + SLACK;
        }
        let mut done = 0;
        while done < count {
            let part = rows.min(count - done);
            // SAFETY: [pack] a block has room for `rows` values a column and the slack behind them.
            unsafe {
                let mut first = 0;
                for feed in 0..self.feeds.len() {
                    self.fill(feed, part, block, &slots[first..], 0);
                    first += match &self.feeds[feed] {
                        Feed::Bits { columns, .. } => columns.len(),
                        _ => 1,
                    };
                }
                interleave(self.kernel, block, &slots, part, self.row_bytes, to.add(done * self.row_bytes));
            }
            done += part;
        }
    }

    /// Packs `count` elements, column after column: each column's values without space between
    /// them.
    ///
    /// # Safety
    /// As [`rows`](Self::rows).
    pub(super) unsafe fn columns(mut self, count: usize, to: *mut u8) {
        let mut slots: SmallVec<[Slot; 8]> = SmallVec::new();
        let mut at = 0;
        for width in &self.widths {
            slots.push(Slot { at, width: *width });
            at += width * count;
        }
        let mut first = 0;
        for index in 0..self.feeds.len() {
            let all = &slots[first..];
            first += if let Feed::Bits { columns, .. } = &self.feeds[index] { columns.len() } else { 1 };
            // SAFETY: [pack] each column's place has room for `count` values and no slack.
            unsafe { self.fill(index, count, to, all, at) };
        }
    }

    /// Puts `count` elements of a feed into its slots. `end` is where the room behind `to` ends for
    /// a feed that fills one slot at a time without slack; 0 for slots with slack.
    ///
    /// # Safety
    /// As [`rows`](Self::rows); the slots have room for `count` values.
    unsafe fn fill(&mut self, feed: usize, count: usize, to: *mut u8, slots: &[Slot], end: usize) {
        let (kernel, base) = (self.kernel, self.base);
        // SAFETY: [pack] the caller's promise.
        unsafe {
            match &mut self.feeds[feed] {
                Feed::Stride { from, step, width } => {
                    // The block after this one; a lone column the hardware follows by itself.
                    let ahead = if end == 0 { *step * count } else { 0 };
                    stride(kernel, *from, *step, *width, count, to.add(slots[0].at), ahead);
                    *from = from.wrapping_add(*step * count);
                }
                Feed::Bits { columns, bits } => {
                    let (mut buffer, mut done) = ([0; WORDS], 0);
                    while done < count {
                        let words = bits.take(kernel, count - done, &mut buffer);
                        if words.words.is_empty() {
                            break;
                        }
                        for (column, slot) in columns.iter().zip(slots) {
                            let at = slot.at + done * slot.width;
                            // Without slack a column may not write into the next one's place, which may be full.
                            let own = slot.at + count * slot.width;
                            let room = if end == 0 { own + SLACK - at } else { own - at };
                            // Across columns the next words of this one; along one column far enough for memory.
                            let ahead = if end == 0 { words.words.len() * 64 * slot.width } else { AHEAD };
                            compress(kernel, base, *column, &words, to.add(at), room, ahead);
                        }
                        done += words.ones;
                    }
                }
                Feed::Pieces { fragments, width } => {
                    let (mut left, mut at) = (count * *width, slots[0].at);
                    while left > 0 {
                        let Some(piece) = fragments.take_bytes(left as u64) else { break };
                        run(kernel, to.add(at), base.add(piece.at as usize), piece.len as usize);
                        (left, at) = (left - piece.len as usize, at + piece.len as usize);
                    }
                }
            }
        }
    }
}

/// Turns columns into rows.
///
/// # Safety
/// The slots of `block` hold `rows` values; `to` has room for the rows and is disjoint; the kernel
/// was detected.
unsafe fn interleave(kernel: PackKernel, block: *const u8, slots: &[Slot], rows: usize, row_bytes: usize, to: *mut u8) {
    // SAFETY: [pack] the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if kernel == PackKernel::Avx512 && slots.iter().all(|slot| slot.width == 4) {
            let pitch = slots[1].at - slots[0].at;
            let done = match slots.len() {
                2 => super::x86::rows4_avx512::<2>(block, pitch, to, rows),
                3 => super::x86::rows4_avx512::<3>(block, pitch, to, rows),
                4 => super::x86::rows4_avx512::<4>(block, pitch, to, rows),
                5 => super::x86::rows4_avx512::<5>(block, pitch, to, rows),
                6 => super::x86::rows4_avx512::<6>(block, pitch, to, rows),
                7 => super::x86::rows4_avx512::<7>(block, pitch, to, rows),
                8 => super::x86::rows4_avx512::<8>(block, pitch, to, rows),
                _ => 0,
            };
            return spread(kernel, block, slots, done, rows, row_bytes, to);
        }
        spread(kernel, block, slots, 0, rows, row_bytes, to);
    }
}

/// Rows `from` to `rows`, by groups of columns that a vector turns, else column by column.
unsafe fn spread(
    kernel: PackKernel,
    block: *const u8,
    slots: &[Slot],
    from: usize,
    rows: usize,
    row_bytes: usize,
    to: *mut u8,
) {
    let (mut i, mut offset) = (0, 0);
    while i < slots.len() {
        // SAFETY: [pack] as [`interleave`].
        unsafe {
            let column = |k: usize| block.add(slots[k].at + from * slots[k].width);
            let out = to.add(from * row_bytes + offset);
            let (group, done) = match &slots[i..] {
                #[cfg(target_arch = "x86_64")]
                [a, b, c, d, ..] if kernel >= PackKernel::Avx2 && [a, b, c, d].iter().all(|s| s.width == 4) => {
                    let four = [column(i), column(i + 1), column(i + 2), column(i + 3)];
                    (4, super::x86::rows_of_four_avx2(four, out, row_bytes, rows - from))
                }
                #[cfg(target_arch = "x86_64")]
                [a, b, ..] if kernel >= PackKernel::Avx2 && a.width == 8 && b.width == 8 => {
                    (2, super::x86::rows_of_two_avx2([column(i), column(i + 1)], out, row_bytes, rows - from))
                }
                _ => (1, 0),
            };
            for (k, slot) in slots.iter().enumerate().skip(i).take(group) {
                let (width, left) = (slot.width, rows - from - done);
                every(
                    kernel,
                    column(k).add(done * width),
                    width,
                    width,
                    left,
                    to.add((from + done) * row_bytes + offset),
                    row_bytes,
                );
                offset += width;
            }
            i += group;
        }
    }
}

#[repr(align(64))]
struct Block([std::mem::MaybeUninit<u8>; BLOCK_BYTES]);

/// Bytes of a block: with the rows made of it, it stays in the first-level cache.
const BLOCK_BYTES: usize = 16 << 10;
/// What vector kernels may write behind a column of a block.
const SLACK: usize = 64;
/// How far ahead of a lone column's values memory is fetched, in bytes.
const AHEAD: usize = 2048;
/// Rows of a block at least, and what their number is a multiple of.
const LEAST_ROWS: usize = 16;
