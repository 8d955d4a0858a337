//! The folder behind the system's disks: names, open files, locks.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::{Entry, FileId, Open};

/// A folder of this user's alone, and what is open in it.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    root: Arc<OwnedFd>,
    files: Vec<Option<File>>,
    /// Whether the file system takes direct transfers.
    direct: bool,
}

/// An open file. Requests under way hold it, too.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub fd: Arc<OwnedFd>,
    /// It is a folder, whose names a sync brings to the disk.
    pub folder: bool,
    /// Transfers go past the page cache.
    pub direct: bool,
}

impl Folder {
    /// Opens the folder, after making it where there is none.
    pub fn open(path: &Path) -> io::Result<Folder> {
        match rustix::fs::mkdir(path, PRIVATE_FOLDER) {
            // The name itself is to survive, too.
            Ok(()) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
                rustix::fs::fsync(rustix::fs::open(parent, FOLDER, Mode::empty())?)?;
            }
            Err(Errno::EXIST) => {}
            Err(error) => {
                let text = match error {
                    Errno::NOENT | Errno::NOTDIR => "cannot be made; name a folder whose parent exists",
                    Errno::NOSPC | Errno::DQUOT => "cannot be made; make room there, or name a folder on another disk",
                    _ => "cannot be made; name a folder where this user may make one",
                };
                return Err(said(error, path, text));
            }
        }
        // The folder itself may be named by a link; what lies in it may not.
        let root = rustix::fs::open(path, FOLDER - OFlags::NOFOLLOW, Mode::empty()).map_err(|error| match error {
            Errno::NOTDIR => said(error, path, "is no folder; name one, or a name that is free"),
            Errno::NOENT => said(error, path, "is a link to nothing; take it away, or put back the folder"),
            error => said(error, path, "cannot be opened; this user must be able to read and to write it"),
        })?;
        let found = rustix::fs::fstat(&root)?;
        let refuse = |text: &str| io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {text}", path.display()));
        if !is_own(&found) {
            return Err(refuse("belongs to another user; name a folder of your own"));
        }
        if is_written_by_others(&found) {
            return Err(refuse("can be written by other users; take that right away with chmod go-w"));
        }
        let mut folder = Folder { path: path.to_path_buf(), root: Arc::new(root), files: Vec::new(), direct: true };
        folder.direct = folder.takes_direct();
        Ok(folder)
    }

    /// The same folder, with nothing open in it.
    pub fn another(&self) -> Folder {
        Folder { path: self.path.clone(), root: self.root.clone(), files: Vec::new(), direct: self.direct }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn direct(&self) -> bool {
        self.direct
    }

    /// Tries a file without a name, which is gone when it is closed.
    fn takes_direct(&self) -> bool {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
        match rustix::fs::openat(&self.root, ".", flags, PRIVATE_FILE) {
            Ok(_) => true,
            // It has no files without a name, or is read-only: opening a file itself will tell.
            Err(error) => error != Errno::INVAL,
        }
    }

    pub fn list(&self, name: &str) -> io::Result<Vec<Entry>> {
        let folder = self.descend(name)?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&*folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let found = match rustix::fs::statat(&*folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                // Somebody has taken it away meanwhile.
                Err(Errno::NOENT) => continue,
                found => found?,
            };
            let kind = FileType::from_raw_mode(found.st_mode);
            // A link has every right, and none of it counts.
            let is_private = is_own(&found) && (kind.is_symlink() || !is_written_by_others(&found));
            let name = name.to_string_lossy().into_owned();
            entries.push(Entry { name, is_file: kind.is_file(), is_folder: kind.is_dir(), is_private });
        }
        entries.sort();
        Ok(entries)
    }

    pub fn create_folder(&self, name: &str) -> io::Result<()> {
        let (folder, last) = self.parent(name)?;
        Ok(rustix::fs::mkdirat(&*folder, last, PRIVATE_FOLDER)?)
    }

    pub fn open_file(&mut self, name: &str, how: Open) -> io::Result<FileId> {
        let file = if how == Open::Folder {
            File { fd: self.descend(name)?, folder: true, direct: false }
        } else {
            let (folder, last) = self.parent(name)?;
            let (flags, direct) = match how {
                Open::Read { direct } => (OFlags::RDONLY, direct),
                Open::Write { direct } => (OFlags::RDWR, direct),
                Open::Create { direct } => (OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, direct),
                Open::Folder => unreachable!("opened above"),
            };
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            // Opening a pipe would wait for its writer.
            match rustix::fs::statat(&*folder, last, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) if !FileType::from_raw_mode(found.st_mode).is_file() => {
                    let what = format!("{name} is a link or no file; put back the file itself");
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
                }
                _ => {}
            }
            let wanted = if direct && self.direct { flags | OFlags::DIRECT } else { flags };
            let mut direct = wanted != flags;
            let fd = match rustix::fs::openat(&*folder, last, wanted, PRIVATE_FILE) {
                Err(Errno::INVAL) if wanted != flags => {
                    (self.direct, direct) = (false, false);
                    // A file that was made before direct transfers were refused is ours.
                    let flags = flags - OFlags::EXCL;
                    rustix::fs::openat(&*folder, last, flags, PRIVATE_FILE)?
                }
                opened => opened?,
            };
            File { fd: Arc::new(fd), folder: false, direct }
        };
        let free = self.files.iter().position(Option::is_none).unwrap_or_else(|| {
            self.files.push(None);
            self.files.len() - 1
        });
        self.files[free] = Some(file);
        Ok(FileId(free as u32))
    }

    pub fn close(&mut self, file: FileId) {
        if let Some(slot) = self.files.get_mut(file.0 as usize) {
            *slot = None;
        }
    }

    pub fn file(&self, file: FileId) -> io::Result<File> {
        let found = self.files.get(file.0 as usize).and_then(Clone::clone);
        found.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the file was closed"))
    }

    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let ((from_folder, from), (to_folder, to)) = (self.parent(from)?, self.parent(to)?);
        Ok(rustix::fs::renameat(&*from_folder, from, &*to_folder, to)?)
    }

    pub fn unlink(&self, name: &str) -> io::Result<()> {
        let (folder, last) = self.parent(name)?;
        Ok(rustix::fs::unlinkat(&*folder, last, AtFlags::empty())?)
    }

    pub fn length(&self, file: FileId) -> io::Result<u64> {
        let found = rustix::fs::fstat(&*self.file(file)?.fd)?;
        Ok(u64::try_from(found.st_size).unwrap_or(0))
    }

    pub fn lock(&self, file: FileId, wait: Duration) -> io::Result<bool> {
        const STEP: Duration = Duration::from_millis(10);
        let file = self.file(file)?;
        let mut waited = Duration::ZERO;
        loop {
            match rustix::fs::flock(&*file.fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(true),
                Err(Errno::AGAIN | Errno::INTR) if waited < wait => pause(STEP),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            waited += STEP;
        }
    }

    pub fn space(&self) -> io::Result<u64> {
        let found = rustix::fs::fstatvfs(&*self.root)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// The folder that holds a name, and the name's last part.
    fn parent<'a>(&self, name: &'a str) -> io::Result<(Arc<OwnedFd>, &'a str)> {
        let (folder, last) = name.rsplit_once('/').unwrap_or(("", name));
        if last.is_empty() || last == "." || last == ".." {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` names nothing in a folder")));
        }
        Ok((self.descend(folder)?, last))
    }

    /// Opens a folder part by part, so that no part can be a link.
    fn descend(&self, name: &str) -> io::Result<Arc<OwnedFd>> {
        let mut at = self.root.clone();
        if name.is_empty() {
            // A description of its own: two readers of one would share their place in it.
            return Ok(Arc::new(rustix::fs::openat(&*at, ".", FOLDER, Mode::empty())?));
        }
        for part in name.split('/') {
            if part.is_empty() || part == ".." {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` is no folder's name")));
            }
            let opened = rustix::fs::openat(&*at, part, FOLDER, Mode::empty()).map_err(|error| match error {
                Errno::NOTDIR | Errno::LOOP => {
                    let what = format!("{name} is a link or no folder; put back the folder itself");
                    io::Error::new(io::ErrorKind::InvalidInput, what)
                }
                error => error.into(),
            })?;
            at = Arc::new(opened);
        }
        Ok(at)
    }
}

fn is_own(found: &Stat) -> bool {
    found.st_uid == rustix::process::geteuid().as_raw()
}

fn is_written_by_others(found: &Stat) -> bool {
    found.st_mode & 0o022 != 0
}

/// Nothing readable is waited for, so this ends with its time.
fn pause(time: Duration) {
    let time = rustix::fs::Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    let _ = rustix::event::poll(&mut [], Some(&time));
}

fn said(error: Errno, path: &Path, what: &str) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("{} {what} ({error})", path.display()))
}

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const PRIVATE_FOLDER: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
