//! What is to be sent.

use std::sync::Arc;

use overside_memory::Buffer;
use overside_planner::PlanError;
use overside_shape::Shape;

use crate::port::RawRegion;

/// A shape over memory that stays put and unchanged as long as anybody has the region.
#[derive(Clone, Debug)]
pub struct Region {
    memory: Arc<Buffer>,
    shape: Arc<Shape>,
}

/// Why a region cannot be sent. Nothing of it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclareError {
    /// It needs bytes that its memory does not have.
    #[error("{field} ends at byte {end} but its memory has {len}; declare it over the memory it lies in")]
    Escapes {
        /// Which region.
        field: String,
        /// One past its last byte.
        end: u64,
        /// The memory's length in bytes.
        len: u64,
    },
    /// Two destinations of a shared send would get the same bytes.
    #[error("destinations {first} and {second} overlap at byte {at}; each byte goes to one destination")]
    Overlap {
        /// One destination.
        first: usize,
        /// The other.
        second: usize,
        /// A byte that both have.
        at: u64,
    },
    /// A destination has more elements than another (d-rdma §3.2 DR-M14).
    #[error(
        "destination {destination} has {elements} elements, destination 0 has {expected}; declare as many for each, or allow any balance"
    )]
    Elements {
        /// Which destination.
        destination: usize,
        /// Its elements.
        elements: u64,
        /// Those of the first.
        expected: u64,
    },
    /// A shared send to nobody.
    #[error("destinations: there is none; name a queue pair and a region for each")]
    Nobody,
    /// The planner refuses it.
    #[error("{field}: {error}")]
    Plan {
        /// Which region.
        field: String,
        /// Why.
        error: PlanError,
    },
    /// Transmit buffers that are smaller than a request may be.
    #[error(
        "transmit buffers of {buffer_bytes} bytes are shorter than requests of {request_bytes}; make the pool's buffers larger"
    )]
    Pool {
        /// Bytes of a buffer.
        buffer_bytes: u64,
        /// Bytes that a request may have.
        request_bytes: u64,
    },
}

impl Region {
    /// Declares `shape` (offsets from the buffer's start) over a shared buffer, which nobody can write any more.
    ///
    /// # Errors
    /// [`DeclareError::Escapes`].
    pub fn new(memory: &Arc<Buffer>, shape: &Arc<Shape>) -> Result<Self, DeclareError> {
        Self::named("the region", memory, shape)
    }

    /// As [`new`](Self::new), with what the error says of it.
    ///
    /// # Errors
    /// [`DeclareError::Escapes`].
    pub fn named(field: &str, memory: &Arc<Buffer>, shape: &Arc<Shape>) -> Result<Self, DeclareError> {
        let len = memory.len() as u64;
        if shape.end() > len {
            return Err(DeclareError::Escapes { field: field.to_owned(), end: shape.end(), len });
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
