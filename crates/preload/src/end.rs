//! The end of a connection in this process: what it owes the peer, and what is told of it.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::sockopt;

use crate::connection::{Connection, LockHeld};
use crate::diagnosis::Reason;
use crate::layout::SharedMemory;
use crate::step::{Action, Event};
use crate::{drain, errno, eventfd, fallback, fork, futex, kernel, own, report, sets, settle, table, wake};

/// A descriptor is about to be closed, by the program's `close` or by what implies one.
pub(crate) fn close(fd: c_int, connection: &'static Connection) {
    errno::kept(|| {
        if connection.descriptors.load(Ordering::Acquire) == 1
            && let Some(mut held) = table::hold(fd, connection)
        {
            finish(&mut held, fd);
        }
        fallback::announce_socket_elsewhere(fd, connection);
        if table::remove(fd, connection) {
            table::give_back(connection);
        }
    });
}

/// The process ends with this connection open.
pub(crate) fn abandon(fd: c_int, connection: &'static Connection) {
    if let Some(mut held) = table::hold(fd, connection) {
        if connection.descriptors.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        finish(&mut held, fd);
    }
}

pub(crate) fn finish(held: &mut LockHeld<'_>, fd: c_int) {
    report::write(held, fd);
    let alone = held.is_ours_alone();
    match held.step(Event::Closes { alone }) {
        Action::CloseRings(shared) => ring_ends(held, fd, &shared),
        Action::Cancel => fallback::cancel(held),
        _ => {}
    }
    fallback::release(held);
    fork::leave(held);
}

/// What the peer has not taken goes through the kernel, if that takes all of it; else the
/// peer finds it in the ring, which it keeps. What we have not taken makes the close a
/// reset, as the kernel does it.
fn ring_ends(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) {
    let peer = held.peer();
    let unread =
        held.rest() > 0 || !held.incoming.has_left() && held.input.waiting(shared, peer).is_ok_and(|bytes| bytes > 0);
    let at_once =
        !held.family.is_unix() && sockopt::socket_linger(kernel::borrowed(fd)) == Ok(Some(std::time::Duration::ZERO));
    // Before any switch: the peer looks for it when it sees one.
    if unread || at_once {
        shared.reset(held.end).store(1, Ordering::Release);
        if !held.family.is_unix() {
            kernel::reset_by_close(fd);
        }
    }
    fallback::close(held, fd, shared);
    fallback::switch_in(held, shared);
    // A wake byte left unread would make the kernel say reset. The peer may have counted one, and be about to send it.
    let issued = wake::issued(shared.wake_word(held.end));
    let wake_bytes = held.incoming.wake_bytes().map_or(issued, |wake_bytes| wake_bytes.min(issued));
    let _ = kernel::soon(WAKE_BYTE_YIELDS, WAKE_BYTE_NAPS, || {
        (drain::last(held, fd, wake_bytes) != Some(Err(Errno::AGAIN))).then_some(0)
    });
    fallback::resend::break_for_reader(held, fd, shared);
    // Whoever sleeps learns from the kernel's end of the stream, and must sleep there.
    shared.gone(held.end).store(1, Ordering::SeqCst);
    futex::wake(shared.wake_word(peer));
    let _ = wake::disarm(shared.wake_word(held.end));
}

/// The program closes these, of which some may be ours: whoever holds them lets them go first.
pub(crate) fn closing_own(first: u32, last: u32) {
    if !own::is_any_in(first, last) || !table::is_ours() {
        return;
    }
    let is_among = |fd: c_int| u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd));
    for (fd, connection) in table::all() {
        let Some(mut held) = table::hold(fd, connection) else { continue };
        if held.search.socket().is_some_and(is_among) {
            fallback::withdraw_offer(&mut held);
        }
        if held.eventfds.is_some_and(|eventfds| eventfds.into_iter().any(is_among)) {
            lose_eventfds(&mut held, fd, Reason::Call("closing a descriptor of this library's"));
        }
    }
}

/// The connection goes back to the kernel: the program closes an eventfd of it.
fn lose_eventfds(held: &mut LockHeld<'_>, fd: c_int, reason: Reason) {
    // Not taken along: another program may read the socket later.
    let _ = settle::attempt_at(held, fd, reason, settle::Reader::Here, true);
    sets::mute(fd, held.connection);
    if let Some(shared) = held.shared() {
        shared.eventfds(held.end).store(0, Ordering::SeqCst);
    }
    eventfd::drop_of(held);
}

/// As long as a peer may be without a processor in the midst of that.
const WAKE_BYTE_YIELDS: u32 = 2000;
const WAKE_BYTE_NAPS: u32 = 100;
