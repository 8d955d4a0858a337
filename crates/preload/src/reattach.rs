//! Into the rings a second time: after a fork that made both ends go back to the kernel.
//!
//! A connection that a child may use as well cannot stay in rings whose positions are its parent's
//! own. Mostly the child never does: it closes what it inherited, becomes another program, or
//! writes a snapshot and ends. So the ends keep the memory and *rest*: bytes go through the kernel,
//! counted as before the first rendezvous. One word that both see, the *agreement*, tells how far
//! they are. Each says when it is done: nothing of the rings is left in the kernel's stream, and no
//! other process has its end open. Whoever sees the other done puts the shared words back to the
//! state of a first rendezvous (positions go on) and declares the rings live; from there everything
//! goes as it did the first time. All steps are compare-and-swaps, so an end may take its word back
//! (it forks again) until the other has begun, and may end the agreement for good at any time.

use std::sync::atomic::Ordering;

use crate::connection::{Inner, LockHeld};
use crate::diagnosis::Reason;
use crate::layout::{NEVER_AGAIN, SWITCHED, SharedMemory};
use crate::policy;
use crate::sleepers::Patience;
use crate::step::Agreement;

/// Before the rings are left: whether the ends may come again, since a fork is the reason, or
/// never, since bytes may pass that nobody counts.
pub(crate) fn say(shared: &SharedMemory, agreement: Agreement) {
    match agreement {
        Agreement::Keep => {}
        Agreement::Promise => drop(shared.agreement().fetch_update(Ordering::SeqCst, Ordering::SeqCst, promised)),
        Agreement::End => drop(shared.agreement().fetch_or(DEAD, Ordering::SeqCst)),
    }
}

fn promised(now: u64) -> Option<u64> {
    (now == NONE || now == LIVE).then_some(OPEN)
}

/// Both directions are back in the kernel and nothing of the rings is left: all
/// is new for the next time.
pub(crate) fn rest(held: &mut LockHeld<'_>) {
    held.dry.forget();
    (held.unread, held.patience) = (0, Patience::default());
    held.next_try = 0;
    held.reason = Reason::Fork;
}

/// Whether a fork has switched last, and the ends may come again.
pub(crate) fn is_open(shared: &SharedMemory) -> bool {
    shared.agreement().load(Ordering::SeqCst) & (OPEN | DEAD) == OPEN
}

/// What a step came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing yet.
    Waiting,
    /// The rings are as they were at a first rendezvous.
    Live,
    /// They will not be used again.
    Over,
}

/// One step of an end that rests; `alone` when no other process has it open and it may meet.
pub(crate) fn advance(held: &mut Inner, alone: bool) -> Progress {
    let Some(shared) = held.shared() else { return Progress::Over };
    let agreement = shared.agreement();
    loop {
        let now = agreement.load(Ordering::SeqCst);
        let replace = |next| agreement.compare_exchange(now, next, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        match next(now, held.end, alone) {
            Next::Over => return Progress::Over,
            Next::Wait => return Progress::Waiting,
            Next::Say(next) if replace(next) => return Progress::Waiting,
            Next::Begin if replace(BUSY) => {
                renew(held, &shared);
                if agreement.compare_exchange(BUSY, LIVE, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                    return Progress::Over;
                }
            }
            Next::Say(_) | Next::Begin => continue,
            Next::Join => {}
        }
        resume(held, &shared);
        return Progress::Live;
    }
}

/// What an end that rests is to do, by the word as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Over,
    Wait,
    /// Writes that it is done.
    Say(u64),
    /// Puts the shared words in order, if it is the one that may.
    Begin,
    /// The other has done so.
    Join,
}

fn next(now: u64, end: usize, alone: bool) -> Next {
    let (mine, theirs) = (DONE << end, DONE << (end ^ 1));
    if now & DEAD != 0 || now & (OPEN | BUSY | LIVE) == 0 {
        Next::Over
    } else if now & LIVE != 0 {
        Next::Join
    } else if now & BUSY != 0 || !alone || now & theirs == 0 && now & mine != 0 {
        Next::Wait
    } else if now & theirs == 0 {
        Next::Say(now | mine)
    } else {
        Next::Begin
    }
}

/// Takes back that this end is done: another process is about to have it as well.
/// False when it is too late.
pub(crate) fn withdraw(held: &Inner, shared: &SharedMemory) -> bool {
    let without = |now| withdrawn(now, held.end);
    shared.agreement().fetch_update(Ordering::SeqCst, Ordering::SeqCst, without).is_ok()
}

fn withdrawn(now: u64, end: usize) -> Option<u64> {
    (now & (BUSY | LIVE | DEAD) == 0).then_some(now & !(DONE << end))
}

/// The shared words as at a first rendezvous. Both ends are done, so nobody else writes them.
fn renew(held: &Inner, shared: &SharedMemory) {
    for direction in 0..2 {
        // Our own position is known; the peer's is what it says, and checked where it is used.
        let head = if direction == held.end {
            held.out.head
        } else {
            shared.head(direction).load(Ordering::Acquire) & !SWITCHED
        };
        shared.start(direction).store(0, Ordering::SeqCst);
        shared.present(direction).store(0, Ordering::SeqCst);
        shared.reset(direction).store(0, Ordering::SeqCst);
        shared.left(direction).store(0, Ordering::SeqCst);
        shared.pusher(direction).store(0, Ordering::SeqCst);
        shared.pushed(direction).store(0, Ordering::SeqCst);
        shared.tail(direction).store(head, Ordering::SeqCst);
    }
}

/// This end's own words likewise. The peer cannot have sent: this end has not yet said
/// that it expects the ring.
fn resume(held: &mut Inner, shared: &SharedMemory) {
    let peer = held.peer();
    held.out.go_on();
    held.input.go_on(shared, peer);
    held.attach(*shared, false);
    held.operations = 0;
    held.next_try = 0;
}

/// Whether this end may say that it is done.
pub(crate) fn may(held: &Inner) -> bool {
    !policy::is_barred() && held.is_ours_alone()
}

/// The agreement: nothing promised; a fork has switched; which ends are done; one of them puts the
/// words in order; live; over.
const NONE: u64 = 0;
const OPEN: u64 = 1;
const DONE: u64 = 2;
const BUSY: u64 = 8;
const LIVE: u64 = 16;
const DEAD: u64 = NEVER_AGAIN;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Life;

    /// Two ends of one memory that a fork has brought back, each having sent some bytes.
    fn ends() -> (SharedMemory, [Inner; 2]) {
        let (shared, _) = SharedMemory::create().unwrap();
        let ends = [0, 1].map(|end| {
            let mut inner = Inner::new(end);
            inner.set_life_of_test(Life::Resting(shared));
            inner.out.head = 100 + end as u64;
            shared.head(end).store(inner.out.head, Ordering::SeqCst);
            shared.tail(end).store(7 | SWITCHED, Ordering::SeqCst);
            shared.start(end).store(5, Ordering::SeqCst);
            shared.present(end).store(1, Ordering::SeqCst);
            inner
        });
        (shared, ends)
    }

    #[test]
    fn the_rings_live_again_once_both_ends_are_done_and_positions_go_on() {
        for first in 0..2 {
            let (shared, mut ends) = ends();
            assert_eq!(advance(&mut ends[first], true), Progress::Over, "nothing was promised");
            say(&shared, Agreement::Promise);
            let [a, b] = &mut ends;
            let (a, b) = if first == 0 { (a, b) } else { (b, a) };
            assert_eq!(
                (advance(a, false), advance(b, true), advance(b, true)),
                (Progress::Waiting, Progress::Waiting, Progress::Waiting)
            );
            assert_eq!(advance(a, true), Progress::Live);
            for (end, head) in [(0, 100), (1, 101)] {
                assert_eq!(shared.tail(end).load(Ordering::SeqCst), head, "taken, and not switched");
                assert_eq!(shared.start(end).load(Ordering::SeqCst) + shared.present(end).load(Ordering::SeqCst), 0);
            }
            assert!(matches!((a.life(), b.life()), (Life::Attached { .. }, Life::Resting(_))));
            assert!(!withdraw(b, &shared), "too late");
            assert_eq!(advance(b, false), Progress::Live, "the other may have begun");
            assert_eq!((a.input.tail, b.input.tail), (b.out.head, a.out.head));
            // And once more, while the other has not come yet.
            say(&shared, Agreement::Promise);
            assert!(is_open(&shared));
            // SAFETY: [preload-shared] not used afterwards.
            unsafe { shared.unmap() };
        }
    }

    #[test]
    fn a_word_taken_back_or_an_end_for_good_keeps_the_rings_shut() {
        let (shared, mut ends) = ends();
        say(&shared, Agreement::Promise);
        assert_eq!(advance(&mut ends[0], true), Progress::Waiting);
        assert!(withdraw(&ends[0], &shared));
        assert_eq!(advance(&mut ends[1], true), Progress::Waiting, "the first is no longer done");
        say(&shared, Agreement::End);
        say(&shared, Agreement::Promise);
        assert_eq!((advance(&mut ends[0], true), advance(&mut ends[1], true)), (Progress::Over, Progress::Over));
        // SAFETY: [preload-shared] not used afterwards.
        unsafe { shared.unmap() };
    }
}
