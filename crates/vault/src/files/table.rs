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
    /// Files at most: a snapshot of them all must fit.
    files_max: usize,
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
    pub(super) fn new(preset: Preset, chunks: u32, files_max: usize) -> Table {
        let used = vec![false; chunks as usize];
        Table { preset, files: BTreeMap::new(), used, free: u64::from(chunks), files_max, next_id: 1, next_chunk: 0 }
    }

    pub(super) fn file(&self, id: u32) -> Option<&File> {
        self.files.get(&id)
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (u32, &File)> {
        self.files.iter().map(|(id, file)| (*id, file))
    }

    /// Whether one more may be made.
    pub(super) fn has_room(&self) -> bool {
        self.files.len() < self.files_max
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

    /// A chunk that is free: behind the last that was taken, if it can be. A neighbour of what the file has is read with it.
    pub(super) fn free_chunk(&self) -> Option<u32> {
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
                    file.chunks.insert(number, at);
                    self.free -= 1;
                    self.next_chunk = if (at as usize) + 1 < self.used.len() { at + 1 } else { 0 };
                }
                file.size = size.max(file.size);
            }
            Change::Resize { id, size } => {
                let file = self.files.get_mut(&id).ok_or("no such file")?;
                file.size = size;
                let rest = file.chunks.split_off(&(size.div_ceil(PIECE_BYTES) as u32));
                self.give_back(rest);
            }
            Change::Remove { id } => {
                let file = self.files.remove(&id).ok_or("no such file")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_gives_back_is_free_and_nothing_belongs_to_two() {
        let mut table = Table::new(Preset::Sqlite, 3, 2);
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
}
