//! What is done unasked: members and regions are brought up to date, and regions that are let go
//! of.

use std::time::Duration;

use super::row::Row;
use super::*;

/// What is done now.
#[derive(Debug)]
pub(super) enum Background {
    /// A part of the first unsettled region, up to this byte of it.
    Settle { region: usize, to: u64 },
    /// A part of what a member has missed, up to this byte of the volume.
    Copy { to: u64 },
    /// What was copied comes to stable storage.
    Flush,
    /// What was written before a member went comes to stable storage.
    Quiet,
    /// Before regions are let go of.
    Clean { regions: BTreeSet<usize> },
}

/// A member gets what it has missed.
#[derive(Debug)]
pub(super) struct Resync {
    member: usize,
    /// Up to which byte of the volume.
    to: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Copies,
    Flushes,
    /// The journal must not be carried out again from now on.
    Renews,
}

impl Raid {
    /// Begins what is to be done; whether it did.
    pub(super) fn begin_background(&mut self) -> bool {
        if self.background.is_some() || self.clock.is_none() || self.geometry.read_only {
            return false;
        }
        let wants = !self.unsettled.is_empty() || self.members.stale() & !self.members.absent != 0;
        if !wants && self.clean_at.is_none() {
            return false;
        }
        let Some(now) = self.clock.as_ref().map(|clock| clock.now()) else { return false };
        if wants && self.retry_at.is_none_or(|at| at <= now) {
            self.retry_at = None;
            if self.bring_up_to_date(now) {
                return true;
            }
        }
        if self.clean_at.is_some_and(|at| at <= now) {
            self.clean_at = None;
            let Some(intents) = &self.intents else { return false };
            let regions = intents.idle(&self.unsettled);
            if !regions.is_empty() {
                self.touched.clear();
                self.start(Background::Clean { regions }, None);
                return true;
            }
        }
        false
    }

    /// Lets go of all regions, where that is wanted; whether it began to, or ended.
    pub(super) fn close(&mut self) -> bool {
        if self.closing.is_empty() || self.background.is_some() {
            return false;
        }
        let idle = self.intents.as_ref().is_some_and(|intents| !intents.idle(&self.unsettled).is_empty());
        if idle && self.retry_at.is_none() {
            self.clean_at = self.clock.as_ref().map(|clock| clock.now());
            return self.begin_background();
        }
        if self.intents.as_ref().is_some_and(|intents| !intents.is_still()) {
            return false;
        }
        // Its members let go of what they have noted, too.
        for request in std::mem::take(&mut self.closing) {
            let parent = Parent {
                origin: Origin::Caller(request.tag),
                work: ParentWork::Whole(request.work),
                left: 0,
                result: Ok(()),
                failed: 0,
                writes: false,
                locked: false,
                entered: None,
            };
            self.enter(parent, None);
        }
        true
    }

    fn bring_up_to_date(&mut self, now: Instant) -> bool {
        if let (Some(region), Some(intents)) = (self.unsettled.first().copied(), &self.intents) {
            let (at, length) = intents.range(region);
            // A missing stripe cannot be told from one that changed.
            let may = matches!(self.layout, Layout::Mirror(_)) || self.members.are_all_current();
            if may {
                let from = at + self.settled_to;
                let to = (from + self.step_bytes()).min(at + length);
                self.start(Background::Settle { region, to: to - at }, Some((from, to - from)));
                return true;
            }
            self.retry_at = Some(now + RETRY);
            return false;
        }
        if self.resync.is_none() {
            let stale = self.members.stale() & !self.members.absent & !self.unnoted;
            if stale == 0 {
                self.members.health.resync_failed();
                self.retry_at = Some(now + RETRY);
                return false;
            }
            let member = stale.trailing_zeros() as usize;
            if let Layout::Mirror(_) = self.layout {
                self.lost.forget(member);
            }
            self.members.set_resyncing(member);
            self.resync = Some(Resync { member, to: 0, stage: Stage::Copies });
        }
        let step = self.step_bytes();
        let Some(Resync { to: from, stage, .. }) = &mut self.resync else { return false };
        match stage {
            Stage::Copies => {
                let (from, to) = (*from, (*from + step).min(self.geometry.bytes));
                self.start(Background::Copy { to }, Some((from, to - from)));
            }
            Stage::Flushes => self.start(Background::Flush, None),
            Stage::Renews => return self.renewed(),
        }
        true
    }

    /// Whether a member is current from now on: nothing that the journal has is carried out again.
    /// At once when that is so, or rows would be entered of which that is not true.
    pub(super) fn renewed(&mut self) -> bool {
        let is_renewed = self.intents.as_ref().is_none_or(Intents::is_renewed);
        if let Some(Resync { member, stage: Stage::Renews, .. }) =
            self.resync.take_if(|resync| resync.stage == Stage::Renews && is_renewed)
        {
            self.members.set_current(member);
            return true;
        }
        false
    }

    /// Bytes of the volume that are brought up to date at once: whole rows.
    fn step_bytes(&self) -> u64 {
        let row = self.row_bytes();
        (STEP_BYTES / row).max(1) * row
    }

    pub(super) fn start(&mut self, what: Background, range: Option<(u64, u64)>) {
        let is_quiet = matches!(what, Background::Quiet);
        let parent = Parent {
            origin: Origin::Background(what),
            work: ParentWork::Nothing,
            left: 0,
            result: Ok(()),
            failed: 0,
            writes: !is_quiet,
            locked: range.is_some(),
            entered: None,
        };
        // It has a range only if it locks it.
        let id = self.enter(parent, range);
        if !is_quiet {
            self.background = Some(id);
        }
    }

    /// Nothing that it overlaps is under way.
    pub(super) fn begin_task_of_background(&mut self, id: u64) {
        let Some(Parent { origin: Origin::Background(what), left, .. }) = self.parents.get_mut(id) else { return };
        *left = 1;
        let (is_flush, range) = match what {
            Background::Settle { region, to } => {
                let at = self.intents.as_ref().map_or(0, |intents| intents.range(*region).0);
                (false, (at + self.settled_to, at + *to))
            }
            Background::Copy { to } => (false, (self.resync.as_ref().map_or(*to, |resync| resync.to), *to)),
            Background::Flush | Background::Quiet | Background::Clean { .. } => (true, (0, 0)),
        };
        let settles = matches!(what, Background::Settle { .. });
        if is_flush {
            self.flush(id);
        } else if range.0 < range.1 {
            self.copy_or_settle(id, settles, range);
        }
        self.task_ended(id);
    }

    fn copy_or_settle(&mut self, id: u64, settles: bool, (from, to): (u64, u64)) {
        match self.layout.clone() {
            Layout::Parity(parity) if settles => {
                for number in from / parity.row_bytes()..to.div_ceil(parity.row_bytes()) {
                    self.begin_row(id, Row::as_it_is(number, parity.stripe()));
                }
            }
            layout => {
                let (at, length) = match &layout {
                    Layout::Parity(parity) => {
                        let row = parity.row_bytes();
                        (from / row * parity.stripe(), (to - from).div_ceil(row) * parity.stripe())
                    }
                    _ => (from, to - from),
                };
                let current = |member: &usize| self.members.is_current(*member);
                let source = (0..self.members.len()).find(current);
                let targets = match (&self.resync, settles) {
                    (Some(resync), false) => 1 << resync.member,
                    _ => {
                        let others = (0..self.members.len()).filter(current).filter(|member| Some(*member) != source);
                        others.fold(0, |targets, member| targets | 1 << member)
                    }
                };
                if targets != 0 {
                    self.copy(id, targets, at, length);
                }
            }
        }
    }

    /// It has ended.
    pub(super) fn background_ended(&mut self, what: Background, result: Result<(), DeviceError>) {
        if matches!(what, Background::Quiet) {
            self.quiet = Quiet::Yes;
            return;
        }
        self.background = None;
        if result.is_err() {
            self.retry_at = self.clock.as_ref().map(|clock| clock.now() + RETRY);
            if matches!(what, Background::Copy { .. } | Background::Flush) {
                self.give_up_resync();
            }
            return;
        }
        match what {
            // A member went meanwhile, and what is there is lost.
            Background::Settle { region, .. } if !self.unsettled.contains(&region) => {}
            Background::Settle { region, to } => {
                self.settled_to = to;
                if self.intents.as_ref().is_none_or(|intents| intents.range(region).1 <= to) {
                    self.unsettled.remove(&region);
                    self.members.health.set_unsettled(self.unsettled.len());
                    self.settled_to = 0;
                    self.clean_at = self.clock.as_ref().map(|clock| clock.now() + CLEAN_AFTER);
                }
            }
            Background::Copy { to } => {
                let bytes = self.geometry.bytes;
                if let Some(resync) = &mut self.resync {
                    resync.to = to;
                    self.members.health.set_resynced(to);
                    if to >= bytes {
                        resync.stage = Stage::Flushes;
                    }
                }
            }
            Background::Flush => {
                let Some(resync) = &mut self.resync else { return };
                // Noted first: until no row is carried out again, nothing is written without the journal.
                resync.stage = Stage::Renews;
                let member = resync.member;
                self.lost.found(member);
                if !self.note_lost() || !(self.on_change.0)(member, MemberState::Current) {
                    return self.give_up_resync();
                }
                if let Some(intents) = &mut self.intents {
                    intents.next_epoch();
                }
            }
            Background::Quiet => {}
            Background::Clean { regions } => {
                let settled: BTreeSet<usize> = &(&regions - &self.touched) - &self.unsettled;
                if let Some(intents) = &mut self.intents {
                    intents.clear(&settled);
                }
            }
        }
    }

    /// The member stays stale; it is tried again later.
    pub(super) fn give_up_resync(&mut self) {
        if let Some(Resync { member, stage, .. }) = self.resync.take() {
            if stage == Stage::Renews {
                self.unnoted |= 1 << member;
            }
            self.members.set_stale(member);
            self.members.health.resync_failed();
        }
        self.retry_at = self.clock.as_ref().map(|clock| clock.now() + RETRY);
    }

    /// When there is something to be done that nobody's answer begins.
    pub(super) fn background_due(&self) -> Option<Instant> {
        let wants = !self.unsettled.is_empty() || self.members.stale() & !self.members.absent != 0;
        let retry = if wants { self.retry_at } else { None };
        let due = [retry, self.clean_at].into_iter().flatten().min();
        if self.background.is_some() { None } else { due }
    }
}

/// What is brought up to date at once.
const STEP_BYTES: u64 = 1 << 20;
/// After a member has failed.
pub(super) const RETRY: Duration = Duration::from_secs(5);
/// How long a region stays noted after it was written: most are written again soon.
pub(super) const CLEAN_AFTER: Duration = Duration::from_millis(500);
