//! The system calls behind segments: memfds, seals, mappings.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom};
use rustix::io::retry_on_intr;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

use crate::available::{available_bytes, machine_bytes};
use crate::{MemoryError, huge};

/// A new memfd of `len` bytes that really has its memory, so that running out is an error
/// here and never a SIGBUS later. The kernel would hand out its last page and then kill
/// somebody, so what is not available is refused before.
pub(crate) fn memfd(name: &str, len: usize) -> Result<OwnedFd, MemoryError> {
    if !TAKEN.allows(len, machine_bytes, available_bytes) {
        return Err(MemoryError::Exhausted { bytes: len, source: rustix::io::Errno::NOMEM });
    }
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|source| MemoryError::Exhausted { bytes: len, source })?;
    huge::back(&fd, len);
    retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64))
        .map_err(|source| MemoryError::Exhausted { bytes: len, source })?;
    Ok(fd)
}

/// What was taken since the limits of the process' control groups were looked at.
static TAKEN: Taken = Taken(AtomicU64::new(LOOK_EVERY_BYTES));

/// Bytes that were taken since somebody looked at every limit. A look costs some files of the
/// kernel's, so small memories share one; what they take before it is far less than what is left to
/// everybody else.
struct Taken(AtomicU64);

impl Taken {
    /// Whether `len` bytes may be taken, by what the machine has left and, once enough came
    /// together, by all limits.
    fn allows(&self, len: usize, machine: impl Fn() -> Option<u64>, all: impl Fn() -> Option<u64>) -> bool {
        let len = len as u64;
        let taken = self.0.fetch_add(len, Ordering::Relaxed).saturating_add(len);
        let look = taken >= LOOK_EVERY_BYTES;
        let allowed = |left: u64| len.saturating_add(RESERVE_BYTES) <= left;
        let allows = if look { all() } else { machine() }.is_none_or(allowed);
        if look && allows {
            self.0.store(0, Ordering::Relaxed);
        } else if !allows {
            // The next one looks as well.
            self.0.store(LOOK_EVERY_BYTES, Ordering::Relaxed);
        }
        allows
    }
}

/// Gives a mapping of a memory file all of its pages, zeroed: one that is there but was never
/// touched looks to peers like one that is not.
///
/// # Safety
/// The range is a writable mapping of the caller's whose pages are allocated, and nobody else knows
/// it yet.
pub(crate) unsafe fn populate(base: NonNull<u8>, len: usize) {
    // SAFETY: [mapping] the caller's promise; no byte changes.
    let populated = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, rustix::mm::Advice::LinuxPopulateWrite) };
    if populated.is_err() {
        // Before Linux 5.14.
        for at in (0..len).step_by(PAGE_BYTES) {
            // SAFETY: [mapping] within the range; it is zeroed, so what is written stands there.
            unsafe { base.as_ptr().add(at).write_volatile(0) };
        }
    }
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

/// Whether a memory whose seals are final may no longer be mapped for writing; none while seals can
/// be added.
pub(crate) fn frozen(fd: impl AsFd) -> Result<Option<bool>, MemoryError> {
    let seals = rustix::fs::fcntl_get_seals(fd)
        .map_err(|source| MemoryError::System { what: "reading the seals of a segment", source })?;
    Ok(seals.contains(SealFlags::SEAL).then_some(seals.contains(SealFlags::FUTURE_WRITE)))
}

/// Checks that a descriptor from a peer is a memfd of exactly `len` bytes that can never shrink,
/// and that all of its pages are there. So a mapping of it neither faults nor takes memory. If it
/// must be `frozen`, no process can map it for writing any more. Pages of a frozen one cannot be
/// taken away after that either: the seal forbids punching holes.
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
    // Pages of another size are taken away by whole ones, and their absence is a SIGBUS.
    let system = rustix::fs::fstatfs(&fd)
        .map_err(|source| MemoryError::System { what: "fstatfs of a peer's segment", source })?;
    if system.f_type as u64 != TMPFS_MAGIC {
        return Err(MemoryError::Untrusted(
            "the segment lies on huge pages that were set aside (MFD_HUGETLB); make it without them",
        ));
    }
    let stat =
        rustix::fs::fstat(&fd).map_err(|source| MemoryError::System { what: "fstat of a peer's segment", source })?;
    if u64::try_from(stat.st_size) != Ok(len) {
        return Err(MemoryError::Untrusted("the segment's size is not the announced one"));
    }
    // A hole would be allocated by our own read, against our memory limit; SIGBUS when none is left. How many pages the file has says
    // nothing: they may lie behind its end.
    match rustix::fs::seek(&fd, SeekFrom::Hole(0)) {
        Ok(hole) if hole >= len => Ok(()),
        // Or pages that were allocated and never touched, where the system tells those apart (Linux 6.5).
        Ok(_) if pages_within(&fd, len).is_some_and(|pages| pages >= len.div_ceil(PAGE_BYTES as u64)) => Ok(()),
        Ok(_) => Err(MemoryError::Untrusted(
            "the segment has holes; its memory must be allocated (and touched, before Linux 6.5)",
        )),
        Err(source) => Err(MemoryError::System { what: "looking for holes in a peer's segment", source }),
    }
}

/// Pages that a memory file has between its start and `len`, swapped out or not: `cachestat`, which
/// rustix does not have. None where the system does not say.
#[cfg(target_arch = "x86_64")]
fn pages_within(fd: impl AsFd, len: u64) -> Option<u64> {
    const CACHESTAT: isize = 451;
    let range = [0u64, len];
    // Pages there, dirty, under way to a disk, evicted, evicted of late.
    let mut found = [0u64; 5];
    let mut answer = CACHESTAT;
    // SAFETY: [syscall] both arrays outlive the call and are as long as the system says; it changes the two registers it always does.
    unsafe {
        std::arch::asm!("syscall", inout("rax") answer, in("rdi") fd.as_fd().as_raw_fd(), in("rsi") range.as_ptr(),
            in("rdx") found.as_mut_ptr(), in("r10") 0, out("rcx") _, out("r11") _, options(nostack));
    }
    let [there, _, _, evicted, _] = found;
    (answer == 0).then(|| there.saturating_add(evicted))
}

/// Of other processors the way into the system is not known here.
#[cfg(not(target_arch = "x86_64"))]
fn pages_within(_fd: impl AsFd, _len: u64) -> Option<u64> {
    None
}

/// Maps `len` bytes of `fd` shared, exactly at `at` or anywhere: where huge pages can lie, if it is
/// as long as one.
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

/// Sleeps while the word is `value`, until somebody who has the same memory mapped wakes it, at
/// most `timeout`. False when that has passed.
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

/// Bytes after which all limits are looked at: less than a table grows by.
const LOOK_EVERY_BYTES: u64 = 4 << 20;

/// What `statfs` calls the file system of memfds.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Bytes of a page of the system's memory, to which segments are rounded.
pub(crate) const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Tables grow by 8 MiB: each is held against the limit of the group, and of smaller ones every
    /// few.
    #[test]
    fn what_the_groups_leave_holds_for_memory_of_any_length() {
        for step in [8 << 20, 1 << 20, 32 << 10] {
            let (taken, left) = (Taken(AtomicU64::new(LOOK_EVERY_BYTES)), Cell::new(512u64 << 20));
            let mut steps = 0;
            while taken.allows(step, || Some(1 << 40), || Some(left.get())) {
                left.set(left.get().saturating_sub(step as u64));
                steps += 1;
                assert!(left.get() > RESERVE_BYTES / 2, "{step} bytes at a time are taken until nothing is left");
            }
            assert!(left.get() < RESERVE_BYTES + LOOK_EVERY_BYTES + step as u64, "after {steps} of {step} bytes");
            // Nothing slips by after a refusal, and all is well again once there is some.
            assert!(!taken.allows(4096, || Some(1 << 40), || Some(left.get().min(RESERVE_BYTES))));
            assert!(taken.allows(4096, || Some(1 << 40), || None));
            assert!(!taken.allows(4096, || Some(0), || Some(1 << 40)), "nor more than the machine has");
        }
    }

    /// Where the system tells: a peer of an older build touches nothing before it passes it.
    #[test]
    fn pages_that_were_never_touched_are_there_and_pages_behind_the_end_are_not() {
        let len = 1 << 20;
        let file = |at: u64, touched: Option<u64>| {
            let fd = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&fd, len).unwrap();
            rustix::fs::fallocate(&fd, FallocateFlags::KEEP_SIZE, at, len).unwrap();
            touched.into_iter().for_each(|at| assert_eq!(rustix::io::pwrite(&fd, &[1], at), Ok(1)));
            seal(&fd, true).unwrap();
            fd
        };
        assert!(verify(file(len, None), len, true).is_err());
        assert!(verify(file(4096, None), len, true).is_err());
        assert!(verify(file(8192, Some(4096)), len, true).is_err());
        assert!(verify(file(4096, Some(0)), len, true).is_ok() || pages_within(file(0, None), len).is_none());
        assert_eq!(pages_within(file(0, None), len).unwrap_or(256), 256);
        assert_eq!(pages_within(file(len, None), len).unwrap_or(0), 0);
    }

    #[test]
    fn huge_pages_that_were_set_aside_are_not_taken_from_a_peer() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(fd) = rustix::fs::memfd_create("huge", flags) else {
            eprintln!("skipped: this system has no hugetlbfs");
            return;
        };
        rustix::fs::ftruncate(&fd, huge::HUGE_BYTES as u64).unwrap();
        seal(&fd, true).unwrap();
        let refused = verify(&fd, huge::HUGE_BYTES as u64, true).unwrap_err().to_string();
        assert!(refused.contains("MFD_HUGETLB"), "{refused}");
    }
}
