//! Volumes that nobody serves become larger, or get another member.
//!
//! A volume grows in two steps: what is written down says that it does, and to which length; then
//! its members do. Whoever opens it in between finishes that first.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use overside_disk::BLOCK_BYTES;
use overside_verbs::Clock;
use overside_volume::SumPlaces;

use super::assemble::{assemble, format_intents, member_bytes, open_member};
use super::description::Description;
use super::making::{Made, can_be_written, is_free, make_specified};
use super::repair::{close, superblock};
use super::unfinished::{self, Unfinished};
use super::{Creation, DELETE_PATIENCE, Home, HomeError, LayoutKind, MemberSpec, Superblock, of, remote};

impl Home {
    /// Makes a volume larger that nobody serves. What is new reads as zeros.
    ///
    /// # Errors
    /// It is open elsewhere, is not to grow so far, is not whole, or has members that do not grow.
    pub fn resize(&self, name: &str, bytes: u64, clock: &Arc<dyn Clock>) -> Result<(), HomeError> {
        let description = self.ready(name, clock)?;
        let refused = |why: String| HomeError::Refused { name: name.to_owned(), why };
        if bytes <= description.bytes {
            return Err(refused(format!(
                "has {} bytes, and does not become smaller or stay as it is; give it more, or copy it to a new one",
                description.bytes
            )));
        }
        self.close(name, &description, clock)?;
        let lengths = self.lengths(&description, bytes, clock)?;
        for Growing { spec, superblock, bytes: member_bytes, .. } in &lengths {
            let Some(path) = spec.path() else { continue };
            let room = superblock.sums_bytes;
            if room != 0 && room < SumPlaces::table_bytes(*member_bytes) {
                let why = "has no room for so many checksums: it was made for a smaller volume; copy it to a new one";
                return Err(HomeError::Member { path: path.to_path_buf(), why: why.to_owned() });
            }
            if superblock.sums().is_some_and(|places| !is_still(path, places)) {
                return Err(refused("is not settled yet; serve it, and try again later".to_owned()));
            }
        }
        // Longer files do no harm, whatever comes.
        for Growing { spec, superblock, bytes: member_bytes, .. } in &lengths {
            let end = superblock.data_start().saturating_add(*member_bytes);
            if let MemberSpec::Remote(remote) = spec {
                remote::make_room(self.around(clock).0, remote, end)?;
            }
            let Some(path) = spec.path() else { continue };
            let file = OpenOptions::new().write(true).open(path).map_err(of(path))?;
            file.set_len(end.max(file.metadata().map_err(of(path))?.len())).map_err(of(path))?;
        }
        let grows = Description { grows: Some(bytes), ..description };
        grows.publish(&self.path(name))?;
        self.grow(name, &grows, clock)
    }

    /// Puts another member in the place of one, of a volume that may lose one and that nobody
    /// serves. The next node that serves it brings the new one up to date. What the old one is
    /// called. What is killed in the middle leaves a new member that the next one takes away.
    ///
    /// # Errors
    /// It is open elsewhere, has no such member, cannot do without it, or the new one cannot be
    /// made.
    pub fn replace(
        &self,
        name: &str,
        old: &str,
        new: &MemberSpec,
        clock: &Arc<dyn Clock>,
    ) -> Result<MemberSpec, HomeError> {
        let refused = |why: String| HomeError::Refused { name: name.to_owned(), why };
        let description = self.ready(name, clock)?;
        let members: Vec<String> = description.members.iter().map(|(spec, _)| spec.to_string()).collect();
        let absolute = std::path::absolute(old).ok();
        let is_old =
            |spec: &MemberSpec| spec.to_string() == old || spec.path().is_some() && spec.path() == absolute.as_deref();
        let number = description
            .members
            .iter()
            .position(|(spec, _)| is_old(spec))
            .ok_or_else(|| refused(format!("has no member {old}; it has {}", members.join(", "))))?;
        if !description.layout.is_redundant() {
            return Err(refused(
                "cannot do without a member; only those of raid1 and raid5 can be replaced".to_owned(),
            ));
        }
        if !new.is_durable() || !description.members.iter().all(|(spec, _)| spec.is_durable()) {
            return Err(refused("is not to have members of memory in the place of others, or the reverse".to_owned()));
        }
        let lacks = |description: &Description| {
            let mut stale = description.stale.clone();
            stale.insert(number);
            let most = if description.layout == LayoutKind::Mirror { description.members.len() - 1 } else { 1 };
            if stale.len() <= most { Ok(stale) } else { Err(refused(OTHERS_STALE.to_owned())) }
        };
        lacks(&description)?;
        // A member that is not there is noted, and what a crash has left is settled, as far as it can be without it.
        self.close(name, &description, clock)?;
        let mut description = self.description(name)?;
        let stale = lacks(&description)?;
        let current = (0..members.len()).find(|other| !stale.contains(other));
        let source = current.and_then(|other| description.members[other].0.path());
        let (bytes, source) = match source {
            Some(path) => {
                let found = superblock(path)?;
                (found.member_bytes, Some(found))
            }
            None => (member_bytes(&description)?, None),
        };
        let superblock = Superblock { generation: 1, ..description.superblock(name, number, bytes) };
        let sums_bytes = source.map_or(superblock.sums_bytes, |found| found.sums_bytes.max(superblock.sums_bytes));
        let mut new = new.clone();
        if let (MemberSpec::Remote(new), MemberSpec::Remote(old)) = (&mut new, &description.members[number].0) {
            new.key_file = new.key_file.take().or_else(|| old.key_file.clone());
            new.access_key = new.access_key.take().or_else(|| old.access_key.clone());
        }
        unfinished::sweep(&self.folder, self.around(clock));
        can_be_written(&new)?;
        // The note names nothing that was there before: an old member has the volume's id, too.
        new.path().map_or(Ok(()), is_free)?;
        let _note = Unfinished::note(&self.folder, (name, &description.id), [(number, &new)])?;
        // Another replacement may have ended meanwhile: from here on there is none.
        if self.description(name)?.text() != description.text() {
            return Err(refused("has been changed meanwhile; look at it, and try again".to_owned()));
        }
        let mut made = Made::new(self.around(clock));
        let spec = make_specified(&new, &Superblock { sums_bytes, ..superblock }, (description.id, number), &mut made)?;
        let (old, _) = std::mem::replace(&mut description.members[number], spec);
        description.is_replaced(number);
        Description { stale, ..description }.publish(&self.path(name))?;
        made.stay();
        Ok(old)
    }

    /// Whether a volume is what it was once it has been closed and opened again.
    ///
    /// # Errors
    /// It lies on memory, there is none, or what is written down of it cannot be read.
    pub fn outlives_its_node(&self, name: &str) -> Result<(), HomeError> {
        match self.description(name)?.members.iter().all(|(spec, _)| spec.is_durable()) {
            true => Ok(()),
            false => Err(HomeError::Refused { name: name.to_owned(), why: ON_MEMORY.to_owned() }),
        }
    }

    /// Whether a member of any volume lies in a folder.
    pub fn has_members_in(&self, folder: &Path) -> bool {
        let descriptions = self.list().unwrap_or_default();
        let descriptions = descriptions.iter().filter_map(|name| self.description(name).ok());
        let mut members = descriptions.flat_map(|description| description.members);
        members.any(|(spec, _)| spec.path().and_then(Path::parent) == Some(folder))
    }

    /// Whether a member of any volume has this file as a key.
    pub fn has_key(&self, file: &Path) -> bool {
        let descriptions = self.list().unwrap_or_default();
        let descriptions = descriptions.iter().filter_map(|name| self.description(name).ok());
        let mut members = descriptions.flat_map(|description| description.members);
        members.any(|(spec, _)| match spec {
            MemberSpec::Remote(remote) => [remote.key_file, remote.access_key].iter().flatten().any(|key| key == file),
            _ => false,
        })
    }

    /// What is written down of a volume, once what was begun is finished.
    pub(super) fn ready(&self, name: &str, clock: &Arc<dyn Clock>) -> Result<Description, HomeError> {
        let description = self.description(name)?;
        if description.grows.is_some() {
            self.grow(name, &description, clock)?;
            return self.description(name);
        }
        Ok(description)
    }

    /// Opens it, and closes it again with nothing left to be settled.
    fn close(&self, name: &str, description: &Description, clock: &Arc<dyn Clock>) -> Result<(), HomeError> {
        let path = self.path(name);
        // Who changes a volume that is served hears so soon. What else is wrong with members is found below.
        drop(remote::hold(description, &path, clock, DELETE_PATIENCE)?);
        for (number, (spec, _)) in description.members.iter().enumerate() {
            let opened = spec.path().map(|path| open_member(path, description, number, DELETE_PATIENCE));
            if let Some(Err(error @ HomeError::InUse(_))) = opened {
                return Err(error);
            }
        }
        let mut opened = assemble(description, Some((path.clone(), self.intents(name))), self.around(clock))?;
        close(&mut *opened.device, &path, &**clock)?;
        match opened.about.health.unsettled() {
            0 => Ok(()),
            _ => Err(HomeError::Refused {
                name: name.to_owned(),
                why: "is not settled yet; serve it, and try again later".to_owned(),
            }),
        }
    }

    fn lengths(
        &self,
        description: &Description,
        bytes: u64,
        clock: &Arc<dyn Clock>,
    ) -> Result<Vec<Growing>, HomeError> {
        let wrong = |spec: &MemberSpec, why: &str| HomeError::Member { path: spec.named(), why: why.to_owned() };
        let mut lengths = Vec::new();
        for (number, (spec, _)) in description.members.iter().enumerate() {
            if description.stale.contains(&number) {
                return Err(wrong(spec, "has missed writes; wait until the volume is ok, or replace it"));
            }
            let superblock = match spec {
                MemberSpec::Remote(remote) => {
                    remote::superblock(self.around(clock).0, remote, (description.id, number), &**clock)?
                }
                _ => {
                    let path = spec.path().ok_or_else(|| wrong(spec, "does not grow: memory has no more room"))?;
                    // Nobody else has it.
                    open_member(path, description, number, DELETE_PATIENCE)?.1
                }
            };
            lengths.push(Growing { spec: spec.clone(), number, bytes: superblock.member_bytes, superblock });
        }
        if description.layout == LayoutKind::Concat {
            // What lies on the others stays where it is.
            let others = lengths.iter().rev().skip(1).fold(0u64, |sum, other| sum.saturating_add(other.bytes));
            lengths.drain(..lengths.len().saturating_sub(1));
            if let Some(last) = lengths.last_mut() {
                let whole = bytes.saturating_sub(others).checked_next_multiple_of(BLOCK_BYTES as u64);
                last.bytes = whole.unwrap_or(u64::MAX).max(last.bytes);
            }
            return Ok(lengths);
        }
        let members = description.members.iter().map(|(spec, _)| spec.clone()).collect();
        let (layout, stripe, id) = (description.layout, description.stripe, description.id);
        let needed = super::making::member_bytes(&Creation {
            name: String::new(),
            bytes,
            members,
            layout,
            stripe,
            id,
            files: None,
        });
        lengths.iter_mut().for_each(|growing| growing.bytes = needed.max(growing.bytes));
        Ok(lengths)
    }

    /// Carries out what is written down: members first, then that it is done.
    fn grow(&self, name: &str, description: &Description, clock: &Arc<dyn Clock>) -> Result<(), HomeError> {
        let Some(bytes) = description.grows else { return Ok(()) };
        let _held = remote::hold(description, &self.path(name), clock, DELETE_PATIENCE)?;
        let mut larger = Description { grows: None, bytes, ..description.clone() };
        for Growing { spec, number, superblock, bytes: member_bytes } in self.lengths(description, bytes, clock)? {
            let (generation, before) = (superblock.generation + 1, superblock.member_bytes);
            let grown = Superblock { generation, member_bytes, volume_bytes: bytes, ..superblock };
            if let MemberSpec::Remote(remote) = &spec {
                remote::grow(self.around(clock).0, remote, (description.id, number), (before, &grown), &**clock)?;
                larger.members[number].1 = member_bytes;
                continue;
            }
            let Some(path) = spec.path().map(Path::to_path_buf) else { continue };
            let (_locked, _) = open_member(&path, description, number, DELETE_PATIENCE)?;
            let file = OpenOptions::new().write(true).open(&path).map_err(of(&path))?;
            let end = grown.data_start().saturating_add(member_bytes);
            file.set_len(end.max(file.metadata().map_err(of(&path))?.len())).map_err(of(&path))?;
            if let Some(sums) = grown.sums() {
                // Nothing was noted there, and now it is of as many regions as the member has.
                file.write_all_at(&sums.empty_bitmap(), sums.bitmap).map_err(of(&path))?;
            }
            for copy in 0..2 {
                file.write_all_at(&grown.bytes(), copy * BLOCK_BYTES as u64).map_err(of(&path))?;
                file.sync_all().map_err(of(&path))?;
            }
        }
        if description.layout.is_redundant() {
            let intents = self.intents(name);
            match fs::remove_file(&intents) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(of(&intents)(error)),
                _ => {}
            }
            format_intents(&larger, &intents, clock)?;
        }
        larger.publish(&self.path(name))
    }
}

/// A member that grows.
struct Growing {
    spec: MemberSpec,
    number: usize,
    /// What it says of itself.
    superblock: Superblock,
    /// The bytes that it will have.
    bytes: u64,
}

/// Whether no region's sums may be older than its bytes.
fn is_still(path: &Path, places: SumPlaces) -> bool {
    let mut copies = vec![0; 2 * BLOCK_BYTES];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut copies, places.bitmap));
    read.is_ok() && places.notes_nothing(&copies)
}

const ON_MEMORY: &str = "lies on memory, and would lose what it holds; make another one, and copy it";
const OTHERS_STALE: &str = "has other members that have missed writes; wait until they are current";
