//! Receiving: from the kernel as long as bytes of before the ring are there, from the ring, and from the kernel again.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use crate::connection::{Connection, Held, Inner, State};
use crate::diagnosis::Reason;
use crate::iovecs::{self, Cursor};
use crate::layout::{SWITCHED, Shared};
use crate::ring::{Receiver, Took};
use crate::settle::{Reader, settle};
use crate::state::Source;
use crate::{errno, fallback, kernel, real, rendezvous, resend, table, wait, wake};
use libc::iovec;

/// How a call goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is done, with this result; errno is set.
    Done(isize),
    /// The C library's function does it.
    Kernel,
    /// It does, and what it carries is to be counted afterwards.
    Counted,
}

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

/// A receive into the program's buffers: by the ring, or by `real`, counted where that may still matter.
#[inline]
pub(crate) fn run(
    fd: c_int,
    connection: &'static Connection,
    list: &[iovec],
    flags: c_int,
    how: How,
    real: impl FnOnce() -> isize,
) -> isize {
    match begin(fd, connection, list, flags, how) {
        Way::Done(result) => result,
        Way::Kernel => real(),
        Way::Counted => {
            let result = real();
            counted(fd, connection, result, flags);
            result
        }
    }
}

/// Begins a receive into the program's buffers.
#[inline]
fn begin(fd: c_int, connection: &'static Connection, list: &[iovec], flags: c_int, how: How) -> Way {
    match connection.state() {
        State::Ring if list.iter().any(iovecs::is_outside) => {
            settle(fd, connection, Reason::Call("a buffer outside of memory"), Reader::Kernel);
            Way::Kernel
        }
        State::Ring if is_understood(flags) => from_ring(fd, connection, list, flags, how),
        State::Counting if is_understood(flags) => {
            let Some(mut held) = table::hold(fd, connection) else {
                connection.tainted.store(true, Ordering::Relaxed);
                return Way::Kernel;
            };
            if rendezvous::is_soon() {
                errno::kept(|| rendezvous::advance(&mut held, fd));
            }
            if connection.state() == State::Counting {
                held.receiving += 1;
                return Way::Counted;
            }
            drop(held);
            begin(fd, connection, list, flags, how)
        }
        // Urgent data and the like; looking at the error queue moves no bytes.
        State::Ring | State::Counting if flags & libc::MSG_ERRQUEUE == 0 => {
            settle(fd, connection, Reason::Call("a flag of recv"), Reader::Kernel);
            if connection.state() == State::Ring
                && table::hold(fd, connection).is_some_and(|mut held| is_in_ring(&mut held))
            {
                // What lies in the ring comes first, and the flag means nothing there.
                return from_ring(fd, connection, list, flags & UNDERSTOOD, how);
            }
            Way::Kernel
        }
        _ => Way::Kernel,
    }
}

/// Counts what the kernel delivered; the ends may meet now.
fn counted(fd: c_int, connection: &'static Connection, result: isize, flags: c_int) {
    errno::kept(|| {
        let Some(mut held) = table::hold(fd, connection) else { return };
        held.receiving = held.receiving.saturating_sub(1);
        if result > 0 && flags & libc::MSG_PEEK == 0 {
            held.count_received(result as usize);
            held.operations += 1;
        }
        rendezvous::advance(&mut held, fd);
    });
}

/// Whether this process still has bytes to read from the ring of a direction that is switched.
fn is_in_ring(held: &mut Held<'_>) -> bool {
    let Some(shared) = held.ring() else { return false };
    held.incoming.has_left() && (held.rest() > 0 || resend::due(held, &shared) > 0)
}

/// Whether bytes lie in the ring that the program may know of.
fn is_unread(held: &mut Held<'_>) -> bool {
    let Some(shared) = held.ring() else { return false };
    if held.incoming.has_left() {
        return resend::due(held, &shared) > 0;
    }
    let direction = held.peer();
    held.input.waiting(&shared, direction).is_ok_and(|bytes| bytes > 0)
}

/// Bytes that the program has been told of lay in a ring that is switched: a call that does not wait must not find nothing, so this does
/// until the peer has sent them again. One that makes no call for long cannot be waited for.
fn until_sent_again(fd: c_int) {
    for _ in 0..AGAIN_TRIES {
        if kernel::something(fd) {
            return;
        }
        kernel::nap();
    }
}

fn from_ring(fd: c_int, connection: &'static Connection, list: &[iovec], flags: c_int, how: How) -> Way {
    let mut to = Cursor::new(list);
    let (look, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    let (mut got, mut switched) = (0usize, false);
    loop {
        let Some(mut held) = table::hold(fd, connection) else {
            return Way::Done(errno::fail(libc::EINTR));
        };
        // In the middle of a switch back the library takes bytes out of the kernel itself, but nothing beside them.
        let how = if got == 0 { how } else { How::Bytes };
        let blocking = flags & libc::MSG_DONTWAIT == 0 && !connection.nonblocking.load(Ordering::Relaxed);
        let unread = !blocking && is_unread(&mut held);
        let beside = how == How::Ancillary && is_after_ring(&mut held, fd) && kernel::something(fd);
        if connection.state() != State::Ring {
            drop(held);
            return back(fd, connection, list, &mut to, flags, how, got);
        }
        if beside {
            // Nobody counts what comes with it.
            fallback::leave(&mut held, fd, Reason::Call("ancillary data"));
        }
        let step = if beside { Step::Plain } else { once(&mut held, fd, &mut to, look, how) };
        switched |= unread && held.incoming.has_left();
        drop(held);
        if switched && got == 0 && matches!(step, Step::Nothing | Step::Plain) {
            switched = false;
            until_sent_again(fd);
            continue;
        }
        match step {
            Step::Bytes(bytes) => {
                got += bytes;
                if !all || look || to.is_done() {
                    return Way::Done(got as isize);
                }
            }
            Step::Again => {}
            Step::End => return Way::Done(got as isize),
            Step::Error(_) if got > 0 => return Way::Done(got as isize),
            Step::Error(error) => return Way::Done(errno::fail(error.raw_os_error())),
            Step::Plain => return back(fd, connection, list, &mut to, flags, how, got),
            Step::Nothing if !blocking => {
                return Way::Done(if got > 0 { got as isize } else { errno::fail(libc::EAGAIN) });
            }
            Step::Nothing => {
                if let Err(error) = wait::for_data(fd, connection) {
                    return Way::Done(if got > 0 { got as isize } else { errno::fail(error) });
                }
            }
        }
    }
}

/// The connection went back to the kernel, for good or for a while; maybe in the middle of a receive that wants all.
fn back(
    fd: c_int,
    connection: &'static Connection,
    list: &[iovec],
    to: &mut Cursor<'_>,
    flags: c_int,
    how: How,
    mut got: usize,
) -> Way {
    if got == 0 {
        return if connection.state() == State::Counting {
            begin(fd, connection, list, flags, how)
        } else {
            Way::Kernel
        };
    }
    while let Some((at, len)) = to.peek(usize::MAX) {
        let part = [iovec { iov_base: at.cast(), iov_len: len }];
        // SAFETY: [preload-program] the program's buffer.
        let n = run(fd, connection, &part, flags, How::Bytes, || unsafe { real::recv(fd, at.cast(), len, flags) });
        if n <= 0 {
            break;
        }
        to.advance(n as usize);
        got += n as usize;
    }
    Way::Done(got as isize)
}

pub(crate) fn once(held: &mut Held<'_>, fd: c_int, to: &mut Cursor<'_>, look: bool, how: How) -> Step {
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
    match held.input.read(&shared, direction, to, look) {
        Ok(Took::Bytes(bytes)) => {
            held.dry = 0;
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

/// The ring is empty. Now and then, or when the kernel has said that there is something, looks whether the stream has ended.
fn nothing(held: &mut Held<'_>, fd: c_int, shared: &Shared) -> Step {
    held.dry += 1;
    if held.dry & DRY_MASK != 0 {
        return Step::Nothing;
    }
    wait::drain_wake_bytes(held, fd, shared);
    let (ended, peer) = (kernel::ended(fd), held.peer());
    // What the other host wrote before the end is there by now.
    shared.refresh(fd);
    if ended.is_none() && shared.has_lost_peer() {
        return fallback::lose(held, fd, shared).map_or(Step::Again, Step::Error);
    }
    if !held.input.waiting(shared, peer).is_ok_and(|bytes| bytes > 0)
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
        Some(_) if held.input.waiting(shared, peer).is_ok_and(|bytes| bytes > 0) => Step::Again,
        Some(_) if shared.tail(held.peer()).load(Ordering::Acquire) & SWITCHED != 0 => Step::Again,
        Some(Ok(())) if held.family.is_unix() && shared.reset(held.peer()).swap(0, Ordering::Relaxed) == 1 => {
            Step::Error(Errno::CONNRESET)
        }
        Some(Err(Errno::CONNRESET)) if fallback::is_reset(held, shared) => Step::Error(Errno::CONNRESET),
        // A sender that ended before its device had written all.
        Some(Ok(())) if shared.lacks_bytes() => Step::Error(Errno::CONNRESET),
        Some(Ok(()) | Err(Errno::CONNRESET)) => {
            held.dry -= 1;
            Step::End
        }
        // The look has consumed the error.
        Some(Err(error)) => Step::Error(error),
    }
}

/// Whether bytes wait in the kernel that somebody wrote past the library: the ring is empty and every wake byte is drained. A wake byte is counted, and a
/// direction switched, before the kernel has a byte of it; so what is counted is looked at last.
fn is_stray(held: &Held<'_>, fd: c_int, shared: &Shared) -> bool {
    kernel::pending(fd) > 0
        && shared.tail(held.peer()).load(Ordering::SeqCst) & SWITCHED == 0
        && shared.head(held.peer()).load(Ordering::SeqCst) == held.input.tail
        && held.drained_all(shared)
}

/// The peer has not started: what the kernel has is bytes, provided it had them before we looked whether it started.
fn before_start(held: &mut Held<'_>, fd: c_int, shared: &Shared, to: &mut Cursor<'_>, look: bool) -> Step {
    let there = kernel::pending(fd);
    if there == 0
        && let Some(error) = held.error.take()
    {
        return Step::Error(error);
    }
    if there == 0 {
        return match kernel::ended(fd) {
            None => Step::Nothing,
            Some(Ok(())) if held.family.is_unix() && shared.reset(held.peer()).swap(0, Ordering::Relaxed) == 1 => {
                Step::Error(Errno::CONNRESET)
            }
            Some(Ok(())) => Step::End,
            Some(Err(error)) => Step::Error(error),
        };
    }
    // A peer on another host says that it starts before its first wake byte.
    shared.refresh(fd);
    // Nor switched: what it sends after that may have something beside it.
    if shared.start(held.peer()).load(Ordering::SeqCst) != 0
        || shared.tail(held.peer()).load(Ordering::SeqCst) & SWITCHED != 0
    {
        return Step::Again;
    }
    from_kernel(held, fd, to, look, there)
}

/// Whether what the kernel has next is what the peer sends through it for good.
fn is_after_ring(held: &mut Held<'_>, fd: c_int) -> bool {
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

/// Goes on with a switch as far as it can without taking a byte of the program's. An error is the program's as well.
pub(crate) fn progress(held: &mut Held<'_>, fd: c_int) -> Step {
    let step = after_ring(held, fd, &mut Cursor::new(&[]), true, How::Bytes);
    if let Step::Error(error) = step {
        held.error = Some(error);
    }
    step
}

/// Switched: first what went through the kernel before the ring, then the wake bytes, then bytes for good.
fn after_ring(held: &mut Held<'_>, fd: c_int, to: &mut Cursor<'_>, look: bool, how: How) -> Step {
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
    let wake_bytes = drain_last(held, fd, last);
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
        held.error = Some(Errno::CONNRESET);
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

/// A look that has seen all `before` a border looks on behind it: a program that looks until enough is there would see no more otherwise,
/// however often.
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

/// What the kernel's stream has come to, unless there are bytes that nobody has sent again: this process reads the ring after all.
fn unless_due(held: &mut Held<'_>, fd: c_int, shared: &Shared, step: Step, to: &mut Cursor<'_>) -> Step {
    // What the kernel calls a reset, and is an end.
    let of_a_wake_byte = matches!(step, Step::Error(Errno::CONNRESET)) && fallback::is_of_a_wake_byte(held, shared);
    let step = if of_a_wake_byte { Step::End } else { step };
    let ended = matches!(step, Step::End);
    let asks = ended || matches!(step, Step::Nothing) && !to.is_done();
    if !asks || resend::due(held, shared) == 0 {
        // A relative has taken some along in the meantime.
        return if asks && held.rest() > 0 { Step::Again } else { step };
    }
    // A sender that has sent a part again may not come back for the rest.
    match resend::take_along(held, shared) || !ended && resend::in_place_of_sender(held, fd, shared, true) {
        true => Step::Again,
        false if ended || resend::is_unknown(shared, held.peer()) => Step::Error(Errno::CONNRESET),
        false => step,
    }
}

/// Reads the wake bytes that are still in the kernel's stream; what came in between, if not all could be had.
pub(crate) fn drain_last(held: &mut Inner, fd: c_int, last: u64) -> Option<Step> {
    while held.drained() < last {
        let mut wake_bytes = [0; 16];
        let len = (last - held.drained()).min(wake_bytes.len() as u64) as usize;
        match kernel::take(fd, wake_bytes.as_mut_ptr(), len, false) {
            Ok(0) => return Some(Step::End),
            Ok(n) => held.count_drained(n),
            Err(Errno::AGAIN) => return Some(Step::Nothing),
            Err(error) => return Some(Step::Error(error)),
        }
    }
    None
}

/// As many of the kernel's bytes as are there and wanted, buffer by buffer; a look sees the first buffer's.
fn from_kernel(held: &mut Held<'_>, fd: c_int, to: &mut Cursor<'_>, look: bool, limit: u64) -> Step {
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

fn is_understood(flags: c_int) -> bool {
    // A look that waits until all is there has nothing to sleep on.
    let looks_for_all = libc::MSG_PEEK | libc::MSG_WAITALL;
    flags & !UNDERSTOOD == 0 && flags & looks_for_all != looks_for_all
}

/// Flags that mean the same in a ring; MSG_CMSG_CLOEXEC and MSG_NOSIGNAL mean nothing here.
const UNDERSTOOD: c_int =
    libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_CMSG_CLOEXEC | libc::MSG_NOSIGNAL;
/// A receive that finds nothing looks for the end of the stream so often.
pub(crate) const DRY_MASK: u32 = 3;
/// Milliseconds that any other may take.
pub(crate) const AGAIN_TRIES: u32 = 1_000;
