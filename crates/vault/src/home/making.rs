//! The members of a volume that is to be: each whole under its name, or none of them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overside_disk::{AtomicFile, BLOCK_BYTES};
use overside_verbs::Clock;

use super::description::Description;
use super::remote::{self, Reached};
use super::{Creation, HomeError, LayoutKind, MemberSpec, RemoteVolume, Superblock, of};
use crate::members::volatile::SIDE_BYTES;

/// Makes the members of a volume that is to be. They go again, unless it comes about.
pub(super) fn make_members<'a>(
    creation: &Creation,
    description: &Path,
    around: (Reached<'a>, &'a Arc<dyn Clock>),
) -> Result<(Description, Made<'a>), HomeError> {
    let needed = member_bytes(creation);
    let mut made = Made::new(around);
    let Creation { layout, stripe, bytes, id, files, .. } = *creation;
    let (stale, lost, grows) = (BTreeSet::new(), BTreeSet::new(), None);
    let mut written = Description { members: Vec::new(), layout, stripe, bytes, id, stale, lost, grows, files };
    for (member, spec) in creation.members.iter().enumerate() {
        if let MemberSpec::Memory(asked) = spec {
            let member_bytes = asked.unwrap_or(needed);
            if member_bytes < needed {
                let why = format!("memory of {member_bytes} bytes is too small: {needed} are needed of each member");
                return Err(HomeError::Member { path: description.to_path_buf(), why });
            }
            written.members.push((spec.clone(), member_bytes));
            continue;
        }
        let members = creation.members.len() as u16;
        let superblock = Superblock { members, ..written.superblock(&creation.name, member, needed) };
        written.members.push(make_specified(spec, &superblock, (id, member), &mut made)?);
    }
    Ok((written, made))
}

/// Makes a member that outlives the node; what is written down of it.
pub(super) fn make_specified(
    spec: &MemberSpec,
    superblock: &Superblock,
    member: ([u8; 16], usize),
    made: &mut Made<'_>,
) -> Result<(MemberSpec, u64), HomeError> {
    if let MemberSpec::Remote(remote) = spec {
        // Its own node has checksums.
        remote::make(made.reach, remote, &Superblock { sums_bytes: 0, ..superblock.clone() }, &**made.clock)?;
        made.remotes.push((remote.clone(), member));
        return Ok((spec.clone(), superblock.member_bytes));
    }
    let Some(path) = spec.path() else { return Ok((spec.clone(), superblock.member_bytes)) };
    let path = std::path::absolute(path).map_err(of(path))?;
    let side = matches!(spec, MemberSpec::Volatile { .. }).then(|| side_of(&path));
    side.as_deref().map_or(Ok(()), is_free)?;
    make_member(&path, superblock)?;
    made.files.push(path.clone());
    if let Some(side) = side {
        make_side(&side)?;
        made.files.push(side);
    }
    Ok((spec.at(path), 0))
}

/// What is written down of it is lines of text.
pub(super) fn can_be_written(spec: &MemberSpec) -> Result<(), HomeError> {
    let is_text = |path: &Path| path.to_str().is_some_and(|path| !path.contains(char::is_control));
    let (fits, why) = match spec {
        MemberSpec::Remote(remote) => {
            let mut keys = [&remote.key_file, &remote.access_key].into_iter().flatten();
            let fits =
                !remote.to_string().contains(char::is_control) && keys.all(|key| key.is_absolute() && is_text(key));
            (fits, "it, or a key's absolute path, cannot be written down; choose another")
        }
        spec => {
            let fits = |path: &Path| std::path::absolute(path).is_ok_and(|path| is_text(&path));
            (spec.path().is_none_or(fits), "its path cannot be written down; choose another")
        }
    };
    if fits { Ok(()) } else { Err(HomeError::Member { path: spec.named(), why: why.to_owned() }) }
}

/// Nothing lies where a member is to be.
pub(super) fn is_free(path: &Path) -> Result<(), HomeError> {
    let there = std::fs::symlink_metadata(path);
    if !there.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        let why = "is there already; name a file that is not, or delete the volume that it belongs to".to_owned();
        return Err(HomeError::Member { path: path.to_path_buf(), why });
    }
    Ok(())
}

/// A member's file appears under its name with its superblock and all of its room.
pub(super) fn make_member(path: &Path, superblock: &Superblock) -> Result<(), HomeError> {
    is_free(path)?;
    let file = AtomicFile::create(path).map_err(of(path))?;
    file.file().set_len(superblock.data_start().saturating_add(superblock.member_bytes)).map_err(of(path))?;
    let block = superblock.bytes();
    for copy in 0..2 {
        file.file().write_all_at(&block, copy * BLOCK_BYTES as u64).map_err(of(path))?;
    }
    if let Some(sums) = superblock.sums() {
        file.file().write_all_at(&sums.empty_bitmap(), sums.bitmap).map_err(of(path))?;
    }
    file.publish().map_err(of(path))?;
    Ok(())
}

/// Where what no flush covered lies of a member that forgets.
pub(super) fn side_of(path: &Path) -> PathBuf {
    let mut side = path.as_os_str().to_owned();
    side.push(SIDE_SUFFIX);
    side.into()
}

pub(super) fn make_side(path: &Path) -> Result<(), HomeError> {
    let file = AtomicFile::create(path).map_err(of(path))?;
    file.file().set_len(SIDE_BYTES).map_err(of(path))?;
    file.publish().map_err(of(path))?;
    Ok(())
}

/// Bytes of each member: whole blocks, and whole stripes where there are any.
pub(super) fn member_bytes(creation: &Creation) -> u64 {
    let count = creation.members.len() as u64;
    let data = match creation.layout {
        LayoutKind::Concat | LayoutKind::Stripes => count,
        LayoutKind::Mirror => 1,
        LayoutKind::Parity => count.saturating_sub(1).max(1),
    };
    let unit = if creation.layout.is_striped() { creation.stripe } else { 0 }.max(BLOCK_BYTES as u64);
    let each = creation.bytes.div_ceil(data).max(1);
    each.checked_next_multiple_of(unit).unwrap_or(each)
}

/// Members that were made for a volume that does not come about are taken away.
pub(super) struct Made<'a> {
    pub(super) files: Vec<PathBuf>,
    /// Volumes of other nodes: which member each is.
    remotes: Vec<(RemoteVolume, ([u8; 16], usize))>,
    reach: Reached<'a>,
    clock: &'a Arc<dyn Clock>,
}

impl<'a> Made<'a> {
    pub(super) fn new((reach, clock): (Reached<'a>, &'a Arc<dyn Clock>)) -> Made<'a> {
        Made { files: Vec::new(), remotes: Vec::new(), reach, clock }
    }

    /// The volume has come about.
    pub(super) fn stay(&mut self) {
        self.files.clear();
        self.remotes.clear();
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        self.files.iter().for_each(|path| _ = fs::remove_file(path));
        for (remote, member) in &self.remotes {
            let _ = remote::release(self.reach, remote, *member, &**self.clock);
        }
    }
}

const SIDE_SUFFIX: &str = ".unflushed";
