//! The descriptors of this process.

use std::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::Mode;
use rustix::fs::OFlags;

use crate::files;
use crate::kernel::borrowed;

/// All descriptors of this process, without the one by which they are listed: its number is the
/// next to come about.
pub(in crate::files) fn descriptors() -> Vec<c_int> {
    let folder = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let mut all: Vec<c_int> = folder.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.retain(|fd| rustix::io::fcntl_getfd(borrowed(*fd)).is_ok());
    all
}

/// Whether a session may have it.
pub(super) fn may_be_ours(fd: c_int) -> bool {
    let what = rustix::fs::readlink(files::proc_path(fd).as_str(), Vec::new());
    let is_kind = |what: &CStr| {
        [&b"socket:"[..], b"anon_inode:", b"/memfd:"].iter().any(|kind| what.to_bytes().starts_with(kind))
    };
    rustix::io::fcntl_getfd(borrowed(fd)).is_ok_and(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC))
        && what.is_ok_and(|what| is_kind(&what))
}

/// Takes the first three numbers where they are free: programs take them for the standard streams.
pub(super) fn low_numbers() -> Vec<OwnedFd> {
    let open = || rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
    let is_low = |fd: &OwnedFd| fd.as_raw_fd() <= libc::STDERR_FILENO;
    std::iter::from_fn(open).take_while(is_low).collect()
}
