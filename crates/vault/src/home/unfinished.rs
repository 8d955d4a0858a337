//! What a creation or a replacement that was killed leaves. A note names the members before the
//! first of them is made; who finds one that nobody holds takes those members away that are none
//! of a volume.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::description::{Description, id_text};
use super::making::side_of;
use super::repair::superblock;
use super::{HomeError, INTENTS_SUFFIX, Place, SUFFIX, of};

/// The note of what is being made, held for as long as that lasts.
#[derive(Debug)]
pub(super) struct Unfinished {
    path: PathBuf,
    _held: File,
}

impl Unfinished {
    /// Notes what is to be made for a volume.
    ///
    /// # Errors
    /// Another process is making members of a volume of this name, or the note cannot be written.
    pub(super) fn note(
        folder: &Path,
        (name, id): (&str, &[u8; 16]),
        members: &[Place],
    ) -> Result<Unfinished, HomeError> {
        let path = folder.join(format!("{name}{NOTE_SUFFIX}"));
        let mut file =
            File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(of(&path))?;
        if !is_held(&file, &path)? {
            let why = "is being made, or gets a member, by another process; wait for it".to_owned();
            return Err(HomeError::Refused { name: name.to_owned(), why });
        }
        let mut text = id_text(id);
        for member in members.iter().filter_map(|place| place.path()) {
            let member = std::path::absolute(member).map_err(of(member))?;
            // One that cannot be written down is refused before it is made.
            text.extend(member.to_str().map(|member| format!("\n{member}")));
        }
        text.push_str(END);
        file.set_len(0).and_then(|()| file.write_all(text.as_bytes())).map_err(of(&path))?;
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
pub(super) fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Some(name) = entry.file_name().to_str().and_then(|file| file.strip_suffix(NOTE_SUFFIX)) {
            let _ = take_away(folder, name, &path);
        }
    }
}

fn take_away(folder: &Path, name: &str, path: &Path) -> Result<(), HomeError> {
    let mut file = File::options().read(true).write(true).open(path).map_err(of(path))?;
    if !is_held(&file, path)? {
        return Ok(());
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(of(path))?;
    // Without an end it was killed before it made anything.
    if let Some((id, members)) = text.strip_suffix(END).map(|text| text.split_once('\n').unwrap_or((text, ""))) {
        let is_its = |found: &[u8; 16]| id_text(found) == id;
        let volume = Description::read(&folder.join(format!("{name}{SUFFIX}")))?;
        // Where it came about, only the note was left. It may have another name by now.
        let all = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let all = all.filter(|path| path.to_str().is_some_and(|path| path.ends_with(SUFFIX)));
        // While one cannot be read, nobody knows whose members they are.
        let volumes = all.map(|path| Description::read(&path)).collect::<Result<Vec<_>, _>>()?;
        let is_member = |path: &Path| {
            let volumes = volumes.iter().flatten().filter(|volume| is_its(&volume.id));
            volumes.flat_map(|volume| &volume.members).any(|(place, _)| place.path() == Some(path))
        };
        for member in members.lines().map(Path::new).filter(|member| !is_member(member)) {
            // Whatever else lies there is a stranger's.
            if superblock(member).is_ok_and(|superblock| is_its(&superblock.id)) {
                fs::remove_file(member).map_err(of(member))?;
                let _ = fs::remove_file(side_of(member));
            }
        }
        if volume.is_none() {
            let _ = fs::remove_file(folder.join(format!("{name}{INTENTS_SUFFIX}")));
        }
    }
    fs::remove_file(path).map_err(of(path))
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
