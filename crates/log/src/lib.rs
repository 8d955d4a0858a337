//! A log and checkpoints for tables in memory: what is written, in which order, and how it is read
//! back.
//!
//! A [`Directory`] is opened and read first: its newest checkpoint, then the records that come
//! after it ([`Directory::replay`]). It then becomes a [`Log`], which one thread steps, and
//! [`Appender`]s, by which all others append. docs/durability.md says what that promises,
//! docs/reference/wire.md has the formats.
//!
//! There is no thread here, no unsafe code and no clock: time comes in as a value, and the disk's
//! completions carry things on.
//!
//! # The way of one record
//!
//! - `record`, `group`: rows with stamps; groups and segments as bytes.
//! - `gather`: room claimed, groups gathered, what is durable by now.
//! - `log`, `spares`: several groups in flight, durable in order; segments made ahead and recycled.
//! - `read`, `replay`: where the log ends, torn tail or damage; records in the order of their
//!   stamps.
//! - `checkpoint`: pages in parts, footers, manifests. `check`, `refusal`: every checksum, and why
//!   a directory is refused.
//! - `directory`, `layout`: its lock, its identity, a log taken up where the last one ended.
//!
//! # Invariants
//!
//! - Nothing on the disk changes before all of it was read.
//! - A position counts as durable after all before it. An append cannot fail, since its room was
//!   claimed.
//! - A failed write or sync is never tried again.
//! - A reader allocates no more than a file's length.
#![forbid(unsafe_code)]

mod check;
mod checkpoint;
mod directory;
mod gather;
mod group;
mod layout;
mod log;
mod read;
mod record;
mod refusal;
mod replay;
mod spares;

pub use check::{Checked, check};
pub use checkpoint::{Checkpoint, Checkpoints, Manifest, Page, PageGroup, PageRef, PagesReader, Table};
pub use directory::{Directory, Mode};
pub use gather::{Appender, Claim, Position, Refused, Room};
pub use group::{DirectoryId, VERSION};
pub use log::{Log, LogFailed, Step};
pub use read::Replayed;
pub use record::{Change, Record, Records};
pub use refusal::{Damage, Refusal};

/// The formats, for tests, fuzz targets and whoever looks into a directory.
pub mod format {
    pub use crate::checkpoint::{Footer, parse_part, write_page};
    pub use crate::group::{
        GROUP_HEADER_BYTES, Group, GroupHeader, GroupKind, NoHeader, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN,
        SegmentHeader,
    };
    pub use crate::record::records;
}

use std::time::Duration;

use gather::Limits;
use overside_disk::BLOCK_BYTES;

/// What an acknowledged change survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, of the kernel and of power: it is on the disk.
    Sync,
    /// The end of the process: the kernel has it. What the disk has is at most so much older.
    Group {
        /// Time between two syncs.
        every: Duration,
    },
    /// A clean end: no log is written.
    None,
}

/// How a log is written.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What an acknowledged change survives.
    pub durability: Durability,
    /// Bytes of a segment: whole blocks, eight at least and 1 GiB at most.
    pub segment_bytes: u64,
    /// Segments that are made ahead.
    pub spares: usize,
    /// Segments that are kept for later when nobody needs their content.
    pub spares_max: usize,
    /// A group takes no further request when it has so many bytes.
    pub group_bytes: u64,
    /// While a group is being written, the next goes when so many bytes have gathered.
    pub gather_bytes: u64,
    /// Groups that are being written at a time.
    pub writes_max: usize,
    /// After so long without a change, a group without records states what is durable.
    pub quiet: Duration,
    /// A full disk is tried again after so long; after a twentieth of it if somebody asks.
    pub retry: Duration,
    /// What waits for the disk outside of a step waits for so long.
    pub deadline: Duration,
    /// Pages of a checkpoint are written and read together up to so many bytes.
    pub part_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            durability: Durability::Sync,
            segment_bytes: 64 << 20,
            spares: 2,
            spares_max: 4,
            group_bytes: 1 << 20,
            gather_bytes: 64 << 10,
            writes_max: 4,
            quiet: Duration::from_millis(200),
            retry: Duration::from_secs(1),
            deadline: Duration::from_secs(60),
            part_bytes: 1 << 20,
        }
    }
}

impl Options {
    /// Bytes for groups in a segment: its first block is a header, and its last is kept for the
    /// mark that the log goes on elsewhere.
    fn capacity(&self) -> u64 {
        self.segment_bytes - 2 * BLOCK_BYTES as u64
    }

    fn limits(&self) -> Limits {
        let part = |of: u64, least: u64| {
            let block = BLOCK_BYTES as u64;
            (self.capacity() / of / block).max(least) * block
        };
        Limits { group: self.group_bytes.min(part(4, 1)), claim: part(4, 1), deletes: part(16, 2) }
    }

    /// Past the page cache, unless the page cache is what is promised.
    fn is_direct(&self) -> bool {
        self.durability == Durability::Sync
    }

    fn check(&self) -> Result<(), Refusal> {
        let blocks = self.segment_bytes.is_multiple_of(BLOCK_BYTES as u64);
        let sound = blocks && (group::SEGMENT_BYTES_MIN..=group::SEGMENT_BYTES_MAX).contains(&self.segment_bytes);
        if sound && self.spares > 0 && self.writes_max > 0 {
            return Ok(());
        }
        Err(Refusal::Options(format!(
            "segments of {} bytes, {} spares and {} writes at a time are no log; take the defaults",
            self.segment_bytes, self.spares, self.writes_max
        )))
    }
}
