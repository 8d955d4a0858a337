//! Where a node's volumes are written down: a folder with a file for each, and superblocks on members.

mod superblock;

pub use superblock::{DATA_START, LayoutKind, NAME_BYTES_MAX, NoSuperblock, Superblock};

use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs};

use overside_disk::{AlignedBuffer, AtomicFile, BLOCK_BYTES, Open, Request, complete};
use overside_volume::{Array, ArrayError, Device, MemoryDevice, Sectors};

use crate::members::FileMember;
use crate::server::About;

/// The volumes that a node knows.
#[derive(Clone, Debug)]
pub struct Home {
    folder: PathBuf,
}

/// A volume that is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creation {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// What it is to lie on.
    pub members: Vec<Place>,
    /// How.
    pub layout: LayoutKind,
    /// Of RAID 0, bytes on a member before the next one's turn.
    pub stripe: u64,
    /// Its id, by chance.
    pub id: [u8; 16],
}

/// What a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file.
    File(PathBuf),
    /// Memory of the node, which ends with it.
    Memory,
}

/// A volume that this process has opened.
#[derive(Debug)]
pub struct Opened {
    /// Its blocks.
    pub device: Box<dyn Device>,
    /// What it lies on.
    pub about: About,
}

/// What became of a deleted volume's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// They are no more.
    pub gone: Vec<PathBuf>,
    /// They are there, because they are not what the volume's members were; and what they are.
    pub left: Vec<(PathBuf, String)>,
}

/// Why a volume cannot be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Nothing says where volumes are written down.
    #[error("XDG_DATA_HOME and HOME are not set, so there is no place for volumes; set one of them, or give --home")]
    Nowhere,
    /// The name is none.
    #[error(
        "`{0}` is no name of a volume: use up to 64 letters, digits, `-`, `_` and `.`, the first one a letter or digit"
    )]
    Name(String),
    /// There is one of this name.
    #[error("there is a volume {0} already; delete it first, or choose another name")]
    Exists(String),
    /// There is none of this name.
    #[error("there is no volume {0} here; `overside volume create` makes one")]
    Absent(String),
    /// What is written down of it is not what this program writes.
    #[error("{}: line {line} is not what this program writes; restore the file", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// Which line.
        line: usize,
    },
    /// A member is not what it should be.
    #[error("{}: {why}", path.display())]
    Member {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Another process has it open.
    #[error("{}: another node serves the volume; stop that one first", .0.display())]
    InUse(PathBuf),
    /// The members make no volume.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// The disk says no.
    #[error("{}: {source}", path.display())]
    Io {
        /// Of what.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
}

impl Home {
    /// A folder, made if there is none.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(folder: &Path) -> Result<Home, HomeError> {
        fs::create_dir_all(folder).map_err(of(folder))?;
        Ok(Home { folder: folder.to_path_buf() })
    }

    /// This user's: `overside/volumes` in `XDG_DATA_HOME`, or in `~/.local/share`.
    ///
    /// # Errors
    /// Neither that variable nor `HOME` says where, or it cannot be made.
    pub fn of_user() -> Result<Home, HomeError> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
        Self::open(&data.ok_or(HomeError::Nowhere)?.join("overside").join("volumes"))
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Which volume a file of the folder writes down; none where it is another file.
    pub fn name_of(file: &str) -> Option<&str> {
        file.strip_suffix(SUFFIX).filter(|name| is_name(name))
    }

    /// The names of all volumes, in order.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self) -> Result<Vec<String>, HomeError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(of(&self.folder))? {
            let name = entry.map_err(of(&self.folder))?.file_name();
            names.extend(name.to_str().and_then(Self::name_of).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// Makes a volume: its members first, each whole under its name, then the file that says that there is one.
    /// What fails in the middle leaves nothing.
    ///
    /// # Errors
    /// The name or a member is taken, the members make no volume, or a disk is full.
    pub fn create(&self, creation: &Creation) -> Result<(), HomeError> {
        let name = &creation.name;
        if !is_name(name) {
            return Err(HomeError::Name(name.clone()));
        }
        let description = self.path(name);
        if description.exists() {
            return Err(HomeError::Exists(name.clone()));
        }
        let count = creation.members.len();
        if count == 0 || count > MEMBERS_MAX {
            let path = description;
            return Err(HomeError::Member { path, why: format!("a volume has 1 to {MEMBERS_MAX} members (--on)") });
        }
        let member_bytes = member_bytes(creation);
        let mut made = Made(Vec::new());
        let mut text = format!("{FIRST}\n");
        for (member, place) in creation.members.iter().enumerate() {
            let Place::File(path) = place else {
                text += &format!("memory {member_bytes}\n");
                continue;
            };
            let path = std::path::absolute(path).map_err(of(path))?;
            if path.to_str().is_none_or(|path| path.contains('\n')) {
                return Err(HomeError::Member { path, why: "its path cannot be written down; choose another".into() });
            }
            let superblock = Superblock {
                generation: 1,
                id: creation.id,
                member: member as u16,
                members: count as u16,
                layout: creation.layout,
                stripe: creation.stripe,
                volume_bytes: creation.bytes,
                member_bytes,
                name: name.clone(),
            };
            make_member(&path, &superblock, member_bytes)?;
            text += &format!("file {}\n", path.display());
            made.0.push(path);
        }
        text += &format!("layout {} {} {}\n", creation.layout.name(), creation.stripe, creation.bytes);
        let id: String = creation.id.iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!("id {id}\n");
        // Before it is written down, it has to open.
        let parsed = parse(&description, &text)?;
        drop(assemble(&parsed)?);
        let file = AtomicFile::create(&description).map_err(of(&description))?;
        file.file().write_all(text.as_bytes()).map_err(of(&description))?;
        file.publish().map_err(of(&description))?;
        made.0.clear();
        Ok(())
    }

    /// Opens a volume for this process alone.
    ///
    /// # Errors
    /// There is none, it is open elsewhere, or a member is not what it should be.
    pub fn device(&self, name: &str) -> Result<Box<dyn Device>, HomeError> {
        self.open_volume(name).map(|opened| opened.device)
    }

    /// The same, with what it lies on.
    ///
    /// # Errors
    /// As [`device`](Self::device).
    pub fn open_volume(&self, name: &str) -> Result<Opened, HomeError> {
        assemble(&self.description(name)?)
    }

    /// Deletes a volume that nobody serves, and its members' files with all that is in them.
    ///
    /// # Errors
    /// There is none, or it is open elsewhere.
    pub fn delete(&self, name: &str) -> Result<Deleted, HomeError> {
        let (description, path) = (self.description(name)?, self.path(name));
        let (mut members, mut left) = (Vec::new(), Vec::new());
        for (number, (place, _)) in description.members.iter().enumerate() {
            let Place::File(path) = place else { continue };
            match open_member(path, &description, number, DELETE_PATIENCE) {
                // It stays locked until all is gone.
                Ok(member) => members.push((path.clone(), member)),
                Err(HomeError::Member { why, .. }) => left.push((path.clone(), why)),
                Err(HomeError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        // First what says that there is a volume: half a deletion leaves files, and no volume without members.
        fs::remove_file(&path).map_err(of(&path))?;
        for (path, _) in &members {
            fs::remove_file(path).map_err(of(path))?;
        }
        Ok(Deleted { gone: members.into_iter().map(|(path, _)| path).collect(), left })
    }

    fn description(&self, name: &str) -> Result<Description, HomeError> {
        let path = self.path(name);
        match fs::read_to_string(&path) {
            Ok(text) if is_name(name) => parse(&path, &text),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(of(&path)(error)),
            _ => Err(HomeError::Absent(name.to_owned())),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{SUFFIX}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => path.display().fmt(f),
            Place::Memory => f.write_str("memory"),
        }
    }
}

/// What is written down of a volume.
#[derive(Debug, PartialEq, Eq)]
struct Description {
    members: Vec<(Place, u64)>,
    layout: LayoutKind,
    stripe: u64,
    bytes: u64,
    id: [u8; 16],
}

fn parse(path: &Path, text: &str) -> Result<Description, HomeError> {
    let mut found = Description { members: Vec::new(), layout: LayoutKind::Concat, stripe: 0, bytes: 0, id: [0; 16] };
    let (mut layouts, mut ids, mut last) = (0, 0, 0);
    for (at, line) in text.lines().enumerate() {
        last = at + 1;
        let wrong = || HomeError::Description { path: path.to_path_buf(), line: at + 1 };
        let (word, rest) = line.split_once(' ').ok_or_else(wrong)?;
        match word {
            _ if at == 0 && line == FIRST => {}
            _ if at == 0 => return Err(wrong()),
            "file" if Path::new(rest).is_absolute() => found.members.push((Place::File(rest.into()), 0)),
            "memory" => found.members.push((Place::Memory, rest.parse().map_err(|_| wrong())?)),
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
            _ => return Err(wrong()),
        }
    }
    if (layouts, ids) != (1, 1) || found.members.is_empty() || found.members.len() > MEMBERS_MAX {
        return Err(HomeError::Description { path: path.to_path_buf(), line: last.max(1) });
    }
    Ok(found)
}

/// Opens the members, and makes the volume of them.
fn assemble(description: &Description) -> Result<Opened, HomeError> {
    let mut members: Vec<Box<dyn Device>> = Vec::new();
    let mut about = About { layout: description.layout.name().to_owned(), ..About::default() };
    for (number, (place, bytes)) in description.members.iter().enumerate() {
        let member: Box<dyn Device> = match place {
            Place::Memory => {
                let memory =
                    MemoryDevice::new(*bytes).map_err(|error| of(Path::new("memory"))(io::Error::other(error)))?;
                Box::new(memory)
            }
            Place::File(path) => Box::new(open_member(path, description, number, LOCK_PATIENCE)?),
        };
        about.members.push((place.to_string(), member.geometry().bytes));
        members.push(member);
    }
    let array = match description.layout {
        LayoutKind::Concat => Array::concat(members)?,
        LayoutKind::Stripes => Array::stripes(members, description.stripe)?,
        LayoutKind::Mirror => Array::mirror(members)?,
    };
    about.health = array.health();
    Ok(Opened { device: Box::new(Sectors::over(array)), about })
}

fn open_member(
    path: &Path,
    description: &Description,
    number: usize,
    patience: Duration,
) -> Result<FileMember, HomeError> {
    let wrong = |why: &str| HomeError::Member { path: path.to_path_buf(), why: why.to_owned() };
    let (folder, name) = (path.parent(), path.file_name().and_then(|name| name.to_str()));
    let (Some(folder), Some(name)) = (folder, name) else { return Err(wrong("names no file")) };
    let mut disk = overside_disk::open(folder).map_err(of(path))?;
    let file = disk.open(name, Open::Write { direct: true }).map_err(of(path))?;
    // A killed node's writes end before its lock does.
    if !disk.lock(file, patience).map_err(of(path))? {
        return Err(HomeError::InUse(path.to_path_buf()));
    }
    let buffer = AlignedBuffer::zeroed(2 * BLOCK_BYTES).map_err(of(path))?;
    let (request, moved) =
        complete(&mut *disk, Request::Read { file, at: 0, buffer }, DISK_PATIENCE).map_err(of(path))?;
    let Request::Read { buffer, .. } = request else { return Err(wrong("the disk gave another request back")) };
    let found = Superblock::newer(&buffer[..moved as usize]);
    let found = found.map_err(|why| wrong(&format!("has no superblock: {why}; restore the member")))?;
    if found.id != description.id || usize::from(found.member) != number {
        return Err(wrong("belongs to another volume, or to another place in this one; restore the member"));
    }
    if disk.length(file).map_err(of(path))? < DATA_START + found.member_bytes {
        return Err(wrong("is shorter than it was made; restore the member"));
    }
    Ok(FileMember::new(disk, file, DATA_START, found.member_bytes))
}

/// A member's file appears under its name with its superblock and all of its room.
fn make_member(path: &Path, superblock: &Superblock, bytes: u64) -> Result<(), HomeError> {
    if path.exists() {
        let why = "is there already; name a file that is not, or delete the volume that it belongs to".to_owned();
        return Err(HomeError::Member { path: path.to_path_buf(), why });
    }
    let file = AtomicFile::create(path).map_err(of(path))?;
    file.file().set_len(DATA_START + bytes).map_err(of(path))?;
    let block = superblock.bytes();
    for copy in 0..2 {
        file.file().write_all_at(&block, copy * BLOCK_BYTES as u64).map_err(of(path))?;
    }
    file.publish().map_err(of(path))?;
    Ok(())
}

/// Bytes of each member: whole blocks, and whole stripes where there are any.
fn member_bytes(creation: &Creation) -> u64 {
    let count = creation.members.len() as u64;
    let (each, unit) = match creation.layout {
        LayoutKind::Concat => (creation.bytes.div_ceil(count), BLOCK_BYTES as u64),
        LayoutKind::Stripes => (creation.bytes.div_ceil(count), creation.stripe.max(BLOCK_BYTES as u64)),
        LayoutKind::Mirror => (creation.bytes, BLOCK_BYTES as u64),
    };
    each.max(1).checked_next_multiple_of(unit).unwrap_or(each)
}

/// Members that were made for a volume that does not come about are taken away.
struct Made(Vec<PathBuf>);

impl Drop for Made {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| _ = fs::remove_file(path));
    }
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.chars().all(fits)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn of(path: &Path) -> impl Fn(io::Error) -> HomeError + '_ {
    move |source| HomeError::Io { path: path.to_path_buf(), source }
}

const SUFFIX: &str = ".volume";
const FIRST: &str = "overside-volume 1";
const MEMBERS_MAX: usize = 64;
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// Whoever deletes a volume that is served should hear so soon.
const DELETE_PATIENCE: Duration = Duration::from_millis(500);
const DISK_PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use overside_memory::{Bytes, Segment};
    use overside_verbs::SystemClock;
    use overside_volume::{Work, complete as carry_out};

    fn creation(folder: &Path, layout: LayoutKind, count: usize) -> Creation {
        let members = (0..count).map(|member| Place::File(folder.join(format!("m{member}.img")))).collect();
        Creation { name: "pg".into(), bytes: 3 << 20, members, layout, stripe: 64 << 10, id: *b"0123456789abcdef" }
    }

    fn buffer() -> overside_memory::Buffer {
        Segment::private(8192).unwrap().carve(8192).pop().unwrap()
    }

    #[test]
    fn what_was_written_is_there_when_it_is_opened_again() {
        for (layout, count) in [(LayoutKind::Concat, 1), (LayoutKind::Stripes, 3), (LayoutKind::Mirror, 2)] {
            let folder = tempfile::tempdir().unwrap();
            let home = Home::open(&folder.path().join("home")).unwrap();
            assert!(matches!(home.device("pg"), Err(HomeError::Absent(_))));
            home.create(&creation(folder.path(), layout, count)).unwrap();
            assert_eq!(home.list().unwrap(), ["pg"]);
            assert!(matches!(home.create(&creation(folder.path(), layout, count)), Err(HomeError::Exists(_))));
            let mut device = home.device("pg").unwrap();
            let bytes = device.geometry().bytes;
            assert!(bytes >= 3 << 20, "{bytes}");
            let mut written = buffer();
            written.fill(7);
            let write = Work::Write { at: bytes - 8192, from: Bytes::from(written), fua: true };
            assert_eq!(carry_out(&mut *device, &SystemClock, write, DISK_PATIENCE).1, Ok(()));
            drop(device);
            let mut device = home.device("pg").unwrap();
            let read = Work::Read { at: bytes - 8192, length: 8192, into: buffer() };
            let (work, result) = carry_out(&mut *device, &SystemClock, read, DISK_PATIENCE);
            assert_eq!(result, Ok(()));
            assert!(matches!(work, Some(Work::Read { into, .. }) if into.iter().all(|byte| *byte == 7)));
        }
    }

    #[test]
    fn half_a_create_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        let mut three = creation(folder.path(), LayoutKind::Concat, 3);
        fs::write(folder.path().join("m2.img"), "somebody's").unwrap();
        assert!(matches!(home.create(&three), Err(HomeError::Member { .. })));
        assert!(!folder.path().join("m0.img").exists() && !folder.path().join("m1.img").exists());
        assert_eq!(fs::read(folder.path().join("m2.img")).unwrap(), b"somebody's");
        assert_eq!(home.list().unwrap(), [""; 0]);
        // A stripe that is none is found once the members are there.
        (three.layout, three.stripe) = (LayoutKind::Stripes, 1000);
        three.members.pop();
        assert!(matches!(home.create(&three), Err(HomeError::Array(_))));
        assert!(!folder.path().join("m0.img").exists());
        for name in ["", "../x", ".x", "a b", &"x".repeat(65)] {
            let named = Creation { name: name.to_owned(), ..three.clone() };
            assert!(matches!(home.create(&named), Err(HomeError::Name(_))), "{name}");
        }
    }

    #[test]
    fn what_is_deleted_is_gone_and_what_is_not_the_volumes_stays() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        let [first, second] = ["m0.img", "m1.img"].map(|name| folder.path().join(name));
        home.create(&creation(folder.path(), LayoutKind::Mirror, 2)).unwrap();
        let open = home.open_volume("pg").unwrap();
        assert_eq!((open.about.layout.as_str(), open.about.members.len()), ("raid1", 2));
        assert!(matches!(home.delete("pg"), Err(HomeError::InUse(_))));
        assert!(first.exists() && home.list().unwrap() == ["pg"]);
        drop(open);
        fs::write(&second, b"somebody's").unwrap();
        let deleted = home.delete("pg").unwrap();
        assert_eq!((&deleted.gone, deleted.left.len()), (&vec![first.clone()], 1));
        assert!(!first.exists() && second.exists());
        assert!(matches!(home.delete("pg"), Err(HomeError::Absent(_))));
        // A member whose disk is gone does not keep the rest.
        fs::remove_file(&second).unwrap();
        home.create(&creation(folder.path(), LayoutKind::Mirror, 2)).unwrap();
        fs::remove_file(&first).unwrap();
        assert_eq!(home.delete("pg").unwrap().gone, [second]);
    }

    #[test]
    fn members_that_are_not_what_they_were_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        home.create(&creation(folder.path(), LayoutKind::Concat, 2)).unwrap();
        let (first, second) = (folder.path().join("m0.img"), folder.path().join("m1.img"));
        let refused = |why: &str| {
            let error = home.device("pg").unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let sound = fs::read(&first).unwrap();
        fs::write(&first, fs::read(&second).unwrap()).unwrap();
        refused("another place");
        fs::write(&first, &sound[..sound.len() - 4096]).unwrap();
        refused("shorter");
        let mut torn = sound.clone();
        torn[100] ^= 1;
        fs::write(&first, &torn).unwrap();
        assert!(home.device("pg").is_ok(), "the other copy is whole");
        torn[4096 + 100] ^= 1;
        fs::write(&first, &torn).unwrap();
        refused("checksum");
        fs::write(&first, "").unwrap();
        refused("no superblock");
        fs::write(&first, &sound).unwrap();
        let open = home.device("pg").unwrap();
        drop(open);
        let description = folder.path().join("home/pg.volume");
        let text = fs::read_to_string(&description).unwrap();
        for cut in 0..text.len() {
            fs::write(&description, &text[..cut]).unwrap();
            let _ = home.device("pg").map(drop);
        }
        fs::write(&description, "overside-volume 2\n").unwrap();
        refused("line 1");
    }
}
