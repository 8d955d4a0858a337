//! Parts of requests: what is read and written of which member, and what is done when one fails.

mod copies;
mod reads;
mod rows;

use super::journal::Writes;
use super::row::{Plan, Row, Source, xor};
use super::*;
use crate::mutant::mutant;

/// A part of a request: of a mirror all of it, of RAID 5 one stripe that is read or one row that is
/// written.
#[derive(Debug)]
pub(super) struct Task {
    parent: u64,
    /// Requests to members under way.
    left: usize,
    /// Members that failed in this step, and in those before, as bits.
    failed: u64,
    avoid: u64,
    /// What they read was not what was written.
    corrupt: u64,
    error: Option<DeviceError>,
    /// It is one of the rows that are written now.
    is_row: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// A part of a READ from one member.
    Read {
        part: u64,
        piece: Piece,
        into: Option<Buffer>,
    },
    /// The same from all others.
    Rebuild {
        part: u64,
        piece: Piece,
        into: Buffer,
        read: Vec<Buffer>,
    },
    /// What a member had wrong is written again. It may fail.
    Heal,
    /// What must be read before a row can be written.
    Gather {
        row: Row,
        plan: Plan,
        read: Vec<(Source, Buffer)>,
    },
    /// Waits until the journal has it.
    Journal {
        writes: Writes,
    },
    /// The writes.
    Put {
        journaled: Option<u64>,
    },
    /// A member's bytes, from one other or from all, for those that have missed them.
    Copy {
        targets: u64,
        at: u64,
        length: u64,
        read: Vec<Buffer>,
    },
    /// Members look whether they have it right.
    Check {
        /// As bits.
        members: u64,
        at: u64,
        length: u64,
    },
    Over,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Child {
    task: u64,
    member: usize,
    /// Of a row, what it reads.
    source: Source,
}

/// What is known of the journal.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) places: Places,
    next: u64,
    waiting: VecDeque<u64>,
    /// The entry on its way, and its task.
    writing: Option<(u64, u64)>,
    /// Entries whose rows are being written.
    pub(super) busy: BTreeSet<u64>,
}

impl Journal {
    pub(super) fn new(places: Places) -> Journal {
        Journal { places, next: 0, waiting: VecDeque::new(), writing: None, busy: BTreeSet::new() }
    }
}

const NO_SOURCE: Source = Source { stripe: None, from: 0, length: 0 };

impl Raid {
    fn task(&mut self, parent: u64, state: State) -> u64 {
        if let Some(parent) = self.parents.get_mut(parent) {
            parent.left += 1;
        }
        self.tasks.insert(Task { parent, left: 0, failed: 0, avoid: 0, corrupt: 0, error: None, is_row: false, state })
    }

    fn push(&mut self, task: u64, member: usize, source: Source, work: Work) {
        if let Some(task) = self.tasks.get_mut(task) {
            task.left += 1;
        }
        let tag = self.children.insert(Child { task, member, source });
        self.members.all[member].push(tag, work);
    }

    /// Cuts a request into tasks.
    pub(super) fn begin(&mut self, id: u64) {
        let Some(parent) = self.parents.get_mut(id) else { return };
        if let Origin::Background(_) = parent.origin {
            return self.begin_task_of_background(id);
        }
        let ParentWork::Whole(work) = std::mem::replace(&mut parent.work, ParentWork::Nothing) else { return };
        // Until all of its tasks are there.
        parent.left = 1;
        let keep = |this: &mut Raid, work| {
            if let Some(parent) = this.parents.get_mut(id) {
                parent.work = ParentWork::Whole(work);
            }
        };
        match work {
            Work::Read { at, length, into } => self.begin_read(id, at, length, into),
            Work::Flush => {
                keep(self, Work::Flush);
                self.flush(id);
            }
            Work::Write { at, from, fua } => {
                keep(self, Work::Write { at, from: from.clone(), fua });
                match self.layout.clone() {
                    Layout::Parity(parity) => self.write_rows(id, &parity, at, &from),
                    _ => self.put_all(id, |_| Some(Work::Write { at, from: from.clone(), fua })),
                }
            }
            Work::Discard { at, length } => {
                keep(self, Work::Discard { at, length });
                self.begin_zeros(id, at, length, |at, length| Work::Discard { at, length });
            }
            Work::Zero { at, length } => {
                keep(self, Work::Zero { at, length });
                self.begin_zeros(id, at, length, |at, length| Work::Zero { at, length });
            }
            Work::Check { at, length, mend, .. } => {
                keep(self, Work::Check { at, length, mend, wrong: 0 });
                self.begin_check(id, at, length);
            }
            // Nobody will use any of it.
            Work::Hint { at, length, hint } => {
                keep(self, Work::Hint { at, length, hint });
                let task = self.task(id, State::Heal);
                let absent = self.members.absent;
                for member in (0..self.members.len()).filter(|member| absent & 1 << member == 0) {
                    let length = self.members.all[member].device.geometry().bytes;
                    self.push(task, member, NO_SOURCE, Work::Hint { at: 0, length, hint: Hint::DontNeed });
                }
                self.advance_if_still(task);
            }
        }
        self.task_ended(id);
    }

    pub(super) fn flush(&mut self, id: u64) {
        if !mutant("volume-flush-not-passed-on") {
            self.put_all(id, |_| Some(Work::Flush));
        }
    }

    /// The same for every member that gets what is written.
    fn put_all(&mut self, id: u64, work: impl Fn(usize) -> Option<Work>) {
        let task = self.task(id, State::Put { journaled: None });
        self.plain_puts += 1;
        for member in (0..self.members.len()).filter(|member| self.members.is_writable(*member)).collect::<Vec<_>>() {
            if let Some(work) = work(member) {
                self.push(task, member, NO_SOURCE, work);
            }
        }
        self.advance_if_still(task);
    }

    fn advance_if_still(&mut self, task: u64) {
        if self.tasks.get_mut(task).is_some_and(|task| task.left == 0) {
            self.advance(task);
        }
    }

    /// Rows of the volume that lie at a member's bytes.
    pub(super) fn volume_range(&self, at: u64, length: u64) -> (u64, u64) {
        let Layout::Parity(parity) = &self.layout else { return (at, length) };
        let (from, to) = (at / parity.stripe(), (at + length).div_ceil(parity.stripe()));
        (from * parity.row_bytes(), (to - from) * parity.row_bytes())
    }

    fn zeros(&mut self, length: usize) -> Option<Bytes> {
        if self.zeros.is_none() {
            let mut zeros = intents::buffer(self.row_bytes() as usize)?;
            zeros.fill(0);
            self.zeros = Some(zeros.into());
        }
        self.zeros.as_ref().map(|zeros| zeros.slice(0..length))
    }

    pub(super) fn scratch(&mut self, length: usize) -> Option<Buffer> {
        match self.scratch.iter().position(|buffer| buffer.len() >= length) {
            Some(place) => Some(self.scratch.swap_remove(place)),
            None => intents::buffer(length),
        }
    }

    fn put_back(&mut self, buffer: Buffer) {
        if self.scratch.len() < SCRATCH_MAX {
            self.scratch.push(buffer);
        }
    }

    /// Which member has the parity of the row at a member's byte.
    pub(super) fn holder(&self, at: u64) -> usize {
        let Layout::Parity(parity) = &self.layout else { return usize::MAX };
        parity.parity_of(at / parity.stripe())
    }

    /// A member has ended what it was asked for.
    pub(super) fn child_ended(&mut self, Completion { tag, work, result }: Completion) {
        let Some(Child { task: id, member, source }) = self.children.remove(tag) else { return };
        let Some(task) = self.tasks.get_mut(id) else { return };
        task.left -= 1;
        if let Err(error) = result {
            task.failed |= 1 << member;
            task.error = task.error.or(Some(error));
            task.corrupt |= u64::from(error == DeviceError::Corrupt) << member;
        }
        match (&mut task.state, work) {
            (State::Read { into, .. }, Work::Read { into: buffer, .. }) => *into = Some(buffer),
            (State::Rebuild { read, .. } | State::Copy { read, .. }, Work::Read { into, .. }) => read.push(into),
            (State::Gather { read, .. }, Work::Read { into, .. }) => read.push((source, into)),
            (State::Check { .. }, Work::Check { wrong, .. }) => task.failed |= u64::from(wrong != 0) << member,
            (_, Work::Write { from, .. }) if matches!(self.layout, Layout::Parity(_)) => {
                // Ours, unless a caller still has it.
                if let Ok(buffer) = from.into_buffer() {
                    self.put_back(buffer);
                }
            }
            _ => {}
        }
        self.advance_if_still(id);
    }

    /// A task's step has ended.
    fn advance(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let (failed, error) = (std::mem::take(&mut task.failed), task.error.take());
        task.avoid |= failed;
        let corrupt = task.corrupt;
        match std::mem::replace(&mut task.state, State::Over) {
            State::Read { part, piece, into } => {
                let Some(into) = into else { return self.end(id, Err(DeviceError::Failed)) };
                match error {
                    Some(error) => self.read(id, part, piece, into, error),
                    None => self.heal(id, part, piece, into, corrupt),
                }
            }
            State::Rebuild { part, piece, mut into, read } => {
                if let Some(error) = error {
                    read.into_iter().for_each(|buffer| self.put_back(buffer));
                    return self.read_units(id, part, piece, into, error);
                }
                let length = piece.length as usize;
                into[..length].fill(0);
                for buffer in read {
                    xor(&mut into[..length], &buffer[..length]);
                    self.put_back(buffer);
                }
                self.heal(id, part, piece, into, corrupt);
            }
            State::Heal => self.end(id, Ok(())),
            State::Gather { row, plan, read } => match error {
                // From others.
                Some(_) => {
                    read.into_iter().for_each(|(_, buffer)| self.put_back(buffer));
                    self.gather(id, row);
                }
                None => self.put_row(id, &row, plan, read),
            },
            State::Put { journaled } => self.put_ended(id, journaled, failed, error),
            State::Copy { targets, at, length, read } => match error {
                Some(error) => {
                    read.into_iter().for_each(|buffer| self.put_back(buffer));
                    self.copy_from_another(id, targets, at, length, error);
                }
                None => self.put_copy(id, targets, at, length, read),
            },
            State::Check { members, at, length } => self.checked(id, members, (at, length), failed),
            State::Journal { .. } | State::Over => {}
        }
    }

    fn put_ended(&mut self, id: u64, journaled: Option<u64>, failed: u64, error: Option<DeviceError>) {
        match (journaled, &mut self.journal) {
            (Some(sequence), Some(journal)) => _ = journal.busy.remove(&sequence),
            _ => self.plain_puts -= 1,
        }
        let resyncing = failed & self.members.stale();
        if resyncing != 0 {
            self.give_up_resync();
        }
        if failed != 0 && !self.is_enough_without(failed) {
            return self.end(id, Err(error.unwrap_or(DeviceError::Failed)));
        }
        if let Some(parent) = self.tasks.get_mut(id).map(|task| task.parent)
            && let Some(parent) = self.parents.get_mut(parent)
        {
            parent.failed |= failed;
        }
        self.end(id, Ok(()));
    }

    fn end(&mut self, id: u64, result: Result<(), DeviceError>) {
        let Some(task) = self.tasks.remove(id) else { return };
        if let Some(parent) = self.parents.get_mut(task.parent) {
            parent.result = parent.result.and(result);
        }
        self.task_ended(task.parent);
        self.rows -= usize::from(task.is_row);
    }

    /// One task fewer.
    pub(super) fn task_ended(&mut self, parent: u64) {
        let Some(found) = self.parents.get_mut(parent) else { return };
        found.left -= 1;
        if found.left == 0 {
            self.finish(parent);
        }
    }
}

/// Buffers that are kept.
const SCRATCH_MAX: usize = 64;
