//! Members that have missed writes get what the others have, while nobody serves the volume.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overside_verbs::Clock;
use overside_volume::{Device, Hint, MemberState, Work, complete, wait};

use super::assemble::{assemble, member_bytes, open_member};
use super::description::Description;
use super::making::{make_member, make_side, side_of};
use super::{DELETE_PATIENCE, DISK_PATIENCE, Home, HomeError, MemberSpec, Superblock, of, remote};

impl Home {
    /// Brings each member up to date that has missed writes, and makes those anew that are gone.
    /// Nobody may serve the volume meanwhile. Which members these were; `on_progress` hears bytes
    /// of the volume that are done, and of how many.
    ///
    /// # Errors
    /// It is open elsewhere, too few current members can be read, or a file lies in a member's
    /// place that is none of it.
    pub fn repair(
        &self,
        name: &str,
        clock: &Arc<dyn Clock>,
        mut on_progress: impl FnMut(u64, u64),
    ) -> Result<Vec<PathBuf>, HomeError> {
        let (mut description, places) = (self.ready(name, clock)?, (self.path(name), self.intents(name)));
        let held = remote::hold(&description, &places.0, clock, DELETE_PATIENCE)?;
        let (mut source, mut gone, mut refused) = (None, Vec::new(), None);
        for (number, (spec, _)) in description.members.iter().enumerate() {
            if let (MemberSpec::Remote(remote), true) = (spec, description.stale.contains(&number)) {
                // Its node has to be there.
                let bytes = description.members[number].1;
                let opened = remote::open((remote, bytes), &description, number, self.around(clock), (&held, None));
                refused = refused.or(opened.err());
            }
            let Some(path) = spec.path() else { continue };
            match open_member(path, &description, number, DELETE_PATIENCE) {
                Err(error @ HomeError::InUse(_)) => return Err(error),
                Err(HomeError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => gone.push(number),
                Err(error) => refused = refused.or(Some(error)),
                Ok(_) => source = source.or(Some(path.to_path_buf())),
            }
        }
        drop(held);
        if !gone.is_empty() || refused.is_some() {
            // It notes that they are stale, and what a crash left that cannot be told without them.
            drop(assemble(&description, Some(places.clone()), self.around(clock))?);
            description = self.description(name)?;
        }
        if let Some(error) = refused {
            return Err(error);
        }
        let named = |number: &usize| description.members.get(*number).map(|(spec, _)| spec.named());
        let stale: Vec<PathBuf> = description.stale.iter().filter_map(named).collect();
        if stale.is_empty() {
            return Ok(stale);
        }
        let superblock = match source {
            Some(source) => superblock(&source)?,
            None => description.superblock(name, 0, member_bytes(&description)?),
        };
        if !gone.is_empty() {
            gone.iter().for_each(|number| description.is_replaced(*number));
            description.publish(&places.0)?;
        }
        gone.into_iter().try_for_each(|number| remake(&description, number, &superblock))?;
        let mut opened = assemble(&description, Some(places), self.around(clock))?;
        let (health, bytes) = (opened.about.health.clone(), opened.device.geometry().bytes);
        let until = |members: usize| (0..members).all(|member| health.state(member) == MemberState::Current);
        while !until(description.members.len()) {
            opened.device.poll(&mut Vec::new());
            if health.failures() > 0 {
                let why = "cannot be brought up to date; `overside volume status` says how its members do".to_owned();
                return Err(HomeError::Member { path: stale[0].clone(), why });
            }
            on_progress(health.resynced().min(bytes), bytes);
            if !until(description.members.len()) {
                let soon = clock.now() + LOOK;
                wait(&mut *opened.device, &**clock, Some(soon))
                    .map_err(|error| of(&stale[0])(io::Error::other(error)))?;
            }
        }
        // Whoever opens it next has nothing to settle.
        close(&mut *opened.device, &stale[0], &**clock)?;
        Ok(stale)
    }
}

/// Makes a member's file anew.
fn remake(description: &Description, number: usize, superblock: &Superblock) -> Result<(), HomeError> {
    let Some(path) = description.members[number].0.path() else { return Ok(()) };
    make_member(path, &Superblock { member: number as u16, ..superblock.clone() })?;
    if side_of(path).exists() {
        std::fs::remove_file(side_of(path)).map_err(of(path))?;
        make_side(&side_of(path))?;
    }
    Ok(())
}

/// Brings everything to stable storage, with nothing left that is noted.
pub(super) fn close(device: &mut dyn Device, path: &Path, clock: &dyn Clock) -> Result<(), HomeError> {
    let all = Work::Hint { at: 0, length: device.geometry().bytes, hint: Hint::DontNeed };
    for work in [Work::Flush, all] {
        let ended = complete(device, clock, work, DISK_PATIENCE);
        ended.1.map_err(|why| HomeError::Device { path: path.to_path_buf(), why })?;
    }
    Ok(())
}

/// Which volume a member is of.
pub(super) fn superblock(path: &Path) -> Result<Superblock, HomeError> {
    use std::os::unix::fs::FileExt;
    let mut blocks = [0; 2 * overside_disk::BLOCK_BYTES];
    let file = std::fs::File::open(path).map_err(of(path))?;
    file.read_exact_at(&mut blocks, 0).map_err(of(path))?;
    Superblock::newer(&blocks).map_err(|why| HomeError::Member {
        path: path.to_path_buf(),
        why: format!("has no superblock: {why}; restore the member"),
    })
}

/// How often progress is told.
const LOOK: Duration = Duration::from_millis(200);
