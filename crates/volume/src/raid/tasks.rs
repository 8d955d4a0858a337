//! Parts of requests: what is read and written of which member, and what is done when one fails.

use super::journal::Writes;
use super::row::{Part, Plan, Row, Source, xor};
use super::*;
use crate::intents::{get, put};
use crate::mutant::mutant;

/// A part of a request: of a mirror all of it, of RAID 5 one stripe that is read or one row that is written.
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
        self.members.all[member].queue.push_back(Request { tag, work });
    }

    /// Cuts a request into tasks.
    pub(super) fn begin(&mut self, id: u64) {
        let Some(parent) = self.parents.get_mut(id) else { return };
        if let Origin::Background(_) = parent.origin {
            return self.begin_task_of_background(id);
        }
        let Asked::Whole(work) = std::mem::replace(&mut parent.work, Asked::Nothing) else { return };
        // Until all of its tasks are there.
        parent.left = 1;
        let keep = |this: &mut Raid, work| {
            if let Some(parent) = this.parents.get_mut(id) {
                parent.work = Asked::Whole(work);
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

    fn begin_read(&mut self, id: u64, at: u64, length: usize, into: Buffer) {
        let mut pieces = Vec::new();
        self.layout.cut(at, length as u64, &mut pieces);
        if let Some(parent) = self.parents.get_mut(id) {
            parent.work = Asked::Read { at, length, parts: BTreeMap::new() };
        }
        self.read_pieces(id, 0, pieces, into);
    }

    /// Pieces of a READ one behind the other, of which the first is `part`.
    fn read_pieces(&mut self, id: u64, mut part: u64, pieces: Vec<Piece>, into: Buffer) {
        let (mut rest, last) = (Some(into), pieces.len() - 1);
        for (number, piece) in pieces.into_iter().enumerate() {
            let Some(buffer) = rest.take() else { break };
            let into = if number == last {
                buffer
            } else {
                let (into, behind) = buffer.split_at(piece.length as usize);
                rest = Some(behind);
                into
            };
            let task = self.task(id, State::Read { part, piece, into: None });
            self.read(task, part, piece, into, DeviceError::Failed);
            part += piece.length;
        }
    }

    /// No member has all of a part: each unit is asked for by itself, or the part fails.
    fn read_units(&mut self, id: u64, part: u64, piece: Piece, into: Buffer, error: DeviceError) {
        let Some((parent, corrupt)) = self.tasks.get_mut(id).map(|task| (task.parent, task.corrupt)) else { return };
        let unit = self.geometry.unit_bytes;
        let lacks = match self.layout {
            Layout::Parity(_) => self.lost.lacks(piece.member, piece.at, piece.length),
            _ => self.lost.lacking(piece.at, piece.length) != 0,
        };
        if (corrupt == 0 && !lacks) || piece.length <= unit {
            self.deliver(id, part, into);
            return self.end(id, Err(error));
        }
        let units =
            (0..piece.length / unit).map(|number| Piece { at: piece.at + number * unit, length: unit, ..piece });
        self.read_pieces(parent, part, units.collect(), into);
        self.end(id, Ok(()));
    }

    /// Every member looks at what it has of a range. The parity of a row counts to its first stripe.
    fn begin_check(&mut self, id: u64, at: u64, length: u64) {
        let mut pieces = Vec::new();
        match self.layout.clone() {
            Layout::Parity(parity) => {
                self.layout.cut(at, length, &mut pieces);
                let with_parity = pieces.iter().flat_map(|piece| {
                    let row = piece.at / parity.stripe();
                    let holder = (parity.member_of(row, 0) == piece.member).then(|| parity.parity_of(row));
                    [Some(piece.member), holder].into_iter().flatten().map(|member| (vec![member], *piece))
                });
                for (members, piece) in with_parity.collect::<Vec<_>>() {
                    self.check(id, &members, piece.at, piece.length);
                }
            }
            _ => self.check(id, &(0..self.members.len()).collect::<Vec<_>>(), at, length),
        }
    }

    fn check(&mut self, id: u64, members: &[usize], at: u64, length: u64) {
        self.check_bits(id, members.iter().fold(0, |bits, member| bits | 1 << member), at, length);
    }

    fn check_bits(&mut self, id: u64, members: u64, at: u64, length: u64) {
        let task = self.task(id, State::Check { members, at, length });
        let looks = |member: &usize| members & 1 << member != 0 && self.members.is_current(*member);
        for member in (0..self.members.len()).filter(looks).collect::<Vec<_>>() {
            self.push(task, member, NO_SOURCE, Work::Check { at, length, mend: false, wrong: 0 });
        }
        self.advance_if_still(task);
    }

    /// They have looked: what is wrong is written again from what is right, where that is wanted. Unit by unit: each may
    /// be right on another member.
    fn checked(&mut self, id: u64, members: u64, (at, length): (u64, u64), bad: u64) {
        let Some(parent) = self.tasks.get_mut(id).map(|task| task.parent) else { return };
        let lost = match self.layout {
            // A parity is found again.
            Layout::Parity(_) => members & self.lost.lacking(at, length) & !(1 << self.holder(at)),
            _ => self.lost.lacking(at, length),
        };
        let bad = bad | lost;
        let mut mends = false;
        if let Some(Parent { work: Asked::Whole(Work::Check { mend, wrong, .. }), .. }) = self.parents.get_mut(parent) {
            *wrong |= bad;
            mends = *mend && bad != 0;
        }
        let unit = self.geometry.unit_bytes;
        let (of, long) = self.volume_range(at, length);
        if mends && length > unit {
            (at..at + length).step_by(unit as usize).for_each(|at| self.check_bits(parent, members, at, unit));
        } else if mends && (matches!(self.layout, Layout::Mirror(_)) || lost == 0 && self.is_trusted(of, long)) {
            self.copy(parent, bad, at, length);
        } else if mends {
            return self.end(id, Err(DeviceError::Corrupt));
        }
        self.end(id, Ok(()));
    }

    /// Reads a part from a member that was not tried; from all others, where there is a parity. `error` is of the last.
    fn read(&mut self, id: u64, part: u64, piece: Piece, into: Buffer, error: DeviceError) {
        let Some(avoid) = self.tasks.get_mut(id).map(|task| task.avoid) else { return };
        let is_parity = matches!(self.layout, Layout::Parity(_));
        let is_lost = is_parity && self.lost.lacks(piece.member, piece.at, piece.length);
        if is_lost && !mutant("volume-lost-unit-read") {
            return self.read_units(id, part, piece, into, DeviceError::Corrupt);
        }
        // What others of the row lack counts as what they have.
        let lacking = if is_parity { 0 } else { self.lost.lacking(piece.at, piece.length) };
        let may = |this: &Raid, member: usize| this.members.is_readable(member) && (avoid | lacking) & 1 << member == 0;
        let side = match &self.layout {
            Layout::Parity(_) => may(self, piece.member).then_some(piece.member),
            // What a crash left may differ: all READs must agree.
            _ if self.is_unsettled(piece.at, piece.length) => (0..self.members.len()).find(|side| may(self, *side)),
            _ => {
                self.turn = self.turn.wrapping_add(1);
                let count = self.members.len();
                (0..count).map(|i| (self.turn + i) % count).find(|side| may(self, *side))
            }
        };
        if let Some(member) = side {
            if let Some(task) = self.tasks.get_mut(id) {
                task.state = State::Read { part, piece, into: None };
            }
            return self.push(id, member, NO_SOURCE, Work::Read { at: piece.at, length: piece.length as usize, into });
        }
        let (at, length) = self.volume_range(piece.at, piece.length);
        let others = (0..self.members.len()).filter(|member| *member != piece.member);
        let others: Vec<usize> = others.filter(|member| may(self, *member)).collect();
        let fits = is_parity && others.len() + 1 == self.members.len();
        if !fits || !self.is_trusted(at, length) {
            let error = if fits || lacking != 0 { DeviceError::Corrupt } else { error };
            return self.read_units(id, part, piece, into, error);
        }
        if let Some(task) = self.tasks.get_mut(id) {
            task.state = State::Rebuild { part, piece, into, read: Vec::new() };
        }
        self.gather_from(id, &others, piece.at, piece.length);
    }

    /// The same bytes of several members, into buffers of our own.
    fn gather_from(&mut self, id: u64, members: &[usize], at: u64, length: u64) {
        let mut buffers: Vec<Buffer> = members.iter().filter_map(|_| self.scratch(length as usize)).collect();
        if buffers.len() < members.len() {
            if let Some(task) = self.tasks.get_mut(id) {
                task.error = Some(DeviceError::NoMemory);
            }
            self.scratch.append(&mut buffers);
            return self.advance(id);
        }
        for (member, into) in members.iter().zip(buffers) {
            self.push(id, *member, NO_SOURCE, Work::Read { at, length: length as usize, into });
        }
    }

    /// Rows of the volume that lie at a member's bytes.
    pub(super) fn volume_range(&self, at: u64, length: u64) -> (u64, u64) {
        let Layout::Parity(parity) = &self.layout else { return (at, length) };
        let (from, to) = (at / parity.stripe(), (at + length).div_ceil(parity.stripe()));
        (from * parity.row_bytes(), (to - from) * parity.row_bytes())
    }

    /// A part of a READ's buffer is back.
    fn deliver(&mut self, task: u64, part: u64, into: Buffer) {
        let Some(parent) = self.tasks.get_mut(task).map(|task| task.parent) else { return };
        if let Some(Parent { work: Asked::Read { parts, .. }, .. }) = self.parents.get_mut(parent) {
            parts.insert(part, into);
        }
    }

    fn write_rows(&mut self, id: u64, parity: &Parity, at: u64, from: &Bytes) {
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
    fn begin_zeros(&mut self, id: u64, at: u64, length: u64, work: impl Fn(u64, u64) -> Work) {
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

    /// A row's new parts, or none, and its parity.
    pub(super) fn begin_row(&mut self, parent: u64, row: Row) {
        self.begin_row_without(parent, row, 0);
    }

    /// The same, where these members are known to have theirs wrong.
    fn begin_row_without(&mut self, parent: u64, row: Row, corrupt: u64) {
        let task = self.task(parent, State::Over);
        if let Some(task) = self.tasks.get_mut(task) {
            (task.avoid, task.corrupt) = (corrupt, corrupt);
        }
        self.rows_waiting.push_back((task, row));
        self.begin_rows();
    }

    /// Some at a time: each needs buffers.
    pub(super) fn begin_rows(&mut self) {
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

    /// Which member has the parity of the row at a member's byte.
    pub(super) fn holder(&self, at: u64) -> usize {
        let Layout::Parity(parity) = &self.layout else { return usize::MAX };
        parity.parity_of(at / parity.stripe())
    }

    /// A row is cut into columns of a unit each: of each, something else may be lost.
    fn gather_units(&mut self, id: u64, row: &Row) {
        let Some(parent) = self.tasks.get_mut(id).map(|task| task.parent) else { return };
        let unit = self.geometry.unit_bytes;
        let units = (row.from..row.to).step_by(unit as usize).filter_map(|from| row.columns(from, from + unit));
        units.for_each(|columns| self.begin_row(parent, columns));
        self.end(id, Ok(()));
    }

    /// Too many of a row have their bytes wrong, or not at all: they are noted as lost, and are zeros from now on.
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
    fn gather(&mut self, id: u64, mut row: Row) {
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
    fn put_row(&mut self, id: u64, row: &Row, plan: Plan, read: Vec<(Source, Buffer)>) {
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
            Some(Parent { work: Asked::Whole(Work::Write { fua, .. }), .. }) => *fua,
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
    pub(super) fn write_journal(&mut self) {
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

    pub(super) fn journal_written(&mut self, tag: u64, work: Work, result: Result<(), DeviceError>) {
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
    pub(super) fn replay(
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

    /// A part of a READ is here. Members that had it wrong get it again.
    fn heal(&mut self, id: u64, part: u64, piece: Piece, into: Buffer, corrupt: u64) {
        let length = piece.length as usize;
        let again = if corrupt == 0 { None } else { self.scratch(length) };
        let again = again.map(|mut again| {
            again[..length].copy_from_slice(&into[..length]);
            Bytes::prefix(again, length)
        });
        self.deliver(id, part, into);
        let Some(from) = again else { return self.end(id, Ok(())) };
        if let Some(task) = self.tasks.get_mut(id) {
            task.state = State::Heal;
        }
        for member in (0..self.members.len()).filter(|member| corrupt & 1 << member != 0) {
            self.push(id, member, NO_SOURCE, Work::Write { at: piece.at, from: from.clone(), fua: false });
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

    /// Reads a member's bytes for those that have missed them: of a mirror from another side, else from all others.
    pub(super) fn copy(&mut self, parent: u64, targets: u64, at: u64, length: u64) {
        let id = self.task(parent, State::Copy { targets, at, length, read: Vec::new() });
        let is_mirror = matches!(self.layout, Layout::Mirror(_));
        if !is_mirror && self.keeps_any(targets, at, length) {
            return self.copy_units(id, targets, at, length);
        }
        let lacking = if is_mirror { self.lost.lacking(at, length) } else { 0 };
        let sources = (0..self.members.len())
            .filter(|member| (targets | lacking) & 1 << member == 0 && self.members.is_current(*member));
        let sources: Vec<usize> = match &self.layout {
            Layout::Parity(_) => sources.collect(),
            _ => sources.take(1).collect(),
        };
        let fits = !sources.is_empty() && (is_mirror || sources.len() + 1 == self.members.len());
        if !fits && lacking & !targets != 0 {
            return self.copy_units(id, targets, at, length);
        }
        if !fits {
            let error = if lacking == 0 { DeviceError::Failed } else { DeviceError::Corrupt };
            return self.end(id, Err(error));
        }
        self.gather_from(id, &sources, at, length);
    }

    fn keeps_any(&self, targets: u64, at: u64, length: u64) -> bool {
        (0..self.members.len()).any(|member| targets & 1 << member != 0 && self.lost.keeps(member, at, length))
    }

    /// Not all of a range can be copied: each unit is by itself. Of what nobody has, a member that is resynced has nothing
    /// either, and what a crash left may stay as it is: no READ finds it. A unit of RAID 5 is found by its row.
    fn copy_units(&mut self, id: u64, targets: u64, at: u64, length: u64) {
        let Some((parent, corrupt)) = self.tasks.get_mut(id).map(|task| (task.parent, task.corrupt)) else { return };
        let unit = self.geometry.unit_bytes;
        if length > unit {
            (at..at + length).step_by(unit as usize).for_each(|at| self.copy(parent, targets, at, unit));
            return self.end(id, Ok(()));
        }
        let origin = self.parents.get_mut(parent).map(|parent| &parent.origin);
        let result = match origin {
            Some(Origin::Background(Background::Copy { .. })) if let Layout::Parity(parity) = &self.layout => {
                let (number, from) = (at / parity.stripe(), at % parity.stripe());
                let row = Row { number, from, to: from + length, parts: Vec::new() };
                self.begin_row_without(parent, row, corrupt);
                Ok(())
            }
            Some(Origin::Background(Background::Settle { .. })) => Ok(()),
            Some(Origin::Background(Background::Copy { .. })) if self.lost.lose(targets, at, unit) => Ok(()),
            _ => Err(DeviceError::Corrupt),
        };
        self.end(id, result);
    }

    /// A mirror's side could not be read: another one is copied, over what the first had wrong, too.
    fn copy_from_another(&mut self, id: u64, targets: u64, at: u64, length: u64, error: DeviceError) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let (avoid, corrupt) = (task.avoid, task.corrupt);
        if let Layout::Parity(_) = self.layout {
            let is_wrong = error == DeviceError::Corrupt;
            return if is_wrong { self.copy_units(id, targets, at, length) } else { self.end(id, Err(error)) };
        }
        let is_settling = |this: &Raid, parent: u64| {
            let parent = this.parents.get(parent);
            matches!(parent, Some(Parent { origin: Origin::Background(Background::Settle { .. }), .. }))
        };
        // Of a resync the member is no source: it has missed writes. Of what is mended, it is what is wrong.
        let barred =
            if is_settling(self, self.tasks.get(id).map_or(0, |task| task.parent)) { avoid } else { avoid | targets };
        let barred = barred | self.lost.lacking(at, length);
        let next = (0..self.members.len()).find(|member| self.members.is_current(*member) && barred & 1 << member == 0);
        if next.is_none() && error == DeviceError::Corrupt {
            return self.copy_units(id, targets, at, length);
        }
        let Some(source) = next else { return self.end(id, Err(error)) };
        let targets = (targets | corrupt) & !(1 << source);
        if let Some(task) = self.tasks.get_mut(id) {
            task.state = State::Copy { targets, at, length, read: Vec::new() };
        }
        self.gather_from(id, &[source], at, length);
    }

    fn put_copy(&mut self, id: u64, targets: u64, at: u64, length: u64, read: Vec<Buffer>) {
        let whole = read.into_iter().reduce(|mut first, other| {
            xor(&mut first[..length as usize], &other[..length as usize]);
            self.put_back(other);
            first
        });
        let Some(whole) = whole else { return self.end(id, Err(DeviceError::Failed)) };
        let from = Bytes::prefix(whole, length as usize);
        if let Some(task) = self.tasks.get_mut(id) {
            task.state = State::Put { journaled: None };
        }
        self.plain_puts += 1;
        for member in (0..self.members.len()).filter(|member| targets & 1 << member != 0).collect::<Vec<_>>() {
            self.push(id, member, NO_SOURCE, Work::Write { at, from: from.clone(), fua: false });
        }
        self.advance_if_still(id);
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
/// Rows that are written at once; more wait.
const ROWS_MAX: usize = 64;
