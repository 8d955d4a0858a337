//! Bells: bytes on the kernel socket that wake a sleeper and mean nothing else.
//!
//! One word for each end holds what it sleeps for and how many bells were rung for it. A bell is counted in the same atomic
//! step that takes the wish away, and only then sent; so whoever takes its own wish back knows exactly how many bytes of the
//! kernel's stream are bells, and nobody rings again before it wishes again. That is what makes switching back to the kernel
//! possible without asking the peer.
//!
//! Who expects bytes soon, or room, sleeps on the word itself: that is woken by a futex and puts nothing into the stream. Who sleeps in a
//! set or in poll wishes to be woken by a chime, where there is one.

use std::sync::atomic::Ordering;

use crate::word::Word;

/// Wakes when bytes arrive.
pub(crate) const DATA: u64 = 1;
/// Wakes when there is room to send.
pub(crate) const ROOM: u64 = 2;
/// Sleeps on the word, for bytes.
const NEAR_DATA: u64 = 4;
/// The wishes for bells, moved by so many bits, are those for chimes.
const CHIMED: u32 = 3;
const CHIMES: u64 = (DATA | ROOM) << CHIMED;
/// Sleeps on the word, for room.
const NEAR_ROOM: u64 = 32;
const NEAR: u64 = NEAR_DATA | NEAR_ROOM;
pub(crate) const WISHES: u64 = DATA | ROOM | NEAR | CHIMES;
/// One bell, in the word.
pub(crate) const ONE: u64 = 64;

/// How the other end is to be woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wake {
    /// By a bell: it is counted, and the caller must send it.
    pub(crate) bell: bool,
    /// By the word that it sleeps on.
    pub(crate) near: bool,
    /// By its chime.
    pub(crate) chime: bool,
}

/// The same wish, to be answered by a chime.
#[inline]
pub(crate) fn by_chime(wish: u64) -> u64 {
    wish << CHIMED
}

/// Asks to be woken. The caller looks once more afterwards, before it sleeps.
#[inline]
pub(crate) fn arm(word: &Word, wish: u64) {
    word.fetch_or(wish, Ordering::SeqCst);
}

/// The same wish, of one who sleeps on the word itself.
fn nearby(wish: u64) -> u64 {
    (if wish & DATA != 0 { NEAR_DATA } else { 0 }) | if wish & ROOM != 0 { NEAR_ROOM } else { 0 }
}

/// Asks to be woken by the word itself. Returns what it is while the wish stands.
pub(crate) fn arm_near(word: &Word, wish: u64) -> u64 {
    word.fetch_or(nearby(wish), Ordering::SeqCst) | nearby(wish)
}

/// Takes all wishes back. Returns how many bells were rung, ever: no more come until the next wish.
#[inline]
pub(crate) fn disarm(word: &Word) -> u64 {
    word.fetch_and(!WISHES, Ordering::SeqCst) / ONE
}

/// Takes the wishes for a chime back. One that was answered just before may still ring.
#[inline]
pub(crate) fn hush(word: &Word) {
    if word.load(Ordering::Relaxed) & CHIMES != 0 {
        word.fetch_and(!CHIMES, Ordering::SeqCst);
    }
}

/// The word with so many bells and these wishes.
pub(crate) fn counted(bells: u64, wishes: u64) -> u64 {
    bells.wrapping_mul(ONE) | wishes
}

/// How many bells were rung, ever.
#[inline]
pub(crate) fn rung(word: &Word) -> u64 {
    word.load(Ordering::SeqCst) / ONE
}

/// Whether and how the other end is to be woken for one of these. What there is for it must have been published by a sequentially
/// consistent operation, for that must be visible before the wish is looked at: the sleeper does it the other way round.
#[inline]
pub(crate) fn claim(word: &Word, wishes: u64) -> Wake {
    let wishes = by_chime(wishes) | nearby(wishes) | wishes;
    if word.load(Ordering::SeqCst) & wishes == 0 {
        return Wake::default();
    }
    let told =
        |now: u64| (now & wishes != 0).then(|| (now & !WISHES).wrapping_add(if wake_of(now).bell { ONE } else { 0 }));
    word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, told).map_or(Wake::default(), wake_of)
}

/// All wishes end, so whoever had one is woken.
fn wake_of(word: u64) -> Wake {
    Wake { bell: word & (DATA | ROOM) != 0, near: word & NEAR != 0, chime: word & CHIMES != 0 }
}

#[cfg(test)]
pub(crate) mod sender;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_rung_once_for_a_wish_and_never_without() {
        let word = Word::new(0);
        let claim = |wishes| claim(&word, wishes);
        assert!(!claim(WISHES).bell);
        arm(&word, DATA);
        assert!(!claim(ROOM).bell, "it does not sleep for room");
        assert!(claim(DATA).bell && !claim(DATA).bell);
        arm(&word, ROOM);
        assert_eq!((disarm(&word), claim(WISHES).bell, rung(&word)), (1, false, 1));
    }

    #[test]
    fn who_sleeps_on_the_word_gets_no_bell_unless_another_wants_one() {
        let word = Word::new(0);
        assert_eq!(arm_near(&word, DATA), NEAR_DATA);
        assert_eq!(claim(&word, ROOM), Wake::default());
        assert_eq!(claim(&word, DATA), Wake { near: true, ..Wake::default() });
        assert_eq!((claim(&word, DATA), rung(&word)), (Wake::default(), 0));
        assert_eq!(arm_near(&word, ROOM), NEAR_ROOM);
        assert_eq!(claim(&word, DATA), Wake::default(), "it sleeps for room");
        assert_eq!(claim(&word, ROOM), Wake { near: true, ..Wake::default() });
        arm_near(&word, DATA);
        arm(&word, ROOM);
        assert_eq!(claim(&word, ROOM), Wake { bell: true, near: true, chime: false }, "a wish that ends is answered");
        arm_near(&word, DATA);
        assert_eq!((disarm(&word), claim(&word, DATA)), (1, Wake::default()));
    }

    #[test]
    fn who_has_a_chime_gets_no_bell_and_none_is_counted() {
        let word = Word::new(0);
        arm(&word, by_chime(ROOM));
        assert_eq!(claim(&word, DATA), Wake::default(), "it does not sleep for bytes");
        assert_eq!(claim(&word, ROOM), Wake { chime: true, ..Wake::default() });
        assert_eq!((claim(&word, ROOM), rung(&word)), (Wake::default(), 0));
        arm(&word, by_chime(DATA) | ROOM);
        assert_eq!(claim(&word, DATA), Wake { bell: true, chime: true, near: false }, "one sleeps on the socket alone");
        arm(&word, by_chime(DATA));
        assert_eq!((disarm(&word), claim(&word, DATA)), (1, Wake::default()));
        arm(&word, by_chime(DATA | ROOM) | DATA);
        hush(&word);
        assert_eq!(claim(&word, DATA | ROOM), Wake { bell: true, ..Wake::default() }, "who wants a bell still gets it");
    }
}
