//! Bells: bytes on the kernel socket that wake a sleeper and mean nothing else.
//!
//! One word for each end holds what it sleeps for and how many bells were rung for it. A bell is counted in the same atomic
//! step that takes the wish away, and only then sent; so whoever takes its own wish back knows exactly how many bytes of the
//! kernel's stream are bells, and nobody rings again before it wishes again. That is what makes switching back to the kernel
//! possible without asking the peer.

use std::sync::atomic::{AtomicU64, Ordering};

/// Wakes when bytes arrive.
pub(crate) const DATA: u64 = 1;
/// Wakes when there is room to send.
pub(crate) const ROOM: u64 = 2;
const WISHES: u64 = DATA | ROOM;
const ONE: u64 = 4;

/// Asks to be woken. The caller looks once more afterwards, before it sleeps.
#[inline]
pub(crate) fn arm(word: &AtomicU64, wish: u64) {
    word.fetch_or(wish, Ordering::SeqCst);
}

/// Takes all wishes back. Returns how many bells were rung, ever: no more come until the next wish.
#[inline]
pub(crate) fn disarm(word: &AtomicU64) -> u64 {
    word.fetch_and(!WISHES, Ordering::SeqCst) / ONE
}

/// How many bells were rung, ever.
#[inline]
pub(crate) fn rung(word: &AtomicU64) -> u64 {
    word.load(Ordering::SeqCst) / ONE
}

/// Whether the other end is to be woken for one of these; if so the bell is counted and the caller must send it.
#[inline]
pub(crate) fn claim(word: &AtomicU64, wishes: u64) -> bool {
    // What was published before must be visible before the wish is looked at: the sleeper does it the other way round.
    std::sync::atomic::fence(Ordering::SeqCst);
    let mut now = word.load(Ordering::Relaxed);
    while now & wishes != 0 {
        let next = (now & !WISHES).wrapping_add(ONE);
        match word.compare_exchange_weak(now, next, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_rung_once_for_a_wish_and_never_without() {
        let word = AtomicU64::new(0);
        assert!(!claim(&word, WISHES));
        arm(&word, DATA);
        assert!(!claim(&word, ROOM), "it does not sleep for room");
        assert!(claim(&word, DATA) && !claim(&word, DATA));
        arm(&word, ROOM);
        assert_eq!((disarm(&word), claim(&word, WISHES), rung(&word)), (1, false, 1));
    }
}
