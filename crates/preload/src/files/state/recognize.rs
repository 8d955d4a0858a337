//! Which files are placeholders, and of which file on the volume.

use std::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::State;
use super::descriptors::descriptors;
use super::making::borrowed_folder;
use crate::files::{
    self,
    placeholder::{BYTES, Name},
};
use crate::kernel::borrowed;

impl State {
    /// Whether a candidate's descriptor is of a placeholder, and which file.
    pub(in crate::files) fn recognize(&self, fd: c_int, inode: (u64, u64)) -> Result<Option<Name>, c_int> {
        if let Some(name) = self.known(inode) {
            return Ok(Some(name));
        }
        let mut text = [0; BYTES];
        // Through itself, where that can be: closing another one would give up the program's locks.
        let read = rustix::io::pread(borrowed(fd), &mut text, 0).or_else(|_| {
            let path = files::proc_path(fd);
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
            let file = rustix::fs::open(path.as_str(), flags, Mode::empty())?;
            rustix::io::pread(&file, &mut text, 0)
        });
        // What cannot be looked into may be a placeholder, and must not be written over.
        match read.map_err(Errno::raw_os_error)? {
            BYTES => Ok(Name::parse(&text)),
            _ => Ok(None),
        }
    }

    fn known(&self, inode: (u64, u64)) -> Option<Name> {
        // What is closed already may be among them, and another file have its inode.
        if files::is_miscounted() {
            return None;
        }
        self.open.iter().flatten().find(|open| open.inode == inode).map(|open| open.name)
    }

    /// The same by an inode. What this process has open is not opened again, whatever it is:
    /// closing that would give up the program's locks.
    pub(in crate::files) fn recognize_by(
        &self,
        inode: (u64, u64),
        open: impl FnOnce() -> Result<OwnedFd, Errno>,
    ) -> Result<Option<Name>, c_int> {
        if let Some(known) = self.known(inode) {
            return Ok(Some(known));
        }
        let mut text = [0; BYTES];
        let mut own = descriptors().into_iter().filter(|fd| candidate(*fd) == Some(inode));
        let read = match own.find_map(|fd| rustix::io::pread(borrowed(fd), &mut text, 0).ok()) {
            Some(read) => read,
            None => {
                let Ok(file) = open() else { return Ok(None) };
                rustix::io::pread(&file, &mut text, 0).map_err(Errno::raw_os_error)?
            }
        };
        Ok(if read == BYTES { Name::parse(&text) } else { None })
    }

    /// What is there under a name that is about to go, open, unless this process has it open
    /// itself: then its close looks.
    pub(in crate::files) fn hold_named(&self, folder: c_int, path: &CStr) -> Option<(Name, OwnedFd)> {
        let folder = borrowed_folder(folder);
        let stat = rustix::fs::statat(folder, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let inode = (stat.st_dev, stat.st_ino);
        let is_open = self.open.iter().flatten().any(|open| open.inode == inode);
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG || stat.st_size != BYTES as i64 || is_open {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(folder, path, flags, Mode::empty()).ok()?;
        let mut text = [0; BYTES];
        let read = rustix::io::pread(&file, &mut text, 0).ok()?;
        Some((Name::parse(&text).filter(|_| read == BYTES)?, file))
    }
}

/// The inode of what may be a placeholder, by its kind and length.
pub(in crate::files) fn candidate(fd: c_int) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(borrowed(fd)).ok()?;
    let may_be = stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_size == BYTES as i64;
    may_be.then_some((stat.st_dev, stat.st_ino))
}

/// Whether a placeholder is there, seen without what is open: a vfork child has its parent's
/// memory.
pub(in crate::files) fn is_placeholder(folder: c_int, path: &CStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::openat(borrowed_folder(folder), path, flags, Mode::empty()) else { return false };
    let mut text = [0; BYTES];
    candidate(file.as_raw_fd()).is_some()
        && rustix::io::pread(&file, &mut text, 0).is_ok_and(|read| read == BYTES)
        && Name::parse(&text).is_some()
}
