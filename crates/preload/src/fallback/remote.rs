//! Back to the kernel, of an end whose peer is on another host: it is told, and
//! asked, by `remote`'s words.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::{PeerAnswer, Rim, act, break_connection, go_out, notify, push, restore, switch_in, switch_out};
use crate::connection::{Inner, LockHeld};
use crate::diagnosis::Reason;
use crate::layout::{SWITCHED, SharedMemory};
use crate::leaving::{self, Leave, Unread};
use crate::remote::{AGAIN, END, Fate, RING};
use crate::rim::remote;
use crate::step::Event;
use crate::{drain, kernel, sets, wake};

pub(super) struct Remote;

impl Rim for Remote {
    fn switch_in(&self, held: &mut Inner, shared: &SharedMemory, _: Unread) {
        let (direction, tail) = (held.peer(), held.input.tail);
        let mut leave = Leave::new(Unread::SentAgain, tail);
        leaving::run(&mut leave, |action| act(held, -1, shared, direction, action));
        held.counts().border.store(tail, Ordering::Release);
        held.counts().taken.store(tail, Ordering::Release);
        // Nobody sends in the peer's place.
        shared.pushed(direction).store(u64::MAX, Ordering::Relaxed);
        held.step(Event::StopsReceiving { wake_bytes: None });
    }

    fn stop_sending(&self, held: &mut Inner, _: c_int, shared: &SharedMemory) -> bool {
        let word = shared.tail(held.end).fetch_or(SWITCHED, Ordering::SeqCst);
        let wakes = held.outgoing.has_begun();
        end_out(held, shared, word, wakes);
        false
    }

    fn note_out(&self, held: &mut Inner, shared: &SharedMemory, word: u64) {
        end_out(held, shared, word, false);
    }

    fn find_border(&self, held: &mut LockHeld<'_>, _: c_int, shared: &SharedMemory) {
        let word = shared.tail(held.end).load(Ordering::SeqCst);
        if word & SWITCHED != 0 {
            self.note_out(held, shared, word);
        }
    }

    fn is_peer_needed(&self, _: &Inner, _: &SharedMemory) -> bool {
        true
    }

    /// It is told that this end leaves, and stops where it is at its next call.
    fn ask(&self, held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> PeerAnswer {
        if !held.outgoing.has_begun() || held.outgoing.has_left() || kernel::is_over(fd) {
            return PeerAnswer::Answered;
        }
        let end = held.end;
        let all_taken = held.out.taken(shared, end).map_or(true, |taken| taken.switched || taken.tail == held.out.head);
        if all_taken || shared.has_failed() {
            return PeerAnswer::Answered;
        }
        if !held.incoming.has_left() {
            switch_in(held, shared);
            notify(held, fd, shared, wake::DATA | wake::ROOM);
        }
        PeerAnswer::Waits
    }

    fn is_settled(&self, held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> bool {
        drain::wake_bytes(held, fd, shared);
        let Some((fate, wake_bytes)) = remote(shared, |remote| remote.fate()) else { return true };
        let reads_on = match fate {
            Fate::Again => false,
            Fate::End(position) => position != held.input.tail,
            // A peer that is gone will not say, and has taken nothing back.
            Fate::Unknown if kernel::ended(fd).is_none() => return false,
            Fate::Unknown => true,
        };
        if reads_on {
            remote(shared, |remote| remote.read_on(shared));
            held.step(Event::ReadsOn);
            return false;
        }
        held.step(Event::StopsReceiving { wake_bytes: Some(wake_bytes) });
        true
    }

    fn is_of_a_wake_byte(&self, _: &mut Inner, _: &SharedMemory) -> bool {
        false
    }

    /// Bytes in another host's memory stay there.
    fn close(&self, held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) {
        if held.outgoing.is_in_ring() {
            switch_out(held, shared);
        }
        let _ = push(held, fd, shared);
    }

    /// It may itself be about to fork, or to become another program, which has no ring.
    fn patience(&self) -> u32 {
        REMOTE_TRIES
    }

    /// The parent's device wrote the words; what is left of the ring is its business.
    fn is_for_children(&self) -> bool {
        false
    }
}

/// The sending direction is switched, at the position this tail word has. With `wakes`,
/// the peer is woken for it.
fn end_out(held: &mut Inner, shared: &SharedMemory, word: u64, wakes: bool) {
    let (switched, head) = (word & SWITCHED != 0, held.out.head);
    // Unless the peer has taken no more, it reads on in its own memory.
    let (fate, resend) = if switched { (AGAIN, leaving::resend(word, head, RING)) } else { (END + head, head) };
    let wakes = remote(shared, |remote| remote.end(shared, fate, wakes)) == Some(true);
    go_out(held, resend);
    if wakes {
        held.step(Event::Owes { head });
    }
    if switched {
        // It leaves, and waits for us to stop where we are, so that it can send the rest again.
        switch_in(held, shared);
    }
}

/// The device has lost the peer while bytes were to go or to come by it. The kernel's connection
/// goes on where that has ended as well; else nobody knows what has arrived, and it is broken off.
/// Nothing has gone by a ring that was never started.
pub(crate) fn lose(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> Option<Errno> {
    if !held.outgoing.has_begun() && shared.start(held.peer()).load(Ordering::Acquire) == 0 {
        held.reason = Reason::Peer;
        restore(held, fd);
        sets::restore(fd, held.connection);
        // The caller still has the memory.
        held.step(Event::Returns { may_reattach: false });
        return None;
    }
    if kernel::is_over(fd) {
        switch_out(held, shared);
        return None;
    }
    held.reason = Reason::Call("the RDMA device has lost the other host");
    break_connection(fd, false);
    Some(Errno::CONNRESET)
}

/// Milliseconds that a peer on another host may take until its next call.
const REMOTE_TRIES: u32 = 5_000;
