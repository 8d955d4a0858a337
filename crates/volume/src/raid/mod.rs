//! A device over devices of which one may be lost: RAID 1 and RAID 5.
//!
//! | in the order of a request | file |
//! |---|---|
//! | which members have all that was written | `members` |
//! | regions that are written, noted before they are | [`intents`](crate::intents) |
//! | one row's parity; pure | `row` |
//! | a row's writes while a member is missing, noted before they are carried out | `journal` |
//! | parts of requests, from the first read to the last write | `tasks` |
//! | what is done unasked: resyncing, and letting go of regions | `background` |
//! | units that nobody has right | `lost` |
//!
//! Requests that overlap and of which one writes are never under way together; of RAID 5, none that
//! write a part of the same row. A member that misses a write is noted as stale before the write is
//! given back, and is not read from then on. It is resynced while the array is used.

mod background;
mod hostile;
mod journal;
mod lost;
mod members;
mod row;
mod tasks;

#[doc(hidden)]
pub use hostile::{fuzz_intents, fuzz_journal, seeds_intents, seeds_journal};
pub use lost::LostRange;
pub use members::{Health, MemberState};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use overside_memory::{Buffer, Bytes};
use overside_verbs::watch::Watch;
use overside_verbs::{Clock, VerbsError};

use crate::array::ArrayError;
use crate::below::watch_all;
use crate::device::{Completion, Device, DeviceError, Geometry, Hint, Request, Work};
use crate::intents::{self, Intents};
use crate::layout::{Layout, LayoutError, Mirror, Parity, Piece};
use crate::overlaps::Overlaps;
use crate::slots::Slots;
use background::{Background, Resync};
use journal::Places;
use lost::Lost;
use members::{MEMBERS_MAX, Members, OnChange};
use row::Row;
use tasks::{Child, Journal, Task};

/// A volume of several devices, each of which may be lost.
#[derive(Debug)]
pub struct Raid {
    layout: Layout,
    geometry: Geometry,
    members: Members,
    parents: Slots<Parent>,
    tasks: Slots<Task>,
    children: Slots<Child>,
    overlaps: Overlaps,
    admitted: Vec<u64>,
    /// Requests whose regions are not noted yet.
    claiming: VecDeque<u64>,
    /// Which side of a mirror reads next.
    turn: usize,
    watch: Option<Watch>,
    on_change: OnChange,
    lost: Lost,
    /// Members whose staleness is still to be noted, as bits; and requests that wait for it.
    unnoted: u64,
    quiescing: Vec<u64>,
    /// What was written before a member went comes to stable storage before that is noted.
    quiet: Quiet,
    /// Rows of RAID 5 that are written now, and those that wait.
    rows: usize,
    rows_waiting: VecDeque<(u64, Row)>,
    /// Writes under way that no journal has.
    plain_puts: usize,
    intents: Option<Intents>,
    journal: Option<Journal>,
    /// Regions whose members may differ.
    unsettled: BTreeSet<usize>,
    clock: Option<Arc<dyn Clock>>,
    /// The one thing that is done unasked.
    background: Option<u64>,
    resync: Option<Resync>,
    /// How far the first unsettled region is settled.
    settled_to: u64,
    retry_at: Option<Instant>,
    clean_at: Option<Instant>,
    /// Hints that nothing is needed any more.
    closing: Vec<Request>,
    /// Regions that were written since the flush before letting go of regions.
    touched: BTreeSet<usize>,
    /// Buffers to be used again.
    scratch: Vec<Buffer>,
    zeros: Option<Bytes>,
    done: Vec<Completion>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quiet {
    No,
    Flushes,
    Yes,
}

#[derive(Debug)]
struct Parent {
    origin: Origin,
    /// As it came; of a READ under way, with its buffer in `parts`.
    work: ParentWork,
    /// Tasks.
    left: usize,
    result: Result<(), DeviceError>,
    /// Members that have missed it, as bits.
    failed: u64,
    /// It changes what members have.
    writes: bool,
    /// It is in the overlaps.
    locked: bool,
    /// Of a write, its regions are entered.
    entered: Option<(u64, u64)>,
}

#[derive(Debug)]
enum Origin {
    Caller(u64),
    Background(Background),
}

#[derive(Debug)]
enum ParentWork {
    Read {
        at: u64,
        length: usize,
        /// By first bytes in the request.
        parts: BTreeMap<u64, Buffer>,
    },
    Whole(Work),
    /// What is done unasked, or while a request is being cut.
    Nothing,
}

impl Raid {
    /// RAID 1: each has everything.
    ///
    /// # Errors
    /// When they make no such volume, or the system has no descriptor.
    pub fn mirror(members: Vec<Box<dyn Device>>) -> Result<Raid, ArrayError> {
        Self::over(members, |lengths, unit| Mirror::new(lengths, unit).map(Layout::Mirror))
    }

    /// RAID 5, with so many bytes on a member before the next one's turn.
    ///
    /// # Errors
    /// As [`mirror`](Self::mirror).
    pub fn parity(members: Vec<Box<dyn Device>>, stripe: u64) -> Result<Raid, ArrayError> {
        Self::over(members, |lengths, unit| Parity::new(lengths, stripe, unit).map(Layout::Parity))
    }

    fn over(
        members: Vec<Box<dyn Device>>,
        layout: impl FnOnce(&[u64], u64) -> Result<Layout, LayoutError>,
    ) -> Result<Raid, ArrayError> {
        let of: Vec<Geometry> = members.iter().map(|member| member.geometry()).collect();
        if of.len() > MEMBERS_MAX {
            return Err(LayoutError::TooLong.into());
        }
        let unit_bytes = of.iter().map(|geometry| geometry.unit_bytes).max().unwrap_or(1);
        let lengths: Vec<u64> = of.iter().map(|geometry| geometry.bytes).collect();
        let layout = layout(&lengths, unit_bytes)?;
        let read_only = of.iter().any(|geometry| geometry.read_only);
        let mut raid = Raid {
            geometry: Geometry { bytes: layout.bytes(), unit_bytes, read_only },
            layout,
            members: Members::new(members),
            parents: Slots::default(),
            tasks: Slots::default(),
            children: Slots::default(),
            overlaps: Overlaps::default(),
            admitted: Vec::new(),
            claiming: VecDeque::new(),
            turn: 0,
            watch: None,
            on_change: OnChange(Box::new(|_, _| true)),
            lost: Lost::default(),
            unnoted: 0,
            quiescing: Vec::new(),
            quiet: Quiet::No,
            rows: 0,
            rows_waiting: VecDeque::new(),
            plain_puts: 0,
            intents: None,
            journal: None,
            unsettled: BTreeSet::new(),
            clock: None,
            background: None,
            resync: None,
            settled_to: 0,
            retry_at: None,
            clean_at: None,
            closing: Vec::new(),
            touched: BTreeSet::new(),
            scratch: Vec::new(),
            zeros: None,
            done: Vec::new(),
        };
        raid.watch_all()?;
        Ok(raid)
    }

    fn watch_all(&mut self) -> Result<(), VerbsError> {
        let store = self.intents.as_ref().map(|intents| &intents.store);
        let devices = self.members.all.iter().map(|member| &member.device).chain(store);
        self.watch = watch_all(devices.map(|device| &**device))?;
        Ok(())
    }

    /// Calls `note` with a member that has missed a write before anybody hears that the write is
    /// done, and when it has been resynced before it is read. Where it says no, the write fails, or
    /// the member stays stale, and it is asked again. It may wait for a disk: the only time that an
    /// array does.
    pub fn on_change(&mut self, note: impl FnMut(usize, MemberState) -> bool + Send + 'static) {
        self.on_change = OnChange(Box::new(note));
    }

    /// Calls `note` with what members lack that nobody has right, before such a member is current
    /// and before a row of a missing one is written, and when that has changed. As
    /// [`on_change`](Self::on_change). It must be set before [`with_intents`](Self::with_intents),
    /// which may find that a crash has left such rows.
    pub fn on_lost(&mut self, note: impl FnMut(&BTreeSet<LostRange>) -> bool + Send + 'static) {
        self.lost.on_change(note);
    }

    /// What [`on_lost`](Self::on_lost) noted last in an earlier life.
    pub fn set_lost(&mut self, ranges: &BTreeSet<LostRange>) {
        self.lost.set(ranges);
        self.tell_lost();
    }

    /// Bytes of the volume that a member lacks: a parity is found again.
    fn lost_bytes(&self, member: usize) -> u64 {
        let bytes = |at: u64, length: u64| match &self.layout {
            Layout::Parity(parity) => parity.data_before(member, at + length) - parity.data_before(member, at),
            _ => length,
        };
        self.lost.runs_of(member).map(|(at, length)| bytes(at, length)).sum()
    }

    /// Who asks how the members stand hears what is lost, too.
    fn tell_lost(&self) {
        (0..self.members.len()).for_each(|member| self.members.health.set_lost(member, self.lost_bytes(member)));
    }

    /// Notes for good what is lost; whether it could.
    fn note_lost(&mut self) -> bool {
        let noted = self.lost.noted();
        self.tell_lost();
        noted
    }

    /// A member misses what is written from now on. That is noted before anybody hears of such a
    /// write.
    fn set_missing(&mut self, member: usize) {
        self.members.set_stale(member);
        self.unnoted |= 1 << member;
        if let Layout::Parity(_) = self.layout {
            // What a crash left was to be settled with it.
            std::mem::take(&mut self.unsettled).into_iter().for_each(|region| self.tear(member, region));
            self.members.health.set_unsettled(0);
            self.settled_to = 0;
        }
    }

    /// A member is missing while a region's parity may not be that of its stripes: nobody can say
    /// what it has there.
    fn tear(&mut self, member: usize, region: usize) {
        let (Layout::Parity(parity), Some(intents)) = (&self.layout, &self.intents) else { return };
        let (at, length) = intents.range(region);
        let (from, to) = (at / parity.row_bytes(), (at + length).div_ceil(parity.row_bytes()));
        // Rows whose parity the member has, too: no READ asks for that, and runs stay long.
        self.lost.tear(member, from * parity.stripe(), (to - from) * parity.stripe());
    }

    /// A member is known to have missed a write. It is resynced, where there is a
    /// [clock](Self::with_clock).
    pub fn set_stale(&mut self, member: usize) {
        if member < self.members.len() {
            self.members.set_stale(member);
        }
    }

    /// There is nothing in a member's place: it stays stale.
    pub fn set_absent(&mut self, member: usize) {
        self.set_stale(member);
        self.members.absent |= 1 << member;
    }

    /// With time, stale members are resynced.
    pub fn with_clock(&mut self, clock: Arc<dyn Clock>) {
        self.clock = Some(clock);
    }

    /// How long a store for [`with_intents`](Self::with_intents) must be.
    pub fn store_bytes(&self) -> u64 {
        Places::store_bytes(self.row_bytes_of_all())
    }

    /// Makes an empty store, for a new volume.
    ///
    /// # Errors
    /// Why it cannot be written.
    pub fn format_store(&self, store: &mut dyn Device, clock: &dyn Clock) -> Result<(), DeviceError> {
        Intents::format(store, clock, self.geometry.bytes, self.row_bytes())
    }

    /// Notes in `store` which regions are written, before they are. What the last life left there
    /// is settled first, or while the array is used. Members that were stale in that life must have
    /// been named, and `absent` ones that were not: while a row's member is missing that was there,
    /// what a crash left of it is [lost](Self::on_lost).
    ///
    /// # Errors
    /// Why the store, or a member, cannot be read or written; or what is lost cannot be noted.
    pub fn with_intents(
        &mut self,
        store: Box<dyn Device>,
        clock: Arc<dyn Clock>,
        absent: u64,
    ) -> Result<(), DeviceError> {
        let (mut intents, written) = Intents::open(store, &*clock, self.geometry.bytes, self.row_bytes())?;
        let was_degraded = self.members.stale() & !absent != 0;
        let places = Places::new(intents.store.geometry().bytes, self.row_bytes_of_all());
        let is_parity = matches!(self.layout, Layout::Parity(_));
        let mut torn = intents.take_torn();
        if is_parity {
            self.replay(&mut intents, places, &*clock)?;
            self.journal = Some(Journal::new(places));
        }
        if is_parity && self.members.stale() != 0 {
            // In a life without a member, the journal had what was under way.
            if !was_degraded {
                torn.extend(&written);
            }
        } else if !crate::mutant::mutant("volume-write-hole-open") {
            self.unsettled.clone_from(&written);
            self.members.health.set_unsettled(written.len());
        }
        self.intents = Some(intents);
        (0..self.members.len()).filter(|one| self.members.is_current(*one)).for_each(|one| self.lost.found(one));
        if is_parity && self.members.stale() != 0 {
            let member = self.members.stale().trailing_zeros() as usize;
            torn.into_iter().for_each(|region| self.tear(member, region));
            // Before the store says that these regions are as all others.
            if !self.note_lost() {
                return Err(DeviceError::Failed);
            }
        }
        if let Some(intents) = &mut self.intents {
            intents.begin(&*clock)?;
        }
        self.clean_at = Some(clock.now());
        self.clock = Some(clock);
        self.watch_all().map_err(|_| DeviceError::Failed)
    }

    /// How each member stands.
    pub fn states(&self) -> impl Iterator<Item = MemberState> + '_ {
        (0..self.members.len()).map(|member| self.members.health.state(member))
    }

    /// The same, for as long as anybody wants to know.
    pub fn health(&self) -> Health {
        self.members.health.clone()
    }

    /// Whether all members have all that was written, and nothing is left to be settled.
    pub fn is_settled(&self) -> bool {
        self.members.are_all_current() && self.unsettled.is_empty() && self.background.is_none()
    }

    /// Bytes of the volume that are written together.
    fn row_bytes(&self) -> u64 {
        match &self.layout {
            Layout::Parity(parity) => parity.row_bytes(),
            _ => self.geometry.unit_bytes,
        }
    }

    /// Bytes of a row on all members.
    fn row_bytes_of_all(&self) -> u64 {
        match &self.layout {
            Layout::Parity(parity) => parity.row_bytes() + parity.stripe(),
            _ => 0,
        }
    }

    /// Whether one more may be lost than `but`, as bits.
    fn is_enough_without(&self, but: u64) -> bool {
        let left = (0..self.members.len()).filter(|member| self.members.is_current(*member) && but & 1 << member == 0);
        let needed = if let Layout::Parity(_) = self.layout { self.members.len() - 1 } else { 1 };
        left.count() >= needed
    }

    /// Whether a range lies in regions whose members may differ.
    fn is_unsettled(&self, at: u64, length: u64) -> bool {
        let Some(intents) = &self.intents else { return false };
        !self.unsettled.is_empty() && self.unsettled.range(intents.regions_of(at, length)).next().is_some()
    }

    /// Whether parity is that of its stripes.
    fn is_trusted(&self, at: u64, length: u64) -> bool {
        !self.is_unsettled(at, length)
    }

    fn take(&mut self, request: Request) {
        let checked = self.geometry.check(&request.work);
        if let Work::Hint { at: 0, length, hint: Hint::DontNeed } = request.work
            && length == self.geometry.bytes
        {
            // Nobody will use it for now: whoever opens it next has nothing to settle.
            return self.closing.push(request);
        }
        if checked.is_err() || matches!(request.work, Work::Hint { .. }) {
            return self.done.push(request.ended(checked));
        }
        let mends = matches!(request.work, Work::Check { mend: true, .. });
        let (range, writes) = (request.work.range(), request.work.writes() || mends);
        let parent = Parent {
            origin: Origin::Caller(request.tag),
            work: ParentWork::Whole(request.work),
            left: 0,
            result: Ok(()),
            failed: 0,
            writes,
            locked: range.is_some(),
            entered: None,
        };
        self.enter(parent, range);
    }

    /// A request or something unasked goes on at once, or waits for what it overlaps.
    fn enter(&mut self, parent: Parent, range: Option<(u64, u64)>) -> u64 {
        let writes = parent.writes;
        let id = self.parents.insert(parent);
        let admitted = range.is_none_or(|(at, length)| {
            let (at, length) = if writes { self.rows_of(at, length) } else { (at, length) };
            self.overlaps.enter(id, at, length, writes)
        });
        if admitted {
            self.admitted.push(id);
        }
        id
    }

    /// The whole rows that a range touches.
    fn rows_of(&self, at: u64, length: u64) -> (u64, u64) {
        let row = self.row_bytes();
        let from = at / row * row;
        (from, (at + length).next_multiple_of(row) - from)
    }

    /// Nothing that it overlaps is under way.
    fn admit(&mut self, id: u64) {
        let Some(parent) = self.parents.get_mut(id) else { return };
        let (Some(intents), ParentWork::Whole(work)) = (&mut self.intents, &parent.work) else { return self.begin(id) };
        let Some((at, length)) = work.range().filter(|_| work.writes()) else { return self.begin(id) };
        parent.entered = Some((at, length));
        intents.enter(at, length);
        self.touched.extend(intents.regions_of(at, length));
        if intents.is_ready(at, length) {
            return self.begin(id);
        }
        self.claiming.push_back(id);
    }

    /// Regions have been noted, or could not be.
    fn claimed(&mut self, result: Result<(), DeviceError>) {
        for id in std::mem::take(&mut self.claiming) {
            let entered = self.parents.get_mut(id).and_then(|parent| parent.entered);
            let ready = entered.zip(self.intents.as_ref()).is_none_or(|((at, length), i)| i.is_ready(at, length));
            match result {
                _ if ready => self.begin(id),
                Ok(()) => self.claiming.push_back(id),
                Err(error) => self.conclude(id, Err(error)),
            }
        }
    }

    /// All of a request's tasks have ended.
    fn finish(&mut self, id: u64) {
        let Some(parent) = self.parents.get_mut(id) else { return };
        let changes = parent.writes || matches!(parent.work, ParentWork::Whole(Work::Flush));
        if !changes {
            let result = parent.result;
            return self.conclude(id, result);
        }
        let failed = parent.failed & !self.members.stale();
        if failed != 0 && !self.is_enough_without(failed) {
            return self.conclude(id, Err(DeviceError::Failed));
        }
        for member in (0..self.members.len()).filter(|member| failed & 1 << member != 0) {
            self.set_missing(member);
        }
        let healed = self.heal_lost(id, failed);
        if self.unnoted != 0 {
            return self.quiescing.push(id);
        }
        let result = self.parents.get_mut(id).map_or(Ok(()), |parent| parent.result);
        self.conclude(id, if healed { result } else { result.and(Err(DeviceError::Failed)) });
    }

    /// What was lost and is written now is lost no more; whether that is noted. Of RAID 5 it must
    /// be before the write is given back, or the next life would not read it. A mirror's is read
    /// from another member meanwhile.
    fn heal_lost(&mut self, id: u64, failed: u64) -> bool {
        let Some(parent) = self.parents.get_mut(id).filter(|_| !self.lost.is_empty()) else { return true };
        let ParentWork::Whole(work) = &parent.work else { return true };
        let Some((at, length)) = work.range().filter(|_| parent.result.is_ok() && work.writes()) else { return true };
        if let Layout::Parity(_) = self.layout {
            let mut pieces = Vec::new();
            self.layout.cut(at, length, &mut pieces);
            for Piece { member, at, length } in pieces {
                let holder = self.holder(at);
                [member, holder].into_iter().for_each(|member| self.lost.written(member, at, length));
            }
            return self.note_lost();
        }
        let got = |member: &usize| failed & 1 << member == 0;
        (0..self.members.len()).filter(got).for_each(|member| self.lost.written(member, at, length));
        self.note_lost();
        true
    }

    /// Notes who is stale once no write is under way that the member's stripe is still needed for.
    fn note(&mut self) -> bool {
        if self.quiescing.is_empty() || self.plain_puts != 0 || self.quiet == Quiet::Flushes {
            return false;
        }
        let must_be_quiet = self.unnoted != 0 && matches!(self.layout, Layout::Parity(_));
        if must_be_quiet && self.journal.as_ref().is_some_and(|journal| !journal.busy.is_empty()) {
            // Their entries may be of an epoch that counts no more.
            return false;
        }
        if must_be_quiet && self.quiet != Quiet::Yes {
            // From now on no crash may change what the missing stripes are computed to be.
            if self.quiet == Quiet::No {
                self.quiet = Quiet::Flushes;
                self.start(Background::Quiet, None);
            }
            return true;
        }
        self.quiet = Quiet::No;
        // Before it is stale in the next life: what else is there then counts as computed.
        let may_be_stale = self.note_lost();
        for member in 0..self.members.len() {
            if self.unnoted & 1 << member != 0 && may_be_stale && (self.on_change.0)(member, MemberState::Stale) {
                self.unnoted &= !(1 << member);
            }
        }
        self.retry_at = self.clock.as_ref().map(|clock| clock.now() + background::RETRY);
        for id in std::mem::take(&mut self.quiescing) {
            let result = self.parents.get_mut(id).map_or(Ok(()), |parent| parent.result);
            self.conclude(id, if self.unnoted == 0 { result } else { Err(DeviceError::Failed) });
        }
        true
    }

    /// A request is given back.
    fn conclude(&mut self, id: u64, result: Result<(), DeviceError>) {
        let Some(parent) = self.parents.remove(id) else { return };
        let Parent { origin, work, locked, entered, .. } = parent;
        if locked {
            self.overlaps.leave(id, &mut self.admitted);
        }
        if let (Some((at, length)), Some(intents)) = (entered, &mut self.intents) {
            intents.leave(at, length);
            if result.is_err() && self.members.are_all_current() {
                // Some have it, some do not.
                self.unsettled.extend(intents.regions_of(at, length));
                self.members.health.set_unsettled(self.unsettled.len());
            }
            if self.clean_at.is_none() {
                self.clean_at = self.clock.as_ref().map(|clock| clock.now() + background::CLEAN_AFTER);
            }
        }
        let tag = match origin {
            Origin::Caller(tag) => tag,
            Origin::Background(what) => return self.background_ended(what, result),
        };
        let work = match work {
            ParentWork::Whole(work) => work,
            ParentWork::Read { at, length, parts } => {
                let whole = parts.into_values().reduce(|first, behind| {
                    first.join(behind).unwrap_or_else(|_| panic!("parts of one buffer came back in their order"))
                });
                let Some(into) = whole else { return };
                Work::Read { at, length, into }
            }
            ParentWork::Nothing => return,
        };
        self.done.push(Completion { tag, work, result });
    }

    /// Hands everybody what waits for them; whether anything has happened.
    fn turn(&mut self) -> bool {
        let mut found = false;
        while let Some(id) = self.admitted.pop() {
            found = true;
            self.admit(id);
        }
        found |= self.note();
        self.begin_rows();
        found |= self.begin_background();
        found |= self.close();
        for member in 0..self.members.len() {
            found |= self.members.all[member].turn();
            while let Some(completion) = self.members.all[member].ended() {
                self.child_ended(completion);
            }
        }
        found | self.turn_store()
    }

    /// The same of the store.
    fn turn_store(&mut self) -> bool {
        let Some(intents) = &mut self.intents else { return false };
        if let Some(result) = intents.turn() {
            self.claimed(result);
        }
        self.write_journal();
        let Some(intents) = &mut self.intents else { return false };
        let mut polled = Vec::new();
        intents.store.poll(&mut polled);
        let found = !polled.is_empty();
        for Completion { tag, work, result } in polled {
            if tag == intents::IMAGE {
                if let Some(intents) = &mut self.intents {
                    intents.written(result);
                }
                self.renewed();
                self.claimed(result);
            } else {
                self.journal_written(tag, work, result);
            }
        }
        found
    }
}

impl Device for Raid {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        while self.parents.len() < REQUESTS_MAX
            && let Some(request) = batch.pop_front()
        {
            self.take(request);
        }
        while self.turn() {}
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        // What ends may let others begin, and those may end at once.
        while self.turn() {}
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        let mut sleeps = self.done.is_empty() && self.admitted.is_empty();
        for member in &mut self.members.all {
            sleeps &= member.device.arm();
        }
        sleeps & self.intents.as_mut().is_none_or(|intents| intents.store.arm())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(|watch| watch.as_fd())
    }

    fn due(&self) -> Option<Instant> {
        let devices = self.members.all.iter().filter_map(|member| member.device.due());
        devices.chain(self.background_due()).min()
    }
}

/// Requests in flight; more wait with the caller.
const REQUESTS_MAX: usize = 1024;
