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
    /// Those that write zeros.
    zeros: BTreeSet<u64>,
    /// READs behind one piece of a WRITE whose other pieces are under way, which found what was there before: the sector, the
    /// version that was asked for last, and what is wrong unless that fails.
    owed: Vec<(u64, u64, String)>,
    /// Bytes have changed on a disk; and whether nothing has them right.
    changed: Option<bool>,
    wrong: Option<String>,
}

#[derive(Clone, Debug)]
struct Sector {
    /// Once all has ended that was asked for, it is one of these.
    may_be: BTreeSet<u64>,
    /// After a loss of power that nobody makes good, one of these.
    may_stay: BTreeSet<u64>,
    /// Writes without an answer.
    pending: BTreeSet<u64>,
    /// How often it was written, or may have changed.
    changes: u64,
    /// How often it had when a write last came to nothing: the power went and nobody made that good, or it failed.
    lost: u64,
    /// The client that wrote it last is alive, and writes it again when the node comes back without it.
    is_kept: bool,
    /// The power went after the last write was asked for: whether the client has written it again is not known.
    at_risk: bool,
}

impl Default for Sector {
    fn default() -> Self {
        let never = BTreeSet::from([0]);
        let (may_be, may_stay) = (never.clone(), never);
        Sector { may_be, may_stay, pending: BTreeSet::new(), changes: 0, lost: 0, is_kept: false, at_risk: false }
    }
}

/// A FLUSH or READ: what was known when it was asked for.
pub type Known = BTreeMap<u64, (BTreeSet<u64>, u64)>;

impl State {
    /// What a READ finds of a version.
    fn content(&self, version: u64) -> u64 {
        if self.zeros.contains(&version) { 0 } else { version }
    }
}

impl Model {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A write is asked for; its version, and what a READ finds of it.
    pub fn writes(&self, sectors: std::ops::Range<u64>, zeros: bool) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let version = state.next;
        if zeros {
            state.zeros.insert(version);
        }
        for sector in sectors {
            let sector = state.sectors.entry(sector).or_default();
            sector.may_be = [version].into();
            sector.may_stay.insert(version);
            sector.pending.insert(version);
            sector.changes += 1;
            (sector.is_kept, sector.at_risk) = (true, false);
        }
        version
    }

    /// A write has been acknowledged, for good where it is `durable`.
    pub fn wrote(&self, sectors: std::ops::Range<u64>, version: u64, durable: bool) {
        for number in sectors {
            let mut state = self.state();
            let owed = state.owed.iter().find(|(sector, last, _)| (*sector, *last) == (number, version));
            if let Some((_, _, text)) = owed.cloned() {
                state.wrong.get_or_insert(text);
            }
            let Some(sector) = state.sectors.get_mut(&number) else { continue };
            sector.pending.remove(&version);
            if durable {
                // Those before it were carried out before it, where they overlap; later ones may have been since.
                sector.may_stay.retain(|other| *other >= version);
            }
        }
    }

    /// A write has failed: it has happened or not.
    pub fn failed(&self, sectors: std::ops::Range<u64>, version: u64) {
        let mut state = self.state();
        for number in sectors {
            state.owed.retain(|(sector, last, _)| (*sector, *last) != (number, version));
            let Some(sector) = state.sectors.get_mut(&number) else { continue };
            sector.pending.remove(&version);
            sector.may_be = &sector.may_be | &sector.may_stay;
            sector.changes += 1;
            // A READ may have waited behind it.
            sector.lost = sector.changes;
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
            if sector.changes == *changes {
                sector.may_stay = may_be | &sector.pending;
            } else {
                // What came since may stay, too; what was before may not.
                let first = may_be.first().copied().unwrap_or(0);
                sector.may_stay.retain(|version| *version >= first);
            }
        }
    }

    /// A READ that was asked for then has found this.
    pub fn read(&self, number: u64, then: &Known, found: u64) {
        let mut state = self.state();
        let Some((before, changes)) = then.get(&number) else { return };
        let mut sector = state.sectors.get(&number).cloned().unwrap_or_default();
        let fits = |versions: &BTreeSet<u64>| versions.iter().any(|version| state.content(*version) == found);
        let now = sector.changes == *changes;
        // The power went while it was under way, or the write before it failed.
        let was_lost = sector.lost > *changes && fits(&sector.may_stay);
        if !if now { fits(&sector.may_be) } else { fits(before) || was_lost } {
            let text = format!("sector {number} is {found}; it may be {before:?}, now {sector:?}");
            // A piece of a WRITE may have failed whose other pieces have not ended.
            let last = sector.pending.last().filter(|_| now && state.changed == Some(true) && fits(&sector.may_stay));
            match last.copied() {
                Some(last) => state.owed.push((number, last, text)),
                None => _ = state.wrong.get_or_insert(text),
            }
        } else if now && sector.pending.is_empty() {
            // All later READs agree.
            sector.may_be.retain(|version| state.content(*version) == found);
            state.sectors.insert(number, sector);
        }
    }

    /// The client is no more: what it did not hear of may have happened, and what the power took is not written again.
    pub fn client_gone(&self) {
        self.state().owed.clear();
        for sector in self.state().sectors.values_mut() {
            if !sector.pending.is_empty() || sector.at_risk {
                sector.may_be = &sector.may_be | &sector.may_stay;
                sector.pending.clear();
                sector.changes += 1;
            }
            (sector.is_kept, sector.at_risk) = (false, false);
        }
    }

    /// The power has gone.
    pub fn power_lost(&self) {
        for sector in self.state().sectors.values_mut() {
            if sector.is_kept {
                sector.at_risk = true;
                continue;
            }
            // What a READ found whose answer is on its way may be gone.
            sector.changes += 1;
            sector.lost = sector.changes;
            sector.may_be = &sector.may_be | &sector.may_stay;
        }
    }

    /// Bytes of the disks have changed. `may_be_lost`: a READ may say so.
    pub fn changed(&self, may_be_lost: bool) {
        let mut state = self.state();
        state.changed = Some(may_be_lost || state.changed == Some(true));
    }

    /// The same, of those who read.
    pub fn has_changed(&self) -> Option<bool> {
        self.state().changed
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
