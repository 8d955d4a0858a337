//! Files that may lie on a volume: open, read and write at a place, length, names. Without
//! `overside run --volume` each of these is the C library's own.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libc::{iovec, mode_t, off_t, ssize_t};
use rustix::fs::{Mode, OFlags};

use super::data::{list, one};
use crate::{errno, files, iovecs, kernel, real};

/// The program's text; none where the kernel is to refuse it.
///
/// # Safety
/// It is text that ends with a zero, where there is any.
pub(super) unsafe fn text<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: [preload-program] the program's text.
    iovecs::is_inside(path).then(|| unsafe { CStr::from_ptr(path) })
}

/// # Safety
/// The path is the program's text, or null.
pub(super) unsafe fn open_at(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: [preload-program] the program's text.
    let path_text = if files::is_on() { unsafe { text(path) } } else { None };
    if let Some(opened) = path_text.and_then(|path| files::open(folder, path, flags, mode)) {
        return files::told(opened) as c_int;
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::openat(folder, path, flags, mode) }
}

macro_rules! opens {
    ($($name:ident, $at:ident, $checked:ident, $checked_at:ident, $creates:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: [preload-program] the program's arguments.
            unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $at(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: [preload-program] the program's arguments.
            unsafe { open_at(folder, path, flags, mode) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $checked(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: [preload-program] the program's arguments.
            unsafe { open_at(libc::AT_FDCWD, path, flags, 0) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $checked_at(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: [preload-program] the program's arguments.
            unsafe { open_at(folder, path, flags, 0) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $creates(path: *const c_char, mode: mode_t) -> c_int {
            // SAFETY: [preload-program] the program's arguments.
            unsafe { open_at(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
        }
    )*};
}

opens! {
    open, openat, __open_2, __openat_2, creat;
    open64, openat64, __open64_2, __openat64_2, creat64;
}

/// # Safety
/// The program's list.
pub(super) unsafe fn read_list(fd: c_int, iov: *const iovec, count: c_int, at: Option<off_t>) -> ssize_t {
    // SAFETY: [preload-program] the caller's promise.
    match unsafe { list(iov, count) } {
        Some(list) => files::told(files::read(fd, list, at)) as ssize_t,
        None => errno::fail(libc::EINVAL),
    }
}

/// # Safety
/// The program's list.
pub(super) unsafe fn write_list(fd: c_int, iov: *const iovec, count: c_int, at: Option<off_t>) -> ssize_t {
    // SAFETY: [preload-program] the caller's promise.
    match unsafe { list(iov, count) } {
        Some(list) => files::told(files::write(fd, list, at)) as ssize_t,
        None => errno::fail(libc::EINVAL),
    }
}

/// Of flags, those that say when bytes are safe: they are when the call returns, and a new file's
/// placeholder can be.
fn are_known(flags: c_int) -> bool {
    flags & !(libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_HIPRI) == 0
}

/// # Safety
/// The program's list.
pub(super) unsafe fn read_list_as(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
    if !are_known(flags) {
        return files::refuse("preadv2 with flags") as ssize_t;
    }
    // SAFETY: [preload-program] the caller's promise.
    unsafe { read_list(fd, iov, count, (at != -1).then_some(at)) }
}

/// # Safety
/// The program's list.
pub(super) unsafe fn write_list_as(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
    if !are_known(flags) {
        return files::refuse("pwritev2 with flags") as ssize_t;
    }
    // SAFETY: [preload-program] the caller's promise.
    let written = unsafe { write_list(fd, iov, count, (at != -1).then_some(at)) };
    if written < 0 || flags & (libc::RWF_DSYNC | libc::RWF_SYNC) == 0 {
        return written;
    }
    files::told(files::sync(fd).map(|()| written as i64)) as ssize_t
}

macro_rules! places {
    ($($read:ident, $write:ident, $readv:ident, $writev:ident, $seek:ident, $resize:ident, $allocate:ident, $advise:ident, $reserve:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $read(fd: c_int, to: *mut c_void, len: usize, at: off_t) -> ssize_t {
            if files::has(fd) {
                return files::told(files::read(fd, &one(to, len), Some(at))) as ssize_t;
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$read(fd, to, len, at) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $write(fd: c_int, from: *const c_void, len: usize, at: off_t) -> ssize_t {
            if files::has(fd) {
                return files::told(files::write(fd, &one(from, len), Some(at))) as ssize_t;
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$write(fd, from, len, at) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $readv(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t {
            if files::has(fd) {
                // SAFETY: [preload-program] the program's list.
                return unsafe { read_list(fd, iov, count, Some(at)) };
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$readv(fd, iov, count, at) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $writev(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t {
            if files::has(fd) {
                // SAFETY: [preload-program] the program's list.
                return unsafe { write_list(fd, iov, count, Some(at)) };
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$writev(fd, iov, count, at) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $seek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
            if files::has(fd) {
                return files::told(files::seek(fd, offset, whence));
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$seek(fd, offset, whence) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $resize(fd: c_int, size: off_t) -> c_int {
            if files::has(fd) {
                return files::told(files::resize(fd, size).map(|()| 0)) as c_int;
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$resize(fd, size) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $allocate(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int {
            if files::has(fd) {
                return match mode {
                    0 => files::told(files::allocate(fd, at, len).map(|()| 0)) as c_int,
                    _ => files::refuse("fallocate with a mode") as c_int,
                };
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$allocate(fd, mode, at, len) }
        }

        /// It returns what went wrong, and errno stays.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $reserve(fd: c_int, at: off_t, len: off_t) -> c_int {
            if files::has(fd) {
                return errno::kept(|| files::allocate(fd, at, len).err().unwrap_or(0));
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$reserve(fd, at, len) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $advise(fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int {
            if files::has(fd) {
                // A hint, which nobody needs to take.
                return 0;
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$advise(fd, at, len, advice) }
        }
    )*};
}

places! {
    pread, pwrite, preadv, pwritev, lseek, ftruncate, fallocate, posix_fadvise, posix_fallocate;
    pread64, pwrite64, preadv64, pwritev64, lseek64, ftruncate64, fallocate64, posix_fadvise64, posix_fallocate64;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pread_chk(fd: c_int, to: *mut c_void, len: usize, at: off_t, room: usize) -> ssize_t {
    if files::has(fd) && len <= room {
        return files::told(files::read(fd, &one(to, len), Some(at))) as ssize_t;
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::__pread_chk(fd, to, len, at, room) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pread64_chk(fd: c_int, to: *mut c_void, len: usize, at: off_t, room: usize) -> ssize_t {
    // SAFETY: [preload-program] the program's arguments.
    unsafe { __pread_chk(fd, to, len, at, room) }
}

macro_rules! syncs {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int) -> c_int {
            if files::has(fd) {
                return files::told(files::sync(fd).map(|()| 0)) as c_int;
            }
            // SAFETY: [preload-real] the program's argument.
            unsafe { real::$name(fd) }
        }
    )*};
}

syncs! {
    fsync;
    fdatasync;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sync_file_range(fd: c_int, at: off_t, len: off_t, flags: c_uint) -> c_int {
    if files::has(fd) {
        // Bytes are on stable storage already.
        return 0;
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::sync_file_range(fd, at, len, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readahead(fd: c_int, at: off_t, len: usize) -> ssize_t {
    if files::has(fd) {
        return 0;
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::readahead(fd, at, len) }
}

/// A file's length in what `stat` has found, where it lies on the volume.
///
/// # Safety
/// `found` is the kernel's answer.
unsafe fn correct(
    result: c_int,
    found: *mut libc::stat,
    length: impl FnOnce(&libc::stat) -> Result<Option<(u64, u64)>, c_int>,
) -> c_int {
    if result != 0 {
        return result;
    }
    // SAFETY: [preload-program] the caller's promise.
    let found = unsafe { &mut *found };
    match length(found) {
        Ok(None) => 0,
        Ok(Some((size, allocated))) => {
            found.st_size = size as off_t;
            found.st_blocks = (allocated / 512) as i64;
            0
        }
        Err(error) => errno::fail(error) as c_int,
    }
}

/// The same of a path, below a folder.
unsafe fn correct_at(result: c_int, folder: c_int, path: *const c_char, flags: c_int, found: *mut libc::stat) -> c_int {
    let on = result == 0 && files::is_on();
    // SAFETY: [preload-program] the program's text, which the kernel has read.
    let Some(path) = (if on { unsafe { text(path) } } else { None }) else { return result };
    // SAFETY: [preload-program] the kernel's answer.
    unsafe {
        correct(result, found, |found| {
            length_at(folder, path, flags, (found.st_mode, found.st_size), (found.st_dev, found.st_ino))
        })
    }
}

/// The same of a descriptor.
unsafe fn correct_open(result: c_int, fd: c_int, found: *mut libc::stat) -> c_int {
    if !files::is_on() {
        return result;
    }
    // SAFETY: [preload-program] the kernel's answer.
    unsafe {
        correct(result, found, |found| {
            let inode = (found.st_dev, found.st_ino);
            length_at(fd, c"", libc::AT_EMPTY_PATH, (found.st_mode, found.st_size), inode)
        })
    }
}

fn length_at(
    folder: c_int,
    path: &CStr,
    flags: c_int,
    (mode, size): (u32, i64),
    inode: (u64, u64),
) -> Result<Option<(u64, u64)>, c_int> {
    if mode & libc::S_IFMT != libc::S_IFREG || size != 64 {
        return Ok(None);
    }
    if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 && folder >= 0 {
        if files::has(folder) {
            return files::length(folder).map(Some);
        }
        // Others were looked at when they came about.
        let names_alone = rustix::fs::fcntl_getfl(kernel::borrowed(folder)).is_ok_and(|of| of.contains(OFlags::PATH));
        if !names_alone {
            return Ok(None);
        }
        let path = format!("/proc/self/fd/{folder}");
        let wanted = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        return errno::kept(|| files::length_at(inode, || rustix::fs::open(path.as_str(), wanted, Mode::empty())));
    }
    let follow = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { OFlags::NOFOLLOW } else { OFlags::empty() };
    let wanted = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK | follow;
    errno::kept(|| {
        files::length_at(inode, || {
            let folder = if folder < 0 { rustix::fs::CWD } else { kernel::borrowed(folder) };
            rustix::fs::openat(folder, path, wanted, Mode::empty())
        })
    })
}

macro_rules! stats {
    ($($stat:ident, $lstat:ident, $fstat:ident, $fstatat:ident, $old_stat:ident, $old_lstat:ident, $old_fstat:ident, $old_fstatat:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $stat(path: *const c_char, found: *mut libc::stat) -> c_int {
            // SAFETY: [preload-real] [preload-program] the program's arguments.
            unsafe { correct_at(real::$stat(path, found), libc::AT_FDCWD, path, 0, found) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $lstat(path: *const c_char, found: *mut libc::stat) -> c_int {
            // SAFETY: [preload-real] [preload-program] the program's arguments.
            unsafe { correct_at(real::$lstat(path, found), libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW, found) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $fstat(fd: c_int, found: *mut libc::stat) -> c_int {
            // SAFETY: [preload-real] [preload-program] the program's arguments.
            unsafe { correct_open(real::$fstat(fd, found), fd, found) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $fstatat(folder: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int {
            // SAFETY: [preload-real] [preload-program] the program's arguments.
            unsafe { correct_at(real::$fstatat(folder, path, found, flags), folder, path, flags, found) }
        }

        /// Programs that were built with an older C library call these. The version is the only one
        /// that there is.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $old_stat(version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int {
            // SAFETY: [preload-real] [preload-program] the program's arguments.
            unsafe { correct_at(real::$old_stat(version, path, found), libc::AT_FDCWD, path, 0, found) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $old_lstat(version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int {
            // SAFETY: [preload-real] [preload-program] the program's arguments.
            unsafe { correct_at(real::$old_lstat(version, path, found), libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW, found) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $old_fstat(version: c_int, fd: c_int, found: *mut libc::stat) -> c_int {
            // SAFETY: [preload-real] [preload-program] the program's arguments.
            unsafe { correct_open(real::$old_fstat(version, fd, found), fd, found) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $old_fstatat(version: c_int, folder: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int {
            // SAFETY: [preload-real] [preload-program] the program's arguments.
            unsafe { correct_at(real::$old_fstatat(version, folder, path, found, flags), folder, path, flags, found) }
        }
    )*};
}

stats! {
    stat, lstat, fstat, fstatat, __xstat, __lxstat, __fxstat, __fxstatat;
    stat64, lstat64, fstat64, fstatat64, __xstat64, __lxstat64, __fxstat64, __fxstatat64;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    found: *mut libc::statx,
) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    let result = unsafe {
        real::statx(folder, path, flags, mask | if files::is_on() { libc::STATX_BASIC_STATS } else { 0 }, found)
    };
    if result != 0 || !files::is_on() {
        return result;
    }
    // SAFETY: [preload-program] the kernel's answer, and the program's text.
    let (found, path) = unsafe { (&mut *found, text(path)) };
    let inode = (libc::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino);
    let about = (u32::from(found.stx_mode), found.stx_size as i64);
    match length_at(folder, path.unwrap_or(c""), flags, about, inode) {
        Ok(None) => 0,
        Ok(Some((size, allocated))) => {
            (found.stx_size, found.stx_blocks) = (size, allocated / 512);
            0
        }
        Err(error) => errno::fail(error) as c_int,
    }
}

macro_rules! by_path {
    ($($truncate:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $truncate(path: *const c_char, size: off_t) -> c_int {
            // SAFETY: [preload-program] the program's text.
            let found = if files::is_on() { unsafe { text(path) } } else { None };
            if found.is_some_and(|path| errno::kept(|| files::is_at(libc::AT_FDCWD, path))) {
                // SAFETY: [preload-program] the program's text.
                let fd = unsafe { open_at(libc::AT_FDCWD, path, libc::O_WRONLY | libc::O_CLOEXEC, 0) };
                if fd < 0 {
                    return -1;
                }
                let result = files::resize(fd, size);
                // SAFETY: [preload-program] a descriptor of ours.
                unsafe { super::descriptors::close(fd) };
                return files::told(result.map(|()| 0)) as c_int;
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$truncate(path, size) }
        }
    )*};
}

by_path! {
    truncate;
    truncate64;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn copy_file_range(
    from: c_int,
    from_at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    len: usize,
    flags: c_uint,
) -> ssize_t {
    if files::has(from) || files::has(to) {
        // Programs read and write then, as between file systems.
        return errno::fail(libc::EXDEV);
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::copy_file_range(from, from_at, to, to_at, len, flags) }
}

unsafe fn losing(folder: c_int, path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: [preload-program] the program's text.
    match if files::is_on() { unsafe { text(path) } } else { None } {
        Some(path) => files::losing_name(folder, path, call, |result| *result == 0),
        None => call(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe { losing(libc::AT_FDCWD, to, || real::rename(from, to)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn renameat(
    from_folder: c_int,
    from: *const c_char,
    folder: c_int,
    to: *const c_char,
) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe { losing(folder, to, || real::renameat(from_folder, from, folder, to)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn renameat2(
    from_folder: c_int,
    from: *const c_char,
    folder: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe { losing(folder, to, || real::renameat2(from_folder, from, folder, to, flags)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe { losing(libc::AT_FDCWD, path, || real::unlink(path)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe { losing(folder, path, || real::unlinkat(folder, path, flags)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn remove(path: *const c_char) -> c_int {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe { losing(libc::AT_FDCWD, path, || real::remove(path)) }
}

macro_rules! maps {
    ($($name:ident;)*) => {$(
        /// By a system call of its own: looking the C library's function up may map memory itself.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(at: *mut c_void, len: usize, access: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
            use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
            if flags & libc::MAP_ANONYMOUS == 0 && files::has(fd) {
                files::refuse("mmap");
                errno::set(libc::ENODEV);
                return libc::MAP_FAILED;
            }
            let (access, kept) = (ProtFlags::from_bits_retain(access as u32), MapFlags::from_bits_retain(flags as u32));
            // SAFETY: [preload-program] the program's mapping, as it asks for it.
            let mapped = unsafe {
                if flags & libc::MAP_ANONYMOUS != 0 {
                    mmap_anonymous(at, len, access, kept)
                } else if fd < 0 {
                    Err(rustix::io::Errno::BADF)
                } else {
                    mmap(at, len, access, kept, kernel::borrowed(fd), offset as u64)
                }
            };
            mapped.unwrap_or_else(|error| {
                errno::set(error.raw_os_error());
                libc::MAP_FAILED
            })
        }
    )*};
}

maps! {
    mmap;
    mmap64;
}

macro_rules! streams {
    ($($open:ident, $again:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $open(path: *const c_char, mode: *const c_char) -> *mut c_void {
            // SAFETY: [preload-program] the program's text.
            if unsafe { is_refused(path) } {
                return std::ptr::null_mut();
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$open(path, mode) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $again(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void {
            // SAFETY: [preload-program] the program's text.
            if unsafe { is_refused(path) } {
                return std::ptr::null_mut();
            }
            // SAFETY: [preload-real] the program's arguments.
            unsafe { real::$again(path, mode, stream) }
        }
    )*};
}

streams! {
    fopen, freopen;
    fopen64, freopen64;
}

/// The C library's streams would read, or write, a placeholder.
unsafe fn is_refused(path: *const c_char) -> bool {
    // SAFETY: [preload-program] the program's text.
    let path = if files::is_on() { unsafe { text(path) } } else { None };
    let refused = path.is_some_and(|path| errno::kept(|| files::is_at(libc::AT_FDCWD, path)));
    if refused {
        files::refuse("a stream of the C library");
    }
    refused
}
