//! What a creation or a replacement that was killed leaves. A note names the members before the
//! first of them is made; who finds one that nobody holds takes those members away that are none
//! of a volume.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overside_verbs::Clock;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::description::{Description, id_text, member_text, parse_id, take_member};
use super::making::side_of;
use super::remote::{self, Reached};
use super::repair::superblock;
use super::{HomeError, INTENTS_SUFFIX, MemberSpec, SUFFIX, of};

/// The note of what is being made, held for as long as that lasts.
#[derive(Debug)]
pub(super) struct Unfinished {
    path: PathBuf,
    _held: File,
}

impl Unfinished {
    /// Notes which members are to be made for a volume, by their numbers.
    ///
    /// # Errors
    /// Another process is making members of a volume of this name, or the note cannot be written.
    pub(super) fn note<'a>(
        folder: &Path,
        (name, id): (&str, &[u8; 16]),
        members: impl IntoIterator<Item = (usize, &'a MemberSpec)>,
    ) -> Result<Unfinished, HomeError> {
        let path = folder.join(format!("{name}{NOTE_SUFFIX}"));
        let mut file =
            File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(of(&path))?;
        if !is_held(&file, &path)? {
            let why = "is being made, or gets a member, by another process; wait for it".to_owned();
            return Err(HomeError::Refused { name: name.to_owned(), why });
        }
        if file.metadata().map_err(of(&path))?.len() > 0 {
            // It was swept just now, and stays for what could not be looked at.
            let why = "has members that a killed process left, and one cannot be looked at; try again once it is there";
            return Err(HomeError::Refused { name: name.to_owned(), why: why.to_owned() });
        }
        let mut text = id_text(id);
        for (number, spec) in members {
            let path = spec.path().map(|path| std::path::absolute(path).map_err(of(path))).transpose()?;
            let spec = path.map_or_else(|| spec.clone(), |path| spec.at(path));
            text.extend(member_text(&spec, 0).lines().map(|line| format!("\n{number} {line}")));
        }
        text.push_str(END);
        file.write_all(text.as_bytes()).map_err(of(&path))?;
        file.sync_all().and_then(|()| File::open(folder)?.sync_all()).map_err(of(&path))?;
        Ok(Unfinished { path, _held: file })
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Takes away what those left that are no more. What cannot be looked at stays for the next time.
pub(super) fn sweep(folder: &Path, around: (Reached<'_>, &Arc<dyn Clock>)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Some(name) = entry.file_name().to_str().and_then(|file| file.strip_suffix(NOTE_SUFFIX)) {
            let _ = take_away(folder, name, &path, around);
        }
    }
}

fn take_away(
    folder: &Path,
    name: &str,
    path: &Path,
    (reach, clock): (Reached<'_>, &Arc<dyn Clock>),
) -> Result<(), HomeError> {
    let mut file = File::options().read(true).write(true).open(path).map_err(of(path))?;
    if !is_held(&file, path)? {
        return Ok(());
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(of(path))?;
    // Without an end it was killed before it made anything.
    if let Some(Noted { id, members }) = text.strip_suffix(END).and_then(noted) {
        let volume = Description::read(&folder.join(format!("{name}{SUFFIX}")))?;
        // Where it came about, only the note was left. It may have another name by now.
        let all = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let all = all.filter(|path| path.to_str().is_some_and(|path| path.ends_with(SUFFIX)));
        // While one cannot be read, nobody knows whose members they are.
        let volumes = all.map(|path| Description::read(&path)).collect::<Result<Vec<_>, _>>()?;
        let is_member = |spec: &MemberSpec| {
            let volumes = volumes.iter().flatten().filter(|volume| volume.id == id);
            volumes.flat_map(|volume| &volume.members).any(|(member, _)| member.is_where(spec))
        };
        // Nothing is written before a volume comes about: this one did, and is in another home now.
        let is_used = members.iter().any(|(_, spec)| spec.path().is_some_and(|path| is_written(path, &id)));
        for (number, spec) in members.iter().filter(|(_, spec)| !is_used && !is_member(spec)) {
            if let MemberSpec::Remote(remote) = spec {
                let left = remote::release_left(reach, remote, (id, *number), &**clock);
                left.map_err(|why| HomeError::Member { path: spec.named(), why })?;
            }
            // Whatever else lies there is a stranger's.
            let Some(member) = spec.path().filter(|path| superblock(path).is_ok_and(|found| found.id == id)) else {
                continue;
            };
            if let MemberSpec::Volatile { path, .. } = spec {
                // The member says whose it is.
                let _ = fs::remove_file(side_of(path));
            }
            fs::remove_file(member).map_err(of(member))?;
        }
        if volume.is_none() {
            let _ = fs::remove_file(folder.join(format!("{name}{INTENTS_SUFFIX}")));
        }
    }
    fs::remove_file(path).map_err(of(path))
}

/// Whether a member of this volume has any bytes behind what it says of itself.
fn is_written(path: &Path, id: &[u8; 16]) -> bool {
    let Some(found) = superblock(path).ok().filter(|found| found.id == *id) else { return false };
    let data = |file: File| rustix::fs::seek(file, SeekFrom::Data(found.data_start()));
    File::open(path).is_ok_and(|file| data(file) != Err(Errno::NXIO))
}

/// What a note says, but for its end.
struct Noted {
    /// The volume's.
    id: [u8; 16],
    /// By their numbers.
    members: Vec<(usize, MemberSpec)>,
}

fn noted(text: &str) -> Option<Noted> {
    let (mut lines, mut numbers, mut members) = (text.lines(), Vec::new(), Vec::new());
    let id = parse_id(lines.next()?)?;
    for line in lines {
        let (number, line) = line.split_once(' ')?;
        let (word, rest) = line.split_once(' ')?;
        take_member(&mut members, word, rest)?;
        numbers.resize(members.len(), number.parse().ok()?);
    }
    let members = numbers.into_iter().zip(members).map(|(number, (spec, _))| (number, spec)).collect();
    Some(Noted { id, members })
}

/// Whether this process has it now, under its name, and no other.
fn is_held(file: &File, path: &Path) -> Result<bool, HomeError> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(of(path)(error)),
    }
    let own = file.metadata().map_err(of(path))?;
    Ok(fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())))
}

pub(super) const NOTE_SUFFIX: &str = ".making";
const END: &str = "\nend\n";
