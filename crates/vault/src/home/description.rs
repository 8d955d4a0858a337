//! What is written down of a volume: a file of lines in the home folder.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use overside_disk::{AtomicFile, BLOCK_BYTES};
use overside_volume::LostRange;
use overside_volume::files::Preset;

use super::{HomeError, LayoutKind, MEMBERS_MAX, MemberSpec, RemoteVolume, Superblock, of};
use crate::members::SpindleKind;

/// What is written down of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    /// Places, and of memory and of other nodes' volumes their bytes.
    pub(super) members: Vec<(MemberSpec, u64)>,
    pub(super) layout: LayoutKind,
    pub(super) stripe: u64,
    pub(super) bytes: u64,
    pub(super) id: [u8; 16],
    /// Members of a mirror or of RAID 5 that have missed writes, by number. They are not read.
    pub(super) stale: BTreeSet<usize>,
    /// What members of a mirror or of RAID 5 lack that nobody can make anew.
    pub(super) lost: BTreeSet<LostRange>,
    /// It becomes so long: whoever opens it finishes that first.
    pub(super) grows: Option<u64>,
    /// It keeps files.
    pub(super) files: Option<Preset>,
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
            lost: BTreeSet::new(),
            grows: None,
            files: None,
        };
        let (mut layouts, mut ids, mut last) = (0, 0, 0);
        for (at, line) in text.lines().enumerate() {
            last = at + 1;
            let wrong = || HomeError::Description { path: path.to_path_buf(), line: at + 1 };
            if at == 0 && line == FIRST {
                continue;
            }
            let (word, rest) = line.split_once(' ').filter(|_| at > 0).ok_or_else(wrong)?;
            let taken = match word {
                "layout" => found.take_layout(rest).inspect(|()| layouts += 1),
                "id" => parse_id(rest).map(|id| (found.id, ids) = (id, ids + 1)),
                "grows" if found.grows.is_none() => rest.parse().ok().map(|bytes| found.grows = Some(bytes)),
                "files" if found.files.is_none() => Preset::parse(rest).map(|preset| found.files = Some(preset)),
                "stale" => rest.parse().ok().filter(|member| found.stale.insert(*member)).map(drop),
                "lost" | "kept" => lost(word, rest).filter(|range| found.lost.insert(*range)).map(drop),
                _ => take_member(&mut found.members, word, rest),
            };
            taken.ok_or_else(wrong)?;
        }
        if (layouts, ids) != (1, 1) || !found.is_whole() {
            return Err(HomeError::Description { path: path.to_path_buf(), line: last.max(1) });
        }
        Ok(found)
    }

    fn take_layout(&mut self, rest: &str) -> Option<()> {
        let mut words = rest.split(' ');
        self.layout = LayoutKind::parse(words.next()?)?;
        self.stripe = words.next()?.parse().ok()?;
        self.bytes = words.next()?.parse().ok()?;
        Some(())
    }

    /// Whether there are members, and what is said of them can be.
    fn is_whole(&self) -> bool {
        let (count, stale) = (self.members.len(), &self.stale);
        // One side of a mirror is always current, and of RAID 5 all members but one.
        let may_be_stale = match self.layout {
            LayoutKind::Mirror => stale.len() < count,
            LayoutKind::Parity => stale.len() < 2,
            LayoutKind::Concat | LayoutKind::Stripes => false,
        };
        let may_be_lost = self.layout.is_redundant()
            && self.lost.iter().all(|range| range.member < count && range.at.checked_add(range.length).is_some());
        (1..=MEMBERS_MAX).contains(&count)
            && stale.iter().all(|member| *member < count)
            && (stale.is_empty() || may_be_stale)
            && (self.lost.is_empty() || may_be_lost)
    }

    /// What a member of so many bytes says of itself.
    pub(super) fn superblock(&self, name: &str, member: usize, member_bytes: u64) -> Superblock {
        Superblock {
            generation: 1,
            id: self.id,
            member: member as u16,
            members: self.members.len() as u16,
            layout: self.layout,
            stripe: self.stripe,
            volume_bytes: self.bytes,
            member_bytes,
            sums_bytes: Superblock::room_for_sums(member_bytes),
            name: name.to_owned(),
        }
    }

    /// Another member is in the place of one: it has nothing of what that one kept.
    pub(super) fn is_replaced(&mut self, number: usize) {
        let lost = std::mem::take(&mut self.lost).into_iter();
        // Of a mirror it gets everything anew; of RAID 5 what nobody can make anew stays so.
        let lost = lost.filter(|range| self.layout == LayoutKind::Parity || range.member != number);
        let lost = lost.map(|range| LostRange { kept: range.kept && range.member != number, ..range });
        self.lost = lost.collect();
    }

    /// As it is written down.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{FIRST}\n");
        self.members.iter().for_each(|(spec, bytes)| text.push_str(&member_text(spec, *bytes)));
        let _ = writeln!(text, "layout {} {} {}", self.layout.name(), self.stripe, self.bytes);
        let id = id_text(&self.id);
        let _ = writeln!(text, "id {id}");
        self.stale.iter().for_each(|member| _ = writeln!(text, "stale {member}"));
        for LostRange { member, at, length, kept } in &self.lost {
            let _ = writeln!(text, "{} {member} {at} {length}", if *kept { "kept" } else { "lost" });
        }
        self.files.iter().for_each(|preset| _ = writeln!(text, "files {}", preset.name()));
        self.grows.iter().for_each(|bytes| _ = writeln!(text, "grows {bytes}"));
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

/// A line of a member; none: it is no such line.
pub(super) fn take_member(members: &mut Vec<(MemberSpec, u64)>, word: &str, rest: &str) -> Option<()> {
    let absolute = |path: &str| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let member = match word {
        "file" => (MemberSpec::File(absolute(rest)?), 0),
        "memory" => (MemberSpec::Memory(None), rest.parse().ok()?),
        "volatile" => {
            let (seed, path) = rest.split_once(' ')?;
            (MemberSpec::Volatile { seed: seed.parse().ok()?, path: absolute(path)? }, 0)
        }
        "spindle" => {
            let (kind, path) = rest.split_once(' ')?;
            (MemberSpec::Spindle { kind: SpindleKind::parse(kind)?, path: absolute(path)? }, 0)
        }
        "remote" => {
            let (bytes, target) = rest.split_once(' ')?;
            let (address, volume) = target.rsplit_once('/')?;
            let (address, volume) = (address.to_owned(), volume.to_owned());
            let remote = RemoteVolume { address, volume, key_file: None, access_key: None };
            (MemberSpec::Remote(remote), bytes.parse().ok()?)
        }
        // Of the member before.
        "key-file" | "access-key" => {
            let (MemberSpec::Remote(remote), _) = members.last_mut()? else { return None };
            let key = if word == "key-file" { &mut remote.key_file } else { &mut remote.access_key };
            let is_first = key.is_none();
            *key = Some(absolute(rest)?);
            return is_first.then_some(());
        }
        _ => return None,
    };
    members.push(member);
    Some(())
}

/// A member's lines, which [`take_member`] takes one by one.
pub(super) fn member_text(spec: &MemberSpec, bytes: u64) -> String {
    match spec {
        MemberSpec::File(path) => format!("file {}\n", path.display()),
        MemberSpec::Memory(_) => format!("memory {bytes}\n"),
        MemberSpec::Volatile { seed, path } => format!("volatile {seed} {}\n", path.display()),
        MemberSpec::Spindle { kind, path } => format!("spindle {} {}\n", kind.name(), path.display()),
        MemberSpec::Remote(remote) => {
            let mut text = format!("remote {bytes} {remote}\n");
            let keys = [("key-file", &remote.key_file), ("access-key", &remote.access_key)];
            let given = keys.into_iter().filter_map(|(word, key)| Some((word, key.as_ref()?)));
            given.for_each(|(word, key)| _ = writeln!(text, "{word} {}", key.display()));
            text
        }
    }
}

/// A line of what a member lacks. The first ones were of a block each, and did not say so.
fn lost(word: &str, rest: &str) -> Option<LostRange> {
    let mut words = rest.split(' ');
    let (member, at) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let length = words.next().map_or(Some(BLOCK_BYTES as u64), |length| length.parse().ok())?;
    (words.next().is_none() && length > 0).then_some(LostRange { member, at, length, kept: word == "kept" })
}

/// Writes a small file in the place of what was there; on stable storage when this returns.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let file = AtomicFile::create(path)?;
    file.file().write_all(text.as_bytes())?;
    file.publish()?;
    // Its name, too.
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// A volume's id, as text.
pub(super) fn id_text(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// And from text.
pub(super) fn parse_id(text: &str) -> Option<[u8; 16]> {
    let twos = Some(text).filter(|text| text.len() == 32 && text.is_ascii())?.as_bytes().chunks(2);
    let mut id = [0; 16];
    for (byte, two) in id.iter_mut().zip(twos) {
        *byte = u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()?;
    }
    Some(id)
}

const FIRST: &str = "overside-volume 1";
