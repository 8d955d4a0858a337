//! Members that have missed writes get what the others have, while nobody serves the volume.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overside_verbs::Clock;
use overside_volume::{Hint, MemberState, Work, complete, wait};

use super::assemble::{assemble, open_member};
use super::{DELETE_PATIENCE, DISK_PATIENCE, Home, HomeError, Superblock, make_member, make_side, of, side_of};

impl Home {
    /// Brings each member up to date that has missed writes, and makes those anew that are gone. Nobody may serve the
    /// volume meanwhile. Which members these were; `on_progress` hears bytes of the volume that are done, and of how many.
    ///
    /// # Errors
    /// It is open elsewhere, too few current members can be read, or a file lies in a member's place that is none of it.
    pub fn repair(
        &self,
        name: &str,
        clock: &Arc<dyn Clock>,
        mut on_progress: impl FnMut(u64, u64),
    ) -> Result<Vec<PathBuf>, HomeError> {
        let (mut description, places) = (self.description(name)?, (self.path(name), self.intents(name)));
        let (mut source, mut gone, mut refused) = (None, Vec::new(), None);
        for (number, (place, _)) in description.members.iter().enumerate() {
            let Some(path) = place.path() else { continue };
            match open_member(path, &description, number, DELETE_PATIENCE) {
                Err(error @ HomeError::InUse(_)) => return Err(error),
                Err(HomeError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => gone.push(number),
                Err(error) => refused = refused.or(Some(error)),
                Ok(_) => source = source.or(Some(path.to_path_buf())),
            }
        }
        if !gone.is_empty() || refused.is_some() {
            // It notes that they are stale, and what a crash left that cannot be told without them.
            drop(assemble(&description, Some(places.clone()), clock)?);
            description = self.description(name)?;
        }
        if let Some(error) = refused {
            return Err(error);
        }
        let stale: Vec<PathBuf> = description
            .stale
            .iter()
            .filter_map(|number| Some(description.members.get(*number)?.0.path()?.to_path_buf()))
            .collect();
        let Some(source) = source.filter(|_| !stale.is_empty()) else { return Ok(Vec::new()) };
        let superblock = superblock(&source)?;
        for number in gone {
            let Some(path) = description.members[number].0.path() else { continue };
            let superblock = Superblock { member: number as u16, ..superblock.clone() };
            make_member(path, &superblock)?;
            if side_of(path).exists() {
                std::fs::remove_file(side_of(path)).map_err(of(path))?;
                make_side(&side_of(path))?;
            }
        }
        let mut opened = assemble(&description, Some(places), clock)?;
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
        let all = Work::Hint { at: 0, length: bytes, hint: Hint::DontNeed };
        for work in [Work::Flush, all] {
            let ended = complete(&mut *opened.device, &**clock, work, DISK_PATIENCE);
            ended.1.map_err(|why| HomeError::Device { path: stale[0].clone(), why })?;
        }
        Ok(stale)
    }
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
