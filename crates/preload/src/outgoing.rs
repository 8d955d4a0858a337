//! Sending, under the connection's lock: through the kernel until this direction starts, into the
//! ring, and through the kernel again.

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;

use crate::connection::{Inner, LockHeld, State};
use crate::diagnosis::Reason;
use crate::fault::Fault;
use crate::iovecs::Cursor;
use crate::layout::{DEEP, LARGE, SWITCHED, SharedMemory};
use crate::{eventfd, fallback, fault, kernel, spin, wake};

/// What one attempt came to.
pub(crate) enum Step {
    Bytes(usize),
    /// The ring is full.
    Full,
    /// The kernel's buffer is.
    KernelFull,
    /// The direction has not started.
    NotStarted,
    /// The connection is the kernel's, or the kernel is to say what is wrong with it.
    Plain,
    Error(Errno),
}

pub(crate) fn once(held: &mut LockHeld<'_>, fd: c_int, from: &mut Cursor<'_>) -> Step {
    let Some(shared) = held.ring() else { return Step::Plain };
    let direction = held.end;
    if !held.outgoing.has_left() && shared.has_failed() {
        return fallback::lose(held, fd, &shared).map_or(Step::Plain, Step::Error);
    }
    if is_still_full(held, fd, &shared) {
        return Step::Full;
    }
    if !held.outgoing.has_begun() && !begin_direction(held, &shared) {
        if shared.tail(direction).load(Ordering::Acquire) & SWITCHED != 0 {
            fallback::leave(held, fd, Reason::Peer);
            if held.connection.state() == State::Plain {
                return Step::Plain;
            }
        }
        return Step::NotStarted;
    }
    if !held.outgoing.has_left() && is_to_look(held, &shared, from.left()) {
        match held.out.taken(&shared, direction) {
            Err(_) => {
                held.reason = Reason::Corrupt;
                return Step::Error(Errno::CONNRESET);
            }
            Ok(taken) if taken.switched => fallback::note_out(held, &shared, taken.tail | SWITCHED),
            Ok(taken) if taken.tail != held.out.head => look_after_peer(held, fd, &shared),
            Ok(_) => held.unread = 0,
        }
    }
    if held.outgoing.has_left() {
        return to_kernel(held, fd, &shared, from);
    }
    if held.outgoing.owed() > 0 {
        let _ = fallback::pay(held, fd);
    }
    if held.out.room() < from.left() as u64 {
        held.out.grow(&shared, direction);
    }
    let before = *from;
    let mut bytes = write(held, &shared, from);
    if bytes == 0 {
        if !deepen(held, fd, &shared) {
            return Step::Full;
        }
        bytes = write(held, &shared, from);
        if bytes == 0 {
            return Step::Full;
        }
    }
    held.answered = false;
    held.tally.bytes_out += bytes;
    held.tally.messages_out += 1;
    // The head alone was stored so that it goes out together with the bytes.
    fence(Ordering::SeqCst);
    fallback::notify(held, fd, &shared, wake::DATA);
    if shared.left(held.peer()).load(Ordering::SeqCst) != 0 && !fault::is_planted(Fault::NoLookForLeft) {
        let unsent = fallback::unsend(held, fd, &shared, bytes);
        if unsent > 0 {
            bytes -= unsent;
            *from = before;
            from.skip(bytes as usize);
            if bytes == 0 {
                return Step::KernelFull;
            }
        }
    }
    Step::Bytes(bytes as usize)
}

/// To find the ring as full as before changes nothing: the program may jump out of it, again and
/// again while it waits for room.
fn is_still_full(held: &LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> bool {
    let peer = held.peer();
    held.outgoing.is_in_ring()
        && held.outgoing.owed() == 0
        && !held.connection.is_tagged()
        && held.out.is_still_full(shared, held.end, spin::now_ns)
        && shared.left(peer).load(Ordering::SeqCst) | shared.gone(peer).load(Ordering::Relaxed) == 0
        && !kernel::is_over(fd)
}

/// The ring is full. When the receiver has not taken anything for some milliseconds, the sender
/// goes on in a ring that holds what the kernel's buffers would. True when there is room now.
#[cold]
pub(crate) fn deepen(held: &mut Inner, fd: c_int, shared: &SharedMemory) -> bool {
    let (direction, unix) = (held.end, held.family.is_unix());
    held.out.deepen(shared, direction, spin::now_ns(), || kernel_room(fd, unix))
}

/// Bytes that the kernel would have buffered: over TCP its buffers grow by themselves, unless the
/// program has set their size.
fn kernel_room(fd: c_int, unix: bool) -> u64 {
    #[cfg(test)]
    if crate::explore::is_on() {
        return DEEP;
    }
    let size = rustix::net::sockopt::socket_send_buffer_size(kernel::borrowed(fd)).unwrap_or(0) as u64;
    if unix || kernel::is_send_buffer_set(fd) { size.max(LARGE) } else { DEEP }
}

/// Writes what fits. If that is not all, and a set of epoll is to tell when there is room
/// again, asks to be woken.
#[inline]
fn write(held: &mut LockHeld<'_>, shared: &SharedMemory, from: &mut Cursor<'_>) -> u64 {
    let direction = held.end;
    let mut bytes = held.out.write(shared, direction, from);
    while held.connection.is_tagged() && !from.is_done() {
        held.connection.fulls.fetch_add(1, Ordering::SeqCst);
        eventfd::arm(held, shared, wake::ROOM);
        if !held.out.taken(shared, direction).is_ok_and(|taken| !taken.switched && held.out.room() > 0) {
            break;
        }
        bytes += held.out.write(shared, direction, from);
    }
    bytes
}

/// Whether to look how far the receiver has come. Its word is just being written by it,
/// so a look takes both of them as long as a message does to get there: not while it
/// answers, and there is room.
#[inline]
fn is_to_look(held: &LockHeld<'_>, shared: &SharedMemory, bytes: usize) -> bool {
    let peer = held.peer();
    !held.answered
        || shared.is_cheap_to_look()
        || held.out.room() < bytes as u64
        || shared.left(peer).load(Ordering::SeqCst) | shared.gone(peer).load(Ordering::Relaxed) != 0
}

/// Starts the ring in our direction, once the peer expects it.
fn begin_direction(held: &mut LockHeld<'_>, shared: &SharedMemory) -> bool {
    shared.present(held.peer()).load(Ordering::Acquire) == 1 && fallback::start_now(held, shared)
}

/// Bytes lie unread: is anybody there? Asked at the first such send and then now and then.
fn look_after_peer(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) {
    held.unread += 1;
    if held.unread % UNREAD_TURN == 1 && kernel::is_over(fd) {
        fallback::switch_out(held, shared);
    }
}

fn to_kernel(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory, from: &mut Cursor<'_>) -> Step {
    match fallback::push(held, fd, shared) {
        Ok(()) => {}
        Err(Errno::AGAIN) => return Step::KernelFull,
        Err(_) if held.error.is_some() => {}
        // The kernel says it again to the call itself, with the signal that belongs to it.
        Err(_) => return Step::Plain,
    }
    if let Some(error) = held.error.take() {
        return Step::Error(error);
    }
    if fallback::finish(held, fd) {
        return Step::Plain;
    }
    if from.is_done() {
        return Step::Bytes(0);
    }
    held.out.forget_full();
    match kernel::give_buffers(fd, from) {
        Ok(bytes) => {
            from.skip(bytes);
            held.counts().sent.fetch_add(bytes as u64, Ordering::Relaxed);
            Step::Bytes(bytes)
        }
        Err(Errno::AGAIN) => Step::KernelFull,
        Err(Errno::PIPE) => Step::Plain,
        Err(error) => Step::Error(error),
    }
}

const UNREAD_TURN: u32 = 16;
