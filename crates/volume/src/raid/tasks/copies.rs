//! What members have wrong or have missed: it is looked for, and copied from what is right.

use super::super::row::xor;
use super::*;

impl Raid {
    /// Every member looks at what it has of a range. The parity of a row counts to its first
    /// stripe.
    pub(super) fn begin_check(&mut self, id: u64, at: u64, length: u64) {
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

    /// They have looked: what is wrong is written again from what is right, where that is wanted.
    /// Unit by unit: each may be right on another member.
    pub(super) fn checked(&mut self, id: u64, members: u64, (at, length): (u64, u64), bad: u64) {
        let Some(parent) = self.tasks.get_mut(id).map(|task| task.parent) else { return };
        let lost = match self.layout {
            // A parity is found again.
            Layout::Parity(_) => members & self.lost.lacking(at, length) & !(1 << self.holder(at)),
            _ => self.lost.lacking(at, length),
        };
        let bad = bad | lost;
        let mut mends = false;
        if let Some(Parent { work: ParentWork::Whole(Work::Check { mend, wrong, .. }), .. }) =
            self.parents.get_mut(parent)
        {
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

    /// Reads a member's bytes for those that have missed them: of a mirror from another side, else
    /// from all others.
    pub(in crate::raid) fn copy(&mut self, parent: u64, targets: u64, at: u64, length: u64) {
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

    /// Not all of a range can be copied: each unit is by itself. Of what nobody has, a member that
    /// is resynced has nothing either, and what a crash left may stay as it is: no READ finds it. A
    /// unit of RAID 5 is found by its row.
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

    /// A mirror's side could not be read: another one is copied, over what the first had wrong,
    /// too.
    pub(super) fn copy_from_another(&mut self, id: u64, targets: u64, at: u64, length: u64, error: DeviceError) {
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

    pub(super) fn put_copy(&mut self, id: u64, targets: u64, at: u64, length: u64, read: Vec<Buffer>) {
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
}
