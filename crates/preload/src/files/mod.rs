//! Files of the program that lie on a volume of a node (wDSA, vi-attached-storage §3.2).
//!
//! Such a file keeps its name, descriptors, offsets and locks in the kernel: at its path stands a
//! placeholder, and the program's descriptors are the kernel's, of that placeholder. Bytes and
//! length are the volume's: each call that is about them comes here. A file is recognized by what
//! its placeholder says, whatever its path; the volume's preset says only which files are made
//! there.
//!
//! Each process has a session of its own, and those of one `overside run` write together. One lock
//! holds all: a call has it until the node has answered. A call by a signal handler that has
//! interrupted another one fails with EDEADLK.
//!
//! What cannot be covered fails: no call ever takes a placeholder for the file, where this library
//! sees the call. The C library's streams read and write by calls that it does not see. So
//! descriptors 0 to 2 are only shown to the kernel as a path (O_PATH), and the descriptor itself is
//! kept elsewhere.

mod placeholder;
mod state;

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::iovec;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};

use crate::kernel::borrowed;
use crate::lock::Lock;
use crate::policy::DESCRIPTORS;
use crate::{errno, iovecs, table};

pub(crate) use placeholder::Name;
#[cfg(any(test, fuzzing))]
pub use placeholder::{fuzz_placeholder, seeds_placeholder};
use state::{Guarded, State};

/// Whether this process has files on a volume at all.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Whether a descriptor is of a file on the volume.
#[inline]
pub(crate) fn has(fd: c_int) -> bool {
    DESCRIBED.get(fd as usize).is_some_and(|slot| slot.load(Ordering::Relaxed) != 0)
}

/// The kernel's descriptor of what the program calls `fd`.
fn kernels(fd: c_int) -> c_int {
    match SHADOWS.get(fd as usize).map(|shadow| shadow.load(Ordering::Relaxed)) {
        None | Some(0) => fd,
        Some(shadow) => shadow,
    }
}

/// Of a call that is not about bytes or length, the kernel's descriptor: what is only shown as a
/// path takes few.
pub(crate) fn behind(fd: c_int) -> c_int {
    if has(fd) { kernels(fd) } else { fd }
}

/// Runs what needs the session, or which files are open; the errno where it cannot.
fn with<T>(f: impl FnOnce(&mut State) -> Result<T, c_int>) -> Result<T, c_int> {
    // A vfork child runs in its parent's memory.
    if !table::is_ours() {
        return Err(libc::ENOTSUP);
    }
    let Some(_held) = LOCK.lock() else { return Err(libc::EDEADLK) };
    // SAFETY: [preload-files] the lock is held, and no call within comes here again.
    let state = unsafe { STATE.get() };
    let result = f(state).map_err(|error| state.refused().unwrap_or(error));
    state.note_descriptors();
    result
}

/// Whether a descriptor is of this process's session.
fn is_of_session(fd: c_int) -> bool {
    let word = usize::try_from(fd).ok().and_then(|fd| SESSIONS.get(fd / 64));
    word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (fd % 64) != 0)
}

fn mark(fd: c_int, is_ours: bool) {
    let Some(word) = usize::try_from(fd).ok().and_then(|fd| SESSIONS.get(fd / 64)) else { return };
    let bit = 1 << (fd % 64);
    if is_ours {
        word.fetch_or(bit, Ordering::Relaxed)
    } else {
        word.fetch_and(!bit, Ordering::Relaxed)
    };
}

fn unmark_all() {
    SESSIONS.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

/// As a call returns it: what `f` says, or -1 and errno.
pub(crate) fn told<T: Into<i64>>(result: Result<T, c_int>) -> i64 {
    match result {
        Ok(value) => value.into(),
        Err(error) => {
            errno::set(error);
            -1
        }
    }
}

/// At start-up: what the environment says, and which descriptors this process has inherited.
pub(crate) fn find() {
    let Some(state) = State::from_environment() else { return };
    // SAFETY: [preload-files] nobody else runs in this process yet.
    unsafe { *STATE.get() = state };
    ON.store(true, Ordering::Relaxed);
    let mut all = state::descriptors();
    if all.is_empty() {
        all.extend(0..DESCRIPTORS_LOOKED_AT);
    }
    // Downwards: what shields the first ones lies higher.
    all.sort_unstable();
    for fd in all.into_iter().rev() {
        // What cannot be read is no placeholder of this user's.
        let _ = adopt(fd);
    }
}

/// A descriptor that has just come about: whether it is of a file on the volume. What cannot be a
/// placeholder needs no lock: a session's own device opens files by calls that come here, while its
/// thread holds the lock.
pub(crate) fn adopt(fd: c_int) -> Result<bool, c_int> {
    let Some(inode) = state::candidate(fd) else { return Ok(false) };
    with(|state| {
        let Some(name) = state.recognize(fd, inode)? else { return Ok(false) };
        register(state, fd, name, inode)?;
        Ok(true)
    })
}

fn register(state: &mut State, fd: c_int, name: Name, inode: (u64, u64)) -> Result<(), c_int> {
    let Some(slot) = DESCRIBED.get(fd as usize) else {
        blind(fd)?;
        return Err(libc::EMFILE);
    };
    if slot.load(Ordering::Relaxed) == 0 {
        slot.store(state.opened(name, inode), Ordering::Relaxed);
        shield(fd)?;
    }
    Ok(())
}

/// The C library's streams must find nothing behind the first three descriptors.
fn shield(fd: c_int) -> Result<(), c_int> {
    let Some(shadow) = SHADOWS.get(fd as usize) else { return Ok(()) };
    let own = rustix::io::fcntl_dupfd_cloexec(borrowed(fd), SHADOW_MIN).map_err(Errno::raw_os_error)?;
    blind(fd)?;
    shadow.store(std::os::fd::IntoRawFd::into_raw_fd(own), Ordering::Relaxed);
    Ok(())
}

/// From now on a descriptor is only that of a path: nothing is read or written by it.
fn blind(fd: c_int) -> Result<(), c_int> {
    let flags = rustix::io::fcntl_getfd(borrowed(fd)).map_err(Errno::raw_os_error)?;
    let path = proc_path(fd);
    let bare = rustix::fs::open(path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let bare = bare.map_err(Errno::raw_os_error)?;
    let cloexec = if flags.contains(FdFlags::CLOEXEC) { libc::O_CLOEXEC } else { 0 };
    // SAFETY: [preload-real] numbers of descriptors of ours and of the program's.
    let put = unsafe { crate::real::dup3(std::os::fd::AsRawFd::as_raw_fd(&bare), fd, cloexec) };
    if put < 0 { Err(errno::get()) } else { Ok(()) }
}

fn proc_path(fd: c_int) -> String {
    format!("/proc/self/fd/{fd}")
}

/// `new` names what `fd` names. An error: it must not, for its bytes would be the placeholder's.
pub(crate) fn doubled(fd: c_int, new: c_int) -> Result<(), c_int> {
    if new < 0 || !has(fd) {
        return Ok(());
    }
    if !table::is_ours() {
        if is_shield(new) {
            // SAFETY: [preload-real] numbers of descriptors.
            unsafe { crate::real::dup3(kernels(fd), new, 0) };
        }
        return Ok(());
    }
    with(|state| {
        let slot = DESCRIBED.get(new as usize).ok_or(libc::EMFILE)?;
        let entry = DESCRIBED.get(fd as usize).map_or(0, |slot| slot.load(Ordering::Relaxed));
        if kernels(fd) != fd {
            // The program has got a double of what is only shown.
            let flags = rustix::io::fcntl_getfd(borrowed(new)).map_err(Errno::raw_os_error)?;
            let cloexec = if flags.contains(FdFlags::CLOEXEC) { libc::O_CLOEXEC } else { 0 };
            // SAFETY: [preload-real] numbers of descriptors.
            unsafe { crate::real::dup3(kernels(fd), new, cloexec) };
        }
        shield(new)?;
        state.doubled(entry);
        slot.store(entry, Ordering::Relaxed);
        Ok(())
    })
    .inspect_err(|_| state::tell("dup", "a descriptor above 65535, or within a signal handler"))
}

/// Before a descriptor is closed. A file that has no name any more, and that nobody else has open,
/// is no more.
pub(crate) fn closing(fd: c_int) {
    closing_in_vfork(fd as u32, fd as u32);
    let is_of_session = is_of_session(fd);
    if !is_of_session && !has(fd) || !table::is_ours() {
        return;
    }
    if is_of_session {
        // Of the program's next call there is another. One that closes its own is within that call.
        mark(fd, false);
        let _ = with(|state| {
            state.leave();
            Ok(())
        });
    }
    if !has(fd) {
        return;
    }
    let Some(slot) = DESCRIBED.get(fd as usize) else { return };
    let kernels = kernels(fd);
    let told = with(|state| {
        state.closing(slot.load(Ordering::Relaxed), kernels);
        Ok(())
    });
    if told.is_err() {
        MISCOUNTED.store(true, Ordering::Relaxed);
    }
    slot.store(0, Ordering::Relaxed);
    if kernels != fd {
        SHADOWS.get(fd as usize).iter().for_each(|shadow| shadow.store(0, Ordering::Relaxed));
        // SAFETY: [preload-real] the descriptor that `shield` made.
        unsafe { crate::real::close(kernels) };
    }
}

/// The same of all from `first` to `last`.
pub(crate) fn closing_range(first: u32, last: u32) {
    if is_on() {
        let last = last.min(DESCRIPTORS as u32 - 1);
        (first..=last).for_each(|fd| closing(fd as c_int));
    }
}

/// At `exit`.
pub(crate) fn end() {
    if !is_on() || !table::is_ours() {
        return;
    }
    closing_range(0, u32::MAX);
    let _ = with(|state| {
        state.leave();
        Ok(())
    });
}

/// Before another program takes this process over: it has a session of its own, and shields its
/// descriptors itself.
pub(crate) fn before_exec() {
    if is_on() && table::is_ours() {
        let _ = with(|state| {
            state.leave();
            Ok(())
        });
    }
    if is_on() {
        bare();
    }
}

/// Another process is about to get descriptors of this one.
pub(crate) fn before_spawn() {
    if is_on() && table::is_ours() {
        let _ = with(|state| {
            state.shared();
            Ok(())
        });
        bare();
    }
}

/// It has them, or there is no such process.
pub(crate) fn shield_again() {
    if is_on() && table::is_ours() {
        (0..SHADOWS.len() as c_int).filter(|fd| has(*fd)).for_each(|fd| _ = shield(fd));
    }
}

/// The first three descriptors are what they seem. A vfork child has descriptors of its own, and
/// its parent's memory.
fn bare() {
    let is_ours = table::is_ours();
    for (fd, shadow) in SHADOWS.iter().enumerate() {
        let own = if is_ours { shadow.swap(0, Ordering::Relaxed) } else { shadow.load(Ordering::Relaxed) };
        // A vfork child may have put another in its place.
        if own != 0 && is_shield(fd as c_int) {
            let flags = rustix::io::fcntl_getfd(borrowed(fd as c_int)).unwrap_or(FdFlags::empty());
            let cloexec = if flags.contains(FdFlags::CLOEXEC) { libc::O_CLOEXEC } else { 0 };
            // SAFETY: [preload-real] the descriptor that `shield` made, in the place that it was made from.
            unsafe {
                crate::real::dup3(own, fd as c_int, cloexec);
                crate::real::close(own);
            }
        }
    }
}

/// Before a vfork child closes these: where the first three really are may be among them.
pub(crate) fn closing_in_vfork(first: u32, last: u32) {
    let is_among = |shadow: &AtomicI32| {
        let own = shadow.load(Ordering::Relaxed);
        own != 0 && (first..=last).contains(&(own as u32))
    };
    if is_on() && SHADOWS.iter().any(is_among) && !table::is_ours() {
        bare();
    }
}

fn is_shield(fd: c_int) -> bool {
    rustix::fs::fcntl_getfl(borrowed(fd)).is_ok_and(|flags| flags.contains(OFlags::PATH))
}

/// Before a descriptor goes to another process in a message.
pub(crate) fn passed(fd: c_int) {
    if has(fd) {
        let _ = with(|state| {
            state.shared();
            Ok(())
        });
    }
}

/// A descriptor has come in a message.
pub(crate) fn received(fd: c_int) {
    if is_on() && table::is_ours() && fd >= 0 {
        match adopt(fd) {
            Ok(true) => passed(fd),
            Ok(false) => {}
            Err(_) => state::tell("recvmsg", "a descriptor that cannot be looked into, or above 65535"),
        }
    }
}

/// Before a fork.
pub(crate) fn prepare() {
    if is_on() {
        LOCK.keep();
    }
}

/// After it, in the parent.
pub(crate) fn parent() {
    if is_on() && LOCK.is_kept() {
        // SAFETY: [preload-files] the lock is held over the fork.
        unsafe { STATE.get() }.shared();
        LOCK.let_go();
    }
}

/// After it, in the child, which connects for itself.
pub(crate) fn in_child() {
    if is_on() {
        let is_whole = LOCK.is_kept();
        LOCK.renew();
        // SAFETY: [preload-files] the child has one thread.
        unsafe { STATE.get() }.in_child(is_whole);
    }
}

fn entry(fd: c_int) -> u32 {
    DESCRIBED.get(fd as usize).map_or(0, |slot| slot.load(Ordering::Relaxed))
}

/// Bytes of a list of buffers.
fn bytes_of(list: &[iovec]) -> Result<usize, c_int> {
    if list.iter().any(iovecs::is_outside) {
        return Err(libc::EFAULT);
    }
    let bytes = list.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len));
    bytes.filter(|bytes| *bytes <= isize::MAX as usize).ok_or(libc::EINVAL)
}

fn mode(fd: c_int) -> Result<OFlags, c_int> {
    rustix::fs::fcntl_getfl(borrowed(kernels(fd))).map_err(Errno::raw_os_error)
}

fn at_least_zero(at: i64) -> Result<u64, c_int> {
    u64::try_from(at).map_err(|_| libc::EINVAL)
}

/// Reads at a place, or where none is said at the descriptor's own, which moves on.
pub(crate) fn read(fd: c_int, list: &[iovec], at: Option<i64>) -> Result<i64, c_int> {
    bytes_of(list)?;
    if mode(fd)? & OFlags::ACCMODE == OFlags::WRONLY {
        return Err(libc::EBADF);
    }
    with(|state| {
        let (name, fd) = (state.name(entry(fd))?, kernels(fd));
        let start = at.map_or_else(|| position(fd), at_least_zero)?;
        let mut done = 0;
        for part in list.iter().filter(|part| part.iov_len > 0) {
            // SAFETY: [preload-program] the program's buffer, which is no other thread's during the call.
            let into = unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), part.iov_len) };
            match state.read(name, start + done, into) {
                Ok(read) => {
                    done += read as u64;
                    if read < into.len() {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if at.is_none() && done > 0 {
            move_to(fd, start + done)?;
        }
        Ok(done as i64)
    })
}

/// The same of a write; at the end of a file that is appended to.
pub(crate) fn write(fd: c_int, list: &[iovec], at: Option<i64>) -> Result<i64, c_int> {
    let length = bytes_of(list)?;
    let mode = mode(fd)?;
    if mode & OFlags::ACCMODE == OFlags::RDONLY {
        return Err(libc::EBADF);
    }
    let start = at.map(at_least_zero).transpose()?;
    if length == 0 {
        return Ok(0);
    }
    with(|state| {
        let (number, fd) = (entry(fd), kernels(fd));
        let name = state.written(number)?;
        let (start, written) = if mode.contains(OFlags::APPEND) {
            state.append(number, |state| {
                let start = state.size(name)?;
                state.write(name, start, list).map(|written| (start, written))
            })?
        } else {
            let start = start.map_or_else(|| position(fd), Ok)?;
            (start, state.write(name, start, list)?)
        };
        touch(fd);
        if at.is_none() {
            move_to(fd, start + written)?;
        }
        if mode.intersects(OFlags::DSYNC | OFlags::SYNC) {
            sync_name(state, number, fd)?;
        }
        Ok(written as i64)
    })
}

fn position(fd: c_int) -> Result<u64, c_int> {
    rustix::fs::tell(borrowed(fd)).map_err(Errno::raw_os_error)
}

fn move_to(fd: c_int, at: u64) -> Result<(), c_int> {
    rustix::fs::seek(borrowed(fd), rustix::fs::SeekFrom::Start(at)).map(drop).map_err(Errno::raw_os_error)
}

/// Moves a descriptor's place.
pub(crate) fn seek(fd: c_int, offset: i64, whence: c_int) -> Result<i64, c_int> {
    let size = || with(|state| state.name(entry(fd)).and_then(|name| state.size(name)));
    let at = match whence {
        libc::SEEK_SET => at_least_zero(offset)?,
        libc::SEEK_CUR => position(kernels(fd))?.checked_add_signed(offset).ok_or(libc::EINVAL)?,
        libc::SEEK_END => size()?.checked_add_signed(offset).ok_or(libc::EINVAL)?,
        libc::SEEK_DATA | libc::SEEK_HOLE => {
            // All of it is data: what is not allocated is not told apart.
            let (size, offset) = (size()?, u64::try_from(offset).map_err(|_| libc::ENXIO)?);
            if offset >= size {
                return Err(libc::ENXIO);
            }
            if whence == libc::SEEK_DATA { offset } else { size }
        }
        _ => return Err(libc::EINVAL),
    };
    let told = i64::try_from(at).map_err(|_| libc::EINVAL)?;
    move_to(kernels(fd), at).map(|()| told)
}

/// A file's length, and what it takes of the volume.
pub(crate) fn length(fd: c_int) -> Result<(u64, u64), c_int> {
    with(|state| state.name(entry(fd)).and_then(|name| state.attributes(name)))
}

/// The same by a path's inode, which is looked into where it may be a placeholder. None: it is the
/// kernel's.
pub(crate) fn length_at(
    inode: (u64, u64),
    open: impl FnOnce() -> Result<std::os::fd::OwnedFd, Errno>,
) -> Result<Option<(u64, u64)>, c_int> {
    with(|state| match state.recognize_by(inode, open)? {
        Some(name) => state.attributes(name).map(Some),
        None => Ok(None),
    })
}

/// A file becomes so long.
pub(crate) fn resize(fd: c_int, size: i64) -> Result<(), c_int> {
    if mode(fd)? & OFlags::ACCMODE == OFlags::RDONLY {
        return Err(libc::EINVAL);
    }
    resize_to(fd, at_least_zero(size)?)
}

/// The same to nothing, as `open` does it, whatever may be done by the descriptor.
pub(crate) fn cut(fd: c_int) -> Result<(), c_int> {
    resize_to(fd, 0)
}

fn resize_to(fd: c_int, size: u64) -> Result<(), c_int> {
    with(|state| {
        let name = state.name(entry(fd))?;
        state.resize(name, size)?;
        touch(kernels(fd));
        Ok(())
    })
}

/// The file was changed now. Who may write it but does not own it cannot say so.
fn touch(fd: c_int) {
    let of = |tv_nsec| rustix::fs::Timespec { tv_sec: 0, tv_nsec };
    let (last_access, last_modification) = (of(rustix::fs::UTIME_OMIT), of(rustix::fs::UTIME_NOW));
    let _ = rustix::fs::futimens(borrowed(fd), &rustix::fs::Timestamps { last_access, last_modification });
}

/// A file has room from `at` on, and becomes as long.
pub(crate) fn allocate(fd: c_int, at: i64, length: i64) -> Result<(), c_int> {
    if mode(fd)? & OFlags::ACCMODE == OFlags::RDONLY {
        return Err(libc::EBADF);
    }
    let (at, length) = (at_least_zero(at)?, at_least_zero(length)?);
    let end = at.checked_add(length).filter(|_| length > 0).ok_or(libc::EINVAL)?;
    with(|state| {
        let name = state.name(entry(fd))?;
        state.reserve(name, at, end)
    })
}

/// What was written is on stable storage already; a new file's placeholder is brought there.
pub(crate) fn sync(fd: c_int) -> Result<(), c_int> {
    mode(fd)?;
    with(|state| {
        let entry = entry(fd);
        sync_name(state, entry, kernels(fd))
    })
}

/// Brings a new file's placeholder to stable storage.
fn sync_name(state: &mut State, entry: u32, fd: c_int) -> Result<(), c_int> {
    if state.is_new(entry) {
        rustix::fs::fsync(borrowed(fd)).map_err(Errno::raw_os_error)?;
        state.synced(entry);
    }
    Ok(())
}

/// Opens a file that may be on the volume, as `open` has it. None: it is the kernel's, and nothing
/// has happened.
pub(crate) fn open(folder: c_int, path: &std::ffi::CStr, flags: c_int, mode: u32) -> Option<Result<c_int, c_int>> {
    let special = libc::O_PATH | libc::O_DIRECTORY | (libc::O_TMPFILE & !libc::O_DIRECTORY);
    let folder = if path.to_bytes().starts_with(b"/") { libc::AT_FDCWD } else { folder };
    let no_folder = folder < 0 && folder != libc::AT_FDCWD;
    if !is_on() || flags & special != 0 || no_folder {
        return None;
    }
    if !table::is_ours() {
        // Of a vfork child: its next program finds the file behind the descriptor.
        let cuts = flags & libc::O_TRUNC != 0 && errno::kept(|| state::is_placeholder(folder, path));
        return cuts.then_some(Err(libc::ENOTSUP));
    }
    Some(state::open_in(folder, path, flags, mode))
}

/// Whether a path is a placeholder's; for calls that read or write it past this library.
pub(crate) fn is_at(folder: c_int, path: &std::ffi::CStr) -> bool {
    let folder = if path.to_bytes().starts_with(b"/") { libc::AT_FDCWD } else { folder };
    let no_folder = folder < 0 && folder != libc::AT_FDCWD;
    if !is_on() || no_folder {
        return false;
    }
    // A vfork child has its parent's memory, and not what that has open.
    if table::is_ours() {
        named(state::borrowed_folder(folder), path).is_some()
    } else {
        state::is_placeholder(folder, path)
    }
}

fn named(folder: std::os::fd::BorrowedFd<'_>, path: &std::ffi::CStr) -> Option<Name> {
    let stat = rustix::fs::statat(folder, path, rustix::fs::AtFlags::empty()).ok()?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG || stat.st_size != placeholder::BYTES as i64 {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let open = || rustix::fs::openat(folder, path, flags, Mode::empty());
    with(|state| state.recognize_by((stat.st_dev, stat.st_ino), open)).ok().flatten()
}

/// What a path names, while a call takes that name away; a file that has no name then, and that
/// nobody has open, is no more.
pub(crate) fn losing_name<T>(
    folder: c_int,
    path: &std::ffi::CStr,
    call: impl FnOnce() -> T,
    done: impl FnOnce(&T) -> bool,
) -> T {
    let folder = if path.to_bytes().starts_with(b"/") { libc::AT_FDCWD } else { folder };
    let no_folder = folder < 0 && folder != libc::AT_FDCWD;
    if !is_on() || no_folder || !table::is_ours() {
        return call();
    }
    let held = errno::kept(|| with(|state| Ok(state.hold_named(folder, path))).ok().flatten());
    let result = call();
    if let Some((name, fd)) = held {
        let _ = errno::kept(|| {
            with(|state| {
                if done(&result) {
                    state.forget_nameless(name, std::os::fd::AsRawFd::as_raw_fd(&fd));
                }
                Ok(())
            })
        });
    }
    result
}

/// A call that is not covered: said in the report, and refused.
pub(crate) fn refuse(call: &'static str) -> i64 {
    errno::kept(|| state::tell(call, "is not covered for files on a volume"));
    errno::set(libc::ENOTSUP);
    -1
}

/// Whether a signal handler has closed a descriptor that is counted yet.
fn is_miscounted() -> bool {
    MISCOUNTED.load(Ordering::Relaxed)
}

static ON: AtomicBool = AtomicBool::new(false);
static MISCOUNTED: AtomicBool = AtomicBool::new(false);
static LOCK: Lock = Lock::new();
static STATE: Guarded = Guarded::new();
/// By descriptors, which open file it is of, from 1; 0: none.
static DESCRIBED: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
/// Where the first three really are; 0: where they seem.
static SHADOWS: [AtomicI32; 3] = [const { AtomicI32::new(0) }; 3];
/// One bit for each descriptor: whether it is the session's. A program closes what it does not
/// know.
static SESSIONS: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];
/// Above what programs expect.
const SHADOW_MIN: c_int = 512;
/// Of a program that has just begun, where the system does not say which there are.
const DESCRIPTORS_LOOKED_AT: c_int = 1024;
