//! Tables that survive the server: what a change does on its way to the log,
//! and what a reply waits for.
//!
//! A worker claims room in the log, changes the tree, and appends the records to the log. It
//! carries the log on between requests, beside a thread that sees to the rest ([`writer`]). No
//! worker waits for it: what a client is told or shown is [held](overside_service::Context::hold)
//! until the log has come so far. Another thread ([`checkpoint`]) writes the tables down now and
//! then, so that the log before may go.

mod adopt;
mod change;
mod checkpoint;
#[cfg(all(test, shuttle))]
mod explored;
mod keeper;
mod recover;
mod saved;
mod writer;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use overside_bwtree::Stamps;
use overside_disk::mutant;
use overside_log::{Appender, Claim, Refused, Room};
use overside_service::{Hold, Latencies, Ticket, Watermarks};
use overside_verbs::{Clock, VerbsError};

pub(crate) use change::Change;
pub(super) use checkpoint::Checkpointer;
pub(super) use keeper::Keeper;
pub use recover::{DataError, OnProgress, Recovering, Recovery, check_data};
pub(super) use recover::{Opened, open};
pub use saved::{SavedOptions, SavedRows, SavedTable, SavedTables};
pub(super) use writer::Writer;

use super::governor::{PACE_MIN, Pace};
use super::store::fault;
use super::sync::{AtomicBool, AtomicU64};
use super::wake::Wake;
use crate::wire::{DataStatus, Durability, Fault, FaultCode};

/// Where a server's tables are kept.
#[derive(Clone, Debug)]
pub struct DataOptions {
    /// The directory, which is made where there is none.
    pub dir: PathBuf,
    /// What an acknowledged change survives.
    pub durability: Durability,
    /// With [`Durability::Group`], how much time a loss of power may cost.
    pub group: Duration,
    /// Start from what is sound of a damaged directory; what is not is moved aside.
    pub salvage: bool,
    /// A checkpoint is due once the log since the last has so many bytes, or as
    /// many as the tables have.
    pub checkpoint_bytes: u64,
    /// How many threads read a checkpoint in a recovery. Default: as many as there are processors.
    pub recovery_threads: usize,
    /// Told how far a recovery is.
    pub on_progress: Option<OnProgress>,
}

impl DataOptions {
    /// In `dir`, with [`Durability::Sync`].
    pub fn new(dir: impl Into<PathBuf>) -> DataOptions {
        let group = Duration::from_millis(10);
        DataOptions {
            dir: dir.into(),
            durability: Durability::Sync,
            group,
            salvage: false,
            checkpoint_bytes: 256 << 20,
            recovery_threads: std::thread::available_parallelism().map_or(2, usize::from),
            on_progress: None,
        }
    }
}

/// The log as workers see it.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) options: DataOptions,
    pub(crate) stamps: Arc<Stamps>,
    pub(crate) marks: Arc<Watermarks>,
    /// None before the directory is recovered.
    appender: OnceLock<Appender>,
    wake: Wake,
    /// Workers carry the log on; otherwise its thread does.
    is_carried: AtomicBool,
    /// Somebody waits for the log to go on.
    log_wanted: AtomicBool,
    /// The largest floor that somebody waits for.
    wanted: AtomicU64,
    /// A panic came between a change and its record.
    broken: AtomicBool,
    /// Nothing more will be appended.
    closing: AtomicBool,
    /// The log cannot be written any more.
    failed: AtomicBool,
    /// Bytes of log that were appended.
    appended: AtomicU64,
    /// Who asked for a checkpoint.
    asked: Mutex<Vec<Ticket>>,
    /// Wakes the thread that writes checkpoints.
    due: Wake,
    /// Where the log was when the last one began.
    begun_at: AtomicU64,
    /// Bytes of all tables in the last one.
    tables_bytes: AtomicU64,
    /// Since the start of the server.
    checkpoints: AtomicU64,
    checkpointing: AtomicBool,
    /// The disk says that table numbers below were given, so that none is given
    /// twice, whatever a crash costs.
    numbers: AtomicU32,
    /// More of them are to be set aside.
    numbers_wanted: AtomicBool,
    /// Changes below are in a checkpoint: the log may give them up.
    released: AtomicU64,
    /// Of checkpoints.
    pub(crate) pace: Pace,
    /// Ends a pause of the thread that writes them.
    closes: Wake,
    way: String,
    clock: Arc<dyn Clock>,
}

impl Journal {
    pub(crate) fn new(
        options: DataOptions,
        stamps: Arc<Stamps>,
        way: String,
        pace_min: Option<u64>,
        clock: Arc<dyn Clock>,
    ) -> Result<Journal, VerbsError> {
        Ok(Journal {
            options,
            stamps,
            marks: Watermarks::new(),
            appender: OnceLock::new(),
            wake: Wake::new()?,
            is_carried: AtomicBool::new(false),
            log_wanted: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            appended: AtomicU64::new(0),
            asked: Mutex::default(),
            due: Wake::new()?,
            begun_at: AtomicU64::new(0),
            tables_bytes: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
            checkpointing: AtomicBool::new(false),
            numbers: AtomicU32::new(0),
            numbers_wanted: AtomicBool::new(false),
            released: AtomicU64::new(0),
            pace: Pace::new(Latencies::new(), clock.clone(), pace_min.unwrap_or(PACE_MIN)),
            closes: Wake::new()?,
            way,
            clock,
        })
    }

    /// The directory is recovered.
    fn begin(&self, appender: Appender) {
        self.appended.store(appender.durable().0, Ordering::Relaxed);
        self.begun_at.fetch_min(appender.durable().0, Ordering::Relaxed);
        let _ = self.appender.set(appender);
    }

    /// Nothing is changed any more: the rest is written, and the writer ends.
    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake.signal();
        self.due.signal();
        self.closes.signal();
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// It has failed; whether that was known.
    fn fail(&self) -> bool {
        self.failed.swap(true, Ordering::AcqRel)
    }

    /// How far it has come.
    pub(crate) fn status(&self) -> DataStatus {
        let durable = self.appender.get().map_or(0, |appender| appender.durable().0);
        DataStatus {
            dir: self.options.dir.display().to_string(),
            durability: self.options.durability,
            way: self.way.clone(),
            // A group's end is further than its last record.
            log_position: self.appended.load(Ordering::Relaxed).max(durable),
            log_durable: durable,
            since_checkpoint: self.since_checkpoint(),
            checkpoints: self.checkpoints.load(Ordering::Relaxed),
            is_checkpointing: self.checkpointing.load(Ordering::Relaxed),
            governor: self.pace.status(),
        }
    }

    /// What a reply waits for that shows changes up to `stamp`.
    pub(crate) fn shown(&self, stamp: u64) -> Hold {
        if mutant("read-not-held") { Hold::NONE } else { self.until_floor(stamp + 1) }
    }

    /// What a reply waits for that shows which tables there are.
    pub(crate) fn shown_tables(&self) -> Hold {
        self.until_floor(self.stamps.next())
    }

    fn until_floor(&self, floor: u64) -> Hold {
        if self.options.durability != Durability::Sync || floor <= self.marks.reached().floor {
            return Hold::NONE;
        }
        // Whoever writes meanwhile sees the wish when it has ended, or has ended before the writer of the log looks.
        self.wanted.fetch_max(floor, Ordering::SeqCst);
        self.want_log();
        Hold { position: 0, floor }
    }

    /// A marked point: in a simulation others may go on here.
    pub(crate) fn point(&self, what: &'static str) {
        self.clock.point(what);
    }

    /// The log is to go on: the worker that this is called by does so before it
    /// sleeps, where workers do.
    fn want_log(&self) {
        self.log_wanted.store(true, Ordering::SeqCst);
        if !self.is_carried.load(Ordering::Acquire) {
            self.wake.signal();
        }
    }

    /// Whether a crash may cost a create that somebody has heard of.
    fn may_forget_tables(&self) -> bool {
        self.options.durability != Durability::Sync && !mutant("numbers-not-set-aside")
    }

    /// Whether a table may get this number.
    ///
    /// # Errors
    /// It is not set aside yet.
    pub(crate) fn may_number(&self, number: u32) -> Result<(), Denied> {
        if !self.may_forget_tables() {
            return Ok(());
        }
        let numbers = self.numbers.load(Ordering::Acquire);
        if numbers.saturating_sub(number) < NUMBERS_FEW {
            self.numbers_wanted.store(true, Ordering::Release);
            self.due.signal();
        }
        if number < numbers {
            return Ok(());
        }
        let dir = self.options.dir.display();
        let text = format!("the disk did not take a number for the table: free some space for {dir}, or try again");
        Err(Denied::Later(fault(FaultCode::DiskFull, text)))
    }

    /// Up to where numbers are set aside when `next` comes next.
    fn numbers_from(&self, next: u32) -> u32 {
        next.saturating_add(if self.may_forget_tables() { NUMBERS } else { 0 })
    }

    /// Whether everything that was changed is on its way to the log.
    pub(crate) fn is_whole(&self) -> bool {
        !self.broken.load(Ordering::Acquire)
    }

    fn claim(&self, bytes: usize, claim: Claim) -> Result<Room, Denied> {
        let Some(appender) = self.appender.get() else {
            return Err(Denied::Now(fault(FaultCode::Closing, "the server is starting; try again".into())));
        };
        appender.reserve(bytes, claim).map_err(|refused| {
            let text = refused.to_string();
            match refused {
                Refused::Extending { .. } => {
                    self.wake.signal();
                    Denied::Later(fault(FaultCode::DiskFull, text))
                }
                Refused::Full { .. } => {
                    self.wake.signal();
                    Denied::Now(fault(FaultCode::DiskFull, text))
                }
                Refused::TooLarge { .. } => Denied::Now(fault(FaultCode::TooLarge, text)),
                Refused::Failed(_) => Denied::Now(fault(FaultCode::Closing, text)),
            }
        })
    }
}

/// Why a request is not carried out.
#[derive(Debug)]
pub(crate) enum Denied {
    Now(Fault),
    /// The log is being extended: it may be in a moment, and this is what to say otherwise.
    Later(Fault),
}

impl From<Fault> for Denied {
    fn from(fault: Fault) -> Denied {
        Denied::Now(fault)
    }
}

/// Table numbers that are set aside at once, and how few are left when the next are.
const NUMBERS: u32 = 1024;
const NUMBERS_FEW: u32 = NUMBERS / 2;
