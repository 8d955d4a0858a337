//! Where the figure's data lies for as long as it is measured.

use crate::figures::sockets::keeper::Keeper;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{statfs, statvfs};
use std::path::{Path, PathBuf};

/// A folder beside the current one, or where it is asked for, that somebody else clears away
/// whatever becomes of this process.
pub(super) struct DataFolder {
    keeper: Keeper,
}

impl DataFolder {
    pub(super) fn new(dir: Option<&Path>) -> Result<DataFolder> {
        Ok(DataFolder { keeper: Keeper::start_in(&parent(dir)?)? })
    }

    pub(super) fn folder(&self) -> &Path {
        self.keeper.folder()
    }

    pub(super) fn keeper(&mut self) -> &mut Keeper {
        &mut self.keeper
    }
}

/// Where the folder is to be made.
///
/// # Errors
/// What is written there is on no disk.
pub(in crate::figures) fn parent(dir: Option<&Path>) -> Result<PathBuf> {
    let parent = match dir {
        Some(dir) => dir.to_owned(),
        None => std::env::current_dir().context("there is no current directory; name one with --dir")?,
    };
    let parent = parent.canonicalize().with_context(|| format!("{}: name a folder with --dir", parent.display()))?;
    let of = statfs(&parent).with_context(|| format!("{}: name a folder with --dir", parent.display()))?;
    if [TMPFS, RAMFS].contains(&(of.f_type as u64)) {
        bail!(
            "{} is in memory (tmpfs), and what is written there is on no disk; name a folder of a disk with --dir",
            parent.display()
        );
    }
    Ok(parent)
}

/// How much room there is for how much that is needed, in a line.
///
/// # Errors
/// There is less: the line says so, and nothing was written yet.
pub(in crate::figures) fn room(parent: &Path, needed: u64) -> Result<String> {
    let of = statvfs(parent).with_context(|| format!("{}: name a folder with --dir", parent.display()))?;
    let free = of.f_bavail * of.f_frsize;
    let line =
        format!("its data takes {} MiB of {}, where {} MiB are free", needed >> 20, parent.display(), free >> 20);
    ensure!(free >= needed, "{line}; free some, or name a folder of another disk with --dir");
    Ok(line)
}

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_refused_before_anything_is_written() {
        let here = std::env::current_dir().unwrap();
        let line = room(&here, 5 << 20).unwrap();
        assert!(line.contains(" 5 MiB of ") && line.ends_with(" MiB are free"), "{line}");
        let refused = room(&here, u64::MAX >> 1).unwrap_err().to_string();
        assert!(refused.contains("MiB are free; free some") && refused.contains("--dir"), "{refused}");
    }

    #[test]
    fn memory_is_no_disk() {
        let shared = Path::new("/dev/shm");
        if statfs(shared).is_ok_and(|of| of.f_type as u64 == TMPFS) {
            let error = parent(Some(shared)).unwrap_err().to_string();
            assert!(error.contains("on no disk") && error.contains("--dir"), "{error}");
        }
        let error = format!("{:#}", parent(Some(Path::new("/nonexistent"))).unwrap_err());
        assert!(error.contains("/nonexistent") && error.contains("--dir"), "{error}");
    }
}
