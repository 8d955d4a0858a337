//! The system calls behind segments: memfds, seals, mappings.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::retry_on_intr;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

use crate::available::{available_bytes, machine_bytes};
use crate::{MemoryError, huge};

/// A new memfd of `len` bytes that really has its memory, so that running out is an error
/// here and never a SIGBUS later. The kernel would hand out its last page and then kill
/// somebody, so what is not available is refused before.
pub(crate) fn memfd(name: &str, len: usize) -> Result<OwnedFd, MemoryError> {
    // Small ones, of which there are many, are not worth a look at every group.
    let available = if len < LARGE_BYTES { machine_bytes() } else { available_bytes() };
    if available.is_some_and(|bytes| (len as u64).saturating_add(RESERVE_BYTES) > bytes) {
        return Err(MemoryError::Exhausted { bytes: len, source: rustix::io::Errno::NOMEM });
    }
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|source| MemoryError::System { what: "memfd_create", source })?;
    huge::back(&fd, len);
    retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64))
        .map_err(|source| MemoryError::Exhausted { bytes: len, source })?;
    Ok(fd)
}

/// Seals the size, and with `frozen` every later writable mapping.
pub(crate) fn seal(fd: impl AsFd, frozen: bool) -> Result<(), MemoryError> {
    let mut seals = SealFlags::SHRINK | SealFlags::GROW;
    if frozen {
        seals |= SealFlags::FUTURE_WRITE;
    }
    rustix::fs::fcntl_add_seals(fd, seals | SealFlags::SEAL)
        .map_err(|source| MemoryError::System { what: "sealing a segment", source })
}

/// Whether a memory whose seals are final may no longer be mapped for writing; none while seals can be added.
pub(crate) fn frozen(fd: impl AsFd) -> Result<Option<bool>, MemoryError> {
    let seals = rustix::fs::fcntl_get_seals(fd)
        .map_err(|source| MemoryError::System { what: "reading the seals of a segment", source })?;
    Ok(seals.contains(SealFlags::SEAL).then_some(seals.contains(SealFlags::FUTURE_WRITE)))
}

/// Checks that a descriptor from a peer is a memfd of exactly `len` bytes that can never
/// shrink, so that a mapping of it cannot fault; and, if it is to be `frozen`, that nobody can map it for writing any more.
pub(crate) fn verify(fd: impl AsFd, len: u64, frozen: bool) -> Result<(), MemoryError> {
    let wanted = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let seals = rustix::fs::fcntl_get_seals(&fd)
        .map_err(|_| MemoryError::Untrusted("the descriptor cannot be sealed; only memfds are accepted"))?;
    if !seals.contains(wanted) {
        return Err(MemoryError::Untrusted("the segment may still shrink or grow"));
    }
    if frozen && !seals.contains(SealFlags::FUTURE_WRITE) {
        return Err(MemoryError::Untrusted("the segment may still be mapped for writing"));
    }
    let stat =
        rustix::fs::fstat(&fd).map_err(|source| MemoryError::System { what: "fstat of a peer's segment", source })?;
    if u64::try_from(stat.st_size) != Ok(len) {
        return Err(MemoryError::Untrusted("the segment's size is not the announced one"));
    }
    // A hole would be allocated by our own read, against our memory limit; SIGBUS when none is left.
    if (stat.st_blocks as u64).saturating_mul(512) < len {
        return Err(MemoryError::Untrusted("the segment has holes; its memory must be allocated"));
    }
    Ok(())
}

/// Maps `len` bytes of `fd` shared, exactly at `at` or anywhere: where huge pages can lie, if it is as long as one.
///
/// # Safety
/// With `at`, the range is a reservation of the caller's that nobody uses yet.
pub(crate) unsafe fn map(
    fd: impl AsFd,
    at: Option<NonNull<u8>>,
    len: usize,
    write: bool,
) -> Result<NonNull<u8>, MemoryError> {
    let mut prot = ProtFlags::READ;
    if write {
        prot |= ProtFlags::WRITE;
    }
    let (address, mut flags) = match at {
        Some(at) => (at.as_ptr().cast(), MapFlags::FIXED),
        None => (huge::hint(len).cast(), MapFlags::empty()),
    };
    flags |= MapFlags::SHARED;
    // SAFETY: [mapping] a new mapping, or one over the caller's own reservation. A hint is no promise: the system takes another
    // address where something lies there.
    let base = unsafe { rustix::mm::mmap(address, len, prot, flags, fd, 0) }
        .map_err(|source| MemoryError::Exhausted { bytes: len, source })?;
    NonNull::new(base.cast()).ok_or(MemoryError::Exhausted { bytes: len, source: rustix::io::Errno::NOMEM })
}

/// Maps `len` anonymous bytes: private memory, or an inaccessible reservation.
///
/// # Safety
/// With `at`, the range belongs to the caller and nobody uses it any more.
pub(crate) unsafe fn map_anonymous(
    at: Option<NonNull<u8>>,
    len: usize,
    access: bool,
) -> Result<NonNull<u8>, MemoryError> {
    let prot = if access { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::empty() };
    let (address, mut flags) = match at {
        Some(at) => (at.as_ptr().cast(), MapFlags::FIXED),
        None => (std::ptr::null_mut(), MapFlags::empty()),
    };
    flags |= MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: [mapping] a new mapping, or one over the caller's own range.
    let base = unsafe { rustix::mm::mmap_anonymous(address, len, prot, flags) }
        .map_err(|source| MemoryError::Exhausted { bytes: len, source })?;
    NonNull::new(base.cast()).ok_or(MemoryError::Exhausted { bytes: len, source: rustix::io::Errno::NOMEM })
}

/// Ends a mapping.
///
/// # Safety
/// Nobody uses the range any more.
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: [mapping] the caller's promise. An error would only leave the range mapped.
    let _ = unsafe { rustix::mm::munmap(base.as_ptr().cast(), len) };
}

/// Asks for huge pages under private memory; only advice.
pub(crate) fn advise_huge(base: NonNull<u8>, len: usize) {
    // SAFETY: [mapping] advice on our own mapping changes no content.
    let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, rustix::mm::Advice::LinuxHugepage) };
}

/// Sleeps while the word is `value`, until somebody who has the same memory mapped wakes it, at most `timeout`. False when that
/// has passed.
pub(crate) fn wait_on(word: &AtomicU32, value: u32, timeout: Duration) -> bool {
    let timeout = futex::Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // Not private: whoever wakes is another process.
    futex::wait(word, futex::Flags::empty(), value, Some(&timeout)) != Err(rustix::io::Errno::TIMEDOUT)
}

/// Wakes whoever sleeps on the word.
pub(crate) fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// `len` in whole pages, at least one; an absurd length is an error.
pub(crate) fn rounded(len: usize) -> Result<usize, MemoryError> {
    len.max(1)
        .checked_next_multiple_of(PAGE_BYTES)
        .filter(|l| *l <= isize::MAX as usize)
        .ok_or(MemoryError::Exhausted { bytes: len, source: rustix::io::Errno::NOMEM })
}

/// Left to everybody else.
const RESERVE_BYTES: u64 = 64 << 20;

/// A segment from this length on is held against the limits of the process' control groups, too.
const LARGE_BYTES: usize = 16 << 20;

/// Bytes of a page of the system's memory, to which segments are rounded.
pub(crate) const PAGE_BYTES: usize = 4096;
