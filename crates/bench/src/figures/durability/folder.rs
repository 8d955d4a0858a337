//! Where the figure's data lies for as long as it is measured.

use crate::figures::sockets::keeper::Keeper;
use anyhow::{Context, Result, bail};
use rustix::fs::statfs;
use std::path::{Path, PathBuf};

/// A folder beside the current one, or where it is asked for, that somebody else clears away whatever becomes of this process.
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

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

#[cfg(test)]
mod tests {
    use super::*;

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
