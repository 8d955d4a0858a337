//! What is to be sent.

use std::sync::Arc;

use overside_memory::{Buffer, MemoryError};
use overside_shape::Shape;

use crate::port::RawRegion;

/// A shape over memory that stays put and unchanged as long as anybody has the region.
#[derive(Clone, Debug)]
pub struct Region {
    memory: Arc<Buffer>,
    shape: Arc<Shape>,
}

impl Region {
    /// Declares `shape` (offsets from the buffer's start) over a shared buffer, which nobody can
    /// write any more.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when it needs bytes that the buffer does not have.
    pub fn new(memory: &Arc<Buffer>, shape: &Arc<Shape>) -> Result<Self, MemoryError> {
        let (at, len, of) = (shape.start(), shape.end() - shape.start(), memory.len() as u64);
        if shape.end() > of {
            return Err(MemoryError::Escapes { at, len, of });
        }
        Ok(Self { memory: memory.clone(), shape: shape.clone() })
    }

    /// As a port takes it.
    pub(crate) fn raw(&self, bundle_bytes: u64) -> RawRegion<'_> {
        let (address, len, segment) = (self.memory.as_ptr(), self.memory.len(), self.memory.segment_id());
        RawRegion { address, len, segment, shape: &self.shape, bundle_bytes }
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<Buffer> {
        &self.memory
    }

    /// Which of its bytes.
    pub fn shape(&self) -> &Arc<Shape> {
        &self.shape
    }
}
