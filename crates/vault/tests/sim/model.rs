//! What a volume must hold: of each sector, what a READ may find.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of a sector.
pub const SECTOR: u64 = 512;

/// What is known of all sectors, by all who take part in a world.
#[derive(Clone, Debug, Default)]
pub struct Model(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Of sectors that were written.
    sectors: BTreeMap<u64, Sector>,
    /// Versions are numbers of writes, in the order in which they were asked for.
    next: u64,
    wrong: Option<String>,
}

#[derive(Clone, Debug)]
struct Sector {
    /// Once all has ended that was asked for, it is one of these.
    may_be: BTreeSet<u64>,
    /// After a loss of power, one of these.
    may_stay: BTreeSet<u64>,
    /// Writes without an answer.
    pending: BTreeSet<u64>,
    /// How often it was written.
    changes: u64,
    /// How often it had been when the power went last.
    lost: u64,
}

impl Default for Sector {
    fn default() -> Self {
        Sector { may_be: [0].into(), may_stay: [0].into(), pending: BTreeSet::new(), changes: 0, lost: 0 }
    }
}

/// A FLUSH or READ: what was known when it was asked for.
pub type Known = BTreeMap<u64, (BTreeSet<u64>, u64)>;

impl Model {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A write is asked for; its version. Zeros have version 0.
    pub fn writes(&self, sectors: std::ops::Range<u64>, zeros: bool) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let version = if zeros { 0 } else { state.next };
        for sector in sectors {
            let sector = state.sectors.entry(sector).or_default();
            sector.may_be = [version].into();
            sector.may_stay.insert(version);
            sector.pending.insert(version);
            sector.changes += 1;
        }
        version
    }

    /// A write has been acknowledged, for good where it is `durable`.
    pub fn wrote(&self, sectors: std::ops::Range<u64>, version: u64, durable: bool) {
        for number in sectors {
            let mut state = self.state();
            let Some(sector) = state.sectors.get_mut(&number) else { continue };
            sector.pending.remove(&version);
            if durable {
                sector.may_stay.clone_from(&sector.pending);
                sector.may_stay.insert(version);
            }
        }
    }

    /// Now.
    pub fn known(&self, sectors: Option<std::ops::Range<u64>>) -> Known {
        let state = self.state();
        let of = |sector: &Sector| (sector.may_be.clone(), sector.changes);
        match sectors {
            Some(sectors) => {
                sectors.map(|number| (number, of(state.sectors.get(&number).unwrap_or(&Sector::default())))).collect()
            }
            None => state.sectors.iter().filter(|(_, s)| s.pending.is_empty()).map(|(n, s)| (*n, of(s))).collect(),
        }
    }

    /// A FLUSH has been acknowledged that was asked for then.
    pub fn flushed(&self, then: &Known) {
        let mut state = self.state();
        for (number, (may_be, changes)) in then {
            let Some(sector) = state.sectors.get_mut(number) else { continue };
            let later: BTreeSet<u64> = sector.pending.clone();
            if sector.changes == *changes {
                sector.may_stay = may_be | &later;
            } else {
                // What came since may stay, too; what was before may not.
                let first = may_be.first().copied().unwrap_or(0);
                sector.may_stay.retain(|version| *version >= first || *version == 0);
            }
        }
    }

    /// A READ that was asked for then has found this.
    pub fn read(&self, number: u64, then: &Known, found: u64) {
        let mut state = self.state();
        let Some((before, changes)) = then.get(&number) else { return };
        let sector = state.sectors.entry(number).or_default();
        let now = sector.changes == *changes;
        // The power went while it was under way.
        let was_lost = sector.lost > *changes && sector.may_stay.contains(&found);
        let is_allowed = before.contains(&found) || was_lost || (now && sector.may_be.contains(&found));
        if !is_allowed {
            let text = format!("sector {number} is {found}; it may be {before:?}, now {sector:?}");
            state.wrong.get_or_insert(text);
        } else if now && sector.pending.is_empty() {
            // All later READs agree.
            sector.may_be = [found].into();
        }
    }

    /// The client is no more: what it did not hear of may have happened.
    pub fn client_killed(&self) {
        for sector in self.state().sectors.values_mut() {
            if !sector.pending.is_empty() {
                sector.may_be.clone_from(&sector.may_stay);
                sector.pending.clear();
                sector.changes += 1;
            }
        }
    }

    /// The power has gone.
    pub fn power_lost(&self) {
        for sector in self.state().sectors.values_mut() {
            // What a READ found whose answer is on its way may be gone.
            sector.changes += 1;
            sector.lost = sector.changes;
            // What was asked for last and has no answer is asked for again.
            if sector.pending.is_empty() {
                sector.may_be = &sector.may_be | &sector.may_stay;
            }
        }
    }

    pub fn sectors(&self) -> Vec<u64> {
        self.state().sectors.keys().copied().collect()
    }

    pub fn fail(&self, why: String) {
        self.state().wrong.get_or_insert(why);
    }

    pub fn wrong(&self) -> Option<String> {
        self.state().wrong.clone()
    }
}

/// A sector's bytes.
pub fn fill(bytes: &mut [u8], version: u64, number: u64) {
    for (at, word) in (0u64..).zip(bytes.as_chunks_mut::<8>().0) {
        *word = if version == 0 { [0; 8] } else { (version << 32 | number << 8 | at).to_le_bytes() };
    }
}

/// Its version; none where it is a mix, or another sector's.
pub fn version(bytes: &[u8], number: u64) -> Option<u64> {
    let version = u64::from_le_bytes(bytes.first_chunk().copied()?) >> 32;
    let mut expected = [0; SECTOR as usize];
    fill(&mut expected, version, number);
    (bytes == expected).then_some(version)
}
