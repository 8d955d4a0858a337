//! Back to the kernel, of two ends that have the same memory.

use std::ffi::c_int;
use std::ops::DerefMut;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::{PeerAnswer, Rim, act, go_out, look, push_all, resend, switch_out};
use crate::connection::{Inner, LockHeld};
use crate::diagnosis::Reason;
use crate::fault::{self, Fault};
use crate::futex;
use crate::layout::{SharedMemory, UNREAD_MAX};
use crate::leaving::{self, Find, Leave, Unread};
use crate::state::Begun;
use crate::step::Event;

pub(super) struct Local;

impl Rim for Local {
    fn switch_in(&self, held: &mut Inner, shared: &SharedMemory, unread: Unread) {
        let (own, direction, tail) = (held.end, held.peer(), held.input.tail);
        let unread = if fault::is_planted(Fault::LeavesUnread) { Unread::SentAgain } else { unread };
        let mut leave = Leave::new(unread, tail);
        leaving::run(&mut leave, |action| act(held, -1, shared, direction, action));
        held.counts().border.store(tail, Ordering::Release);
        held.counts().taken.store(tail, Ordering::Release);
        held.step(Event::StopsReceiving { wake_bytes: Some(leave.wake_bytes) });
        // A peer that lies about it has broken the connection.
        match leave.border.checked_sub(tail).filter(|unread| *unread <= UNREAD_MAX) {
            Some(_) => held.counts().border.store(leave.border, Ordering::Release),
            None => (held.reason, held.error) = (Reason::Corrupt, Some(Errno::CONNRESET)),
        }
        futex::wake(shared.wake_word(own));
    }

    fn stop_sending(&self, held: &mut Inner, fd: c_int, shared: &SharedMemory) -> bool {
        let find = Find::stopping(held.out.head);
        self::find(&mut &mut *held, fd, shared, find)
    }

    fn note_out(&self, held: &mut Inner, _: &SharedMemory, word: u64) {
        go_out(held, leaving::resend(word, held.out.head, UNREAD_MAX));
    }

    fn find_border(&self, held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) {
        let find = Find::responding(held.out.head);
        self::find(held, fd, shared, find);
    }

    fn is_peer_needed(&self, held: &Inner, shared: &SharedMemory) -> bool {
        held.rest() > 0 || resend::due(held, shared) > 0
    }

    fn ask(&self, _: &mut LockHeld<'_>, _: c_int, _: &SharedMemory) -> PeerAnswer {
        PeerAnswer::Never
    }

    fn is_settled(&self, _: &mut LockHeld<'_>, _: c_int, _: &SharedMemory) -> bool {
        true
    }

    fn is_of_a_wake_byte(&self, held: &mut Inner, shared: &SharedMemory) -> bool {
        let (end, peer) = (held.end, held.peer());
        let Some(Begun { given }) = held.outgoing.begun() else { return false };
        let wake_bytes = shared.given(end).load(Ordering::Relaxed).wrapping_sub(given);
        let begun = shared.start(end).load(Ordering::Relaxed).saturating_sub(1);
        // Without one it is of bytes that went through the kernel before the ring, and that the peer has not read.
        wake_bytes > 0
            && held.error.is_none()
            && shared.reset(peer).load(Ordering::Acquire) == 0
            && held.counts().sent.load(Ordering::Relaxed).wrapping_sub(begun) == wake_bytes
            && held.out.taken(shared, end).is_ok_and(|taken| taken.tail == held.out.head)
    }

    fn close(&self, held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) {
        if fault::is_planted(Fault::ClosesWithout) {
            switch_out(held, shared);
        } else {
            if held.outgoing.is_in_ring() {
                self.stop_sending(held, fd, shared);
            }
            push_all(held, fd, shared);
        }
        if held.outgoing.has_backlog() {
            // There is nobody left to send it. The peer looks at this once it has said who reads on, which is looked at then.
            shared.reset(held.end).store(1, Ordering::SeqCst);
        }
    }

    fn patience(&self) -> u32 {
        0
    }

    fn is_for_children(&self) -> bool {
        true
    }
}

/// Looks for the border of the sending direction, or puts it somewhere, and takes note of it.
/// Whether the kernel takes what is unread.
pub(super) fn find(held: &mut impl DerefMut<Target = Inner>, fd: c_int, shared: &SharedMemory, mut find: Find) -> bool {
    let end = held.end;
    leaving::run(&mut find, |action| match look(held, shared, end, action) {
        Some(word) => leaving::Event::Word(word),
        None => act(held, fd, shared, end, action),
    });
    if let Some(word) = find.word {
        Local.note_out(held, shared, word);
    }
    find.fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_of_a_wake_byte_only_where_there_was_one() {
        let (shared, _) = SharedMemory::create().unwrap();
        let mut inner = Inner::new(0);
        inner.step(Event::Begins { given: 0 });
        shared.start(0).store(1, Ordering::SeqCst);
        assert!(!Local.is_of_a_wake_byte(&mut inner, &shared), "bytes of before the ring may lie unread");
        shared.given(0).store(1, Ordering::SeqCst);
        inner.counts().sent.store(1, Ordering::SeqCst);
        assert!(Local.is_of_a_wake_byte(&mut inner, &shared));
        // SAFETY: [preload-shared] not used afterwards.
        unsafe { shared.unmap() };
    }
}
