//! Registered memory of the port's own: for bytes that are not registered, and for what atomics
//! find.

use std::sync::Arc;

use overside_memory::Segment;
use overside_verbs::{Memory, VerbsError};

use crate::ffi::{IBV_ACCESS_LOCAL_WRITE, ibv_sge};
use crate::objects::{Domain, Region};

/// Blocks of a few sizes, used again.
#[derive(Debug)]
pub(crate) struct Bounce {
    domain: Arc<Domain>,
    free: [Vec<Block>; CLASSES.len()],
    /// Bytes lent.
    lent: usize,
}

/// A piece of memory that the device can reach and that is its holder's alone.
#[derive(Debug)]
pub(crate) struct Block {
    region: Arc<Region>,
    address: *mut u8,
    len: usize,
}

// SAFETY: [ibv-bounce] the block's bytes are its holder's alone.
unsafe impl Send for Block {}

impl Block {
    /// Copies bytes to its place `at`.
    ///
    /// # Safety
    /// `len` bytes can be read at `from`.
    pub(crate) unsafe fn fill(&mut self, at: usize, from: *const u8, len: usize) {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: [ibv-bounce] in bounds of a block that is ours alone; the source is the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, self.address.add(at), len) };
    }

    /// The word at its start, which the device wrote.
    pub(crate) fn word(&self) -> u64 {
        // SAFETY: [ibv-bounce] a block has at least 64 aligned bytes; the request that wrote them has completed.
        unsafe { self.address.cast::<u64>().read_volatile() }
    }

    /// Part of it in the device's words.
    pub(crate) fn part(&self, at: usize, len: usize) -> ibv_sge {
        let address = self.region.device_address(self.address.wrapping_add(at), len);
        ibv_sge { addr: address.unwrap_or(0), length: len as u32, lkey: self.region.lkey }
    }
}

impl Bounce {
    pub(crate) fn new(domain: Arc<Domain>) -> Self {
        Self { domain, free: Default::default(), lent: 0 }
    }

    /// A block of at least `len` bytes; none when too much is lent already: it comes back as
    /// requests complete.
    pub(crate) fn take(&mut self, len: usize) -> Result<Option<Block>, VerbsError> {
        let class = CLASSES.iter().position(|(size, _)| len <= *size);
        let size = class.map_or(len, |class| CLASSES[class].0);
        if self.lent > 0 && self.lent + size > LENT_MAX {
            return Ok(None);
        }
        let block = match class {
            Some(class) => {
                if self.free[class].is_empty() {
                    self.grow(class)?;
                }
                self.free[class].pop()
            }
            None => Some(self.cut(len, len)?.remove(0)),
        };
        self.lent += size;
        Ok(block)
    }

    /// Takes a block back.
    pub(crate) fn give_back(&mut self, block: Block) {
        self.lent = self.lent.saturating_sub(block.len);
        if let Some(class) = CLASSES.iter().position(|(size, _)| block.len == *size) {
            self.free[class].push(block);
        }
    }

    fn grow(&mut self, class: usize) -> Result<(), VerbsError> {
        let (size, count) = CLASSES[class];
        self.free[class] = self.cut(size * count, size)?;
        Ok(())
    }

    fn cut(&self, bytes: usize, size: usize) -> Result<Vec<Block>, VerbsError> {
        let segment = Arc::new(Segment::private(bytes)?);
        let (base, memory) = (segment.base().as_ptr(), Memory::Segment(segment));
        let region = Arc::new(self.domain.register(&memory, base as u64, IBV_ACCESS_LOCAL_WRITE)?);
        let block = |i| Block { region: region.clone(), address: base.wrapping_add(i * size), len: size };
        Ok((0..bytes / size).map(block).collect())
    }
}

/// Sizes of blocks, and how many are made at once.
const CLASSES: [(usize, usize); 4] = [(64, 64), (4 << 10, 16), (64 << 10, 8), (1 << 20, 4)];
/// More than that is lent only as a single block.
const LENT_MAX: usize = 64 << 20;
