//! Folders: names as the kernel shows them, and as the disk has them.

use std::collections::BTreeMap;

use crate::chance::Chance;

/// Names of a folder, each with the number of what it names.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    names: BTreeMap<String, u64>,
    durable: BTreeMap<String, u64>,
    /// Since the last sync, in order.
    changes: Vec<Change>,
}

/// A step that is on the disk whole or not at all.
#[derive(Clone, Debug)]
enum Change {
    Put(String, u64),
    Take(String),
    Rename(String, String),
}

impl Folder {
    pub(crate) fn get(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.names.iter().map(|(name, number)| (name.as_str(), *number))
    }

    /// Every number that a name leads to, or led to and may again after a power loss.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        let changed = self.changes.iter().filter_map(|change| match change {
            Change::Put(_, number) => Some(*number),
            _ => None,
        });
        self.names.values().chain(self.durable.values()).copied().chain(changed)
    }

    pub(crate) fn put(&mut self, name: &str, number: u64) {
        self.change(Change::Put(name.into(), number));
    }

    pub(crate) fn take(&mut self, name: &str) {
        self.change(Change::Take(name.into()));
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        self.change(Change::Rename(from.into(), to.into()));
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    /// How many changes there were since the last sync; one that begins now covers those.
    pub(crate) fn changed(&self) -> usize {
        self.changes.len()
    }

    /// The first `covers` changes are safe.
    pub(crate) fn sync(&mut self, covers: usize) {
        let covers = covers.min(self.changes.len());
        self.changes.drain(..covers).for_each(|change| change.apply(&mut self.durable));
    }

    /// A sync that failed: the first so many changes are safe. A file system's journal tries the
    /// rest again.
    pub(crate) fn sync_in_vain(&mut self, covers: usize, chance: &mut Chance) {
        let covers = covers.min(self.changes.len());
        self.sync(chance.below(covers as u64 + 1) as usize);
    }

    /// What a power loss leaves: the first so many changes, or any of them. Whether some are lost.
    pub(crate) fn lose_power(&mut self, chance: &mut Chance) -> bool {
        let (in_order, kept) = (chance.one_in(2), chance.below(self.changes.len() as u64 + 1) as usize);
        let mut lost = false;
        for (index, change) in self.changes.drain(..).enumerate() {
            if if in_order { index < kept } else { chance.one_in(2) } {
                change.apply(&mut self.durable);
            } else {
                lost = true;
            }
        }
        self.names = self.durable.clone();
        lost
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Change::Put(name, number) => {
                names.insert(name.clone(), *number);
            }
            Change::Take(name) => {
                names.remove(name);
            }
            Change::Rename(from, to) => {
                if let Some(number) = names.remove(from) {
                    names.insert(to.clone(), number);
                }
            }
        }
    }
}
