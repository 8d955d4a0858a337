//! Chimes: what wakes those who sleep in a set of epoll or in poll, in place of a bell.
//!
//! A bell over TCP costs what a small message costs, and must be taken out of the stream again. So the ends of a connection may have a
//! pair of eventfds, made by the end that leaves the memory and passed with it: whoever sleeps waits for its own beside the socket,
//! and the other end writes to it. Nothing of that is in the stream, nothing is counted. An end that has no room for descriptors says
//! nothing and is woken, and wakes, by bells.
//!
//! Descriptors lie where the program's do not: above its limit, if that can be raised for a moment. The number of connections that
//! have chimes is bounded in each process. Who closes one (by `close_range`) gives that connection back to the kernel.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::event::EventfdFlags;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::connection::{Connection, Held, Inner, State};
use crate::diagnosis::Reason;
use crate::kernel::borrowed;
use crate::layout::Shared;
use crate::lock::Lock;
use crate::table::{self, DESCRIPTORS};
use crate::{bells, drain, epoll};

/// A new pair, for end 0 and for end 1; none when this process has enough of them.
pub(crate) fn make() -> Option<[OwnedFd; 2]> {
    if COUNT.load(Ordering::Relaxed) >= MOST {
        return None;
    }
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let first = rustix::event::eventfd(0, flags).ok()?;
    Some([first, rustix::event::eventfd(0, flags).ok()?])
}

/// These are the connection's from now on, if there is room for them and they are what they should be.
pub(crate) fn keep(held: &mut Held<'_>, pair: [OwnedFd; 2], shared: &Shared) {
    if COUNT.fetch_add(1, Ordering::Relaxed) < MOST
        && pair.iter().all(is_eventfd)
        && let Some(pair) = aside(pair.each_ref().map(AsFd::as_fd))
    {
        let pair = pair.map(IntoRawFd::into_raw_fd);
        pair.iter().for_each(|fd| mark(*fd, true));
        held.chimes = pair;
        held.connection.chime.store(pair.get(held.end).copied().unwrap_or(NONE), Ordering::Relaxed);
        shared.chimes(held.end).store(1, Ordering::SeqCst);
    } else {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connection has none any more. Whoever waits for one in a set has let it go already.
pub(crate) fn drop_of(held: &mut Held<'_>) {
    held.connection.chime.store(NONE, Ordering::Relaxed);
    let pair = std::mem::replace(&mut held.chimes, [NONE; 2]);
    if pair == [NONE; 2] {
        return;
    }
    COUNT.fetch_sub(1, Ordering::Relaxed);
    for fd in pair {
        mark(fd, false);
        // SAFETY: [preload-descriptor] ours since `keep`, and the field that held it is cleared.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

/// The descriptor that this end is to wait for beside its socket, when the other end knows how to ring it.
pub(crate) fn to_wait_for(held: &Held<'_>, shared: &Shared) -> Option<c_int> {
    let own = held.connection.chime.load(Ordering::Relaxed);
    (own != NONE && shared.chimes(held.peer()).load(Ordering::Relaxed) == 1).then_some(own)
}

/// Asks to be woken where sets and lists are: by the chime if there is one, else by a bell.
pub(crate) fn arm(held: &Held<'_>, shared: &Shared, wish: u64) {
    let wish = if to_wait_for(held, shared).is_some() { bells::by_chime(wish) } else { wish };
    shared.wish(held.end, wish);
}

/// Rings the other end's.
pub(crate) fn ring(held: &Inner) {
    if let Some(fd) = held.chimes.get(held.peer()).filter(|fd| **fd != NONE) {
        strike(*fd);
    }
}

/// The next of those who sleep for this end's is woken too: what one was told of is still there, and an edge was his alone.
pub(crate) fn pass_on(connection: &Connection) {
    let own = connection.chime.load(Ordering::Relaxed);
    if own != NONE {
        strike(own);
    }
}

/// One that poll has found rung is silent from now on. Others may sleep for it, in poll or in sets, who will not hear it any more.
pub(crate) fn hear(fd: c_int, connection: &'static Connection) {
    let Some(mut held) = table::hold(fd, connection) else { return };
    let Some(shared) = held.shared.filter(|_| connection.state() == State::Ring) else { return };
    let own = connection.chime.load(Ordering::Relaxed);
    if own == NONE {
        return;
    }
    let mut count = [0; 8];
    let _ = rustix::io::read(borrowed(own), &mut count);
    if connection.listeners.load(Ordering::SeqCst) > 0 {
        arm(&held, &shared, bells::DATA | bells::ROOM);
        // Once for what is new, or two that sleep would wake one another for ever.
        let now = (shared.head(held.peer()).load(Ordering::SeqCst), shared.tail(held.end).load(Ordering::SeqCst));
        if now != held.heard {
            held.heard = now;
            strike(own);
        }
    }
    epoll::eaten(&mut held, fd, &shared);
}

/// This end's wishes for its chime are taken back, unless somebody still sleeps for it, or is about to: in poll, or in a set.
pub(crate) fn hush(held: &Held<'_>) {
    let nobody = held.connection.listeners.load(Ordering::SeqCst) == 0 && !held.connection.is_tagged();
    if let Some(shared) = held.shared.filter(|shared| nobody && !shared.is_far()) {
        bells::hush(shared.bell(held.end));
    }
}

/// The program closes descriptors that it does not know, and of which some may be ours: their connections go back first.
pub(crate) fn closing(first: u32, last: u32) {
    if COUNT.load(Ordering::Relaxed) == 0 || first == last && !is_marked(first) || !table::is_ours() {
        return;
    }
    for (fd, connection) in table::all() {
        let Some(mut held) = table::hold(fd, connection) else { continue };
        if !held.chimes.iter().any(|chime| u32::try_from(*chime).is_ok_and(|chime| (first..=last).contains(&chime))) {
            continue;
        }
        drain::leave(&mut held, fd, Reason::Call("closing a descriptor of this library's"));
        epoll::mute(fd, connection);
        if let Some(shared) = held.shared {
            shared.chimes(held.end).store(0, Ordering::SeqCst);
        }
        drop_of(&mut held);
    }
}

/// Before a fork: the limit is to be as the program knows it.
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

fn strike(fd: c_int) {
    let _ = rustix::io::write(borrowed(fd), &1u64.to_ne_bytes());
}

/// What a peer passes could be anything, and a write to it could wait, or do harm.
fn is_eventfd(fd: &OwnedFd) -> bool {
    use std::fmt::Write;
    use std::os::fd::AsRawFd;
    let mut path = crate::report::Line::<32>::new();
    let mut target = [std::mem::MaybeUninit::uninit(); 32];
    if write!(path, "/proc/self/fd/{}\0", fd.as_raw_fd()).is_err() {
        return false;
    }
    let Ok(path) = std::ffi::CStr::from_bytes_with_nul(path.bytes()) else { return false };
    rustix::fs::readlinkat_raw(CWD, path, &mut target).is_ok_and(|(name, _)| name == EVENTFD)
}

/// Both at numbers that the program does not use.
pub(crate) fn aside(pair: [BorrowedFd<'_>; 2]) -> Option<[OwnedFd; 2]> {
    let _one_at_a_time = LIMIT.lock()?;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.current.unwrap_or(u64::MAX);
    if most > PLENTY {
        return both(pair, OUT_OF_THE_WAY);
    }
    let raised = most + 2 * u64::from(MOST);
    if limit.maximum.is_some_and(|maximum| maximum < raised) {
        return None;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum }).ok()?;
    let pair = both(pair, most as c_int);
    let _ = setrlimit(Resource::Nofile, limit);
    pair
}

fn both(pair: [BorrowedFd<'_>; 2], above: c_int) -> Option<[OwnedFd; 2]> {
    let move_up = |fd: BorrowedFd<'_>| -> Result<OwnedFd, Errno> { rustix::io::fcntl_dupfd_cloexec(fd, above) };
    let [first, second] = pair;
    let pair = [move_up(first).ok()?, move_up(second).ok()?];
    use std::os::fd::AsRawFd;
    pair.iter().all(|fd| (fd.as_raw_fd() as usize) < DESCRIPTORS).then_some(pair)
}

fn mark(fd: c_int, ours: bool) {
    if let Some(word) = OURS.get(fd as usize / 64) {
        let bit = 1 << (fd as u32 % 64);
        if ours {
            word.fetch_or(bit, Ordering::Relaxed)
        } else {
            word.fetch_and(!bit, Ordering::Relaxed)
        };
    }
}

fn is_marked(fd: u32) -> bool {
    OURS.get(fd as usize / 64).is_some_and(|word| word.load(Ordering::Relaxed) >> (fd % 64) & 1 == 1)
}

#[cfg(test)]
mod race;

/// No descriptor.
pub(crate) const NONE: c_int = -1;
/// Which descriptors are chimes; how many connections have them.
static OURS: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];
static COUNT: AtomicU32 = AtomicU32::new(0);
/// While the limit of descriptors is raised.
static LIMIT: Lock = Lock::new();
/// Connections with chimes in one process.
const MOST: u32 = 256;
/// So many descriptors may a program have that a few of ours among them do not matter.
const PLENTY: u64 = 16_384;
const OUT_OF_THE_WAY: c_int = 1024;
const EVENTFD: &[u8] = b"anon_inode:[eventfd]";
