//! Units that a mirror's member should have and that nobody has right.
//!
//! A member that is resynced gets what the others have. Where a unit's bytes are wrong on all of those, the member has
//! old bytes there with a sum that fits them. It is current in spite of that, and the unit is noted as lost: it is not
//! read from there until it is written.

use std::collections::BTreeSet;
use std::fmt;

/// Of members, by number, the first bytes of units.
#[derive(Debug, Default)]
pub(super) struct Lost {
    units: BTreeSet<(usize, u64)>,
    /// What was noted for good is something else.
    changed: bool,
    note: Note,
}

/// Notes all of them for good; whether it could.
#[expect(clippy::type_complexity, reason = "what is called, by its arguments")]
struct Note(Box<dyn FnMut(&BTreeSet<(usize, u64)>) -> bool + Send>);

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

impl Lost {
    pub(super) fn on_change(&mut self, note: impl FnMut(&BTreeSet<(usize, u64)>) -> bool + Send + 'static) {
        self.note = Note(Box::new(note));
    }

    /// They were noted in an earlier life.
    pub(super) fn set(&mut self, units: BTreeSet<(usize, u64)>) {
        self.units = units;
    }

    /// Members that lack some of a range, as bits.
    pub(super) fn lacking(&self, at: u64, length: u64) -> u64 {
        let inside = self.units.iter().filter(|(_, unit)| (at..at.saturating_add(length)).contains(unit));
        inside.fold(0, |bits, (member, _)| bits | 1 << member)
    }

    /// Nobody has it right that these members were to get it from. False: there are too many already.
    pub(super) fn lose(&mut self, members: u64, unit: u64) -> bool {
        if self.units.len() >= UNITS_MAX {
            return false;
        }
        self.units
            .extend((0..u64::BITS as usize).filter(|member| members & 1 << member != 0).map(|member| (member, unit)));
        self.changed = true;
        true
    }

    /// All members but these have what was written there.
    pub(super) fn written(&mut self, at: u64, length: u64, but: u64) {
        if self.units.is_empty() {
            return;
        }
        let before = self.units.len();
        self.units.retain(|(member, unit)| but & 1 << member != 0 || !(at..at.saturating_add(length)).contains(unit));
        if self.units.len() != before {
            // One that is noted longer than it is lost is read from another member, or not at all.
            self.changed = true;
            self.noted();
        }
    }

    /// A member gets everything anew.
    pub(super) fn forget(&mut self, member: usize) {
        let before = self.units.len();
        self.units.retain(|(other, _)| *other != member);
        self.changed |= self.units.len() != before;
    }

    /// Whether all of them are noted for good.
    pub(super) fn noted(&mut self) -> bool {
        if self.changed && (self.note.0)(&self.units) {
            self.changed = false;
        }
        !self.changed
    }
}

/// More than this is no disk with a few bad blocks.
const UNITS_MAX: usize = 1024;
