//! Descriptors of this library's own, in a program that knows nothing of them.
//!
//! A program closes what it does not know: a daemon all numbers, another a range. If a hook
//! sees it, the connection lets go of the descriptor first (`end::closing`). If none does (a
//! system call in the program's own code), the number is the program's at the next `open`. So
//! each descriptor is known by the file behind it. One with another file behind it is neither
//! used for a rendezvous nor closed. On the way of messages that is not asked: there the
//! numbers lie where a program's do not.

use std::ffi::{CStr, c_int};
use std::fmt::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::kernel::borrowed;
use crate::line::Line;
use crate::lock::Lock;
use crate::policy::DESCRIPTORS;

/// It is this library's from now on, under its number; none for one that cannot be known again.
pub(crate) fn keep(fd: OwnedFd) -> Option<c_int> {
    let place = KNOWN.get(fd.as_raw_fd() as usize)?;
    mark(fd.as_fd());
    place.store(identity(fd.as_fd())?, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    Some(fd.into_raw_fd())
}

/// A double at a number that the program does not use: above its limit, which is raised for the
/// moment. None where that cannot be.
pub(crate) fn aside(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    let above = |number| {
        let double = rustix::io::fcntl_dupfd_cloexec(fd, number).ok()?;
        ((double.as_raw_fd() as usize) < DESCRIPTORS).then_some(double)
    };
    let _one_at_a_time = LIMIT.lock()?;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.current.unwrap_or(u64::MAX);
    if most > PLENTY {
        return above(OUT_OF_THE_WAY);
    }
    let raised = most + 2 * u64::from(EVENTFD_CONNECTIONS) + OFFERS;
    if limit.maximum.is_some_and(|maximum| maximum < raised) {
        return None;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum }).ok()?;
    let double = above(most as c_int);
    let _ = setrlimit(Resource::Nofile, limit);
    double
}

/// Whether some of these may be.
pub(crate) fn is_any_in(first: u32, last: u32) -> bool {
    let is_known = |fd: u32| KNOWN.get(fd as usize).is_some_and(|known| known.load(Ordering::Relaxed) != 0);
    COUNT.load(Ordering::Relaxed) > 0 && (first != last || is_known(first))
}

/// Before a fork: nobody is in the midst of raising the limit.
pub(crate) fn prepare() {
    LIMIT.keep();
}

/// After it, in the parent.
pub(crate) fn adopt() {
    LIMIT.let_go();
}

/// After it, in the child.
pub(crate) fn in_child() {
    LIMIT.renew();
}

/// Whether it still is what was kept.
pub(crate) fn is(fd: c_int) -> bool {
    let known = KNOWN.get(fd as usize).map_or(0, |known| known.load(Ordering::Relaxed));
    known != 0 && identity(borrowed(fd)) == Some(known)
}

/// It is closed, unless it is another by now; what held the number is cleared by the caller.
pub(crate) fn close(fd: c_int) {
    let ours = is(fd);
    forget(fd);
    if ours {
        // SAFETY: [preload-descriptor] what `keep` was given, and nobody holds its number any more.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

/// The number is the program's.
fn forget(fd: c_int) {
    if KNOWN.get(fd as usize).is_some_and(|known| known.swap(0, Ordering::Relaxed) != 0) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What tells it from others: the inode, or of an eventfd, whose inode all have, the mark. Programs
/// change their sets of epoll with each message, so this must be cheap: what /proc tells of an
/// eventfd takes longer than a message.
fn identity(fd: BorrowedFd<'_>) -> Option<u64> {
    if fcntl(fd, F_GETSIG, 0) == Some(MARK) {
        return Some(EVENTFD);
    }
    let stat = rustix::fs::fstat(fd).ok()?;
    (FileType::from_raw_mode(stat.st_mode) != FileType::Unknown).then_some(stat.st_ino << KIND_BITS | INODE)
}

/// An eventfd is marked by the signal that it would send if it could tell of readiness so, which no
/// eventfd can. Whoever else has it open, another process of this library, sees the same mark.
fn mark(fd: BorrowedFd<'_>) {
    if is_eventfd(fd) {
        fcntl(fd, F_SETSIG, MARK);
    }
}

fn fcntl(fd: BorrowedFd<'_>, what: c_int, value: c_int) -> Option<c_int> {
    // SAFETY: [preload-real] numbers alone; the kernel's call, past all hooks.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), what, value) };
    c_int::try_from(result).ok().filter(|result| *result >= 0)
}

/// Whether it is an eventfd: a peer could pass anything, and a write to it could wait, or do harm.
pub(crate) fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Unknown)
        && number_of_eventfd(fd).is_some()
}

/// As /proc tells it.
fn number_of_eventfd(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut path = Line::<40>::new();
    write!(path, "/proc/self/fdinfo/{}\0", fd.as_raw_fd()).ok()?;
    let path = CStr::from_bytes_with_nul(path.bytes()).ok()?;
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 512];
    let len = rustix::io::read(&file, &mut text).ok()?;
    number_in(text.get(..len)?)
}

fn number_in(text: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"eventfd-id:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// While the limit of descriptors is raised.
static LIMIT: Lock = Lock::new();
/// So many descriptors may a program have that a few of ours among them do not matter.
const PLENTY: u64 = 16_384;
const OUT_OF_THE_WAY: c_int = 1024;
/// Connections of one process that have eventfds.
pub(crate) const EVENTFD_CONNECTIONS: u32 = 256;
/// Rendezvous that one process has on their way at a time, as a rule.
const OFFERS: u64 = 64;
/// What each of ours is, by its number; 0 for all others. And how many there are.
static KNOWN: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];
static COUNT: AtomicU32 = AtomicU32::new(0);
const KIND_BITS: u32 = 2;
/// `F_SETSIG` and `F_GETSIG` of Linux.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
/// A real-time signal that no library takes for its own.
const MARK: c_int = 61;
const INODE: u64 = 1;
const EVENTFD: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::EventfdFlags;

    fn eventfd() -> OwnedFd {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn what_took_the_place_of_ours_is_not_closed() {
        let socket = || OwnedFd::from(std::os::unix::net::UnixDatagram::unbound().unwrap());
        let epoll = || rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        for (ours, other) in [
            (eventfd(), eventfd()),
            (socket(), socket()),
            (eventfd(), socket()),
            (eventfd(), epoll()),
            (socket(), epoll()),
        ] {
            let fd = keep(ours).unwrap();
            assert!(is(fd));
            // The program's, past all hooks. SAFETY: descriptors of ours.
            assert_eq!(unsafe { libc::syscall(libc::SYS_dup3, other.as_raw_fd(), fd, 0) }, i64::from(fd));
            assert!(!is(fd));
            close(fd);
            assert!(rustix::fs::fstat(borrowed(fd)).is_ok(), "it is still open");
            // SAFETY: made above. A set of epoll is nothing of ours ever.
            let Some(back) = keep(unsafe { OwnedFd::from_raw_fd(fd) }) else { continue };
            close(back);
            assert!(!is(back));
        }
        assert!(keep(epoll()).is_none());
    }

    #[test]
    fn an_eventfd_is_one_and_others_are_not() {
        assert!(is_eventfd(eventfd().as_fd()));
        assert!(!is_eventfd(std::net::TcpListener::bind("127.0.0.1:0").unwrap().as_fd()));
        assert!(!is_eventfd(rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap().as_fd()));
        assert_eq!(number_in(b"pos:\t0\neventfd-count: 1\neventfd-id: 77\n"), Some(77));
        assert_eq!(number_in(b"pos:\t0\ntfd: 7 events: 19\n"), None);
    }
}
