//! Rows of RAID 5: what their parity needs is read, the journal has them where a crash would leave
//! a hole, and they are written.

use super::super::journal::Writes;
use super::super::row::{Part, Plan, Row, Source};
use super::*;
use crate::intents::{get, put};

impl Raid {
    pub(super) fn write_rows(&mut self, id: u64, parity: &Parity, at: u64, from: &Bytes) {
        let mut pieces = Vec::new();
        self.layout.cut(at, from.len() as u64, &mut pieces);
        let (mut done, mut rows) = (0, BTreeMap::<u64, Vec<Part>>::new());
        for Piece { at: place, length, .. } in pieces {
            let (row, within) = ((at + done) / parity.row_bytes(), (at + done) % parity.row_bytes());
            let bytes = from.slice(done as usize..(done + length) as usize);
            let part = Part { stripe: (within / parity.stripe()) as usize, from: place % parity.stripe(), bytes };
            rows.entry(row).or_default().push(part);
            done += length;
        }
        for (number, parts) in rows {
            self.begin_row(id, Row::new(number, parts));
        }
    }

    /// Zeros: whole rows are zeros on all members, parity too; the rest is written.
    pub(super) fn begin_zeros(&mut self, id: u64, at: u64, length: u64, work: impl Fn(u64, u64) -> Work) {
        let Layout::Parity(parity) = self.layout.clone() else { return self.put_all(id, |_| Some(work(at, length))) };
        let row = parity.row_bytes();
        let (from, to) = (at.next_multiple_of(row), (at + length) / row * row);
        // While a member is missing, a row is written by the journal alone.
        let whole = from < to && self.members.are_all_current() && self.lost.is_empty();
        if whole {
            let (place, length) = (from / row * parity.stripe(), (to - from) / row * parity.stripe());
            self.put_all(id, |_| Some(work(place, length)));
        }
        let mut next = at;
        while next < at + length {
            if whole && next == from {
                next = to;
                continue;
            }
            let end = ((next / row + 1) * row).min(at + length);
            let Some(zeros) = self.zeros((end - next) as usize) else {
                if let Some(parent) = self.parents.get_mut(id) {
                    parent.result = Err(DeviceError::NoMemory);
                }
                return;
            };
            self.write_rows(id, &parity, next, &zeros);
            next = end;
        }
    }

    /// A row's new parts, or none, and its parity.
    pub(in crate::raid) fn begin_row(&mut self, parent: u64, row: Row) {
        self.begin_row_without(parent, row, 0);
    }

    /// The same, where these members are known to have theirs wrong.
    pub(super) fn begin_row_without(&mut self, parent: u64, row: Row, corrupt: u64) {
        let task = self.task(parent, State::Over);
        if let Some(task) = self.tasks.get_mut(task) {
            (task.avoid, task.corrupt) = (corrupt, corrupt);
        }
        self.rows_waiting.push_back((task, row));
        self.begin_rows();
    }

    /// Some at a time: each needs buffers.
    pub(in crate::raid) fn begin_rows(&mut self) {
        while self.rows < ROWS_MAX
            && let Some((id, row)) = self.rows_waiting.pop_front()
        {
            self.rows += 1;
            if let Some(task) = self.tasks.get_mut(id) {
                task.is_row = true;
            }
            self.gather(id, row);
        }
    }

    /// A row is cut into columns of a unit each: of each, something else may be lost.
    fn gather_units(&mut self, id: u64, row: &Row) {
        let Some(parent) = self.tasks.get_mut(id).map(|task| task.parent) else { return };
        let unit = self.geometry.unit_bytes;
        let units = (row.from..row.to).step_by(unit as usize).filter_map(|from| row.columns(from, from + unit));
        units.for_each(|columns| self.begin_row(parent, columns));
        self.end(id, Ok(()));
    }

    /// Too many of a row have their bytes wrong, or not at all: they are noted as lost, and are
    /// zeros from now on.
    fn lose(&mut self, id: u64, mut row: Row, parity: &Parity) {
        let Some((avoid, corrupt)) = self.tasks.get_mut(id).map(|task| (task.avoid, task.corrupt)) else { return };
        let failing = avoid & !corrupt;
        let is_settled = self.is_trusted(row.number * parity.row_bytes(), parity.row_bytes());
        if failing != 0 && !is_settled && self.members.are_all_current() && self.is_enough_without(failing) {
            // What a crash left cannot be settled with it, and must not wait for it.
            (0..self.members.len()).filter(|one| failing & 1 << one != 0).for_each(|one| self.set_missing(one));
            return self.gather(id, row);
        }
        if failing != 0 || corrupt == 0 {
            return self.end(id, Err(if corrupt == 0 { DeviceError::Failed } else { DeviceError::Corrupt }));
        }
        if row.to - row.from > self.geometry.unit_bytes {
            return self.gather_units(id, &row);
        }
        let of = |stripe: usize| parity.member_of(row.number, stripe);
        let lacks = |stripe: &usize| corrupt & 1 << of(*stripe) != 0 || !self.members.is_current(of(*stripe));
        let lost: Vec<usize> =
            (0..parity.members() - 1).filter(lacks).filter(|stripe| !row.is_whole(*stripe)).collect();
        let members = lost.iter().fold(0, |bits, stripe| bits | 1 << of(*stripe));
        let (at, unit) = (row.number * parity.stripe() + row.from, row.to - row.from);
        // There is nothing to be read of whom it is written.
        if lost.is_empty() || !self.lost.lose(members, at, unit) || !self.note_lost() {
            return self.end(id, Err(DeviceError::Corrupt));
        }
        match self.add_zeros(&mut row, &lost) {
            true => self.gather(id, row),
            false => self.end(id, Err(DeviceError::NoMemory)),
        }
    }

    fn add_zeros(&mut self, row: &mut Row, stripes: &[usize]) -> bool {
        let Some(zeros) = self.zeros((row.to - row.from) as usize) else { return false };
        row.parts.extend(stripes.iter().map(|stripe| Part { stripe: *stripe, from: row.from, bytes: zeros.clone() }));
        true
    }

    /// Reads what a row's parity needs.
    pub(super) fn gather(&mut self, id: u64, mut row: Row) {
        let Layout::Parity(parity) = self.layout.clone() else { return };
        let Some(avoid) = self.tasks.get_mut(id).map(|task| task.avoid) else { return };
        let (at, length) = (row.number * parity.stripe() + row.from, row.to - row.from);
        // Of a member that is missing: nothing but its own bytes says what it has there, and those count once it is back.
        let lacks = |member: usize| !self.members.is_current(member) && self.lost.lacks(member, at, length);
        let keeps = |member: usize| self.members.is_resyncing(member) && self.lost.keeps(member, at, length);
        let of = |stripe: usize| parity.member_of(row.number, stripe);
        let lacking: Vec<usize> = (0..parity.members() - 1).filter(|stripe| lacks(of(*stripe))).collect();
        if !lacking.is_empty() && length > self.geometry.unit_bytes {
            return self.gather_units(id, &row);
        }
        let are_zeros = |stripe: &usize| !keeps(of(*stripe)) && !row.is_whole(*stripe);
        let zeros: Vec<usize> = lacking.iter().copied().filter(are_zeros).collect();
        if !zeros.is_empty() && !self.add_zeros(&mut row, &zeros) {
            return self.end(id, Err(DeviceError::NoMemory));
        }
        let keeps = |member: usize| self.members.is_resyncing(member) && self.lost.keeps(member, at, length);
        let trusted = lacking.is_empty() && self.is_trusted(row.number * parity.row_bytes(), parity.row_bytes());
        let readable = |member: usize| {
            (self.members.is_readable(member) || keeps(member) && parity.parity_of(row.number) != member)
                && avoid & 1 << member == 0
        };
        let writable = |member: usize| self.members.is_writable(member);
        let Some(plan) = row.plan(&parity, trusted, readable, writable) else {
            return self.lose(id, row, &parity);
        };
        let sources = row.sources(plan, &parity, readable);
        let number = row.number;
        let mut buffers: Vec<Buffer> = Vec::new();
        for source in &sources {
            let Some(buffer) = self.scratch(source.length as usize) else {
                self.scratch.append(&mut buffers);
                return self.end(id, Err(DeviceError::NoMemory));
            };
            buffers.push(buffer);
        }
        if let Some(task) = self.tasks.get_mut(id) {
            task.state = State::Gather { row, plan, read: Vec::new() };
        }
        for (source, into) in sources.into_iter().zip(buffers) {
            let member = source.stripe.map_or(parity.parity_of(number), |stripe| parity.member_of(number, stripe));
            let work = Work::Read { at: number * parity.stripe() + source.from, length: source.length as usize, into };
            self.push(id, member, source, work);
        }
        self.advance_if_still(id);
    }

    /// What a row's parity needs is here.
    pub(super) fn put_row(&mut self, id: u64, row: &Row, plan: Plan, read: Vec<(Source, Buffer)>) {
        let Layout::Parity(parity) = self.layout.clone() else { return };
        let start = row.number * parity.stripe();
        let of = |part: &Part| (parity.member_of(row.number, part.stripe), start + part.from, part.bytes.clone());
        let mut writes: Writes = row.parts.iter().map(of).collect();
        let holder = parity.parity_of(row.number);
        if plan != Plan::WithoutParity {
            let length = (row.to - row.from) as usize;
            let Some(mut bytes) = self.scratch(length) else { return self.end(id, Err(DeviceError::NoMemory)) };
            row.parity(plan, parity.members() - 1, &read, &mut bytes);
            writes.push((holder, start + row.from, Bytes::prefix(bytes, length)));
        }
        read.into_iter().for_each(|(_, buffer)| self.put_back(buffer));
        // A stripe is computed that the member would have: it must not change in a crash.
        let is_hole = plan != Plan::WithoutParity
            && (0..parity.members()).any(|member| member != holder && !self.members.is_current(member));
        let has_journal = self.journal.as_ref().is_some_and(|journal| journal.places.count() > 0);
        if is_hole && has_journal && !mutant("volume-write-hole-open") {
            if let (Some(task), Some(journal)) = (self.tasks.get_mut(id), &mut self.journal) {
                task.state = State::Journal { writes };
                journal.waiting.push_back(id);
            }
            return;
        }
        self.plain_puts += 1;
        self.put(id, None, writes);
    }

    fn put(&mut self, id: u64, journaled: Option<u64>, writes: Writes) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        task.state = State::Put { journaled };
        let fua = match self.parents.get_mut(task.parent) {
            Some(Parent { work: ParentWork::Whole(Work::Write { fua, .. }), .. }) => *fua,
            _ => false,
        };
        // An entry may be replaced as soon as its row is written: that must be for good.
        let fua = fua || journaled.is_some();
        // It counts as written in the next life, too.
        let heals = |(member, at, from): &(usize, u64, Bytes)| self.lost.lacks(*member, *at, from.len() as u64);
        let fua = fua || (matches!(self.layout, Layout::Parity(_)) && writes.iter().any(heals));
        for (member, at, from) in writes {
            if self.members.is_writable(member) {
                self.push(id, member, NO_SOURCE, Work::Write { at, from, fua });
            }
        }
        self.advance_if_still(id);
    }

    /// Writes the next entry, after the one before.
    pub(in crate::raid) fn write_journal(&mut self) {
        if self.members.are_all_current() {
            // They waited for it while a member was missing.
            let waiting = self.journal.as_mut().map(|journal| std::mem::take(&mut journal.waiting));
            return waiting.into_iter().flatten().for_each(|id| self.put_unjournaled(id));
        }
        let (Some(journal), Some(intents)) = (&mut self.journal, &self.intents) else { return };
        let count = journal.places.count();
        let is_free = self.quiescing.is_empty()
            && journal.writing.is_none()
            && journal.busy.first().is_none_or(|oldest| journal.next - oldest < count);
        let Some(id) = (if is_free { journal.waiting.pop_front() } else { None }) else { return };
        let (sequence, epoch) = (journal.next, intents.epoch());
        let (place, length) = (journal.places.place(sequence), journal.places.entry_bytes());
        let buffer = self.scratch(length);
        let Some(Task { state: State::Journal { writes }, .. }) = self.tasks.get_mut(id) else { return };
        let Some(mut buffer) = buffer else { return self.end(id, Err(DeviceError::NoMemory)) };
        let whole = journal::write(&mut buffer[..length], epoch, sequence, writes);
        if let (Some(journal), Some(intents)) = (&mut self.journal, &mut self.intents) {
            journal.next += 1;
            journal.busy.insert(sequence);
            journal.writing = Some((sequence, id));
            let work = Work::Write { at: place, from: Bytes::prefix(buffer, whole), fua: true };
            intents.store.submit(&mut [Request { tag: sequence, work }].into());
        }
    }

    fn put_unjournaled(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        if let State::Journal { writes } = std::mem::replace(&mut task.state, State::Over) {
            self.plain_puts += 1;
            self.put(id, None, writes);
        }
    }

    pub(in crate::raid) fn journal_written(&mut self, tag: u64, work: Work, result: Result<(), DeviceError>) {
        let Some(journal) = &mut self.journal else { return };
        let Some((sequence, id)) = journal.writing.take_if(|(sequence, _)| *sequence == tag) else { return };
        if let Work::Write { from, .. } = work
            && let Ok(buffer) = from.into_buffer()
        {
            self.put_back(buffer);
        }
        let Some(task) = self.tasks.get_mut(id) else { return };
        let State::Journal { writes } = std::mem::replace(&mut task.state, State::Over) else { return };
        match result {
            Ok(()) => self.put(id, Some(sequence), writes),
            Err(error) => {
                if let Some(journal) = &mut self.journal {
                    journal.busy.remove(&sequence);
                }
                self.end(id, Err(error));
            }
        }
    }

    /// Carries out again what the journal has, and brings it to stable storage.
    pub(in crate::raid) fn replay(
        &mut self,
        intents: &mut Intents,
        places: Places,
        clock: &dyn Clock,
    ) -> Result<(), DeviceError> {
        let mut entries = BTreeMap::new();
        for place in 0..places.count() {
            let length = places.entry_bytes();
            let mut read = get(&mut *intents.store, clock, places.place(place), length)?;
            if let Some(entry) = journal::parse(&mut read[..length], intents.epoch()) {
                entries.insert(entry.sequence, (entry.writes, read));
            }
        }
        if mutant("volume-write-hole-open") {
            return Ok(());
        }
        let mut written = BTreeSet::new();
        for (writes, read) in entries.into_values() {
            for (member, at, range) in writes {
                let fits = member < self.members.len() && self.members.absent & 1 << member == 0;
                if fits && self.members.is_current(member) {
                    put(&mut *self.members.all[member].device, clock, at, &read[range])?;
                    written.insert(member);
                }
            }
        }
        Ok(())
    }
}

/// Rows that are written at once; more wait.
const ROWS_MAX: usize = 64;
