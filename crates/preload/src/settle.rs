//! A connection goes back to the kernel because of a call that rings do not cover: what must be
//! in order before that call.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::connection::{Connection, LockHeld, State};
use crate::diagnosis::Reason;
use crate::fallback::PeerAnswer;
use crate::incoming::{AGAIN_TRIES, Step, progress};
use crate::layout::LEFT_TO_ANOTHER;
use crate::leaving::Unread;
use crate::{errno, fallback, kernel, table};

/// Who reads the socket once a connection has gone back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reader {
    /// This process, by calls of this library: what is unread is taken along.
    Here,
    /// The kernel is asked by calls that this library does not see: what is unread must be there.
    Kernel,
    /// The same, in a program that will never come back here: what cannot be there
    /// must not look like an end.
    Stranger,
    /// The same, in a program that is started beside this one, which reads on. What cannot
    /// be there is not inherited.
    Beside,
    /// This process and a child that a fork is making.
    Both,
}

impl Reader {
    /// Whether it reads by calls of this library, which know of the ring.
    fn is_covered(self) -> bool {
        matches!(self, Self::Here | Self::Both)
    }
}

/// Gives a connection back to the kernel. Unless it is read on here alone, waits until nothing of
/// ours is left in its stream, and what is unread is there, as far as the peer lets us.
pub(crate) fn settle(fd: c_int, connection: &'static Connection, reason: Reason, reader: Reader) {
    errno::kept(|| {
        if connection.is_broken() && connection.state() == State::Ring {
            return leave_broken(fd, reader);
        }
        for _ in 0..REMOTE_TRIES {
            let Some(mut held) = table::hold(fd, connection) else { return };
            if fallback::ask(&mut held, fd) != PeerAnswer::Waits {
                break;
            }
            drop(held);
            kernel::nap();
        }
        for attempt in 0..BACKLOG_TRIES {
            let Some(mut held) = table::hold(fd, connection) else { return };
            // What is not there yet is read from the ring, if the sender does not come first.
            let patience = match reader {
                Reader::Here => 0,
                Reader::Both => WAKE_TRIES,
                // One that has ended sends nothing any more.
                Reader::Kernel | Reader::Stranger | Reader::Beside if kernel::is_over(fd) => WAKE_TRIES,
                Reader::Kernel | Reader::Stranger | Reader::Beside => AGAIN_TRIES,
            };
            let patience = held.shared().map_or(0, |shared| fallback::patience(&shared)).max(patience);
            if attempt_at(&mut held, fd, reason, reader, attempt >= patience) == Settled::Done {
                return;
            }
            drop(held);
            kernel::nap();
        }
    });
}

/// Of one of which nobody knows what is true, who reads the socket without this
/// library is to have an error.
fn leave_broken(fd: c_int, reader: Reader) {
    match reader {
        Reader::Kernel | Reader::Stranger => fallback::resend::break_off(fd),
        Reader::Beside => kernel::set_inherited(fd, false),
        Reader::Here | Reader::Both => {}
    }
}

/// What an attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Done,
    /// Not yet.
    Not,
}

/// One attempt, by one who has the connection's lock; when patience `is_over`, what is not
/// there yet stays where it is.
pub(crate) fn attempt_at(held: &mut LockHeld<'_>, fd: c_int, reason: Reason, reader: Reader, is_over: bool) -> Settled {
    if let Some(shared) = held.ring().filter(|_| !reader.is_covered()) {
        fallback::resend::take_wake_bytes_out(held, fd, &shared);
    }
    fallback::leave_with(held, fd, reason, Unread::SentAgain);
    if held.ring().is_none() {
        return Settled::Done;
    }
    if let Some(shared) = held.ring().filter(|_| reader == Reader::Stranger) {
        // Before it is looked at whether the sender has ended: one that ends later looks at this.
        shared.left(held.end).store(LEFT_TO_ANOTHER, Ordering::SeqCst);
    }
    let step = progress(held, fd);
    fallback::respond(held, fd);
    let Some(shared) = held.ring() else { return Settled::Done };
    if held.outgoing.has_backlog() {
        fallback::push_all(held, fd, &shared);
    }
    let wake_bytes_are_gone =
        matches!(step, Step::Plain | Step::End | Step::Bytes(_)) && !fallback::is_unnotified(held, &shared);
    let there = fallback::resend::in_place_of_sender(held, fd, &shared, !reader.is_covered());
    if there && fallback::finish(held, fd) {
        return Settled::Done;
    }
    if (wake_bytes_are_gone && there || is_over) && !held.outgoing.has_backlog() {
        match reader {
            Reader::Stranger if fallback::resend::is_lost(held, fd, &shared) => fallback::resend::break_off(fd),
            Reader::Beside if fallback::resend::is_lost(held, fd, &shared) => kernel::set_inherited(fd, false),
            _ => {}
        }
        return Settled::Done;
    }
    Settled::Not
}

/// Milliseconds that a peer which sleeps in a call may take until it has sent
/// again what lay in the ring.
const WAKE_TRIES: u32 = 20;
/// Milliseconds that a peer which is asked may take until its next call.
const REMOTE_TRIES: u32 = 5_000;
/// Milliseconds that a peer may leave the kernel's buffer full.
const BACKLOG_TRIES: u32 = 30_000;
