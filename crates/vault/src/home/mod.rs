//! Where a node's volumes are written down: a folder with a file for each, and superblocks on members.

mod alter;
mod assemble;
mod description;
mod hostile;
mod remote;
mod repair;
mod superblock;

#[doc(hidden)]
pub use hostile::{fuzz_superblock, seeds_superblock};
pub use remote::{Reach, RemotePlace};
pub use superblock::{DATA_START, LayoutKind, NAME_BYTES_MAX, NoSuperblock, Superblock};

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs};

use overside_disk::{AtomicFile, BLOCK_BYTES};
use overside_verbs::Clock;
use overside_volume::{ArrayError, Device, DeviceError};

use crate::files;
use crate::members::SpindleKind;
use crate::members::volatile::SIDE_BYTES;
use crate::server::{About, LastWriter, WriterRecord};
use assemble::{assemble, format_intents, open_member};
use description::Description;
use overside_volume::files::Preset;
use remote::Reached;

/// The volumes that a node knows.
#[derive(Clone, Debug)]
pub struct Home {
    folder: PathBuf,
    reach: Option<Arc<dyn Reach>>,
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
    /// Of RAID 0 and 5, bytes on a member before the next one's turn.
    pub stripe: u64,
    /// Its id, by chance.
    pub id: [u8; 16],
    /// It keeps files of this preset, and has no blocks for others.
    pub files: Option<Preset>,
}

/// What a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file.
    File(PathBuf),
    /// Memory of the node, which ends with it: of so many bytes, or of as many as are needed.
    Memory(Option<u64>),
    /// A file that forgets as a disk with a cache does: whenever it is opened, the seed says what is lost of the
    /// writes that no flush covered.
    Volatile {
        /// Of what is lost.
        seed: u64,
        /// The file. What no flush covered lies beside it.
        path: PathBuf,
    },
    /// A file that takes the times of a disk that turns.
    Spindle {
        /// Which disk's.
        kind: SpindleKind,
        /// The file.
        path: PathBuf,
    },
    /// A volume of another node, for this alone.
    Remote(RemotePlace),
}

impl Place {
    /// The file that it is.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Place::File(path) | Place::Volatile { path, .. } | Place::Spindle { path, .. } => Some(path),
            Place::Memory(_) | Place::Remote(_) => None,
        }
    }

    /// Whether it outlives the node.
    fn is_durable(&self) -> bool {
        !matches!(self, Place::Memory(_))
    }

    /// The file, or where there is none what messages call it.
    fn named(&self) -> PathBuf {
        self.path().map_or_else(|| self.to_string().into(), Path::to_path_buf)
    }
}

/// A volume that this process has opened.
#[derive(Debug)]
pub struct Opened {
    /// Its blocks.
    pub device: Box<dyn Device>,
    /// What it lies on.
    pub about: About,
    /// Who wrote it last.
    pub writer: WriterRecord,
    /// Members that cannot be used, or not yet, and why. The volume can be, without them.
    pub absent: Vec<String>,
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
    /// It is not to be changed so.
    #[error("{name} {why}")]
    Refused {
        /// The volume.
        name: String,
        /// What is in the way, and what to do.
        why: String,
    },
    /// The members make no volume.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// A member, or what is noted of the volume, cannot be read or written.
    #[error("{}: {why}", path.display())]
    Device {
        /// What cannot be.
        path: PathBuf,
        /// Why.
        why: DeviceError,
    },
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
        Ok(Home { folder: folder.to_path_buf(), reach: None })
    }

    /// With members on other nodes.
    #[must_use]
    pub fn reaching(self, reach: Arc<dyn Reach>) -> Home {
        Home { reach: Some(reach), ..self }
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
    pub fn create(&self, creation: &Creation, clock: &Arc<dyn Clock>) -> Result<(), HomeError> {
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
        let durable = creation.members.iter().filter(|place| place.is_durable()).count();
        if creation.layout.is_redundant() && durable != 0 && durable != count {
            let why = "a mirror or RAID 5 of files and memory would read what the memory has lost; use files alone";
            return Err(HomeError::Member { path: description, why: why.to_owned() });
        }
        if creation.files.is_some() && creation.bytes < files::BYTES_MIN {
            let why = format!("a volume of files has at least {} bytes (--size)", files::BYTES_MIN);
            return Err(HomeError::Member { path: description, why });
        }
        let (written, mut made) = make_members(creation, &description, self.around(clock))?;
        // Before it is written down, it has to open.
        let parsed = Description::parse(&description, &written.text())?;
        drop(assemble(&parsed, None, self.around(clock))?);
        if creation.layout.is_redundant() && durable != 0 {
            let intents = self.intents(name);
            made.files.push(intents.clone());
            format_intents(&parsed, &intents, clock)?;
        }
        written.publish(&description)?;
        made.stay();
        Ok(())
    }

    /// Opens a volume for this process alone.
    ///
    /// # Errors
    /// There is none, it is open elsewhere, or a member is not what it should be.
    pub fn device(&self, name: &str, clock: &Arc<dyn Clock>) -> Result<Box<dyn Device>, HomeError> {
        self.open_volume(name, clock).map(|opened| opened.device)
    }

    /// The same, with what it lies on.
    ///
    /// # Errors
    /// As [`device`](Self::device).
    pub fn open_volume(&self, name: &str, clock: &Arc<dyn Clock>) -> Result<Opened, HomeError> {
        let opened =
            assemble(&self.ready(name, clock)?, Some((self.path(name), self.intents(name))), self.around(clock))?;
        // With the members it is this process' alone.
        Ok(Opened { writer: writer_record(self.folder.join(format!("{name}{WRITER_SUFFIX}")))?, ..opened })
    }

    /// Deletes a volume that nobody serves, and its members' files with all that is in them.
    ///
    /// # Errors
    /// There is none, or it is open elsewhere.
    pub fn delete(&self, name: &str, clock: &Arc<dyn Clock>) -> Result<Deleted, HomeError> {
        let (description, path) = (self.description(name)?, self.path(name));
        let _held = remote::hold(&description, &path, clock, DELETE_PATIENCE)?;
        let (mut members, mut left) = (Vec::new(), Vec::new());
        for (number, (place, _)) in description.members.iter().enumerate() {
            let Some(path) = place.path() else { continue };
            match open_member(path, &description, number, DELETE_PATIENCE) {
                // It stays locked until all is gone.
                Ok((member, _)) => members.push((path.to_path_buf(), member)),
                Err(HomeError::Member { why, .. }) => left.push((path.to_path_buf(), why)),
                Err(HomeError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        // First what says that there is a volume: half a deletion leaves files, and no volume without members.
        fs::remove_file(&path).map_err(of(&path))?;
        for (number, (place, _)) in description.members.iter().enumerate() {
            if let Place::Remote(remote) = place
                && let Err(why) = remote::release(self.reach.as_ref(), remote, (description.id, number), &**clock)
            {
                left.push((place.named(), why));
            }
        }
        for (path, _) in &members {
            fs::remove_file(path).map_err(of(path))?;
            let _ = fs::remove_file(side_of(path));
        }
        let _ = fs::remove_file(self.intents(name));
        let _ = fs::remove_file(path.with_extension(remote::LOCK_EXTENSION));
        let _ = fs::remove_file(self.folder.join(format!("{name}{WRITER_SUFFIX}")));
        Ok(Deleted { gone: members.into_iter().map(|(path, _)| path).collect(), left })
    }

    fn description(&self, name: &str) -> Result<Description, HomeError> {
        let found = if is_name(name) { Description::read(&self.path(name))? } else { None };
        found.ok_or_else(|| HomeError::Absent(name.to_owned()))
    }

    fn around<'a>(&'a self, clock: &'a Arc<dyn Clock>) -> (Reached<'a>, &'a Arc<dyn Clock>) {
        (self.reach.as_ref(), clock)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{SUFFIX}"))
    }

    /// Where it is noted which regions of a volume are written.
    fn intents(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{INTENTS_SUFFIX}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => path.display().fmt(f),
            Place::Memory(None) => f.write_str("memory"),
            Place::Memory(Some(bytes)) => write!(f, "memory:{bytes}"),
            Place::Volatile { seed, path } => write!(f, "volatile:{seed}:{}", path.display()),
            Place::Spindle { kind, path } => write!(f, "spindle:{}:{}", kind.name(), path.display()),
            Place::Remote(remote) => remote.fmt(f),
        }
    }
}

/// Makes the members of a volume that is to be. They go again, unless it comes about.
fn make_members<'a>(
    creation: &Creation,
    description: &Path,
    around: (Reached<'a>, &'a Arc<dyn Clock>),
) -> Result<(Description, Made<'a>), HomeError> {
    let needed = member_bytes(creation);
    let mut made = Made::new(around);
    let Creation { layout, stripe, bytes, id, files, .. } = *creation;
    let (stale, lost, grows) = (BTreeSet::new(), BTreeSet::new(), None);
    let mut written = Description { members: Vec::new(), layout, stripe, bytes, id, stale, lost, grows, files };
    for (member, place) in creation.members.iter().enumerate() {
        if let Place::Memory(asked) = place {
            let member_bytes = asked.unwrap_or(needed);
            if member_bytes < needed {
                let why = format!("memory of {member_bytes} bytes is too small: {needed} are needed of each member");
                return Err(HomeError::Member { path: description.to_path_buf(), why });
            }
            written.members.push((place.clone(), member_bytes));
            continue;
        }
        let members = creation.members.len() as u16;
        let superblock = Superblock { members, ..written.superblock(&creation.name, member, needed) };
        written.members.push(make_place(place, &superblock, (id, member), &mut made)?);
    }
    Ok((written, made))
}

/// Makes a member that outlives the node; what is written down of it.
fn make_place(
    place: &Place,
    superblock: &Superblock,
    member: ([u8; 16], usize),
    made: &mut Made<'_>,
) -> Result<(Place, u64), HomeError> {
    if let Place::Remote(remote) = place {
        let keys = [&remote.key_file, &remote.access_key].into_iter().flatten();
        let fits = |path: &PathBuf| path.is_absolute() && path.to_str().is_some_and(|path| !path.contains('\n'));
        if remote.to_string().contains('\n') || !keys.into_iter().all(fits) {
            let why = "it, or a key's absolute path, cannot be written down; choose another".to_owned();
            return Err(HomeError::Member { path: place.named(), why });
        }
        // Its own node has checksums.
        remote::make(made.reach, remote, &Superblock { sums_bytes: 0, ..superblock.clone() }, &**made.clock)?;
        made.remotes.push((remote.clone(), member));
        return Ok((place.clone(), superblock.member_bytes));
    }
    let Some(path) = place.path() else { return Ok((place.clone(), superblock.member_bytes)) };
    let path = std::path::absolute(path).map_err(of(path))?;
    if path.to_str().is_none_or(|path| path.contains('\n')) {
        return Err(HomeError::Member { path, why: "its path cannot be written down; choose another".into() });
    }
    make_member(&path, superblock)?;
    made.files.push(path.clone());
    let place = match place {
        Place::Volatile { seed, .. } => {
            let side = side_of(&path);
            make_side(&side)?;
            made.files.push(side);
            Place::Volatile { seed: *seed, path }
        }
        Place::Spindle { kind, .. } => Place::Spindle { kind: *kind, path },
        _ => Place::File(path),
    };
    Ok((place, 0))
}

/// A member's file appears under its name with its superblock and all of its room.
fn make_member(path: &Path, superblock: &Superblock) -> Result<(), HomeError> {
    if path.exists() {
        let why = "is there already; name a file that is not, or delete the volume that it belongs to".to_owned();
        return Err(HomeError::Member { path: path.to_path_buf(), why });
    }
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

/// Who wrote a volume last, in a file of its own.
fn writer_record(path: PathBuf) -> Result<WriterRecord, HomeError> {
    let last = match fs::read(&path) {
        Ok(text) => Some(LastWriter::parse(&String::from_utf8_lossy(&text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(of(&path)(error)),
    };
    Ok(WriterRecord::new(last, move |last| description::replace(&path, &last.text()).is_ok()))
}

/// Where what no flush covered lies of a member that forgets.
fn side_of(path: &Path) -> PathBuf {
    let mut side = path.as_os_str().to_owned();
    side.push(SIDE_SUFFIX);
    side.into()
}

fn make_side(path: &Path) -> Result<(), HomeError> {
    let file = AtomicFile::create(path).map_err(of(path))?;
    file.file().set_len(SIDE_BYTES).map_err(of(path))?;
    file.publish().map_err(of(path))?;
    Ok(())
}

/// Bytes of each member: whole blocks, and whole stripes where there are any.
fn member_bytes(creation: &Creation) -> u64 {
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
struct Made<'a> {
    files: Vec<PathBuf>,
    /// Volumes of other nodes: which member each is.
    remotes: Vec<(RemotePlace, ([u8; 16], usize))>,
    reach: Reached<'a>,
    clock: &'a Arc<dyn Clock>,
}

impl<'a> Made<'a> {
    fn new((reach, clock): (Reached<'a>, &'a Arc<dyn Clock>)) -> Made<'a> {
        Made { files: Vec::new(), remotes: Vec::new(), reach, clock }
    }

    /// The volume has come about.
    fn stay(&mut self) {
        self.files.clear();
        self.remotes.clear();
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        self.files.iter().for_each(|path| _ = fs::remove_file(path));
        for (place, member) in &self.remotes {
            let _ = remote::release(self.reach, place, *member, &**self.clock);
        }
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
const INTENTS_SUFFIX: &str = ".intents";
const WRITER_SUFFIX: &str = ".writer";
const SIDE_SUFFIX: &str = ".unflushed";
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
    use overside_volume::{LostRange, Work, complete as carry_out};

    fn creation(folder: &Path, layout: LayoutKind, count: usize) -> Creation {
        let members = (0..count).map(|member| Place::File(folder.join(format!("m{member}.img")))).collect();
        Creation {
            name: "pg".into(),
            bytes: 3 << 20,
            members,
            layout,
            stripe: 64 << 10,
            id: *b"0123456789abcdef",
            files: None,
        }
    }

    fn clock() -> Arc<dyn Clock> {
        SystemClock::handle()
    }

    fn buffer() -> overside_memory::Buffer {
        Segment::private(8192).unwrap().carve(8192).pop().unwrap()
    }

    #[test]
    fn a_volume_of_files_is_one_whenever_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let (home, clock) = (Home::open(&folder.path().join("home")).unwrap(), SystemClock::handle());
        let creation = Creation { files: Some(Preset::Sqlite), ..creation(folder.path(), LayoutKind::Mirror, 2) };
        let small = Creation { bytes: files::BYTES_MIN - 1, ..creation.clone() };
        assert!(matches!(home.create(&small, &clock), Err(HomeError::Member { .. })));
        home.create(&creation, &clock).unwrap();
        for _ in 0..2 {
            let opened = home.open_volume("pg", &clock).unwrap();
            assert_eq!(opened.about.files, Some(Preset::Sqlite));
            crate::files::Files::open(opened.device, Preset::Sqlite, &*clock).unwrap();
        }
    }

    #[test]
    fn what_was_written_is_there_when_it_is_opened_again() {
        for (layout, count) in
            [(LayoutKind::Concat, 1), (LayoutKind::Stripes, 3), (LayoutKind::Mirror, 2), (LayoutKind::Parity, 3)]
        {
            let folder = tempfile::tempdir().unwrap();
            let home = Home::open(&folder.path().join("home")).unwrap();
            assert!(matches!(home.device("pg", &clock()), Err(HomeError::Absent(_))));
            home.create(&creation(folder.path(), layout, count), &clock()).unwrap();
            assert_eq!(home.list().unwrap(), ["pg"]);
            assert!(matches!(
                home.create(&creation(folder.path(), layout, count), &clock()),
                Err(HomeError::Exists(_))
            ));
            let mut device = home.device("pg", &clock()).unwrap();
            let bytes = device.geometry().bytes;
            assert!(bytes >= 3 << 20, "{bytes}");
            let mut written = buffer();
            written.fill(7);
            let write = Work::Write { at: bytes - 8192, from: Bytes::from(written), fua: true };
            assert_eq!(carry_out(&mut *device, &SystemClock, write, DISK_PATIENCE).1, Ok(()));
            drop(device);
            let mut device = home.device("pg", &clock()).unwrap();
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
        assert!(matches!(home.create(&three, &clock()), Err(HomeError::Member { .. })));
        assert!(!folder.path().join("m0.img").exists() && !folder.path().join("m1.img").exists());
        assert_eq!(fs::read(folder.path().join("m2.img")).unwrap(), b"somebody's");
        assert_eq!(home.list().unwrap(), [""; 0]);
        // A stripe that is none is found once the members are there.
        (three.layout, three.stripe) = (LayoutKind::Stripes, 1000);
        three.members.pop();
        assert!(matches!(home.create(&three, &clock()), Err(HomeError::Array(_))));
        assert!(!folder.path().join("m0.img").exists());
        for name in ["", "../x", ".x", "a b", &"x".repeat(65)] {
            let named = Creation { name: name.to_owned(), ..three.clone() };
            assert!(matches!(home.create(&named, &clock()), Err(HomeError::Name(_))), "{name}");
        }
    }

    #[test]
    fn what_is_deleted_is_gone_and_what_is_not_the_volumes_stays() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        let [first, second] = ["m0.img", "m1.img"].map(|name| folder.path().join(name));
        home.create(&creation(folder.path(), LayoutKind::Mirror, 2), &clock()).unwrap();
        let open = home.open_volume("pg", &clock()).unwrap();
        assert_eq!((open.about.layout.as_str(), open.about.members.len()), ("raid1", 2));
        assert!(matches!(home.delete("pg", &clock()), Err(HomeError::InUse(_))));
        assert!(first.exists() && home.list().unwrap() == ["pg"]);
        drop(open);
        fs::write(&second, b"somebody's").unwrap();
        let deleted = home.delete("pg", &clock()).unwrap();
        assert_eq!((&deleted.gone, deleted.left.len()), (&vec![first.clone()], 1));
        assert!(!first.exists() && second.exists());
        assert!(matches!(home.delete("pg", &clock()), Err(HomeError::Absent(_))));
        // A member whose disk is gone does not keep the rest.
        fs::remove_file(&second).unwrap();
        home.create(&creation(folder.path(), LayoutKind::Mirror, 2), &clock()).unwrap();
        fs::remove_file(&first).unwrap();
        assert_eq!(home.delete("pg", &clock()).unwrap().gone, [second]);
    }

    #[test]
    fn who_wrote_a_volume_last_is_known_in_the_next_life() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        home.create(&creation(folder.path(), LayoutKind::Concat, 1), &clock()).unwrap();
        let writer = || home.open_volume("pg", &clock()).unwrap().writer;
        assert!(!writer().is_replaced(7), "of a new volume nothing is known");
        assert!(writer().note(LastWriter { session: 7, returns: true }));
        assert!(writer().goes_on(7) && !writer().is_replaced(7) && writer().is_replaced(8));
        assert!(writer().note(LastWriter { session: 7, returns: false }));
        assert!(!writer().goes_on(7) && writer().is_replaced(7));
        home.delete("pg", &clock()).unwrap();
        assert!(!home.folder().join("pg.writer").exists());
    }

    #[test]
    fn members_from_before_there_were_checksums_are_used_without() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        home.create(&creation(folder.path(), LayoutKind::Mirror, 2), &clock()).unwrap();
        let path = folder.path().join("m1.img");
        let with = repair::superblock(&path).unwrap();
        let before = Superblock { sums_bytes: 0, ..with };
        fs::remove_file(&path).unwrap();
        make_member(&path, &before).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), DATA_START + before.member_bytes);
        assert_eq!(home.open_volume("pg", &clock()).unwrap().about.sums, [true, false]);
        write(&home, 9);
        fs::remove_file(folder.path().join("m0.img")).unwrap();
        assert_eq!(content(&home), 9);
        // The next member is as the one that it comes from.
        home.repair("pg", &clock(), |_, _| {}).unwrap();
        assert_eq!(home.open_volume("pg", &clock()).unwrap().about.sums, [false, false]);
    }

    /// The byte that all of the volume's first block has.
    fn content(home: &Home) -> u8 {
        let mut device = home.device("pg", &clock()).unwrap();
        content_of(&mut *device)
    }

    fn content_of(device: &mut dyn Device) -> u8 {
        let mut found = std::collections::BTreeSet::new();
        // Each side in turn.
        for _ in 0..4 {
            let read = Work::Read { at: 0, length: 8192, into: buffer() };
            let (work, result) = carry_out(device, &SystemClock, read, DISK_PATIENCE);
            assert_eq!(result, Ok(()));
            let Some(Work::Read { into, .. }) = work else { panic!("another request came back") };
            found.extend(into.iter().copied());
        }
        assert_eq!(found.len(), 1, "{found:?}");
        found.pop_first().unwrap()
    }

    fn write(home: &Home, byte: u8) {
        let mut bytes = buffer();
        bytes.fill(byte);
        let write = Work::Write { at: 0, from: Bytes::from(bytes), fua: true };
        let mut device = home.device("pg", &clock()).unwrap();
        assert_eq!(carry_out(&mut *device, &SystemClock, write, DISK_PATIENCE).1, Ok(()));
        // As a node ends.
        let length = device.geometry().bytes;
        let all = Work::Hint { at: 0, length, hint: overside_volume::Hint::DontNeed };
        assert_eq!(carry_out(&mut *device, &SystemClock, all, DISK_PATIENCE).1, Ok(()));
    }

    #[test]
    fn a_member_that_missed_writes_is_not_read_until_it_has_them() {
        for (layout, count) in [(LayoutKind::Mirror, 2), (LayoutKind::Parity, 3)] {
            let folder = tempfile::tempdir().unwrap();
            let home = Home::open(&folder.path().join("home")).unwrap();
            home.create(&creation(folder.path(), layout, count), &clock()).unwrap();
            let [first, second, away] = ["m0.img", "m1.img", "away"].map(|name| folder.path().join(name));
            write(&home, 1);
            fs::rename(&first, &away).unwrap();
            let opened = home.open_volume("pg", &clock()).unwrap();
            assert_eq!((opened.absent.len(), opened.about.health.state(0)), (1, overside_volume::MemberState::Stale));
            drop(opened);
            write(&home, 2);
            assert_eq!(content(&home), 2);
            fs::rename(&away, &first).unwrap();
            // It is back, and what it has is old.
            let description = home.description("pg").unwrap();
            assert_eq!(description.stale, [0].into());
            fs::rename(&second, &away).unwrap();
            assert!(home.device("pg", &clock()).is_err(), "it alone is no volume, either");
            let refused = home.repair("pg", &clock(), |_, _| {}).unwrap_err().to_string();
            assert!(refused.contains("m1.img"), "{refused}");
            fs::rename(&away, &second).unwrap();
            let open = home.device("pg", &clock()).unwrap();
            assert!(matches!(home.repair("pg", &clock(), |_, _| {}), Err(HomeError::InUse(_))));
            drop(open);
            let mended = home.repair("pg", &clock(), |_, _| {}).unwrap();
            assert_eq!(mended, std::slice::from_ref(&first));
            assert!(home.repair("pg", &clock(), |_, _| {}).unwrap().is_empty());
            // Now the other one may go, for good.
            fs::remove_file(&second).unwrap();
            assert_eq!(content(&home), 2);
            write(&home, 3);
            assert_eq!(home.repair("pg", &clock(), |_, _| {}).unwrap(), [second]);
            assert!(home.open_volume("pg", &clock()).unwrap().absent.is_empty());
            fs::remove_file(&first).unwrap();
            assert_eq!(content(&home), 3);
        }
    }

    /// It is served meanwhile.
    #[test]
    fn a_member_that_is_back_gets_what_it_has_missed_while_the_volume_is_used() {
        for (layout, count) in [(LayoutKind::Mirror, 2), (LayoutKind::Parity, 3)] {
            let folder = tempfile::tempdir().unwrap();
            let home = Home::open(&folder.path().join("home")).unwrap();
            home.create(&creation(folder.path(), layout, count), &clock()).unwrap();
            let [first, second, away] = ["m0.img", "m1.img", "away"].map(|name| folder.path().join(name));
            fs::rename(&first, &away).unwrap();
            write(&home, 5);
            fs::rename(&away, &first).unwrap();
            let Opened { mut device, about, .. } = home.open_volume("pg", &clock()).unwrap();
            let until = std::time::Instant::now() + DISK_PATIENCE;
            while about.health.state(0) == overside_volume::MemberState::Stale {
                assert!(std::time::Instant::now() < until, "it is not resynced");
                assert_eq!(content_of(&mut *device), 5);
            }
            drop(device);
            assert!(home.description("pg").unwrap().stale.is_empty());
            fs::remove_file(&second).unwrap();
            assert_eq!(content(&home), 5);
        }
    }

    #[test]
    fn what_no_member_has_right_is_known_in_the_next_life() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        home.create(&creation(folder.path(), LayoutKind::Mirror, 2), &clock()).unwrap();
        let lost = BTreeSet::from([LostRange { member: 1, at: 16384, length: 4096, kept: false }]);
        let description = Description { lost, ..home.description("pg").unwrap() };
        description.publish(&home.path("pg")).unwrap();
        assert_eq!(home.description("pg").unwrap(), description);
        fs::remove_file(folder.path().join("m0.img")).unwrap();
        let mut device = home.device("pg", &clock()).unwrap();
        let mut read = |at| {
            let read = Work::Read { at, length: 8192, into: buffer() };
            carry_out(&mut *device, &SystemClock, read, DISK_PATIENCE).1
        };
        assert_eq!((read(0), read(16384)), (Ok(()), Err(DeviceError::Corrupt)));
    }

    /// A volume of RAID 5 is killed, and a member is not there when it is opened again.
    #[test]
    fn what_a_crash_left_of_a_member_that_is_gone_is_named_until_it_is_back_or_written() {
        for ends in ["it is back", "it is made anew", "another one is in its place"] {
            let folder = tempfile::tempdir().unwrap();
            let home = Home::open(&folder.path().join("home")).unwrap();
            home.create(&creation(folder.path(), LayoutKind::Parity, 3), &clock()).unwrap();
            let [member, away, new] = ["m1.img", "away", "new.img"].map(|name| folder.path().join(name));
            let fill = |device: &mut dyn Device, byte: u8| {
                let mut bytes = buffer();
                bytes.fill(byte);
                let write = Work::Write { at: LOST, from: Bytes::from(bytes), fua: true };
                assert_eq!(carry_out(device, &SystemClock, write, DISK_PATIENCE).1, Ok(()));
            };
            let found = |device: &mut dyn Device| {
                let read = Work::Read { at: LOST, length: 8192, into: buffer() };
                let (work, result) = carry_out(device, &SystemClock, read, DISK_PATIENCE);
                result.map(|()| if let Some(Work::Read { into, .. }) = work { into[0] } else { panic!("another") })
            };
            let close = |device: &mut dyn Device| repair::close(device, &member, &SystemClock).unwrap();
            let until_current = |opened: &mut Opened| {
                let until = std::time::Instant::now() + DISK_PATIENCE;
                while opened.about.health.state(1) == overside_volume::MemberState::Stale {
                    assert!(std::time::Instant::now() < until, "{ends}: it is not resynced");
                    opened.device.poll(&mut Vec::new());
                }
            };
            fill(&mut *home.device("pg", &clock()).unwrap(), 6);
            fs::rename(&member, &away).unwrap();
            let mut opened = home.open_volume("pg", &clock()).unwrap();
            assert_eq!(found(&mut *opened.device), Err(DeviceError::Corrupt));
            assert!(opened.about.health.lost(1) > 0);
            drop(opened);
            let noted = home.description("pg").unwrap();
            assert!(noted.lost.iter().all(|range| range.member == 1 && range.kept) && !noted.lost.is_empty());
            match ends {
                "it is back" => fs::rename(&away, &member).unwrap(),
                "it is made anew" => {
                    assert_eq!(home.repair("pg", &clock(), |_, _| {}).unwrap(), std::slice::from_ref(&member));
                }
                _ => drop(
                    home.replace("pg", &member.display().to_string(), &Place::File(new.clone()), &clock()).unwrap(),
                ),
            }
            let mut opened = home.open_volume("pg", &clock()).unwrap();
            until_current(&mut opened);
            let is_back = ends == "it is back";
            assert_eq!(found(&mut *opened.device), if is_back { Ok(6) } else { Err(DeviceError::Corrupt) }, "{ends}");
            close(&mut *opened.device);
            drop(opened);
            let noted = home.description("pg").unwrap();
            assert!(noted.lost.is_empty() == is_back && noted.lost.iter().all(|range| !range.kept), "{ends}");
            let mut device = home.device("pg", &clock()).unwrap();
            fill(&mut *device, 7);
            close(&mut *device);
            drop(device);
            // Any one of the others is enough.
            fs::remove_file(folder.path().join("m0.img")).unwrap();
            assert_eq!(found(&mut *home.device("pg", &clock()).unwrap()), Ok(7), "{ends}");
        }
    }

    /// In the first row of three members, the second one has its second stripe.
    const LOST: u64 = 64 << 10;

    #[test]
    fn a_mirror_of_files_and_memory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        let mut mixed = creation(folder.path(), LayoutKind::Mirror, 2);
        mixed.members[0] = Place::Memory(None);
        assert!(home.create(&mixed, &clock()).unwrap_err().to_string().contains("memory has lost"));
        mixed.members[1] = Place::Memory(None);
        home.create(&mixed, &clock()).unwrap();
        assert_eq!(content(&home), 0);
    }

    #[test]
    fn members_that_are_not_what_they_were_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        home.create(&creation(folder.path(), LayoutKind::Concat, 2), &clock()).unwrap();
        let (first, second) = (folder.path().join("m0.img"), folder.path().join("m1.img"));
        let refused = |why: &str| {
            let error = home.device("pg", &clock()).unwrap_err().to_string();
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
        assert!(home.device("pg", &clock()).is_ok(), "the other copy is whole");
        torn[4096 + 100] ^= 1;
        fs::write(&first, &torn).unwrap();
        refused("checksum");
        fs::write(&first, "").unwrap();
        refused("no superblock");
        fs::write(&first, &sound).unwrap();
        let open = home.device("pg", &clock()).unwrap();
        drop(open);
        let description = folder.path().join("home/pg.volume");
        let text = fs::read_to_string(&description).unwrap();
        for cut in 0..text.len() {
            fs::write(&description, &text[..cut]).unwrap();
            let _ = home.device("pg", &clock()).map(drop);
        }
        for stale in ["stale 0\n", "stale 2\n", "stale x\n", "lost 0 0\n", "lost 0\n", "kept 0 0 4096 1\n", "grows x\n"]
        {
            fs::write(&description, format!("{text}{stale}")).unwrap();
            refused("is not what this program writes");
        }
        fs::write(&description, "overside-volume 2\n").unwrap();
        refused("line 1");
    }

    #[test]
    fn a_volume_grows_with_what_is_in_it_and_half_of_that_is_finished() {
        for (layout, count) in
            [(LayoutKind::Concat, 2), (LayoutKind::Stripes, 3), (LayoutKind::Mirror, 2), (LayoutKind::Parity, 3)]
        {
            let folder = tempfile::tempdir().unwrap();
            let home = Home::open(&folder.path().join("home")).unwrap();
            home.create(&creation(folder.path(), layout, count), &clock()).unwrap();
            write(&home, 7);
            let refused = |bytes| home.resize("pg", bytes, &clock()).unwrap_err().to_string();
            assert!(refused(3 << 20).contains("does not become smaller"), "{}", refused(3 << 20));
            assert!(refused(8 << 30).contains("no room for so many checksums"), "{}", refused(8 << 30));
            let open = home.device("pg", &clock()).unwrap();
            assert!(matches!(home.resize("pg", 6 << 20, &clock()), Err(HomeError::InUse(_))));
            drop(open);
            home.resize("pg", 6 << 20, &clock()).unwrap();
            assert_eq!(content(&home), 7);
            assert!(home.device("pg", &clock()).unwrap().geometry().bytes >= 6 << 20);
            // A crash after the first member: whoever opens it goes on.
            let description = Description { grows: Some(9 << 20), ..home.description("pg").unwrap() };
            description.publish(&home.path("pg")).unwrap();
            let first = folder.path().join("m0.img");
            if layout != LayoutKind::Concat {
                let before = repair::superblock(&first).unwrap();
                let member_bytes = before.member_bytes * 3 / 2;
                let file = fs::OpenOptions::new().write(true).open(&first).unwrap();
                file.set_len(before.data_start() + member_bytes).unwrap();
                let half = Superblock { generation: before.generation + 1, member_bytes, ..before };
                file.write_all_at(&half.sums().unwrap().empty_bitmap(), half.sums().unwrap().bitmap).unwrap();
                file.write_all_at(&half.bytes(), 0).unwrap();
            }
            let mut device = home.device("pg", &clock()).unwrap();
            let bytes = device.geometry().bytes;
            assert!((9 << 20..10 << 20).contains(&bytes), "{bytes}");
            assert!(home.description("pg").unwrap().grows.is_none());
            assert_eq!(content_of(&mut *device), 7);
            // What is new is zeros, and matches its parity and its sums on every member.
            let check = Work::Check { at: 0, length: bytes, mend: false, wrong: 0 };
            let (work, result) = carry_out(&mut *device, &SystemClock, check, DISK_PATIENCE);
            assert!(matches!(work, Some(Work::Check { wrong: 0, .. })) && result == Ok(()), "{layout:?}: {work:?}");
            drop(device);
            if layout.is_redundant() {
                fs::remove_file(&first).unwrap();
                let mut device = home.device("pg", &clock()).unwrap();
                let read = Work::Read { at: bytes - 8192, length: 8192, into: buffer() };
                let (work, result) = carry_out(&mut *device, &SystemClock, read, DISK_PATIENCE);
                assert_eq!(result, Ok(()));
                assert!(matches!(work, Some(Work::Read { into, .. }) if into.iter().all(|byte| *byte == 0)));
                assert_eq!(content_of(&mut *device), 7);
                drop(device);
                assert!(refused(12 << 20).contains("m0.img"), "{}", refused(12 << 20));
            }
        }
    }

    #[test]
    fn another_member_takes_the_place_of_one_that_is_gone_or_there() {
        for (layout, count) in [(LayoutKind::Mirror, 2), (LayoutKind::Parity, 3)] {
            let folder = tempfile::tempdir().unwrap();
            let home = Home::open(&folder.path().join("home")).unwrap();
            home.create(&creation(folder.path(), layout, count), &clock()).unwrap();
            write(&home, 4);
            let [first, second, third] = ["m0.img", "m1.img", "new.img"].map(|name| folder.path().join(name));
            let by = |old: &Path, new: &Path| {
                home.replace("pg", &old.display().to_string(), &Place::File(new.to_path_buf()), &clock())
            };
            let before = fs::read_to_string(home.path("pg")).unwrap();
            assert!(by(&third, &first).unwrap_err().to_string().contains("has no member"));
            assert!(by(&first, &second).unwrap_err().to_string().contains("is there already"));
            assert!(by(&first, &folder.path().join("no/folder")).is_err());
            let memory = home.replace("pg", &first.display().to_string(), &Place::Memory(None), &clock());
            assert!(memory.unwrap_err().to_string().contains("memory"));
            let open = home.device("pg", &clock()).unwrap();
            assert!(matches!(by(&first, &third), Err(HomeError::InUse(_))));
            drop(open);
            assert_eq!(fs::read_to_string(home.path("pg")).unwrap(), before, "half a step leaves nothing");
            assert!(!third.exists());
            fs::remove_file(&first).unwrap();
            assert_eq!(by(&first, &third).unwrap(), Place::File(first.clone()));
            assert_eq!(home.description("pg").unwrap().stale, [0].into());
            let refused = by(&second, &first).unwrap_err().to_string();
            assert!(refused.contains("wait until they are current"), "{refused}");
            let Opened { mut device, about, .. } = home.open_volume("pg", &clock()).unwrap();
            let until = std::time::Instant::now() + DISK_PATIENCE;
            while about.health.state(0) == overside_volume::MemberState::Stale {
                assert!(std::time::Instant::now() < until, "it is not resynced");
                assert_eq!(content_of(&mut *device), 4);
            }
            drop(device);
            // The new one alone is as good as the old one.
            fs::remove_file(&second).unwrap();
            assert_eq!(content(&home), 4);
        }
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        home.create(&creation(folder.path(), LayoutKind::Concat, 2), &clock()).unwrap();
        let first = folder.path().join("m0.img").display().to_string();
        let refused = home.replace("pg", &first, &Place::File(folder.path().join("x")), &clock()).unwrap_err();
        assert!(refused.to_string().contains("cannot do without"), "{refused}");
    }
}
