//! Opening files, and making them on the volume.

use std::ffi::{CStr, CString, c_int};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use overside_verbs::{Clock, SystemClock};
use overside_volume::files::Command;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::{State, errno_of, tell};
use crate::files::{
    self,
    placeholder::{BYTES, Name},
};
use crate::kernel::borrowed;
use crate::{errno, real};

pub(in crate::files) fn open_in(folder: c_int, path: &CStr, flags: c_int, mode: u32) -> Result<c_int, c_int> {
    let opened = |flags: c_int| {
        // SAFETY: [preload-real] the program's arguments.
        let fd = unsafe { real::openat(folder, path.as_ptr(), flags, mode) };
        if fd < 0 { Err(errno::get()) } else { Ok(fd) }
    };
    let (creates, truncates) = (flags & libc::O_CREAT != 0, flags & libc::O_TRUNC != 0);
    let exclusive = creates && flags & libc::O_EXCL != 0;
    for _ in 0..TRIES {
        if !exclusive {
            match opened(flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC)) {
                Ok(fd) => {
                    let adopted = errno::kept(|| files::adopt(fd));
                    let done = match adopted {
                        Ok(true) if truncates => files::cut(fd).map(|()| fd),
                        // The kernel's, which has it truncate what was there.
                        Ok(false) if truncates && flags & libc::O_ACCMODE != libc::O_RDONLY => {
                            // What is no file has nothing to truncate.
                            let _ = errno::kept(|| rustix::fs::ftruncate(borrowed(fd), 0));
                            Ok(fd)
                        }
                        Ok(false) if truncates => {
                            close(fd);
                            return opened(flags);
                        }
                        adopted => adopted.map(|_| fd),
                    };
                    return done.inspect_err(|_| close(fd));
                }
                Err(libc::ENOENT) if creates => {}
                Err(error) => return Err(error),
            }
        }
        match make(folder, path, flags, mode) {
            Some(Err(libc::EEXIST)) if !exclusive => {}
            Some(made) => return made,
            None => return opened(flags).inspect(|fd| _ = errno::kept(|| files::adopt(*fd))),
        }
    }
    Err(libc::EEXIST)
}

/// Makes a file on the volume, and its placeholder. None: it is the kernel's.
fn make(folder: c_int, path: &CStr, flags: c_int, mode: u32) -> Option<Result<c_int, c_int>> {
    let bytes = path.to_bytes();
    let (parent, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (bytes.get(..at + 1)?, bytes.get(at + 1..)?),
        None => (&b"."[..], bytes),
    };
    let (parent, name) = (CString::new(parent).ok()?, CString::new(name).ok()?);
    let parent = rustix::fs::openat(
        borrowed_folder(folder),
        &*parent,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let parent = parent.ok()?;
    let is_made = files::with(|state| Ok(state.is_made_here(parent_fd(&parent), name.to_bytes()))).ok()?;
    // A link that points nowhere makes what it points to, where the kernel makes it.
    let is_link = rustix::fs::statat(&parent, &*name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    if !is_made || is_link {
        return None;
    }
    let made = make_in(&parent, &name, flags, mode);
    drop(parent);
    Some(made.and_then(|file| {
        let fd = lowest(file, flags & libc::O_CLOEXEC != 0)?.into_raw_fd();
        files::adopt(fd).map(|_| fd).inspect_err(|_| close(fd))
    }))
}

/// The same file by the lowest number that is free, as programs expect it of `open`.
fn lowest(file: OwnedFd, is_cloexec: bool) -> Result<OwnedFd, c_int> {
    let low = rustix::io::fcntl_dupfd_cloexec(&file, 0).map_err(Errno::raw_os_error)?;
    if low.as_raw_fd() > file.as_raw_fd() {
        return Ok(file);
    }
    if !is_cloexec {
        rustix::io::fcntl_setfd(&low, rustix::io::FdFlags::empty()).map_err(Errno::raw_os_error)?;
    }
    Ok(low)
}

fn make_in(parent: &OwnedFd, name: &CStr, flags: c_int, mode: u32) -> Result<OwnedFd, c_int> {
    let raw = |error: Errno| error.raw_os_error();
    let reads_alone = flags & libc::O_ACCMODE == libc::O_RDONLY;
    let kept = libc::O_APPEND | libc::O_SYNC | libc::O_DSYNC | libc::O_CLOEXEC | libc::O_NOATIME;
    let access = if reads_alone { libc::O_RDWR } else { flags & libc::O_ACCMODE };
    let wanted = OFlags::from_bits_retain((flags & kept | access | libc::O_TMPFILE) as u32);
    let file = rustix::fs::openat(parent, c".", wanted, Mode::from_raw_mode(mode)).map_err(|error| {
        tell("open", "the file system has no files without a name (O_TMPFILE)");
        raw(error)
    })?;
    let mut token = [0; 8];
    SystemClock.fill(&mut token).map_err(|_| libc::EIO)?;
    let token = u64::from_le_bytes(token).max(1);
    files::with(|state| {
        let id = state.client()?.create(token).map_err(errno_of)?;
        let made = Name { id, token };
        let linked = (|| {
            if rustix::io::pwrite(&file, &made.text(), 0).map_err(raw)? != BYTES {
                return Err(libc::ENOSPC);
            }
            let path = files::proc_path(file.as_raw_fd());
            rustix::fs::linkat(rustix::fs::CWD, path.as_str(), parent, name, AtFlags::SYMLINK_FOLLOW).map_err(raw)
        })();
        if linked.is_err() {
            let _ = state.client()?.command(id, Command::Remove, token);
        }
        linked
    })?;
    if reads_alone {
        let again = rustix::fs::openat(
            parent,
            name,
            OFlags::from_bits_retain((flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC)) as u32),
            Mode::empty(),
        );
        return again.map_err(raw);
    }
    Ok(file)
}

fn parent_fd(parent: &OwnedFd) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(parent)
}

fn close(fd: c_int) {
    errno::kept(|| {
        files::closing(fd);
        // SAFETY: [preload-real] a descriptor of ours.
        unsafe { real::close(fd) }
    });
}

/// A program's number of a folder, or where it stands.
pub(in crate::files) fn borrowed_folder<'a>(folder: c_int) -> BorrowedFd<'a> {
    if folder == libc::AT_FDCWD { rustix::fs::CWD } else { borrowed(folder) }
}

impl State {
    /// Whether a file of this name in this folder is made on the volume.
    fn is_made_here(&self, folder: BorrowedFd<'_>, name: &[u8]) -> bool {
        let Some(config) = &self.config else { return false };
        let link = files::proc_path(folder.as_raw_fd());
        let Ok(folder) = rustix::fs::readlink(link.as_str(), Vec::new()) else { return false };
        let below =
            folder.to_bytes().strip_prefix(&config.prefix[..]).filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
        below.is_some_and(|below| config.preset.matches(&[below, b"/", name].concat()))
    }
}

/// How often a file may come and go between two looks.
const TRIES: usize = 100;
