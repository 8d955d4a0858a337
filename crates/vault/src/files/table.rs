//! Which file has which bytes of the volume.

use std::collections::BTreeMap;

use overside_volume::files::{About, Attributes, IDS, PIECE_BYTES, Preset};

/// All files, and what of the volume they have.
#[derive(Clone, Debug)]
pub(super) struct Table {
    preset: Preset,
    files: BTreeMap<u32, File>,
    /// By number, whether a file has it.
    used: Vec<bool>,
    free: u64,
    /// Neighbours of a file that are neighbours on the volume, too, are one run.
    runs: usize,
    /// Files and runs at most: a snapshot of them all must fit.
    most: Most,
    /// Where to look first. What was freed is used again as late as may be.
    next_id: u32,
    next_chunk: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) token: u64,
    pub(super) size: u64,
    /// By their number in the file, where they lie.
    pub(super) chunks: BTreeMap<u32, u32>,
}

/// How much there may be to write down, whatever free chunks there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Most {
    pub(super) files: usize,
    pub(super) runs: usize,
}

/// One change, as the journal has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Create {
        id: u32,
        token: u64,
    },
    /// The file is so long, and may have one more chunk: which of its own, and where it lies.
    Grow {
        id: u32,
        size: u64,
        chunk: Option<(u32, u32)>,
    },
    /// The file is so long. What lies wholly behind that is free.
    Resize {
        id: u32,
        size: u64,
    },
    Remove {
        id: u32,
    },
}

impl Table {
    pub(super) fn new(preset: Preset, chunks: u32, most: Most) -> Table {
        let (files, used, free) = (BTreeMap::new(), vec![false; chunks as usize], u64::from(chunks));
        Table { preset, files, used, free, runs: 0, most, next_id: 1, next_chunk: 0 }
    }

    pub(super) fn file(&self, id: u32) -> Option<&File> {
        self.files.get(&id)
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (u32, &File)> {
        self.files.iter().map(|(id, file)| (*id, file))
    }

    /// Whether one more may be made.
    pub(super) fn has_room(&self) -> bool {
        self.files.len() < self.most.files
    }

    /// Files and runs, as a snapshot has them.
    pub(super) fn written(&self) -> (usize, usize) {
        (self.files.len(), self.runs)
    }

    pub(super) fn about(&self) -> About {
        let mut ids = (self.next_id..IDS).chain(1..self.next_id);
        let free_id = ids.find(|id| !self.files.contains_key(id)).unwrap_or(0);
        About { preset: self.preset, free_id, files: self.files.len() as u32, free_bytes: self.free * PIECE_BYTES }
    }

    pub(super) fn attributes(&self, id: u32) -> Attributes {
        self.files.get(&id).map_or_else(Attributes::default, |file| Attributes {
            token: file.token,
            size: file.size,
            allocated: file.chunks.len() as u64 * PIECE_BYTES,
        })
    }

    /// A chunk that is free for a file's of this number, and that can be written down.
    pub(super) fn chunk_for(&self, id: u32, number: u32) -> Option<u32> {
        let chunk = self.free_chunk()?;
        if self.runs < self.most.runs {
            return Some(chunk);
        }
        // Nothing more is to be written down of a neighbour.
        let chunks = &self.files.get(&id)?.chunks;
        let behind = chunks.get(&number.checked_sub(1)?)?.checked_add(1)?;
        self.used.get(behind as usize).is_some_and(|used| !used).then_some(behind)
    }

    /// A chunk that is free: behind the last that was taken, if it can be. A neighbour of what the
    /// file has is read with it.
    fn free_chunk(&self) -> Option<u32> {
        let next = self.next_chunk as usize;
        let (before, behind) = self.used.split_at_checked(next)?;
        let free = |used: &[bool]| used.iter().position(|used| !used);
        free(behind).map(|at| at + next).or_else(|| free(before)).map(|at| at as u32)
    }

    /// Makes a change. Why it cannot be: then nothing is changed.
    pub(super) fn apply(&mut self, change: Change) -> Result<(), &'static str> {
        match change {
            Change::Create { id, token } => {
                if id == 0 || id >= IDS || token == 0 || self.files.contains_key(&id) {
                    return Err("a file that there is already, or cannot be");
                }
                self.files.insert(id, File { token, size: 0, chunks: BTreeMap::new() });
                self.next_id = if id + 1 < IDS { id + 1 } else { 1 };
            }
            Change::Grow { id, size, chunk } => {
                let file = self.files.get_mut(&id).ok_or("no such file")?;
                if let Some((number, at)) = chunk {
                    let used = self.used.get_mut(at as usize).ok_or("a chunk past the end")?;
                    if *used || file.chunks.contains_key(&number) || u64::from(number) * PIECE_BYTES >= size {
                        return Err("a chunk that another has, or that the file has no place for");
                    }
                    *used = true;
                    self.runs = self.runs + 1 - neighbours(&file.chunks, number, at);
                    file.chunks.insert(number, at);
                    self.free -= 1;
                    self.next_chunk = if (at as usize) + 1 < self.used.len() { at + 1 } else { 0 };
                }
                file.size = size.max(file.size);
            }
            Change::Resize { id, size } => {
                let file = self.files.get_mut(&id).ok_or("no such file")?;
                file.size = size;
                let before = runs(&file.chunks);
                let rest = file.chunks.split_off(&(size.div_ceil(PIECE_BYTES) as u32));
                self.runs -= before - runs(&file.chunks);
                self.give_back(rest);
            }
            Change::Remove { id } => {
                let file = self.files.remove(&id).ok_or("no such file")?;
                self.runs -= runs(&file.chunks);
                self.give_back(file.chunks);
            }
        }
        Ok(())
    }

    fn give_back(&mut self, chunks: BTreeMap<u32, u32>) {
        for at in chunks.into_values() {
            if let Some(used) = self.used.get_mut(at as usize) {
                *used = false;
                self.free += 1;
            }
        }
    }
}

/// How many of the chunks beside a file's chunk of this number lie beside it on the volume.
fn neighbours(chunks: &BTreeMap<u32, u32>, number: u32, at: u32) -> usize {
    let lies = |number: Option<u32>, at: Option<u32>| {
        at.is_some() && number.and_then(|number| chunks.get(&number).copied()) == at
    };
    let before = lies(number.checked_sub(1), at.checked_sub(1));
    let behind = lies(number.checked_add(1), at.checked_add(1));
    usize::from(before) + usize::from(behind)
}

/// Runs of a file's chunks.
fn runs(chunks: &BTreeMap<u32, u32>) -> usize {
    let mut next = None;
    chunks.iter().filter(|(number, at)| next.replace((*number + 1, *at + 1)) != Some((**number, **at))).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_gives_back_is_free_and_nothing_belongs_to_two() {
        let mut table = Table::new(Preset::Sqlite, 3, Most { files: 2, runs: 9 });
        let grow = |id, number: u32, at| Change::Grow {
            id,
            size: (u64::from(number) + 1) * PIECE_BYTES,
            chunk: Some((number, at)),
        };
        table.apply(Change::Create { id: 1, token: 5 }).unwrap();
        table.apply(Change::Create { id: 2, token: 6 }).unwrap();
        assert!(!table.has_room());
        for (change, may) in [
            (grow(1, 0, 0), true),
            (grow(1, 0, 1), false),
            (grow(2, 0, 0), false),
            (grow(2, 0, 3), false),
            (grow(2, 4, 2), true),
        ] {
            let before = table.about();
            assert_eq!(table.apply(change).is_ok(), may, "{change:?}");
            assert!(may || table.about() == before, "{change:?}");
        }
        assert_eq!((table.free_chunk(), table.about().free_bytes), (Some(1), PIECE_BYTES));
        table.apply(Change::Resize { id: 2, size: 4 * PIECE_BYTES }).unwrap();
        assert_eq!(table.about().free_bytes, 2 * PIECE_BYTES);
        table.apply(Change::Remove { id: 1 }).unwrap();
        assert_eq!((table.about().free_bytes, table.attributes(1).token), (3 * PIECE_BYTES, 0));
        assert!(
            table.apply(Change::Remove { id: 1 }).is_err() && table.apply(Change::Create { id: 0, token: 1 }).is_err()
        );
    }

    #[test]
    fn no_more_runs_are_made_than_can_be_written_down_and_all_can_be_given_back() {
        let mut table = Table::new(Preset::Sqlite, 100, Most { files: 2, runs: 3 });
        for id in [1, 2] {
            table.apply(Change::Create { id, token: 5 }).unwrap();
        }
        let grow = |table: &mut Table, id, number: u32| {
            let Some(at) = table.chunk_for(id, number) else { return false };
            let size = (u64::from(number) + 1) * PIECE_BYTES;
            table.apply(Change::Grow { id, size, chunk: Some((number, at)) }).unwrap();
            true
        };
        assert!(grow(&mut table, 1, 0) && grow(&mut table, 1, 1) && grow(&mut table, 2, 0) && grow(&mut table, 1, 2));
        assert_eq!(table.written(), (2, 3), "two of the first file");
        assert!(
            !grow(&mut table, 2, 1) && !grow(&mut table, 2, 7),
            "where it would lie another does, or a hole would be"
        );
        assert!(grow(&mut table, 1, 3) && table.written() == (2, 3), "behind its neighbour");
        table.apply(Change::Resize { id: 1, size: PIECE_BYTES }).unwrap();
        assert_eq!(table.written(), (2, 2));
        assert!(grow(&mut table, 2, 1) && table.written() == (2, 3));
        (1..3).for_each(|id| table.apply(Change::Remove { id }).unwrap());
        assert_eq!((table.written(), table.about().free_bytes), ((0, 0), 100 * PIECE_BYTES));
    }
}
