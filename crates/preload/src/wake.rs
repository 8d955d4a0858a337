//! Wake bytes: bytes on the kernel socket that wake a sleeper and mean nothing else.
//!
//! One word for each end holds what it sleeps for and how many wake bytes were issued for it. A
//! wake byte is counted in the same atomic step that takes the wake request away, and only then
//! sent. So an end that takes its own wake request back knows exactly how many bytes of the
//! kernel's stream are wake bytes. The peer sends no other before the next request. That is what
//! makes switching back to the kernel possible without asking the peer.
//!
//! Who expects bytes soon, or room, sleeps on the word itself: that is woken by a futex and
//! puts nothing into the stream. Who sleeps in a set or in poll asks to be woken by an
//! eventfd, where there is one.

use std::sync::atomic::Ordering;

use crate::word::Word;

/// Wakes when bytes arrive.
pub(crate) const DATA: u64 = 1;
/// Wakes when there is room to send.
pub(crate) const ROOM: u64 = 2;
/// Sleeps on the word, for bytes.
const FUTEX_DATA: u64 = 4;
/// The wake requests, moved by so many bits, are those for eventfds.
const EVENTFD_SHIFT: u32 = 3;
const EVENTFDS: u64 = (DATA | ROOM) << EVENTFD_SHIFT;
/// Sleeps on the word, for room.
const FUTEX_ROOM: u64 = 32;
const FUTEX: u64 = FUTEX_DATA | FUTEX_ROOM;
pub(crate) const REQUESTS: u64 = DATA | ROOM | FUTEX | EVENTFDS;
/// One wake byte, in the word.
pub(crate) const ONE: u64 = 64;

/// How the other end is to be woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wake {
    /// By a wake byte: it is counted, and the caller must send it.
    pub(crate) byte: bool,
    /// By the word that it sleeps on.
    pub(crate) futex: bool,
    /// By its eventfd.
    pub(crate) eventfd: bool,
}

/// The same wake request, to be answered by an eventfd.
#[inline]
pub(crate) fn by_eventfd(request: u64) -> u64 {
    request << EVENTFD_SHIFT
}

/// Asks to be woken. The caller looks once more afterwards, before it sleeps.
#[inline]
pub(crate) fn arm(word: &Word, request: u64) {
    word.fetch_or(request, Ordering::SeqCst);
}

/// The same wake request, of one who sleeps on the word itself.
fn by_futex(request: u64) -> u64 {
    (if request & DATA != 0 { FUTEX_DATA } else { 0 }) | if request & ROOM != 0 { FUTEX_ROOM } else { 0 }
}

/// Asks to be woken by the word itself. Returns what it is while the wake request stands.
pub(crate) fn arm_futex(word: &Word, request: u64) -> u64 {
    word.fetch_or(by_futex(request), Ordering::SeqCst) | by_futex(request)
}

/// Takes all wake requests back. Returns how many wake bytes were issued, ever: no more come
/// until the next wake request.
#[inline]
pub(crate) fn disarm(word: &Word) -> u64 {
    word.fetch_and(!REQUESTS, Ordering::SeqCst) / ONE
}

/// Takes the wake requests for a wake byte back, of one who sleeps no more and
/// has not been woken by one.
pub(crate) fn disarm_bytes(word: &Word) {
    if word.load(Ordering::Relaxed) & (DATA | ROOM) != 0 {
        word.fetch_and(!(DATA | ROOM), Ordering::SeqCst);
    }
}

/// Takes the wake requests for an eventfd back. One that was answered just
/// before may still be signalled.
#[inline]
pub(crate) fn disarm_eventfd(word: &Word) {
    if word.load(Ordering::Relaxed) & EVENTFDS != 0 {
        word.fetch_and(!EVENTFDS, Ordering::SeqCst);
    }
}

/// The word with so many wake bytes and these wake requests.
pub(crate) fn counted(wake_bytes: u64, requests: u64) -> u64 {
    wake_bytes.wrapping_mul(ONE) | requests
}

/// How many wake bytes were issued, ever.
#[inline]
pub(crate) fn issued(word: &Word) -> u64 {
    word.load(Ordering::SeqCst) / ONE
}

/// Whether and how the other end is to be woken for one of these. What there is for it must have
/// been published by a sequentially consistent operation, for that must be visible before the wake
/// request is looked at: the sleeper does it the other way round.
#[inline]
pub(crate) fn claim(word: &Word, requests: u64) -> Wake {
    let requests = by_eventfd(requests) | by_futex(requests) | requests;
    if word.load(Ordering::SeqCst) & requests == 0 {
        return Wake::default();
    }
    let reported = |now: u64| {
        (now & requests != 0).then(|| (now & !REQUESTS).wrapping_add(if wake_of(now).byte { ONE } else { 0 }))
    };
    word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, reported).map_or(Wake::default(), wake_of)
}

/// All wake requests end, so whoever had one is woken.
fn wake_of(word: u64) -> Wake {
    Wake { byte: word & (DATA | ROOM) != 0, futex: word & FUTEX != 0, eventfd: word & EVENTFDS != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_byte_is_issued_once_for_a_request_and_never_without() {
        let word = Word::new(0);
        let claim = |requests| claim(&word, requests);
        assert!(!claim(REQUESTS).byte);
        arm(&word, DATA);
        assert!(!claim(ROOM).byte, "it does not sleep for room");
        assert!(claim(DATA).byte && !claim(DATA).byte);
        arm(&word, ROOM);
        assert_eq!((disarm(&word), claim(REQUESTS).byte, issued(&word)), (1, false, 1));
        arm(&word, DATA | by_eventfd(ROOM));
        disarm_bytes(&word);
        assert_eq!(claim(REQUESTS), Wake { eventfd: true, ..Wake::default() }, "the other request stays");
    }

    #[test]
    fn who_sleeps_on_the_word_gets_no_wake_byte_unless_another_wants_one() {
        let word = Word::new(0);
        assert_eq!(arm_futex(&word, DATA), FUTEX_DATA);
        assert_eq!(claim(&word, ROOM), Wake::default());
        assert_eq!(claim(&word, DATA), Wake { futex: true, ..Wake::default() });
        assert_eq!((claim(&word, DATA), issued(&word)), (Wake::default(), 0));
        assert_eq!(arm_futex(&word, ROOM), FUTEX_ROOM);
        assert_eq!(claim(&word, DATA), Wake::default(), "it sleeps for room");
        assert_eq!(claim(&word, ROOM), Wake { futex: true, ..Wake::default() });
        arm_futex(&word, DATA);
        arm(&word, ROOM);
        assert_eq!(
            claim(&word, ROOM),
            Wake { byte: true, futex: true, eventfd: false },
            "a wake request that ends is answered"
        );
        arm_futex(&word, DATA);
        assert_eq!((disarm(&word), claim(&word, DATA)), (1, Wake::default()));
    }

    #[test]
    fn who_has_an_eventfd_gets_no_wake_byte_and_none_is_counted() {
        let word = Word::new(0);
        arm(&word, by_eventfd(ROOM));
        assert_eq!(claim(&word, DATA), Wake::default(), "it does not sleep for bytes");
        assert_eq!(claim(&word, ROOM), Wake { eventfd: true, ..Wake::default() });
        assert_eq!((claim(&word, ROOM), issued(&word)), (Wake::default(), 0));
        arm(&word, by_eventfd(DATA) | ROOM);
        assert_eq!(
            claim(&word, DATA),
            Wake { byte: true, eventfd: true, futex: false },
            "one sleeps on the socket alone"
        );
        arm(&word, by_eventfd(DATA));
        assert_eq!((disarm(&word), claim(&word, DATA)), (1, Wake::default()));
        arm(&word, by_eventfd(DATA | ROOM) | DATA);
        disarm_eventfd(&word);
        assert_eq!(
            claim(&word, DATA | ROOM),
            Wake { byte: true, ..Wake::default() },
            "who wants a wake byte still gets it"
        );
    }
}
