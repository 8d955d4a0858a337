//! The limit for copies, and for reading without one.

use super::{Touched, touch};
use crate::{
    lineitem::PackedRows,
    measure::{Spread, alternate, elapsed_ns, now_ns},
};
use overside::memory::{Buffer, MemoryError, Segment, kernels};
use serde::Serialize;
use std::hint::black_box;

/// Rows in chunks of a page's size, in the memory that a table's pages lie in, and where they are
/// copied to.
pub struct Chunks {
    source: Buffer,
    target: Buffer,
    ring: Vec<Buffer>,
    used: Vec<u32>,
    bytes: u64,
    rows: u64,
}

/// One kernel's speed.
#[derive(Clone, Debug, Serialize)]
pub struct CopyLimit {
    /// The kernel.
    pub kernel: String,
    /// Bytes per second.
    pub bytes_per_s: Spread,
    /// The rounds behind it, for pairing.
    #[serde(skip)]
    pub rounds: Vec<f64>,
}

/// Every kernel's speed, both ways.
#[derive(Clone, Debug, Serialize)]
pub struct CopyLimits {
    /// As one large copy.
    pub once: Vec<CopyLimit>,
    /// In chunks into the ring, every row of it read.
    pub chunked: Vec<CopyLimit>,
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// Bytes of the ring.
    pub ring_bytes: usize,
}

impl CopyLimits {
    /// The fastest kernel for one large copy.
    pub fn best_once(&self) -> Option<&CopyLimit> {
        best(&self.once)
    }

    /// The fastest kernel in chunks: the limit for scans.
    pub fn best_chunked(&self) -> Option<&CopyLimit> {
        best(&self.chunked)
    }
}

impl Chunks {
    /// Lays `rows` out: as many whole rows to a chunk of `chunk_bytes` as fit, and a ring of
    /// `ring_bytes` to copy them to.
    ///
    /// # Errors
    ///
    /// Memory is exhausted.
    ///
    /// # Panics
    ///
    /// A row is larger than a chunk, or a chunk than the ring.
    pub fn lay_out(rows: &PackedRows, chunk_bytes: usize, ring_bytes: usize) -> Result<Chunks, MemoryError> {
        assert!(chunk_bytes <= ring_bytes, "the ring holds no chunk");
        let mut ends = Vec::new();
        let mut used = Vec::new();
        let mut chunk = 0usize;
        for index in 0..rows.len() {
            let row = rows.row_bytes(index).len();
            assert!(row <= chunk_bytes, "row {index} has {row} bytes");
            if chunk + row > chunk_bytes {
                used.push(chunk as u32);
                ends.push(index);
                chunk = 0;
            }
            chunk += row;
        }
        used.push(chunk as u32);
        ends.push(rows.len());
        let total = used.len() * chunk_bytes;
        let whole = |segment: Segment| segment.carve(total).swap_remove(0);
        let mut source = whole(Segment::shared(total)?);
        let mut next = 0;
        for (place, end) in source.chunks_mut(chunk_bytes).zip(&ends) {
            let mut at = 0;
            for index in next..*end {
                let row = rows.row_bytes(index);
                place[at..at + row.len()].copy_from_slice(row);
                at += row.len();
            }
            next = *end;
        }
        let mut target = whole(Segment::private(total)?);
        target.fill(1);
        let mut ring = Segment::private(ring_bytes)?.carve(chunk_bytes);
        ring.truncate(ring_bytes / chunk_bytes);
        ring.iter_mut().for_each(|place| place.fill(1));
        let bytes = used.iter().map(|used| u64::from(*used)).sum();
        Ok(Chunks { source, target, ring, used, bytes, rows: rows.len() as u64 })
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Measures every kernel both ways, alternating, `rounds` rounds.
    pub fn measure(&mut self, rounds: usize) -> CopyLimits {
        let kernels = kernels::Kernel::available();
        let sides = kernels.len() * 2;
        let samples = alternate(sides, rounds, |side, _| {
            let kernel = kernels[side / 2];
            Ok::<_, std::convert::Infallible>(match side % 2 {
                0 => self.once(kernel),
                _ => self.chunked(kernel, 1),
            })
        });
        let samples = samples.unwrap_or_else(|never| match never {});
        let limits = |way: usize| {
            let of = |(at, kernel): (usize, &kernels::Kernel)| {
                let rounds = samples[at * 2 + way].clone();
                CopyLimit { kernel: kernel_name(*kernel).to_owned(), bytes_per_s: Spread::of(&rounds), rounds }
            };
            kernels.iter().enumerate().map(of).collect()
        };
        CopyLimits {
            once: limits(0),
            chunked: limits(1),
            chunk_bytes: self.chunk_bytes(),
            ring_bytes: self.ring.len() * self.chunk_bytes(),
        }
    }

    /// `passes` passes in chunks with `kernel`: bytes of rows per second.
    pub fn chunked(&mut self, kernel: kernels::Kernel, passes: usize) -> f64 {
        let chunk_bytes = self.chunk_bytes();
        let start = now_ns();
        let mut all = Touched::default();
        for _ in 0..passes {
            for (at, used) in self.used.iter().enumerate() {
                let used = *used as usize;
                let from = &self.source[at * chunk_bytes..at * chunk_bytes + used];
                let slots = self.ring.len();
                let to = &mut self.ring[at % slots];
                kernels::copy(kernel, to, from);
                all.add(read_rows(&to[..used]));
            }
        }
        let ns = elapsed_ns(start).max(1);
        assert_eq!(black_box(all).rows, self.rows * passes as u64, "a row was not read");
        all.bytes as f64 * 1e9 / ns as f64
    }

    /// `passes` passes over the chunks where they lie, without a copy: bytes of rows per second.
    /// Other processes can map that memory as well, but nobody else works on it.
    pub fn in_place(&self, passes: usize) -> f64 {
        let chunks = self.source.chunks(self.chunk_bytes());
        let start = now_ns();
        let mut all = Touched::default();
        for _ in 0..passes {
            for (chunk, used) in chunks.clone().zip(&self.used) {
                all.add(read_rows(&chunk[..*used as usize]));
            }
        }
        let ns = elapsed_ns(start).max(1);
        assert_eq!(black_box(all).rows, self.rows * passes as u64, "a row was not read");
        all.bytes as f64 * 1e9 / ns as f64
    }

    fn once(&mut self, kernel: kernels::Kernel) -> f64 {
        let start = now_ns();
        kernels::copy(kernel, &mut self.target, &self.source);
        let ns = elapsed_ns(start).max(1);
        black_box(self.target[self.source.len() / 2]);
        self.source.len() as f64 * 1e9 / ns as f64
    }

    fn chunk_bytes(&self) -> usize {
        self.ring[0].len()
    }
}

/// Reads key, length and a byte of each cache line of every row, as a scan's consumer does.
fn read_rows(mut rows: &[u8]) -> Touched {
    let mut all = Touched::default();
    while let Some((row, rest)) = PackedRows::split_first(rows) {
        all.rows += 1;
        all.bytes += row.bytes.len() as u64;
        let key = (row.key.0 as u64).wrapping_add(row.key.1 as u64);
        all.sum = all.sum.wrapping_add(key).wrapping_add(touch(row.bytes));
        rows = rest;
    }
    all
}

fn best(limits: &[CopyLimit]) -> Option<&CopyLimit> {
    let speed = |limit: &&CopyLimit| limit.bytes_per_s.median;
    limits.iter().max_by(|a, b| speed(a).total_cmp(&speed(b)))
}

/// What a kernel is called in reports.
pub fn kernel_name(kernel: kernels::Kernel) -> &'static str {
    match kernel {
        kernels::Kernel::Libc => "glibc memcpy",
        kernels::Kernel::RepMovsb => "rep movsb",
        kernels::Kernel::Avx2 => "AVX2",
        kernels::Kernel::Streaming => "AVX2 streaming",
        kernels::Kernel::Ahead => "rep movsb, asking ahead",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineitem::Lineitem;

    #[test]
    fn every_row_is_copied_and_read_by_every_kernel() {
        let table = Lineitem::sample(0.001);
        let mut chunks = Chunks::lay_out(table.rows(), 16 << 10, 64 << 10).unwrap();
        assert_eq!(chunks.bytes(), table.rows().bytes().len() as u64);
        let limits = chunks.measure(2);
        assert_eq!(limits.once.len(), kernels::Kernel::available().len());
        for limit in limits.once.iter().chain(&limits.chunked) {
            assert!(limit.bytes_per_s.median > 0.0, "{limit:?}");
        }
        assert!(chunks.target[..] == chunks.source[..]);
        // Whoever reads fewer rows than there are panics.
        assert!(chunks.in_place(2) > 0.0);
        let sum = |limits: &[CopyLimit]| best(limits).unwrap().bytes_per_s.median;
        assert!(limits.chunked.iter().all(|l| l.bytes_per_s.median <= sum(&limits.chunked)));
    }
}
