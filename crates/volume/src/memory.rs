//! Blocks in memory.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use overside_memory::{Buffer, MemoryError, Segment};

use crate::device::{Completion, Device, DeviceError, Geometry, Request, SECTOR_BYTES, Work};

/// A device whose blocks lie in this process's memory and end with it. Memory that was never
/// written is not there.
#[derive(Debug)]
pub struct MemoryDevice {
    blocks: Buffer,
    geometry: Geometry,
    done: Vec<Completion>,
}

impl MemoryDevice {
    /// With as many whole sectors as fit into `bytes`, and at least one.
    ///
    /// # Errors
    /// The address space is not there.
    pub fn new(bytes: u64) -> Result<MemoryDevice, MemoryError> {
        let bytes = (bytes / SECTOR_BYTES).max(1) * SECTOR_BYTES;
        // What is too much to be named is too much to be had: the system says so.
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let segment = Segment::private(length)?;
        let whole = segment.len();
        let blocks = segment.carve(whole).pop().expect("a segment holds itself");
        Ok(MemoryDevice {
            blocks,
            geometry: Geometry { bytes, unit_bytes: SECTOR_BYTES, read_only: false },
            done: Vec::new(),
        })
    }

    /// The same, to be read only.
    #[must_use]
    pub fn frozen(mut self) -> MemoryDevice {
        self.geometry.read_only = true;
        self
    }

    fn carry_out(&mut self, work: &mut Work) -> Result<(), DeviceError> {
        self.geometry.check(work)?;
        let Some((at, length)) = work.range() else { return Ok(()) };
        let blocks = &mut self.blocks[at as usize..(at + length) as usize];
        match work {
            Work::Read { into, length, .. } => into[..*length].copy_from_slice(blocks),
            Work::Write { from, .. } => blocks.copy_from_slice(from),
            Work::Discard { .. } | Work::Zero { .. } => blocks.fill(0),
            Work::Check { wrong, .. } => *wrong = 0,
            Work::Flush | Work::Hint { .. } => {}
        }
        Ok(())
    }
}

impl Device for MemoryDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        for mut request in batch.drain(..) {
            let result = self.carry_out(&mut request.work);
            self.done.push(request.ended(result));
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        self.done.is_empty()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
