//! Tables as a checkpoint has them: its pages become a tree's, without a row being searched for a
//! place.
//!
//! The parts of a table's file are dealt out in ranges, which several threads read, check and copy
//! at once. A leaf begins where the leaf before it ended, so a range's first one takes its
//! beginning from the part in front of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use overside_bwtree::{AdoptError, AdoptLeaf, Adoption, Leaf, LeafRun, Tree};
use overside_disk::Disk;
use overside_log::{self as log, Directory, PageRef, PagesReader, Refusal};
use overside_service::{Running, Threads};

use super::recover::{OnProgress, Recovering};
use crate::server::store::{Store, TreeConfig, TreeError, described_as, empty};

/// Makes tables of a checkpoint's pages.
pub(super) struct Adopter<'s> {
    store: &'s Store,
    threads: Arc<dyn Threads>,
    /// How many of them there may be.
    threads_max: usize,
    progress: Arc<Progress>,
}

/// How far it is with all tables.
struct Progress {
    rows: AtomicU64,
    bytes: AtomicU64,
    /// Rows that the checkpoint says it has.
    of: u64,
    told: Option<OnProgress>,
}

impl<'s> Adopter<'s> {
    /// For the tables of a checkpoint that says it has `of` rows.
    pub(super) fn new(
        store: &'s Store,
        threads: Arc<dyn Threads>,
        threads_max: usize,
        of: u64,
        told: Option<OnProgress>,
    ) -> Adopter<'s> {
        let progress = Progress { rows: AtomicU64::new(0), bytes: AtomicU64::new(0), of, told };
        Adopter { store, threads, threads_max, progress: Arc::new(progress) }
    }

    /// Makes a table; one that is not `only` without its rows. Where damage is passed over, the
    /// directory notes it.
    ///
    /// # Errors
    /// The pages are damaged or missing, or do not fit the server's memory.
    pub(super) fn table<D: Disk>(
        &self,
        directory: &mut Directory<D>,
        table: &log::Table,
        only: Option<&str>,
    ) -> Result<(), String> {
        let name = described_as(&table.options).map(|(name, _)| name);
        if only.is_some() && name.is_some() && only != name {
            return self.store.restore(table.number, &table.options, &empty).map(|_| ()).map_err(|fault| fault.text);
        }
        let taken = RefCell::new(Taken::default());
        let make_tree = |config: TreeConfig| {
            let TreeConfig { arena, options, waits, stamps, open: _ } = config;
            let adoption = Tree::adopt(arena, options, waits, stamps);
            let adoption = adoption.map_err(|error| TreeError::Exhausted(error.to_string()))?;
            let (adoption, parts) = self.take_all(directory, table, adoption, &mut taken.borrow_mut())?;
            adoption.finish(parts).map_err(tree_error)
        };
        let made = self.store.restore(table.number, &table.options, &make_tree).map_err(|fault| fault.text)?;
        let Taken { rows, losses } = taken.into_inner();
        if let Some(made) = made {
            // What is there, whatever the checkpoint says.
            made.count(rows as i64);
        }
        losses.into_iter().for_each(|text| directory.lose(text));
        Ok(())
    }

    /// Rows that were adopted.
    pub(super) fn rows(&self) -> u64 {
        self.progress.rows.load(Ordering::Relaxed)
    }

    /// Bytes of the pages that they were in.
    pub(super) fn bytes(&self) -> u64 {
        self.progress.bytes.load(Ordering::Relaxed)
    }

    fn take_all<D: Disk>(
        &self,
        directory: &Directory<D>,
        table: &log::Table,
        adoption: Adoption,
        taken: &mut Taken,
    ) -> Result<(Adoption, Vec<LeafRun>), TreeError> {
        let salvages = directory.salvages();
        let mut first = match directory.pages(table) {
            Ok(pages) => pages,
            Err(Refusal::Damage(damage)) if salvages => {
                taken.losses.push(damage.to_string());
                return Ok((adoption, Vec::new()));
            }
            Err(refusal) => return Err(broken(&refusal)),
        };
        let ranges = ranges(first.parts().len(), if salvages { 1 } else { self.threads_max });
        let others = ranges.len().min(self.threads_max).saturating_sub(1);
        let work = Arc::new(Work {
            adoption,
            salvages,
            ranges,
            progress: self.progress.clone(),
            next: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            done: Mutex::default(),
        });
        let mut running = Vec::new();
        for number in 0..others {
            let mut pages = directory.pages(table).map_err(|refusal| broken(&refusal))?;
            let work = work.clone();
            let run = Box::new(move || work.carry_out(&mut pages));
            // With fewer threads it takes longer.
            running.extend(self.threads.start(&format!("adopt-{number}"), run));
        }
        work.carry_out(&mut first);
        running.into_iter().for_each(Running::join);
        let bug = || TreeError::Broken(BUG.into());
        let work = Arc::into_inner(work).ok_or_else(bug)?;
        let done = work.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut parts = Vec::new();
        for outcome in done.into_values() {
            let (part, losses) = outcome?;
            taken.rows += part.rows();
            taken.losses.extend(losses);
            parts.push(part);
        }
        if parts.len() == work.ranges.len() { Ok((work.adoption, parts)) } else { Err(bug()) }
    }
}

/// What a table's pages came to.
#[derive(Default)]
struct Taken {
    rows: u64,
    losses: Vec<String>,
}

/// A table's ranges, for the next free thread.
struct Work {
    adoption: Adoption,
    salvages: bool,
    ranges: Vec<Range<usize>>,
    progress: Arc<Progress>,
    /// The range that nobody has begun.
    next: AtomicUsize,
    failed: AtomicBool,
    /// By range.
    done: Mutex<BTreeMap<usize, Outcome>>,
}

/// A range's leaves, and what of them was passed over.
type Outcome = Result<(LeafRun, Vec<String>), TreeError>;

impl Work {
    /// Takes ranges until there is none left, or one of them has failed.
    fn carry_out(&self, pages: &mut PagesReader) {
        while !self.failed.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(range) = self.ranges.get(number) else { return };
            let outcome = self.take(pages, range.clone());
            if outcome.is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
            self.done.lock().unwrap_or_else(PoisonError::into_inner).insert(number, outcome);
        }
    }

    fn take(&self, pages: &mut PagesReader, range: Range<usize>) -> Outcome {
        let mut losses = Vec::new();
        let mut part = self.adoption.part(&end_of(pages, range.start)?);
        for number in range {
            let (bytes, before) = (pages.parts()[number].bytes, part.rows());
            let (mut leaves, mut failed) = (Vec::new(), None);
            let read = pages.read(number, &mut |page| match part.take(&leaf_of(page)) {
                Err(error @ AdoptError::Leaf { .. }) if self.salvages => {
                    leaves.push(error.to_string());
                    Ok(())
                }
                Err(error) => {
                    failed = Some(error);
                    Err(error.to_string())
                }
                Ok(()) => Ok(()),
            });
            match (read, failed) {
                (Err(Refusal::Damage(damage)), _) if self.salvages => losses.push(damage.to_string()),
                (Err(_), Some(error)) => return Err(tree_error(error)),
                (read, _) => read.map_err(|refusal| broken(&refusal))?,
            }
            losses.extend(leaves);
            self.progress.add(part.rows() - before, bytes);
        }
        Ok((part, losses))
    }
}

impl Progress {
    fn add(&self, rows: u64, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let rows = rows + self.rows.fetch_add(rows, Ordering::Relaxed);
        if let Some(told) = &self.told {
            told.tell(Recovering::Adopting { rows, of: self.of });
        }
    }
}

/// Where the parts before this one end.
fn end_of(pages: &mut PagesReader, part: usize) -> Result<Vec<u8>, TreeError> {
    let mut end = Vec::new();
    if part > 0 {
        let mut note = |page: &PageRef<'_>| {
            let leaf = Leaf::parse(page.base).map_err(|error| error.to_string())?;
            end.clear();
            end.extend(leaf.high_fence().unwrap_or_default());
            Ok(())
        };
        pages.read(part - 1, &mut note).map_err(|refusal| broken(&refusal))?;
    }
    Ok(end)
}

fn tree_error(error: AdoptError) -> TreeError {
    match error {
        AdoptError::Tree(error) => TreeError::Exhausted(error.to_string()),
        error => TreeError::Broken(format!("the checkpoint is damaged: {error}")),
    }
}

fn broken(refusal: &Refusal) -> TreeError {
    TreeError::Broken(refusal.to_string())
}

fn leaf_of<'p>(page: &'p PageRef<'_>) -> AdoptLeaf<'p> {
    AdoptLeaf {
        base: page.base,
        rows: page.rows.start as usize..page.rows.end as usize,
        deltas: &page.deltas,
        extents: &page.extents,
    }
}

/// So many parts in ranges, a few for each thread: all of them then end at about the same time.
fn ranges(parts: usize, threads: usize) -> Vec<Range<usize>> {
    let ranges = if threads > 1 { parts.min(RANGES_EACH * threads) } else { parts.min(1) };
    (0..ranges).map(|range| parts * range / ranges..parts * (range + 1) / ranges).collect()
}

const RANGES_EACH: usize = 4;
const BUG: &str = "a bug ended a thread that reads the checkpoint; please report it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_all_parts_once() {
        for parts in 0..40 {
            for threads in 1..5 {
                let ranges = ranges(parts, threads);
                assert!(ranges.iter().cloned().flatten().eq(0..parts), "{parts} parts for {threads} threads");
                assert!(ranges.iter().all(|range| !range.is_empty()));
                assert!(ranges.len() <= RANGES_EACH * threads);
            }
        }
    }
}
