//! Where pages lie: one contiguous range of addresses, committed chunk by chunk.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use overside_memory::SegmentId;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use thiserror::Error;

/// There is no memory for another chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no memory left for another chunk; delete rows or give the arena more")]
pub struct Exhausted;

/// A range of addresses in which a tree keeps its pages and deltas.
///
/// # Safety
///
/// `base()` and the sizes never change. Chunk `i` is `base() + i * chunk_bytes() .. +
/// chunk_bytes()`. A part of it, from a `commit(i, part)` that succeeded until `decommit(i)`, is
/// readable and writable by this process, does not move, and is used by nobody but the tree (others
/// may read it). `base()` is aligned to 4 KiB, and `base() .. base() + chunks_max() *
/// chunk_bytes()` is an address range of its own that lives as long as the arena.
pub unsafe trait Arena: Send + Sync + 'static {
    /// First address of chunk 0.
    fn base(&self) -> NonNull<u8>;
    /// Bytes of a chunk: a power of two, at least 1 MiB, at most 4 GiB, and at least twice the
    /// largest value.
    fn chunk_bytes(&self) -> usize;
    /// How many chunks there can be, 4 TiB of them at most.
    fn chunks_max(&self) -> usize;
    /// Makes bytes `part` of chunk `chunk` usable, whole 64ths of it; refused while some of them
    /// are committed already, so that two trees over one arena never have the same bytes. A tree's
    /// first chunk comes in parts, the first ones first; all others come whole. May block; the tree
    /// calls it under a lock of its own.
    fn commit(&self, chunk: usize, part: Range<usize>) -> Result<(), Exhausted>;
    /// Gives chunk `chunk` back, with all parts of it that are committed.
    ///
    /// # Safety
    ///
    /// The tree committed it, and nobody uses it any more.
    unsafe fn decommit(&self, chunk: usize);
    /// The segment that byte `at` of the arena lies in, as a provider knows it: one for each part
    /// that was committed. [`SegmentId::FOREIGN`] for memory that none registered.
    fn segment(&self, at: u64) -> SegmentId {
        let _ = at;
        SegmentId::FOREIGN
    }
    /// Where each segment begins, its bytes and its number, in ascending order; none for memory
    /// that none registered.
    fn segments(&self) -> Vec<(u64, u64, SegmentId)> {
        Vec::new()
    }
}

/// An arena in anonymous private memory: for tests, benchmarks and use without a network.
#[derive(Debug)]
pub struct HeapArena {
    reserved: NonNull<u8>,
    reserved_bytes: usize,
    base: NonNull<u8>,
    chunk_bytes: usize,
    /// Of each chunk a bit for each 64th that is committed.
    committed: Box<[AtomicU64]>,
}

// SAFETY: [bwtree-arena] the struct only names a mapping that it owns.
unsafe impl Send for HeapArena {}
// SAFETY: [bwtree-arena] as above; all methods take `&self` and only talk to the kernel.
unsafe impl Sync for HeapArena {}

impl HeapArena {
    /// Reserves (without using) address space for `bytes_max` bytes in chunks of 2 MiB.
    pub fn new(bytes_max: usize) -> Result<HeapArena, Exhausted> {
        HeapArena::with_chunks(2 << 20, bytes_max.div_ceil(2 << 20).max(1))
    }

    /// Reserves address space for `chunks_max` chunks of `chunk_bytes` (a power of two from 1 MiB
    /// on).
    pub fn with_chunks(chunk_bytes: usize, chunks_max: usize) -> Result<HeapArena, Exhausted> {
        assert!(
            chunk_bytes.is_power_of_two() && chunk_bytes >= CHUNK_BYTES_MIN,
            "a chunk is a power of two from 1 MiB on"
        );
        let bytes = chunk_bytes.checked_mul(chunks_max).and_then(|b| b.checked_add(chunk_bytes)).ok_or(Exhausted)?;
        // SAFETY: [bwtree-arena] a new mapping at an address of the kernel's choice touches nothing that exists.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let reserved = NonNull::new(reserved.map_err(|_| Exhausted)?.cast::<u8>()).ok_or(Exhausted)?;
        let slack = reserved.as_ptr().align_offset(chunk_bytes);
        // SAFETY: [bwtree-arena] one chunk more than needed was reserved, so the aligned start lies inside.
        let base = unsafe { reserved.add(slack) };
        let committed = (0..chunks_max).map(|_| AtomicU64::new(0)).collect();
        Ok(HeapArena { reserved, reserved_bytes: bytes, base, chunk_bytes, committed })
    }

    fn chunk(&self, chunk: usize) -> *mut std::ffi::c_void {
        assert!(chunk < self.committed.len(), "chunk {chunk} of {}", self.committed.len());
        self.base.as_ptr().wrapping_add(chunk * self.chunk_bytes).cast()
    }
}

impl Drop for HeapArena {
    fn drop(&mut self) {
        // SAFETY: [bwtree-arena] the mapping is ours and the tree that used it is gone.
        let _ = unsafe { rustix::mm::munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
    }
}

// SAFETY: [bwtree-arena] chunks are equal parts of one reserved mapping; commit makes part of one readable and writable in place, once.
unsafe impl Arena for HeapArena {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    fn chunks_max(&self) -> usize {
        self.committed.len()
    }

    fn commit(&self, chunk: usize, part: Range<usize>) -> Result<(), Exhausted> {
        let grain = self.chunk_bytes / 64;
        let sound = part.start < part.end && part.end <= self.chunk_bytes;
        assert!(sound && part.start.is_multiple_of(grain) && part.end.is_multiple_of(grain), "{part:?} is no part");
        let at = self.chunk(chunk).wrapping_byte_add(part.start);
        let bits = u64::MAX >> (64 - part.len() / grain) << (part.start / grain);
        let free = |committed: u64| (committed & bits == 0).then_some(committed | bits);
        if self.committed[chunk].fetch_update(Ordering::Acquire, Ordering::Relaxed, free).is_err() {
            return Err(Exhausted);
        }
        // SAFETY: [bwtree-arena] the range is part of our reservation.
        unsafe { rustix::mm::mprotect(at, part.len(), MprotectFlags::READ | MprotectFlags::WRITE) }
            .inspect_err(|_| _ = self.committed[chunk].fetch_and(!bits, Ordering::Release))
            .map_err(|_| Exhausted)?;
        // SAFETY: [bwtree-arena] advice about our own range; refusal only costs speed.
        let _ = unsafe { rustix::mm::madvise(at, part.len(), Advice::LinuxHugepage) };
        Ok(())
    }

    unsafe fn decommit(&self, chunk: usize) {
        let at = self.chunk(chunk);
        // SAFETY: [bwtree-arena] the caller says that nobody uses the chunk.
        unsafe {
            let _ = rustix::mm::madvise(at, self.chunk_bytes, Advice::LinuxDontNeed);
            let _ = rustix::mm::mprotect(at, self.chunk_bytes, MprotectFlags::empty());
        }
        self.committed[chunk].store(0, Ordering::Release);
    }
}

/// What a word of the mapping table can name: 36 bits of 64 bytes.
pub(crate) const ARENA_BYTES_MAX: usize = 1 << 42;
/// Several of the longest pages must find room in a chunk.
pub(crate) const CHUNK_BYTES_MIN: usize = 1 << 20;
/// Longer values have lengths of more than 32 bits, and longer spans more slots than their counts
/// have.
pub(crate) const CHUNK_BYTES_MAX: usize = 1 << 32;
