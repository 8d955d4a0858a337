//! Eventfds: what wakes those who sleep in a set of epoll or in poll, in place of a wake byte.
//!
//! A wake byte over TCP costs what a small message costs, and must be taken out of the stream
//! again. So the ends of a connection may have a pair of eventfds, made by the end that leaves the
//! memory and passed with it. A sleeping end waits for its own in addition to the socket, and the
//! other end writes to it. Nothing of that is in the stream, nothing is counted. An end that has no
//! room for descriptors says nothing and is woken, and wakes, by wake bytes.
//!
//! In poll an eventfd is waited for by level, so it stays readable until every thread that
//! slept for it has run (`sleepers`); the next one that is about to sleep reads it. Sets wait
//! for its edge and never read it.
//!
//! Descriptors lie where the program's do not: above its limit, if that can be raised for a moment.
//! The number of connections that have eventfds is bounded in each process. Who closes one (by
//! `close_range`) gives that connection back to the kernel.

use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::EventfdFlags;

use crate::connection::{Connection, Inner, LockHeld, NO_EVENTFD, State};
use crate::fault::{self, Fault};
use crate::layout::SharedMemory;
use crate::{kernel, own, wake};

/// A new pair, for end 0 and for end 1; none when this process has enough of them.
pub(crate) fn make() -> Option<[OwnedFd; 2]> {
    if COUNT.load(Ordering::Relaxed) >= own::EVENTFD_CONNECTIONS {
        return None;
    }
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let first = rustix::event::eventfd(0, flags).ok()?;
    Some([first, rustix::event::eventfd(0, flags).ok()?])
}

/// These are the connection's from now on, if there is room for them and they
/// are what they should be.
pub(crate) fn keep(held: &mut LockHeld<'_>, pair: [OwnedFd; 2], shared: &SharedMemory) {
    if COUNT.fetch_add(1, Ordering::Relaxed) < own::EVENTFD_CONNECTIONS
        && pair.iter().all(|fd| own::is_eventfd(fd.as_fd()))
        && let [Some(first), Some(second)] = pair.each_ref().map(|fd| own::aside(fd.as_fd()))
        && let Some(first) = own::keep(first)
    {
        let Some(second) = own::keep(second) else {
            COUNT.fetch_sub(1, Ordering::Relaxed);
            return own::close(first);
        };
        held.eventfds = Some([first, second]);
        held.connection.eventfd.store(if held.end == 0 { first } else { second }, Ordering::Relaxed);
        shared.eventfds(held.end).store(1, Ordering::SeqCst);
    } else {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connection has none any more. A thread that waits for one in a set has let it go already.
pub(crate) fn drop_of(held: &mut LockHeld<'_>) {
    held.connection.eventfd.store(NO_EVENTFD, Ordering::Relaxed);
    let Some(pair) = held.eventfds.take() else { return };
    COUNT.fetch_sub(1, Ordering::Relaxed);
    if held.connection.state() == State::Plain {
        await_pollers(held.connection, pair.get(held.end).copied());
    }
    pair.into_iter().for_each(own::close);
}

/// The connection is the kernel's again. Who is about to wait for the eventfd must not find
/// another's at its number, and who waits for it is to ask the kernel for more than its own.
fn await_pollers(connection: &Connection, own: Option<c_int>) {
    for _ in 0..POLLER_TRIES {
        let now = connection.pollers.now();
        if !now.is_anybody() {
            return;
        }
        own.into_iter().for_each(kernel::signal);
        connection.pollers.outwait(now);
    }
}

/// The descriptor that this end is to wait for beside its socket, when the other
/// end knows how to signal it.
pub(crate) fn to_wait_for(held: &LockHeld<'_>, shared: &SharedMemory) -> Option<c_int> {
    let own = held.connection.eventfd.load(Ordering::Relaxed);
    (own != NO_EVENTFD && shared.eventfds(held.peer()).load(Ordering::Relaxed) == 1).then_some(own)
}

/// Asks to be woken where sets and lists are: by the eventfd if there is one, else by a wake byte.
pub(crate) fn arm(held: &LockHeld<'_>, shared: &SharedMemory, request: u64) {
    let request = if to_wait_for(held, shared).is_some() { wake::by_eventfd(request) } else { request };
    shared.arm(held.end, request);
}

/// Signals the other end's.
pub(crate) fn signal_peer(held: &Inner) {
    if let Some([first, second]) = held.eventfds {
        kernel::signal(if held.peer() == 0 { first } else { second });
    }
}

/// The next of those who sleep for this end's is woken too: what one was told of is still there,
/// and an edge was his alone.
pub(crate) fn pass_on(connection: &Connection) {
    let own = connection.eventfd.load(Ordering::Relaxed);
    if own != NO_EVENTFD {
        kernel::signal(own);
    }
}

/// This end's wake requests for its eventfd are taken back, unless somebody still sleeps for it, or
/// is about to: in poll, or in a set.
pub(crate) fn disarm_eventfd(held: &LockHeld<'_>) {
    let somebody = held.connection.pollers.any() || held.connection.is_tagged();
    let nobody = !somebody || fault::is_planted(Fault::DisarmsAlways);
    if let Some(shared) = held.shared().filter(|_| nobody) {
        wake::disarm_eventfd(shared.wake_word(held.end));
    }
}

/// Milliseconds that a thread which was woken is waited for; one that has jumped away never comes.
const POLLER_TRIES: u32 = 20;
/// How many connections have eventfds.
static COUNT: AtomicU32 = AtomicU32::new(0);
