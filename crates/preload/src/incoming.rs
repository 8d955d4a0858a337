//! Receiving, under the connection's lock: from the kernel as long as bytes of before the ring are
//! there, from the ring, and from the kernel again.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use crate::connection::{LockHeld, State};
use crate::diagnosis::Reason;
use crate::fault::Fault;
use crate::iovecs::Cursor;
use crate::layout::{SWITCHED, SharedMemory};
use crate::ring::{Receiver, Took};
use crate::state::Source;
use crate::{drain, fallback, fault, kernel, wake};

/// What else a receive is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Nothing but bytes.
    Bytes,
    /// What travels beside them through the kernel.
    Ancillary,
}

/// What one look came to.
pub(crate) enum Step {
    Bytes(usize),
    Nothing,
    End,
    Error(Errno),
    /// The connection is the kernel's.
    Plain,
    Again,
}

/// Whether this process still has bytes to read from the ring of a direction that is switched.
pub(crate) fn is_in_ring(held: &LockHeld<'_>) -> bool {
    let Some(shared) = held.ring() else { return false };
    held.incoming.has_left() && (held.rest() > 0 || fallback::resend::due(held, &shared) > 0)
}

/// Whether bytes lie in the ring that the program may know of.
pub(crate) fn is_unread(held: &LockHeld<'_>) -> bool {
    let Some(shared) = held.ring() else { return false };
    if held.incoming.has_left() {
        return fallback::resend::due(held, &shared) > 0;
    }
    let direction = held.peer();
    held.input.waiting(&shared, direction).is_ok_and(|bytes| bytes > 0)
}

pub(crate) fn once(held: &mut LockHeld<'_>, fd: c_int, to: &mut Cursor<'_>, look: bool, how: How) -> Step {
    let Some(shared) = held.ring() else { return Step::Plain };
    if held.incoming.has_left() {
        return after_ring(held, fd, to, look, how);
    }
    let direction = held.peer();
    match held.source(&shared) {
        Source::NotBegun => {
            if shared.tail(direction).load(Ordering::Acquire) & SWITCHED != 0 {
                fallback::switch_in(held, &shared);
                return Step::Again;
            }
            return before_start(held, fd, &shared, to, look);
        }
        Source::Before(left) => {
            let step = from_kernel(held, fd, to, look, left);
            return looks_on(step, look.then_some(left), to, |to| {
                match held.input.read(&shared, direction, to, true) {
                    Ok(Took::Bytes(bytes)) => bytes as usize,
                    _ => 0,
                }
            });
        }
        Source::Ring | Source::Along(_) | Source::Kernel => {}
    }
    // To find nothing changes nothing: the program may jump out of it.
    let took = match held.input.look(&shared, direction) {
        Ok(Took::Bytes(waiting)) => held.input.take(&shared, direction, waiting, to, look),
        other => other,
    };
    match took {
        Ok(Took::Bytes(bytes)) => {
            held.dry.forget();
            if !look {
                held.answered = true;
                held.tally.bytes_in += bytes;
                held.tally.messages_in += 1;
                fallback::notify(held, fd, &shared, wake::ROOM);
            }
            Step::Bytes(bytes as usize)
        }
        Ok(Took::Nothing) => nothing(held, fd, &shared),
        Ok(Took::Switched) => {
            fallback::switch_in(held, &shared);
            Step::Again
        }
        Err(_) => {
            held.reason = Reason::Corrupt;
            Step::Error(Errno::CONNRESET)
        }
    }
}

/// The ring is empty. Now and then, or when the kernel has said that there is something, looks
/// whether the stream has ended.
fn nothing(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> Step {
    if !held.dry.count() {
        return Step::Nothing;
    }
    drain::wake_bytes(held, fd, shared);
    let (ended, peer) = (kernel::ended(fd), held.peer());
    // What the other host wrote before the end is there by now.
    shared.refresh(fd);
    if ended.is_none() && shared.has_lost_peer() {
        return fallback::lose(held, fd, shared).map_or(Step::Again, Step::Error);
    }
    if held.error.is_some()
        && !held.input.waiting(shared, peer).is_ok_and(|bytes| bytes > 0)
        && let Some(error) = held.error.take()
    {
        return Step::Error(error);
    }
    match ended {
        None if is_stray(held, fd, shared) => {
            fallback::leave(held, fd, Reason::Call("bytes written past the library"));
            Step::Again
        }
        None => Step::Nothing,
        // What was sent before the end is to be had first.
        Some(how)
            if held.input.waiting(shared, peer).is_ok_and(|bytes| bytes > 0)
                || shared.tail(peer).load(Ordering::Acquire) & SWITCHED != 0 =>
        {
            keep(held, shared, how);
            Step::Again
        }
        Some(Ok(())) if held.family.is_unix() && shared.reset(held.peer()).swap(0, Ordering::Relaxed) == 1 => {
            Step::Error(Errno::CONNRESET)
        }
        Some(Err(Errno::CONNRESET)) if fallback::is_reset(held, shared) => Step::Error(Errno::CONNRESET),
        // A sender that ended before its device had written all.
        Some(Ok(())) if shared.lacks_bytes() => Step::Error(Errno::CONNRESET),
        Some(Ok(()) | Err(Errno::CONNRESET)) => {
            held.dry.again();
            Step::End
        }
        // The look has consumed the error.
        Some(Err(error)) => Step::Error(error),
    }
}

/// Keeps for later what a look at the stream's end has taken from the kernel, which says it once.
fn keep(held: &mut LockHeld<'_>, shared: &SharedMemory, ended: Result<(), Errno>) {
    if let Err(error) = ended
        && (error != Errno::CONNRESET || fallback::is_reset(held, shared))
    {
        held.error = Some(error);
    }
}

/// Whether bytes wait in the kernel that somebody wrote past the library: the ring is empty and
/// every wake byte is drained. A wake byte is counted, and a direction switched, before the kernel
/// has a byte of it; so what is counted is looked at last.
fn is_stray(held: &LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> bool {
    kernel::pending(fd) > 0
        && shared.tail(held.peer()).load(Ordering::SeqCst) & SWITCHED == 0
        && shared.head(held.peer()).load(Ordering::SeqCst) == held.input.tail
        && held.drained_all(shared)
}

/// The peer has not started: what the kernel has is bytes, provided it had them before we
/// looked whether it started.
fn before_start(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory, to: &mut Cursor<'_>, look: bool) -> Step {
    let there = kernel::pending(fd);
    if there == 0
        && held.error.is_some()
        && let Some(error) = held.error.take()
    {
        return Step::Error(error);
    }
    if there == 0 {
        let ended = kernel::ended(fd);
        // What the other host wrote before the end is there by now.
        shared.refresh(fd);
        return match ended {
            None => Step::Nothing,
            // What it sent before the end by a ring with which it had not begun a moment ago is to be had first.
            Some(how) if begins(held, shared) && !fault::is_planted(Fault::NoLookForStart) => {
                keep(held, shared, how);
                Step::Again
            }
            Some(Ok(())) if held.family.is_unix() && shared.reset(held.peer()).swap(0, Ordering::Relaxed) == 1 => {
                Step::Error(Errno::CONNRESET)
            }
            Some(Ok(())) => Step::End,
            Some(Err(error)) => Step::Error(error),
        };
    }
    // A peer on another host says that it starts before its first wake byte.
    shared.refresh(fd);
    if begins(held, shared) {
        return Step::Again;
    }
    from_kernel(held, fd, to, look, there)
}

/// Whether the peer has begun with its ring by now, or switched: what it sends after that may
/// have something beside it.
fn begins(held: &LockHeld<'_>, shared: &SharedMemory) -> bool {
    shared.start(held.peer()).load(Ordering::SeqCst) != 0
        || shared.tail(held.peer()).load(Ordering::SeqCst) & SWITCHED != 0
}

/// Whether what the kernel has next is what the peer sends through it for good.
pub(crate) fn is_after_ring(held: &mut LockHeld<'_>, fd: c_int) -> bool {
    let Some(shared) = held.ring() else { return false };
    let direction = held.peer();
    if !held.incoming.has_left() && shared.tail(direction).load(Ordering::Acquire) & SWITCHED != 0 {
        fallback::switch_in(held, &shared);
    }
    if !held.incoming.has_left() {
        return false;
    }
    progress(held, fd);
    if held.connection.state() != State::Ring {
        return false;
    }
    matches!(held.source(&shared), Source::NotBegun | Source::Kernel)
        && held.incoming.wake_bytes().is_some_and(|wake_bytes| held.drained() >= wake_bytes)
}

/// Goes on with a switch as far as it can without taking a byte of the program's. An error
/// is the program's as well.
pub(crate) fn progress(held: &mut LockHeld<'_>, fd: c_int) -> Step {
    let step = after_ring(held, fd, &mut Cursor::new(&[]), true, How::Bytes);
    if let Step::Error(error) = step {
        held.error = Some(error);
    }
    step
}

/// Switched: first what went through the kernel before the ring, then the wake
/// bytes, then bytes for good.
fn after_ring(held: &mut LockHeld<'_>, fd: c_int, to: &mut Cursor<'_>, look: bool, how: How) -> Step {
    let Some(shared) = held.ring() else { return Step::Plain };
    if let Source::Before(left) = held.source(&shared) {
        let step = from_kernel(held, fd, to, look, left);
        return looks_on(step, look.then_some(left), to, |to| {
            if held.rest() == 0 {
                return 0;
            }
            Receiver::read_on(&shared, held.peer(), &held.counts().taken, held.border(), to, true) as usize
        });
    }
    if !fallback::is_settled(held, fd, &shared) {
        return if held.incoming.has_left() { Step::Nothing } else { Step::Again };
    }
    let last = held.incoming.wake_bytes().unwrap_or(0);
    let wake_bytes = drain::last(held, fd, last).map(step_of);
    let rest = held.rest();
    if rest > 0 {
        let (direction, border) = (held.peer(), held.border());
        let bytes = Receiver::read_on(&shared, direction, &held.counts().taken, border, to, look);
        if !look {
            held.tally.bytes_in += bytes;
            held.tally.messages_in += 1;
        }
        let all_there = look && wake_bytes.is_none();
        return looks_on(Step::Bytes(bytes as usize), all_there.then_some(rest), to, |to| {
            match from_kernel(held, fd, to, true, u64::MAX) {
                Step::Bytes(bytes) => bytes,
                Step::Error(error) => {
                    // Taken from the socket now, and told when it is its turn.
                    held.error = Some(error);
                    0
                }
                _ => 0,
            }
        });
    }
    if let Some(step) = wake_bytes {
        return unless_due(held, fd, &shared, step, to);
    }
    fallback::respond(held, fd);
    if shared.reset(held.peer()).load(Ordering::Acquire) == 1 && held.family.is_unix() && held.error.is_none() {
        shared.reset(held.peer()).store(0, Ordering::Relaxed);
        held.error = Some(fallback::error_of_close(fd));
    }
    if held.error.is_some()
        && kernel::pending(fd) == 0
        && let Some(error) = held.error.take()
    {
        return Step::Error(error);
    }
    if fallback::finish(held, fd) {
        return Step::Plain;
    }
    if how == How::Ancillary {
        // It may have come since the caller looked.
        return if kernel::something(fd) { Step::Again } else { Step::Nothing };
    }
    let step = from_kernel(held, fd, to, look, u64::MAX);
    unless_due(held, fd, &shared, step, to)
}

/// A look that has seen all `before` a border looks on behind it: a program that looks until enough
/// is there would see no more otherwise, however often.
fn looks_on(
    step: Step,
    before: Option<u64>,
    to: &mut Cursor<'_>,
    behind: impl FnOnce(&mut Cursor<'_>) -> usize,
) -> Step {
    match step {
        Step::Bytes(bytes) if before == Some(bytes as u64) && !to.is_done() => Step::Bytes(bytes + behind(to)),
        step => step,
    }
}

/// What the kernel's stream has come to, unless there are bytes that nobody has sent again: this
/// process reads the ring after all.
fn unless_due(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory, step: Step, to: &mut Cursor<'_>) -> Step {
    // What the kernel calls a reset, and is an end.
    let of_a_wake_byte = matches!(step, Step::Error(Errno::CONNRESET)) && fallback::is_of_a_wake_byte(held, shared);
    let step = if of_a_wake_byte { Step::End } else { step };
    let ended = matches!(step, Step::End);
    let asks = ended || matches!(step, Step::Nothing) && !to.is_done();
    if !asks || fallback::resend::due(held, shared) == 0 {
        // A relative has taken some along in the meantime.
        return if asks && held.rest() > 0 { Step::Again } else { step };
    }
    let fetched =
        if ended { fallback::resend::take_along(held, shared) } else { fallback::resend::fetch(held, fd, shared) };
    match fetched {
        true => Step::Again,
        false if ended || fallback::resend::is_unknown(shared, held.peer()) => Step::Error(Errno::CONNRESET),
        false => step,
    }
}

/// What the kernel's stream came to in place of bytes.
fn step_of(end: Result<(), Errno>) -> Step {
    match end {
        Ok(()) => Step::End,
        Err(Errno::AGAIN) => Step::Nothing,
        Err(error) => Step::Error(error),
    }
}

/// As many of the kernel's bytes as are there and wanted, buffer by buffer; a look
/// sees the first buffer's.
fn from_kernel(held: &mut LockHeld<'_>, fd: c_int, to: &mut Cursor<'_>, look: bool, limit: u64) -> Step {
    let mut got = 0usize;
    loop {
        let left = usize::try_from(limit).unwrap_or(usize::MAX) - got;
        let Some((at, len)) = to.peek(left).filter(|(_, len)| *len > 0) else { return Step::Bytes(got) };
        let step = match kernel::take(fd, at, len, look) {
            Ok(0) => Step::End,
            Ok(bytes) => {
                to.advance(bytes);
                got += bytes;
                if look {
                    return Step::Bytes(got);
                }
                held.count_received(bytes);
                if bytes == len {
                    continue;
                }
                return Step::Bytes(got);
            }
            Err(Errno::AGAIN) => Step::Nothing,
            Err(error) => Step::Error(error),
        };
        if got == 0 {
            return step;
        }
        // An end is there at the next look as well; an error is taken from the socket now, and told then.
        if let Step::Error(error) = step {
            held.error = Some(error);
        }
        return Step::Bytes(got);
    }
}

/// Milliseconds that any other may take.
pub(crate) const AGAIN_TRIES: u32 = 1_000;
