//! Units that a member should have and that nobody can make anew.
//!
//! A member that is resynced gets what the others have, or of RAID 5 what is computed of them.
//! Where that cannot be had, the member is current in spite of that, and the unit is noted as lost:
//! nobody reads it until it is written.
//!
//! | of | a unit is lost | who reads it |
//! |---|---|---|
//! | a mirror | where all others have it wrong: the member has old bytes with a sum that fits them | no READ and no copy |
//! | RAID 5 | where its row's parity is not known to be that of its stripes, or others of the row have theirs wrong | no READ |
//!
//! What a current member of RAID 5 has in the place of a lost unit fits its row's parity. So the
//! others of the row are computed from it as ever. While the member is missing, it counts as zeros
//! once its row is written.
//!
//! A member that goes before a crash is settled keeps its bytes as the crash left them. They are
//! lost until it is back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Bytes of a member, in whole units, that nobody can make anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LostRange {
    /// By number.
    pub member: usize,
    /// The first byte there.
    pub at: u64,
    /// How many.
    pub length: u64,
    /// The member itself has them, once it is back. Another one in its place has not.
    pub kept: bool,
}

/// Of all members.
#[derive(Debug, Default)]
pub(super) struct Lost {
    gone: Runs,
    /// Members that are missing have these.
    kept: Runs,
    /// What was noted for good is something else.
    changed: bool,
    note: Note,
}

/// By member and first byte, how many. None touches another.
#[derive(Debug, Default)]
struct Runs(BTreeMap<(usize, u64), u64>);

/// Notes all of them for good; whether it could.
#[expect(clippy::type_complexity, reason = "what is called, by its arguments")]
struct Note(Box<dyn FnMut(&BTreeSet<LostRange>) -> bool + Send>);

impl Default for Note {
    fn default() -> Note {
        Note(Box::new(|_| true))
    }
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Note").finish_non_exhaustive()
    }
}

impl Runs {
    fn has(&self, member: usize, at: u64, length: u64) -> bool {
        let last = self.0.range((member, 0)..(member, at.saturating_add(length))).next_back();
        last.is_some_and(|((_, run), bytes)| run.saturating_add(*bytes) > at)
    }

    fn of(&self, member: usize) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.range((member, 0)..=(member, u64::MAX)).map(|((_, at), bytes)| (*at, *bytes))
    }

    fn add(&mut self, member: usize, at: u64, length: u64) {
        let (mut from, mut to) = (at, at.saturating_add(length));
        // Those that it touches become one with it.
        while let Some((&(_, run), &bytes)) = self.0.range((member, 0)..=(member, to)).next_back()
            && run.saturating_add(bytes) >= from
        {
            (from, to) = (from.min(run), to.max(run.saturating_add(bytes)));
            self.0.remove(&(member, run));
        }
        if from < to {
            self.0.insert((member, from), to - from);
        }
    }

    /// Whether there was any.
    fn remove(&mut self, member: usize, at: u64, length: u64) -> bool {
        let (end, mut found) = (at.saturating_add(length), false);
        while let Some((&(_, run), &bytes)) = self.0.range((member, 0)..(member, end)).next_back()
            && run.saturating_add(bytes) > at
        {
            self.0.remove(&(member, run));
            for (from, to) in [(run, at), (end, run.saturating_add(bytes))] {
                if from < to {
                    self.0.insert((member, from), to - from);
                }
            }
            found = true;
        }
        found
    }
}

impl Lost {
    pub(super) fn on_change(&mut self, note: impl FnMut(&BTreeSet<LostRange>) -> bool + Send + 'static) {
        self.note = Note(Box::new(note));
    }

    /// They were noted in an earlier life.
    pub(super) fn set(&mut self, ranges: &BTreeSet<LostRange>) {
        (self.gone, self.kept) = (Runs::default(), Runs::default());
        for range in ranges {
            let runs = if range.kept { &mut self.kept } else { &mut self.gone };
            runs.add(range.member, range.at, range.length);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gone.0.is_empty() && self.kept.0.is_empty()
    }

    /// Whether a member lacks some of a range.
    pub(super) fn lacks(&self, member: usize, at: u64, length: u64) -> bool {
        self.gone.has(member, at, length) || self.keeps(member, at, length)
    }

    /// Whether a member has some of what is lost in a range, once it is back.
    pub(super) fn keeps(&self, member: usize, at: u64, length: u64) -> bool {
        self.kept.has(member, at, length)
    }

    /// Members that lack some of a range, as bits.
    pub(super) fn lacking(&self, at: u64, length: u64) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let lacks = (0..u64::BITS as usize).filter(|member| self.lacks(*member, at, length));
        lacks.fold(0, |bits, member| bits | 1 << member)
    }

    /// What a member lacks: first bytes, and how many.
    pub(super) fn runs_of(&self, member: usize) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.gone.of(member).chain(self.kept.of(member))
    }

    /// Nobody has a unit right that these members were to get. False: there are too many already.
    pub(super) fn lose(&mut self, members: u64, at: u64, unit: u64) -> bool {
        if self.gone.0.values().sum::<u64>() / unit.max(1) >= UNITS_MAX {
            return false;
        }
        for member in (0..u64::BITS as usize).filter(|member| members & 1 << member != 0) {
            self.kept.remove(member, at, unit);
            self.gone.add(member, at, unit);
        }
        self.changed = true;
        true
    }

    /// A member goes, and of these bytes of it a crash has left what cannot be computed.
    pub(super) fn tear(&mut self, member: usize, at: u64, length: u64) {
        self.kept.add(member, at, length);
        // It never had those.
        self.gone.of(member).for_each(|(at, length)| _ = self.kept.remove(member, at, length));
        self.changed = true;
    }

    /// A member has what was written there, or its row has.
    pub(super) fn written(&mut self, member: usize, at: u64, length: u64) {
        let gone = self.gone.remove(member, at, length);
        self.changed |= self.kept.remove(member, at, length) || gone;
    }

    /// A member is back with what it has kept, and its rows' parity is that of it.
    pub(super) fn found(&mut self, member: usize) {
        self.changed |= self.kept.remove(member, 0, u64::MAX);
    }

    /// A member gets everything anew.
    pub(super) fn forget(&mut self, member: usize) {
        self.written(member, 0, u64::MAX);
    }

    /// Whether all of them are noted for good. One that is noted longer than it is lost is not
    /// read.
    pub(super) fn noted(&mut self) -> bool {
        if self.changed {
            let of = |runs: &Runs, kept| {
                let range = move |((member, at), length): (&(usize, u64), &u64)| LostRange {
                    member: *member,
                    at: *at,
                    length: *length,
                    kept,
                };
                runs.0.iter().map(range).collect::<Vec<_>>()
            };
            let ranges = of(&self.gone, false).into_iter().chain(of(&self.kept, true)).collect();
            self.changed = !(self.note.0)(&ranges);
        }
        !self.changed
    }
}

/// More than this is no disk with a few bad blocks.
const UNITS_MAX: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Runs say of each unit of each member what a list of units would.
        #[test]
        fn runs_are_the_units_that_were_torn_or_lost_and_not_written(
            changes in proptest::collection::vec((0u8..3, 0usize..3, 0u64..20, 1u64..6), 0..40),
        ) {
            let (mut lost, mut gone, mut kept) = (Lost::default(), BTreeSet::new(), BTreeSet::new());
            for (change, member, at, length) in changes {
                for unit in (at..at + length).map(|at| (member, at)) {
                    match change {
                        0 => _ = gone.contains(&unit) || kept.insert(unit),
                        1 => _ = (kept.remove(&unit), gone.insert(unit)),
                        _ => _ = (kept.remove(&unit), gone.remove(&unit)),
                    }
                }
                match change {
                    0 => lost.tear(member, at, length),
                    1 => (at..at + length).for_each(|at| assert!(lost.lose(1 << member, at, 1))),
                    _ => lost.written(member, at, length),
                }
                for unit in (0..3).flat_map(|member| (0..26).map(move |at| (member, at))) {
                    let (member, at) = unit;
                    prop_assert_eq!(lost.keeps(member, at, 1), kept.contains(&unit));
                    prop_assert_eq!(lost.lacks(member, at, 1), kept.contains(&unit) || gone.contains(&unit));
                    let pair = (0..2).any(|next| lost.lacks(member, at + next, 1));
                    prop_assert_eq!(lost.lacking(at, 2) & 1 << member != 0, pair);
                }
                let bytes: u64 = lost.runs_of(1).map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(bytes, kept.union(&gone).filter(|(member, _)| *member == 1).count() as u64);
                for runs in [&lost.gone, &lost.kept] {
                    let runs: Vec<_> = runs.0.iter().collect();
                    prop_assert!(runs.windows(2).all(|two| two[0].0.0 != two[1].0.0 || two[0].0.1 + two[0].1 < two[1].0.1));
                }
            }
        }
    }
}
