//! What is written down of a volume: a file of lines in the home folder.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use overside_disk::AtomicFile;

use super::{HomeError, LayoutKind, MEMBERS_MAX, Place, of};

/// What is written down of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    /// Places, and of memory its bytes.
    pub(super) members: Vec<(Place, u64)>,
    pub(super) layout: LayoutKind,
    pub(super) stripe: u64,
    pub(super) bytes: u64,
    pub(super) id: [u8; 16],
    /// Members of a mirror or of RAID 5 that have missed writes, by number. They are not read.
    pub(super) stale: BTreeSet<usize>,
}

impl Description {
    /// From a file's text.
    ///
    /// # Errors
    /// [`HomeError::Description`] with the line that no program of this version writes.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Description, HomeError> {
        let mut found = Description {
            members: Vec::new(),
            layout: LayoutKind::Concat,
            stripe: 0,
            bytes: 0,
            id: [0; 16],
            stale: BTreeSet::new(),
        };
        let (mut layouts, mut ids, mut last) = (0, 0, 0);
        for (at, line) in text.lines().enumerate() {
            last = at + 1;
            let wrong = || HomeError::Description { path: path.to_path_buf(), line: at + 1 };
            let (word, rest) = line.split_once(' ').ok_or_else(wrong)?;
            match word {
                _ if at == 0 && line == FIRST => {}
                _ if at == 0 => return Err(wrong()),
                "file" if Path::new(rest).is_absolute() => found.members.push((Place::File(rest.into()), 0)),
                "memory" => found.members.push((Place::Memory(None), rest.parse().map_err(|_| wrong())?)),
                "volatile" => {
                    let (seed, path) = rest.split_once(' ').ok_or_else(wrong)?;
                    let (seed, path) = (seed.parse().map_err(|_| wrong())?, Path::new(path).to_path_buf());
                    if !path.is_absolute() {
                        return Err(wrong());
                    }
                    found.members.push((Place::Volatile { seed, path }, 0));
                }
                "layout" => {
                    let mut words = rest.split(' ');
                    let mut next = || words.next().ok_or_else(wrong);
                    found.layout = LayoutKind::parse(next()?).ok_or_else(wrong)?;
                    found.stripe = next()?.parse().map_err(|_| wrong())?;
                    found.bytes = next()?.parse().map_err(|_| wrong())?;
                    layouts += 1;
                }
                "id" if rest.len() == 32 && rest.is_ascii() => {
                    for (byte, two) in found.id.iter_mut().zip(rest.as_bytes().chunks(2)) {
                        let two = std::str::from_utf8(two).map_err(|_| wrong())?;
                        *byte = u8::from_str_radix(two, 16).map_err(|_| wrong())?;
                    }
                    ids += 1;
                }
                "stale" => {
                    let member: usize = rest.parse().map_err(|_| wrong())?;
                    if !found.stale.insert(member) {
                        return Err(wrong());
                    }
                }
                _ => return Err(wrong()),
            }
        }
        let count = found.members.len();
        let is_one = (layouts, ids) == (1, 1) && (1..=MEMBERS_MAX).contains(&count);
        // One side of a mirror is always current, and of RAID 5 all members but one.
        let stale = &found.stale;
        let may_be_stale = match found.layout {
            LayoutKind::Mirror => stale.len() < count,
            LayoutKind::Parity => stale.len() < 2,
            LayoutKind::Concat | LayoutKind::Stripes => false,
        };
        if !is_one || stale.iter().any(|member| *member >= count) || !(stale.is_empty() || may_be_stale) {
            return Err(HomeError::Description { path: path.to_path_buf(), line: last.max(1) });
        }
        Ok(found)
    }

    /// As it is written down.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{FIRST}\n");
        for (place, bytes) in &self.members {
            let _ = match place {
                Place::File(path) => writeln!(text, "file {}", path.display()),
                Place::Memory(_) => writeln!(text, "memory {bytes}"),
                Place::Volatile { seed, path } => writeln!(text, "volatile {seed} {}", path.display()),
            };
        }
        let _ = writeln!(text, "layout {} {} {}", self.layout.name(), self.stripe, self.bytes);
        let id: String = self.id.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(text, "id {id}");
        self.stale.iter().for_each(|member| _ = writeln!(text, "stale {member}"));
        text
    }

    /// Writes it down, in the place of what was; on stable storage when this returns.
    ///
    /// # Errors
    /// The disk says no; what was written down before stays.
    pub(super) fn publish(&self, path: &Path) -> Result<(), HomeError> {
        replace(path, &self.text()).map_err(of(path))
    }

    /// What is written down at `path`; none where nothing is.
    ///
    /// # Errors
    /// The disk says no, or it is not what this program writes.
    pub(super) fn read(path: &Path) -> Result<Option<Description>, HomeError> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(path, &text).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(of(path)(error)),
        }
    }
}

/// Writes a small file in the place of what was there; on stable storage when this returns.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let file = AtomicFile::create(path)?;
    file.file().write_all(text.as_bytes())?;
    file.publish()?;
    // Its name, too.
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

const FIRST: &str = "overside-volume 1";
