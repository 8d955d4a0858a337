//! Rows of a table dealt out to several destinations in one pass over it.

use overside_shape::{OneTable, Shape, Wanted};
use smallvec::SmallVec;

use super::kernel::PackKernel;
use crate::MemoryError;

/// Packs the rows of several regions over the same columns, each into a buffer of its own. It reads
/// each line of the columns once, for all regions that want bytes of it (d-rdma §4.1 DR-M32, §6
/// DR-M59). What a row costs hardly depends on how many destinations there are.
#[derive(Debug)]
pub struct Dealer<'a> {
    kernel: PackKernel,
    memory: &'a [u8],
    /// Where the columns' values of row 0 lie, which is the first row that anybody wants.
    columns: SmallVec<[usize; COLUMNS_MAX]>,
    /// Rows up to the last that anybody wants.
    rows: u64,
    /// The first that is not dealt.
    next: u64,
    parts: Vec<Wanted<'a>>,
    /// Of the block at hand: who wants which rows, and how many.
    words: Vec<u64>,
    counts: Vec<usize>,
}

/// Where a destination's rows go.
#[derive(Debug)]
pub struct RowBuffer<'b> {
    /// The room; rows are written from its start on.
    pub room: &'b mut [u8],
    /// Rows written so far.
    pub rows: usize,
}

impl<'a> Dealer<'a> {
    /// Over `memory`, for shapes that are some rows, a message each, of the same 2 to 8 dense
    /// columns of 4 bytes. None for other shapes, for more than 255 of them, or where there are no
    /// vectors for it.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when a shape leaves the memory.
    pub fn new(memory: &'a [u8], shapes: &[&'a Shape]) -> Result<Option<Self>, MemoryError> {
        Self::with(PackKernel::best(), memory, shapes)
    }

    /// As [`new`](Self::new), with the kernel given, or the best below it that this processor can
    /// run.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with(kernel: PackKernel, memory: &'a [u8], shapes: &[&'a Shape]) -> Result<Option<Self>, MemoryError> {
        let (kernel, len) = (kernel.or_less(), memory.len() as u64);
        for shape in shapes {
            shape.within(len).map_err(|_| MemoryError::Escapes { at: 0, len: shape.end(), of: len })?;
        }
        if kernel < PackKernel::Avx2 || shapes.len() > DESTINATIONS_MAX {
            return Ok(None);
        }
        Ok(Self::of_rows(kernel, memory, shapes))
    }

    fn of_rows(kernel: PackKernel, memory: &'a [u8], shapes: &[&'a Shape]) -> Option<Self> {
        let table = OneTable::of(shapes).filter(|table| table.parts().len() == shapes.len())?;
        let row_bytes = table.columns().len() as u64 * VALUE_BYTES;
        let whole = shapes.iter().all(|shape| shape.messages().uniform_bytes() == Some(row_bytes));
        if !whole || !table.is_dense(VALUE_BYTES) || !(COLUMNS_MIN..=COLUMNS_MAX).contains(&table.columns().len()) {
            return None;
        }
        let columns = table.columns().iter().map(|column| column.base as usize).collect();
        let (rows, parts) = (table.rows(), table.parts().to_vec());
        let (words, counts) = (vec![0; parts.len()], vec![0; parts.len()]);
        Some(Self { kernel, memory, columns, rows, next: 0, parts, words, counts })
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.columns.len() * VALUE_BYTES as usize
    }

    /// The first row that is not dealt, counted from the first that anybody wants.
    pub fn row(&self) -> u64 {
        self.next
    }

    /// Goes on from a row that [`row`](Self::row) of a dealer of the same shapes has given.
    pub fn resume(&mut self, row: u64) {
        self.next = row;
    }

    /// Whether all is dealt.
    pub fn is_done(&self) -> bool {
        self.next >= self.rows
    }

    /// Deals rows, in order, until all are dealt or a destination has no room for the one that is
    /// next: its place is full then.
    ///
    /// # Panics
    /// When there are not as many places as destinations, or one of them says that it has more rows
    /// than it has room for.
    pub fn deal(&mut self, places: &mut [RowBuffer<'_>]) {
        assert_eq!(places.len(), self.parts.len(), "a place for each destination");
        let row_bytes = self.row_bytes();
        assert!(places.iter().all(|place| place.rows <= place.room.len() / row_bytes), "rows beyond a place's room");
        while !self.is_done() {
            let (block, shared) = self.look();
            if !shared && block + 64 <= self.rows && self.fits(places) {
                self.deal_blocks(block, places);
            } else if !self.deal_some(block, places) {
                return;
            }
        }
    }

    /// Who wants which rows of the block that is next: its first row, and whether two want the
    /// same.
    #[inline]
    fn look(&mut self) -> (u64, bool) {
        let (block, rest) = (self.next / 64 * 64, u64::MAX << (self.next % 64));
        for (word, part) in self.words.iter_mut().zip(&self.parts) {
            *word = part.word(block) & rest;
        }
        (block, count(&self.words, &mut self.counts))
    }

    /// Whether each has room for its rows of the block, and for what a vector writes behind the
    /// last.
    #[inline]
    fn fits(&self, places: &[RowBuffer<'_>]) -> bool {
        let row_bytes = self.row_bytes();
        let room = |(place, count): (&RowBuffer<'_>, &usize)| {
            (place.rows + count) * row_bytes + VECTOR_BYTES <= place.room.len()
        };
        places.iter().zip(&self.counts).fold(true, |all, each| all & room(each))
    }

    /// Whole blocks, the one at hand first, as long as there is room for all of the next.
    fn deal_blocks(&mut self, mut block: u64, places: &mut [RowBuffer<'_>]) {
        let row_bytes = self.row_bytes();
        let mut sink = std::mem::MaybeUninit::<[u8; 64 * VALUE_BYTES as usize * COLUMNS_MAX + VECTOR_BYTES]>::uninit();
        // One more, where rows go that nobody wants.
        let mut next: SmallVec<[*mut u8; 40]> =
            places.iter_mut().map(|place| place.room[place.rows * row_bytes..].as_mut_ptr()).collect();
        next.push(sink.as_mut_ptr().cast());
        loop {
            let base = self.memory.as_ptr();
            let at = |k: usize| base.wrapping_add(self.columns[k] + (block * VALUE_BYTES) as usize);
            // SAFETY: [pack] the block's rows lie between the first and the last that anybody wants, so within the slice; each
            // place has room for its rows and a vector, the sink for 64; no two destinations want the same row.
            unsafe { deal_block(self.kernel, self.columns.len(), at, &self.words, &self.counts, &mut next) };
            places.iter_mut().zip(&self.counts).for_each(|(place, count)| place.rows += count);
            self.next = block + 64;
            if self.next + 64 > self.rows {
                return;
            }
            let (following, shared) = self.look();
            if shared || !self.fits(places) {
                return;
            }
            block = following;
            next[places.len()] = sink.as_mut_ptr().cast();
        }
    }

    /// Rows of the block one by one, up to the first that finds no room; whether that was all of
    /// them.
    fn deal_some(&mut self, block: u64, places: &mut [RowBuffer<'_>]) -> bool {
        let row_bytes = self.row_bytes();
        let mut until = 64;
        for ((place, word), count) in places.iter().zip(&self.words).zip(&self.counts) {
            let room = place.room.len() / row_bytes - place.rows;
            if *count > room {
                let full = (0..room).fold(*word, |word, _| word & (word - 1));
                until = until.min(full.trailing_zeros());
            }
        }
        let taken = if until == 64 { u64::MAX } else { (1 << until) - 1 };
        for (place, word) in places.iter_mut().zip(&self.words) {
            let mut word = word & taken;
            while word != 0 {
                let row = block as usize + word.trailing_zeros() as usize;
                let out = &mut place.room[place.rows * row_bytes..][..row_bytes];
                for (value, column) in out.chunks_exact_mut(VALUE_BYTES as usize).zip(&self.columns) {
                    value.copy_from_slice(&self.memory[column + row * VALUE_BYTES as usize..][..VALUE_BYTES as usize]);
                }
                (place.rows, word) = (place.rows + 1, word & (word - 1));
            }
        }
        self.next = (block + u64::from(until)).min(self.rows);
        until == 64
    }
}

/// 64 rows of `columns` columns, of which `at` says where the first of these values lies, each
/// behind the last of its destination.
///
/// # Safety
/// As the kernels of [`x86_deal`](super::x86_deal).
unsafe fn deal_block(
    kernel: PackKernel,
    columns: usize,
    at: impl Fn(usize) -> *const u8,
    words: &[u64],
    counts: &[usize],
    next: &mut [*mut u8],
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: [pack] the caller's promise; the kernel was detected.
    unsafe {
        use super::x86_deal::deal;
        match columns {
            2 => deal::<2>(kernel, std::array::from_fn(at), words, counts, next),
            3 => deal::<3>(kernel, std::array::from_fn(at), words, counts, next),
            4 => deal::<4>(kernel, std::array::from_fn(at), words, counts, next),
            5 => deal::<5>(kernel, std::array::from_fn(at), words, counts, next),
            6 => deal::<6>(kernel, std::array::from_fn(at), words, counts, next),
            7 => deal::<7>(kernel, std::array::from_fn(at), words, counts, next),
            _ => deal::<8>(kernel, std::array::from_fn(at), words, counts, next),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{kernel:?} of {columns} columns from {:?}: {words:?} {counts:?} {next:?}", at(0));
}

/// How many bits each word has; whether any is set in two. A dealer is made where vectors are.
fn count(words: &[u64], counts: &mut [usize]) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: [pack] a dealer's kernel was detected, and with it the instruction.
    return unsafe { super::x86_deal::count(words, counts) };
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{words:?} {counts:?}");
}

const VALUE_BYTES: u64 = 4;
const COLUMNS_MIN: usize = 2;
const COLUMNS_MAX: usize = 8;
const DESTINATIONS_MAX: usize = 255;
/// What is written at once.
const VECTOR_BYTES: usize = 32;
