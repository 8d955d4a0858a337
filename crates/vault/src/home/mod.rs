//! Where a node's volumes are written down: a folder with a file for each, and superblocks on
//! members.

mod alter;
mod assemble;
mod description;
mod hostile;
mod making;
mod member_spec;
mod remote;
mod repair;
mod superblock;
mod unfinished;

#[doc(hidden)]
pub use hostile::{fuzz_superblock, seeds_superblock};
pub use member_spec::MemberSpec;
pub use remote::{Reach, RemoteVolume};
pub use superblock::{DATA_START, LayoutKind, NAME_BYTES_MAX, NoSuperblock, Superblock};

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overside_verbs::Clock;
use overside_volume::{ArrayError, Device, DeviceError};

use crate::files;
use crate::server::{About, LastWriter, WriterRecord};
use assemble::{assemble, format_intents, open_member};
use description::Description;
use making::{can_be_written, make_members, side_of};
use overside_volume::files::Preset;
use remote::Reached;
use unfinished::Unfinished;

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
    pub members: Vec<MemberSpec>,
    /// How.
    pub layout: LayoutKind,
    /// Of RAID 0 and 5, bytes on a member before the next one's turn.
    pub stripe: u64,
    /// Its id, by chance.
    pub id: [u8; 16],
    /// It keeps files of this preset, and has no blocks for others.
    pub files: Option<Preset>,
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

    /// Makes a volume: its members first, each whole under its name, then the file that says that
    /// there is one. What fails in the middle leaves nothing; what is killed there leaves members
    /// that the next one takes away.
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
        for (at, spec) in creation.members.iter().enumerate() {
            if creation.members[..at].iter().any(|before| before.is_where(spec)) {
                let why = "is named twice; name each member once".to_owned();
                return Err(HomeError::Member { path: spec.named(), why });
            }
        }
        let durable = creation.members.iter().filter(|spec| spec.is_durable()).count();
        if creation.layout.is_redundant() && durable != 0 && durable != count {
            let why = "a mirror or RAID 5 of files and memory would read what the memory has lost; use files alone";
            return Err(HomeError::Member { path: description, why: why.to_owned() });
        }
        if creation.files.is_some() && creation.bytes < files::BYTES_MIN {
            let why = format!("a volume of files has at least {} bytes (--size)", files::BYTES_MIN);
            return Err(HomeError::Member { path: description, why });
        }
        unfinished::sweep(&self.folder, self.around(clock));
        creation.members.iter().try_for_each(can_be_written)?;
        let _note = Unfinished::note(&self.folder, (name, &creation.id), creation.members.iter().enumerate())?;
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
        let (mut members, mut sides, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (spec, _)) in description.members.iter().enumerate() {
            let Some(path) = spec.path() else { continue };
            match open_member(path, &description, number, DELETE_PATIENCE) {
                // It stays locked until all is gone.
                Ok((member, _)) => members.push((path.to_path_buf(), member)),
                Err(HomeError::Member { why, .. }) => {
                    left.push((path.to_path_buf(), why));
                    continue;
                }
                Err(HomeError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            sides.extend(matches!(spec, MemberSpec::Volatile { .. }).then(|| side_of(path)));
        }
        // First what says that there is a volume: half a deletion leaves files, and no volume without members.
        fs::remove_file(&path).map_err(of(&path))?;
        for (number, (spec, _)) in description.members.iter().enumerate() {
            if let MemberSpec::Remote(remote) = spec
                && let Err(why) = remote::release(self.reach.as_ref(), remote, (description.id, number), &**clock)
            {
                left.push((spec.named(), why));
            }
        }
        for (path, _) in &members {
            fs::remove_file(path).map_err(of(path))?;
        }
        sides.iter().for_each(|side| _ = fs::remove_file(side));
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

/// Who wrote a volume last, in a file of its own.
fn writer_record(path: PathBuf) -> Result<WriterRecord, HomeError> {
    let last = match fs::read(&path) {
        Ok(text) => Some(LastWriter::parse(&String::from_utf8_lossy(&text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(of(&path)(error)),
    };
    Ok(WriterRecord::new(last, move |last| description::replace(&path, &last.text()).is_ok()))
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
const MEMBERS_MAX: usize = 64;
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// Whoever deletes a volume that is served should hear so soon.
const DELETE_PATIENCE: Duration = Duration::from_millis(500);
const DISK_PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
