//! Chimes: what wakes those who sleep in a set of epoll or in poll, in place of a bell.
//!
//! A bell over TCP costs what a small message costs, and must be taken out of the stream again. So the ends of a connection may have a
//! pair of eventfds, made by the end that leaves the memory and passed with it: whoever sleeps waits for its own beside the socket,
//! and the other end writes to it. Nothing of that is in the stream, nothing is counted. An end that has no room for descriptors says
//! nothing and is woken, and wakes, by bells.
//!
//! In poll an eventfd is waited for by level, so it stays rung until every thread that slept for it
//! has run (`sleepers`); the next one that is about to sleep reads it. Sets wait for its edge and
//! never read it.
//!
//! Descriptors lie where the program's do not: above its limit, if that can be raised for a moment. The number of connections that
//! have chimes is bounded in each process. Who closes one (by `close_range`) gives that connection back to the kernel.

use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::EventfdFlags;

use crate::connection::{Connection, Held, Inner, State};
use crate::diagnosis::Reason;
use crate::fault::Fault;
use crate::layout::Shared;
use crate::sleepers::Present;
use crate::{bells, drain, epoll, fault, kernel, own};

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
        && pair.iter().all(|fd| own::is_eventfd(fd.as_fd()))
        && let [Some(first), Some(second)] = pair.each_ref().map(|fd| own::aside(fd.as_fd()))
        && let Some(first) = own::keep(first)
    {
        let Some(second) = own::keep(second) else {
            COUNT.fetch_sub(1, Ordering::Relaxed);
            return own::close(first);
        };
        held.chimes = Some([first, second]);
        held.connection.chime.store(if held.end == 0 { first } else { second }, Ordering::Relaxed);
        shared.chimes(held.end).store(1, Ordering::SeqCst);
    } else {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connection has none any more. Whoever waits for one in a set has let it go already.
pub(crate) fn drop_of(held: &mut Held<'_>) {
    held.connection.chime.store(NONE, Ordering::Relaxed);
    let Some(pair) = held.chimes.take() else { return };
    COUNT.fetch_sub(1, Ordering::Relaxed);
    if held.connection.state() == State::Plain {
        await_listeners(held.connection, pair.get(held.end).copied());
    }
    pair.into_iter().for_each(own::close);
}

/// The connection is the kernel's again. Who is about to wait for the chime must not find another's at
/// its number, and who waits for it is to ask the kernel for more than its own.
fn await_listeners(connection: &Connection, own: Option<c_int>) {
    for _ in 0..LISTENER_TRIES {
        let now = connection.listeners.now();
        if !now.is_anybody() {
            return;
        }
        own.into_iter().for_each(kernel::signal);
        connection.listeners.outwait(now);
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
    if let Some([first, second]) = held.chimes {
        kernel::signal(if held.peer() == 0 { first } else { second });
    }
}

/// The next of those who sleep for this end's is woken too: what one was told of is still there, and an edge was his alone.
pub(crate) fn pass_on(connection: &Connection) {
    let own = connection.chime.load(Ordering::Relaxed);
    if own != NONE {
        kernel::signal(own);
    }
}

/// This end's, if poll has heard it, is made silent for one who is about to sleep. Those who sleep
/// in sets are told of what stands. Others in poll must have run before: it returns who they are.
pub(crate) fn quiet(held: &mut Held<'_>, fd: c_int) -> Option<Present> {
    let connection = held.connection;
    if connection.heard.load(Ordering::SeqCst) == 0 {
        return None;
    }
    let shared = held.ring()?;
    if let Some(present) = connection.listeners.present(&mut held.patience_of_listeners)
        && !fault::is_planted(Fault::HushesAtOnce)
    {
        return Some(present);
    }
    connection.heard.store(0, Ordering::SeqCst);
    let own = connection.chime.load(Ordering::Relaxed);
    if own != NONE {
        kernel::silence(own);
        if epoll::eaten(held, fd, &shared) {
            // It was rung again for a set, whose thread runs soon.
            connection.heard.store(1, Ordering::SeqCst);
            return Some(connection.listeners.now());
        }
    }
    None
}

/// This end's wishes for its chime are taken back, unless somebody still sleeps for it, or is about to: in poll, or in a set.
pub(crate) fn hush(held: &Held<'_>) {
    let nobody = !held.connection.listeners.any() && !held.connection.is_tagged();
    if let Some(shared) = held.shared().filter(|shared| nobody && !shared.is_far()) {
        bells::hush(shared.bell(held.end));
    }
}

/// The connection goes back to the kernel: the program closes a chime of it.
pub(crate) fn lose(held: &mut Held<'_>, fd: c_int, reason: Reason) {
    drain::leave(held, fd, reason);
    epoll::mute(fd, held.connection);
    if let Some(shared) = held.shared() {
        shared.chimes(held.end).store(0, Ordering::SeqCst);
    }
    drop_of(held);
}

#[cfg(test)]
mod race;

/// No descriptor.
pub(crate) const NONE: c_int = -1;
/// Milliseconds that a thread which was woken is waited for; one that has jumped away never comes.
const LISTENER_TRIES: u32 = 20;
/// How many connections have chimes.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Connections with chimes in one process.
pub(crate) const MOST: u32 = 256;
