//! A mirror's members that have missed writes get what the others have.

use std::path::PathBuf;
use std::time::Duration;

use overside_memory::{Bytes, Segment};
use overside_verbs::Clock;
use overside_volume::{Device, DeviceError, Work, complete};

use super::{DATA_START, DELETE_PATIENCE, Home, HomeError, LayoutKind, Place, Superblock, make_member, open_member};
use crate::members::FileMember;

impl Home {
    /// Copies a current member of a mirror onto each that has missed writes, and makes those anew that are gone.
    /// Nobody may serve the volume meanwhile. Which members these were; `on_progress` hears bytes that are copied, and of how many.
    ///
    /// # Errors
    /// It is open elsewhere, no current member can be read, or a file lies in a member's place that is none of it.
    pub fn repair(
        &self,
        name: &str,
        clock: &dyn Clock,
        mut on_progress: impl FnMut(u64, u64),
    ) -> Result<Vec<PathBuf>, HomeError> {
        let (mut description, written) = (self.description(name)?, self.path(name));
        let (mut source, mut stale) = (None, Vec::new());
        for (number, (place, _)) in description.members.iter().enumerate() {
            let Place::File(path) = place else { continue };
            match open_member(path, &description, number, DELETE_PATIENCE) {
                Err(error @ HomeError::InUse(_)) => return Err(error),
                Ok(member) if !description.stale.contains(&number) => source = source.or(Some((path.clone(), member))),
                opened => stale.push((number, path.clone(), opened)),
            }
        }
        if stale.is_empty() {
            return Ok(Vec::new());
        }
        let Some((path, mut source)) = source else {
            let current = stale.into_iter().filter(|(number, ..)| !description.stale.contains(number));
            let why = "no member that has all writes can be opened; bring one back".to_owned();
            return Err(current
                .filter_map(|(.., opened)| opened.err())
                .next()
                .unwrap_or(HomeError::Member { path: written, why }));
        };
        if description.layout != LayoutKind::Mirror {
            // Nothing else has what such a member had.
            let refused = stale.into_iter().find_map(|(.., opened)| opened.err());
            return refused.map_or(Ok(Vec::new()), Err);
        }
        // Until it is whole again it is not read, whatever becomes of this process.
        description.stale.extend(stale.iter().map(|(number, ..)| *number));
        description.publish(&written)?;
        let superblock = source_superblock(&path)?;
        let (all, mut copied) = (source.geometry().bytes * stale.len() as u64, 0);
        let mut mended = Vec::new();
        for (number, path, opened) in stale {
            let mut target = match opened {
                Ok(member) => member,
                Err(HomeError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                    let superblock = Superblock { member: number as u16, ..superblock.clone() };
                    make_member(&path, &superblock, superblock.member_bytes)?;
                    open_member(&path, &description, number, DELETE_PATIENCE)?
                }
                Err(error) => return Err(error),
            };
            copy(&mut source, &mut target, clock, |bytes| {
                copied += bytes;
                on_progress(copied, all);
            })
            .map_err(|error| HomeError::Member { path: path.clone(), why: format!("cannot be mended: {error}") })?;
            description.stale.remove(&number);
            description.publish(&written)?;
            mended.push(path);
        }
        Ok(mended)
    }
}

/// Which volume a member is of.
fn source_superblock(path: &std::path::Path) -> Result<Superblock, HomeError> {
    use std::os::unix::fs::FileExt;
    let mut blocks = [0; 2 * overside_disk::BLOCK_BYTES];
    let file = std::fs::File::open(path).map_err(super::of(path))?;
    file.read_exact_at(&mut blocks, 0).map_err(super::of(path))?;
    Superblock::newer(&blocks).map_err(|why| HomeError::Member {
        path: path.to_path_buf(),
        why: format!("has no superblock: {why}; restore the member"),
    })
}

/// All of `source`'s bytes, on stable storage when this returns.
fn copy(
    source: &mut FileMember,
    target: &mut FileMember,
    clock: &dyn Clock,
    mut on_bytes: impl FnMut(u64),
) -> Result<(), DeviceError> {
    let segment = Segment::private(STEP).map_err(|_| DeviceError::NoMemory)?;
    let mut buffer = segment.carve(STEP).pop();
    let bytes = source.geometry().bytes;
    for at in (0..bytes).step_by(STEP) {
        let length = (bytes - at).min(STEP as u64) as usize;
        let into = buffer.take().ok_or(DeviceError::Failed)?;
        let (work, result) = complete(source, clock, Work::Read { at, length, into }, PATIENCE);
        result?;
        let Some(Work::Read { into, .. }) = work else { return Err(DeviceError::Failed) };
        let write = Work::Write { at, from: Bytes::prefix(into, length), fua: false };
        let (work, result) = complete(target, clock, write, PATIENCE);
        result?;
        let Some(Work::Write { from, .. }) = work else { return Err(DeviceError::Failed) };
        buffer = from.into_buffer().ok();
        on_bytes(length as u64);
    }
    complete(target, clock, Work::Flush, PATIENCE).1
}

const _: () = assert!(DATA_START.is_multiple_of(STEP as u64));
const STEP: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
