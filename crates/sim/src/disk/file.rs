//! A file as a disk has it: what is safe, what is not yet, and what only the kernel still shows.

use std::collections::BTreeMap;

use crate::chance::Chance;

/// What a disk writes as a whole.
pub(crate) const SECTOR: usize = 512;

type Sector = Box<[u8; SECTOR]>;

/// Bytes of a file, by sector. What was never written is zero.
#[derive(Debug, Default)]
pub(crate) struct File {
    durable: BTreeMap<u64, Sector>,
    /// Written and not synced: any of these, or the durable one, is there after a power loss.
    unsynced: BTreeMap<u64, Vec<(u64, Sector)>>,
    /// The kernel shows it, and takes it for synced; the disk does not have it.
    phantom: BTreeMap<u64, Sector>,
    /// Numbers of writes, ascending.
    written: u64,
    len: u64,
    len_durable: u64,
}

impl File {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// How many writes there were; a sync that begins now covers those.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        self.len = len;
    }

    /// Fills `out` with the file's bytes as far as it reaches; how many.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> usize {
        let len = self.len.saturating_sub(at).min(out.len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let place = at + done as u64;
            let (sector, within) = (place / SECTOR as u64, (place % SECTOR as u64) as usize);
            let some = (SECTOR - within).min(len - done);
            match self.shown(sector) {
                Some(bytes) => out[done..done + some].copy_from_slice(&bytes[within..within + some]),
                None => out[done..done + some].fill(0),
            }
            done += some;
        }
        len
    }

    fn shown(&self, sector: u64) -> Option<&[u8; SECTOR]> {
        let unsynced = self.unsynced.get(&sector).and_then(|all| all.last()).map(|(_, bytes)| &**bytes);
        unsynced.or_else(|| self.phantom.get(&sector).map(|b| &**b)).or_else(|| self.durable.get(&sector).map(|b| &**b))
    }

    /// Writes whole sectors into the kernel's memory; with `sync` onto the disk.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8], sync: bool) {
        self.written += 1;
        self.len = self.len.max(at + bytes.len() as u64);
        for (index, chunk) in bytes.chunks(SECTOR).enumerate() {
            let sector = at / SECTOR as u64 + index as u64;
            let mut whole = self.shown(sector).map_or([0; SECTOR], |shown| *shown);
            whole[..chunk.len()].copy_from_slice(chunk);
            if sync {
                self.unsynced.remove(&sector);
                self.phantom.remove(&sector);
                self.durable.insert(sector, Box::new(whole));
            } else {
                self.unsynced.entry(sector).or_default().push((self.written, Box::new(whole)));
            }
        }
        if sync {
            self.len_durable = self.len_durable.max(at + bytes.len() as u64);
        }
    }

    /// A write that failed or was cut off: of each sector the old bytes, the new ones or none of
    /// both.
    pub(crate) fn tear(&mut self, at: u64, bytes: &[u8], whole: bool, chance: &mut Chance) {
        for (index, chunk) in bytes.chunks(SECTOR).enumerate() {
            let at = at + (index * SECTOR) as u64;
            match chance.below(if whole { 7 } else { 8 }) {
                0..4 => {}
                4..7 => self.write(at, chunk, false),
                _ => {
                    let mut garbage = [0; SECTOR];
                    chance.fill(&mut garbage);
                    self.write(at, &garbage, false);
                }
            }
        }
    }

    /// A transfer past the kernel's memory sees what the disk has.
    pub(crate) fn forget_phantoms(&mut self) {
        self.phantom.clear();
    }

    /// All that was written up to `covers` is safe.
    pub(crate) fn sync(&mut self, covers: u64) {
        self.unsynced.retain(|sector, versions| {
            let safe = versions.iter().take_while(|(number, _)| *number <= covers).count();
            if let Some((_, bytes)) = versions.drain(..safe).next_back() {
                self.phantom.remove(sector);
                self.durable.insert(*sector, bytes);
            }
            !versions.is_empty()
        });
        self.len_durable = self.len;
    }

    /// A sync that failed: some of it is safe, and the kernel takes the rest for synced from now
    /// on.
    pub(crate) fn sync_in_vain(&mut self, covers: u64, chance: &mut Chance) {
        self.unsynced.retain(|sector, versions| {
            let taken = versions.iter().take_while(|(number, _)| *number <= covers).count();
            if let Some((_, bytes)) = versions.drain(..taken).next_back() {
                let safe = chance.one_in(2);
                (if safe { &mut self.durable } else { &mut self.phantom }).insert(*sector, bytes);
            }
            !versions.is_empty()
        });
    }

    /// What a power loss leaves: of each sector any version since the last sync, and a length that
    /// was once. How many sectors are not as they were shown.
    pub(crate) fn lose_power(&mut self, chance: &mut Chance) -> usize {
        let mut lost = self.phantom.len();
        self.phantom.clear();
        for (sector, mut versions) in std::mem::take(&mut self.unsynced) {
            let kept = chance.below(versions.len() as u64 + 1) as usize;
            lost += usize::from(kept + 1 != versions.len());
            if kept < versions.len() {
                self.durable.insert(sector, versions.swap_remove(kept).1);
            }
        }
        if chance.one_in(2) {
            self.len = self.len_durable;
        }
        let end = self.len.div_ceil(SECTOR as u64);
        self.durable.retain(|sector, _| *sector < end);
        self.len_durable = self.len;
        lost
    }

    /// Flips a bit of what is safe.
    pub(crate) fn flip(&mut self, at: u64, bit: u32) {
        let sector = self.durable.entry(at / SECTOR as u64).or_insert_with(|| Box::new([0; SECTOR]));
        sector[at as usize % SECTOR] ^= 1 << (bit % 8);
    }
}
