//! Where records meet on their way into the log: room claimed, groups gathered, what is durable by
//! now.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use overside_disk::{AlignedBuffer, BLOCK_BYTES};

use crate::Records;
use crate::group::{GROUP_HEADER_BYTES, padded};

/// Where records are put into a log. Any thread may have one.
#[derive(Clone, Debug)]
pub struct Appender {
    pub(crate) shared: Arc<Shared>,
}

/// Bytes of the log that are kept for one request. Dropping it gives them back.
#[derive(Debug)]
pub struct Room {
    shared: Arc<Shared>,
    bytes: u64,
}

/// For what room is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Puts and creates.
    Put,
    /// Deletes and drops, which may use the last of the room.
    Delete,
}

/// Why there is no room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The disk is full.
    #[error(
        "no room for {bytes} bytes in {path}: {left} bytes of the log are left and the disk is full; free some space there"
    )]
    Full {
        /// The data directory.
        path: String,
        /// What was asked for.
        bytes: u64,
        /// What there is.
        left: u64,
    },
    /// Room is being made; asking again soon helps.
    #[error("the log in {path} is being extended and has no room for {bytes} bytes yet; try again")]
    Extending {
        /// The data directory.
        path: String,
        /// What was asked for.
        bytes: u64,
    },
    /// More than a segment takes at once.
    #[error("{bytes} bytes are more than the log takes at once, {max}; write fewer rows at a time")]
    TooLarge {
        /// What was asked for.
        bytes: u64,
        /// What can be had.
        max: u64,
    },
    /// A write failed. Nothing more is acknowledged.
    #[error("{0}")]
    Failed(String),
}

/// What all who append and the one that writes share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub path: String,
    gather: Mutex<Gather>,
    durable: AtomicU64,
    durable_floor: AtomicU64,
    synced: AtomicU64,
    synced_floor: AtomicU64,
    failed: OnceLock<String>,
    /// Somebody found no room since the writer looked.
    wanted: AtomicBool,
    /// The segment that the newest checkpoint is replayed from: it and those behind it stay.
    needed: AtomicU64,
    /// No log is written.
    none: bool,
}

/// Records on their way.
#[derive(Debug)]
pub(crate) struct Gather {
    open: Option<Gathered>,
    sealed: VecDeque<Gathered>,
    /// Where the next group begins.
    next: u64,
    pool: Vec<AlignedBuffer>,
    /// Segments by number, with the newest stamp in each, oldest first.
    pub segments: VecDeque<Segment>,
    pub room: Accounts,
}

/// What is promised of the segments that are there.
#[derive(Debug)]
pub(crate) struct Accounts {
    pub limits: Limits,
    /// Bytes left in the segments that are there, after all groups that the writer took.
    pub granted: u64,
    /// Segments among them that are not begun.
    pub spares: u64,
    /// The disk had no room for another one.
    pub full: bool,
    /// Bytes of groups that the writer has not taken.
    gathered: u64,
    /// Bytes that are claimed.
    claimed: u64,
    /// No claim is larger.
    claim_max: u64,
}

/// How much goes where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// A group takes no more requests than fit into this.
    pub group: u64,
    /// The largest claim.
    pub claim: u64,
    /// Kept for deletes.
    pub deletes: u64,
}

/// A segment that may be needed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub number: u64,
    pub newest: u64,
    /// Its header and its name are on the disk.
    pub begun: bool,
}

/// A group on its way to the writer.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub position: u64,
    pub buffer: AlignedBuffer,
    /// Bytes of header and records.
    pub length: usize,
    pub records: u32,
    pub newest: u64,
}

impl Appender {
    /// Claims room for records of `bytes` bytes in all ([`Records::bytes_of`]). Claim it before a
    /// tree is changed.
    ///
    /// # Errors
    /// There is no room, or there never will be any.
    pub fn reserve(&self, bytes: usize, claim: Claim) -> Result<Room, Refused> {
        let shared = &self.shared;
        if let Some(text) = shared.failed.get() {
            return Err(Refused::Failed(text.clone()));
        }
        let needed = padded(GROUP_HEADER_BYTES.saturating_add(bytes)) as u64;
        if !shared.none {
            shared
                .lock()
                .room
                .claim(needed, claim)
                .inspect_err(|_| shared.wanted.store(true, Ordering::Relaxed))
                .map_err(|denied| match denied {
                    Denied::TooLarge(max) => Refused::TooLarge { bytes: needed, max },
                    Denied::Full(left) => Refused::Full { path: shared.path.clone(), bytes: needed, left },
                    Denied::Extending => Refused::Extending { path: shared.path.clone(), bytes: needed },
                })?;
        }
        Ok(Room { shared: shared.clone(), bytes: needed })
    }

    /// Puts records into the log, all of them into one group. They survive once
    /// [`durable`](Self::durable) has reached the position that this returns.
    ///
    /// # Panics
    /// When the records are more than was claimed: the tree has them already, so they cannot be
    /// refused.
    pub fn append(&self, room: Room, records: &Records) -> Position {
        assert!(Arc::ptr_eq(&room.shared, &self.shared), "room of another log");
        let needed = padded(GROUP_HEADER_BYTES + records.bytes().len()) as u64;
        assert!(needed <= room.bytes, "records of {needed} bytes where {} were claimed", room.bytes);
        if self.shared.none {
            return Position(0);
        }
        let position = self.shared.lock().append(records);
        // The claim ends when the bytes count as gathered.
        drop(room);
        Position(position)
    }

    /// Every record below has what the log's durability promises it.
    pub fn durable(&self) -> Position {
        Position(self.shared.durable.load(Ordering::Acquire))
    }

    /// Every change with a stamp below has that, too, or never happened.
    pub fn durable_floor(&self) -> u64 {
        self.shared.durable_floor.load(Ordering::Acquire)
    }

    /// Every record below is on the disk, whatever the log's durability promises.
    pub fn synced(&self) -> Position {
        Position(self.shared.synced.load(Ordering::Acquire))
    }

    /// Every change with a stamp below is on the disk, or never happened.
    pub fn synced_floor(&self) -> u64 {
        self.shared.synced_floor.load(Ordering::Acquire)
    }

    /// Why nothing more becomes durable; none while all is well. It is final.
    pub fn failed(&self) -> Option<&str> {
        self.shared.failed.get().map(String::as_str)
    }

    /// The oldest segment that holds a record with this stamp or a later one, or may yet: what a
    /// checkpoint needs that replays from it.
    pub fn segment_from(&self, stamp: u64) -> u64 {
        let gather = self.shared.lock();
        // What it needs must be found again: a segment that is being begun may not be.
        let mut begun = gather.segments.iter().filter(|segment| segment.begun);
        let found = begun.clone().find(|segment| segment.newest >= stamp).or(begun.next_back());
        found.map_or(0, |segment| segment.number)
    }
}

/// A place in the log, in bytes from its beginning. It never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

impl Drop for Room {
    fn drop(&mut self) {
        if !self.shared.none {
            self.shared.lock().room.give_back(self.bytes);
        }
    }
}

impl Shared {
    pub fn new(path: String, next: u64, floor: u64, none: bool, segments: VecDeque<Segment>, limits: Limits) -> Shared {
        let room = Accounts { limits, granted: 0, spares: 0, full: false, gathered: 0, claimed: 0, claim_max: 0 };
        let gather = Gather { open: None, sealed: VecDeque::new(), next, pool: Vec::new(), segments, room };
        Shared {
            path,
            gather: Mutex::new(gather),
            durable: AtomicU64::new(next),
            durable_floor: AtomicU64::new(if none { u64::MAX } else { floor }),
            synced: AtomicU64::new(next),
            synced_floor: AtomicU64::new(if none { u64::MAX } else { floor }),
            failed: OnceLock::new(),
            wanted: AtomicBool::new(false),
            needed: AtomicU64::new(0),
            none,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Gather> {
        self.gather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn reached(&self, position: u64) -> bool {
        self.durable.fetch_max(position, Ordering::Release) < position
    }

    pub fn reached_floor(&self, floor: u64) -> bool {
        self.durable_floor.fetch_max(floor, Ordering::Release) < floor
    }

    pub fn synced(&self, position: u64) {
        self.synced.fetch_max(position, Ordering::Release);
    }

    pub fn synced_floor(&self, floor: u64) {
        self.synced_floor.fetch_max(floor, Ordering::Release);
    }

    pub fn fail(&self, text: String) {
        let _ = self.failed.set(text);
    }

    pub fn failed(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// A checkpoint counts that is replayed from this segment on.
    pub fn need(&self, segment: u64) {
        self.needed.store(segment, Ordering::Release);
    }

    pub fn needed(&self) -> u64 {
        self.needed.load(Ordering::Acquire)
    }

    pub fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::Relaxed)
    }
}

impl Gather {
    fn append(&mut self, records: &Records) -> u64 {
        if records.is_empty() {
            return self.appended();
        }
        let bytes = records.bytes();
        let group = self.room.limits.group as usize;
        if self.open.as_ref().is_some_and(|open| padded(open.length + bytes.len()) > group) {
            self.seal();
        }
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                let wanted = padded(GROUP_HEADER_BYTES + bytes.len()).max(group);
                let buffer = match self.pool.pop() {
                    Some(buffer) if buffer.len() >= wanted => buffer,
                    // As with every small allocation of the process, running out of memory ends it.
                    _ => AlignedBuffer::zeroed(wanted).expect("memory for a group of records"),
                };
                self.room.gathered += BLOCK_BYTES as u64;
                let fresh = Gathered { position: self.next, buffer, length: GROUP_HEADER_BYTES, records: 0, newest: 0 };
                self.open.insert(fresh)
            }
        };
        let before = padded(open.length);
        open.buffer[open.length..open.length + bytes.len()].copy_from_slice(bytes);
        open.length += bytes.len();
        open.records += records.count();
        open.newest = open.newest.max(records.newest());
        self.room.gathered += (padded(open.length) - before) as u64;
        open.position + open.length as u64
    }

    fn seal(&mut self) {
        let Some(mut group) = self.open.take() else { return };
        let whole = padded(group.length);
        group.buffer[group.length..whole].fill(0);
        self.next += whole as u64;
        self.sealed.push_back(group);
    }

    /// What was appended ends here.
    pub fn appended(&self) -> u64 {
        self.open.as_ref().map_or(self.next, |open| open.position + open.length as u64)
    }

    /// Bytes that wait for the writer.
    pub fn waiting(&self) -> u64 {
        self.room.gathered
    }

    /// Bytes of the next group, if there is one.
    pub fn next_bytes(&self) -> Option<u64> {
        self.sealed.front().or(self.open.as_ref()).map(|group| padded(group.length) as u64)
    }

    /// The next group, if there is one.
    pub fn take(&mut self) -> Option<Gathered> {
        if self.sealed.is_empty() {
            self.seal();
        }
        let group = self.sealed.pop_front()?;
        self.room.gathered -= padded(group.length) as u64;
        Some(group)
    }

    /// A group without records, if nothing waits and no claim needs its bytes.
    pub fn take_empty(&mut self) -> Option<Gathered> {
        if self.open.is_some() || !self.sealed.is_empty() || !self.room.has_left(BLOCK_BYTES as u64) {
            return None;
        }
        let mut buffer = self.pool.pop().or_else(|| AlignedBuffer::zeroed(BLOCK_BYTES).ok())?;
        buffer[..BLOCK_BYTES].fill(0);
        let group = Gathered { position: self.next, buffer, length: GROUP_HEADER_BYTES, records: 0, newest: 0 };
        self.next += BLOCK_BYTES as u64;
        Some(group)
    }

    /// Takes a buffer to be used again.
    pub fn give_back(&mut self, buffer: AlignedBuffer) {
        if buffer.len() as u64 == self.room.limits.group && self.pool.len() < POOL_MAX {
            self.pool.push(buffer);
        }
    }
}

enum Denied {
    TooLarge(u64),
    Full(u64),
    Extending,
}

impl Accounts {
    fn claim(&mut self, bytes: u64, claim: Claim) -> Result<(), Denied> {
        if bytes > self.limits.claim {
            return Err(Denied::TooLarge(self.limits.claim));
        }
        let kept = if claim == Claim::Put { self.limits.deletes } else { 0 };
        // With a larger claim more may be left over at the end of each segment.
        let left = self.left_with(self.claim_max.max(bytes)).saturating_sub(kept);
        if bytes > left {
            return Err(if self.full { Denied::Full(left) } else { Denied::Extending });
        }
        self.claimed += bytes;
        self.claim_max = self.claim_max.max(bytes);
        Ok(())
    }

    fn give_back(&mut self, bytes: u64) {
        self.claimed -= bytes;
        if self.claimed == 0 && self.gathered == 0 {
            self.claim_max = 0;
        }
    }

    /// Whether a group without records has its bytes, whatever the order in which claims are used.
    pub fn has_left(&self, bytes: u64) -> bool {
        let wasted = self.spares * self.limits.group.max(self.claim_max);
        self.granted >= self.gathered + self.claimed + wasted + bytes
    }

    /// Bytes that can be claimed: all but those, and a block for such a group.
    fn left_with(&self, claim_max: u64) -> u64 {
        // Before each spare, less than the group that did not fit is left over.
        let wasted = self.spares * self.limits.group.max(claim_max) + BLOCK_BYTES as u64;
        self.granted.saturating_sub(self.gathered + self.claimed + wasted)
    }
}

/// Buffers that are kept.
const POOL_MAX: usize = 16;
