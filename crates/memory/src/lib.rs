//! Memory that a transfer may touch, and who may touch it.
//!
//! Four kinds, and the rules that make them sound without anybody's care:
//!
//! - A [`Segment`] is a sealed range of memory. Peers may map it read-only at most.
//! - A [`Buffer`] is an exclusive part of a segment: `&[u8]` and `&mut [u8]` are given
//!   out over it because no peer can write there and no other buffer covers it. [`Bytes`] are a
//!   part of one that several share and none writes.
//! - A [`View`] names bytes that stay put and unchanged as long as its [`Hold`] lives.
//!   A posted send owns its view; the completion releases the hold.
//! - A [`Window`] is memory that a peer may write at any moment, or, if it is shared so, only
//!   read. It gives copies only.
//!
//! What a peer shares with us for reading is [`Foreign`]: also copies only.
//!
//! Nothing here is sound only because a destructor runs: forgetting a buffer, a view or a
//! hold leaks memory and does no more.
//!
//! # The way through the files
//!
//! - `segment`, `buffer`, `view`, `window`, `foreign`: the kinds above. A `ForeignRange` is a part
//!   of a peer's memory that stays mapped, a `ForeignSlice` borrows from it.
//! - `reservation`: one address range that is filled segment by segment, so an offset is an
//!   address.
//! - `huge`: huge pages under every memory file that is long enough; small pages serve without
//!   them.
//! - `heap`: the command's allocator, which reports a lack of memory where Rust would abort.
//! - `kernels`: copies of memory that may race. Long ranges ask for the next lines meanwhile.
//! - `pack`: a shape's messages, packed out of this process's memory or a peer's. `kernel` chooses
//!   by kind and instruction set: `columns`, `indexed`, `packer`, `periods`, `rows`, `pieces`,
//!   `dealer`, `copy`.
//!
//! Absent on purpose: the network, tables, and anything that is sound only if a destructor runs.
//! docs/design/012-packing.md has the kernels' reasons.
#![deny(unsafe_op_in_unsafe_fn)]

mod available;
mod buffer;
mod bytes;
mod foreign;
mod foreign_range;
mod foreign_slice;
mod heap;
mod hold;
mod huge;
pub mod kernels;
mod names;
pub mod pack;
mod pool;
mod racing;
mod reservation;
mod segment;
mod sys;
mod view;
mod window;

pub use available::{address_space_left, available_bytes};
pub use buffer::Buffer;
pub use bytes::Bytes;
pub use foreign::Foreign;
pub use foreign_range::{ForeignRange, Lines};
pub use foreign_slice::{ForeignChunks, ForeignSlice};
pub use heap::Heap;
pub use hold::Hold;
pub use pool::Pool;
pub use reservation::Reservation;
pub use segment::{Segment, SegmentId};
pub use view::{Fragment, View, ViewPart};
pub use window::Window;

/// Why memory could not be had or used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The system has no memory left for a segment.
    #[error("out of memory: {bytes} bytes could not be allocated ({source}); {}", remedy(*.source))]
    Exhausted {
        /// What was asked for, in bytes.
        bytes: usize,
        /// What the system said.
        source: rustix::io::Errno,
    },
    /// A range lies outside of its memory.
    #[error("bytes {at}..{at}+{len} escape from a memory of {of} bytes")]
    Escapes {
        /// First byte.
        at: u64,
        /// Length in bytes.
        len: u64,
        /// Length of the memory in bytes.
        of: u64,
    },
    /// What is to be packed does not fit.
    #[error("packing takes {needed} bytes but the buffer has {has}; pack fewer messages at a time")]
    Short {
        /// Bytes to be packed.
        needed: u64,
        /// Bytes of the buffer.
        has: u64,
    },
    /// Memory that peers were given for one use is to be given for another.
    #[error(
        "peers were given this window to {0}, which is for good; make a window of its own for each of reading and writing"
    )]
    Class(&'static str),
    /// A descriptor that a peer passed is not what it says.
    #[error("the peer's memory is refused: {0}")]
    Untrusted(&'static str),
    /// A system call failed.
    #[error("{what} failed: {source}")]
    System {
        /// The call.
        what: &'static str,
        /// What the system said.
        source: rustix::io::Errno,
    },
}

/// What helps where memory could not be had.
fn remedy(source: rustix::io::Errno) -> &'static str {
    match source {
        rustix::io::Errno::OVERFLOW => "this process has no numbers left for segments: let go of long-lived ones",
        rustix::io::Errno::FBIG => "what processes share counts as a file: raise the limit of their size (ulimit -f)",
        rustix::io::Errno::MFILE => "close some descriptors, or raise the limit of this process (ulimit -n)",
        rustix::io::Errno::NFILE => "close some descriptors, or raise the system's limit (fs.file-max)",
        _ => "free memory, or raise the limit (ulimit -v, or the control group's)",
    }
}
