//! The thread that writes checkpoints, beside writers that go on.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use overside_bwtree::Direction;
use overside_disk::mutant;
use overside_log::{Appender, Checkpoint, Checkpoints, Page};
use overside_service::{OnFailure, Ticket};

use super::Journal;
use crate::server::governor::Work;
use crate::server::store::{Store, Table, fault};
use crate::wire::{self, Checkpointed, Durability, Fault, FaultCode, Reply};

/// What it needs.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    pub(crate) journal: Arc<Journal>,
    pub(crate) store: Arc<Store>,
    pub(crate) checkpoints: Checkpoints,
    /// Told when the last one, which keeps tables without a log, cannot be written.
    pub(crate) on_failure: Option<OnFailure>,
    /// One is to be written at once: what is damaged was passed over, and the next start would
    /// refuse it again.
    pub(crate) at_once: bool,
    /// Bytes of each table when it was last written.
    pub(crate) sizes: BTreeMap<u32, u64>,
}

impl Checkpointer {
    /// Writes checkpoints until the journal is closed.
    pub(crate) fn run(mut self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.serve()));
        let why = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(fault)) => format!("{}; what was changed since the last checkpoint is not kept", fault.text),
            Err(_) => "a bug ended the thread that writes checkpoints; please report it".to_owned(),
        };
        self.journal.checkpointing.store(false, Ordering::Relaxed);
        for ticket in self.journal.take_asked() {
            answer(ticket, Err(fault(FaultCode::Closing, why.clone())));
        }
        if let Some(on_failure) = &self.on_failure {
            on_failure.tell(&why);
        }
    }

    fn serve(&mut self) -> Result<(), Fault> {
        loop {
            self.journal.due.look();
            let closing = self.journal.is_closing();
            let asked = self.journal.take_asked();
            let last = closing && self.journal.options.durability == Durability::None;
            let last = last && !mutant("last-checkpoint-skipped");
            if last || self.at_once || !asked.is_empty() || self.journal.is_due() {
                let done = self.write();
                self.at_once &= done.is_err();
                let text = done.as_ref().err().map(|fault| fault.text.clone());
                asked.into_iter().for_each(|ticket| answer(ticket, done.clone()));
                if let (true, Some(text)) = (last, text) {
                    return Err(fault(FaultCode::DiskFull, text));
                }
            }
            if closing {
                return Ok(());
            }
            if self.journal.numbers_wanted.swap(false, Ordering::AcqRel) {
                self.set_numbers_aside();
            }
            // After one that failed, the next waits until the log has grown or somebody asks.
            if self.journal.clock.wait(&[self.journal.due.fd()], None).is_err() {
                self.journal.clock.sleep(PAUSE);
            }
        }
    }

    /// Sets table numbers aside. Where the disk refuses, creates are refused, and those that come
    /// later try again.
    pub(crate) fn set_numbers_aside(&mut self) {
        let numbers = self.journal.numbers_from(self.store.next_number());
        if self.checkpoints.set_aside(numbers).is_ok() {
            self.journal.numbers.fetch_max(numbers, Ordering::Release);
        }
    }

    fn write(&mut self) -> Result<Checkpointed, Fault> {
        let journal = self.journal.clone();
        let Some(appender) = journal.appender.get() else {
            return Err(fault(FaultCode::Closing, "the server is starting; try again".into()));
        };
        journal.checkpointing.store(true, Ordering::Relaxed);
        let begun_at = journal.appended.load(Ordering::Relaxed);
        // A failed one, too: the next is tried when the log has grown by as much again.
        journal.begun_at.store(begun_at, Ordering::Relaxed);
        let written = self.tables(&journal, appender);
        journal.checkpointing.store(false, Ordering::Relaxed);
        let done = written.map_err(|error| journal.checkpoint_fault(&error))?;
        journal.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(done)
    }

    /// All tables as they are while this goes on. What is changed meanwhile comes from the log in a
    /// recovery, which replays it from `floor` on, whether a page shows it or not.
    fn tables(&mut self, journal: &Journal, appender: &Appender) -> io::Result<Checkpointed> {
        let floor = journal.stamps.floor();
        // After the floor was read: what it passed is in these tables, which ones there are included.
        let (tables, shown) = self.store.all_shown();
        let before = self.checkpoints.last().map(|last| last.floor);
        let mut done = Checkpointed::default();
        // Which tables there are is shown by it as well. A replay from `floor` on may find the create of a table that it lacks.
        let mut newest = if mutant("tables-not-covered") { 0 } else { shown };
        let mut sizes = BTreeMap::new();
        let mut checkpoint = self.checkpoints.begin(floor);
        let work = journal.pace.begin();
        for table in &tables {
            // Its pages were read after that floor, and nothing has changed it since.
            if before.is_some_and(|before| table.changed() < before) && checkpoint.keep(table.id) {
                done.unchanged += 1;
                sizes.insert(table.id, self.sizes.get(&table.id).copied().unwrap_or(0));
                continue;
            }
            let before = checkpoint.bytes();
            checkpoint.table(table.id, &table.description())?;
            // So is which indexes it has.
            newest = newest.max(if mutant("indexes-not-covered") { 0 } else { table.changed() });
            newest = newest.max(pages(table, &mut checkpoint, &mut done, journal, &work)?);
            done.tables += 1;
            sizes.insert(table.id, checkpoint.bytes().saturating_sub(before));
        }
        checkpoint.written()?;
        drop(work);
        done.bytes = checkpoint.bytes();
        // No change in it may be on the disk without those before it.
        while !(checkpoint.is_covered(appender) && appender.synced_floor() > newest) {
            go_on(journal)?;
            journal.wake.signal();
            journal.clock.sleep(PAUSE);
        }
        // A number that was given is below, whatever a crash costs; the last of all checkpoints sets none aside.
        let next = self.store.next_number();
        let numbers = if journal.is_closing() { next } else { journal.numbers_from(next) };
        checkpoint.finish(appender, journal.stamps.next(), numbers)?;
        journal.numbers.fetch_max(numbers, Ordering::Release);
        journal.released.fetch_max(floor, Ordering::Relaxed);
        journal.tables_bytes.store(sizes.values().sum(), Ordering::Relaxed);
        self.sizes = sizes;
        journal.wake.signal();
        Ok(done)
    }
}

/// Writes a table's pages, one pinned at a time. Gives the newest change that they, or what is no
/// more, show.
fn pages(
    table: &Table,
    to: &mut Checkpoint<'_>,
    done: &mut Checkpointed,
    journal: &Journal,
    work: &Work<'_>,
) -> io::Result<u64> {
    let mut pages = table.tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    for page in pages.by_ref() {
        let deltas: Vec<&[u8]> = page.deltas().map(|delta| delta.record()).collect();
        let extents: Vec<&[u8]> = page.extents().collect();
        let rows = page.rows();
        let bytes = page.base().len() + deltas.iter().chain(&extents).map(|piece| piece.len()).sum::<usize>();
        to.page(&Page {
            low: page.low_fence(),
            high: page.high_fence(),
            base: page.base(),
            rows: (rows.start as u32, rows.end as u32),
            deltas: &deltas,
            extents: &extents,
            newest: page.newest(),
            count: page.merged().count() as u32,
        })?;
        done.pages += 1;
        drop(page);
        pause(journal, work.spent(bytes as u64))?;
    }
    Ok(pages.newest())
}

/// Pauses until then, or until nobody is served any more.
fn pause(journal: &Journal, until: Instant) -> io::Result<()> {
    go_on(journal)?;
    // Shorter ones would cost more than they leave to others; what they leave out is added to the next.
    if until.saturating_duration_since(journal.clock.now()) < PAUSE {
        return Ok(());
    }
    while !journal.is_closing() && journal.clock.now() < until {
        let waited = journal.clock.wait(&[journal.closes.fd()], Some(until));
        waited.map_err(io::Error::other)?;
        go_on(journal)?;
    }
    Ok(())
}

/// Nobody waits for a checkpoint that a server's end would wait for, unless nothing else keeps its
/// tables.
fn go_on(journal: &Journal) -> io::Result<()> {
    let ends = journal.is_closing() && journal.options.durability != Durability::None;
    if ends || journal.has_failed() {
        return Err(io::Error::other("the server shuts down"));
    }
    Ok(())
}

fn answer(ticket: Ticket, done: Result<Checkpointed, Fault>) {
    let reply = match done {
        Ok(done) => Reply::Checkpointed(done),
        Err(fault) => Reply::Fault(fault),
    };
    ticket.complete(|body| wire::append(body, &reply));
}

impl Journal {
    /// Answers once a checkpoint is on the disk.
    pub(crate) fn checkpoint(&self, ticket: Ticket) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(ticket);
        self.due.signal();
    }

    fn take_asked(&self) -> Vec<Ticket> {
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether so much log has gathered that a recovery would rather read a checkpoint.
    pub(crate) fn is_due(&self) -> bool {
        let enough = self.tables_bytes.load(Ordering::Relaxed).max(self.options.checkpoint_bytes);
        self.options.durability != Durability::None && self.since_checkpoint() > enough
    }

    pub(crate) fn since_checkpoint(&self) -> u64 {
        self.appended.load(Ordering::Relaxed).saturating_sub(self.begun_at.load(Ordering::Relaxed))
    }

    fn checkpoint_fault(&self, error: &io::Error) -> Fault {
        let dir = self.options.dir.display();
        if error.kind() == io::ErrorKind::StorageFull {
            let text =
                format!("no room for a checkpoint in {dir}: {error}; the last one still counts, free some space there");
            return fault(FaultCode::DiskFull, text);
        }
        let code = if self.is_closing() { FaultCode::Closing } else { FaultCode::BadRequest };
        fault(code, format!("writing a checkpoint in {dir} failed: {error}; the last one still counts"))
    }
}

/// Between two looks at how far the log has come; and the shortest pause between two pages.
const PAUSE: Duration = Duration::from_millis(1);
